package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

// oddIDs are ids that have gone wrong somewhere: with the hash tags of a cluster,
// with separators, with what is not text.
var oddIDs = []string{
	"a", "a{b}c", "{}", "}{", "{a", "a}", "a{b", "{a}{b}", "{}{a}", "a{}b", "x:y", ":", "a:line", "a{b}:line", "gotsem:{a}:line", "*", "a*", "[a]", "?",
	strings.Repeat("k", 1024), "žluťoučký kůň", "一二三", "a\nb", "a\r\nb", "a\x00b", "\x00", " ", "\xff\xfe", "%s", `"`, `\`,
}

var acquireTests = []subtest{
	{name: "until the limit, then full", test: func(w *world) {
		w.is(w.ask("a", limit(3)), store.Granted, 1, 0)
		w.is(w.ask("b", limit(3)), store.Granted, 2, 0)
		w.is(w.askOf(w.peer, "c", limit(3)), store.Granted, 3, 0)
		if d := w.is(w.ask("d", limit(3)), store.Full, 3, 0); d.Limit != 3 || d.Fence != 0 || d.Ticket != 0 || d.Place != 0 {
			w.Fatalf("a refusal answers %+v", d)
		}
		w.is(w.askOf(w.peer, "e", limit(3)), store.Full, 3, 0)
		w.is(w.ask("f", limit(4)), store.Granted, 4, 0)
		w.is(w.ask("g", limit(2)), store.Full, 4, 0)
		w.is(w.ask("h", limit(1), on("other")), store.Granted, 1, 0)
		w.stands(4, 0)
	}},
	{name: "weights sum up", test: func(w *world) {
		w.is(w.ask("a", weight(3), limit(5)), store.Granted, 3, 0)
		w.is(w.ask("b", weight(3), limit(5)), store.Full, 3, 0)
		w.is(w.ask("c", weight(2), limit(5)), store.Granted, 5, 0)
		w.is(w.ask("d", limit(5)), store.Full, 5, 0)
		w.release("a", true)
		w.is(w.ask("e", weight(4), limit(5)), store.Full, 2, 0)
		w.is(w.ask("f", weight(3), limit(5)), store.Granted, 5, 0)
		w.release("c", true)
		w.stands(3, 0)
		w.release("f", true)
		w.stands(0, 0)
	}},
	{name: "a bare slot counts like any other", test: func(w *world) {
		if d := w.is(w.ask("a", bare, limit(3)), store.Granted, 1, 0); d.Fence != 0 {
			w.Fatalf("a bare grant has the fence %d", d.Fence)
		}
		w.is(w.ask("b", limit(3)), store.Granted, 2, 0)
		w.is(w.ask("c", bare, limit(3)), store.Granted, 3, 0)
		w.is(w.ask("d", bare, limit(3)), store.Full, 3, 0)
		w.is(w.ask("a", bare, limit(3)), store.Granted, 3, 0)
		w.release("a", true)
		w.release("a", false)
		w.is(w.ask("e", bare, limit(3)), store.Granted, 3, 0)
		w.renew("e", store.Renewed)
		if freed, err := w.st.Release(w.ctx, &store.Release{ID: w.id, SlotID: "b", Plain: true}); err != nil || !freed {
			w.Fatalf("not bare, and said to be: freed %v, %v", freed, err) // that is a hint, no more
		}
		w.is(w.ask("f", bare, limit(3)), store.Granted, 3, 0)
		if freed, err := w.st.Release(w.ctx, &store.Release{ID: w.id, SlotID: "f", Plain: true}); err != nil || !freed {
			w.Fatalf("bare: freed %v, %v", freed, err)
		}
		w.clear("c", 1)
		w.stands(1, 0)
		w.clear("", 1)
		w.stands(0, 0)
	}},
	{name: "a heavy bare slot", test: func(w *world) {
		w.is(w.ask("a", bare, weight(3), limit(4)), store.Granted, 3, 0)
		w.is(w.ask("b", bare, weight(2), limit(4)), store.Full, 3, 0)
		w.is(w.ask("c", bare, limit(4)), store.Granted, 4, 0)
		w.release("a", true)
		w.stands(1, 0)
	}},
	{name: "asking again answers the same grant", test: func(w *world) {
		a := w.granted("a", limit(4), weight(2))
		b := w.granted("b", limit(4))
		for range 3 {
			if d := w.is(w.ask("a", limit(4), weight(2)), store.Granted, 3, 0); d.Fence < a.Fence {
				w.Fatalf("fence %d, and %d when asked again", a.Fence, d.Fence)
			}
			if d := w.is(w.ask("b", limit(4), wait), store.Granted, 3, 0); d.Fence < b.Fence {
				w.Fatalf("fence %d, and %d when asked again", b.Fence, d.Fence)
			}
		}
		w.granted("c", limit(4))
		w.is(w.ask("a", limit(4), weight(2)), store.Granted, 4, 0) // full, and yet the same grant
		w.is(w.ask("a", limit(1), weight(2)), store.Granted, 4, 0) // and with a lower limit
		w.release("a", true)
		w.stands(2, 0) // one release undoes it, however often it was asked for
	}},
	{name: "asking again while somebody waits answers the same grant", test: func(w *world) {
		a := w.granted("a")
		w.waits(1, "b")
		if d := w.is(w.ask("a"), store.Granted, 1, 1); d.Fence < a.Fence {
			w.Fatalf("fence %d, and %d when asked again", a.Fence, d.Fence)
		}
	}},
	{name: "asking again grants for a whole TTL", slow: true, test: func(w *world) {
		w.granted("a", ttl(4*w.unit))
		w.granted("a", ttl(w.long))
		w.granted("b", bare, limit(2), ttl(4*w.unit))
		w.granted("b", bare, limit(2), ttl(w.long))
		w.pass(4 * w.unit)
		w.stands(2, 0)
	}},
	{name: "asking again grants for no less than before", slow: true, test: func(w *world) {
		w.granted("a", ttl(w.long))
		w.granted("a", ttl(w.unit))
		w.pass(w.unit)
		w.stands(1, 0)
	}},
	{name: "asking again is refused again, and granted when there is room", test: func(w *world) {
		w.granted("a")
		for range 3 {
			w.is(w.ask("b"), store.Full, 1, 0)
		}
		w.stands(1, 0) // it left nothing behind
		w.release("a", true)
		w.is(w.ask("b"), store.Granted, 1, 0)
	}},
	{name: "what has lapsed does not count", slow: true, test: func(w *world) {
		w.granted("a", limit(4), ttl(w.unit))
		w.granted("b", limit(4), ttl(w.unit), weight(2))
		w.granted("c", limit(4), ttl(w.unit), bare)
		w.pass(w.unit)
		w.stands(0, 0)
		w.is(w.ask("d"), store.Granted, 1, 0)
		w.is(w.ask("e"), store.Full, 1, 0)
		w.release("a", false)
		w.release("b", false)
		w.release("c", false)
		w.stands(1, 0)
	}},
	{name: "mixed TTLs on one id", slow: true, test: func(w *world) {
		w.granted("a", limit(2), ttl(w.long))
		w.granted("b", limit(2), ttl(w.unit))
		w.pass(w.unit)
		w.stands(1, 0)
		w.is(w.ask("c", limit(2), ttl(w.unit)), store.Granted, 2, 0)
		w.is(w.ask("d", limit(2)), store.Full, 2, 0)
		w.pass(w.unit)
		w.is(w.ask("e", limit(2), bare, ttl(w.unit)), store.Granted, 2, 0)
		w.is(w.ask("f", limit(2), bare), store.Full, 2, 0)
		w.pass(2 * w.unit) // all short ones are gone, and so would be a key that lived as long as the last
		w.stands(1, 0)
		w.renew("a", store.Renewed)
	}},
	{name: "the last of several weights lapses", slow: true, test: func(w *world) {
		w.granted("a", limit(9), weight(4), ttl(w.unit))
		w.granted("b", limit(9), weight(3), ttl(w.long))
		w.granted("c", limit(9), ttl(2*w.unit))
		w.pass(w.unit)
		w.pass(w.unit)
		w.stands(3, 0)
		w.is(w.ask("d", limit(9), weight(7)), store.Full, 3, 0)
		w.is(w.ask("e", limit(9), weight(6)), store.Granted, 9, 0)
	}},
	{name: "a refusal says when the next slot lapses", test: func(w *world) {
		near := func(d store.Decision, want time.Duration) {
			w.Helper()
			if d.RetryIn > want || d.RetryIn < want-30*time.Second {
				w.Fatalf("retry in %v, though the next slot lapses in %v: %+v", d.RetryIn, want, d)
			}
		}
		w.granted("a", limit(2), ttl(5*time.Minute))
		w.granted("b", limit(2), ttl(2*time.Minute))
		near(w.full("c", limit(2)), 2*time.Minute)
		w.waits(1, "d", limit(2))
		near(w.comesTo(store.LineFull, "e", limit(2), queue(1)), 2*time.Minute)
		w.release("b", true) // to d
		w.waits(1, "f", limit(2))
		w.granted("d", limit(2), ttl(9*time.Minute))
		near(w.full("c", limit(2)), 5*time.Minute)
		w.renew("a", store.Renewed, func(r *store.Renewal) { r.TTL = 20 * time.Minute })
		near(w.full("c", limit(2)), 9*time.Minute)
	}},
	{name: "a refusal without a holder does not know when", test: func(w *world) {
		if d := w.is(w.ask("a", limit(0)), store.Full, 0, 0); d.RetryIn != 0 {
			w.Fatalf("nothing is held, and yet it says to come back in %v", d.RetryIn)
		}
	}},
	{name: "heavier than the limit", test: func(w *world) {
		w.is(w.ask("a", weight(4), limit(3)), store.TooHeavy, 0, 0)
		w.is(w.ask("b", weight(4), limit(3), wait), store.TooHeavy, 0, 0)
		w.stands(0, 0)
		w.granted("c", weight(3), limit(3))
		w.is(w.ask("d", weight(4), limit(3), wait), store.TooHeavy, 3, 0)
		w.is(w.ask("c", weight(3), limit(3)), store.Granted, 3, 0)
	}},
	{name: "a weight below one is an error", test: func(w *world) {
		w.granted("a", limit(9))
		for _, n := range []int{0, -1, -1 << 40} {
			w.unchanged("a weight below one", func() {
				if d, err := w.st.Acquire(w.ctx, w.request("b", []wish{limit(9), weight(n), wait})); err == nil {
					w.Errorf("weight %d: %+v and no error", n, d)
				}
			})
		}
		w.stands(1, 0)
	}},
	{name: "a limit of zero or less grants nothing", test: func(w *world) {
		for _, n := range []int{0, -1, -1 << 40} {
			w.is(w.ask("a", limit(n)), store.Full, 0, 0)
			w.is(w.ask("b", limit(n), bare), store.Full, 0, 0)
		}
		w.stands(0, 0)
	}},
	{name: "5,000 at once", test: func(w *world) {
		w.is(w.ask("a", weight(5000), limit(4999)), store.TooHeavy, 0, 0)
		w.is(w.ask("b", weight(5000), limit(5000)), store.Granted, 5000, 0)
		w.is(w.ask("c", limit(5000)), store.Full, 5000, 0)
		w.is(w.ask("d", limit(5001)), store.Granted, 5001, 0)
		w.waits(1, "e", weight(5000), limit(5001))
		w.release("b", true)
		w.is(w.ask("e", weight(5000), limit(5001)), store.Granted, 5001, 0)
		w.release("e", true)
		w.release("d", true)
		w.stands(0, 0)
		w.is(w.ask("f", weight(1<<31), limit(1<<40)), store.Granted, 1<<31, 0)
	}},
	{name: "odd ids", test: func(w *world) {
		for i, id := range oddIDs { // each has a slot of its own, and a line
			if d := w.ask("a", on(id)); d.Outcome != store.Granted || d.Active != 1 {
				w.Fatalf("id %d %.40q: %+v: does it share its slots with another?", i, id, d)
			}
			if d := w.ask("b", on(id), wait); d.Outcome != store.Waiting || d.Place != 1 || d.Waiting != 1 {
				w.Fatalf("id %d %.40q: %+v: does it share its line with another?", i, id, d)
			}
		}
		for i, id := range oddIDs {
			if u := w.usageOf(w.peer, id, 1); u.Active != 1 || u.Waiting != 1 {
				w.Fatalf("id %d %.40q: %+v", i, id, u)
			}
			if got := w.st.Renew(w.ctx, []store.Renewal{{ID: id, SlotID: "a", TTL: w.long, Weight: 1}}); got[0].Err != nil || got[0].Outcome != store.Renewed {
				w.Fatalf("id %d %.40q: renew: %+v", i, id, got)
			}
			if freed, err := w.st.Release(w.ctx, &store.Release{ID: id, SlotID: "a"}); err != nil || !freed {
				w.Fatalf("id %d %.40q: release: %v, %v", i, id, freed, err)
			}
			if d := w.ask("b", on(id)); d.Outcome != store.Granted || d.Active != 1 || d.Waiting != 0 {
				w.Fatalf("id %d %.40q: the head of the line: %+v", i, id, d)
			}
			if n, err := w.st.Clear(w.ctx, store.Clear{ID: id, TTL: w.unit}); err != nil || n != 1 {
				w.Fatalf("id %d %.40q: clear: %d, %v", i, id, n, err)
			}
		}
	}},
	{name: "an odd slot id", test: func(w *world) {
		for i, slot := range oddIDs {
			if d := w.ask(slot, limit(len(oddIDs))); d.Outcome != store.Granted || d.Active != i+1 {
				w.Fatalf("slot id %d %.40q: %+v", i, slot, d)
			}
		}
		for _, slot := range oddIDs {
			w.renew(slot, store.Renewed)
			w.release(slot, true)
		}
		w.stands(0, 0)
	}},
	{name: "an empty id is an error", test: func(w *world) {
		w.granted("a")
		w.unchanged("an empty id", func() {
			w.fails("an empty id", w.ctx, nil, "", "a")
			w.fails("an empty slot id", w.ctx, nil, w.id, "")
		})
	}},
	{name: "a ctx that is over changes nothing", test: func(w *world) {
		w.granted("a")
		cancelled, cancel := context.WithCancel(w.ctx)
		cancel()
		late, cancel := context.WithDeadline(w.ctx, time.Now().Add(-time.Second))
		defer cancel()
		w.unchanged("a ctx that is over", func() {
			for _, slot := range []string{"a", "b"} {
				w.fails("a cancelled ctx", cancelled, context.Canceled, w.id, slot)
				w.fails("a past deadline", late, context.DeadlineExceeded, w.id, slot)
			}
		})
		w.stands(1, 0)
		w.is(w.ask("c"), store.Full, 1, 0)
		w.release("b", false)
	}},
	{name: "fences rise in the order of the grants", slow: true, test: func(w *world) {
		var last uint64
		next := func(what string, fence uint64) {
			w.Helper()
			if fence <= last {
				w.Fatalf("%s: fence %d after %d", what, fence, last)
			}
			last = fence
		}
		for i := range 20 {
			next("one", w.granted(fmt.Sprint("one", i), limit(2)).Fence)
			next("two", w.granted(fmt.Sprint("two", i), limit(2)).Fence)
			w.release(fmt.Sprint("one", i), true)
			w.release(fmt.Sprint("two", i), true) // nobody holds the id now
		}
		w.waits(1, "z", limit(0))
		w.release("z", true)
		next("after a line", w.granted("c").Fence)
		w.waits(1, "d")
		w.waits(2, "e")
		w.release("c", true)
		next("the head of the line", w.granted("d").Fence)
		w.release("d", true)
		next("the next", w.granted("e", ttl(w.unit)).Fence)
		w.clear("", 1)
		next("after a clear", w.granted("f", ttl(w.unit)).Fence)
		w.pass(w.unit)
		next("after a lapse", w.granted("g", ttl(w.unit)).Fence)
		w.pass(5 * w.unit) // the id was idle for a while
		next("after having been idle", w.askOf(w.peer, "h").Fence)
	}},
	{name: "a refusal writes nothing", needs: snapshot, test: func(w *world) {
		w.granted("a", limit(2))
		w.granted("b", limit(2), bare)
		w.unchanged("a refusal", func() {
			w.full("c", limit(2))
			w.full("c", limit(2), bare)
			w.comesTo(store.TooHeavy, "d", limit(2), weight(3))
		})
		w.waits(1, "e", limit(2))
		w.unchanged("a refusal beside a line", func() {
			w.full("c", limit(3))
			w.comesTo(store.LineFull, "f", limit(2), queue(1))
		})
	}},
}

// fails checks that each verb fails with the error want (nil: with any).
func (w *world) fails(what string, ctx context.Context, want error, id, slot string) {
	w.Helper()
	check := func(verb string, err error) {
		w.Helper()
		if err == nil || want != nil && !errors.Is(err, want) {
			w.Errorf("%s: %s %q %q: error %v, want %v", what, verb, id, slot, err, want)
		}
	}
	_, err := w.st.Acquire(ctx, w.request(slot, []wish{on(id), limit(5)}))
	check("acquire", err)
	_, err = w.st.Acquire(ctx, w.request(slot, []wish{on(id), wait}))
	check("acquire, waiting", err)
	_, err = w.st.Acquire(ctx, w.request(slot, []wish{on(id), bare}))
	check("acquire, bare", err)
	check("renew", w.st.Renew(ctx, []store.Renewal{{ID: id, SlotID: slot, TTL: w.long, Weight: 1}})[0].Err)
	_, err = w.st.Release(ctx, &store.Release{ID: id, SlotID: slot})
	check("release", err)
	if id != "" && slot == "" {
		return // that is a whole id, for what follows
	}
	_, err = w.st.Usage(ctx, id, 1)
	check("usage", err)
	_, err = w.st.Clear(ctx, store.Clear{ID: id, TTL: w.long})
	check("clear", err)
	if l, ok := w.st.(store.LimitSetter); ok {
		_, err := l.ChangeLimit(ctx, store.LimitChange{ID: id, Limit: 1})
		check("set limit", err)
		_, err = l.ChangeLimit(ctx, store.LimitChange{ID: id, Reset: true})
		check("reset limit", err)
	}
	if l, ok := w.st.(store.Lister); ok {
		_, _, err := l.Holders(ctx, id, "", 1)
		check("holders", err)
	}
}

var renewTests = []subtest{
	{name: "what is held is held for longer", slow: true, test: func(w *world) {
		w.granted("a", limit(3), ttl(4*w.unit))
		w.granted("b", limit(3), ttl(4*w.unit), bare)
		w.granted("c", limit(3), ttl(4*w.unit))
		w.renew("a", store.Renewed)
		w.renew("b", store.Renewed)
		w.pass(4 * w.unit)
		w.stands(2, 0)
		w.renew("a", store.Renewed)
		w.renew("b", store.Renewed)
		w.renew("c", store.Lost)
	}},
	{name: "never for less than before", slow: true, test: func(w *world) {
		w.granted("a")
		w.renew("a", store.Renewed, func(r *store.Renewal) { r.TTL = w.unit / 2 })
		w.pass(w.unit)
		w.stands(1, 0)
		w.renew("a", store.Renewed)
	}},
	{name: "what lapsed is lost", slow: true, test: func(w *world) {
		w.granted("a", ttl(w.unit))
		w.pass(w.unit)
		w.renew("a", store.Lost)
		w.renew("a", store.Lost) // nor did the first bring it back
		w.stands(0, 0)
		w.granted("b")
		w.renew("a", store.Lost)
		w.stands(1, 0)
	}},
	{name: "what lapsed is lost to whoever came", slow: true, test: func(w *world) {
		w.granted("a", ttl(w.unit))
		w.waits(1, "b")
		w.pass(w.unit)
		w.renew("a", store.Lost) // it finds the room, and hands it on
		w.is(w.ask("b"), store.Granted, 1, 0)
		w.renew("a", store.Lost)
	}},
	{name: "what was released is lost", test: func(w *world) {
		w.granted("a")
		w.release("a", true)
		w.renew("a", store.Lost)
		w.stands(0, 0)
	}},
	{name: "what was cleared is told so", test: func(w *world) {
		w.granted("a", limit(2))
		w.granted("b", limit(2))
		w.clear("a", 1)
		w.renew("a", store.Revoked)
		w.renew("b", store.Renewed)
		w.clear("", 1)
		w.renew("b", store.Revoked)
		w.stands(0, 0)
	}},
	{name: "what was never held is lost", test: func(w *world) {
		w.renew("a", store.Lost)
		w.granted("b")
		w.renew("a", store.Lost)
		w.waits(1, "c")
		w.renew("c", store.Lost) // it waits; that is not holding
		w.stands(1, 1)
		w.unchanged("a renewal of nothing", func() { w.renew("a", store.Lost) })
	}},
	{name: "what another id holds is lost", test: func(w *world) {
		w.granted("a", on("other"))
		w.renew("a", store.Lost)
		w.renew("a", store.Renewed, func(r *store.Renewal) { r.ID = "other" })
	}},
	{name: "many at once, in their order", test: func(w *world) {
		const n = 600
		rs, slots := make([]store.Renewal, n), names("s", n)
		for i := range rs {
			rs[i] = store.Renewal{ID: []string{w.id, "x", "y{z}"}[i%3], SlotID: slots[i], TTL: w.long, Weight: 1}
		}
		together(n, func(i int) {
			if i%5 == 0 {
				return // never granted
			}
			if _, err := w.st.Acquire(w.ctx, w.request(rs[i].SlotID, []wish{on(rs[i].ID), limit(n)})); err != nil {
				w.Errorf("acquire: %v", err)
			}
		})
		rs[7].ID, rs[8].SlotID = "", ""
		got := w.st.Renew(w.ctx, rs)
		if len(got) != n {
			w.Fatalf("%d answers to %d renewals", len(got), n)
		}
		for i, a := range got {
			want := store.Renewed
			if i%5 == 0 {
				want = store.Lost
			}
			if bad := i == 7 || i == 8; bad != (a.Err != nil) || !bad && a.Outcome != want {
				w.Fatalf("renewal %d of %q: %+v, want %v, an error: %v", i, rs[i].ID, a, want, bad)
			}
		}
		if got := w.st.Renew(w.ctx, nil); len(got) != 0 {
			w.Fatalf("no renewals, and yet %+v", got)
		}
	}},
	{name: "registered", test: func(w *world) {
		register := func(r *store.Renewal) { r.Register, r.Trust = true, w.long }
		w.granted("a")
		w.renew("b", store.Restored, register, func(r *store.Renewal) { r.Weight = 2 })
		w.stands(3, 0) // above the limit too: the work is under way
		w.renew("b", store.Renewed, register, func(r *store.Renewal) { r.Weight = 2 })
		w.renew("b", store.Renewed)
		w.renew("a", store.Renewed, register)
		w.stands(3, 0)
		w.is(w.ask("c"), store.Full, 3, 0)
		w.release("a", true)
		w.is(w.ask("c", limit(2)), store.Full, 2, 0)
		w.is(w.ask("c", limit(3)), store.Granted, 3, 0)
		w.release("b", true)
		w.stands(1, 0)
	}},
	{name: "registered for its TTL", slow: true, test: func(w *world) {
		register := func(r *store.Renewal) { r.Register, r.Trust = true, w.long }
		w.renew("a", store.Restored, register, func(r *store.Renewal) { r.TTL = w.unit })
		w.pass(w.unit)
		w.stands(0, 0)
		w.renew("a", store.Lost)
		w.renew("a", store.Restored, register)
		w.waits(1, "b")
		w.pass(w.unit)
		w.stands(1, 1)
		w.release("a", true)
		w.is(w.ask("b"), store.Granted, 1, 0)
	}},
	{name: "in the moment of the lapse", slow: true, test: func(w *world) {
		for i := range 10 { // a renews while b asks: one of them has it, or neither
			a, b := fmt.Sprint("a", i), fmt.Sprint("b", i)
			w.granted(a, ttl(w.unit/2))
			w.h.Advance(w.unit/2 - w.unit/100)
			var kept atomic.Bool
			var got atomic.Bool
			var both sync.WaitGroup
			both.Go(func() {
				for range 20 {
					r := w.st.Renew(w.ctx, []store.Renewal{{ID: w.id, SlotID: a, TTL: w.long, Weight: 1}})[0]
					if r.Err != nil {
						w.Errorf("renew: %v", r.Err)
					}
					if kept.Store(r.Outcome == store.Renewed); !kept.Load() {
						return
					}
					time.Sleep(w.unit / 500)
				}
			})
			both.Go(func() {
				for range 20 {
					d, err := w.peer.Acquire(w.ctx, w.request(b, nil))
					if err != nil {
						w.Errorf("acquire: %v", err)
					}
					if d.Outcome == store.Granted {
						got.Store(true)
						return
					}
					time.Sleep(w.unit / 500)
				}
			})
			both.Wait()
			if kept.Load() && got.Load() {
				w.Fatal("a was renewed, and b was granted")
			}
			if u := w.usage(1); u.Active > 1 {
				w.Fatalf("%d held of 1", u.Active)
			}
			w.clear("", w.usage(1).Active)
		}
	}},
}

var releaseTests = []subtest{
	{name: "makes room", test: func(w *world) {
		w.granted("a")
		w.full("b")
		w.releaseOf(w.peer, "a", true)
		w.stands(0, 0)
		w.granted("b")
	}},
	{name: "twice is once", test: func(w *world) {
		w.granted("a", limit(2), weight(2))
		w.release("a", true)
		w.granted("b", limit(2))
		w.unchanged("a second release", func() { w.release("a", false) })
		w.granted("c", limit(2))
		var freed atomic.Int32
		together(50, func(int) {
			for _, slot := range []string{"a", "b"} {
				if ok, err := w.st.Release(w.ctx, &store.Release{ID: w.id, SlotID: slot}); err != nil {
					w.Errorf("release: %v", err)
				} else if ok {
					freed.Add(1)
				}
			}
		})
		if n := freed.Load(); n != 1 {
			w.Fatalf("100 releases freed %d slots, want one", n)
		}
		w.stands(1, 0)
		w.is(w.ask("d", limit(2)), store.Granted, 2, 0)
		w.is(w.ask("e", limit(2)), store.Full, 2, 0)
	}},
	{name: "late harms nobody", slow: true, test: func(w *world) {
		w.granted("a", ttl(w.unit))
		w.pass(w.unit)
		b := w.granted("b")
		w.waits(1, "c")
		w.unchanged("a late release", func() {
			together(50, func(int) {
				if freed, err := w.st.Release(w.ctx, &store.Release{ID: w.id, SlotID: "a"}); err != nil || freed {
					w.Errorf("a late release: freed %v, %v", freed, err)
				}
			})
		})
		w.stands(1, 1)
		if d := w.is(w.ask("b"), store.Granted, 1, 1); d.Fence < b.Fence {
			w.Fatalf("fence %d became %d", b.Fence, d.Fence)
		}
		w.waits(1, "c")
		w.full("d")
	}},
	{name: "of an unknown slot harms nobody", test: func(w *world) {
		w.release("a", false)
		w.granted("b", limit(2))
		w.unchanged("a release of an unknown slot", func() { w.release("a", false) })
		w.stands(1, 0)
	}},
	{name: "of a slot of another id harms nobody", test: func(w *world) {
		w.granted("a")
		w.granted("b", on("other"))
		w.unchanged("a release of a slot of another id", func() { w.release("b", false) })
		w.stands(1, 0)
		if u := w.usageOf(w.st, "other", 1); u.Active != 1 {
			w.Fatalf("other: %+v", u)
		}
	}},
	{name: "of a lapsed slot frees nothing", slow: true, test: func(w *world) {
		w.granted("a", ttl(w.unit))
		w.granted("b", limit(3), ttl(w.unit), weight(2))
		w.pass(w.unit)
		w.release("a", false)
		w.release("b", false)
		w.stands(0, 0)
	}},
	{name: "that is not waited for", test: func(w *world) {
		const n = 50
		type answer struct {
			id, slot string
			err      error
		}
		answers := make(chan answer, 2*n)
		later := func(id, slot string, err error) { answers <- answer{id, slot, err} }
		slots := names("a", n)
		for _, slot := range slots {
			w.granted(slot, limit(n))
		}
		for _, slot := range slots {
			if freed, err := w.st.Release(w.ctx, &store.Release{ID: w.id, SlotID: slot, Async: later}); freed || err != nil {
				w.Fatalf("not waited for, and yet freed %v, %v", freed, err)
			}
		}
		told := make(map[string]bool)
		for range slots {
			select {
			case a := <-answers:
				if a.err != nil || a.id != w.id || told[a.slot] {
					w.Fatalf("answer %+v", a)
				}
				told[a.slot] = true
			case <-time.After(patience):
				w.Fatalf("%d of %d releases were answered", len(told), n)
			}
		}
		w.stands(0, 0)
		for i := range 20 { // a release of nothing is answered too
			if _, err := w.st.Release(w.ctx, &store.Release{ID: w.id, SlotID: slots[i], Async: later}); err != nil {
				w.Fatal(err)
			}
			select {
			case a := <-answers:
				if a.err != nil || a.slot != slots[i] {
					w.Fatalf("answer %+v", a)
				}
			case <-time.After(patience):
				w.Fatal("a release of nothing is not answered")
			}
		}
		if len(answers) > 0 {
			w.Fatalf("%d answers too many", len(answers))
		}
	}},
	{name: "ends a wait", test: func(w *world) {
		w.granted("a")
		w.waits(1, "b")
		w.waits(2, "c")
		w.release("b", true)
		w.release("b", false)
		w.stands(1, 1)
		w.waits(1, "c")
		w.release("c", true)
		w.stands(1, 0)
	}},
}

var usageTests = []subtest{
	{name: "how an id stands", test: func(w *world) {
		if u := w.usage(7); u != (store.Usage{Limit: 7}) {
			w.Fatalf("nobody has asked yet: %+v", u)
		}
		w.granted("a", limit(5), weight(4), ttl(5*time.Minute))
		w.granted("b", limit(5), ttl(3*time.Minute))
		w.waits(1, "c", limit(5))
		u := w.usageOf(w.peer, w.id, 7)
		if u.NextIn > 3*time.Minute || u.NextIn < 2*time.Minute {
			w.Errorf("the next slot lapses in 3m, not in %v", u.NextIn)
		}
		if u.NextIn, u.HeadAge = 0, 0; u != (store.Usage{Active: 5, Limit: 7, Waiting: 1}) {
			w.Errorf("5 held, 1 waiting, and the limit asked with is 7: %+v", u)
		}
	}},
	{name: "what has lapsed does not count", slow: true, test: func(w *world) {
		w.granted("a", limit(9), weight(4), ttl(w.unit))
		w.granted("b", limit(9), weight(2))
		w.granted("c", limit(9), bare, ttl(w.unit))
		w.pass(w.unit)
		u := w.usage(9)
		if u.NextIn < w.unit {
			w.Errorf("the next slot lapses in %v, not in %v", w.long, u.NextIn)
		}
		if u.NextIn = 0; u != (store.Usage{Active: 2, Limit: 9}) {
			w.Errorf("2 held: %+v", u)
		}
	}},
	{name: "changes nothing", needs: snapshot, test: func(w *world) {
		w.unchanged("a look at an unknown id", func() { w.usage(1) })
		w.granted("a", limit(3), weight(2))
		w.granted("b", limit(3), bare)
		w.waits(1, "c", limit(3))
		w.unchanged("a look", func() {
			for range 3 {
				w.usage(3)
				w.usageOf(w.peer, w.id, 9)
				w.usage(0)
			}
		})
	}},
	{name: "does not keep a place in line", slow: true, test: func(w *world) {
		w.granted("a")
		w.waits(1, "b")
		w.eventually(store.Life+2*time.Second, "b left the line", func() bool { return w.usage(1).Waiting == 0 })
	}},
}

var clearTests = []subtest{
	{name: "one", test: func(w *world) {
		for _, slot := range []string{"a", "b", "c"} {
			w.granted(slot, limit(4))
		}
		w.granted("d", limit(4), on("other"))
		w.clear("b", 1)
		w.clear("b", 0)
		w.clear("x", 0)
		w.clear("d", 0) // another id's
		w.stands(2, 0)
		w.renew("a", store.Renewed)
		w.renew("b", store.Revoked)
		w.renew("c", store.Renewed)
		w.release("b", false)
		w.stands(2, 0)
		w.is(w.ask("e", limit(4)), store.Granted, 3, 0)
	}},
	{name: "all", test: func(w *world) {
		w.clear("", 0)
		w.granted("a", limit(9), weight(3))
		w.granted("b", limit(9))
		w.granted("c", limit(9), bare)
		w.granted("d", on("other"))
		w.clear("", 3)
		w.stands(0, 0)
		w.clear("", 0)
		for _, slot := range []string{"a", "b", "c"} {
			if slot != "c" { // nobody renews a bare slot, and nothing is remembered of it
				w.renew(slot, store.Revoked)
			}
			w.release(slot, false)
		}
		if u := w.usageOf(w.peer, "other", 1); u.Active != 1 {
			w.Fatalf("the other id: %+v", u)
		}
	}},
	{name: "many", test: func(w *world) {
		const n = 1500
		slots := names("s", n)
		together(n, func(i int) {
			if d, err := w.st.Acquire(w.ctx, w.request(slots[i], []wish{limit(n)})); err != nil || d.Outcome != store.Granted {
				w.Errorf("%+v, %v", d, err)
			}
		})
		w.clear("", n)
		w.stands(0, 0)
		w.granted("x")
	}},
	{name: "counts no lapsed slot", slow: true, test: func(w *world) {
		w.granted("a", limit(2), ttl(w.unit))
		w.granted("b", limit(2))
		w.pass(w.unit)
		w.clear("a", 0)
		w.clear("", 1)
	}},
	{name: "hands the room to the line", test: func(w *world) {
		w.granted("a", limit(2))
		w.granted("b", limit(2))
		for i, slot := range []string{"c", "d", "e"} {
			w.waits(i+1, slot, limit(2))
		}
		w.clear("a", 1)
		w.stands(2, 2)
		w.is(w.ask("c", limit(2)), store.Granted, 2, 2)
		w.clear("", 2) // the line stays
		w.stands(2, 0)
		w.is(w.ask("d", limit(2)), store.Granted, 2, 0)
		w.is(w.ask("e", limit(2)), store.Granted, 2, 0)
		w.renew("c", store.Revoked)
	}},
	{name: "of one who waits takes nothing", test: func(w *world) {
		w.granted("a")
		w.waits(1, "b")
		w.clear("b", 0)
		w.waits(1, "b")
	}},
}
