package storetest

import (
	"fmt"
	"slices"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

var lineTests = []subtest{
	{name: "first come, first served", test: func(w *world) {
		a := w.granted("a")
		last := w.waits(1, "s0").Ticket
		slots := names("s", 20)
		for i, slot := range slots[1:] {
			st := []store.Store{w.st, w.peer}[i%2]
			d := w.is(w.askOf(st, slot, wait), store.Waiting, 1, i+2)
			if d.Place != i+2 || d.Ticket <= last {
				w.Fatalf("%s: place %d, ticket %d; want place %d and a ticket above %d", slot, d.Place, d.Ticket, i+2, last)
			}
			last = d.Ticket
		}
		fence, holder := a.Fence, "a"
		for i, slot := range slots {
			w.release(holder, true)
			if i+1 < len(slots) {
				w.waits(1, slots[i+1])
			}
			d := w.is(w.ask(slot, wait), store.Granted, 1, len(slots)-1-i)
			if d.Fence <= fence {
				w.Fatalf("%s: fence %d after %d", slot, d.Fence, fence)
			}
			fence, holder = d.Fence, slot
		}
		w.release(holder, true)
		w.stands(0, 0)
	}},
	{name: "the room is handed on in the same step", test: func(w *world) {
		w.granted("a", limit(2))
		w.granted("b", limit(2))
		for i, slot := range []string{"c", "d", "e"} {
			w.waits(i+1, slot, limit(2))
		}
		w.release("a", true)
		w.stands(2, 2) // c holds, before it asked again
		w.releaseOf(w.peer, "b", true)
		w.stands(2, 1)
		w.is(w.ask("d", limit(2)), store.Granted, 2, 1)
		w.release("c", true) // it has not claimed its grant
		w.stands(2, 0)
		w.is(w.ask("e", limit(2)), store.Granted, 2, 0)
	}},
	{name: "asking again keeps the place", test: func(w *world) {
		w.granted("a")
		b := w.waits(1, "b", queue(2))
		c := w.waits(2, "c", queue(2))
		for range 3 {
			if d := w.waits(2, "c", queue(2)); d.Ticket != c.Ticket {
				w.Fatalf("ticket %d became %d", c.Ticket, d.Ticket)
			}
			if d := w.waits(1, "b", queue(1), ticket(b.Ticket)); d.Ticket != b.Ticket {
				w.Fatalf("ticket %d became %d", b.Ticket, d.Ticket)
			}
		}
		w.stands(1, 2)
	}},
	{name: "is bounded", test: func(w *world) {
		w.granted("a")
		w.waits(1, "b", queue(2))
		w.waits(2, "c", queue(2))
		w.is(w.ask("d", queue(2)), store.LineFull, 1, 2)
		w.is(w.askOf(w.peer, "e", queue(1)), store.LineFull, 1, 2)
		w.is(w.ask("f", queue(0)), store.Full, 1, 2)
		w.is(w.ask("f", queue(-1)), store.Full, 1, 2)
		w.is(w.ask("g", queue(3)), store.Waiting, 1, 3)
		w.release("c", true)
		w.is(w.ask("d", queue(2)), store.LineFull, 1, 2)
		w.release("b", true)
		w.is(w.ask("d", queue(2)), store.Waiting, 1, 2)
		w.release("a", true)
		w.is(w.ask("g", queue(2)), store.Granted, 1, 1)
		w.is(w.ask("h", queue(2)), store.Waiting, 1, 2)
		w.is(w.ask("i", queue(2)), store.LineFull, 1, 2)
	}},
	{name: "nobody overtakes", test: func(w *world) {
		w.granted("a", limit(4), weight(3))
		w.waits(1, "b", limit(4), weight(2)) // one slot is free, and b needs two
		w.is(w.ask("try", limit(4)), store.Full, 3, 1)
		w.is(w.ask("bare", limit(4), bare), store.Full, 3, 1)
		w.is(w.askOf(w.peer, "generous", limit(100)), store.Full, 3, 1)
		w.waits(2, "c", limit(4))
		w.waits(3, "d", limit(100))
		w.release("a", true)
		w.stands(4, 0) // b 2, c 1, d 1, in one step
		w.is(w.ask("try", limit(4)), store.Full, 4, 0)
		for _, slot := range []string{"b", "c"} {
			w.granted(slot, limit(4), weight(map[string]int{"b": 2, "c": 1}[slot]))
		}
		w.granted("d", limit(100))
	}},
	{name: "a try takes nothing that a waiter is due", slow: true, test: func(w *world) {
		w.granted("a", ttl(w.unit))
		w.waits(1, "b")
		w.pass(w.unit)
		w.full("try") // it finds the room, and b has it
		w.full("bare", bare)
		w.stands(1, 0)
		w.is(w.ask("b"), store.Granted, 1, 0)
	}},
	{name: "a newcomer stands behind whom its asking let in", slow: true, test: func(w *world) {
		w.granted("a", ttl(w.unit))
		w.waits(1, "b")
		w.pass(w.unit)
		w.is(w.ask("c", wait), store.Waiting, 1, 1)
		w.is(w.ask("b"), store.Granted, 1, 1)
	}},
	{name: "the head asks again when the next slot lapses", slow: true, test: func(w *world) {
		w.granted("a", ttl(2*w.unit))
		d := w.waits(1, "b")
		if d.RetryIn > 2*w.unit {
			w.Fatalf("a slot lapses in %v, and b is told to come back in %v", 2*w.unit, d.RetryIn)
		}
		w.pass(2 * w.unit) // nobody else asks for anything
		w.is(w.ask("b"), store.Granted, 1, 0)
	}},
	{name: "a heavy head is waited for", test: func(w *world) {
		for _, slot := range []string{"s1", "s2", "s3", "s4"} {
			w.granted(slot, limit(4))
		}
		w.waits(1, "b", limit(4), weight(3))
		w.waits(2, "c", limit(4))
		w.release("s1", true)
		w.is(w.ask("c", limit(4)), store.Waiting, 3, 2)
		w.release("s2", true)
		w.is(w.ask("c", limit(4)), store.Waiting, 2, 2) // two are free, and it does not overtake
		w.is(w.ask("b", limit(4), weight(3)), store.Waiting, 2, 2)
		w.release("s3", true)
		w.stands(4, 1)
		w.is(w.ask("b", limit(4), weight(3)), store.Granted, 4, 1)
		w.waits(1, "c", limit(4))
	}},
	{name: "a heavy head that leaves lets the next in", test: func(w *world) {
		for _, slot := range []string{"s1", "s2", "s3", "s4"} {
			w.granted(slot, limit(4))
		}
		w.waits(1, "b", limit(4), weight(3))
		w.waits(2, "c", limit(4))
		w.waits(3, "d", limit(4), weight(2))
		w.release("s1", true)
		w.release("s2", true)
		w.stands(2, 3)
		w.release("b", true) // no slot is released
		w.stands(3, 1)       // c has one, and one is not enough for d
		w.is(w.ask("c", limit(4)), store.Granted, 3, 1)
		w.waits(1, "d", limit(4), weight(2))
		w.release("s3", true)
		w.stands(4, 0)
	}},
	{name: "leaving from the middle", test: func(w *world) {
		w.granted("a")
		for i, slot := range []string{"b", "c", "d", "e"} {
			w.waits(i+1, slot)
		}
		w.release("c", true)
		w.waits(2, "d")
		w.waits(3, "e")
		w.release("a", true)
		w.release("b", true) // it was granted and gives up: the next has it at once
		w.stands(1, 1)
		w.granted("d")
	}},
	{name: "too heavy for its own limit, while it waits", test: func(w *world) {
		w.granted("a", limit(4))
		w.waits(1, "b", limit(4), weight(4))
		w.waits(2, "c", limit(4))
		w.is(w.ask("b", limit(3), weight(4), wait), store.TooHeavy, 2, 0) // and c is let in
		w.is(w.ask("c", limit(4)), store.Granted, 2, 0)
		w.release("b", false)
		w.waits(1, "d", limit(4), weight(3))
		w.waits(2, "e", limit(4), weight(4))
		w.is(w.ask("e", limit(3), weight(4), wait), store.TooHeavy, 2, 1) // not only at the head
		w.waits(1, "d", limit(4), weight(3))
	}},
	{name: "the limit of who waits judges", test: func(w *world) {
		w.granted("a1", limit(3))
		w.granted("a2", limit(3))
		w.granted("a3", limit(3))
		w.waits(1, "b", limit(1))
		w.waits(2, "c", limit(3))
		w.release("a1", true)
		w.stands(2, 2) // by the limit of a1 or c there would be room
		w.is(w.ask("try", limit(100)), store.Full, 2, 2)
		w.release("a2", true)
		w.stands(1, 2)
		w.release("a3", true)
		w.stands(2, 0) // b by its limit of 1, c by its limit of 3
	}},
	{name: "who waits may bring a new limit", test: func(w *world) {
		w.granted("a", limit(1))
		w.waits(1, "b", limit(1))
		w.waits(2, "c", limit(3))
		w.is(w.ask("b", limit(2), wait), store.Granted, 3, 0) // c's limit has room now too
		w.is(w.ask("c", limit(3)), store.Granted, 3, 0)
		w.waits(1, "d", limit(4), weight(2))
		w.waits(1, "d", limit(3), weight(2))
		w.release("a", true)
		w.stands(2, 1) // 2 + 2 is within the limit it had, and above the one it brought
		w.release("b", true)
		w.stands(3, 0)
	}},
	{name: "a limit of zero waits", test: func(w *world) {
		w.is(w.ask("a", limit(0), wait), store.Waiting, 0, 1)
		w.is(w.ask("b", limit(5)), store.Full, 0, 1)
		w.is(w.ask("a", limit(1), wait), store.Granted, 1, 0)
	}},
	{name: "a bare one may wait too", test: func(w *world) {
		w.granted("a")
		w.waits(1, "b", bare)
		w.release("a", true)
		if d := w.is(w.ask("b", bare), store.Granted, 1, 0); d.Fence != 0 {
			w.Fatalf("a bare grant has the fence %d", d.Fence)
		}
		w.release("b", true)
		w.stands(0, 0)
	}},
	{name: "a grant is claimed for its whole TTL", slow: true, test: func(w *world) {
		w.granted("a")
		w.waits(1, "b")
		w.release("a", true)
		w.is(w.ask("b"), store.Granted, 1, 0)
		w.pass(store.Claim)
		w.stands(1, 0)
		w.renew("b", store.Renewed)
	}},
	{name: "a grant is claimed for a short TTL", slow: true, test: func(w *world) {
		w.granted("a")
		w.waits(1, "b", ttl(w.unit))
		w.release("a", true)
		w.is(w.ask("b", ttl(w.unit)), store.Granted, 1, 0)
		w.pass(store.Claim)
		w.stands(0, 0)
	}},
	{name: "a grant that is not claimed goes to the next", slow: true, test: func(w *world) {
		w.granted("a")
		b := w.waits(1, "b")
		w.waits(2, "c")
		w.release("a", true)
		w.stands(1, 1)
		w.h.Advance(store.Claim / 2)
		w.waits(1, "c")
		w.pass(store.Claim / 2)
		if d := w.is(w.ask("c"), store.Granted, 1, 0); d.Fence == 0 {
			w.Fatal("no fence")
		}
		// Who was late stands where it stood: before who came meanwhile.
		d := w.waits(1, "d")
		if d.Ticket <= b.Ticket {
			w.Fatalf("ticket %d after %d", d.Ticket, b.Ticket)
		}
		if again := w.waits(1, "b", ticket(b.Ticket)); again.Ticket != b.Ticket {
			w.Fatalf("ticket %d became %d", b.Ticket, again.Ticket)
		}
		w.waits(2, "d")
		w.renew("b", store.Lost)
		w.release("c", true)
		w.is(w.ask("b"), store.Granted, 1, 1)
	}},
	{name: "a grant to one that has not asked for long is not kept for long", slow: true, test: func(w *world) {
		// A grant made the dead live longer: by two seconds more than their place in line.
		w.granted("a")
		w.waits(1, "b")
		w.waits(2, "c")
		w.h.Advance(store.Life * 5 / 6)
		w.waits(2, "c")
		w.release("a", true)
		w.stands(1, 1)
		w.waits(1, "c")
		w.pass(time.Second) // what being woken may take
		w.is(w.ask("c"), store.Granted, 1, 0)
		w.renew("b", store.Lost)
	}},
	{name: "a grant is kept for as long as being woken takes", slow: true, test: func(w *world) {
		w.granted("a")
		w.waits(1, "b")
		w.waits(2, "c")
		w.h.Advance(store.Life - w.unit)
		w.waits(2, "c")
		w.release("a", true)
		w.h.Advance(time.Second - w.unit) // its place would have ended before
		w.waits(1, "c")
		w.is(w.ask("b"), store.Granted, 1, 1)
	}},
	{name: "a late claim is granted if nobody else wants it", slow: true, test: func(w *world) {
		w.granted("a")
		b := w.waits(1, "b")
		w.release("a", true)
		w.pass(store.Claim)
		w.stands(0, 0)
		w.is(w.ask("b", wait, ticket(b.Ticket)), store.Granted, 1, 0)
		w.pass(store.Claim)
		w.stands(1, 0) // and for its whole TTL
	}},
	{name: "slow but live", slow: true, test: func(w *world) {
		w.granted("a")
		b := w.waits(1, "b")
		w.waits(2, "c")
		w.h.Advance(store.Life * 2 / 3)
		if d := w.waits(1, "b", ticket(b.Ticket)); d.Ticket != b.Ticket {
			w.Fatalf("ticket %d became %d", b.Ticket, d.Ticket)
		}
		w.waits(2, "c")
		w.h.Advance(store.Life * 2 / 3) // in all longer than one life
		w.waits(1, "b")
		w.waits(2, "c")
	}},
	{name: "one that stood still for too long joins again where it stood", slow: true, test: func(w *world) {
		w.granted("a")
		b := w.waits(1, "b", queue(2))
		c := w.waits(2, "c", queue(2))
		w.eventually(store.Life+2*time.Second, "c is at the head", func() bool {
			return w.comesTo(store.Waiting, "c", queue(2)).Place == 1
		})
		w.waits(2, "d", queue(2))
		if d := w.waits(1, "b", queue(2), ticket(b.Ticket)); d.Ticket != b.Ticket || d.Waiting != 3 {
			w.Fatalf("it had the ticket %d, and 3 wait now: %+v", b.Ticket, d)
		}
		if d := w.waits(2, "c", queue(2)); d.Ticket != c.Ticket {
			w.Fatalf("ticket %d became %d", c.Ticket, d.Ticket)
		}
		w.release("a", true)
		w.is(w.ask("b"), store.Granted, 1, 2)
	}},
	{name: "one that comes back to the head and fits is let in", slow: true, test: func(w *world) {
		w.granted("a", limit(3), weight(2))
		w.granted("a2", limit(3))
		b := w.waits(1, "b", limit(3))
		w.waits(2, "c", limit(3), weight(3))
		w.eventually(store.Life+2*time.Second, "c is at the head", func() bool {
			return w.comesTo(store.Waiting, "c", limit(3), weight(3), wait).Place == 1
		})
		w.release("a2", true)
		w.stands(2, 1) // not enough for c
		w.is(w.ask("b", limit(3), wait, ticket(b.Ticket)), store.Granted, 3, 1)
		w.pass(store.Claim)
		if u := w.usage(3); u.Active != 3 {
			w.Fatalf("granted for its whole TTL, and after %v there are %d held", store.Claim, u.Active)
		}
	}},
	{name: "one that stood still and lost its ticket joins at the end", slow: true, test: func(w *world) {
		w.granted("a")
		w.waits(1, "b")
		w.waits(2, "c")
		w.eventually(store.Life+2*time.Second, "c is at the head", func() bool {
			return w.comesTo(store.Waiting, "c", wait).Place == 1
		})
		w.waits(2, "b")
	}},
	{name: "a stranger's ticket takes no place away", test: func(w *world) {
		w.granted("a")
		b := w.waits(1, "b")
		w.waits(2, "c")
		if d := w.ask("d", wait, ticket(b.Ticket)); d.Outcome != store.Waiting || d.Waiting != 3 {
			w.Fatalf("%+v", d)
		}
		w.comesTo(store.Waiting, "b", wait)
		w.comesTo(store.Waiting, "c", wait)
		w.stands(1, 3)
		w.release("d", true)
		w.waits(1, "b")
		w.waits(2, "c")
		w.comesTo(store.Waiting, "e", wait, ticket(b.Ticket))
		w.release("b", true)
		w.comesTo(store.Waiting, "f", wait, ticket(b.Ticket))
		w.stands(1, 3)
		for range 3 {
			w.clear("", 1)
		}
		w.stands(1, 0)
	}},
	{name: "the dead at the head go in one step", slow: true, test: func(w *world) {
		w.granted("a")
		for i, slot := range names("dead", 5) {
			w.waits(i+1, slot)
		}
		w.waits(6, "f")
		w.h.Advance(store.Life / 2)
		w.waits(6, "f")
		w.pass(store.Life / 2)
		w.waits(1, "f")
		w.release("a", true)
		w.is(w.ask("f"), store.Granted, 1, 0)
	}},
	{name: "a release passes over the dead at the head", slow: true, test: func(w *world) {
		w.granted("a")
		dead := names("dead", 70) // more than a store need look at in one call
		for i, slot := range dead {
			w.waits(i+1, slot)
		}
		w.h.Advance(store.Life / 2)
		w.waits(71, "f")
		w.pass(store.Life / 2)
		w.release("a", true)
		w.eventually(time.Second, "f has the slot", func() bool {
			d := w.ask("f", wait)
			if d.Outcome == store.Granted {
				w.is(d, store.Granted, 1, 0)
			}
			return d.Outcome == store.Granted
		})
	}},
	{name: "the dead hold up nobody for longer than a life and a claim", slow: true, test: func(w *world) {
		w.granted("a")
		for i, slot := range names("dead", 5) {
			w.waits(i+1, slot)
		}
		w.waits(6, "f")
		w.h.Advance(store.Life / 3)
		w.release("a", true) // to the first of them, who will not claim it
		w.eventually(store.Life+store.Claim, "f has the slot", func() bool {
			return w.ask("f", wait).Outcome == store.Granted
		})
		w.stands(1, 0)
	}},
	{name: "all in line are dead", slow: true, test: func(w *world) {
		w.granted("a", ttl(w.unit))
		w.waits(1, "b")
		w.waits(2, "c")
		w.pass(store.Life)
		w.is(w.ask("d"), store.Granted, 1, 0)
		w.stands(1, 0)
	}},
	{name: "random weights, one after the other", test: func(w *world) {
		const most = 7
		type one struct {
			slot   string
			weight int
		}
		var held, line []one
		active := func() (n int) {
			for _, o := range held {
				n += o.weight
			}
			return n
		}
		seed := uint32(1)
		random := func(n int) int { seed = seed*1664525 + 1013904223; return int(seed>>8) % n }
		for i := range 400 {
			switch o := (one{fmt.Sprint("s", i), 1 + random(most)}); {
			case random(5) < 2 && len(held) > 0:
				at := random(len(held))
				w.release(held[at].slot, true)
				held = slices.Delete(held, at, at+1)
			case random(6) == 0 && len(line) > 0:
				at := random(len(line))
				w.release(line[at].slot, true)
				line = slices.Delete(line, at, at+1)
			case len(line) < 10:
				w.ask(o.slot, limit(most), weight(o.weight), wait)
				line = append(line, o)
			}
			before := len(held)
			for len(line) > 0 && active()+line[0].weight <= most {
				held, line = append(held, line[0]), line[1:]
			}
			for _, o := range held[min(before, len(held)):] {
				w.is(w.ask(o.slot, limit(most), weight(o.weight), wait), store.Granted, active(), len(line))
			}
			for at, o := range line {
				w.waits(at+1, o.slot, limit(most), weight(o.weight))
			}
		}
	}},
}
