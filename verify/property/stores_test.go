// Package property has one state machine drive both stores: package memstore is the
// specification, package redisstore, on a real Redis, must answer the same.
//
// Time is in the test's hands: the memory store lives in a synctest bubble, and the
// server's clock is set ahead by what has passed there. Two machines, because
// the memory store hands on room in the moment in which a slot lapses, and Redis when
// next somebody asks: in one, time stands still and there is a line; in the other it
// passes, and nobody waits. What a line does in time is tried by package storetest.
package property

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/ashfaqjani916/gotsem/internal/plainpath"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store"
	"github.com/ashfaqjani916/gotsem/store/memstore"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
	"github.com/ashfaqjani916/gotsem/verify/skew"
)

// bubble does things in a synctest bubble, whose time stands still between them.
type bubble struct {
	do   chan func()
	done chan struct{}
}

func newBubble(t *testing.T) *bubble {
	b := &bubble{make(chan func()), make(chan struct{})}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		synctest.Test(t, func(*testing.T) {
			// Channels from outside do not count as idle: no time passes here.
			for f := range b.do {
				f()
				b.done <- struct{}{}
			}
		})
	}()
	t.Cleanup(func() {
		close(b.do)
		<-ended
	})
	return b
}

func (b *bubble) run(f func()) {
	b.do <- f
	<-b.done
}

// pair is the two stores, and what the test has to know of them.
type pair struct {
	t      *rapid.T
	in     *bubble
	memory *memstore.Store
	redis  *redisstore.Store
	clock  func(time.Duration)
	id     string

	queue  bool
	began  time.Time
	late   bool // real time has passed too, so much that it counts
	made   int
	asked  map[string]*store.Request
	joined map[string]bool // the slots that were asked for at the further id too
	ticket [2]map[string]uint64
	fences [2]map[uint64]string
}

var ctx = context.Background()

// both asks both, and compares what they answer.
func (p *pair) both(what string, ask func(s store.Store, which int) any) any {
	p.t.Helper()
	if p.late {
		return nil
	}
	var want any
	var now time.Duration
	p.in.run(func() {
		want = ask(p.memory, 0)
		now = time.Since(epoch)
	})
	p.clock(now)
	got := ask(p.redis, 1)
	if !p.queue && time.Since(p.began) > drift {
		p.late = true
	} else if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
		p.t.Fatalf("%s:\nredis  %+v\nmemory %+v", what, got, want)
	}
	return got
}

// drift is for how long a run may take where time counts: what lapses and what asks are
// at least 200 ms apart.
const drift = 150 * time.Millisecond

// epoch is when time in a bubble begins.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

func (p *pair) slot() string {
	return fmt.Sprint("s", max(1, p.made-rapid.IntRange(0, 7).Draw(p.t, "back")))
}

func (p *pair) acquire(r store.Request) {
	p.both(fmt.Sprintf("acquire %+v", r), func(s store.Store, which int) any {
		r.Ticket = p.ticket[which][r.SlotID]
		d, err := s.Acquire(ctx, &r)
		if err != nil {
			return err
		}
		if d.Outcome == store.Waiting {
			if was := p.ticket[which][r.SlotID]; was != 0 && was != d.Ticket {
				p.t.Fatalf("%s had the ticket %d and has %d", r.SlotID, was, d.Ticket)
			}
			p.ticket[which][r.SlotID] = d.Ticket
		}
		if d.Fence != 0 && p.fences[which][d.Fence] != r.SlotID {
			// A grant to a waiter may be heard of late; a fence is never given twice.
			if owner := p.fences[which][d.Fence]; owner != "" {
				p.t.Fatalf("the fence %d of %s is that of %s", d.Fence, r.SlotID, owner)
			}
			p.fences[which][d.Fence] = r.SlotID
		}
		d.Ticket, d.Fence, d.RetryIn, d.PollID = 0, 0, 0, 0
		if d.Outcome != store.Waiting {
			d.Place = 0
		}
		return d
	})
}

func (p *pair) Acquire(t *rapid.T) {
	p.made++
	r := store.Request{
		ID: p.id, SlotID: fmt.Sprint("s", p.made), Weight: rapid.SampledFrom([]int{1, 1, 1, 2, 3}).Draw(t, "weight"),
		Limit: rapid.IntRange(0, 5).Draw(t, "limit"), TTL: rapid.SampledFrom([]time.Duration{1300, 2200, 3100}).Draw(t, "ttl") * time.Millisecond,
	}
	if p.queue {
		r.Queue, r.TTL = rapid.IntRange(0, 4).Draw(t, "queue"), time.Hour
		p.classify(t, &r)
	} else {
		r.Plain = rapid.IntRange(0, 3).Draw(t, "bare") == 0
	}
	again := r
	p.asked[r.SlotID] = &again
	r.FirstAttempt = true
	p.acquire(r)
}

// classify has r asked as one of a class.
func (p *pair) classify(t *rapid.T, r *store.Request) {
	r.Class = rapid.SampledFrom([]store.Class{store.Default, store.Default, store.Sheddable, store.Critical}).Draw(t, "class")
	switch {
	case r.Class == store.Critical && r.Queue > 0:
		r.Lead = time.Minute // more than any run takes
	case r.Class == store.Sheddable && r.Queue > 0:
		r.Queue = (r.Queue + 1) / 2
	case r.Class == store.Sheddable:
		r.Share = 500
	}
}

// further is the second id of a lease of two. They share a slot on a Cluster.
func (p *pair) further() string { return p.id + "+" }

// AcquireAll asks for slots of both ids.
func (p *pair) AcquireAll(t *rapid.T) {
	p.made++
	first := store.Request{
		ID: p.id, SlotID: fmt.Sprint("s", p.made), Weight: rapid.SampledFrom([]int{1, 1, 2}).Draw(t, "weight"),
		Limit: rapid.IntRange(0, 5).Draw(t, "limit"), TTL: rapid.SampledFrom([]time.Duration{1300, 2200, 3100}).Draw(t, "ttl") * time.Millisecond,
		FirstAttempt: true,
	}
	if p.queue {
		first.TTL = time.Hour
		p.classify(t, &first)
	}
	second := first
	second.ID, second.Weight, second.Limit = p.further(), rapid.IntRange(1, 2).Draw(t, "further weight"), rapid.IntRange(1, 4).Draw(t, "further limit")
	again := first
	again.FirstAttempt = false
	p.asked[first.SlotID], p.joined[first.SlotID] = &again, true
	p.both(fmt.Sprintf("acquire all %+v %+v", first, second), func(s store.Store, which int) any {
		one, two := first, second
		ds, err := s.(store.Joint).AcquireAll(ctx, []*store.Request{&one, &two})
		if err != nil {
			return err
		}
		for i := range ds {
			if f := ds[i].Fence; i == 0 && f != 0 {
				if owner := p.fences[which][f]; owner != "" {
					p.t.Fatalf("the fence %d of %s is that of %s", f, first.SlotID, owner)
				}
				p.fences[which][f] = first.SlotID
			}
			ds[i].Fence, ds[i].RetryIn = 0, 0
			if i < len(ds)-1 { // of what was not taken nothing more is said
				ds[i] = store.Decision{Outcome: ds[i].Outcome}
			}
		}
		return ds
	})
}

// ReleaseFurther gives back the slot of the second id.
func (p *pair) ReleaseFurther(*rapid.T) {
	slot := p.slot()
	if !p.joined[slot] {
		return
	}
	p.both("release further "+slot, func(s store.Store, _ int) any {
		_, err := s.Release(ctx, &store.Release{ID: p.further(), SlotID: slot})
		return err
	})
}

func (p *pair) AskAgain(t *rapid.T) {
	r := p.asked[p.slot()]
	if r == nil || r.Plain && !p.queue {
		return // whether the retry of a bare slot makes it last longer is left open
	}
	if rapid.Bool().Draw(t, "other limit") {
		r.Limit = rapid.IntRange(0, 5).Draw(t, "limit")
	}
	p.acquire(*r)
}

func (p *pair) Release(t *rapid.T) {
	slot := p.slot()
	var exact bool // what the memory store says, which is asked first
	p.both("release "+slot, func(s store.Store, which int) any {
		freed, err := s.Release(ctx, &store.Release{ID: p.id, SlotID: slot})
		if err != nil {
			return err
		}
		if which == 0 {
			exact = freed
		}
		return freed || !exact // a slot that has lapsed may be said to be given back
	})
}

func (p *pair) Renew(t *rapid.T) {
	slot := p.slot()
	if r := p.asked[slot]; r == nil || r.Plain {
		return
	}
	r := store.Renewal{ID: p.id, SlotID: slot, Weight: p.asked[slot].Weight, TTL: p.asked[slot].TTL, Register: rapid.IntRange(0, 5).Draw(t, "register") == 0}
	if p.queue && r.Register {
		return // of who waits it is not asked
	}
	p.both(fmt.Sprintf("renew %+v", r), func(s store.Store, _ int) any {
		got := s.Renew(ctx, []store.Renewal{r})[0]
		got.Waited = 0 // that is the client's
		return got
	})
}

func (p *pair) Clear(t *rapid.T) {
	slot := p.slot()
	if rapid.IntRange(0, 3).Draw(t, "all") == 0 {
		slot = ""
	}
	p.both("clear "+slot, func(s store.Store, _ int) any {
		n, err := s.Clear(ctx, store.Clear{ID: p.id, SlotID: slot, TTL: time.Second})
		if err != nil {
			return err
		}
		return n
	})
	// A tombstone keeps its slot id from being put back for a while, which the memory
	// store, that loses nothing, needs none for.
	for s := range p.asked {
		if slot == "" || s == slot {
			delete(p.asked, s)
		}
	}
}

func (p *pair) Limit(t *rapid.T) {
	n := rapid.IntRange(-2, 6).Draw(t, "n")
	p.both(fmt.Sprint("limit ", n), func(s store.Store, _ int) any {
		if n < 0 {
			_, err := s.(store.LimitSetter).ChangeLimit(ctx, store.LimitChange{ID: p.id, Reset: true})
			return err
		}
		_, err := s.(store.LimitSetter).ChangeLimit(ctx, store.LimitChange{ID: p.id, Limit: n})
		return err
	})
}

func (p *pair) Advance(t *rapid.T) {
	if p.queue {
		return
	}
	d := 900 * time.Millisecond * time.Duration(rapid.IntRange(1, 3).Draw(t, "steps"))
	p.in.run(func() { time.Sleep(d) })
}

// check is asked after every step.
func (p *pair) Check(*rapid.T) {
	for _, id := range []string{p.id, p.further()} {
		p.both("usage of "+id, func(s store.Store, _ int) any {
			u, err := s.Usage(ctx, id, 3)
			if err != nil {
				return err
			}
			u.NextIn, u.HeadAge = 0, 0
			return u
		})
	}
	p.both("holders", func(s store.Store, which int) any {
		hs, _, err := s.(store.Lister).Holders(ctx, p.id, "", store.MaxPage)
		if err != nil {
			return err
		}
		var names []string
		for _, h := range hs {
			names = append(names, fmt.Sprint(h.SlotID, "×", h.Weight))
		}
		slices.Sort(names)
		return names
	})
}

func TestBothStoresAnswerAlike(t *testing.T) {
	clocks, err := skew.Install()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(clocks.Close)
	srv := redistest.Start(t)
	rdb := srv.Client(func(o *redis.Options) { o.ContextTimeoutEnabled = true })
	for _, of := range []struct {
		name         string
		queue, plain bool
	}{{"a line", true, true}, {"time passes", false, true}, {"a line, without the plain path", true, false}, {"time passes, without the plain path", false, false}} {
		queue := of.queue
		t.Run(of.name, func(t *testing.T) {
			plainpath.Off.Store(!of.plain)
			defer plainpath.Off.Store(false)
			in := newBubble(t)
			n, late := 0, 0
			rapid.Check(t, func(rt *rapid.T) {
				n++
				p := &pair{t: rt, in: in, id: fmt.Sprint("id", n), queue: queue, began: time.Now(), asked: map[string]*store.Request{}, joined: map[string]bool{}}
				for i := range p.ticket {
					p.ticket[i], p.fences[i] = map[string]uint64{}, map[uint64]string{}
				}
				p.redis = redisstore.New(rdb, fmt.Sprintf("%v%v:", queue, of.plain))
				in.run(func() { p.memory = memstore.New() })
				p.clock = func(passed time.Duration) {
					if err := clocks.Set(srv, passed); err != nil {
						rt.Fatal(err)
					}
				}
				defer func() {
					if p.late {
						late++
					}
				}()
				rt.Repeat(rapid.StateMachineActions(p))
			})
			t.Logf("%d runs, %d cut short because the machine was slow", n, late)
			if late > n/2 {
				t.Errorf("the machine is too slow for this test: %d of %d runs took longer than %v", late, n, drift)
			}
		})
	}
}
