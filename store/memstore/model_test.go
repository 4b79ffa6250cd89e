package memstore

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

// model is the contract for one id, written down without a thought for speed.
type model struct {
	held  []modelSlot
	line  []modelSlot // by ticket
	limit int
	set   bool
	woken []string
}

type modelSlot struct {
	id            string
	weight, limit int
	until         time.Duration
	ticket        uint64
}

func (m *model) active() (n int) {
	for _, s := range m.held {
		n += s.weight
	}
	return n
}

func (m *model) limitFor(asked int) int {
	if m.set {
		return m.limit
	}
	return asked
}

func (m *model) nextIn(now time.Duration) (next time.Duration) {
	for i, s := range m.held {
		if i == 0 || s.until-now < next {
			next = s.until - now
		}
	}
	return next
}

func (m *model) settle(now time.Duration) {
	lapsed := func(s modelSlot) bool { return s.until <= now }
	m.held = slices.DeleteFunc(m.held, lapsed)
	m.line = slices.DeleteFunc(m.line, lapsed)
	for len(m.line) > 0 {
		head := m.line[0]
		limit := m.limitFor(head.limit)
		tooHeavy := limit > 0 && head.weight > limit
		if !tooHeavy && m.active()+head.weight > limit {
			return
		}
		m.line = m.line[1:]
		m.woken = append(m.woken, head.id)
		if !tooHeavy {
			head.until = now + min(store.Claim, max(head.until-now, time.Second))
			m.held = append(m.held, head)
		}
	}
}

func (m *model) find(in []modelSlot, id string) int {
	return slices.IndexFunc(in, func(s modelSlot) bool { return s.id == id })
}

// acquire decides; ticket is the one that the store gave, should it have given one.
func (m *model) acquire(r *store.Request, now time.Duration, ticket uint64) store.Decision {
	m.settle(now)
	limit := m.limitFor(r.Limit)
	if at := m.find(m.line, r.SlotID); at >= 0 {
		m.line[at].until, m.line[at].limit = now+store.Life, r.Limit
		if limit > 0 && m.line[at].weight > limit {
			m.line = slices.Delete(m.line, at, at+1)
		}
		m.settle(now)
	} else if m.find(m.held, r.SlotID) < 0 {
		fits := m.active()+r.Weight <= limit
		comesBack := r.Ticket > 0 && r.Queue > 0
		switch {
		case limit > 0 && r.Weight > limit:
			return store.Decision{Outcome: store.TooHeavy, Active: m.active(), Limit: limit, Waiting: len(m.line), RetryIn: m.nextIn(now)}
		case fits && len(m.line) == 0:
			m.held = append(m.held, modelSlot{id: r.SlotID, weight: r.Weight, until: now + r.TTL})
		case r.Queue > 0 && (comesBack || len(m.line) < r.Queue):
			m.line = append(m.line, modelSlot{id: r.SlotID, weight: r.Weight, limit: r.Limit, until: now + store.Life, ticket: ticket})
			slices.SortStableFunc(m.line, func(a, b modelSlot) int { return cmp.Compare(a.ticket, b.ticket) })
			m.settle(now)
		}
	}
	d := store.Decision{Outcome: store.Full, Active: m.active(), Limit: limit, Waiting: len(m.line), RetryIn: m.nextIn(now)}
	if at := m.find(m.held, r.SlotID); at >= 0 {
		m.held[at].until = max(m.held[at].until, now+r.TTL)
		d.Outcome, d.RetryIn = store.Granted, 0
	} else if at := m.find(m.line, r.SlotID); at >= 0 {
		d.Outcome, d.Place = store.Waiting, at+1
	} else if limit > 0 && r.Weight > limit {
		d.Outcome = store.TooHeavy
	} else if r.Queue > 0 {
		d.Outcome = store.LineFull
	}
	return d
}

func (m *model) renew(r store.Renewal, now time.Duration) store.RenewOutcome {
	m.settle(now)
	if at := m.find(m.held, r.SlotID); at >= 0 {
		m.held[at].until = max(m.held[at].until, now+r.TTL)
		return store.Renewed
	}
	if !r.Register || m.find(m.line, r.SlotID) >= 0 {
		return store.Lost
	}
	m.held = append(m.held, modelSlot{id: r.SlotID, weight: r.Weight, until: now + r.TTL})
	return store.Restored
}

func (m *model) release(id string, now time.Duration) bool {
	m.settle(now)
	before := len(m.held) + len(m.line)
	is := func(s modelSlot) bool { return s.id == id }
	m.held, m.line = slices.DeleteFunc(m.held, is), slices.DeleteFunc(m.line, is)
	freed := len(m.held)+len(m.line) < before
	m.settle(now)
	return freed
}

func (m *model) clear(id string, now time.Duration) (n int) {
	m.settle(now)
	m.held = slices.DeleteFunc(m.held, func(s modelSlot) bool {
		if id != "" && s.id != id {
			return false
		}
		m.woken = append(m.woken, s.id)
		n++
		return true
	})
	m.settle(now)
	return n
}

// against has a store and its model do the same, as script says, and compares
// what they answer. Every byte of script is one choice.
func against(t *testing.T, script []byte) {
	choose := func(n int) int {
		if len(script) == 0 {
			return 0
		}
		c := int(script[0]) % n
		script = script[1:]
		return c
	}
	s, m, ctx := New(), &model{}, context.Background()
	e := listen(t, s)
	tickets := make(map[string]uint64)
	asked := make(map[string]*store.Request)
	registered := make(map[string]bool) // these are no bare ones
	fences := make(map[uint64]string)
	var last uint64 // fence
	var did []string
	made := 0
	for len(script) > 0 {
		now := time.Since(s.start)
		var got, want any
		what := ""
		slot := fmt.Sprint("s", max(0, made-choose(12)))
		switch choose(12) {
		case 0, 1, 2, 3:
			r := asked[slot]
			if r == nil || choose(4) == 0 {
				made++
				slot = fmt.Sprint("s", made)
				r = &store.Request{ID: "id", SlotID: slot, Weight: 1 + choose(4), Limit: choose(6), TTL: time.Duration(1+choose(40)) * 250 * time.Millisecond, Queue: choose(6), Plain: choose(3) == 0}
				asked[slot] = r
			} else if choose(3) == 0 {
				r.Limit = choose(6)
			}
			r.Ticket = tickets[slot]
			d, err := s.Acquire(ctx, r)
			if err != nil {
				t.Fatal(err)
			}
			if d.Outcome == store.Waiting {
				if was := tickets[slot]; was != 0 && was != d.Ticket {
					t.Fatalf("%s had the ticket %d and has %d", slot, was, d.Ticket)
				}
				tickets[slot] = d.Ticket
			} else if d.Ticket != 0 {
				t.Fatalf("a ticket, and no wait: %+v", d)
			}
			if granted := d.Outcome == store.Granted; (d.Fence != 0) != (granted && !r.Plain) && !(granted && registered[slot]) {
				t.Fatalf("%+v to %+v", d, r)
			}
			want = m.acquire(r, now, d.Ticket)
			d.Ticket, d.Fence = 0, 0
			got, what = d, fmt.Sprintf("acquire %+v", *r)
		case 4, 5:
			what = "release " + slot
			freed, err := s.Release(ctx, &store.Release{ID: "id", SlotID: slot})
			if err != nil {
				t.Fatal(err)
			}
			got, want = freed, m.release(slot, now)
		case 6:
			r := store.Renewal{ID: "id", SlotID: slot, Weight: 1 + choose(3), TTL: time.Duration(1+choose(40)) * 250 * time.Millisecond, Register: choose(4) == 0}
			a := s.Renew(ctx, []store.Renewal{r})[0]
			if a.Err != nil {
				t.Fatal(a.Err)
			}
			registered[slot] = registered[slot] || a.Outcome == store.Restored
			got, want, what = a.Outcome, m.renew(r, now), fmt.Sprintf("renew %+v", r)
		case 7:
			if choose(3) == 0 {
				slot = ""
			}
			n, err := s.Clear(ctx, store.Clear{ID: "id", SlotID: slot})
			if err != nil {
				t.Fatal(err)
			}
			got, want, what = n, m.clear(slot, now), "clear "+slot
		case 8:
			var err error
			if n := choose(8); n < 6 {
				what, m.limit, m.set = fmt.Sprint("set limit ", n), n, true
				_, err = s.ChangeLimit(ctx, store.LimitChange{ID: "id", Limit: n})
			} else {
				what, m.set = "reset limit", false
				_, err = s.ChangeLimit(ctx, store.LimitChange{ID: "id", Reset: true})
			}
			if err != nil {
				t.Fatal(err)
			}
			m.settle(now)
		default:
			n := choose(16)
			what = fmt.Sprint("wait ", n)
			for range n { // in steps of what all times are multiples of: a sweep hands on too
				time.Sleep(125 * time.Millisecond)
				if _, err := s.Usage(ctx, "id", 3); err != nil {
					t.Fatal(err)
				}
				m.settle(time.Since(s.start))
			}
		}
		did = append(did, what)
		if got != want {
			t.Fatalf("%d: %s:\n got %+v\nwant %+v\n%q", len(did), what, got, want, did)
		}
		now = time.Since(s.start)
		u, err := s.Usage(ctx, "id", 3)
		if err != nil {
			t.Fatal(err)
		}
		m.settle(now)
		if u.HeadAge < 0 || u.HeadAge > 0 && len(m.line) == 0 {
			t.Fatalf("%d: after %s: the first of %d in line has waited %v", len(did), what, len(m.line), u.HeadAge)
		}
		u.HeadAge = 0
		if want := (store.Usage{Active: m.active(), Limit: m.limitFor(3), LimitSet: m.set, Waiting: len(m.line), NextIn: m.nextIn(now)}); u != want {
			t.Fatalf("%d: after %s:\n got %+v\nwant %+v\n%q", len(did), what, u, want, did)
		}
		hs, _, err := s.Holders(ctx, "id", "", store.MaxPage)
		if err != nil || len(hs) != len(m.held) {
			t.Fatalf("%d: after %s: holders %+v, %v; want %+v\n%q", len(did), what, hs, err, m.held, did)
		}
		slices.SortFunc(hs, func(a, b store.Holder) int { return cmp.Or(cmp.Compare(b.Age, a.Age), cmp.Compare(a.Fence, b.Fence)) })
		for _, h := range hs { // in the order of their grants
			if h.Fence == 0 || fences[h.Fence] == h.SlotID {
				continue
			}
			if h.Fence <= last {
				t.Fatalf("%d: after %s: fence %d after %d: %+v", len(did), what, h.Fence, last, hs)
			}
			fences[h.Fence], last = h.SlotID, h.Fence
		}
		woken := e.heard()
		slices.Sort(m.woken)
		if !slices.Equal(woken, m.woken) {
			t.Fatalf("%d: %s woke %q, want %q\n%q", len(did), what, woken, m.woken, did)
		}
		m.woken = nil
	}
	time.Sleep(time.Minute)
	if ids, armed := kept(s); armed != 0 || ids > 1 || ids == 1 && !m.set {
		t.Fatalf("a minute later %d ids are kept, %d shards are to be swept", ids, armed)
	}
}

func TestAgainstTheModel(t *testing.T) {
	random := rand.NewChaCha8([32]byte{7})
	for range 500 {
		script := make([]byte, 600)
		_, _ = random.Read(script)
		synctest.Test(t, func(t *testing.T) { against(t, script) })
	}
}

func FuzzAgainstTheModel(f *testing.F) {
	f.Add([]byte("a holder, a waiter, a wait, a claim"))
	f.Add([]byte{0, 0, 0, 0, 0, 2, 3, 4, 1, 0, 0, 0, 2, 3, 4, 1, 0, 4, 0, 9, 15})
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) > 2000 {
			return
		}
		synctest.Test(t, func(t *testing.T) { against(t, script) })
	})
}
