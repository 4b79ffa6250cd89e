package server_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/screenshotd/internal/browser"
	"github.com/ashfaqjani916/gotsem/screenshotd/internal/guard"
	"github.com/ashfaqjani916/gotsem/screenshotd/internal/pagetest"
	"github.com/ashfaqjani916/gotsem/screenshotd/internal/server"
	"github.com/ashfaqjani916/gotsem/store"
	"github.com/ashfaqjani916/gotsem/store/memstore"
)

// real is a browser that finds the samples, behind its guard.
func real(t *testing.T) *browser.Browser {
	t.Helper()
	g := guard.New(guard.Options{Inside: map[string]http.Handler{server.SampleHost: server.SamplePage()}})
	if err := g.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close() })
	b, err := browser.New(browser.Options{Guard: g})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// sheet is what the page is sent.
type sheet struct {
	Boxes []*struct {
		No   int
		Host string
	}
	Limit, Held, More int
	Line              struct{ N, Most int }
	Reasons           map[string]int
	Refused           []struct {
		No, Status int
		Reason     string
		AgainMS    *int `json:"again_ms"`
	}
	Ended []struct {
		No         int
		Host, Code string
		Picture    bool
	}
	Flood *struct{ Of int }
}

// look is how the board stands.
func look(t *testing.T, ts *httptest.Server) (s sheet) {
	t.Helper()
	_, body := get(t, ts, "/live")
	if err := json.Unmarshal(body, &s); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return s
}

// TestThePageShowsShedding: who presses one button sees the slots fill, the seventh refused
// with 429 and told when to come again, and the pictures of those that got in.
func TestThePageShowsShedding(t *testing.T) {
	ts, s := serve(t, server.Options{Browser: real(t), Overload: true})
	t.Cleanup(s.Closing) // else the server would wait for the page's stream
	p := pagetest.Start(t).Open(t, ts.URL+"/", pagetest.View{Width: 960, Height: 1230})
	p.AwaitText("h1", "0 of 6 slots taken")
	p.AwaitText("#flood-text", "30 captures")
	p.Accessible("empty")

	p.TabTo("#overload") // by the keyboard alone
	p.Press(kb.Enter)
	p.Await("every slot to be taken", `document.querySelectorAll("#slots li.taken").length === 6`)
	p.AwaitText("#status", "Full: one more is refused")
	p.AwaitText("#refused", "full (429)")
	p.Await("a countdown that runs", `[...document.querySelectorAll("#refused tr")].some((tr) => / s$/.test(tr.cells[3].textContent))`)
	p.Await("pictures while it is full", `[...document.querySelectorAll("#shots img")].filter((i) => i.complete && i.naturalWidth === 480).length >= 4`)
	p.Await("every slot to be taken again", `document.querySelectorAll("#slots li.taken").length === 6`)
	p.Picture("screenshotd")
	pagetest.Eval[bool](p, pause) // so that all the pictures are of one moment
	for _, v := range pagetest.Views() {
		v.Height = 1120
		p.Look(v)
		p.Picture("screenshotd-" + v.String())
	}
	p.AwaitText("#status", "Updates are paused")
	pagetest.Eval[bool](p, pause)
	p.AwaitText("#result", "captured and")
	result := p.Text("#result")
	var a struct{ Sent, Captured, Refused int }
	if n := pagetest.Eval[[]int](p, `document.querySelector("#result").textContent.match(/\d+/g).slice(0, 3).map(Number)`); len(n) == 3 {
		a.Sent, a.Captured, a.Refused = n[0], n[1], n[2]
	}
	st := look(t, ts)
	if a.Captured < 6 || a.Refused < 1 || a.Captured+a.Refused != a.Sent || st.Reasons["full"] != a.Refused || len(st.Ended) != 12 || !st.Ended[0].Picture {
		t.Errorf("the page says %q; the server %+v", result, st)
	}
	t.Log(result)
	if id := pagetest.Eval[string](p, "document.activeElement.id"); id != "overload" {
		t.Errorf("the focus has moved to %q", id)
	}
	p.Await("every slot to be free again", `document.querySelectorAll("#slots li.taken").length === 0`)
	for _, v := range pagetest.Views() {
		p.Look(v)
		p.Accessible("after an overload, " + v.String())
	}
	p.Quiet()
}

const pause = `document.querySelector("#pause").click() ?? true`

// TestOneCaptureByKeyboard: a page is captured, shown and offered to be saved; a refusal of
// the form's own capture says when to come again, and counts down.
func TestOneCaptureByKeyboard(t *testing.T) {
	b := real(t)
	ts, s := serve(t, server.Options{Browser: b, Semaphore: semaphore(t, 1, -1)})
	t.Cleanup(s.Closing)
	p := pagetest.Start(t).Open(t, ts.URL+"/", pagetest.View{Calm: true})
	p.AwaitText("h1", "0 of 1 slots taken")
	p.TabTo("#url")
	p.Press("http://sample.invalid/?n=3", kb.Enter)
	p.AwaitText("#said", "captured in")
	p.Await("the picture", `document.querySelector("#shots img")?.naturalWidth === 1280`)
	p.Await("it to be offered", `document.querySelector("#save").href.startsWith("blob:") && !document.querySelector("#save").hidden`)
	if st := look(t, ts); len(st.Ended) != 1 || st.Ended[0].Picture || st.Ended[0].Host != "sample.invalid" || st.Flood != nil {
		t.Errorf("others are shown %+v; want the host, no picture, and no overload", st)
	}
	p.Accessible("a capture")

	one := begin(t, ts, 1, path("url=http://sample.invalid/%3Fn=4"))
	p.Await("the slot to be taken", `document.querySelectorAll("#slots li.taken").length === 1`)
	p.TabTo("#url")
	p.Press(kb.Enter)
	p.AwaitText("#said", "429 after")
	p.AwaitText("#again", "Again in")
	p.Accessible("a refusal")
	p.Picture("screenshotd-refused")
	p.AwaitText("#again", "Now it may be tried again")
	if code := <-one; code != 200 {
		t.Errorf("the other capture got %d", code)
	}
	p.Quiet("429 (Too Many Requests)") // which Chromium itself logs of each
}

// TestStrangersWordsAreText: a host that looks like markup is shown as what it is.
func TestStrangersWordsAreText(t *testing.T) {
	st, finish := waits()
	ts, s := serve(t, server.Options{Browser: st})
	t.Cleanup(s.Closing)
	defer finish()
	p := pagetest.Start(t).Open(t, ts.URL+"/", pagetest.View{})
	p.AwaitText("h1", "0 of 6")
	const odd = `"><svg>onload=alert(1)<`
	got := begin(t, ts, 1, path(`url=http://%22%3E%3Csvg%3Eonload=alert(1)%3C/%2f?<script>alert(2)</script>`))
	p.AwaitText("#slots", odd)
	finish()
	if code := <-got; code != 200 {
		t.Errorf("the capture got %d", code)
	}
	p.AwaitText("#shots", odd)
	if n := pagetest.Eval[int](p, `document.querySelectorAll("main svg, main script").length`); n != 0 {
		t.Errorf("the host has become %d elements", n)
	}
	p.Quiet()
}

// TestBehindAPrefix: the page finds all that is its own under whatever prefix is stripped,
// by the program or by an nginx without settings, which does not hold the events back.
func TestBehindAPrefix(t *testing.T) {
	s, err := server.New(server.Options{Browser: real(t), Semaphore: semaphore(t, 2, -1), Overload: true})
	if err != nil {
		t.Fatal(err)
	}
	ts := httptest.NewServer(http.StripPrefix("/x/y", s))
	t.Cleanup(ts.Close)
	t.Cleanup(s.Closing)
	var streams atomic.Int64
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/events" {
			streams.Add(1)
		}
		s.ServeHTTP(w, r)
	}))
	t.Cleanup(plain.Close)
	t.Cleanup(s.Closing)
	b := pagetest.Start(t)
	for _, at := range []string{ts.URL + "/x/y", pagetest.Nginx(t, plain, "/x/y/")} {
		p := b.Open(t, at, pagetest.View{})
		if at := pagetest.Eval[string](p, "location.pathname"); at != "/x/y/" {
			t.Errorf("without its slash the page is at %s", at)
		}
		p.AwaitText("h1", "0 of 2 slots taken")
		pagetest.Eval[bool](p, `document.querySelector("#overload").click() ?? true`)
		p.AwaitText("h1", "2 of 2 slots taken")
		p.Await("a picture", `document.querySelector("#shots img")?.naturalWidth === 480`)
		p.AwaitText("#result", "captured and")
		p.AwaitText("h1", "0 of 2 slots taken")
		p.Quiet()
	}
	if n := streams.Load(); n != 1 {
		t.Errorf("behind nginx the page asked for its stream %d times: it does not come through", n)
	}
}

// TestNobodyElseOverloads: an overload is taken from the page alone, one at a time, and is
// not there unless it is asked for.
func TestNobodyElseOverloads(t *testing.T) {
	st, finish := waits()
	ts, s := serve(t, server.Options{Browser: st, Semaphore: semaphore(t, 1, -1), Overload: true})
	defer finish()
	send := func(change func(*http.Request)) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, ts.URL+"/overload", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Sec-Fetch-Site", "same-origin")
		change(req)
		resp, _ := do(t, ts, req)
		return resp.StatusCode
	}
	for name, c := range map[string]struct {
		change func(*http.Request)
		want   int
	}{
		"another site":     {func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") }, 403},
		"a sibling domain": {func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-site") }, 403},
		"an old browser": {func(r *http.Request) {
			r.Header.Del("Sec-Fetch-Site")
			r.Header.Set("Origin", "http://evil.example")
		}, 403},
		"a form": {func(r *http.Request) { r.Header.Set("Content-Type", "application/x-www-form-urlencoded") }, 415},
		"a link": {func(r *http.Request) { r.Method = http.MethodGet }, 404},
	} {
		if got := send(c.change); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
	if n := st.running.Load(); n != 0 {
		t.Errorf("%d captures run", n)
	}
	first := make(chan int, 1)
	go func() { first <- send(func(*http.Request) {}) }()
	await(t, "the overload to begin", func() bool { return st.running.Load() == 1 })
	if got := send(func(*http.Request) {}); got != 409 {
		t.Errorf("a second overload: %d, want 409", got)
	}
	if n := st.running.Load(); n > 1 {
		t.Errorf("an overload runs %d captures at once; the limit is 1", n)
	}
	s.Closing()
	finish()
	if got := <-first; got != 200 {
		t.Errorf("the overload: %d", got)
	}
	if got := send(func(*http.Request) {}); got != 503 {
		t.Errorf("while the server stops: %d, want 503", got)
	}
	ts, _ = serve(t, server.Options{Browser: st})
	if got := send(func(*http.Request) {}); got != 405 && got != 404 {
		t.Errorf("where none is offered: %d", got)
	}
}

// TestViewersAreFew: each has one stream, so many at most; the others can still ask, and a
// server that stops ends them all.
func TestViewersAreFew(t *testing.T) {
	st, finish := waits()
	defer finish()
	ts, s := serve(t, server.Options{Browser: st})
	open := func(ctx context.Context) *http.Response {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, ts.URL+"/events", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := ts.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = resp.Body.Close() })
		return resp
	}
	var all []*http.Response
	one, leave := context.WithCancel(t.Context())
	defer leave()
	for i := range 32 {
		ctx := t.Context()
		if i == 0 {
			ctx = one
		}
		resp := open(ctx)
		if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" || resp.Header.Get("X-Accel-Buffering") != "no" {
			t.Fatalf("viewer %d: %s %v", i, resp.Status, resp.Header)
		}
		all = append(all, resp)
	}
	if resp := open(t.Context()); resp.StatusCode != 503 {
		t.Errorf("one more viewer: %s, want 503", resp.Status)
	}
	if look(t, ts).Limit != 6 {
		t.Error("who has no stream cannot ask")
	}
	leave()
	await(t, "the place of one who left", func() bool {
		resp := open(t.Context())
		if resp.StatusCode == 200 {
			all = append(all, resp)
		}
		return resp.StatusCode == 200
	})
	s.Closing()
	for _, resp := range all[1:] {
		body, err := io.ReadAll(resp.Body)
		if err != nil || !strings.HasPrefix(string(body), "retry: ") || !strings.HasSuffix(string(body), "event: bye\ndata: 0\n\n") {
			t.Fatalf("a viewer was left with %q, %v", body, err)
		}
	}
}

// TestTheStreamTellsWhatChanges: a capture's beginning, its weight, its end; and nothing
// while nothing happens.
func TestTheStreamTellsWhatChanges(t *testing.T) {
	st, finish := waits()
	ts, s := serve(t, server.Options{Browser: st, Semaphore: semaphore(t, 4, -1), FullWeight: 2})
	defer finish()
	t.Cleanup(s.Closing)
	resp, err := ts.Client().Get(ts.URL + "/events")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	lines := bufio.NewScanner(resp.Body)
	events := 0
	until := func(what string, f func(sheet) bool) {
		t.Helper()
		for lines.Scan() {
			data, ok := strings.CutPrefix(lines.Text(), "data: ")
			var now sheet
			if !ok {
				continue
			}
			if err := json.Unmarshal([]byte(data), &now); err != nil {
				t.Fatal(err)
			}
			if events++; f(now) {
				return
			}
		}
		t.Fatalf("the stream ends before %s: %v", what, lines.Err())
	}
	until("all is free", func(s sheet) bool { return s.Held == 0 && len(s.Boxes) == 4 })
	got := begin(t, ts, 1, path(example+"&full_page=true"))
	until("two boxes are full", func(s sheet) bool {
		return s.Held == 2 && s.Boxes[0].No == s.Boxes[1].No && s.Boxes[0].Host == "example.test"
	})
	finish()
	<-got
	until("all is free again", func(s sheet) bool { return s.Held == 0 && len(s.Ended) > 0 && s.Ended[0].Code == "ok" })
	if events > 10 {
		t.Errorf("%d events for one capture", events)
	}
}

// asked counts who looks at the store.
type asked struct {
	*memstore.Store
	n atomic.Int64
}

func (a *asked) Usage(ctx context.Context, id string, limit int) (store.Usage, error) {
	a.n.Add(1)
	return a.Store.Usage(ctx, id, limit)
}

// TestNobodyLooksNothingIsAsked: captures and refusals without a viewer ask the store
// nothing for the page; and however many look, it is asked twice a second or so.
func TestNobodyLooksNothingIsAsked(t *testing.T) {
	st, finish := waits()
	count := &asked{Store: memstore.New()}
	sem, err := gotsem.New(gotsem.Options{Store: count, Limit: 1, Queue: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sem.Close() })
	ts, s := serve(t, server.Options{Browser: st, Semaphore: sem})
	defer finish()
	t.Cleanup(s.Closing)
	one := begin(t, ts, 1, path(example))
	await(t, "a capture", func() bool { return st.running.Load() == 1 })
	for range 10 {
		if resp, _ := get(t, ts, path(example)); resp.StatusCode != 429 {
			t.Fatalf("got %s", resp.Status)
		}
	}
	if n := count.n.Load(); n != 0 {
		t.Errorf("the store was asked %d times, and nobody looked", n)
	}
	began := time.Now()
	for range 200 {
		if now := look(t, ts); now.Limit != 1 || now.Held != 1 || len(now.Refused) != 10 {
			t.Fatalf("who looks sees %+v", now)
		}
	}
	if n, most := count.n.Load(), 2+int64(time.Since(began)/(400*time.Millisecond)); n < 1 || n > most {
		t.Errorf("200 viewers asked the store %d times, want 1 to %d", n, most)
	}
	finish()
	<-one
}
