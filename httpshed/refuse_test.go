package httpshed

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/store"
	"github.com/ashfaqjani916/gotsem/store/memstore"
)

// asked counts how often the store is asked how an id stands.
type asked struct {
	store.Store
	n atomic.Int64
}

func (s *asked) Usage(ctx context.Context, id string, limit int) (store.Usage, error) {
	s.n.Add(1)
	return s.Store.Usage(ctx, id, limit)
}

// A server that is full refuses a lot; the fleet's store is asked ten times a second
// at most, and a change is noticed.
func TestStandingIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &asked{Store: memstore.New()}
		fleet, err := gotsem.New(gotsem.Options{Store: st, Limit: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer fleet.Close()
		local, err := gotsem.New(gotsem.Options{Limit: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer local.Close()
		if _, err := local.Try(t.Context(), LocalID); err != nil {
			t.Fatal(err)
		}
		var reason Reason
		shed, err := New(Options{Semaphore: fleet, Local: local, Key: Fixed("a"), OnRefuse: func(_ *http.Request, no Refusal) { reason = no.Reason }})
		if err != nil {
			t.Fatal(err)
		}
		refused := func() Reason {
			shed.Handler(http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
			return reason
		}
		for range 1000 {
			if r := refused(); r != ServerFull {
				t.Fatalf("refused as %v", r)
			}
			time.Sleep(time.Millisecond)
		}
		if n := st.n.Load(); n < 9 || n > 11 {
			t.Errorf("asked %d times in a second, want 10", n)
		}
		if _, err := fleet.Try(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
		if r := refused(); r != Full {
			t.Errorf("the fleet is full, and it is refused as %v", r)
		}
	})
}

// Every reason has a name and an answer.
func TestReasons(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for r := range reasons {
		name := r.String()
		if seen[name] || name == Reason(200).String() {
			t.Errorf("reason %d: %q", r, name)
		}
		seen[name] = true
	}
	for i, a := range answersOf(Options{}.withDefaults()) {
		if a.status < 400 || len(a.body) < 10 || a.length[0] != fmt.Sprint(len(a.body)) {
			t.Errorf("%v: %d %q", Reason(i), a.status, a.body)
		}
	}
}
