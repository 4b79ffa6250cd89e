package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

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
