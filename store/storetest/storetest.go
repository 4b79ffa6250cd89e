// Package storetest is the suite that every store.Store passes: the contract of
// package store, sentence by sentence.
//
// It only asks for what the contract promises, through the contract: what a store
// writes, and how, is its own affair.
package storetest

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

// Harness says how to run the suite on one kind of store.
type Harness struct {
	// New makes an empty store for one subtest, and sees to its end with t.Cleanup.
	New func(t *testing.T) store.Store

	// Peer makes another handle on the place where st keeps its slots, as another
	// process has one. Nil: there is no other process, st itself is used.
	Peer func(t *testing.T, st store.Store) store.Store

	// Advance lets time pass for the store. Nil: time.Sleep, which is right for
	// real time and in a synctest bubble.
	Advance func(d time.Duration)

	// Unit is the TTL of what is meant to lapse during a test. It must be long
	// against a round trip to the store. 0: 250 ms.
	//
	// What the contract itself counts in seconds (store.Life, store.Claim) is
	// waited for in full, about 4 s in the longest subtests.
	Unit time.Duration

	// Within runs one subtest, in a synctest bubble for example. Nil: as it is.
	Within func(t *testing.T, f func(t *testing.T))

	// Parallel has the subtests that spend their time waiting run side by side.
	Parallel bool

	// Snapshot returns all that st keeps: a name (a key, an id) and what lies
	// there. What only serves the store itself, and is bounded, is left out. Nil:
	// it is not looked at what the store keeps.
	Snapshot func(t *testing.T, st store.Store) map[string]string

	// Forget has st lose its memory, as a restart without data does. Nil: it
	// cannot.
	Forget func(t *testing.T, st store.Store)

	// No capability may be missing in silence: one that a store does not have is
	// named here, and its tests are then not run.
	NoWaker, NoLister, NoLimiter, NoCounter, NoJoint bool

	// Apart says that a store.Joint answers ErrApart to all ids: over a client of which
	// nothing is known, keys of different ids do not go into one call.
	Apart bool

	// NoIDs says why the store cannot list its ids, and answers store.ErrConfig; "": it can.
	NoIDs string
}

// subtest is one test of the suite.
type subtest struct {
	name  string
	slow  bool // it spends its time waiting
	needs need
	test  func(w *world)
}

type need uint8

const (
	waker need = 1 << iota
	lister
	limiter
	counter
	snapshot
	forget
	joint
)

// Run runs the suite.
func Run(t *testing.T, h Harness) {
	if h.Unit == 0 {
		h.Unit = 250 * time.Millisecond
	}
	if h.Advance == nil {
		h.Advance = time.Sleep
	}
	if h.Peer == nil {
		h.Peer = func(_ *testing.T, st store.Store) store.Store { return st }
	}
	if h.Within == nil {
		h.Within = func(t *testing.T, f func(t *testing.T)) { f(t) }
	}
	groups := []struct {
		name string
		all  []subtest
	}{
		{"acquire", acquireTests},
		{"renew", renewTests},
		{"release", releaseTests},
		{"usage", usageTests},
		{"clear", clearTests},
		{"line", lineTests},
		{"class", classTests},
		{"wake", wakeTests},
		{"limit", limitTests},
		{"list", listTests},
		{"keep", keepTests},
		{"joint", jointTests},
		{"many", manyTests},
	}
	t.Run("capabilities", func(t *testing.T) { h.Within(t, h.capabilities) })
	var slow []func()
	for _, g := range groups {
		for _, sub := range g.all {
			if sub.needs&^h.has() != 0 {
				continue // the harness says that it is not there
			}
			run := func() {
				t.Run(g.name+"/"+sub.name, func(t *testing.T) {
					h.Within(t, func(t *testing.T) { sub.test(newWorld(t, h)) })
				})
			}
			if h.Parallel && sub.slow {
				slow = append(slow, run)
			} else {
				run()
			}
		}
	}
	// Not t.Parallel: that runs as many as there are cores, and these only wait.
	var all sync.WaitGroup
	for _, run := range slow {
		all.Go(run)
	}
	all.Wait()
}

func (h *Harness) has() (n need) {
	for _, c := range []struct {
		there bool
		need  need
	}{
		{!h.NoWaker, waker}, {!h.NoLister, lister}, {!h.NoLimiter, limiter}, {!h.NoCounter, counter}, {!h.NoJoint && !h.Apart, joint},
		{h.Snapshot != nil, snapshot}, {h.Forget != nil, forget},
	} {
		if c.there {
			n |= c.need
		}
	}
	return n
}

// capabilities checks that the store has what the harness does not deny.
func (h *Harness) capabilities(t *testing.T) {
	st := h.New(t)
	_, wakes := st.(store.Waker)
	_, lists := st.(store.Lister)
	_, limits := st.(store.LimitSetter)
	_, counts := st.(store.PeerCounter)
	_, joins := st.(store.Joint)
	for _, c := range []struct {
		name        string
		there, deny bool
	}{
		{"store.Waker", wakes, h.NoWaker}, {"store.Lister", lists, h.NoLister},
		{"store.LimitSetter", limits, h.NoLimiter}, {"store.PeerCounter", counts, h.NoCounter}, {"store.Joint", joins, h.NoJoint},
	} {
		if c.there == c.deny {
			t.Errorf("%T is a %s: %v; the harness says that it is not one: %v", st, c.name, c.there, c.deny)
		}
	}
}

// world is what one subtest works with.
type world struct {
	*testing.T
	h    Harness
	st   store.Store
	peer store.Store // the same place, as another process sees it
	unit time.Duration
	long time.Duration // a TTL that does not pass during a test
	ctx  context.Context
	id   string

	probes int      // see ear
	known  sync.Map // id and slot id that the store may know of
}

func newWorld(t *testing.T, h Harness) *world {
	st := h.New(t)
	return &world{T: t, h: h, st: st, peer: h.Peer(t, st), unit: h.Unit, long: 10 * time.Minute, ctx: t.Context(), id: "id"}
}

// pass lets d pass, and what a store's clock may be coarser than ours.
func (w *world) pass(d time.Duration) { w.h.Advance(d + w.unit/8) }

// eventually lets time pass until ok, for at most d.
func (w *world) eventually(d time.Duration, what string, ok func() bool) {
	w.Helper()
	for passed := time.Duration(0); !ok(); passed += w.unit / 4 {
		if passed > d {
			w.Fatalf("after %v still not: %s", passed, what)
		}
		w.h.Advance(w.unit / 4)
	}
}

// wish changes a request.
type wish func(r *store.Request)

func limit(n int) wish           { return func(r *store.Request) { r.Limit = n } }
func weight(n int) wish          { return func(r *store.Request) { r.Weight = n } }
func ttl(d time.Duration) wish   { return func(r *store.Request) { r.TTL = d } }
func queue(n int) wish           { return func(r *store.Request) { r.Queue = n } }
func ticket(n uint64) wish       { return func(r *store.Request) { r.Ticket = n } }
func owner(s string) wish        { return func(r *store.Request) { r.Owner = s } }
func bare(r *store.Request)      { r.Plain = true }
func lease(r *store.Request)     { r.Plain = false }
func wait(r *store.Request)      { r.Queue = 100 }
func on(id string) wish          { return func(r *store.Request) { r.ID = id } }
func grace(d time.Duration) wish { return func(r *store.Request) { r.Grace = d } }
func (w *world) request(slot string, wishes []wish) *store.Request {
	r := &store.Request{ID: w.id, SlotID: slot, Weight: 1, Limit: 1, TTL: w.long, Owner: "host:1"}
	for _, do := range wishes {
		do(r)
	}
	r.FirstAttempt = w.meets(r.ID, slot)
	return r
}

// meets notes that the store hears of a slot id, and reports whether that is the first time.
func (w *world) meets(id, slot string) (first bool) {
	_, met := w.known.LoadOrStore(id+"\x00"+slot, true)
	return !met
}

// ask acquires, or asks again: one slot of a limit of one, for long, without
// waiting, if nothing else is wished for.
func (w *world) ask(slot string, wishes ...wish) store.Decision {
	w.Helper()
	return w.askOf(w.st, slot, wishes...)
}

func (w *world) askOf(st store.Store, slot string, wishes ...wish) store.Decision {
	w.Helper()
	d, err := st.Acquire(w.ctx, w.request(slot, wishes))
	if err != nil {
		w.Fatalf("acquire %q: %v", slot, err)
	}
	return d
}

// is checks the outcome of a decision, and how the id stands after it.
func (w *world) is(d store.Decision, o store.Outcome, active, waiting int) store.Decision {
	w.Helper()
	if d.Outcome != o || d.Active != active || d.Waiting != waiting {
		w.Fatalf("%v with %d held, %d waiting (%+v); want %v with %d held, %d waiting", d.Outcome, d.Active, d.Waiting, d, o, active, waiting)
	}
	return d
}

// granted and refused are asks of which only the outcome matters.
func (w *world) granted(slot string, wishes ...wish) store.Decision {
	w.Helper()
	return w.comesTo(store.Granted, slot, wishes...)
}

func (w *world) full(slot string, wishes ...wish) store.Decision {
	w.Helper()
	return w.comesTo(store.Full, slot, wishes...)
}

func (w *world) comesTo(o store.Outcome, slot string, wishes ...wish) store.Decision {
	w.Helper()
	d := w.ask(slot, wishes...)
	if d.Outcome != o {
		w.Fatalf("%s: %v (%+v); want %v", slot, d.Outcome, d, o)
	}
	return d
}

// waits asks for a place in line and checks which it is.
func (w *world) waits(place int, slot string, wishes ...wish) store.Decision {
	w.Helper()
	d := w.comesTo(store.Waiting, slot, append([]wish{wait}, wishes...)...)
	if d.Place != place {
		w.Fatalf("%s stands at place %d (%+v), want %d", slot, d.Place, d, place)
	}
	if d.Ticket == 0 {
		w.Fatalf("%s waits and has no ticket: %+v", slot, d)
	}
	return d
}

// release gives a slot back and checks whether there was one.
func (w *world) release(slot string, freed bool) {
	w.Helper()
	w.releaseOf(w.st, slot, freed)
}

func (w *world) releaseOf(st store.Store, slot string, freed bool) {
	w.Helper()
	got, err := st.Release(w.ctx, &store.Release{ID: w.id, SlotID: slot})
	if err != nil {
		w.Fatalf("release %q: %v", slot, err)
	}
	if got != freed {
		w.Fatalf("release %q: freed %v, want %v", slot, got, freed)
	}
}

// renew renews one slot and checks the answer.
func (w *world) renew(slot string, want store.RenewOutcome, changes ...func(*store.Renewal)) {
	w.Helper()
	r := store.Renewal{ID: w.id, SlotID: slot, TTL: w.long, Weight: 1, Owner: "host:1"}
	for _, do := range changes {
		do(&r)
	}
	w.meets(r.ID, slot)
	got := w.st.Renew(w.ctx, []store.Renewal{r})
	if len(got) != 1 || got[0].Err != nil {
		w.Fatalf("renew %q: %+v", slot, got)
	}
	if got[0].Outcome != want {
		w.Fatalf("renew %q: %v, want %v (0 lost, 1 held, 2 put back, 3 revoked)", slot, got[0].Outcome, want)
	}
}

func (w *world) clear(slot string, want int) {
	w.Helper()
	n, err := w.st.Clear(w.ctx, store.Clear{ID: w.id, SlotID: slot, TTL: w.long})
	if err != nil {
		w.Fatalf("clear %q: %v", slot, err)
	}
	if n != want {
		w.Fatalf("clear %q took %d, want %d", slot, n, want)
	}
}

func (w *world) usage(limit int) store.Usage {
	w.Helper()
	return w.usageOf(w.st, w.id, limit)
}

func (w *world) usageOf(st store.Store, id string, limit int) store.Usage {
	w.Helper()
	u, err := st.Usage(w.ctx, id, limit)
	if err != nil {
		w.Fatalf("usage of %q: %v", id, err)
	}
	return u
}

// stands checks how many slots are held and how many wait, as every process sees
// it.
func (w *world) stands(active, waiting int) {
	w.Helper()
	for _, st := range []store.Store{w.st, w.peer} {
		if u := w.usageOf(st, w.id, 1); u.Active != active || u.Waiting != waiting {
			w.Fatalf("%d held, %d waiting (%+v); want %d held, %d waiting", u.Active, u.Waiting, u, active, waiting)
		}
	}
}

func (w *world) change(c store.LimitChange) store.Override {
	w.Helper()
	c.ID = w.id
	set, err := w.st.(store.LimitSetter).ChangeLimit(w.ctx, c)
	if err != nil {
		w.Fatalf("%+v: %v", c, err)
	}
	return set
}

func (w *world) override() store.Override {
	w.Helper()
	o, err := w.peer.(store.LimitSetter).LimitOf(w.ctx, w.id)
	if err != nil {
		w.Fatal(err)
	}
	return o
}

func (w *world) setLimit(n int) {
	w.Helper()
	if _, err := w.st.(store.LimitSetter).ChangeLimit(w.ctx, store.LimitChange{ID: w.id, Limit: n}); err != nil {
		w.Fatalf("set limit %d: %v", n, err)
	}
}

func (w *world) resetLimit() {
	w.Helper()
	if _, err := w.st.(store.LimitSetter).ChangeLimit(w.ctx, store.LimitChange{ID: w.id, Reset: true}); err != nil {
		w.Fatalf("reset limit: %v", err)
	}
}

// unchanged checks that do leaves what the store keeps as it was, if the harness
// can tell.
func (w *world) unchanged(what string, do func()) {
	w.Helper()
	if w.h.Snapshot == nil {
		do()
		return
	}
	before := w.h.Snapshot(w.T, w.st)
	do()
	if after := w.h.Snapshot(w.T, w.st); !maps.Equal(before, after) {
		w.Fatalf("%s changed what the store keeps:\n%q\nand then\n%q", what, before, after)
	}
}

// names makes n slot ids.
func names(prefix string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("%s%d", prefix, i)
	}
	return out
}

// together runs f for each of n at once, at most 16 at a time, and waits for all.
func together(n int, f func(i int)) {
	var all sync.WaitGroup
	next := make(chan int)
	for range min(n, 16) {
		all.Go(func() {
			for i := range next {
				f(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	all.Wait()
}

// stamped returns a slot id for a lease, which says what the store wants it to say.
func (w *world) stamped(name string) string {
	s, ok := w.st.(store.Stamper)
	if !ok {
		return name
	}
	return s.Stamp() + fmt.Sprintf("%.14s", name+"--------------")
}
