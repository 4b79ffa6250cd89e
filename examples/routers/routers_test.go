package routers

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/examples/internal/extest"
	"github.com/ashfaqjani916/gotsem/httpshed"
)

// With each router the second request of a project is refused, and one of another project
// is not.
func TestEachRouterLimitsByProject(t *testing.T) {
	for name, router := range map[string]func(*httpshed.Shedder, http.Handler) http.Handler{"net/http": NetHTTP, "chi": Chi, "echo": Echo, "gin": Gin} {
		t.Run(name, func(t *testing.T) {
			sem, _ := extest.Semaphore(t, gotsem.Options{Limit: 1})
			shed, err := httpshed.New(httpshed.Options{Semaphore: sem, Key: httpshed.ByPathValue("project")})
			if err != nil {
				t.Fatal(err)
			}
			began, goOn := make(chan struct{}, 2), make(chan struct{})
			srv := httptest.NewServer(router(shed, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				began <- struct{}{}
				<-goOn
				if r.PathValue("project") == "" {
					w.WriteHeader(http.StatusTeapot)
				}
			})))
			defer srv.Close()
			get := func(project string) int {
				resp, err := http.Get(srv.URL + "/p/" + project + "/capture")
				if err != nil {
					t.Error(err)
					return 0
				}
				defer resp.Body.Close()
				return resp.StatusCode
			}
			answers := make(chan int, 2)
			for _, project := range []string{"7", "8"} {
				go func() { answers <- get(project) }()
				<-began
			}
			if code := get("7"); code != http.StatusTooManyRequests {
				t.Errorf("the second of project 7: %d, want 429", code)
			}
			close(goOn)
			for range 2 {
				if code := <-answers; code != http.StatusOK {
					t.Errorf("the first of a project: %d, want 200", code)
				}
			}
			if n := sem.Stats().Refused; n != 1 {
				t.Errorf("%d refused", n)
			}
		})
	}
}
