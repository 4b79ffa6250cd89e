package proxy

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/examples/internal/extest"
)

// Of thirty requests through two proxies three are at the legacy server at once; those
// that are refused know when to come back.
func TestTheLegacyServerNeverSeesMore(t *testing.T) {
	o := gotsem.Options{Limit: 3, Queue: 6}
	first, srv := extest.Semaphore(t, o)
	second := extest.On(t, srv, o)
	var now, most atomic.Int64
	legacy := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		n := now.Add(1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		time.Sleep(20 * time.Millisecond)
		now.Add(-1)
	}))
	defer legacy.Close()
	target, err := url.Parse(legacy.URL)
	if err != nil {
		t.Fatal(err)
	}
	var proxies []*httptest.Server
	for _, sem := range []*gotsem.Semaphore{first, second} {
		h, err := Handler(sem, target)
		if err != nil {
			t.Fatal(err)
		}
		p := httptest.NewServer(h)
		defer p.Close()
		proxies = append(proxies, p)
	}
	var ok, refused atomic.Int64
	var all sync.WaitGroup
	for i := range 30 {
		all.Go(func() {
			resp, err := http.Get(proxies[i%2].URL)
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			switch {
			case resp.StatusCode == 200:
				ok.Add(1)
			case resp.StatusCode == 503 && resp.Header.Get("Retry-After") != "":
				refused.Add(1)
			default:
				t.Errorf("%d, %v", resp.StatusCode, resp.Header)
			}
		})
	}
	all.Wait()
	if most.Load() > 3 || ok.Load() < 3 || ok.Load()+refused.Load() != 30 {
		t.Errorf("%d at once, %d OK, %d refused", most.Load(), ok.Load(), refused.Load())
	}
}
