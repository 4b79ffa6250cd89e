package storetest

import (
	"errors"
	"math"
	"strings"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

var limitTests = []subtest{
	{name: "numbers that are not counted exactly are refused", test: func(w *world) {
		refused := func(what string, err error) {
			if !errors.Is(err, store.ErrConfig) {
				w.Errorf("%s: %v, want ErrConfig", what, err)
			}
		}
		for what, odd := range map[string]wish{
			"limit MaxInt": limit(math.MaxInt), "limit MinInt": limit(math.MinInt), "limit 1 too high": limit(store.MaxLimit + 1),
			"weight 0": weight(0), "weight below 0": weight(-1), "weight 1 too high": weight(store.MaxWeight + 1), "weight 2^53+1": weight(1<<53 + 1),
			"ttl 0": ttl(0), "ttl below 0": ttl(-time.Second), "ttl MaxInt64": ttl(math.MaxInt64),
		} {
			for _, more := range []wish{lease, bare, queue(5)} {
				r := w.request("a", []wish{limit(10), odd, more})
				_, err := w.st.Acquire(w.ctx, r)
				refused(what, err)
			}
			r := w.request("a", []wish{limit(10), odd})
			refused("renewal, "+what, w.st.Renew(w.ctx, []store.Renewal{{ID: r.ID, SlotID: r.SlotID, Weight: r.Weight, Limit: r.Limit, TTL: r.TTL, Register: true}})[0].Err)
		}
		if l, ok := w.st.(store.LimitSetter); ok {
			_, err := l.ChangeLimit(w.ctx, store.LimitChange{ID: w.id, Limit: math.MaxInt})
			refused("setting MaxInt", err)
		}
		w.stands(0, 0)
		// What is just within is counted exactly.
		w.granted("a", limit(store.MaxLimit), weight(store.MaxWeight-1), ttl(store.MaxTTL))
		w.full("b", limit(store.MaxLimit), weight(2))
		w.granted("b", limit(store.MaxLimit))
		w.full("c", limit(store.MaxLimit))
		w.full("c", limit(store.MaxLimit), bare)
		if u := w.usageOf(w.peer, w.id, store.MaxLimit); u.Active != store.MaxLimit || u.Limit != store.MaxLimit {
			w.Errorf("%+v", u)
		}
		w.release("a", true)
		w.stands(1, 0)
	}},
	{name: "a set limit wins", needs: limiter, test: func(w *world) {
		w.setLimit(2)
		if u := w.usageOf(w.peer, w.id, 9); u != (store.Usage{Limit: 2, LimitSet: true}) {
			w.Fatalf("%+v", u)
		}
		w.granted("a", limit(1))
		if d := w.granted("b", limit(1)); d.Limit != 2 {
			w.Fatalf("the limit is 2: %+v", d)
		}
		if d := w.is(w.askOf(w.peer, "c", limit(9)), store.Full, 2, 0); d.Limit != 2 {
			w.Fatalf("the limit is 2: %+v", d)
		}
		w.full("c", limit(9), bare)
		w.comesTo(store.TooHeavy, "d", limit(9), weight(3))
		if u := w.usageOf(w.st, "other", 9); u.Limit != 9 || u.LimitSet {
			w.Fatalf("another id: %+v", u)
		}
		w.resetLimit()
		if u := w.usage(9); u.Limit != 9 || u.LimitSet {
			w.Fatalf("%+v", u)
		}
		w.is(w.ask("c", limit(9)), store.Granted, 3, 0)
		w.resetLimit() // of none
	}},
	{name: "it outlives who is held", needs: limiter, slow: true, test: func(w *world) {
		w.setLimit(2)
		w.granted("a", limit(1), ttl(w.unit))
		w.release("a", true)
		w.granted("b", limit(1), ttl(w.unit))
		w.pass(w.unit)
		w.pass(store.Life + store.Claim)
		if u := w.usageOf(w.peer, w.id, 9); u != (store.Usage{Limit: 2, LimitSet: true}) {
			w.Fatalf("%+v", u)
		}
	}},
	{name: "lowering takes nothing away", needs: limiter, test: func(w *world) {
		for _, slot := range names("a", 10) {
			w.granted(slot, limit(10))
		}
		for i, slot := range names("b", 5) {
			w.waits(i+1, slot, limit(10))
		}
		w.setLimit(4)
		w.stands(10, 5)
		w.renew("a0", store.Renewed)
		w.is(w.ask("a1", limit(10)), store.Granted, 10, 5)
		for i := range 6 {
			w.release(names("a", 10)[i], true)
			w.stands(9-i, 5) // nobody is granted before less than 4 are held
		}
		w.is(w.ask("b0", limit(10)), store.Waiting, 4, 5)
		w.release("a6", true)
		w.stands(4, 4)
		w.is(w.ask("b0", limit(10)), store.Granted, 4, 4)
	}},
	{name: "raising lets in at once", needs: limiter, test: func(w *world) {
		for _, slot := range names("a", 10) {
			w.granted(slot, limit(10))
		}
		for i, slot := range names("b", 5) {
			w.waits(i+1, slot, limit(10))
		}
		w.setLimit(12)
		w.stands(12, 3)
		w.is(w.ask("b0", limit(10)), store.Granted, 12, 3)
		w.is(w.ask("b1", limit(10)), store.Granted, 12, 3)
		w.is(w.ask("b2", limit(10)), store.Waiting, 12, 3)
		w.setLimit(100)
		w.stands(15, 0)
	}},
	{name: "zero pauses", needs: limiter, test: func(w *world) {
		w.granted("a", limit(5))
		w.setLimit(0)
		if u := w.usage(5); u != (store.Usage{Active: 1, Limit: 0, LimitSet: true, NextIn: u.NextIn}) {
			w.Fatalf("%+v", u)
		}
		w.full("b", limit(5))
		w.full("b", limit(5), bare)
		w.waits(1, "c", limit(5))
		w.waits(2, "d", limit(5), weight(3)) // not too heavy: a pause ends
		w.renew("a", store.Renewed)
		w.is(w.ask("a", limit(5)), store.Granted, 1, 2)
		w.release("a", true)
		w.stands(0, 2)
		w.setLimit(5)
		w.stands(4, 0)
		w.is(w.ask("c", limit(5)), store.Granted, 4, 0)
	}},
	{name: "taking it off lets in at once", needs: limiter, test: func(w *world) {
		w.setLimit(1)
		w.granted("a", limit(3))
		w.waits(1, "b", limit(3))
		w.waits(2, "c", limit(2))
		w.resetLimit()
		w.stands(2, 1) // b by its own limit; for c that is full
		w.is(w.ask("b", limit(3)), store.Granted, 2, 1)
	}},
	{name: "lowered below the weight of who waits", needs: limiter, test: func(w *world) {
		w.granted("a", limit(4))
		w.waits(1, "b", limit(4), weight(4))
		w.waits(2, "c", limit(4))
		w.waits(3, "d", limit(4), weight(3))
		w.setLimit(2)
		w.stands(2, 0) // c is let in
		w.is(w.ask("b", limit(4), weight(4), wait), store.TooHeavy, 2, 0)
		w.is(w.ask("d", limit(4), weight(3), wait), store.TooHeavy, 2, 0)
		w.is(w.ask("c", limit(4)), store.Granted, 2, 0)
	}},
	{name: "who remembers an old limit cannot pass it", needs: limiter, test: func(w *world) {
		for _, slot := range names("a", 4) {
			w.granted(slot, limit(10))
		}
		if _, err := w.peer.(store.LimitSetter).ChangeLimit(w.ctx, store.LimitChange{ID: w.id, Limit: 4}); err != nil {
			w.Fatal(err)
		}
		w.full("b", limit(10))
		w.waits(1, "c", limit(10))
	}},
	{name: "a limit tells who set it, and its version", needs: limiter, test: func(w *world) {
		if o := w.override(); o != (store.Override{}) {
			w.Fatalf("nothing is set: %+v", o)
		}
		first := w.change(store.LimitChange{Limit: 4, By: "anna, for the \x00 sale"})
		if first.Limit != 4 || first.Version == 0 || first.By != "anna, for the \x00 sale" || first.Left != 0 {
			w.Errorf("%+v", first)
		}
		second := w.change(store.LimitChange{Limit: 0})
		if second.Limit != 0 || second.Version <= first.Version || second.By != "" {
			w.Errorf("%+v after %+v", second, first)
		}
		if o := w.override(); o.Version != second.Version || o.Limit != 0 || o.Age < 0 || o.Age > w.unit {
			w.Errorf("%+v, want %+v", o, second)
		}
		if off := w.change(store.LimitChange{Reset: true}); off != (store.Override{}) {
			w.Errorf("%+v", off)
		}
		if third := w.change(store.LimitChange{Limit: 4}); third.Version <= second.Version {
			w.Errorf("version %d was given twice", third.Version)
		}
	}},
	{name: "a change of another version is refused", needs: limiter, test: func(w *world) {
		l := w.st.(store.LimitSetter)
		refused := func(c store.LimitChange, now store.Override) {
			w.Helper()
			c.ID, c.OnlyIf = w.id, true
			var conflict *store.LimitConflict
			if _, err := l.ChangeLimit(w.ctx, c); !errors.As(err, &conflict) {
				w.Fatalf("%+v: %v, want a conflict", c, err)
			}
			if conflict.ID != w.id || conflict.Want != c.Version || conflict.Now.Version != now.Version || conflict.Now.Limit != now.Limit {
				w.Errorf("%+v, want it to tell of %+v", conflict, now)
			}
		}
		w.unchanged("a conflict", func() { refused(store.LimitChange{Limit: 7, Version: 12}, store.Override{}) })
		first := w.change(store.LimitChange{Limit: 3, OnlyIf: true})
		w.unchanged("a conflict", func() {
			refused(store.LimitChange{Limit: 9}, first)
			refused(store.LimitChange{Limit: 9, Version: first.Version - 1}, first)
			refused(store.LimitChange{Reset: true, Version: first.Version + 1}, first)
		})
		second := w.change(store.LimitChange{Limit: 5, OnlyIf: true, Version: first.Version})
		refused(store.LimitChange{Reset: true, Version: first.Version}, second)
		w.change(store.LimitChange{Reset: true, OnlyIf: true, Version: second.Version})
		refused(store.LimitChange{Reset: true, Version: second.Version}, store.Override{})
	}},
	{name: "a limit ends by itself", needs: limiter, slow: true, test: func(w *world) {
		set := w.change(store.LimitChange{Limit: 0, For: 3 * w.unit, By: "a pause"})
		if set.Left <= w.unit || set.Left > 3*w.unit {
			w.Errorf("%+v", set)
		}
		w.full("a", limit(2))
		w.full("a", limit(2), bare)
		w.waits(1, "b", limit(2))
		w.pass(4 * w.unit)
		if u := w.usage(2); u.LimitSet || u.Limit != 2 {
			w.Errorf("%+v after its end", u)
		}
		if o := w.override(); o != (store.Override{}) {
			w.Errorf("%+v after its end", o)
		}
		w.comesTo(store.Granted, "b", limit(2))
		w.granted("c", limit(2), bare)
		w.change(store.LimitChange{Limit: 1, For: w.unit})
		w.change(store.LimitChange{Limit: 1}) // without an end
		w.pass(2 * w.unit)
		if o := w.override(); o.Limit != 1 || o.Left != 0 {
			w.Errorf("%+v", o)
		}
		w.resetLimit()
	}},
	{name: "a change that makes no sense is an error", needs: limiter, test: func(w *world) {
		w.unchanged("nonsense", func() {
			for _, c := range []store.LimitChange{{Limit: -1}, {Limit: store.MaxLimit + 1}, {For: -1}, {For: store.MaxTTL + 1}, {For: time.Microsecond}, {By: strings.Repeat("x", store.MaxBy+1)}} {
				c.ID = w.id
				if _, err := w.st.(store.LimitSetter).ChangeLimit(w.ctx, c); err == nil {
					w.Errorf("%+v: no error", c)
				}
			}
		})
	}},
	{name: "a negative limit is an error", needs: limiter, test: func(w *world) {
		w.unchanged("a negative limit", func() {
			if _, err := w.st.(store.LimitSetter).ChangeLimit(w.ctx, store.LimitChange{ID: w.id, Limit: -1}); err == nil {
				w.Fatal("no error")
			}
		})
		if u := w.usage(3); u.LimitSet || u.Limit != 3 {
			w.Fatalf("%+v", u)
		}
	}},
	{name: "odd ids", needs: limiter, test: func(w *world) {
		l := w.st.(store.LimitSetter)
		for i, id := range oddIDs {
			if _, err := l.ChangeLimit(w.ctx, store.LimitChange{ID: id, Limit: i + 7}); err != nil {
				w.Fatalf("%.40q: %v", id, err)
			}
		}
		for i, id := range oddIDs {
			if u := w.usageOf(w.peer, id, 1); u != (store.Usage{Limit: i + 7, LimitSet: true}) {
				w.Fatalf("%.40q: %+v; want the limit %d", id, u, i+7)
			}
			if _, err := l.ChangeLimit(w.ctx, store.LimitChange{ID: id, Reset: true}); err != nil {
				w.Fatalf("%.40q: %v", id, err)
			}
		}
	}},
}
