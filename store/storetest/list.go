package storetest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

var listTests = []subtest{
	{name: "holders, in the order of their grants", needs: lister, slow: true, test: func(w *world) {
		l := w.peer.(store.Lister)
		holders := func() []store.Holder {
			w.Helper()
			hs, err := l.Holders(w.ctx, w.id)
			if err != nil {
				w.Fatal(err)
			}
			return hs
		}
		if hs := holders(); len(hs) != 0 {
			w.Fatalf("nobody has asked: %+v", hs)
		}
		z := w.stamped("z")
		a := w.granted(z, limit(9), ttl(w.long), owner("one:1"))
		w.pass(w.unit / 8)
		b := w.granted("y", limit(9), ttl(w.long/2), owner("two:2 a label"), weight(3))
		gone := w.granted("gone", limit(9), ttl(w.unit))
		w.granted("left", limit(9))
		w.release("left", true)
		w.pass(w.unit / 8)
		c := w.granted("x", limit(9), ttl(2*w.long), owner(""), weight(2))
		w.waits(1, "waits", limit(9), weight(9), owner("nine:9"))
		w.pass(w.unit)
		want := []store.Holder{
			{SlotID: z, Weight: 1, Fence: a.Fence, Owner: "one:1"},
			{SlotID: "y", Weight: 3, Fence: b.Fence, Owner: "two:2 a label"},
			{SlotID: "x", Weight: 2, Fence: c.Fence, Owner: ""},
		}
		ttls := []time.Duration{w.long, w.long / 2, 2 * w.long}
		hs := holders()
		if len(hs) != len(want) {
			w.Fatalf("holders %+v\nwant %+v, and not the lapsed %d", hs, want, gone.Fence)
		}
		for i, h := range hs {
			if h.Left > ttls[i] || h.Left < ttls[i]-time.Minute {
				w.Errorf("%s: %v left of %v", h.SlotID, h.Left, ttls[i])
			}
			if h.Age < 0 || h.Age > time.Minute {
				w.Errorf("%s: granted %v ago", h.SlotID, h.Age)
			}
			if h.Age > 0 && h.Age < w.unit/2 {
				w.Errorf("%s: granted %v ago, and more than %v have passed", h.SlotID, h.Age, w.unit)
			}
			if h.Left, h.Age = 0, 0; h.Fence == 0 && h.Weight == 1 {
				h.Fence = want[i].Fence // it need not be kept
			}
			if h != want[i] {
				w.Errorf("holder %d: %+v, want %+v", i, h, want[i])
			}
		}
		w.renew(z, store.Renewed, func(r *store.Renewal) { r.TTL = 3 * w.long; r.Owner = "one:1" })
		if hs := holders(); hs[0].SlotID != z || hs[0].Fence != a.Fence && hs[0].Fence != 0 || hs[0].Left < 2*w.long {
			w.Errorf("renewed: %+v", hs[0])
		}
	}},
	{name: "a holder who waited", needs: lister, test: func(w *world) {
		w.granted("a", owner("who:1"))
		slot := w.stamped("b")
		w.waits(1, slot, owner("who:1"), weight(1))
		w.release("a", true)
		b := w.granted(slot, owner("who:1"))
		hs, err := w.st.(store.Lister).Holders(w.ctx, w.id)
		if err != nil || len(hs) != 1 {
			w.Fatalf("%+v, %v", hs, err)
		}
		h := hs[0]
		if h.Left < w.long/2 {
			w.Errorf("claimed, and %v left of %v", h.Left, w.long)
		}
		if h.Fence != 0 && h.Fence != b.Fence {
			w.Errorf("fence %d, want %d, or none where it is not kept", h.Fence, b.Fence)
		}
		if h.Left, h.Age, h.Fence = 0, 0, 0; h != (store.Holder{SlotID: slot, Weight: 1, Owner: "who:1"}) {
			w.Errorf("%+v", h)
		}
	}},
	{name: "a bare holder", needs: lister, test: func(w *world) {
		w.granted("a", limit(2), bare, ttl(w.long))
		w.granted("b", limit(2))
		hs, err := w.st.(store.Lister).Holders(w.ctx, w.id)
		if err != nil || len(hs) != 2 {
			w.Fatalf("%+v, %v", hs, err)
		}
		for _, h := range hs {
			if h.Left < w.long/2 || h.Left > w.long || h.Weight != 1 || h.SlotID == "a" && h.Fence != 0 {
				w.Errorf("%+v", h)
			}
		}
	}},
	{name: "registered holders", needs: lister, test: func(w *world) {
		w.renew("a", store.Restored, func(r *store.Renewal) { r.Register, r.Trust, r.Weight, r.Owner = true, w.long, 3, "who:1" })
		hs, err := w.st.(store.Lister).Holders(w.ctx, w.id)
		if err != nil || len(hs) != 1 || hs[0].SlotID != "a" || hs[0].Weight != 3 || hs[0].Owner != "who:1" {
			w.Fatalf("%+v, %v", hs, err)
		}
	}},
	{name: "ids that are held", needs: lister, slow: true, test: func(w *world) {
		l := w.peer.(store.Lister)
		if w.h.NoIDs != "" {
			for id, err := range l.IDs(w.ctx) {
				if id != "" || !errors.Is(err, store.ErrConfig) {
					w.Errorf("%q, %v, want an error: %s", id, err, w.h.NoIDs)
				}
			}
			return
		}
		ids := func() []string {
			w.Helper()
			seen := make(map[string]bool)
			for id, err := range l.IDs(w.ctx) {
				if err != nil {
					w.Fatal(err)
				}
				seen[id] = true
			}
			return slices.Sorted(maps.Keys(seen))
		}
		if got := ids(); len(got) != 0 {
			w.Fatalf("nothing is held: %q", got)
		}
		for i, id := range oddIDs {
			w.granted("a", on(id), []wish{bare, owner("x"), weight(2)}[i%3], limit(2))
		}
		w.granted("released", on("released"))
		if _, err := w.st.Release(w.ctx, &store.Release{ID: "released", SlotID: "released"}); err != nil {
			w.Fatal(err)
		}
		w.granted("lapsed", on("lapsed"), ttl(w.unit))
		w.granted("beside a line", on("beside a line"))
		w.waits(1, "waits", on("beside a line"))
		w.waits(1, "only waits", on("only a line"), limit(0))
		if w.h.has()&limiter != 0 {
			if _, err := w.st.(store.LimitSetter).ChangeLimit(w.ctx, store.LimitChange{ID: "only a limit", Limit: 3}); err != nil {
				w.Fatal(err)
			}
		}
		w.pass(w.unit)
		want := append(slices.Clone(oddIDs), "beside a line")
		slices.Sort(want)
		if got := ids(); !slices.Equal(got, want) {
			w.Fatalf("ids %q\nwant %q", got, want)
		}
		for range l.IDs(w.ctx) {
			break
		}
		over, cancel := context.WithCancel(w.ctx)
		cancel()
		var last error
		for _, err := range l.IDs(over) {
			last = err
		}
		if !errors.Is(last, context.Canceled) {
			w.Errorf("a ctx that is over ends the list with %v", last)
		}
	}},
	{name: "processes", needs: counter, slow: true, test: func(w *world) {
		count := func(st store.Store, ttl time.Duration) int {
			w.Helper()
			n, err := st.(store.PeerCounter).Peers(w.ctx, ttl)
			if err != nil {
				w.Fatal(err)
			}
			return n
		}
		if n := count(w.st, w.long); n != 1 {
			w.Fatalf("%d processes, and it is the first", n)
		}
		if n := count(w.st, w.long); n != 1 {
			w.Fatalf("%d processes, and it is the same as before", n)
		}
		want := 2
		if w.peer == w.st {
			want = 1
		}
		if n := count(w.peer, w.unit); n != want {
			w.Fatalf("%d processes, want %d", n, want)
		}
		w.pass(w.unit)
		if n := count(w.st, w.long); n != 1 {
			w.Fatalf("%d processes, and one of two has been silent for its time", n)
		}
	}},
}
