package gotsem

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// asker is a LimitFunc whose answers can be changed.
type asker struct {
	asked  atomic.Int64
	mu     sync.Mutex
	answer func(ctx context.Context, id string) (int, error)
}

func (a *asker) ask(ctx context.Context, id string) (int, error) {
	a.asked.Add(1)
	a.mu.Lock()
	answer := a.answer
	a.mu.Unlock()
	return answer(ctx, id)
}

func (a *asker) says(n int, err error) {
	a.does(func(context.Context, string) (int, error) { return n, err })
}

func (a *asker) does(answer func(ctx context.Context, id string) (int, error)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answer = answer
}

// limitIs checks the limit that a call applies.
func limitIs(t *testing.T, s *Semaphore, id string, want int) {
	t.Helper()
	r := s.TryAcquire(context.Background(), id)
	s.Release(context.Background(), id, r.SlotID)
	if r.Max != want {
		t.Fatalf("%+v; want the limit %d", r, want)
	}
}

func TestAThousandAtOnceAskOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a asker
		a.does(func(context.Context, string) (int, error) { time.Sleep(100 * time.Millisecond); return 7, nil })
		s := open(t, Options{Limit: 1, LimitFunc: a.ask})
		began := time.Now()
		var granted atomic.Int64
		var all sync.WaitGroup
		for range 1000 {
			all.Go(func() {
				if l, err := s.Try(context.Background(), "id"); err == nil {
					granted.Add(1)
					_ = l
				} else if !errors.Is(err, ErrFull) {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if n := a.asked.Load(); n != 1 {
			t.Errorf("asked %d times", n)
		}
		if granted.Load() != 7 {
			t.Errorf("%d granted, the limit is 7", granted.Load())
		}
		if d := time.Since(began); d != 100*time.Millisecond {
			t.Errorf("took %v", d)
		}
	})
}

func TestAnAnswerIsBelievedForAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a asker
		a.says(7, nil)
		s := open(t, Options{Limit: 3, LimitFunc: a.ask})
		limitIs(t, s, "id", 7)
		a.says(9, nil)
		time.Sleep(limitAge - 1)
		limitIs(t, s, "id", 7)
		if n := a.asked.Load(); n != 1 {
			t.Fatalf("asked %d times within a minute", n)
		}
		time.Sleep(time.Nanosecond)
		// The old answer is served while it is asked again.
		slow := make(chan struct{})
		a.does(func(context.Context, string) (int, error) { <-slow; return 9, nil })
		began := time.Now()
		for range 10 {
			limitIs(t, s, "id", 7)
		}
		if time.Since(began) != 0 {
			t.Errorf("waited %v for an answer that was known", time.Since(began))
		}
		synctest.Wait()
		if n := a.asked.Load(); n != 2 {
			t.Fatalf("asked %d times, want twice", n)
		}
		close(slow)
		synctest.Wait()
		limitIs(t, s, "id", 9)
	})
}

func TestWhatAnAnswerMeans(t *testing.T) {
	for _, c := range []struct {
		n    int
		err  error
		want int
	}{{5, nil, 5}, {0, nil, 3}, {-1, nil, 3}, {50, errors.New("no"), 3}} {
		synctest.Test(t, func(t *testing.T) {
			var a asker
			a.says(c.n, c.err)
			s := open(t, Options{Limit: 3, LimitFunc: a.ask})
			limitIs(t, s, "id", c.want)
		})
	}
}

func TestAnErrorIsBelievedForFiveSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a asker
		var log logged
		a.says(0, errors.New("the database is away"))
		s := open(t, Options{Limit: 3, LimitFunc: a.ask, Logger: log.logger()})
		for range 10 {
			limitIs(t, s, "id", 3)
		}
		synctest.Wait() // the answer comes before its log line
		if lines := log.with("the database is away"); len(lines) != 1 || a.asked.Load() != 1 {
			t.Fatalf("asked %d times, logged %q", a.asked.Load(), lines)
		}
		a.says(8, nil)
		time.Sleep(limitErrorAge - 1)
		limitIs(t, s, "id", 3)
		time.Sleep(time.Nanosecond)
		limitIs(t, s, "id", 3) // it is asked again in the background
		synctest.Wait()
		limitIs(t, s, "id", 8)
		if n := a.asked.Load(); n != 2 {
			t.Errorf("asked %d times", n)
		}
	})
}

func TestAHangingQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a asker
		hang := make(chan struct{})
		a.does(func(ctx context.Context, _ string) (int, error) { <-hang; return 8, nil }) // its ctx is not looked at
		s := open(t, Options{Limit: 3, LimitFunc: a.ask})
		began := time.Now()
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() { limitIs(t, s, "id", 3) })
		}
		all.Wait()
		if d := time.Since(began); d != limitPatience {
			t.Errorf("waited %v, at most %v", d, limitPatience)
		}
		began = time.Now()
		limitIs(t, s, "id", 3)
		if d := time.Since(began); d != 0 {
			t.Errorf("waited %v again", d)
		}
		time.Sleep(time.Hour)
		limitIs(t, s, "id", 3)
		if n := a.asked.Load(); n != 1 {
			t.Errorf("asked %d times while it hangs", n)
		}
		close(hang)
		synctest.Wait()
		limitIs(t, s, "id", 8) // late, and yet an answer
	})
}

// A LimitFunc that ignores its ctx and never returned held two goroutines for each id
// that was asked for.
func TestQuestionsThatHangForeverAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a asker
		var log logged
		forever := make(chan struct{})
		a.does(func(context.Context, string) (int, error) { <-forever; return 7, nil })
		s := open(t, Options{Limit: 3, LimitFunc: a.ask, Logger: log.logger()})
		before := runtime.NumGoroutine()
		for range 3 { // those that hang are not asked again, and neither are many others
			var all sync.WaitGroup
			for i := range 3 * limitCalls {
				all.Go(func() { limitIs(t, s, fmt.Sprint("id", i), 3) })
			}
			all.Wait()
			time.Sleep(limitErrorAge)
		}
		synctest.Wait()
		if n := a.asked.Load(); n != limitCalls {
			t.Errorf("asked %d times, %d may be under way", n, limitCalls)
		}
		if n := runtime.NumGoroutine() - before; n > 2*limitCalls+10 {
			t.Errorf("%d goroutines wait for answers", n)
		}
		if lines := log.with("too many calls of the LimitFunc"); len(lines) == 0 || len(lines) > 3 {
			t.Errorf("logged %d times: %.1q", len(lines), lines)
		}
		close(forever)
		synctest.Wait()
		for i := range 3 * limitCalls { // all is well again
			s.TryAcquire(context.Background(), fmt.Sprint("id", i))
			synctest.Wait()
			limitIs(t, s, fmt.Sprint("id", i), 7)
		}
		if n := a.asked.Load(); n != 3*limitCalls {
			t.Errorf("asked %d times for %d ids", n, 3*limitCalls)
		}
	})
}

func TestAQuestionEndsWithItsAsker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a asker
		a.does(func(ctx context.Context, _ string) (int, error) { <-ctx.Done(); return 0, ctx.Err() })
		s := open(t, Options{Limit: 3, LimitFunc: a.ask})
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		defer cancel()
		began := time.Now()
		if _, err := s.Try(ctx, "id"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		if d := time.Since(began); d != 10*time.Millisecond {
			t.Errorf("waited %v", d)
		}
		time.Sleep(limitPatience) // it goes on, with a ctx of its own, for whoever asks next
		limitIs(t, s, "id", 3)
	})
}

func TestTheAskersValuesReachTheQuestion(t *testing.T) {
	type key struct{}
	var got atomic.Value
	s := open(t, Options{Limit: 3, LimitFunc: func(ctx context.Context, _ string) (int, error) {
		_, bounded := ctx.Deadline()
		got.Store(fmt.Sprint(ctx.Value(key{}), " ", bounded))
		return 1, nil
	}})
	s.TryAcquire(context.WithValue(context.Background(), key{}, "trace"), "id")
	if got.Load() != "trace true" {
		t.Errorf("%v", got.Load())
	}
}

func TestAPanicIsNotTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a asker
		var log logged
		a.does(func(context.Context, string) (int, error) { panic("no such plan") })
		s := open(t, Options{Limit: 3, LimitFunc: a.ask, Logger: log.logger()})
		limitIs(t, s, "id", 3)
		synctest.Wait()
		if len(log.with("no such plan")) != 1 {
			t.Errorf("%q", log.lines)
		}
	})
}

// Goexit is what t.Fatal does in somebody's LimitFunc.
func TestAGoexitIsNotTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a asker
		a.does(func(context.Context, string) (int, error) { runtime.Goexit(); return 0, nil })
		s := open(t, Options{Limit: 3, LimitFunc: a.ask})
		limitIs(t, s, "id", 3)
		a.says(8, nil)
		time.Sleep(limitErrorAge)
		limitIs(t, s, "id", 3)
		synctest.Wait()
		limitIs(t, s, "id", 8)
	})
}

func TestTenThousandIDsAreRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a asker
		a.says(7, nil)
		s := open(t, Options{Limit: 3, LimitFunc: a.ask})
		for i := range limitsKept + 2000 {
			limitIs(t, s, fmt.Sprint("id", i), 7)
			if n := len(s.limits.known); n > limitsKept {
				t.Fatalf("%d ids are remembered", n)
			}
		}
		if n := len(s.limits.known); n != limitsKept {
			t.Errorf("%d ids are remembered", n)
		}
	})
}

// An id that is being asked for is not the one to forget.
func TestNewIDsDoNotHaveAQuestionAskedTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a asker
		a.says(7, nil)
		s := open(t, Options{Limit: 3, LimitFunc: a.ask})
		for i := range limitsKept {
			limitIs(t, s, fmt.Sprint("id", i), 7)
		}
		hang := make(chan struct{})
		var slow atomic.Int64
		a.does(func(_ context.Context, id string) (int, error) {
			if id == "slow" {
				slow.Add(1)
				<-hang
			}
			return 7, nil
		})
		var all sync.WaitGroup
		for i := range 4 * limitsKept {
			if i%1000 == 0 {
				all.Go(func() { limitIs(t, s, "slow", 7) })
				synctest.Wait()
			}
			limitIs(t, s, fmt.Sprint("new", i), 7)
		}
		close(hang)
		all.Wait()
		if n := slow.Load(); n != 1 {
			t.Errorf("one question was asked %d times at once", n)
		}
	})
}

func TestAWaiterBringsItsNewLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a asker
		a.says(1, nil)
		s := open(t, Options{Limit: 1, LimitFunc: a.ask, Queue: 5})
		mustTry(t, s, "id")
		w := queue(s, "id")
		a.says(2, nil)
		time.Sleep(limitAge + 3*pollEvery)
		w.holds(t)
	})
}
