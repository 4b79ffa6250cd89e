package pagetest_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"
	"go.uber.org/goleak"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/screenshotd/internal/pagetest"
	"github.com/ashfaqjani916/gotsem/semui"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// odd is an id made to do harm where it is not shown as text: markup, an attribute's end,
// letters that turn the direction of what follows, a byte that is no letter.
const odd = "\"><img src=x onerror=alert(1)>\u202e</script>\xff"

// shown is odd as the page shows it.
const shown = `"><img src=x onerror=alert(1)>\u202e</script>\xff`

// desk is the operators' page over a real Redis.
type desk struct {
	t     *testing.T
	redis *redistest.Server
	sem   *gotsem.Semaphore
	ts    *httptest.Server
	page  *semui.Handler
	asked atomic.Int64 // requests of the page for numbers
	polls atomic.Bool  // there are no streams: it has to poll

	mu      sync.Mutex
	audit   []semui.Event
	answers []string // method, path and status of each request
}

// newDesk makes one. Ids in held are held once each time that they are named.
func newDesk(t *testing.T, access semui.Access, held ...string) *desk {
	t.Helper()
	d := &desk{t: t, redis: redistest.Start(t)}
	var err error
	d.sem, err = gotsem.New(gotsem.Options{Store: redisstore.New(d.redis.Client(), "p:"), Limit: 3, TTL: time.Minute, Queue: 10})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.sem.Close() })
	for _, id := range held {
		if _, err := d.sem.Acquire(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	page, err := semui.New(semui.Options{
		Semaphore: d.sem, Interval: 200 * time.Millisecond, Budget: 500, Hosts: []string{"127.0.0.1"},
		Authorize: func(*http.Request) (string, semui.Access) { return "anna", access },
		Audit: func(_ context.Context, e semui.Event) {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.audit = append(d.audit, e)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	d.page = page
	d.ts = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/api/") {
			d.asked.Add(1)
		}
		if d.polls.Load() && strings.HasSuffix(r.URL.Path, "/events") {
			http.Error(w, "no streams here", http.StatusServiceUnavailable)
			return
		}
		status := statusOf{w, 200}
		http.StripPrefix("/ops/limits", page).ServeHTTP(&status, r)
		d.mu.Lock()
		defer d.mu.Unlock()
		d.answers = append(d.answers, fmt.Sprint(r.Method, " ", r.URL.Path, " ", status.code))
	}))
	t.Cleanup(d.ts.Close)
	t.Cleanup(func() { _ = page.Close() }) // first: a server waits for its streams
	return d
}

type statusOf struct {
	http.ResponseWriter
	code int
}

func (s *statusOf) Unwrap() http.ResponseWriter { return s.ResponseWriter }

func (s *statusOf) WriteHeader(code int) { s.code = code; s.ResponseWriter.WriteHeader(code) }

// wait has somebody wait for an id until the test ends.
func (d *desk) wait(id string) {
	d.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var waiter sync.WaitGroup
	waiter.Go(func() { _, _ = d.sem.Acquire(ctx, id) })
	d.t.Cleanup(func() { cancel(); waiter.Wait() })
}

func (d *desk) answered(what string) (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range d.answers {
		if a == what {
			n++
		}
	}
	return n
}

// limit is what an operator has set; -1: nothing.
func (d *desk) limit(id string) int {
	d.t.Helper()
	u, err := d.sem.Usage(d.t.Context(), id)
	if err != nil {
		d.t.Fatal(err)
	}
	if !u.LimitSet {
		return -1
	}
	return u.Limit
}

func (d *desk) url() string { return d.ts.URL + "/ops/limits/" }

func one(id string) string { return "?id=" + base64.RawURLEncoding.EncodeToString([]byte(id)) }

// inEachView checks a screen as it is looked at in each way.
func inEachView(p *pagetest.Page, screen string) {
	for _, v := range pagetest.Views() {
		p.Look(v)
		p.Accessible(screen + ", " + v.String())
		p.Picture("semui-" + screen + "-" + v.String())
	}
	p.Look(pagetest.View{})
}

// TestEveryScreenCanBeUsedByAll: what axe finds, in each screen, dialog and state.
func TestEveryScreenCanBeUsedByAll(t *testing.T) {
	d := newDesk(t, semui.Operate)
	b := pagetest.Start(t)
	p := b.Open(t, d.url(), pagetest.View{})
	p.AwaitText("#status", "The store answers")
	p.AwaitText("#note", "No id has been seen held yet")
	inEachView(p, "empty")

	hold := func(ids ...string) {
		t.Helper()
		for _, id := range ids {
			if _, err := d.sem.Acquire(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		}
	}
	// One after the other as it is seen, so that there is something to be seen in "Lately".
	hold("tenant-7:render", "export", "billing", "nightly", "tenant-9:render", odd)
	for i, id := range []string{"billing", "export", "billing", "tenant-7:render"} {
		p.Await("all to be seen", fmt.Sprintf(`document.querySelector("#held").textContent === "%d"`, 6+i))
		hold(id)
	}
	for id, limit := range map[string]int{"tenant-9:render": 12_000, "export": 1, "nightly": 0} {
		if err := d.sem.SetLimit(t.Context(), id, limit); err != nil {
			t.Fatal(err)
		}
	}
	d.wait("billing")
	p.AwaitText("#rows", "Waiting")
	p.AwaitText("#rows", "Paused")
	p.AwaitText("#rows", "12,000 set")
	d.wait("billing")
	p.Await("both who wait", `document.querySelector("#rows tr").cells[4].textContent === "2"`)
	p.Look(pagetest.View{Width: 960, Height: 610})
	p.Picture("semui")
	p.AwaitText("#rows", shown)
	p.AwaitText("#rows", "Waiting")
	p.AwaitText("#rows", "Over")
	inEachView(p, "overview")
	p.Quiet()

	p = b.Open(t, d.url()+one("billing"), pagetest.View{})
	p.AwaitText("#line", "2 wait")
	p.Await("the holders", `document.querySelectorAll("#holders tr").length === 3`)
	inEachView(p, "id")
	p.TabTo("#change")
	p.Press(kb.Enter)
	p.Await("the dialog", `document.querySelector("#dialog").open`)
	p.Press("1")
	p.AwaitText("#effect", "3 held, new limit 1: 2 must end first. Nobody is turned out.")
	inEachView(p, "dialog")
	p.Press(kb.Escape)
	p.Quiet()

	// What is shown stays, with the word that it is old.
	d.redis.Stop()
	t.Cleanup(d.redis.Cont) // before the semaphore is closed
	p.AwaitText("#status", "The store does not answer")
	inEachView(p, "store-down")
	p.Quiet()
}

// TestALimitIsChangedByKeyboard: from the overview to the changed limit, without a mouse.
func TestALimitIsChangedByKeyboard(t *testing.T) {
	d := newDesk(t, semui.Operate, "billing", "billing")
	p := pagetest.Start(t).Open(t, d.url(), pagetest.View{})
	p.AwaitText("#rows", "billing")
	p.TabTo("#rows a")
	p.Press(kb.Enter)
	p.AwaitText("#big", "2 of 3")
	p.TabTo("#change")
	p.Press(kb.Enter)
	p.Await("the focus to be in the dialog", `document.activeElement.id === "limit"`)
	p.Press("1", "2")
	p.AwaitText("#effect", "2 held, new limit 12.")
	p.TabTo("#reason")
	p.Press("the night run", kb.Enter)
	p.Await("the dialog to close", `!document.querySelector("#dialog").open`)
	p.AwaitText("#big", "2 of 12")
	if id := pagetest.Eval[string](p, "document.activeElement.id"); id != "change" {
		t.Errorf("the focus is on %q, want where it came from", id)
	}
	if got := d.limit("billing"); got != 12 {
		t.Errorf("the limit is %d, want 12", got)
	}
	d.mu.Lock()
	audit := d.audit
	d.mu.Unlock()
	if len(audit) != 1 || audit[0].Who != "anna" || audit[0].Reason != "the night run" || *audit[0].New != 12 || audit[0].Err != nil {
		t.Errorf("the audit has %+v", audit)
	}
	// And off again: an empty field.
	p.Press(kb.Enter)
	p.Await("the dialog", `document.querySelector("#dialog").open && document.querySelector("#limit").value === "12"`)
	p.Press(kb.Backspace, kb.Backspace, kb.Delete, kb.Delete)
	p.AwaitText("#effect", "Each program's own limit will count")
	p.Press(kb.Enter)
	p.AwaitText("#origin", "No limit was set by hand")
	if got := d.limit("billing"); got != -1 {
		t.Errorf("the limit is %d, want none set", got)
	}
	p.Quiet()
}

// TestTheSecondOfTwoOperatorsIsTold: who decides by what is no longer so changes nothing,
// reads why, and keeps what they typed.
func TestTheSecondOfTwoOperatorsIsTold(t *testing.T) {
	d := newDesk(t, semui.Operate, "billing")
	b := pagetest.Start(t)
	var both [2]*pagetest.Page
	for i := range both {
		p := b.Open(t, d.url()+one("billing"), pagetest.View{})
		both[i] = p
		p.AwaitText("#big", "1 of 3")
		p.TabTo("#change")
		p.Press(kb.Enter)
		p.Await("the dialog", `document.querySelector("#dialog").open`)
	}
	both[0].Press("5", kb.Enter)
	both[0].AwaitText("#big", "1 of 5")
	both[1].AwaitText("#big", "1 of 5") // behind the dialog
	both[1].Press("9", kb.Enter)
	both[1].Await("why nothing was changed", `document.querySelector("#refused").textContent.includes("changed")`)
	inEachView(both[1], "refused")
	if v := pagetest.Eval[string](both[1], `document.querySelector("#limit").value`); v != "9" {
		t.Errorf("the field has %q, want what was typed", v)
	}
	if got := d.limit("billing"); got != 5 || d.answered("POST /ops/limits/api/v1/limit 409") != 1 {
		t.Errorf("the limit is %d, want 5; answers %v", got, d.answers)
	}
	both[0].Quiet()
	both[1].Quiet("409 (Conflict)")
}

// TestAnIdIsText: in the table, in its screen and in the title; and it is found by its name.
func TestAnIdIsText(t *testing.T) {
	d := newDesk(t, semui.Operate, odd, "<b>bold</b>")
	b := pagetest.Start(t)
	p := b.Open(t, d.url(), pagetest.View{})
	p.AwaitText("#rows", shown)
	p.AwaitText("#rows", "<b>bold</b>")
	p.TabTo("#q")
	p.Press("<b>", kb.Enter)
	p.AwaitText("#name", "<b>") // nobody holds it, and it has a screen
	p = b.Open(t, d.url()+one(odd), pagetest.View{})
	p.AwaitText("#name", shown)
	if title := pagetest.Eval[string](p, "document.title"); !strings.Contains(title, shown) {
		t.Errorf("the title is %q", title)
	}
	if n := pagetest.Eval[int](p, `document.querySelectorAll("img, b, script:not([src])").length`); n != 0 {
		t.Errorf("ids have become %d elements", n)
	}
	p.Quiet()
}

// TestAViewerIsOfferedNothing: who may look sees no button, and is refused without it.
func TestAViewerIsOfferedNothing(t *testing.T) {
	d := newDesk(t, semui.View, "billing")
	p := pagetest.Start(t).Open(t, d.url()+one("billing"), pagetest.View{})
	p.AwaitText("#big", "1 of 3")
	if pagetest.Eval[bool](p, `document.querySelector("#change").checkVisibility()`) {
		t.Error("a viewer is shown the button")
	}
	p.Accessible("a viewer's")
	if code := pagetest.Eval[int](p, post("api/v1/limit", "billing")); code != 403 || d.limit("billing") != -1 {
		t.Errorf("a viewer's change: %d, and the limit is %d", code, d.limit("billing"))
	}
	p.Quiet("403 (Forbidden)")
}

// post is a script that changes a limit as the page does, and comes to the status.
func post(url, id string) string {
	return fmt.Sprintf(`fetch(%q, {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify({key: %q, limit: 9})}).then((a) => a.status)`,
		url, base64.RawURLEncoding.EncodeToString([]byte(id)))
}

// TestNoOtherPageChangesALimit: neither a script of another origin, whether it asks first or
// not, nor a form; nor does the page answer to a foreign name.
func TestNoOtherPageChangesALimit(t *testing.T) {
	d := newDesk(t, semui.Operate, "billing")
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = fmt.Fprintf(w, `<!doctype html><title>elsewhere</title><form method="post" enctype="text/plain" action="%sapi/v1/limit"><input name="x"></form>`, d.url())
	}))
	defer other.Close()
	b := pagetest.Start(t)
	const path = "POST /ops/limits/api/v1/limit "
	p := b.Open(t, other.URL, pagetest.View{})
	if got := pagetest.Eval[string](p, post(d.url()+"api/v1/limit", "billing")+`.catch(() => "stopped")`); got != "stopped" {
		t.Errorf("a script of another origin got %v", got)
	}
	if n := d.answered(path + "200"); n != 0 {
		t.Errorf("%d changes were made", n)
	}
	pagetest.Eval[string](p, fmt.Sprintf(`fetch(%q, {method: "POST", mode: "no-cors", body: "{}"}).then((a) => a.type)`, d.url()+"api/v1/limit"))
	if n := d.answered(path + "403"); n != 1 {
		t.Errorf("one that does not ask first: %v; want 403", d.answers)
	}
	pagetest.Eval[bool](p, `document.forms[0].submit() ?? true`)
	p.Await("the form's answer", `location.pathname.endsWith("/limit") && document.body.textContent.includes("from the page itself only")`)
	if n := d.answered(path + "403"); n != 2 {
		t.Errorf("a form: %v; want 403", d.answers)
	}
	if got := d.limit("billing"); got != -1 {
		t.Errorf("the limit is %d, want none set", got)
	}
	evil := strings.Replace(d.url(), "127.0.0.1", "evil.example", 1)
	p = b.Open(t, evil, pagetest.View{})
	p.AwaitText("body", "does not answer to that host name")
	if n := d.answered("GET /ops/limits/ 421"); n == 0 { // Chromium asks twice
		t.Errorf("a foreign name: %v; want 421", d.answers)
	}
}

// TestBehindNginx: below a prefix that nginx strips, with the Host that nginx makes up, the
// page finds all that is its own, and a limit can be changed.
func TestBehindNginx(t *testing.T) {
	d := newDesk(t, semui.Operate, "billing")
	inner := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.URL.Path = "/ops/limits" + r.URL.Path
		d.ts.Config.Handler.ServeHTTP(w, r)
	}))
	defer inner.Close()
	defer d.page.Close()
	b := pagetest.Start(t)
	for _, at := range []string{pagetest.Nginx(t, inner, "/team/x/"), d.ts.URL + "/ops/limits"} {
		p := b.Open(t, at, pagetest.View{})
		p.AwaitText("#rows", "billing")
		p.TabTo("#rows a")
		p.Press(kb.Enter)
		p.AwaitText("#big", "1 of")
		if code := pagetest.Eval[int](p, post("api/v1/limit", "fresh "+at)); code != 200 || d.limit("fresh "+at) != 9 {
			t.Errorf("%s: a change: %d", at, code)
		}
		p.TabTo(".mark")
		p.Press(kb.Enter)
		p.AwaitText("h1", "Limits by pain")
		p.Quiet()
	}
}

// TestNothingMovesUnderTheFocus: while somebody is about to press Enter on a row, the rows
// keep their order, whatever they say; then they take the new one.
func TestNothingMovesUnderTheFocus(t *testing.T) {
	d := newDesk(t, semui.View, "a", "a", "a", "b", "b")
	p := pagetest.Start(t).Open(t, d.url(), pagetest.View{})
	order := `[...document.querySelectorAll("#rows bdi")].map((e) => e.textContent).join()`
	p.Await("the fullest first", order+` === "a,b"`)
	p.TabTo("#rows tr:nth-child(2) a")
	if _, err := d.sem.Acquire(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	d.wait("b")
	p.AwaitText("#rows tr:nth-child(2)", "Waiting")
	if got := pagetest.Eval[string](p, order); got != "a,b" {
		t.Errorf("the rows are %s", got)
	}
	p.Press(kb.Enter)
	p.AwaitText("#name", "b")
	p.TabTo(".mark")
	p.Press(kb.Enter)
	p.Await("who waits to be first", order+` === "b,a"`)
	p.Quiet()
}

// TestATabIsNoLargerAfterHours: what is shown is patched in place, so that 1,000 updates
// leave neither nodes nor listeners nor memory behind.
func TestATabIsNoLargerAfterHours(t *testing.T) {
	d := newDesk(t, semui.View, "a", "b", "b")
	d.polls.Store(true) // its clock runs ahead, and a stream's does not
	p := pagetest.Start(t).Open(t, d.url(), pagetest.View{})
	p.AwaitText("#rows", "b")
	p.Later(5 * time.Second) // what is made once
	before, asked := p.Size(), d.asked.Load()
	p.Later(250 * time.Second)
	after := p.Size()
	if n := d.asked.Load() - asked; n < 900 {
		t.Fatalf("it was updated %d times, want about 1,000", n)
	}
	if after.Nodes > before.Nodes+20 || after.Listeners > before.Listeners+5 || after.Heap > before.Heap+256<<10 {
		t.Errorf("after 1,000 updates it has %+v, before %+v", after, before)
	}
	t.Logf("after 1,000 updates it has %+v, before %+v", after, before)
	p.Quiet("503 (Service Unavailable)")
}

// TestAPageHasOneStream: numbers come by it and by no other request, until the page is paused.
func TestAPageHasOneStream(t *testing.T) {
	d := newDesk(t, semui.View, "a")
	p := pagetest.Start(t).Open(t, d.url()+one("a"), pagetest.View{})
	for held := 1; held <= 3; held++ {
		p.AwaitText("#big", fmt.Sprint(held, " of 3"))
		if held < 3 {
			if _, err := d.sem.Acquire(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := d.asked.Load(); n != 1 {
		t.Errorf("%d requests, want the one of the stream: %v", n, d.answers)
	}
	p.TabTo("#pause")
	p.Press(" ")
	p.Await("the stream's end", `document.querySelector("#status").textContent === "Updates are paused"`)
	for d.answered("GET /ops/limits/api/v1/events 200") == 0 {
		time.Sleep(10 * time.Millisecond)
	}
	p.Press(" ")
	p.AwaitText("#status", "The store answers")
	p.Quiet()
}

// TestASlotIsRevokedByKeyboard: of the holders that are seen, the one that was meant.
func TestASlotIsRevokedByKeyboard(t *testing.T) {
	d := newDesk(t, semui.Operate, "a")
	lease, err := d.sem.Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	d.wait("b")
	p := pagetest.Start(t).Open(t, d.url()+one("a"), pagetest.View{})
	p.Await("the holders", `document.querySelectorAll("#holders button").length === 2`)
	p.TabTo("#holders tr:nth-child(2) button")
	p.Press(kb.Enter)
	p.Await("the dialog", `document.querySelector("#revoke").open`)
	inEachView(p, "revoke")
	p.TabTo("#revoke-reason")
	p.Press("stuck", kb.Enter)
	p.Await("the dialog to close", `!document.querySelector("#revoke").open`)
	p.AwaitText("#big", "1 of 3")
	d.mu.Lock()
	audit := d.audit
	d.mu.Unlock()
	if len(audit) != 1 || audit[0].Action != "revoke" || audit[0].Reason != "stuck" || audit[0].Err != nil {
		t.Errorf("the audit has %+v", audit)
	}
	_ = lease
	p.Quiet()
}

// TestLongListsComeAPageAtATime: a button brings the next hundred holders.
func TestLongListsComeAPageAtATime(t *testing.T) {
	d := newDesk(t, semui.View)
	if err := d.sem.SetLimit(t.Context(), "a", 250); err != nil {
		t.Fatal(err)
	}
	for range 250 {
		if _, err := d.sem.Try(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
	}
	p := pagetest.Start(t).Open(t, d.url()+one("a"), pagetest.View{})
	for _, want := range []int{100, 200, 250} {
		p.Await(fmt.Sprint(want, " holders"), fmt.Sprintf(`document.querySelectorAll("#holders tr").length === %d`, want))
		if want < 250 {
			p.TabTo("#more")
			p.Press(kb.Enter)
		}
	}
	p.Await("no further page", `document.querySelector("#more").hidden`)
	p.Quiet()
}

// TestTheStoreHasAScreen: who shares it, and whether it is set up right.
func TestTheStoreHasAScreen(t *testing.T) {
	d := newDesk(t, semui.View, "a")
	b := pagetest.Start(t)
	p := b.Open(t, d.url(), pagetest.View{})
	p.TabTo("#to-store")
	p.Press(kb.Enter)
	p.AwaitText("#processes", "good for another")
	p.AwaitText("#findings", "Well: version")
	p.AwaitText("#here", "granted")
	inEachView(p, "store")
	p.Quiet()
}

// TestAPausedPageAsksNothing: pause means no request.
func TestAPausedPageAsksNothing(t *testing.T) {
	d := newDesk(t, semui.View, "a", "b")
	d.polls.Store(true) // its clock runs ahead, and a stream's does not
	p := pagetest.Start(t).Open(t, d.url(), pagetest.View{})
	p.AwaitText("#rows", "b")
	before := d.asked.Load()
	p.Later(time.Minute)
	if n := d.asked.Load() - before; n < 100 || n > 400 {
		t.Errorf("in a minute of its time the page asked %d times, want about 240", n)
	}
	p.TabTo("#pause")
	p.Press(" ")
	p.AwaitText("#status", "Updates are paused")
	before = d.asked.Load()
	p.Later(time.Hour)
	if n := d.asked.Load() - before; n != 0 {
		t.Errorf("paused, it asked %d times within an hour", n)
	}
	p.Quiet("503 (Service Unavailable)")
}

// BenchmarkFirstPaint is of the overview of 20,000 ids, beside a page of as many bytes with
// nothing in it: go test -run - -bench FirstPaint ./internal/pagetest
func BenchmarkFirstPaint(b *testing.B) {
	sem, err := gotsem.New(gotsem.Options{Limit: 3})
	if err != nil {
		b.Fatal(err)
	}
	defer sem.Close()
	for i := range 20_000 {
		if _, err := sem.Try(b.Context(), fmt.Sprint("id", i)); err != nil {
			b.Fatal(err)
		}
	}
	page, err := semui.New(semui.Options{Semaphore: sem, Authorize: semui.ViewOnly})
	if err != nil {
		b.Fatal(err)
	}
	defer page.Close()
	size := 0
	for _, file := range []string{"/", "/assets/semui.css", "/assets/semui.js"} {
		w := httptest.NewRecorder()
		page.ServeHTTP(w, httptest.NewRequest("GET", file, nil))
		size += w.Body.Len()
	}
	empty := []byte("<!doctype html><title>empty</title><p>nothing<!--" + strings.Repeat(" ", size) + "-->")
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/empty") {
			w.Header().Set("Content-Type", "text/html")
			_, _ = w.Write(empty)
			return
		}
		page.ServeHTTP(w, r)
	}))
	defer ts.Close()
	defer page.Close()
	browser := pagetest.Start(b)
	var paint [2][]float64
	for b.Loop() {
		for i, path := range []string{"/empty", "/"} {
			p := browser.Open(b, ts.URL+path, pagetest.View{})
			p.Await("something to be seen", `performance.getEntriesByName("first-contentful-paint").length === 1`)
			paint[i] = append(paint[i], pagetest.Eval[float64](p, `performance.getEntriesByName("first-contentful-paint")[0].startTime`))
			if i == 1 {
				p.Await("rows", `document.querySelectorAll("#rows tr").length > 0`)
				b.ReportMetric(pagetest.Eval[float64](p, `performance.now()`), "ms-to-rows")
			}
		}
	}
	slices.Sort(paint[0])
	slices.Sort(paint[1])
	bare, ours := paint[0][len(paint[0])/2], paint[1][len(paint[1])/2]
	b.ReportMetric(bare, "ms-empty")
	b.ReportMetric(ours, "ms-overview")
	b.ReportMetric(ours/bare, "ratio")
}
