package storetest

import (
	"maps"
	"slices"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

var keepTests = []subtest{
	{name: "an idle id takes no room", needs: snapshot, slow: true, test: func(w *world) {
		empty := w.h.Snapshot(w.T, w.st)
		for _, id := range append(slices.Clone(oddIDs), w.id) {
			w.granted("a", on(id), limit(3), ttl(w.unit))
			w.granted("b", on(id), limit(3), ttl(w.unit), bare)
			w.granted("c", on(id), limit(3), ttl(w.unit))
			w.comesTo(store.Waiting, "d", on(id), limit(3), wait, weight(2), ttl(w.unit))
			w.comesTo(store.Waiting, "e", on(id), limit(3), wait, ttl(w.unit))
			if _, err := w.st.Release(w.ctx, &store.Release{ID: id, SlotID: "a"}); err != nil {
				w.Fatal(err)
			}
		}
		if len(w.h.Snapshot(w.T, w.st)) <= len(empty) {
			w.Fatal("much is held, and the snapshot shows nothing of it")
		}
		// Nobody calls: it goes by itself.
		w.eventually(store.Life+store.Claim+5*time.Second, "nothing is left", func() bool {
			return maps.Equal(w.h.Snapshot(w.T, w.st), empty)
		})
	}},
	{name: "what is given back takes no room", needs: snapshot, slow: true, test: func(w *world) {
		empty := w.h.Snapshot(w.T, w.st)
		w.granted("a", limit(3), ttl(w.unit))
		w.granted("b", limit(3), ttl(w.unit), bare)
		w.waits(1, "d", limit(3), weight(3))
		for _, slot := range []string{"d", "a", "b"} {
			w.release(slot, true)
		}
		w.eventually(store.Life+store.Claim+5*time.Second, "nothing is left", func() bool {
			return maps.Equal(w.h.Snapshot(w.T, w.st), empty)
		})
	}},
	{name: "a set limit is all that stays", needs: snapshot | limiter, slow: true, test: func(w *world) {
		empty := w.h.Snapshot(w.T, w.st)
		w.setLimit(3)
		only := w.h.Snapshot(w.T, w.st)
		if len(only) <= len(empty) {
			w.Fatal("a limit is set, and the snapshot shows nothing of it")
		}
		w.granted("a", limit(3), ttl(w.unit))
		w.waits(1, "b", limit(3), weight(3))
		w.release("b", true)
		w.eventually(store.Life+store.Claim+5*time.Second, "only the limit is left", func() bool {
			return maps.Equal(w.h.Snapshot(w.T, w.st), only)
		})
		w.resetLimit()
		w.eventually(time.Second, "nothing is left", func() bool {
			return maps.Equal(w.h.Snapshot(w.T, w.st), empty)
		})
	}},
	{name: "registered after its key had ended, and counted in full", slow: true, test: func(w *world) {
		for tries := 5; ; tries-- { // a slow machine lets it lapse before it can be asked
			asked := time.Now()
			w.granted("a", limit(3), weight(3), ttl(w.unit))
			w.h.Advance(w.unit * 2 / 3)
			d := w.ask("b", limit(3))
			if d.Outcome == store.Full {
				break
			}
			if time.Since(asked) < w.unit || tries == 0 {
				w.Fatalf("b: %+v; want full", d)
			}
			w.release("b", true)
		}
		w.pass(w.unit * 2 / 3)
		w.clear("b", 0)
		w.renew("a", store.Restored, func(r *store.Renewal) { r.Weight, r.Register = 3, true })
		w.stands(3, 0)
		w.full("c", limit(3))
	}},
	{name: "memory lost, with grace", needs: forget, slow: true, test: func(w *world) {
		patient := grace(4 * w.unit)
		trusts := func(r *store.Renewal) { r.Trust, r.Grace, r.Fence = w.long, 4*w.unit, 1 }
		a := w.granted("a", limit(2), patient)
		w.granted("b", limit(2), patient)
		w.renew("a", store.Renewed, trusts)
		w.h.Forget(w.T, w.st)
		d := w.ask("c", limit(2), patient)
		if d.Outcome != store.Recovering || d.RetryIn <= 0 || d.RetryIn > 4*w.unit {
			w.Fatalf("the memory is lost: %+v", d)
		}
		if s, ok := w.peer.(store.Stater); ok {
			st, err := s.State(w.ctx, w.id)
			if err != nil || st.Losses != 1 || st.LossAge <= 0 || st.LossAge > time.Minute || st.Grace <= 0 || st.Grace > 4*w.unit {
				w.Errorf("one loss, found just now, with grants to come: %+v, %v", st, err)
			}
		}
		w.renew("a", store.Restored, trusts, func(r *store.Renewal) { r.Fence = a.Fence })
		w.renew("b", store.Lost, func(r *store.Renewal) { r.Grace = 4 * w.unit }) // without trust
		w.eventually(10*w.unit, "grants are made again", func() bool {
			d = w.ask("c", limit(2), patient)
			return d.Outcome != store.Recovering
		})
		w.is(d, store.Granted, 2, 0)
		if d.Fence <= a.Fence {
			w.Fatalf("fence %d after %d", d.Fence, a.Fence)
		}
		w.is(w.ask("d", limit(2), patient), store.Full, 2, 0)
	}},
	{name: "memory lost, without grace", needs: forget, test: func(w *world) {
		a := w.granted("a")
		w.waits(1, "b")
		c := w.waits(2, "c")
		w.h.Forget(w.T, w.st)
		w.renew("a", store.Lost)
		w.release("a", false)
		if n, err := w.st.Clear(w.ctx, store.Clear{ID: w.id, TTL: w.unit}); err != nil || n != 0 {
			w.Fatalf("clear: %d, %v", n, err)
		}
		if d := w.granted("d"); d.Fence <= a.Fence {
			w.Fatalf("fence %d after %d", d.Fence, a.Fence)
		}
		w.waits(1, "c", ticket(c.Ticket))
	}},
}
