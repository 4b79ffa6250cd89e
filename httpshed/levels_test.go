package httpshed_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/httpshed"
)

// A request of several ids is refused with 429 for those of its caller, and with 503 for
// the last, where callers meet; the refusal says which it was.
func TestEachLevelHasItsStatus(t *testing.T) {
	limits := map[string]int{"key": 2, "tenant": 3, "all": 4}
	sem := semaphore(t, gotsem.Options{LimitFunc: func(_ context.Context, id string) (int, error) { return limits[id], nil }})
	for _, c := range []struct {
		id     string
		level  int
		status int
		own    func(int, string) int
	}{
		{"key", 0, 429, nil}, {"tenant", 1, 429, nil}, {"all", 2, 503, nil},
		{"all", 2, 429, func(int, string) int { return 429 }},
		{"tenant", 1, 403, func(level int, id string) int { return map[string]int{"tenant": 402 + level}[id] }},
		{"key", 0, 429, func(int, string) int { return 200 }}, // which is no refusal
	} {
		var no httpshed.Refusal
		shed, err := httpshed.New(httpshed.Options{
			Semaphore: sem, Key: httpshed.Fixed("key"), Problem: true, LevelStatus: c.own,
			Also:     func(*http.Request) []string { return []string{"tenant", "all"} },
			OnRefuse: func(_ *http.Request, r httpshed.Refusal) { no = r },
		})
		if err != nil {
			t.Fatal(err)
		}
		h := shed.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "in") }))
		held, err := sem.Try(t.Context(), c.id, gotsem.Weight(limits[c.id]))
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		if w.Code != c.status || no.Status != c.status || no.ID != c.id || no.Level != c.level || no.Reason != httpshed.Full || w.Header().Get("Retry-After") == "" {
			t.Errorf("%s: %d, %+v", c.id, w.Code, no)
		}
		if quota := strings.Contains(w.Body.String(), "quota-exceeded"); quota != (c.status != 503) {
			t.Errorf("%s: %s", c.id, w.Body)
		}
		_ = held.Release(t.Context())
		w = httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		if w.Code != 200 || shed.Stats().Held != 0 {
			t.Errorf("%s: with room: %d, %d held", c.id, w.Code, shed.Stats().Held)
		}
		for id := range limits {
			if u, err := sem.Usage(t.Context(), id); err != nil || u.Active != 0 {
				t.Errorf("%s: %+v, %v", id, u, err)
			}
		}
	}
}

// A list that gotsem refuses is this server's fault, and logged.
func TestAListThatMakesNoLeaseIsAServerFault(t *testing.T) {
	for _, also := range [][]string{{"key"}, {""}, strings.Split("abcdefghi", "")} {
		var log strings.Builder
		shed, err := httpshed.New(httpshed.Options{
			Semaphore: semaphore(t, gotsem.Options{Limit: 1}), Key: httpshed.Fixed("key"),
			Also:   func(*http.Request) []string { return slices.Clone(also) },
			Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		shed.Handler(http.NotFoundHandler()).ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		if w.Code != 500 || strings.Contains(w.Body.String(), "key") || !strings.Contains(log.String(), "such ids are not taken") {
			t.Errorf("%q: %d %s %s", also, w.Code, w.Body, log.String())
		}
	}
}

// The class of a request decides who is refused first.
func TestAClassOfRequestsIsRefusedFirst(t *testing.T) {
	sem := semaphore(t, gotsem.Options{Limit: 2, Classes: map[gotsem.Class]gotsem.ClassRule{gotsem.Sheddable: {Slots: .5}}})
	held, err := sem.Try(t.Context(), "key")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Release(t.Context()) }()
	class := gotsem.Sheddable
	shed, err := httpshed.New(httpshed.Options{
		Semaphore: sem, Key: httpshed.Fixed("key"), Class: func(*http.Request) gotsem.Class { return class },
	})
	if err != nil {
		t.Fatal(err)
	}
	h := shed.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {}))
	for _, c := range []struct {
		class gotsem.Class
		code  int
	}{{gotsem.Sheddable, 429}, {gotsem.Default, 200}, {gotsem.Critical, 200}} {
		class = c.class
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		if w.Code != c.code {
			t.Errorf("%v: %d, want %d", c.class, w.Code, c.code)
		}
	}
}
