package door

import (
	"fmt"
	"testing"
	"time"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// What is remembered is bounded, whatever ids come, and what is refused is not
// remembered at all. A busy id is not forgotten for one that came and went.
func TestDrainsAreBounded(t *testing.T) {
	t.Parallel()
	d := New(nil, nil)
	busy := &Held{}
	d.begin(busy, Asker{ID: "busy"})
	for i := range 5 * drainsKept {
		h := &Held{began: time.Duration(i)}
		d.begin(h, Asker{ID: fmt.Sprint(i)})
		d.end(h, time.Duration(i+1))
	}
	if n := len(d.drains.ids); n > drainsKept {
		t.Errorf("%d ids are remembered", n)
	}
	if d.drains.ids[d.hash("busy")] == nil {
		t.Error("the busy id was forgotten")
	}
	refusals := New(nil, nil)
	for i := range 1000 {
		refusals.RetryIn(&gotsem.FullError{ID: fmt.Sprint(i), Limit: 1})
	}
	if n := len(refusals.drains.ids); n != 0 {
		t.Errorf("%d refused ids are remembered", n)
	}
	d.end(busy, time.Hour)
	if admitted, held := d.Counts(); held != 0 || admitted != 5*drainsKept+1 {
		t.Errorf("%d admitted, %d held", admitted, held)
	}
}

// Those who are refused together are promised one place after the other, as fast as they
// come free, and none later than MaxRetryAfter.
func TestComebacksArePromisedOneAfterTheOther(t *testing.T) {
	t.Parallel()
	dr := &drain{running: 4, hold: time.Second, last: time.Minute}
	full := &gotsem.FullError{ID: "a", Active: 4, Limit: 4}
	for i := range 8 {
		wait, measured := dr.retryIn(full, time.Minute)
		if want := time.Duration(i+1) * time.Second / 4; !measured || wait != want {
			t.Errorf("number %d is told %v (measured: %v), want %v", i, wait, measured, want)
		}
	}
	for range 1000 {
		wait, _ := dr.retryIn(full, time.Minute)
		if told := Spread(wait, time.Millisecond); told < 0 || told > MaxRetryAfter {
			t.Fatalf("told %v", told)
		}
	}
	if wait, measured := (*drain)(nil).retryIn(full, 0); measured || wait != unmeasured {
		t.Errorf("of an id that nobody knows: %v, %v", wait, measured)
	}
}
