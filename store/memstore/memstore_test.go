package memstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
	"github.com/ashfaqjani916/gotsem/store/storetest"
)

func TestStore(t *testing.T) {
	storetest.Run(t, storetest.Harness{
		New:      func(*testing.T) store.Store { return New() },
		Within:   synctest.Test,
		Snapshot: snapshot,
	})
}

// The suite in real time: two goroutines that meet in a bubble seldom meet as
// those of a server do.
func TestStoreInRealTime(t *testing.T) {
	storetest.Run(t, storetest.Harness{
		New:      func(*testing.T) store.Store { return New() },
		Snapshot: snapshot,
		Parallel: true,
	})
}

// snapshot tells all that st keeps of each id, as it lies there: nothing is
// settled first.
func snapshot(_ *testing.T, st store.Store) map[string]string {
	out := make(map[string]string)
	each(st.(*Store), func(sh *shard) {
		for id, e := range sh.ids {
			text := fmt.Sprint(e.active, e.set, len(e.held), len(e.line))
			all := slices.Concat(e.held, e.line)
			slices.SortFunc(all, func(a, b *slot) int { return strings.Compare(a.id, b.id) })
			for _, sl := range all {
				text += fmt.Sprintf(" %+v", *sl)
			}
			out[id] = text
		}
	})
	return out
}

func each(s *Store, do func(sh *shard)) {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		do(sh)
		sh.mu.Unlock()
	}
}

func kept(s *Store) (ids, armed int) {
	each(s, func(sh *shard) {
		ids += len(sh.ids)
		if sh.sweep != never {
			armed++
		}
	})
	return ids, armed
}

// ask acquires one slot of one, for ten seconds.
func ask(t testing.TB, s *Store, id, slotID string, changes ...func(*store.Request)) store.Decision {
	t.Helper()
	r := &store.Request{ID: id, SlotID: slotID, Weight: 1, Limit: 1, TTL: 10 * time.Second}
	for _, do := range changes {
		do(r)
	}
	d, err := s.Acquire(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func wait(r *store.Request) { r.Queue = 100 }

func ttl(d time.Duration) func(*store.Request) { return func(r *store.Request) { r.TTL = d } }

func release(t testing.TB, s *Store, id, slotID string) bool {
	t.Helper()
	freed, err := s.Release(context.Background(), &store.Release{ID: id, SlotID: slotID})
	if err != nil {
		t.Fatal(err)
	}
	return freed
}

// ear hears wake-ups.
type ear struct {
	mu    sync.Mutex
	woken []string
}

func listen(t testing.TB, s *Store) *ear {
	e := new(ear)
	t.Cleanup(s.OnWake(func(w store.Wakeup) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.woken = append(e.woken, w.SlotID)
	}))
	return e
}

// heard returns, in a bubble, who was woken since it was last called, sorted.
func (e *ear) heard() []string {
	synctest.Wait() // a sweep may be under way
	e.mu.Lock()
	defer e.mu.Unlock()
	woken := e.woken
	e.woken = nil
	slices.Sort(woken)
	return woken
}

// To the nanosecond, which the suite cannot ask of every store.
func TestTimesAreExact(t *testing.T) {
	stands := func(t *testing.T, s *Store, active, waiting int) {
		t.Helper()
		u, err := s.Usage(context.Background(), "id", 1)
		if err != nil || u.Active != active || u.Waiting != waiting {
			t.Fatalf("%+v, %v; want %d held, %d waiting", u, err, active, waiting)
		}
	}
	t.Run("a slot", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := New()
			ask(t, s, "id", "a")
			time.Sleep(10*time.Second - 1)
			stands(t, s, 1, 0)
			if d := ask(t, s, "id", "b"); d.Outcome != store.Full || d.RetryIn != 1 {
				t.Fatalf("a nanosecond before: %+v", d)
			}
			time.Sleep(time.Nanosecond)
			stands(t, s, 0, 0)
			if d := ask(t, s, "id", "b"); d.Outcome != store.Granted {
				t.Fatalf("%+v", d)
			}
		})
	})
	t.Run("a renewal", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := New()
			ask(t, s, "id", "a")
			time.Sleep(10*time.Second - 1)
			renew := store.Renewal{ID: "id", SlotID: "a", TTL: time.Second, Weight: 1}
			if got := s.Renew(context.Background(), []store.Renewal{renew})[0]; got.Outcome != store.Renewed {
				t.Fatalf("%+v", got)
			}
			time.Sleep(time.Second - 1)
			stands(t, s, 1, 0)
			time.Sleep(time.Nanosecond)
			if got := s.Renew(context.Background(), []store.Renewal{renew})[0]; got.Outcome != store.Lost {
				t.Fatalf("%+v", got)
			}
		})
	})
	t.Run("a place in line", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := New()
			ask(t, s, "id", "a")
			ask(t, s, "id", "b", wait)
			time.Sleep(store.Life - 1)
			stands(t, s, 1, 1)
			ask(t, s, "id", "b", wait)
			time.Sleep(store.Life - 1)
			stands(t, s, 1, 1)
			time.Sleep(time.Nanosecond)
			stands(t, s, 1, 0)
		})
	})
	t.Run("a claim", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := New()
			ask(t, s, "id", "a")
			ask(t, s, "id", "b", wait)
			release(t, s, "id", "a")
			time.Sleep(store.Claim - 1)
			stands(t, s, 1, 0)
			if d := ask(t, s, "id", "b", wait); d.Outcome != store.Granted {
				t.Fatalf("%+v", d)
			}
			time.Sleep(10*time.Second - 1)
			stands(t, s, 1, 0)
			time.Sleep(time.Nanosecond)
			stands(t, s, 0, 0)
		})
	})
	t.Run("a claim of one that has not asked for long", func(t *testing.T) {
		for _, asked := range []struct{ before, left time.Duration }{
			{time.Second - 1, store.Claim}, {1500 * time.Millisecond, 1500 * time.Millisecond}, {store.Life - 1, claimLeast},
		} {
			synctest.Test(t, func(t *testing.T) {
				s := New()
				ask(t, s, "id", "a")
				ask(t, s, "id", "b", wait)
				time.Sleep(asked.before)
				release(t, s, "id", "a")
				time.Sleep(asked.left - 1)
				stands(t, s, 1, 0)
				time.Sleep(time.Nanosecond)
				stands(t, s, 0, 0)
			})
		}
	})
}

func TestTheDeadInTheMiddleTakeNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New()
		three := func(r *store.Request) { r.Queue = 3 }
		ask(t, s, "id", "a")
		for _, slot := range []string{"head", "dead", "last"} {
			ask(t, s, "id", slot, three)
		}
		time.Sleep(store.Life / 2)
		ask(t, s, "id", "head", three)
		ask(t, s, "id", "last", three)
		if d := ask(t, s, "id", "new", three); d.Outcome != store.LineFull {
			t.Fatalf("all are alive: %+v", d)
		}
		time.Sleep(store.Life / 2)
		if d := ask(t, s, "id", "last", three); d.Place != 2 {
			t.Fatalf("one of two before it is dead: %+v", d)
		}
		if d := ask(t, s, "id", "new", three); d.Outcome != store.Waiting || d.Place != 3 {
			t.Fatalf("one of three is dead: %+v", d)
		}
	})
}

func TestHoldersTellTheirAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New()
		two := func(r *store.Request) { r.Limit = 2 }
		ask(t, s, "id", "a", two)
		time.Sleep(time.Second)
		ask(t, s, "id", "b", two, func(r *store.Request) { r.Plain = true })
		time.Sleep(time.Second)
		hs, _, err := s.Holders(context.Background(), "id", "", 10)
		if err != nil || len(hs) != 2 {
			t.Fatal(hs, err)
		}
		if hs[0].SlotID != "a" || hs[0].Age != 2*time.Second || hs[0].Left != 8*time.Second {
			t.Errorf("%+v", hs[0])
		}
		if hs[1].SlotID != "b" || hs[1].Age != time.Second || hs[1].Left != 9*time.Second {
			t.Errorf("%+v", hs[1])
		}
	})
}

// A million ids, each held once for two seconds.
func TestAMillionIDsLeaveNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New()
		most := 0
		for i := range 1_000_000 {
			ask(t, s, fmt.Sprint("id", i), "a", ttl(2*time.Second))
			if i%1000 == 0 {
				time.Sleep(100 * time.Millisecond)
				ids, _ := kept(s)
				most = max(most, ids)
			}
		}
		// A thousand per 100 ms live for 2 s, and a second more until the sweep.
		if most > 32_000 {
			t.Errorf("%d ids were kept at once", most)
		}
		time.Sleep(2*time.Second + sweepEvery)
		if ids, armed := kept(s); ids != 0 || armed != 0 {
			t.Errorf("%d ids are kept, %d shards are to be swept", ids, armed)
		}
		each(s, func(sh *shard) {
			if sh.peak > 1024 {
				t.Errorf("a shard keeps room for %d ids", sh.peak)
			}
			if len(sh.spareEntries) > spares || len(sh.spareSlots) > spares || len(sh.woken) != 0 {
				t.Errorf("a shard keeps %d entries, %d slots, %d wake-ups", len(sh.spareEntries), len(sh.spareSlots), len(sh.woken))
			}
		})
	})
}

func TestMemoryGoesBack(t *testing.T) {
	const n = 100_000
	s := New()
	measure := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := measure()
	for i := range n {
		ask(t, s, fmt.Sprint("id", i), "a")
	}
	full := measure()
	for i := range n {
		if i%500 > 0 { // some ids stay: the others' room goes back all the same
			release(t, s, fmt.Sprint("id", i), "a")
		}
	}
	after := measure()
	// What is kept for reuse is bounded, whatever was held once.
	if full < before+n*100 || after > before+(3<<20) {
		t.Errorf("%d bytes for %d ids, and still %d when all but %d are idle", full-before, n, int64(after-before), n/500)
	}
	runtime.KeepAlive(s)
}

// What lapses soon goes soon, though the shard was to be swept much later.
func TestAShortSlotBesideALongOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New()
		for i := range 1000 { // on all shards
			ask(t, s, fmt.Sprint("long", i), "a", ttl(time.Hour))
		}
		for i := range 1000 {
			ask(t, s, fmt.Sprint("short", i), "a", ttl(100*time.Millisecond))
		}
		time.Sleep(100*time.Millisecond + 2*sweepEvery)
		if ids, _ := kept(s); ids != 1000 {
			t.Errorf("%d ids are kept, of which 1000 are held", ids)
		}
		time.Sleep(time.Hour)
		if ids, armed := kept(s); ids != 0 || armed != 0 {
			t.Errorf("%d ids are kept, %d shards are to be swept", ids, armed)
		}
	})
}

func TestASetLimitIsNotSweptFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, ctx := New(), context.Background()
		for i := range 200 {
			if _, err := s.ChangeLimit(ctx, store.LimitChange{ID: fmt.Sprint("id", i), Limit: 3}); err != nil {
				t.Fatal(err)
			}
		}
		ask(t, s, "id7", "a")
		time.Sleep(time.Minute)
		if ids, armed := kept(s); ids != 200 || armed != 0 {
			t.Errorf("%d limits are kept, %d shards are to be swept", ids, armed)
		}
		for i := range 200 {
			if _, err := s.ChangeLimit(ctx, store.LimitChange{ID: fmt.Sprint("id", i), Reset: true}); err != nil {
				t.Fatal(err)
			}
		}
		if ids, armed := kept(s); ids != 0 || armed != 0 {
			t.Errorf("%d ids are kept, %d shards are to be swept", ids, armed)
		}
	})
}

func TestQuestionsLeaveNothing(t *testing.T) {
	s, ctx := New(), context.Background()
	full := func(r *store.Request) { r.Limit = 0 }
	heavy := func(r *store.Request) { r.Weight = 2 }
	ask(t, s, "a", "x", full)
	ask(t, s, "b", "x", heavy)
	release(t, s, "c", "x")
	_, errUsage := s.Usage(ctx, "d", 1)
	_, errClear := s.Clear(ctx, store.Clear{ID: "e"})
	_, _, errHolders := s.Holders(ctx, "f", "", 1)
	_, errWaiters := s.Waiters(ctx, "f", 1)
	_, errReset := s.ChangeLimit(ctx, store.LimitChange{ID: "g", Reset: true})
	renewed := s.Renew(ctx, []store.Renewal{{ID: "h", SlotID: "x", TTL: time.Second, Weight: 1}})[0]
	if err := errors.Join(errUsage, errClear, errHolders, errWaiters, errReset, renewed.Err); err != nil {
		t.Fatal(err)
	}
	if ids, armed := kept(s); ids != 0 || armed != 0 {
		t.Errorf("%d ids are kept, %d shards are to be swept", ids, armed)
	}
}

// A bubble does not end before its goroutines do: this store has none, whatever
// is held, and what fires by itself wakes whom it lets in.
func TestNoGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New()
		e := listen(t, s)
		before := runtime.NumGoroutine()
		ask(t, s, "id", "a", ttl(5*time.Second))
		ask(t, s, "id", "b", wait)
		if n := runtime.NumGoroutine(); n != before {
			t.Errorf("%d goroutines, %d before", n, before)
		}
		for i := range 5 {
			time.Sleep(time.Second)
			if i < 4 {
				ask(t, s, "id", "b", wait)
			}
		}
		if woken := e.heard(); !slices.Equal(woken, []string{"b"}) {
			t.Errorf("woken: %q", woken)
		}
	})
}

func TestATTLOfNothingIsAnError(t *testing.T) {
	s := New()
	for _, d := range []time.Duration{0, -1} {
		if got, err := s.Acquire(context.Background(), &store.Request{ID: "id", SlotID: "a", Weight: 1, Limit: 1, TTL: d}); err == nil {
			t.Errorf("ttl %v: %+v", d, got)
		}
	}
}

// Whoever is woken may ask at once, from where it is woken.
func TestAskingWhileBeingWoken(t *testing.T) {
	s := New()
	var got store.Decision
	defer s.OnWake(func(w store.Wakeup) { got = ask(t, s, "id", w.SlotID, wait) })()
	ask(t, s, "id", "a")
	ask(t, s, "id", "b", wait)
	release(t, s, "id", "a")
	if got.Outcome != store.Granted {
		t.Errorf("%+v", got)
	}
}

func TestEarsComeAndGo(t *testing.T) {
	s := New()
	var heard atomic.Int64
	var all sync.WaitGroup
	defer s.OnWake(func(store.Wakeup) { heard.Add(1) })()
	const rounds = 300
	for worker := range 4 {
		all.Go(func() {
			for range rounds {
				s.OnWake(func(store.Wakeup) {})()
			}
		})
		all.Go(func() {
			id := fmt.Sprint("id", worker)
			ask(t, s, id, "0")
			for i := range rounds {
				ask(t, s, id, fmt.Sprint(i+1), wait)
				release(t, s, id, fmt.Sprint(i))
			}
		})
	}
	all.Wait()
	if n := heard.Load(); n != 4*rounds {
		t.Errorf("%d wake-ups heard, want %d", n, 4*rounds)
	}
	if ws := s.wakers.Load(); len(*ws) != 1 {
		t.Errorf("%d ears are left, one has not gone", len(*ws))
	}
}

func TestIDsWhileTheyChange(t *testing.T) {
	s, ctx := New(), context.Background()
	for i := range 500 {
		ask(t, s, fmt.Sprint("stays", i), "a")
	}
	stop := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				ask(t, s, fmt.Sprint("goes", i), "a")
				release(t, s, fmt.Sprint("goes", i), "a")
			}
		}
	})
	for range 20 {
		seen := 0
		for st, err := range s.Walk(ctx, 1, 0) {
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.Usage(ctx, st.ID, 1); err != nil { // no lock is held here
				t.Fatal(err)
			}
			if st.ID[0] == 's' {
				seen++
			}
		}
		if seen != 500 {
			t.Errorf("%d ids of 500", seen)
		}
	}
	close(stop)
	all.Wait()
}

// The first of held is always the first to lapse, and all know where they are.
func TestTheHeapKeepsItsOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		e, sh := &entry{slots: make(map[string]*slot)}, new(shard)
		for i := range 1 + random.IntN(60) {
			switch at := random.IntN(max(len(e.held), 1)); random.IntN(4) {
			case 0, 1:
				sl := e.add(sh, &store.Request{SlotID: fmt.Sprint(i), Weight: 1})
				e.hold(sh, sl, 0, time.Duration(random.IntN(100)))
			case 2:
				if at < len(e.held) {
					e.drop(sh, e.held[at])
				}
			case 3:
				if at < len(e.held) {
					sl := e.held[at]
					was, until := sl.until, time.Duration(random.IntN(200))
					if e.extend(sl, until); sl.until != max(was, until) {
						t.Fatalf("%d extended to %d became %d", was, until, sl.until)
					}
				}
			}
			for at, sl := range e.held {
				if sl.at != at || e.find(sl.id) != sl {
					t.Fatalf("slot %q at %d believes it is at %d", sl.id, at, sl.at)
				}
				if parent := e.held[(at-1)/2]; at > 0 && parent.until > sl.until {
					t.Fatalf("%d stands above %d", parent.until, sl.until)
				}
			}
			if e.slots != nil && len(e.slots) != len(e.held) || e.active != len(e.held) {
				t.Fatalf("%d slots, %d in the heap, weight %d", len(e.slots), len(e.held), e.active)
			}
		}
	}
}

// The line grows at its end and shrinks at its head, for as long as it likes.
func TestALongLineKeepsItsOrder(t *testing.T) {
	s := New()
	many := func(r *store.Request) { r.Queue = 10_000 }
	ask(t, s, "id", "0")
	next, holder := 1, 0
	join := func() { ask(t, s, "id", fmt.Sprint(next), many); next++ }
	for range 3 * spares {
		join()
	}
	for range 2000 {
		join()
		release(t, s, "id", fmt.Sprint(holder))
		holder++
		if d := ask(t, s, "id", fmt.Sprint(holder), many); d.Outcome != store.Granted || d.Waiting != 3*spares {
			t.Fatalf("%d: %+v", holder, d)
		}
	}
	each(s, func(sh *shard) {
		for _, e := range sh.ids {
			if cap(e.line) > 20*spares {
				t.Errorf("a line of %d has room for %d", len(e.line), cap(e.line))
			}
		}
	})
}
