package storetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

var listTests = []subtest{
	{name: "holders, in the order in which they lapse", needs: lister, slow: true, test: func(w *world) {
		l := w.peer.(store.Lister)
		holders := func() []store.Holder {
			w.Helper()
			hs, _, err := l.Holders(w.ctx, w.id, "", store.MaxPage)
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
			{SlotID: "y", Weight: 3, Fence: b.Fence, Owner: "two:2 a label"},
			{SlotID: z, Weight: 1, Fence: a.Fence, Owner: "one:1"},
			{SlotID: "x", Weight: 2, Fence: c.Fence, Owner: ""},
		}
		ttls := []time.Duration{w.long / 2, w.long, 2 * w.long}
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
		if s, ok := w.peer.(store.Stater); ok {
			st, err := s.State(w.ctx, w.id)
			if err != nil || len(st.Processes) == 0 || st.Losses != 0 || st.Grace != 0 {
				w.Errorf("those who took leases share the store, which has lost nothing: %+v, %v", st, err)
			}
			for _, p := range st.Processes {
				if p.Owner == "" || p.Left <= 0 {
					w.Errorf("a process without a name, or one that is given up: %+v", p)
				}
			}
		}
		w.renew(z, store.Renewed, func(r *store.Renewal) { r.TTL = 3 * w.long; r.Owner = "one:1" })
		if last := holders()[2]; last.SlotID != z || last.Fence != a.Fence && last.Fence != 0 || last.Left < 2*w.long {
			w.Errorf("renewed: %+v", last)
		}
	}},
	{name: "holders, a page at a time", needs: lister, test: func(w *world) {
		l, want := w.peer.(store.Lister), make(map[string]bool)
		for i := range 25 { // a few lapse in the same ms
			slot := fmt.Sprintf("s%02d", i)
			want[slot] = true
			w.granted(slot, limit(100), ttl(w.long), []wish{bare, weight(2)}[i%2])
		}
		seen := make(map[string]int)
		pages, left := 0, time.Duration(0)
		for after, more := "", true; more; more = after != "" {
			page, next, err := l.Holders(w.ctx, w.id, after, 4)
			if pages++; err != nil || len(page) > 4 || len(page) == 0 || pages > 25 {
				w.Fatalf("page %d after %q: %d of 4, %v", pages, after, len(page), err)
			}
			for _, h := range page {
				if seen[h.SlotID]++; h.Left < left-time.Second {
					w.Errorf("%q lapses in %v, behind one that lapses in %v", h.SlotID, h.Left, left)
				}
				left = h.Left
			}
			switch after = next; pages {
			case 2: // one that has come, and one that has not, move to the end
				w.renew(page[0].SlotID, store.Renewed, func(r *store.Renewal) { r.TTL = 2 * w.long })
				w.renew("s20", store.Renewed, func(r *store.Renewal) { r.TTL = 2 * w.long })
			case 3: // the last of the page goes: the next one begins where it was
				w.release(page[len(page)-1].SlotID, true)
			}
		}
		for slot := range want {
			if seen[slot] == 0 {
				w.Errorf("%q holds all the while, and came in none of %d pages: %v", slot, pages, seen)
			}
		}
		for _, n := range []int{0, -1, store.MaxPage + 1} {
			if _, _, err := l.Holders(w.ctx, w.id, "", n); !errors.Is(err, store.ErrConfig) {
				w.Errorf("a page of %d: %v", n, err)
			}
			if _, err := l.Waiters(w.ctx, w.id, n); !errors.Is(err, store.ErrConfig) {
				w.Errorf("%d of the line: %v", n, err)
			}
		}
		if _, _, err := l.Holders(w.ctx, w.id, "no cursor", 4); !errors.Is(err, store.ErrConfig) {
			w.Errorf("a cursor that no page came with: %v", err)
		}
	}},
	{name: "who waits, and for how long", needs: lister, test: func(w *world) {
		l := w.peer.(store.Lister)
		if line, err := l.Waiters(w.ctx, w.id, 10); err != nil || len(line) != 0 {
			w.Fatalf("nobody waits: %+v, %v", line, err)
		}
		w.granted("a", limit(2), weight(2))
		first, second := w.stamped("b"), w.stamped("c")
		w.waits(1, first, limit(2), owner("one:1 a label"))
		w.waits(2, second, limit(2), weight(2), ofClass(store.Batch), owner("two:2"))
		w.pass(w.unit / 8)
		line, err := l.Waiters(w.ctx, w.id, 10)
		if err != nil || len(line) != 2 {
			w.Fatalf("%+v, %v", line, err)
		}
		for i, got := range line {
			if got.Left <= 0 || got.Left > store.Life {
				w.Errorf("the place of %q ends in %v", got.SlotID, got.Left)
			}
			if got.Age <= 0 || got.Age > time.Minute {
				w.Errorf("%q has waited %v", got.SlotID, got.Age)
			}
			line[i].Left, line[i].Age = 0, 0
		}
		want := []store.Waiter{{SlotID: first, Weight: 1, Owner: "one:1 a label"}, {SlotID: second, Weight: 2, Class: store.Batch, Owner: "two:2"}}
		if !slices.Equal(line, want) {
			w.Errorf("in line are %+v\nwant %+v", line, want)
		}
		if line, err := l.Waiters(w.ctx, w.id, 1); err != nil || len(line) != 1 || line[0].SlotID != first {
			w.Errorf("the first of the line: %+v, %v", line, err)
		}
		if u := w.usage(2); u.HeadAge <= 0 || u.HeadAge > time.Minute {
			w.Errorf("the first in line has waited %v", u.HeadAge)
		}
	}},
	{name: "a holder who waited", needs: lister, test: func(w *world) {
		w.granted("a", owner("who:1"))
		slot := w.stamped("b")
		w.waits(1, slot, owner("who:1"), weight(1))
		w.release("a", true)
		b := w.granted(slot, owner("who:1"))
		hs, _, err := w.st.(store.Lister).Holders(w.ctx, w.id, "", store.MaxPage)
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
		hs, _, err := w.st.(store.Lister).Holders(w.ctx, w.id, "", store.MaxPage)
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
		hs, _, err := w.st.(store.Lister).Holders(w.ctx, w.id, "", store.MaxPage)
		if err != nil || len(hs) != 1 || hs[0].SlotID != "a" || hs[0].Weight != 3 || hs[0].Owner != "who:1" {
			w.Fatalf("%+v, %v", hs, err)
		}
	}},
	{name: "ids that are held, waited for or limited", needs: lister, slow: true, test: func(w *world) {
		l := w.peer.(store.Lister)
		if w.h.NoIDs != "" {
			for st, err := range l.Walk(w.ctx, 1, 0) {
				if id := st.ID; id != "" || !errors.Is(err, store.ErrConfig) {
					w.Errorf("%q, %v, want an error: %s", id, err, w.h.NoIDs)
				}
			}
			return
		}
		ids := func() []string {
			w.Helper()
			seen := make(map[string]bool)
			for st, err := range l.Walk(w.ctx, 7, time.Millisecond) {
				if err != nil {
					w.Fatal(err)
				}
				if u := w.usageOf(w.peer, st.ID, 7); u.Active != st.Active || u.Waiting != st.Waiting || u.Limit != st.Limit || u.LimitSet != st.LimitSet {
					w.Errorf("%q stands so: %+v; and as it is walked over so: %+v", st.ID, u, st.Usage)
				}
				seen[st.ID] = true
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
		w.waits(1, "only waits", on("only a line"), limit(0)) // its place would end
		want := append(slices.Clone(oddIDs), "beside a line", "only a line")
		if w.h.has()&limiter != 0 {
			want = append(want, "only a limit")
		}
		slices.Sort(want)
		if got := ids(); !slices.Equal(got, want) {
			w.Fatalf("ids %q\nwant %q", got, want)
		}
		for range l.Walk(w.ctx, 1, 0) {
			break
		}
		over, cancel := context.WithCancel(w.ctx)
		cancel()
		var last error
		for _, err := range l.Walk(over, 1, time.Hour) {
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
