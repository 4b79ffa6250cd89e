package storetest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

func lead(d time.Duration) wish     { return func(r *store.Request) { r.Lead = d } }
func share(thousandths int) wish    { return func(r *store.Request) { r.Share = thousandths } }
func ofClass(c store.Class) wish    { return func(r *store.Request) { r.Class = c } }
func critical(r *store.Request)     { r.Class, r.Lead, r.Queue = store.Critical, 10*time.Second, 100 }
func sheddable(r *store.Request)    { r.Class, r.Queue = store.Sheddable, 100 }
func (w *world) line() (c [4]int)   { return w.usage(1).Line }
func (w *world) inLine(want [4]int) { w.Helper(); w.sameLine(w.line(), want) }

func (w *world) sameLine(got, want [4]int) {
	w.Helper()
	if got != want {
		w.Errorf("in line by class %v, want %v", got, want)
	}
}

// What the classes of requests come to in a store: a head start in line, a share of the
// limit, a count.
var classTests = []subtest{
	{name: "a lead is a place further ahead", test: func(w *world) {
		w.granted("a")
		w.waits(1, "b")
		w.waits(2, "c")
		w.waits(1, "d", lead(time.Minute)) // came last, and stands first
		w.waits(2, "e", lead(30*time.Second))
		w.waits(3, "b")
		w.release("a", true)
		w.stands(1, 3)
		w.is(w.ask("d", wait), store.Granted, 1, 3)
		w.release("d", true)
		w.is(w.ask("e", wait), store.Granted, 1, 2)
		w.release("e", true)
		w.is(w.ask("b"), store.Granted, 1, 1)
	}},
	{name: "a lead overtakes those within it, and nobody else", slow: true, test: func(w *world) {
		w.granted("a")
		w.waits(1, "old")
		w.pass(2 * w.unit)
		w.waits(2, "young")
		w.waits(2, "ahead", lead(w.unit)) // of the young one, and not of the old one
		w.waits(1, "old")
		w.waits(3, "young")
	}},
	{name: "who comes back with its ticket stands where it stood", test: func(w *world) {
		w.granted("a")
		w.waits(1, "b")
		d := w.waits(1, "c", lead(time.Minute))
		w.release("c", true)
		w.waits(1, "b")
		w.waits(1, "c", ticket(d.Ticket), lead(time.Minute)) // and no further ahead
		if again := w.waits(1, "c", ticket(d.Ticket)); again.Ticket != d.Ticket {
			w.Errorf("ticket %d, had %d", again.Ticket, d.Ticket)
		}
		w.waits(2, "b")
	}},
	{name: "a share bounds who does not wait", test: func(w *world) {
		w.granted("a", limit(10), share(500), weight(4))
		w.granted("b", limit(10), share(500))
		w.full("c", limit(10), share(500))
		w.full("c", limit(10), share(500), bare)
		w.granted("d", limit(10), share(900), weight(4))
		w.granted("e", limit(10))
		if d := w.full("f", limit(10)); d.Limit != 10 {
			w.Errorf("limit %d: want the whole", d.Limit)
		}
		w.waits(1, "g", limit(10), share(1)) // who waits has all of it
		w.release("e", true)
		w.is(w.ask("g", limit(10), share(1), wait), store.Granted, 10, 0)
	}},
	{name: "a share is rounded down, to one at least", test: func(w *world) {
		for n := 1; n <= 5; n++ {
			for _, thousandths := range []int{1, 333, 500, 900, 999} {
				w.id = fmt.Sprint("n", n, " ", thousandths)
				want := max(1, n*thousandths/1000)
				for i := range want {
					w.granted(fmt.Sprint("s", i), limit(n), share(thousandths))
				}
				w.full("more", limit(n), share(thousandths))
				w.is(w.ask("heavy", limit(n), share(thousandths), weight(want+1)), store.TooHeavy, want, 0)
			}
		}
	}},
	{name: "a share is of the limit that is set", needs: limiter, test: func(w *world) {
		w.setLimit(4)
		w.granted("a", limit(100), share(500))
		w.granted("b", limit(100), share(500))
		w.full("c", limit(100), share(500))
		w.setLimit(6)
		w.granted("c", limit(1), share(500))
		w.full("d", limit(1), share(500))
		w.granted("d", limit(1))
	}},
	{name: "the line is counted by class", test: func(w *world) {
		w.granted("a")
		w.inLine([4]int{})
		w.waits(1, "b")
		w.is(w.ask("c", sheddable), store.Waiting, 1, 2)
		w.is(w.ask("d", critical), store.Waiting, 1, 3)
		w.is(w.ask("e", wait, ofClass(store.Batch)), store.Waiting, 1, 4)
		w.is(w.ask("c", sheddable), store.Waiting, 1, 4) // asked again, it is counted once
		w.inLine([4]int{1, 1, 0, 1})
		w.release("c", true)
		w.inLine([4]int{0, 1, 0, 1})
		w.release("a", true) // d has it
		w.inLine([4]int{0, 1, 0, 0})
		w.is(w.ask("d", critical), store.Granted, 1, 2)
	}},
	{name: "whoever waits with a class is woken", needs: waker, test: func(w *world) {
		ear := w.listen(w.st)
		w.granted("a")
		w.is(w.ask("b", sheddable), store.Waiting, 1, 1)
		w.release("a", true)
		ear.hears("b")
		w.is(w.ask("b", sheddable), store.Granted, 1, 0)
	}},
	{name: "numbers that are no lead are refused", test: func(w *world) {
		for _, d := range []time.Duration{-1, store.MaxTTL + 1} {
			r := w.request("a", []wish{wait, lead(d)})
			if _, err := w.st.Acquire(w.ctx, r); err == nil {
				w.Errorf("a lead of %v was taken", d)
			}
		}
	}},
	{name: "random leads: the order is that of arrival less the lead", slow: true, test: func(w *world) {
		r := rand.New(rand.NewPCG(14, 2))
		w.granted("holder")
		type waiter struct {
			slot string
			due  time.Duration
		}
		var line []waiter
		for i := range 40 {
			// Leads in steps that are far apart beside the time that the asking takes.
			steps := time.Duration(r.IntN(4))
			slot := fmt.Sprint("s", i)
			line = append(line, waiter{slot, time.Duration(i) - 1000*steps})
			w.comesTo(store.Waiting, slot, wait, lead(steps*time.Hour))
		}
		slices.SortFunc(line, func(a, b waiter) int { return int(a.due - b.due) })
		w.release("holder", true)
		for _, next := range line {
			w.comesTo(store.Granted, next.slot, wait)
			w.release(next.slot, true)
		}
	}},
}
