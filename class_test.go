package gotsem

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// arrivals is a load of one class: so many calls a second, at random moments.
type arrivals struct {
	class     Class
	perSecond float64

	mu              sync.Mutex
	asked, refused  int
	granted         int
	longest, waited time.Duration
}

// overload lets all arrive at an id of 10 slots that are held for a second each, and
// returns the share of the slots that were in use.
func overload(t *testing.T, o Options, span time.Duration, opts []Option, loads ...*arrivals) (use float64) {
	o.Limit = 10
	s := open(t, o)
	var all sync.WaitGroup
	var mu sync.Mutex
	var busy time.Duration
	for i, load := range loads {
		all.Go(func() {
			r := rand.New(rand.NewPCG(7, uint64(i)))
			for end := time.Now().Add(span); ; {
				time.Sleep(time.Duration(r.ExpFloat64() / load.perSecond * float64(time.Second)))
				if time.Now().After(end) {
					return
				}
				all.Go(func() {
					began := time.Now()
					l, err := s.Acquire(context.Background(), "id", append([]Option{As(load.class)}, opts...)...)
					load.mu.Lock()
					load.asked++
					if err != nil {
						load.refused++
					} else {
						load.granted++
						load.waited += time.Since(began)
						load.longest = max(load.longest, time.Since(began))
					}
					load.mu.Unlock()
					if err != nil {
						if !errors.Is(err, ErrQueueFull) && !errors.Is(err, ErrFull) {
							t.Error(err)
						}
						return
					}
					time.Sleep(time.Second)
					mustRelease(t, l)
					mu.Lock()
					busy += time.Second
					mu.Unlock()
				})
			}
		})
	}
	all.Wait()
	for _, load := range loads {
		t.Logf("%-9v %5d asked, %4.1f %% refused, waited %v in the mean, %v at most", load.class, load.asked, load.lost()*100,
			(load.waited / time.Duration(max(load.granted, 1))).Round(10*time.Millisecond), load.longest.Round(10*time.Millisecond))
	}
	use = float64(busy) / float64(10*span)
	t.Logf("use %.2f", use)
	return use
}

// lost is the share that was refused.
func (a *arrivals) lost() float64 { return float64(a.refused) / float64(max(a.asked, 1)) }

// threeClasses are 1.3 times what there is room for.
func threeClasses() (low, normal, critical *arrivals) {
	return &arrivals{class: Sheddable, perSecond: 4}, &arrivals{class: Default, perSecond: 6}, &arrivals{class: Critical, perSecond: 3}
}

// worked are the rules of the worked example of docs/limits.md.
var worked = map[Class]ClassRule{
	Sheddable: {Line: .5}, Batch: {Line: .75, HeadStart: time.Second},
	Default: {Line: .9, HeadStart: 2 * time.Second}, Critical: {Line: 1, HeadStart: 4 * time.Second},
}

func TestCriticalWorkIsNotRefusedForTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		low, normal, critical := threeClasses()
		use := overload(t, Options{Queue: 20, Classes: worked}, 10*time.Minute, nil, low, normal, critical)
		if critical.lost() >= .01 || use < .97 || low.lost() < normal.lost() {
			t.Error("want under 1 % of the critical refused, the low first, and 0.97 of the slots in use")
		}
		if critical.longest > 4*time.Second {
			t.Error("the critical waited too long")
		}
	})
}

// Without rules sheddable and batch work does not fill the line for the rest.
func TestTheBuiltInRulesKeepTheLineOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		low := &arrivals{class: Sheddable, perSecond: 30}
		batch := &arrivals{class: Batch, perSecond: 4}
		normal := &arrivals{class: Default, perSecond: 4}
		use := overload(t, Options{Queue: 20}, 5*time.Minute, nil, low, batch, normal)
		if normal.lost() > .01 || batch.lost() > .3 || low.lost() < .5 || use < .97 {
			t.Error("a flood of sheddable work turned others away")
		}
	})
}

// A head start is no strict order: in a flood of critical work the low is still served.
func TestAFloodOfCriticalWorkLeavesSomeForTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		low := &arrivals{class: Sheddable, perSecond: 2}
		normal := &arrivals{class: Default, perSecond: 2}
		critical := &arrivals{class: Critical, perSecond: 12}
		overload(t, Options{Queue: 20, Classes: worked}, 10*time.Minute, nil, low, normal, critical)
		if low.granted == 0 || normal.granted == 0 {
			t.Error("they starve")
		}
	})
}

// Order alone refuses the critical as often as all others: the line is full of those.
func TestOrderAloneRefusesAllAlike(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		low, normal, critical := threeClasses()
		rules := map[Class]ClassRule{Default: {HeadStart: time.Second}, Critical: {HeadStart: 2 * time.Second}}
		overload(t, Options{Queue: 20, Classes: rules}, 10*time.Minute, nil, low, normal, critical)
		if d := critical.lost() - low.lost(); d < -.05 || d > .05 {
			t.Error("not alike")
		}
	})
}

// Where nobody waits, a share of the slots is what protects.
func TestSharesOfSlotsProtectWhereNobodyWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		low, normal, critical := threeClasses()
		rules := map[Class]ClassRule{Sheddable: {Slots: .8}, Batch: {Slots: .8}, Default: {Slots: .9}}
		overload(t, Options{Queue: -1, Classes: rules}, 10*time.Minute, nil, low, normal, critical)
		if critical.lost() > .15 || critical.lost() > normal.lost()/2 || normal.lost() > low.lost() {
			t.Error("want the low refused most, and the critical least")
		}
	})
}

// Nobody waits longer for those of a higher class than their head start, and within a
// class the first to come is the first served.
func TestAHeadStartIsABound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, Options{Limit: 1, Queue: 100})
		held := mustTry(t, s, "id")
		low := queue(s, "id", As(Sheddable))
		time.Sleep(1500 * time.Millisecond)
		first, second := queue(s, "id", As(Critical)), queue(s, "id", As(Critical)) // within the 2 s
		time.Sleep(time.Second)
		late := queue(s, "id", As(Critical)) // not any more
		if u, err := s.Usage(t.Context(), "id"); err != nil || u.WaitingAs(Critical) != 3 || u.WaitingAs(Sheddable) != 1 || u.WaitingAs(Default) != 0 {
			t.Errorf("%+v, %v", u, err)
		}
		mustRelease(t, held)
		for _, w := range []*queued{first, second, low, late} {
			mustRelease(t, w.holds(t))
		}
	})
}

// What TryAcquire says of the limit is what it was held to.
func TestTryAcquireTellsTheShareOfTheDefaultClass(t *testing.T) {
	for _, known := range []time.Duration{0, time.Minute} {
		s := open(t, Options{Limit: 10, KnownFull: known, Classes: map[Class]ClassRule{Sheddable: {Slots: .5}, Batch: {Slots: .5}, Default: {Slots: .9}}})
		mustTry(t, s, "id", Weight(9), As(Critical))
		for range 2 {
			if got := s.TryAcquire(t.Context(), "id"); got.Acquired || got.Max != 9 || got.Active != 9 {
				t.Errorf("%+v", got)
			}
		}
	}
}

// A class is of the whole call, at each of its ids.
func TestAClassIsOfAllIDsOfACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, Options{Limit: 4, Queue: 10, Classes: map[Class]ClassRule{Sheddable: {Slots: .5}}})
		held := mustTry(t, s, "all", Weight(2))
		_, err := s.Try(t.Context(), "key", Also("all"), As(Sheddable))
		var full *FullError
		if !errors.As(err, &full) || full.ID != "all" || full.Limit != 2 {
			t.Fatalf("%v", err)
		}
		mustRelease(t, mustTry(t, s, "key", Also("all")))
		mustRelease(t, held)
		all := mustTry(t, s, "all", Weight(4))
		normal := queue(s, "key", Also("all"))
		first := queue(s, "key", Also("all"), As(Sheddable))
		mustRelease(t, all)
		mustRelease(t, normal.holds(t))
		mustRelease(t, first.holds(t))
	})
}

// What is known to be full for a low class may have room for a higher one.
func TestAKnownRefusalIsOfItsShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, Options{Limit: 4, KnownFull: time.Minute, Classes: map[Class]ClassRule{Sheddable: {Slots: .25}, Batch: {Slots: .5}}})
		mustTry(t, s, "id")
		for range 2 {
			if _, err := s.Try(t.Context(), "id", As(Sheddable)); !errors.Is(err, ErrFull) {
				t.Error(err)
			}
		}
		if n := s.Stats().KnownFull; n != 1 {
			t.Errorf("%d known", n)
		}
		mustTry(t, s, "id", As(Batch))
		mustTry(t, s, "id")
		mustTry(t, s, "id", As(Critical))
	})
}

func TestRulesThatMakeNoSenseAreRefused(t *testing.T) {
	for want, rules := range map[string]map[Class]ClassRule{
		"class 7":             {7: {}},
		"are shares":          {Batch: {Line: 1.5}},
		"Slots -1":            {Batch: {Slots: -1}},
		"HeadStart is -1ns":   {Batch: {HeadStart: -1}},
		"HeadStart is 2h0m0s": {Critical: {HeadStart: 2 * time.Hour}},
		"more than default":   {Sheddable: {HeadStart: time.Second}, Batch: {HeadStart: time.Second}},
		"more than critical":  {Critical: {Line: .5}},
		"more than batch":     {Batch: {Slots: .5}},
	} {
		if _, err := New(Options{Limit: 1, Classes: rules}); err == nil || !contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	s := open(t, Options{Limit: 1})
	if _, err := s.Try(t.Context(), "id", As(5)); err == nil || !contains(err.Error(), "As(5)") {
		t.Error(err)
	}
}

func TestPlacesInLineAreRoundedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for n := 1; n <= 5; n++ {
			s := open(t, Options{Limit: 1, Queue: n})
			mustTry(t, s, "id")
			for range (n + 1) / 2 {
				if w := queue(s, "id", As(Sheddable)); w.answered() {
					t.Errorf("of %d places: %v", n, w.err)
				}
			}
			queue(s, "id", As(Sheddable)).was(t, ErrQueueFull)
			for range n - (n+1)/2 {
				if w := queue(s, "id"); w.answered() {
					t.Errorf("of %d places: %v", n, w.err)
				}
			}
			queue(s, "id", As(Critical)).was(t, ErrQueueFull)
			_ = s.Close()
		}
	})
}

// Scores of the line are microseconds, which floating point counts exactly for centuries.
func TestTicketsAreExactFor2100(t *testing.T) {
	if us := time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro(); us >= 1<<53 || float64(us+1) == float64(us) {
		t.Error(us)
	}
}

// What a call that waits may take of further ids in an outage is not cut by its class's
// share of the slots, which is for those that do not wait.
func TestWhoWaitsHasTheWholeOfFurtherIDs(t *testing.T) {
	s := open(t, Options{Limit: 10, Queue: 5, Classes: map[Class]ClassRule{Sheddable: {Slots: .5}}})
	for _, waits := range []bool{true, false} {
		v := &severalCall{s: s, call: callOptionsOf([]Option{As(Sheddable), Also("b")}), waits: waits}
		if err := v.plan(t.Context(), "a", v.call, waits); err != nil {
			t.Fatal(err)
		}
		if rs := v.further("a"); len(rs) != 1 || rs[0].ID != "b" || (rs[0].Share == 0) != waits {
			t.Errorf("waits %v: %+v", waits, rs)
		}
	}
}
