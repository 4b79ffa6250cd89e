package gotsem

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// byID is a LimitFunc of fixed limits, by the id's part before a colon.
func byID(limits map[string]int) func(context.Context, string) (int, error) {
	return func(_ context.Context, id string) (int, error) {
		kind, _, _ := strings.Cut(id, ":")
		return limits[kind], nil
	}
}

// bothWays runs a test with a store that takes several ids in one step, and with one that
// takes them one by one.
func bothWays(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	for _, hidden := range []bool{false, true} {
		jointHidden = hidden
		synctest.Test(t, f)
	}
	jointHidden = false
}

var jointHidden bool

// three are the levels of most tests: a key, its tenant, and all.
func three(t testing.TB, change func(*Options)) *Semaphore {
	o := Options{LimitFunc: byID(map[string]int{"key": 2, "tenant": 3, "all": 4}), Queue: 10}
	if change != nil {
		change(&o)
	}
	return open(t, o)
}

var alsoTenantAndAll = []Option{Also("tenant:7"), Also("all", Weight(2))}

func TestSeveralIDsAreOneLease(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		s := three(t, nil)
		l := mustTry(t, s, "key:42", alsoTenantAndAll...)
		if got := l.IDs(); !slices.Equal(got, []string{"key:42", "tenant:7", "all"}) {
			t.Errorf("ids %q", got)
		}
		if l.FenceOf("key:42") != l.Fence() || l.FenceOf("tenant:7") == 0 || l.FenceOf("all") == 0 || l.FenceOf("other") != 0 {
			t.Errorf("fences %d %d %d", l.FenceOf("key:42"), l.FenceOf("tenant:7"), l.FenceOf("all"))
		}
		stands(t, s, "key:42", 1, 0)
		stands(t, s, "tenant:7", 1, 0)
		stands(t, s, "all", 2, 0)
		for _, id := range l.IDs() { // one slot id at all of them
			if hs, err := s.Holders(t.Context(), id); err != nil || len(hs) != 1 || hs[0].SlotID != l.SlotID() {
				t.Errorf("%s: %+v, %v", id, hs, err)
			}
		}
		if st := s.Stats(); st.Held != 1 || st.Granted != 1 {
			t.Errorf("%+v", st)
		}
		time.Sleep(10 * DefaultTTL)
		lives(t, l)
		mustRelease(t, l)
		mustRelease(t, l)
		for _, id := range l.IDs() {
			stands(t, s, id, 0, 0)
		}
		if st := s.Stats(); st.Held != 0 || st.Released != 1 {
			t.Errorf("%+v", st)
		}
	})
}

func TestOneRenewalIsForAllIDs(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		st := newShaky()
		s := three(t, func(o *Options) { o.Store = st })
		mustTry(t, s, "key:42", alsoTenantAndAll...)
		time.Sleep(20 * DefaultTTL)
		synctest.Wait()
		if calls, renewed := st.asked("renew"), s.Stats().Renewals; renewed < 3*55 || uint64(calls)*3 > renewed+9 {
			t.Errorf("%d calls for %d renewals: the three ids are renewed apart", calls, renewed)
		}
	})
}

func TestARefusedTryLeavesNothing(t *testing.T) {
	for level, id := range []string{"key:42", "tenant:7", "all"} {
		bothWays(t, func(t *testing.T) {
			s := three(t, nil)
			limit := map[string]int{"key:42": 2, "tenant:7": 3, "all": 4}[id]
			held := mustTry(t, s, id, Weight(limit))
			_, err := s.Try(t.Context(), "key:42", alsoTenantAndAll...)
			var full *FullError
			if !errors.As(err, &full) || full.ID != id || full.Level != level || full.Active != limit || full.Limit != limit {
				t.Fatalf("%#v", err)
			}
			for _, other := range []string{"key:42", "tenant:7", "all"} {
				if other != id {
					stands(t, s, other, 0, 0)
				}
			}
			mustRelease(t, held)
			mustRelease(t, mustTry(t, s, "key:42", alsoTenantAndAll...))
		})
	}
}

// Whoever waits stands in one line, and holds the narrower levels only; all are handed on
// together.
func TestWhoWaitsHoldsNarrowerLevelsOnly(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		s := three(t, nil)
		tenant := mustTry(t, s, "tenant:7", Weight(3))
		all := mustTry(t, s, "all", Weight(4))
		w := queue(s, "key:42", alsoTenantAndAll...)
		stands(t, s, "key:42", 1, 0)
		stands(t, s, "tenant:7", 3, 1)
		stands(t, s, "all", 4, 0)
		mustRelease(t, tenant)
		synctest.Wait()
		stands(t, s, "tenant:7", 1, 0)
		stands(t, s, "all", 4, 1)
		time.Sleep(5 * DefaultTTL) // what is passed is kept
		mustRelease(t, all)
		l := w.holds(t)
		stands(t, s, "all", 2, 0)
		mustRelease(t, l)
		for _, id := range l.IDs() {
			stands(t, s, id, 0, 0)
		}
	})
}

func TestGivingUpAtAnyLevelLeavesNothing(t *testing.T) {
	for _, blocked := range []string{"key:42", "tenant:7", "all"} {
		for _, how := range []string{"ctx", "MaxWait", "Close"} {
			bothWays(t, func(t *testing.T) {
				s := three(t, nil)
				watcher := three(t, func(o *Options) { o.Store = s.opt.Store })
				held := mustTry(t, watcher, blocked, Weight(map[string]int{"key:42": 2, "tenant:7": 3, "all": 4}[blocked]))
				opts := alsoTenantAndAll
				if how == "MaxWait" {
					opts = append(slices.Clone(opts), MaxWait(time.Second))
				}
				w := queue(s, "key:42", opts...)
				switch how {
				case "ctx":
					w.cancel()
					w.was(t, context.Canceled)
				case "Close":
					_ = s.Close()
					w.was(t, ErrClosed)
				case "MaxWait":
					time.Sleep(time.Second)
					w.was(t, ErrWaitTooLong)
					var full *FullError
					if !errors.As(w.err, &full) || full.ID != blocked {
						t.Errorf("%v", w.err)
					}
				}
				time.Sleep(2 * time.Second) // what is left to the background
				mustRelease(t, held)
				for _, id := range []string{"key:42", "tenant:7", "all"} {
					stands(t, watcher, id, 0, 0)
				}
			})
		}
	}
}

// MaxWait is of the whole call: what one level used up the next does not have.
func TestMaxWaitIsOfAllLevels(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		s := three(t, nil)
		key := mustTry(t, s, "key:42", Weight(2))
		mustTry(t, s, "all", Weight(4))
		w := queue(s, "key:42", Also("all"), MaxWait(3*time.Second))
		time.Sleep(2 * time.Second)
		mustRelease(t, key)
		synctest.Wait()
		stands(t, s, "all", 4, 1)
		time.Sleep(999 * time.Millisecond)
		if w.answered() {
			t.Error("too soon")
		}
		time.Sleep(time.Millisecond)
		w.was(t, ErrWaitTooLong)
		time.Sleep(time.Second)
		stands(t, s, "key:42", 0, 0)
		stands(t, s, "all", 4, 0)
	})
}

// First come, first served at each level, in the order of arrival there.
func TestEachLevelIsServedInOrder(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		s := three(t, nil)
		all := mustTry(t, s, "all", Weight(4))
		var waiters []*queued
		for i := range 3 {
			waiters = append(waiters, queue(s, fmt.Sprint("key:", i), Also("all", Weight(4))))
		}
		if _, err := s.Try(t.Context(), "key:9", Also("all")); !errors.Is(err, ErrFull) {
			t.Errorf("who does not wait went past the line: %v", err)
		}
		mustRelease(t, all)
		for _, w := range waiters {
			mustRelease(t, w.holds(t))
		}
	})
}

func TestALeaseIsLostAtAllItsIDs(t *testing.T) {
	for _, id := range []string{"key:42", "tenant:7", "all"} {
		bothWays(t, func(t *testing.T) {
			s := three(t, nil)
			l := mustTry(t, s, "key:42", alsoTenantAndAll...)
			if ok, err := s.Revoke(t.Context(), id, l.SlotID()); !ok || err != nil {
				t.Fatal(ok, err)
			}
			ends(t, l, ErrLeaseLost)
			if cause := context.Cause(l.Context()); !contains(cause.Error(), id) || !contains(cause.Error(), "revoked") {
				t.Errorf("%v, want which id, and why", cause)
			}
			synctest.Wait()
			for _, id := range l.IDs() {
				stands(t, s, id, 0, 0)
			}
			if st := s.Stats(); st.Lost != 1 || st.Revoked != 1 || st.Held != 0 {
				t.Errorf("%+v", st)
			}
		})
	}
}

// A level that is lost while a further one is waited for is asked for again; those
// beyond it are given back first.
func TestALevelLostInPassingIsTakenAgain(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		s := three(t, nil)
		all := mustTry(t, s, "all", Weight(4))
		w := queue(s, "key:42", alsoTenantAndAll...)
		keyHolders, err := s.Holders(t.Context(), "key:42")
		if err != nil || len(keyHolders) != 1 {
			t.Fatal(keyHolders, err)
		}
		key := mustTry(t, s, "key:42")
		if ok, err := s.Revoke(t.Context(), "key:42", keyHolders[0].SlotID); !ok || err != nil {
			t.Fatal(ok, err)
		}
		other := mustTry(t, s, "key:42") // before it comes back
		synctest.Wait()
		stands(t, s, "key:42", 2, 1)
		stands(t, s, "tenant:7", 0, 0)
		stands(t, s, "all", 4, 0)
		mustRelease(t, other)
		synctest.Wait()
		stands(t, s, "key:42", 2, 0)
		stands(t, s, "all", 4, 1)
		mustRelease(t, all)
		mustRelease(t, w.holds(t))
		mustRelease(t, key)
		if st := s.Stats(); st.Retaken != 1 || st.Lost != 0 || st.Held != 0 {
			t.Errorf("%+v", st)
		}
		time.Sleep(2 * time.Second)
		for _, id := range []string{"key:42", "tenant:7", "all"} {
			stands(t, s, id, 0, 0)
		}
	})
}

func TestTwoOrdersOfTheSameIDsAreRefused(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		s := three(t, nil)
		mustRelease(t, mustTry(t, s, "key:1", Also("tenant:7"), Also("all")))
		_, err := s.Try(t.Context(), "all", Also("key:1"))
		if !errors.Is(err, ErrOrder) || !contains(err.Error(), `"all"`) || !contains(err.Error(), `"key:1"`) {
			t.Errorf("%v", err)
		}
		stands(t, s, "all", 0, 0)
		for i := range 2 * ordersKept { // what is remembered is bounded
			mustRelease(t, mustTry(t, s, fmt.Sprint("key:", i), Also("all")))
		}
		if n := len(s.order.pairs); n != ordersKept || len(s.order.ring) != n {
			t.Errorf("%d pairs are remembered", n)
		}
	})
}

func TestCallsForSeveralIDsAreChecked(t *testing.T) {
	s := three(t, nil)
	nine := make([]Option, 8)
	for i := range nine {
		nine[i] = Also(fmt.Sprint("tenant:", i))
	}
	for what, opts := range map[string][]Option{
		"twice":       {Also("key:1")},
		"at most 8":   nine,
		"no option":   {Also("all", MaxWait(time.Second))},
		"id is empty": {Also("")},
		"weight 0":    {Also("all", Weight(0))},
	} {
		if _, err := s.Try(t.Context(), "key:1", opts...); err == nil || !contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := s.Try(t.Context(), "key:1", Also("all", Weight(5))); !errors.Is(err, ErrTooHeavy) {
		t.Error(err)
	}
	stands(t, s, "key:1", 0, 0)
}

// The line of a further id is as long as those who come there may be; QueueFunc says
// otherwise.
func TestTheLineOfAFurtherIDIsLong(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		s := open(t, Options{LimitFunc: byID(map[string]int{"key": 1, "all": 1, "few": 1}), Queue: 2,
			QueueFunc: func(_ context.Context, id string) (int, error) {
				if id == "few" {
					return 1, nil
				}
				return 0, nil
			}})
		held := mustTry(t, s, "all")
		var waiters []*queued
		for i := range 20 {
			waiters = append(waiters, queue(s, fmt.Sprint("key:", i), Also("all")))
		}
		stands(t, s, "all", 1, 20)
		few := mustTry(t, s, "few")
		gaveUp := queue(s, "key:a", Also("few"))
		gaveUp.cancel()
		gaveUp.was(t, context.Canceled)
		first := queue(s, "key:b", Also("few"))
		queue(s, "key:c", Also("few")).was(t, ErrQueueFull)
		mustRelease(t, few)
		mustRelease(t, first.holds(t))
		mustRelease(t, held)
		for _, w := range waiters {
			mustRelease(t, w.holds(t))
		}
	})
}

// A limit that is set while others wait, to nothing and back, orphans nobody.
func TestALimitTakenOffAndSetAgainServesThoseWhoWait(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		s := open(t, Options{LimitFunc: byID(map[string]int{"key": 50, "all": 5}), Queue: 100})
		if err := s.SetLimit(t.Context(), "all", 0); err != nil {
			t.Fatal(err)
		}
		var waiters []*queued
		for i := range 50 {
			waiters = append(waiters, queue(s, fmt.Sprint("key:", i%3), Also("all")))
		}
		stands(t, s, "all", 0, 50)
		for _, n := range []int{3, 0, 2} {
			if err := s.SetLimit(t.Context(), "all", n); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.ResetLimit(t.Context(), "all"); err != nil {
			t.Fatal(err)
		}
		for _, w := range waiters {
			time.Sleep(time.Second) // a limit of the waiters' own is found by their poll
			mustRelease(t, w.holds(t))
		}
		for _, id := range []string{"key:0", "key:1", "key:2", "all"} {
			stands(t, s, id, 0, 0)
		}
	})
}

// A wide level that is paused while narrower ones are held gives them back with MaxWait,
// and says which it is.
func TestAPausedLevelSaysSo(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		s := three(t, nil)
		if err := s.SetLimit(t.Context(), "tenant:7", 0); err != nil {
			t.Fatal(err)
		}
		_, err := s.Acquire(t.Context(), "key:42", Also("tenant:7"), MaxWait(3*time.Second))
		var full *FullError
		if !errors.As(err, &full) || full.ID != "tenant:7" || full.Level != 1 || full.Limit != 0 {
			t.Fatalf("%#v", err)
		}
		time.Sleep(time.Second)
		stands(t, s, "key:42", 0, 0)
	})
}

// Those who want one id that has room do not wait behind one who waits for another as well.
func TestWhoWantsAFreeIDDoesNotWaitForWhoWantsTwo(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		s := open(t, Options{Limit: 2, Queue: 10})
		held := mustTry(t, s, "b", Weight(2))
		both := queue(s, "a", Also("b"))
		mustRelease(t, mustTry(t, s, "a"))
		mustRelease(t, held)
		mustRelease(t, both.holds(t))
	})
}

// With one order for all there is no deadlock: five philosophers, each with two forks.
func TestPhilosophersEat(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		s := open(t, Options{Limit: 1, Queue: 10, TTL: 5 * time.Second})
		var meals [5]int
		var all sync.WaitGroup
		for i := range 5 {
			all.Go(func() {
				first, second := min(i, (i+1)%5), max(i, (i+1)%5)
				for end := time.Now().Add(time.Minute); time.Now().Before(end); {
					l, err := s.Acquire(t.Context(), fmt.Sprint("fork ", first), Also(fmt.Sprint("fork ", second)))
					if err != nil {
						t.Error(err)
						return
					}
					meals[i]++
					time.Sleep(10 * time.Millisecond)
					mustRelease(t, l)
				}
			})
		}
		all.Wait()
		if slices.Min(meals[:]) < 1500 {
			t.Errorf("meals %v in a minute of 10 ms each", meals)
		}
	})
}

// key 2 < tenant 5 < all 40: one tenant with 200 clients among 20 with 5 gets what each of
// the others gets, since each tenant's own limit goes before the common one.
func TestAGreedyTenantGetsAsMuchAsOthers(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		s := open(t, Options{LimitFunc: byID(map[string]int{"key": 2, "tenant": 5, "all": 40}), Queue: 300})
		const span, hold = 20 * time.Second, 100 * time.Millisecond
		ctx, cancel := context.WithTimeout(t.Context(), span)
		defer cancel()
		var all sync.WaitGroup
		var mu sync.Mutex
		grants := make(map[int]int)
		client := func(tenant, n int) {
			r := rand.New(rand.NewPCG(uint64(tenant), uint64(n)))
			for {
				l, err := s.Acquire(ctx, fmt.Sprintf("key:%d.%d", tenant, n/2), Also(fmt.Sprint("tenant:", tenant)), Also("all"))
				if err != nil {
					if ctx.Err() == nil {
						t.Error(err)
					}
					return
				}
				mu.Lock()
				grants[tenant]++
				mu.Unlock()
				time.Sleep(time.Duration(r.ExpFloat64() * float64(hold)))
				mustRelease(t, l)
			}
		}
		for n := range 200 {
			all.Go(func() { client(0, n) })
		}
		for tenant := 1; tenant <= 20; tenant++ {
			for n := range 5 {
				all.Go(func() { client(tenant, n) })
			}
		}
		all.Wait()
		total, others, least := 0, 0, 1<<30
		for tenant, n := range grants {
			if total += n; tenant != 0 {
				others += n
				least = min(least, n)
			}
		}
		mean := float64(others) / 20
		ideal := 40 * float64(span) / float64(hold)
		t.Logf("%d grants of %.0f; greedy %d, others %.0f each, the least %d", total, ideal, grants[0], mean, least)
		if float64(total) < 0.9*ideal || float64(grants[0]) < mean*2/3 || float64(grants[0]) > mean*4/3 || float64(least) < 0.6*mean {
			t.Error("not within the bounds of docs/limits.md")
		}
	})
}

func TestOutagesWithSeveralIDs(t *testing.T) {
	opts := []Option{Also("b:2"), Also("b:3")}
	for _, policy := range []Outage{Open, Closed, Local} {
		t.Run(policy.String(), func(t *testing.T) {
			bothWays(t, func(t *testing.T) {
				st := newParted("a", "b")
				s := open(t, Options{Store: st, Limit: 4, Outage: policy, TTL: 3 * time.Second})
				mustRelease(t, mustTry(t, s, "a:1", opts...))
				time.Sleep(2 * time.Second) // the processes are counted: two
				mustRelease(t, mustTry(t, s, "a:1", opts...))
				st.of("b:2").is(hangs)
				if policy == Local {
					for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
						if l, err := s.Try(t.Context(), "a:1", opts...); err == nil {
							_ = l.Release(t.Context()) // the server that is away is told later
							break
						}
					}
					first := mustTry(t, s, "a:1", opts...)
					mustTry(t, s, "b:3") // the share of 2 is used up there
					if _, err := s.Try(t.Context(), "a:1", opts...); !errors.Is(err, ErrUnavailable) {
						t.Errorf("above the share: %v", err)
					}
					// All shares or none: nothing was left of what was refused.
					_ = mustTry(t, s, "b:2").Release(t.Context())
					stands(t, s, "a:1", 1, 0)
					_ = first.Release(t.Context())
					stands(t, s, "a:1", 0, 0)
					return
				}
				l, err := s.Try(t.Context(), "a:1", opts...)
				if policy == Closed {
					if !errors.Is(err, ErrUnavailable) {
						t.Error(l, err)
					}
				} else if err != nil || !l.FailedOpen() {
					t.Error(l, err)
				} else {
					stands(t, s, "a:1", 1, 0) // of the server that answers
					mustRelease(t, l)
				}
				time.Sleep(time.Second)
				stands(t, s, "a:1", 0, 0)
				if n := s.Stats().Held; n != 0 {
					t.Errorf("%d held", n)
				}
			})
		})
	}
}

// A lease that Outage Open admitted at one of its ids, and that is lost at another, leaves
// nothing behind here either.
func TestALostLeaseThatWasAdmittedOpenlyLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newParted("a", "b")
		s := open(t, Options{Store: st, Limit: 4, Outage: Open, TTL: 3 * time.Second})
		st.of("b:2").is(refuses)
		l := mustTry(t, s, "a:1", Also("b:2"))
		if !l.FailedOpen() {
			t.Fatal("it was not admitted openly")
		}
		if ok, err := s.Revoke(t.Context(), "a:1", l.SlotID()); !ok || err != nil {
			t.Fatal(ok, err)
		}
		ends(t, l, ErrLeaseLost)
		synctest.Wait()
		if n := len(s.opens.all); n != 0 {
			t.Errorf("%d open leases are remembered", n)
		}
		for pending := range s.gate.backlog.pending {
			if pending.slotID == failedOpenID {
				t.Errorf("a slot that nobody holds is released: %+v", pending)
			}
		}
	})
}

// What is known to be full at any level costs no question at another.
func TestAKnownFullLevelIsNotAsked(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		st := newShaky()
		s := three(t, func(o *Options) { o.Store, o.KnownFull = st, time.Second })
		mustTry(t, s, "all", Weight(4))
		for range 5 {
			_, err := s.Try(t.Context(), "key:42", alsoTenantAndAll...)
			var full *FullError
			if !errors.As(err, &full) || full.ID != "all" || full.Level != 2 {
				t.Fatalf("%#v", err)
			}
		}
		if n := st.asked("acquire"); n != 1+1 && n != 1+3 { // in one step, or one by one
			t.Errorf("the store was asked %d times", n)
		}
		if n := s.Stats().KnownFull; n != 4 {
			t.Errorf("%d known", n)
		}
	})
}

// Calls go on while the semaphore closes: they end, and nothing stays held.
func TestCloseEndsCallsForSeveralIDs(t *testing.T) {
	for _, hidden := range []bool{false, true} {
		jointHidden = hidden
		st := newShaky()
		for range 20 {
			s := three(t, func(o *Options) { o.Store, o.Queue = st, 50 })
			var all sync.WaitGroup
			for i := range 12 {
				all.Go(func() {
					for {
						l, err := s.Acquire(context.Background(), fmt.Sprint("key:", i%2), Also("tenant:7"), Also("all"))
						if errors.Is(err, ErrClosed) {
							return
						} else if err != nil {
							t.Error(err)
							return
						}
						if i%3 > 0 {
							_ = l.Release(context.Background())
						}
					}
				})
			}
			time.Sleep(time.Duration(rand.N(int64(2 * time.Millisecond))))
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			all.Wait()
			for _, id := range []string{"key:0", "key:1", "tenant:7", "all"} {
				for end := time.Now().Add(5 * time.Second); st.held(t, id) > 0; time.Sleep(time.Millisecond) {
					if time.Now().After(end) {
						t.Fatalf("%s: %d are still held", id, st.held(t, id))
					}
				}
			}
		}
	}
	jointHidden = false
}

// A store that has forgotten everything learns of all ids of a lease again.
func TestSeveralIDsSurviveALossOfMemory(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		s := three(t, nil)
		l := mustTry(t, s, "key:42", alsoTenantAndAll...)
		_ = s.Close()
		ends(t, l, ErrClosed)
		if n := s.Stats().Held; n != 0 {
			t.Errorf("%d held after Close", n)
		}
	})
}
