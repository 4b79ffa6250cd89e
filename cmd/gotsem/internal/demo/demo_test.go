package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/ashfaqjani916/gotsem/store"
	"github.com/ashfaqjani916/gotsem/store/memstore"
)

// liar lets in one more than it should.
type liar struct{ *memstore.Store }

func (l liar) Acquire(ctx context.Context, r *store.Request) (store.Decision, error) {
	more := *r
	more.Limit++
	return l.Store.Acquire(ctx, &more)
}

func (l liar) AcquireAll(ctx context.Context, rs []*store.Request) ([]store.Decision, error) {
	lies := make([]*store.Request, len(rs))
	for i, r := range rs {
		more := *r
		more.Limit++
		lies[i] = &more
	}
	return l.Store.AcquireAll(ctx, lies)
}

// A store that breaks the cap is found out, by the exit and in the summary.
func TestBrokenCapIsFound(t *testing.T) {
	var out bytes.Buffer
	err := Run(t.Context(), Options{Length: MinLength, JSON: true, Out: &out, embedded: liar{memstore.New()}})
	if !errors.Is(err, ErrCap) {
		t.Errorf("Run: %v, want ErrCap", err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	var summary struct {
		Type    string
		CapHeld bool `json:"cap_held"`
		Broken  int  `json:"cap_broken"`
	}
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &summary); err != nil {
		t.Fatal(err)
	}
	if summary.Type != "summary" || summary.CapHeld || summary.Broken == 0 {
		t.Errorf("the summary is %s", lines[len(lines)-1])
	}
}

func TestEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var out bytes.Buffer
	began := time.Now()
	time.AfterFunc(300*time.Millisecond, cancel)
	if err := Run(ctx, Options{Length: time.Hour, Out: &out}); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %v to end", took)
	}
	if !strings.Contains(out.String(), "Summary: ") {
		t.Errorf("no summary:\n%s", &out)
	}
}

func TestReferee(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReferee()
		a, b := r.counter("a"), r.counter("b")
		var ends []func()
		begin := func(c counter) {
			t.Helper()
			end, err := c("reports") // of a limit of 2
			if err != nil {
				t.Fatal(err)
			}
			ends = append(ends, end)
		}
		want := func(running, most, broken int) {
			t.Helper()
			if got := r.verdict("reports"); got != (verdict{running, most, broken}) {
				t.Errorf("%+v, want %d running, %d at most, %d times broken", got, running, most, broken)
			}
		}
		begin(a)
		begin(b)
		want(2, 2, 0)
		begin(a)
		want(3, 3, 1)
		ends[0]()
		ends[0]()
		want(1, 3, 1) // an end too many is a fault of ours, and takes nothing from others
		r.raised("reports", 3)
		begin(a)
		begin(a)
		want(3, 3, 1)
		r.lowered("reports", 1)
		ends[1]() // b's
		begin(a)
		want(3, 3, 1) // let in before it was lowered, reported after
		time.Sleep(settling + 1)
		begin(b)
		want(4, 4, 2)
		r.forget("a")
		want(1, 4, 2)
		if _, err := a("reports"); err == nil {
			t.Error("a pod that was killed is heard")
		}
		if _, err := b("nonsense"); err == nil {
			t.Error("a project that is none is heard")
		}
	})
}

// dying is a store that stops answering.
type dying struct {
	*memstore.Store
	dead atomic.Bool
}

var errDead = errors.New("dead")

func (d *dying) Acquire(ctx context.Context, r *store.Request) (store.Decision, error) {
	if d.dead.Load() {
		return store.Decision{}, errDead
	}
	return d.Store.Acquire(ctx, r)
}

func (d *dying) AcquireAll(ctx context.Context, rs []*store.Request) ([]store.Decision, error) {
	if d.dead.Load() {
		return nil, errDead
	}
	return d.Store.AcquireAll(ctx, rs)
}

func (d *dying) Usage(ctx context.Context, id string, limit int) (store.Usage, error) {
	if d.dead.Load() {
		return store.Usage{}, errDead
	}
	return d.Store.Usage(ctx, id, limit)
}

func (d *dying) Holders(ctx context.Context, id, after string, n int) ([]store.Holder, string, error) {
	if d.dead.Load() {
		return nil, "", errDead
	}
	return d.Store.Holders(ctx, id, after, n)
}

func (d *dying) ChangeLimit(ctx context.Context, c store.LimitChange) (store.Override, error) {
	if d.dead.Load() {
		return store.Override{}, errDead
	}
	return d.Store.ChangeLimit(ctx, c)
}

// The summary tells what happened, and of what could not happen that it did not.
func TestSummaryOfAStoreThatDies(t *testing.T) {
	d := &dying{Store: memstore.New()}
	time.AfterFunc(MinLength/10, func() { d.dead.Store(true) }) // before anything has happened
	var out bytes.Buffer
	_ = Run(t.Context(), Options{Length: MinLength, Out: &out, embedded: d})
	_, summary, _ := strings.Cut(out.String(), "Summary: ")
	for _, want := range []string{"its limit was not changed", "The store does not answer now"} {
		if !strings.Contains(summary, want) {
			t.Errorf("no %q in the summary:\n%s", want, summary)
		}
	}
	for _, wrong := range []string{"lapsed by themselves", "went from 6"} {
		if strings.Contains(out.String(), wrong) {
			t.Errorf("%q did not happen:\n%s", wrong, &out)
		}
	}
}

// On a terminal of any size, and of one that changes, no line wraps and nothing scrolls
// away that is drawn over later.
func TestTableFitsTheTerminal(t *testing.T) {
	rows := []row{{Project: "batch", Held: 3, Limit: 3, Dead: 2, tally: tally{Admitted: 12345, Refused: 1234567, P50: 1234.56, P99: 2345.67}}}
	var out bytes.Buffer
	columns, lines, first := 0, 0, true
	r := newReport(&show{Options: Options{Length: time.Minute, Terminal: true, Out: &out, Size: func() (int, int) { return columns, lines }}, where: strings.Repeat("somewhere ", 20)})
	for n := range 40 {
		r.event("something happens for the time of number %d, and it takes words to say what it is: naïvely", n)
	}
	escapes := regexp.MustCompile(`\x1b\[[?0-9]*[A-Za-z]|\r`)
	for _, size := range [][2]int{{200, 50}, {99, 30}, {80, 24}, {40, 24}, {40, 6}, {10, 3}, {200, 50}} {
		columns, lines = size[0], size[1]
		out.Reset()
		r.draw(rows)
		if anew := strings.Contains(out.String(), "\x1b[2J"); anew == first {
			t.Errorf("%v: drawn anew: %v", size, anew)
		}
		first = false
		for range 2 {
			drawn := escapes.ReplaceAllString(out.String(), "")
			if got := strings.Count(drawn, "\n"); got >= lines {
				t.Errorf("%v: %d lines are drawn", size, got)
			}
			if _, table, ok := strings.Cut(drawn, "Ctrl-C ends it.\n\n"); ok {
				drawn = table
			}
			for line := range strings.Lines(drawn) {
				if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n >= columns {
					t.Errorf("%v: a line of %d: %q", size, n, line)
				}
			}
			out.Reset()
			r.draw(rows) // over it
			if strings.Contains(out.String(), "\x1b[2J") {
				t.Errorf("%v: drawn anew though nothing has changed", size)
			}
		}
	}
}
