package storetest

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

var manyTests = []subtest{
	{name: "many lapsed slots", test: func(w *world) {
		const n = 5000
		slots := names("s", n)
		short := max(4*w.unit, time.Second)
		together(n, func(i int) {
			wishes := []wish{limit(3 * n), ttl(short), bare}
			switch i % 10 {
			case 0:
				wishes = wishes[:2]
			case 1:
				wishes = append(wishes[:2], weight(3))
			}
			if d, err := w.st.Acquire(w.ctx, w.request(slots[i], wishes)); err != nil || d.Outcome != store.Granted {
				w.Errorf("%+v, %v", d, err)
			}
		})
		w.granted("live", limit(3*n), weight(2))
		w.pass(short)
		w.stands(2, 0)
		w.is(w.ask("a", limit(4)), store.Granted, 3, 0) // not all of it is swept yet
		w.is(w.ask("b", limit(4), bare), store.Granted, 4, 0)
		w.is(w.ask("c", limit(4)), store.Full, 4, 0)
		w.is(w.ask("c", limit(4), wait), store.Waiting, 4, 1)
		w.release("s1", false)
		w.release("s2", false)
		w.renew("s10", store.Lost)
		w.release("a", true)
		w.is(w.ask("c", limit(4)), store.Granted, 4, 0)
		for i := range 10 {
			w.is(w.ask(names("again", 10)[i], limit(5)), store.Granted, 5, 0)
			w.release(names("again", 10)[i], true)
		}
		w.stands(4, 0)
		w.clear("", 3)
		w.stands(0, 0)
	}},
	{name: "many waiters", test: func(w *world) {
		const n = 300
		w.granted("a", limit(n))
		w.granted("b", limit(n), weight(n-1))
		slots := names("s", n)
		for i, slot := range slots {
			d := w.is(w.ask(slot, limit(n), queue(n)), store.Waiting, n, i+1)
			if d.Place != i+1 {
				w.Fatalf("place %d, want %d", d.Place, i+1)
			}
		}
		w.is(w.ask("more", limit(n), queue(n)), store.LineFull, n, n)
		w.release("b", true)
		// A store may hand on a bounded number at a time; asking moves it along.
		w.eventually(patience, "all but one have a slot", func() bool {
			w.comesTo(store.Waiting, slots[n-1], limit(n), queue(n))
			u := w.usage(n)
			return u.Active == n && u.Waiting == 1
		})
		w.waits(1, slots[n-1], limit(n))
	}},
	{name: "64 at once", test: func(w *world) { w.stress(5) }},
	{name: "64 at once, one by one", test: func(w *world) { w.stress(1) }},
}

// stress has 64 ask, renew, release, wait and give up as it comes, and counts
// outside the store.
func (w *world) stress(most int) {
	const (
		workers = 64
		rounds  = 12
	)
	var inside, peak, served, gaveUp atomic.Int64
	var fenced sync.Mutex
	fences := make(map[uint64]string)
	ends := time.Now().Add(12 * patience)
	handles := []store.Store{w.st, w.peer}
	// hold is what a holder does.
	hold := func(st store.Store, r *store.Request, d store.Decision) {
		now := inside.Add(int64(r.Weight))
		for p := peak.Load(); now > p && !peak.CompareAndSwap(p, now); p = peak.Load() {
		}
		if now > int64(most) {
			w.Errorf("%d held of %d", now, most)
		}
		if d.Active > most || d.Active < r.Weight {
			w.Errorf("%s holds %d: %+v", r.SlotID, r.Weight, d)
		}
		fenced.Lock()
		if other, ok := fences[d.Fence]; ok {
			w.Errorf("%s and %s have the fence %d", r.SlotID, other, d.Fence)
		}
		fences[d.Fence] = r.SlotID
		fenced.Unlock()
		if rand.N(2) == 0 {
			if a := st.Renew(w.ctx, []store.Renewal{{ID: r.ID, SlotID: r.SlotID, TTL: w.long, Weight: r.Weight}})[0]; a.Err != nil || a.Outcome != store.Renewed {
				w.Errorf("renew what is held: %+v", a)
			}
		}
		if rand.N(4) == 0 {
			again, err := st.Acquire(w.ctx, r)
			if err != nil || again.Outcome != store.Granted || again.Fence < d.Fence {
				w.Errorf("asked again: %+v, %v; was %+v", again, err, d)
			}
		}
		time.Sleep(rand.N(w.unit / 100))
		inside.Add(-int64(r.Weight))
		if freed, err := st.Release(w.ctx, &store.Release{ID: r.ID, SlotID: r.SlotID}); err != nil || !freed {
			w.Errorf("release what is held: freed %v, %v", freed, err)
		}
		served.Add(1)
	}
	var all sync.WaitGroup
	for worker := range workers {
		all.Go(func() {
			st := handles[worker%2]
			for round := range rounds {
				r := w.request(names("w", workers)[worker]+names("-", rounds)[round], []wish{limit(most), weight(1 + rand.N(min(most, 3)))})
				if rand.N(3) > 0 {
					r.Queue = workers
				}
				patient := rand.N(4) > 0
				for {
					d, err := st.Acquire(w.ctx, r)
					r.FirstAttempt = false
					if err != nil {
						w.Errorf("acquire: %v", err)
						return
					}
					if d.Outcome == store.Granted {
						hold(st, r, d)
						break
					}
					if d.Outcome != store.Waiting {
						if r.Queue > 0 {
							w.Errorf("a line of %d: %+v", workers, d)
						}
						break // a try
					}
					if !patient && rand.N(3) == 0 || w.Failed() {
						if _, err := st.Release(w.ctx, &store.Release{ID: r.ID, SlotID: r.SlotID}); err != nil {
							w.Errorf("leave: %v", err)
						}
						gaveUp.Add(1)
						break
					}
					if time.Now().After(ends) {
						w.Errorf("%s is still not served: %+v", r.SlotID, d)
						return
					}
					r.Ticket = d.Ticket
					time.Sleep(w.unit / 50)
				}
			}
		})
	}
	all.Wait()
	w.stands(0, 0)
	if peak.Load() != int64(most) {
		w.Errorf("at most %d of %d were held at once", peak.Load(), most)
	}
	if served.Load() < workers {
		w.Errorf("%d served, %d gave up", served.Load(), gaveUp.Load())
	}
}
