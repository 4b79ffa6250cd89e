package semui_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/semui"
)

type screen struct {
	Now *struct {
		Health    string
		Refused   int
		RefusedBy map[string]int `json:"refused_by"`
	}
	Holders []struct{ Mark, Handle, Owner string }
	Next    string
	Waiters []struct{ Owner, Class string }
	Set     json.RawMessage
}

func screenOf(t *testing.T, h http.Handler, path string) (s screen) {
	t.Helper()
	w := get(h, path)
	if err := json.Unmarshal(w.Body.Bytes(), &s); err != nil || w.Code != 200 {
		t.Fatalf("%s: %d %s: %v", path, w.Code, w.Body, err)
	}
	return s
}

func hold(t *testing.T, sem *gotsem.Semaphore, id string, n int) (leases []*gotsem.Lease) {
	t.Helper()
	for range n {
		l, err := sem.Try(context.Background(), id)
		if err != nil {
			t.Fatal(err)
		}
		leases = append(leases, l)
	}
	return leases
}

// TestTheScreenOfAnID: who waits, and what this process refused and why, beside who holds.
func TestTheScreenOfAnID(t *testing.T) {
	sem, err := gotsem.New(gotsem.Options{Limit: 2, Queue: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer sem.Close()
	h := page(t, semui.Options{Semaphore: sem, Authorize: semui.ViewOnly})
	hold(t, sem, "a", 2)
	ctx, cancel := context.WithCancel(t.Context())
	waited := make(chan error, 1)
	go func() {
		_, err := sem.Acquire(ctx, "a", gotsem.As(gotsem.Batch))
		waited <- err
	}()
	for sem.Stats().Waiting == 0 {
		time.Sleep(time.Millisecond)
	}
	for range 3 {
		_, _ = sem.Try(ctx, "a")
	}
	_, _ = sem.Try(ctx, "a", gotsem.Weight(9))
	s := screenOf(t, h, "/api/v1/id?id="+key("a"))
	if len(s.Waiters) != 1 || s.Waiters[0].Class != "batch" || s.Waiters[0].Owner == "" {
		t.Errorf("in line: %+v", s.Waiters)
	}
	if s.Now == nil || s.Now.Health != "Waiting" || s.Now.Refused != 4 || s.Now.RefusedBy["full"] != 3 || s.Now.RefusedBy["too_heavy"] != 1 {
		t.Errorf("refused: %+v", s.Now)
	}
	if len(s.Holders) != 2 || s.Holders[0].Handle != "" {
		t.Errorf("a viewer gets no handle: %+v", s.Holders)
	}
	cancel()
	<-waited
}

// TestHoldersComeAPageAtATime: however many they are.
func TestHoldersComeAPageAtATime(t *testing.T) {
	sem := semaphore(t, 1000)
	h := page(t, semui.Options{Semaphore: sem, Authorize: semui.ViewOnly, Budget: 1000})
	hold(t, sem, "a", 250)
	s := screenOf(t, h, "/api/v1/id?id="+key("a"))
	seen := make(map[string]bool)
	for pages := 1; ; pages++ {
		for _, one := range s.Holders {
			seen[one.Mark] = true
		}
		if s.Next == "" {
			if len(seen) != 250 || pages != 3 {
				t.Errorf("%d holders in %d pages, want 250 in 3", len(seen), pages)
			}
			break
		}
		s = screenOf(t, h, "/api/v1/holders?id="+key("a")+"&after="+s.Next)
	}
	for _, after := range []string{"", "x", key("1 slot")} {
		if w := get(h, "/api/v1/holders?id="+key("a")+"&after="+after); w.Code != http.StatusBadRequest {
			t.Errorf("after %q: %d, want 400", after, w.Code)
		}
	}
}

// TestRevokingTakesTheSlotThatWasSeen: by a handle that says nothing to anybody else.
func TestRevokingTakesTheSlotThatWasSeen(t *testing.T) {
	sem := semaphore(t, 3)
	access := semui.Operate
	var audited []semui.Event
	h := page(t, semui.Options{Semaphore: sem,
		Authorize: func(*http.Request) (string, semui.Access) { return "anna", access },
		Audit:     func(_ context.Context, e semui.Event) { audited = append(audited, e) }})
	lease := hold(t, sem, "a", 1)[0]
	s := screenOf(t, h, "/api/v1/id?id="+key("a"))
	if len(s.Holders) != 1 || s.Holders[0].Handle == "" || strings.Contains(fmt.Sprint(s), lease.SlotID()) {
		t.Fatalf("%+v", s)
	}
	revoke := func(id, handle string) int {
		body := fmt.Sprintf(`{"key":%q,"handle":%q,"reason":"stuck"}`, key(id), handle)
		return post(h, body, func(r *http.Request) { r.URL.Path = "/api/v1/revoke" }).Code
	}
	handle := s.Holders[0].Handle
	if got := revoke("a", handle[:len(handle)-2]); got != http.StatusBadRequest {
		t.Errorf("a handle that is none: %d, want 400", got)
	}
	if got := revoke("b", handle); got != http.StatusBadRequest {
		t.Errorf("the handle of another id: %d, want 400", got)
	}
	access = semui.View
	if got := revoke("a", handle); got != http.StatusForbidden || lease.Context().Err() != nil {
		t.Errorf("a viewer: %d, %v", got, lease.Context().Err())
	}
	access = semui.Operate
	if got := revoke("a", handle); got != http.StatusOK {
		t.Errorf("%d, want 200", got)
	}
	<-lease.Context().Done()
	if got := revoke("a", handle); got != http.StatusConflict {
		t.Errorf("once more: %d, want 409", got)
	}
	if len(audited) != 3 || audited[1].Action != "revoke" || audited[1].Mark != s.Holders[0].Mark || audited[1].Who != "anna" || audited[1].Reason != "stuck" || audited[1].Err != nil || audited[2].Err == nil {
		t.Errorf("%+v", audited)
	}
}

// TestAStreamSendsTheViewUntilThePageCloses, and there are not too many.
func TestAStreamSendsTheViewUntilThePageCloses(t *testing.T) {
	sem := semaphore(t, 3)
	h := page(t, semui.Options{Semaphore: sem, Authorize: semui.ViewOnly, Interval: 100 * time.Millisecond})
	srv := httptest.NewServer(h)
	defer srv.Close()
	hold(t, sem, "a", 2)
	open := func() *http.Response {
		r, err := http.NewRequestWithContext(t.Context(), "GET", srv.URL+"/api/v1/events?view=id&id="+key("a"), nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := srv.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = resp.Body.Close() })
		return resp
	}
	resp := open()
	lines, frames := bufio.NewScanner(resp.Body), 0
	for frames < 3 && lines.Scan() {
		text, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		var s screen
		if err := json.Unmarshal([]byte(text), &s); err != nil || len(s.Holders) != 2 {
			t.Fatalf("%s: %v", text, err)
		}
		frames++
	}
	if kind := resp.Header.Get("Content-Type"); frames != 3 || kind != "text/event-stream" || resp.Header.Get("X-Accel-Buffering") != "no" {
		t.Errorf("%d frames, %v", frames, resp.Header)
	}
	for range 31 {
		if resp := open(); resp.StatusCode != 200 {
			t.Fatalf("32 tabs may look: %d", resp.StatusCode)
		}
	}
	if resp := open(); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("a 33rd: %d, want 503", resp.StatusCode)
	}
	for _, bad := range []string{"view=none", "view=id", "view=id&id=%25", ""} {
		if w := get(h, "/api/v1/events?"+bad); w.Code != http.StatusBadRequest {
			t.Errorf("%q: %d, want 400", bad, w.Code)
		}
	}
	_ = h.Close()
	for lines.Scan() { // it ends
	}
	if w := get(h, "/api/v1/ids"); w.Code != http.StatusServiceUnavailable {
		t.Errorf("after Close: %d, want 503", w.Code)
	}
}

// TestTheScreenOfTheStore names the processes, and this one's counters.
func TestTheScreenOfTheStore(t *testing.T) {
	sem := semaphore(t, 3)
	h := page(t, semui.Options{Semaphore: sem, Authorize: semui.ViewOnly})
	hold(t, sem, "a", 2)
	var s struct {
		Processes []struct{ Owner string }
		Here      map[string]int
		Trouble   string
	}
	w := get(h, "/api/v1/store")
	if err := json.Unmarshal(w.Body.Bytes(), &s); err != nil || len(s.Processes) != 1 || s.Processes[0].Owner == "" || s.Here["granted"] != 2 || s.Trouble != "" {
		t.Errorf("%v: %s", err, w.Body)
	}
}
