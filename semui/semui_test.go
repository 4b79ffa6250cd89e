package semui_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/semui"
	"github.com/ashfaqjani916/gotsem/store"
	"github.com/ashfaqjani916/gotsem/store/memstore"
)

func operate(*http.Request) (string, semui.Access) { return "anna", semui.Operate }

func semaphore(t *testing.T, limit int) *gotsem.Semaphore {
	t.Helper()
	sem, err := gotsem.New(gotsem.Options{Store: memstore.New(), Limit: limit})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sem.Close() })
	return sem
}

func page(t *testing.T, o semui.Options) *semui.Handler {
	t.Helper()
	h, err := semui.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() })
	return h
}

func get(h http.Handler, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
	return w
}

func key(id string) string { return base64.RawURLEncoding.EncodeToString([]byte(id)) }

// post sends a change as the page does, but for what alter makes of it.
func post(h http.Handler, body string, alter func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest("POST", "/api/v1/limit", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	if alter != nil {
		alter(r)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

type answer struct {
	Operate bool
	Up      bool
	Rows    []standing
	Now     *standing
	Holders []struct{ Mark, Owner string }
}

type standing struct {
	Key, ID       string
	Held, Waiting int
	Limit         *int
	History       [][3]int
}

func decode(t *testing.T, w *httptest.ResponseRecorder) (a answer) {
	t.Helper()
	if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil || w.Code != 200 {
		t.Fatalf("%d %s: %v", w.Code, w.Body, err)
	}
	return a
}

// TestNobodyLooksUnasked: without Authorize, or a semaphore, there is no page.
func TestNobodyLooksUnasked(t *testing.T) {
	if _, err := semui.New(semui.Options{Semaphore: semaphore(t, 1)}); err == nil || !strings.Contains(err.Error(), "Authorize") {
		t.Errorf("without Authorize: %v", err)
	}
	if _, err := semui.New(semui.Options{Authorize: semui.ViewOnly}); err == nil || !strings.Contains(err.Error(), "Semaphore") {
		t.Errorf("without Semaphore: %v", err)
	}
	h := page(t, semui.Options{Semaphore: semaphore(t, 1), Authorize: func(*http.Request) (string, semui.Access) { return "", semui.None }})
	for _, path := range []string{"/", "/assets/semui.js", "/api/v1/ids", "/api/v1/id?id=" + key("a")} {
		if w := get(h, path); w.Code != http.StatusForbidden {
			t.Errorf("%s: %d, want 403", path, w.Code)
		}
	}
}

// TestChangesComeFromThePage: another origin, a foreign host, a form, a viewer and a GET
// change nothing; and each try that gets as far as a limit is in the audit.
func TestChangesComeFromThePage(t *testing.T) {
	ctx := context.Background()
	sem := semaphore(t, 3)
	var audited []semui.Event
	access := semui.Operate
	h := page(t, semui.Options{
		Semaphore: sem, Hosts: []string{"example.com"},
		Authorize: func(*http.Request) (string, semui.Access) { return "anna", access },
		Audit:     func(_ context.Context, e semui.Event) { audited = append(audited, e) },
	})
	body := `{"key":"` + key("a") + `","limit":9,"for_s":60,"version":"","reason":"test"}`
	for name, c := range map[string]struct {
		alter func(*http.Request)
		want  int
	}{
		"another origin": {func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") }, 403},
		"another origin, an old browser": {func(r *http.Request) {
			r.Header.Del("Sec-Fetch-Site")
			r.Header.Set("Origin", "http://evil.example")
		}, 403},
		"a foreign host": {func(r *http.Request) { r.Host = "evil.example" }, 421},
		"a form":         {func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") }, 415},
		"a GET":          {func(r *http.Request) { r.Method = "GET" }, 405},
	} {
		if w := post(h, body, c.alter); w.Code != c.want {
			t.Errorf("%s: %d %s, want %d", name, w.Code, w.Body, c.want)
		}
	}
	access = semui.View
	if w := post(h, body, nil); w.Code != http.StatusForbidden {
		t.Errorf("a viewer: %d, want 403", w.Code)
	}
	if u, err := sem.Usage(ctx, "a"); err != nil || u.LimitSet {
		t.Fatalf("a limit is set: %+v, %v", u, err)
	}
	access = semui.Operate
	if w := post(h, body, nil); w.Code != http.StatusOK {
		t.Fatalf("the page: %d %s", w.Code, w.Body)
	}
	o, err := sem.LimitOf(ctx, "a")
	if err != nil || o.Limit != 9 || o.By != "anna: test" || time.Until(o.Until) > time.Minute {
		t.Errorf("after the change: %+v, %v", o, err)
	}
	if len(audited) != 2 || audited[0].Err == nil || audited[1].Err != nil || audited[1].Who != "anna" || *audited[1].New != 9 || audited[1].Reason != "test" || audited[1].For != time.Minute {
		t.Errorf("audit: %+v", audited)
	}
}

// TestTwoOperators: who decides by what is no longer so is told, and changes nothing.
func TestTwoOperators(t *testing.T) {
	sem := semaphore(t, 3)
	pages := []*semui.Handler{page(t, semui.Options{Semaphore: sem, Authorize: operate}), page(t, semui.Options{Semaphore: sem, Authorize: operate})}
	codes := make([]int, 8)
	var all sync.WaitGroup
	for i := range codes {
		all.Go(func() {
			codes[i] = post(pages[i%2], fmt.Sprintf(`{"key":%q,"limit":%d,"version":""}`, key("a"), i+1), nil).Code
		})
	}
	all.Wait()
	done := -1
	for i, code := range codes {
		if code == http.StatusOK && done < 0 {
			done = i
		} else if code != http.StatusConflict {
			t.Errorf("operator %d: %d, want one 200 and 409s: %v", i, code, codes)
		}
	}
	if u, err := sem.Usage(context.Background(), "a"); err != nil || u.Limit != done+1 {
		t.Errorf("the limit is %d, operator %d was told that it is theirs (%v)", u.Limit, done, err)
	}
	var seen struct {
		Set struct {
			Version string `json:"version"`
			By      string `json:"by"`
		} `json:"set"`
	}
	if err := json.Unmarshal(get(pages[0], "/api/v1/id?id="+key("a")).Body.Bytes(), &seen); err != nil || seen.Set.Version == "" {
		t.Fatalf("%+v, %v", seen, err)
	}
	if w := post(pages[1], fmt.Sprintf(`{"key":%q,"limit":null,"version":%q}`, key("a"), seen.Set.Version), nil); w.Code != http.StatusOK {
		t.Errorf("taking it off: %d %s", w.Code, w.Body)
	}
}

// TestPainComesFirst: the id with a line leads, then the fullest; odd ids are shown as text.
func TestPainComesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sem := semaphore(t, 2)
		h := page(t, semui.Options{Semaphore: sem, Authorize: semui.ViewOnly})
		ctx, cancel := context.WithCancel(t.Context())
		const odd = "<img src=x onerror=alert(1)>\u202e\xff"
		for _, id := range []string{"calm", "full", "full", odd, odd} {
			lease, err := sem.Acquire(ctx, id)
			if err != nil {
				t.Fatal(err)
			}
			defer lease.Release(context.Background())
		}
		var waiter sync.WaitGroup
		waiter.Go(func() { _, _ = sem.Acquire(ctx, odd) })
		defer waiter.Wait()
		defer cancel()
		synctest.Wait()
		get(h, "/api/v1/ids")
		time.Sleep(5 * time.Second)
		a := decode(t, get(h, "/api/v1/ids"))
		if len(a.Rows) != 3 || a.Rows[0].Key != key(odd) || a.Rows[1].ID != "full" || a.Rows[2].ID != "calm" || !a.Up || a.Operate {
			t.Fatalf("%+v", a)
		}
		if got := a.Rows[0].ID; got != `<img src=x onerror=alert(1)>\u202e\xff` {
			t.Errorf("an odd id is shown as %q", got)
		}
		if len(a.Rows[0].History) == 0 {
			t.Error("no history of the id that hurts most")
		}
		one := decode(t, get(h, "/api/v1/id?id="+key(odd)))
		if one.Now == nil || one.Now.Held != 2 || one.Now.Waiting != 1 || len(one.Holders) != 2 || len(one.Holders[0].Mark) != 6 {
			t.Errorf("%+v", one)
		}
		_ = h.Close()
	})
}

// counted counts the calls of a look.
type counted struct {
	*memstore.Store
	n atomic.Int64
}

func (c *counted) Usage(ctx context.Context, id string, limit int) (store.Usage, error) {
	c.n.Add(1)
	return c.Store.Usage(ctx, id, limit)
}

func (c *counted) Holders(ctx context.Context, id, after string, n int) ([]store.Holder, string, error) {
	c.n.Add(1)
	return c.Store.Holders(ctx, id, after, n)
}

func (c *counted) Waiters(ctx context.Context, id string, n int) ([]store.Waiter, error) {
	c.n.Add(1)
	return c.Store.Waiters(ctx, id, n)
}

// TestLookingIsBounded: the store is asked Budget times a second at most however many
// look, and not at all 30 s after the last of them.
func TestLookingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &counted{Store: memstore.New()}
		sem, err := gotsem.New(gotsem.Options{Store: st, Limit: 2})
		if err != nil {
			t.Fatal(err)
		}
		defer sem.Close()
		for i := range 1000 {
			lease, err := sem.Acquire(t.Context(), fmt.Sprint("id-", i))
			if err != nil {
				t.Fatal(err)
			}
			defer lease.Release(context.Background())
		}
		h := page(t, semui.Options{Semaphore: sem, Authorize: semui.ViewOnly, Budget: 100})
		time.Sleep(time.Minute)
		if n := st.n.Load(); n != 0 {
			t.Errorf("asked %d times before anybody looked", n)
		}
		for range 60 {
			for i := range 10 {
				get(h, "/api/v1/ids")
				get(h, "/api/v1/id?id="+key(fmt.Sprint("id-", i)))
			}
			time.Sleep(time.Second)
		}
		n := st.n.Load()
		if n > 102*100 || n < 10*100 {
			t.Errorf("asked %d times in a minute or a little more; at most 100 a second, and it should look", n)
		}
		time.Sleep(40 * time.Second)
		n = st.n.Load()
		time.Sleep(10 * time.Minute)
		if more := st.n.Load() - n; more != 0 {
			t.Errorf("asked %d times while nobody looked", more)
		}
		_ = h.Close()
		if w := get(h, "/api/v1/ids"); w.Code != http.StatusServiceUnavailable {
			t.Errorf("after Close: %d, want 503", w.Code)
		}
	})
}

// TestAnyPrefix: the page works below a prefix that is stripped, and a mount without its
// slash is led there by a relative redirect; nothing in it names the root of the host.
func TestAnyPrefix(t *testing.T) {
	h := page(t, semui.Options{Semaphore: semaphore(t, 1), Authorize: semui.ViewOnly})
	below := http.StripPrefix("/x/y", h)
	if w := get(below, "/x/y"); w.Code != http.StatusMovedPermanently || w.Header().Get("Location") != "./y/" {
		t.Errorf("without its slash: %d to %q", w.Code, w.Header().Get("Location"))
	}
	for _, path := range []string{"/x/y/", "/x/y/assets/semui.js", "/x/y/assets/semui.css", "/x/y/assets/icon.svg", "/x/y/api/v1/ids"} {
		w := get(below, path)
		if w.Code != http.StatusOK || !strings.Contains(w.Header().Get("Content-Security-Policy"), "require-trusted-types-for 'script'") {
			t.Errorf("%s: %d, %v", path, w.Code, w.Header())
		}
		for _, rooted := range []string{`href="/`, `src="/`, `fetch("/`, "innerHTML", "style="} {
			if strings.Contains(w.Body.String(), rooted) {
				t.Errorf("%s has %s", path, rooted)
			}
		}
	}
}
