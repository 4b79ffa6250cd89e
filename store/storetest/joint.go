package storetest

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/ashfaqjani916/gotsem/store"
)

// all asks for slots of several ids in one step: of "a", "b" and so on, as slot.
func (w *world) all(slot string, wishes ...[]wish) []store.Decision {
	w.Helper()
	rs := make([]*store.Request, len(wishes))
	for i, more := range wishes {
		r := w.request(slot, more)
		r.ID = jointIDs[i]
		r.FirstAttempt = w.meets(r.ID, slot)
		rs[i] = r
	}
	ds, err := w.st.(store.Joint).AcquireAll(w.ctx, rs)
	if err != nil {
		w.Fatalf("%s: %v", slot, err)
	}
	return ds
}

// jointIDs share a slot on a Cluster.
var jointIDs = []string{"{j}a", "{j}b", "{j}c"}

// standAll checks how much is held of each.
func (w *world) standAll(want ...int) {
	w.Helper()
	for i, n := range want {
		if u := w.usageOf(w.st, jointIDs[i], 10); u.Active != n {
			w.Errorf("%s: %+v, want %d held", jointIDs[i], u, n)
		}
	}
}

func (w *world) refusedAt(ds []store.Decision, at int, o store.Outcome) store.Decision {
	w.Helper()
	if len(ds) != at+1 || ds[at].Outcome != o {
		w.Fatalf("%+v: want refused by id %d, %v", ds, at, o)
	}
	for i, d := range ds[:at] {
		if d != (store.Decision{}) {
			w.Errorf("%+v: nothing was taken at id %d", ds, i)
		}
	}
	return ds[at]
}

// Several ids in one step.
var jointTests = []subtest{
	{name: "all are granted", needs: joint, test: func(w *world) {
		ds := w.all("s", []wish{limit(1)}, []wish{limit(5), weight(2)}, []wish{limit(9)})
		if len(ds) != 3 {
			w.Fatalf("%+v", ds)
		}
		for i, want := range []store.Decision{{Active: 1, Limit: 1}, {Active: 2, Limit: 5}, {Active: 1, Limit: 9}} {
			if d := ds[i]; d.Outcome != store.Granted || d.Active != want.Active || d.Limit != want.Limit || d.Fence == 0 {
				w.Errorf("%d: %+v, want %+v", i, d, want)
			}
		}
		w.standAll(1, 2, 1)
		for _, id := range jointIDs { // plain leases, as any
			w.id = id
			w.release("s", true)
		}
		w.standAll(0, 0, 0)
	}},
	{name: "refused by any, nothing is taken", needs: joint, test: func(w *world) {
		for at, id := range jointIDs {
			w.granted("holder", on(id), limit(2), weight(2))
			ds := w.all(fmt.Sprint("s", at), []wish{limit(2)}, []wish{limit(2)}, []wish{limit(2)})
			if d := w.refusedAt(ds, at, store.Full); d.Active != 2 || d.Limit != 2 {
				w.Errorf("%+v", d)
			}
			want := []int{0, 0, 0}
			want[at] = 2
			w.standAll(want...)
			w.refusedAt(w.all(fmt.Sprint("h", at), []wish{limit(3)}, []wish{limit(3)}, []wish{limit(3), weight(4)}), 2, store.TooHeavy)
			w.standAll(want...)
			w.id = id
			w.release("holder", true)
		}
	}},
	{name: "asked again it is answered its grants", needs: joint, test: func(w *world) {
		first := w.all("s", []wish{limit(1)}, []wish{limit(2), weight(2)})
		again := w.all("s", []wish{limit(1)}, []wish{limit(2), weight(2)})
		for i := range first {
			if len(again) != 2 || again[i].Outcome != store.Granted || again[i].Fence < first[i].Fence {
				w.Fatalf("%+v, first %+v", again, first)
			}
		}
		w.standAll(1, 2)
		w.refusedAt(w.all("other", []wish{limit(1)}, []wish{limit(2)}), 0, store.Full)
	}},
	{name: "it takes nothing that a waiter is due", needs: joint, test: func(w *world) {
		w.id = jointIDs[1]
		w.granted("holder", limit(1))
		w.waits(1, "w", limit(1))
		w.refusedAt(w.all("s", []wish{limit(3)}, []wish{limit(3)}), 1, store.Full)
		w.standAll(0, 1)
		w.release("holder", true)
		w.granted("w", limit(1))
		w.release("w", true)
		if ds := w.all("s2", []wish{limit(3)}, []wish{limit(3)}); len(ds) != 2 || ds[1].Outcome != store.Granted {
			w.Errorf("%+v", ds)
		}
	}},
	{name: "a limit that is set counts, and a share of it", needs: joint | limiter, test: func(w *world) {
		w.id = jointIDs[1]
		w.setLimit(4)
		for i := range 2 {
			if ds := w.all(fmt.Sprint("s", i), []wish{limit(9)}, []wish{limit(1), share(500)}); len(ds) != 2 {
				w.Fatalf("%+v", ds)
			}
		}
		w.refusedAt(w.all("s2", []wish{limit(9)}, []wish{limit(1), share(500)}), 1, store.Full)
		w.setLimit(0)
		if d := w.refusedAt(w.all("s3", []wish{limit(9)}, []wish{limit(9)}), 1, store.Full); d.Limit != 0 {
			w.Errorf("%+v", d)
		}
		w.standAll(2, 2)
	}},
	{name: "fences rise with every grant", needs: joint, test: func(w *world) {
		last := make(map[string]uint64)
		rises := func(id string, fence uint64) {
			if fence <= last[id] {
				w.Errorf("%s: fence %d after %d", id, fence, last[id])
			}
			last[id] = fence
		}
		for i := range 5 {
			for at, d := range w.all(fmt.Sprint("s", i), []wish{limit(99)}, []wish{limit(99), weight(2)}, []wish{limit(99)}) {
				rises(jointIDs[at], d.Fence)
			}
			w.id = jointIDs[i%3]
			rises(w.id, w.granted(fmt.Sprint("one", i), limit(99)).Fence)
		}
	}},
	{name: "many at once are each granted all or nothing", needs: joint, test: func(w *world) {
		const leases, room = 60, 7 // at the third id, by twos; the first has room for more, the second for nobody after that
		ask := func(slot string, first bool) []store.Decision {
			rs := make([]*store.Request, 3)
			for at, wish := range [][]wish{{limit(20)}, {limit(8)}, {limit(2*room + 1), weight(2)}} {
				rs[at] = w.request(slot, wish)
				rs[at].ID, rs[at].FirstAttempt = jointIDs[at], first
			}
			ds, err := w.st.(store.Joint).AcquireAll(w.ctx, rs)
			if err != nil {
				w.Error(err)
			}
			return ds
		}
		got, slots := make([][]store.Decision, leases), make([]string, leases)
		for i := range slots {
			slots[i] = w.stamped(fmt.Sprint("s", i))
		}
		atOnce := func(first bool) (granted int) {
			var all sync.WaitGroup
			for i := range got {
				all.Go(func() { got[i] = ask(slots[i], first) })
			}
			all.Wait()
			var fences [3]map[uint64]bool
			for at := range fences {
				fences[at] = make(map[uint64]bool)
			}
			for i, ds := range got {
				switch last := ds[len(ds)-1]; {
				case last.Outcome == store.Granted && len(ds) == 3:
					granted++
					for at, d := range ds {
						if fences[at][d.Fence] || d.Fence == 0 {
							w.Errorf("%d: fence %d of id %d was given to another", i, d.Fence, at)
						}
						fences[at][d.Fence] = true
					}
				case last.Outcome != store.Full || len(ds) != 3 || last.Active > 2*room || last.Limit != 2*room+1:
					w.Errorf("%d: %+v, want it refused by the third id", i, ds)
				}
			}
			return granted
		}
		for round, first := range []bool{true, false} { // asked again they keep what they have
			if n := atOnce(first); n != room {
				w.Errorf("round %d: %d granted, want %d", round, n, room)
			}
			w.standAll(room, room, 2*room)
		}
	}},
	{name: "from many sides the caps hold", needs: joint, test: func(w *world) {
		limits := []int{3, 5, 7}
		var held [3]atomic.Int32
		var passed atomic.Int32
		var all sync.WaitGroup
		for g := range 8 {
			all.Go(func() {
				for i := range 40 {
					slot := w.stamped(fmt.Sprint("s", g, ".", i))
					first, rs := i%2, []*store.Request(nil)
					for at := first; at < 3; at++ {
						r := w.request(slot, []wish{limit(limits[at])})
						r.ID = jointIDs[at]
						rs = append(rs, r)
					}
					ds, err := w.st.(store.Joint).AcquireAll(w.ctx, rs)
					if err != nil {
						w.Error(err)
						return
					}
					if ds[len(ds)-1].Outcome != store.Granted {
						continue
					}
					passed.Add(1)
					for at := first; at < 3; at++ {
						if n := held[at].Add(1); int(n) > limits[at] {
							w.Errorf("%d held of %d", n, limits[at])
						}
					}
					for at := first; at < 3; at++ {
						held[at].Add(-1)
						if freed, err := w.st.Release(w.ctx, &store.Release{ID: jointIDs[at], SlotID: slot}); err != nil || !freed {
							w.Errorf("%s: %v, %v", jointIDs[at], freed, err)
						}
					}
				}
			})
		}
		all.Wait()
		if passed.Load() == 0 {
			w.Error("nobody got in")
		}
		w.standAll(0, 0, 0)
	}},
}
