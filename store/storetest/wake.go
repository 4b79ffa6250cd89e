package storetest

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

// patience is the most that an event may take. Nobody waits so long unless
// something is wrong.
const patience = 5 * time.Second

// ear hears the wake-ups of one handle.
type ear struct {
	w     *world
	st    store.Store
	heard chan string
	words sync.Map // slot id -> the last store.Wakeup of it
	stop  func()
}

// listen returns an ear that hears: a store may need a moment before it does.
func (w *world) listen(st store.Store) *ear {
	w.Helper()
	e := &ear{w: w, st: st, heard: make(chan string, 1000)}
	e.stop = st.(store.Waker).OnWake(func(w store.Wakeup) {
		if w.SlotID != "" { // "ask again, all of you" is always right
			e.words.Store(w.SlotID, w)
			e.heard <- w.SlotID
		}
	})
	w.Cleanup(func() { e.stop() })
	for range 50 {
		if _, ok := e.until(e.probe(), patience/50); ok {
			return e
		}
	}
	w.Fatal("50 waiters were granted, and none was woken")
	return nil
}

// probe has a waiter woken whom nothing else concerns, and returns its slot id.
func (e *ear) probe() string {
	e.w.Helper()
	e.w.probes++
	hold, stand := fmt.Sprint("probe-holds-", e.w.probes), fmt.Sprint("probe-waits-", e.w.probes)
	e.w.askOf(e.st, hold, on("probe"))
	e.w.askOf(e.st, stand, on("probe"), wait)
	for _, slot := range []string{hold, stand} {
		if _, err := e.st.Release(e.w.ctx, &store.Release{ID: "probe", SlotID: slot}); err != nil {
			e.w.Fatal(err)
		}
	}
	return stand
}

// until returns what was heard before slot was.
func (e *ear) until(slot string, d time.Duration) (before []string, ok bool) {
	timeout := time.After(d)
	for {
		select {
		case got := <-e.heard:
			if got == slot {
				return before, true
			}
			before = append(before, got)
		case <-timeout:
			return before, false
		}
	}
}

// hears checks that exactly those slot ids were woken since it was last asked,
// once each. Nobody can wait for what does not come: a probe is sent after it.
func (e *ear) hears(want ...string) {
	e.w.Helper()
	// What was provoked before the probe may yet come after it, where ids lie on
	// different servers. So first all that is wanted.
	var got []string
	timeout := time.After(patience)
	for len(got) < len(want) {
		select {
		case slot := <-e.heard:
			got = append(got, slot)
		case <-timeout:
			e.w.Fatalf("woken: %q; want %q", got, want)
		}
	}
	more, ok := e.until(e.probe(), patience)
	if !ok {
		e.w.Fatalf("a waiter was granted, and not woken")
	}
	got = append(got, more...)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		e.w.Fatalf("woken: %q; want %q", got, want)
	}
}

var wakeTests = []subtest{
	{name: "exactly who was granted", needs: waker, test: func(w *world) {
		e := w.listen(w.st)
		w.granted("a")
		for i, slot := range []string{"b", "c", "d"} {
			w.waits(i+1, slot)
		}
		e.hears()
		w.release("a", true)
		e.hears("b")
		w.granted("b")
		w.releaseOf(w.peer, "b", true) // somebody else's release wakes too
		e.hears("c")
		w.release("c", true) // given up before it was claimed
		e.hears("d")
		w.release("d", true)
		e.hears()
	}},
	{name: "of a grant, what asking would answer", slow: true, needs: waker, test: func(w *world) {
		e := w.listen(w.st)
		word := func(slot string) store.Wakeup {
			e.hears(slot)
			got, _ := e.words.Load(slot)
			return got.(store.Wakeup)
		}
		w.granted("a", limit(2), weight(2))
		w.waits(1, "b", limit(2))
		w.waits(2, "c", limit(2))
		w.pass(w.unit)
		b, c := w.waits(1, "b", limit(2)), w.waits(2, "c", limit(2))
		w.release("c", true)
		d := w.waits(2, "d", limit(2), weight(2))
		w.release("a", true)
		got := word("b")
		if got.Fence == 0 {
			return // a store need not say
		}
		if b.PollID == 0 || c.PollID == 0 {
			w.Fatalf("%+v, %+v: grants are told, and no asking has a name", b, c)
		}
		if now := w.is(w.ask("b", limit(2)), store.Granted, 1, 1); got.Fence > now.Fence || got != (store.Wakeup{SlotID: "b", Fence: got.Fence, Limit: 2, PollID: b.PollID}) {
			w.Fatalf("told %+v; asked after %+v, the answer is %+v", got, b, now)
		}
		w.releaseOf(w.peer, "b", true)
		got = word("d")
		if now := w.is(w.ask("d", limit(2), weight(2)), store.Granted, 2, 0); got != (store.Wakeup{SlotID: "d", Fence: now.Fence, Limit: 2, PollID: d.PollID}) {
			w.Fatalf("told %+v; asked after %+v, the answer is %+v", got, d, now)
		}
	}},
	{name: "a grant that is renewed and never asked for", slow: true, test: func(w *world) {
		w.granted("a")
		w.waits(1, "b")
		w.waits(2, "c")
		w.release("a", true)
		w.h.Advance(store.Claim / 2)
		w.renew("b", store.Renewed)
		w.waits(1, "c")
		w.pass(store.Claim)
		w.waits(1, "c")
		w.stands(1, 1)
		w.release("b", true)
		w.is(w.ask("c"), store.Granted, 1, 0)
	}},
	{name: "all who were granted", needs: waker, test: func(w *world) {
		e := w.listen(w.st)
		w.granted("a", limit(3), weight(3))
		for i, slot := range []string{"b", "c", "d", "e"} {
			w.waits(i+1, slot, limit(3))
		}
		w.release("a", true)
		e.hears("b", "c", "d")
	}},
	{name: "nobody, if nothing was freed", slow: true, needs: waker, test: func(w *world) {
		e := w.listen(w.st)
		w.granted("gone", ttl(w.unit))
		w.pass(w.unit)
		w.granted("a", limit(3), weight(3))
		w.waits(1, "b", limit(3), weight(2))
		w.waits(2, "c", limit(3))
		w.release("gone", false)
		w.release("unknown", false)
		w.release("c", true) // b, before it, is where it was
		w.clear("unknown", 0)
		w.renew("a", store.Renewed)
		w.full("try", limit(3))
		w.usage(3)
		e.hears()
		w.release("a", true)
		w.release("a", false)
		w.release("a", false)
		e.hears("b")
	}},
	{name: "the next, when the head leaves", needs: waker, test: func(w *world) {
		e := w.listen(w.st)
		w.granted("a", limit(2))
		w.waits(1, "b", limit(2), weight(2))
		w.waits(2, "c", limit(2))
		w.release("b", true)
		e.hears("c")
	}},
	{name: "whose slot was cleared", needs: waker, test: func(w *world) {
		e := w.listen(w.st)
		a, b, c, d := w.stamped("a"), w.stamped("b"), w.stamped("c"), w.stamped("d")
		w.granted(a, limit(3))
		w.granted(b, limit(3))
		w.granted(c, limit(3))
		w.waits(1, d, limit(3))
		w.clear(b, 1)
		e.hears(b, d)
		w.granted(d, limit(3))
		w.clear("", 3)
		e.hears(a, c, d)
		w.renew(a, store.Revoked)
	}},
	{name: "by a raised limit", needs: waker | limiter, test: func(w *world) {
		e := w.listen(w.st)
		w.setLimit(1)
		w.granted("a")
		for i, slot := range []string{"b", "c", "d"} {
			w.waits(i+1, slot)
		}
		w.setLimit(3)
		e.hears("b", "c")
		w.resetLimit()
		e.hears()
		w.setLimit(4)
		e.hears("d")
	}},
	{name: "who became too heavy", needs: waker | limiter, test: func(w *world) {
		e := w.listen(w.st)
		w.granted("a", limit(3))
		w.waits(1, "b", limit(3), weight(3))
		w.waits(2, "c", limit(3))
		w.setLimit(2)
		e.hears("b", "c") // c is let in
		w.comesTo(store.TooHeavy, "b", limit(3), weight(3), wait)
	}},
	{name: "who is due what lapsed", slow: true, needs: waker, test: func(w *world) {
		e := w.listen(w.st)
		w.granted("a", ttl(w.unit))
		w.waits(1, "b")
		w.pass(w.unit)
		w.full("try") // whoever finds the room hands it on
		e.hears("b")
	}},
	{name: "nobody after the end", needs: waker, test: func(w *world) {
		e, other := w.listen(w.st), w.listen(w.st)
		e.stop()
		e.stop()
		for len(e.heard) > 0 {
			<-e.heard
		}
		w.granted("a")
		w.waits(1, "b")
		w.release("a", true)
		other.until("b", patience)
		if n := len(e.heard); n > 0 {
			w.Fatalf("%d wake-ups after the end", n)
		}
	}},
}
