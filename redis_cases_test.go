//go:build unix

package gotsem_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/leaktest"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

// A reply is lost after the script ran, and the client asks again: one member, the
// one that the caller was told.
func TestReplyLostRetry(t *testing.T) {
	srv := redistest.Start(t)
	relay := redistest.NewRelay(t, srv.Addr())
	rdb := redis.NewClient(&redis.Options{Addr: relay.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	ctx := t.Context()

	t.Run("TryAcquire", func(t *testing.T) {
		sem := seedSem(t, rdb, 30*time.Second, 1)
		warm(t, sem)
		relay.DropReplyWhen(contains(prefix + "lost-try"))
		r := sem.TryAcquire(ctx, "lost-try")
		if !r.Acquired || r.FailedOpen() || r.Active != 1 {
			t.Fatalf("%+v, want the slot, and one active", r)
		}
		if relay.Stats().Lost != 1 {
			t.Fatalf("%d replies lost, want 1", relay.Stats().Lost)
		}
		if m := members(t, srv, "lost-try"); len(m) != 1 || m[r.SlotID] == 0 {
			t.Fatalf("members %v, want only %q", m, r.SlotID)
		}
		sem.Release(ctx, "lost-try", r.SlotID)
		if m := members(t, srv, "lost-try"); len(m) != 0 {
			t.Fatalf("after one release there is %v", m)
		}
	})
	t.Run("Acquire", func(t *testing.T) {
		sem := fullSem(t, rdb, 1, nil)
		warm(t, sem)
		lost := relay.Stats().Lost
		relay.DropReplyWhen(contains(prefix + "lost-acquire"))
		lease, err := sem.Acquire(ctx, "lost-acquire")
		if err != nil {
			t.Fatal(err)
		}
		if relay.Stats().Lost != lost+1 {
			t.Fatal("no reply was lost")
		}
		if m := members(t, srv, "lost-acquire"); len(m) != 1 || m[lease.SlotID()] == 0 {
			t.Fatalf("members %v, want only %q", m, lease.SlotID())
		}
		relay.DropReplyWhen(contains(lease.SlotID()))
		if err := lease.Release(ctx); err != nil { // this one's reply is lost too
			t.Fatal(err)
		}
		if m := members(t, srv, "lost-acquire"); len(m) != 0 {
			t.Fatalf("after one release there is %v", m)
		}
	})
}

// warm has Redis know the scripts, so that the next call is one request.
func warm(t testing.TB, sem *gotsem.Semaphore) {
	t.Helper()
	r := sem.TryAcquire(t.Context(), "warm")
	if !r.Acquired || r.FailedOpen() {
		t.Fatalf("warming up: %+v", r)
	}
	sem.Release(t.Context(), "warm", r.SlotID)
	lease, err := sem.Try(t.Context(), "warm")
	if err != nil {
		t.Fatalf("warming up: %v", err)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Fatalf("warming up: %v", err)
	}
}

// A reply is lost and nobody asks again: the slot is cleaned up in the background,
// long before it lapses.
func TestReplyLostGaveUp(t *testing.T) {
	srv := redistest.Start(t)
	relay := redistest.NewRelay(t, srv.Addr())
	rdb := redis.NewClient(&redis.Options{Addr: relay.Addr(), MaxRetries: -1, ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = rdb.Close() })
	ctx := t.Context()
	gone := func(id string) {
		t.Helper()
		soon(t, patience, "the slot of a call that gave up to be cleaned up", func() bool { return len(members(t, srv, id)) == 0 })
	}

	sem := seedSem(t, rdb, time.Hour, 1)
	warm(t, sem)
	relay.DropReplyWhen(contains(prefix + "gave-up"))
	if r := sem.TryAcquire(ctx, "gave-up"); !r.FailedOpen() {
		t.Fatalf("%+v, want to fail open", r)
	}
	gone("gave-up")

	closed := fullSem(t, rdb, 1, func(o *gotsem.Options) { o.TTL = time.Hour })
	warm(t, closed)
	relay.DropReplyWhen(contains(prefix + "gave-up"))
	if _, err := closed.Acquire(ctx, "gave-up"); !errors.Is(err, gotsem.ErrUnavailable) {
		t.Fatalf("%v, want ErrUnavailable", err)
	}
	gone("gave-up")

	// The caller's own deadline is over while the reply is on its way.
	relay.SetDelay(60 * time.Millisecond)
	short, cancel := context.WithTimeout(ctx, 90*time.Millisecond)
	defer cancel()
	if _, err := closed.Acquire(short, "gave-up"); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%v, want the ctx's error", err)
	}
	relay.SetDelay(0)
	soon(t, patience, "the acquire to reach Redis", func() bool {
		// It has arrived by the time that a later request on another connection has.
		return calls(t, srv, "evalsha") > 0
	})
	gone("gave-up")

	if l, err := closed.Acquire(ctx, "gave-up"); err != nil {
		t.Fatalf("after all that the slot is not free: %v", err)
	} else if err := l.Release(ctx); err != nil {
		t.Fatal(err)
	}
}

// A ctx that is over acquires nothing, whatever the outage policy, Redis there or
// not, and says nothing about the store.
func TestContextAlreadyOver(t *testing.T) {
	srv := redistest.Start(t)
	refused := redistest.NewRelay(t, srv.Addr())
	refused.Refuse(true)
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	late, cancel := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
	defer cancel()

	for _, policy := range []gotsem.Outage{gotsem.Open, gotsem.Closed, gotsem.Local} {
		for where, addr := range map[string]string{"there": srv.Addr(), "refusing": refused.Addr()} {
			t.Run(policy.String()+"/"+where, func(t *testing.T) {
				rdb := redis.NewClient(&redis.Options{Addr: addr})
				t.Cleanup(func() { _ = rdb.Close() })
				sem := fullSem(t, rdb, 1, func(o *gotsem.Options) { o.Outage = policy })
				id := "over-" + policy.String()
				for _, held := range []bool{false, true} {
					if held && where == "there" {
						if _, err := sem.Try(t.Context(), id); err != nil {
							t.Fatal(err)
						}
					}
					before := len(members(t, srv, id))
					for range 10 { // twice what the breaker needs
						for _, ctx := range []context.Context{cancelled, late} {
							if _, err := sem.Try(ctx, id); !errors.Is(err, ctx.Err()) {
								t.Fatalf("Try: %v, want %v", err, ctx.Err())
							}
							if _, err := sem.Acquire(ctx, id); !errors.Is(err, ctx.Err()) {
								t.Fatalf("Acquire: %v, want %v", err, ctx.Err())
							}
							if r := sem.TryAcquire(ctx, id); r.Acquired || r.SlotID != "" {
								t.Fatalf("TryAcquire: %+v, want not acquired", r)
							}
							if err := sem.Do(ctx, id, func(context.Context) error { t.Error("Do ran"); return nil }); !errors.Is(err, ctx.Err()) {
								t.Fatalf("Do: %v, want %v", err, ctx.Err())
							}
						}
					}
					if after := len(members(t, srv, id)); after != before {
						t.Errorf("%d members, there were %d", after, before)
					}
				}
				if s := sem.Stats(); s.StoreErrors != 0 || s.Outages != 0 || s.Down || s.FailedOpen != 0 || s.Waiting != 0 {
					t.Errorf("the store was blamed for it: %+v", s)
				}
			})
		}
	}
}

// Two TTLs on one id: the short one's end takes nothing from the long one.
func TestMixedTTLs(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	ctx := t.Context()
	long := seedSem(t, srv.Client(), time.Minute, 2)
	short := seedSem(t, srv.Client(), 2*time.Second, 2)
	leases := fullSem(t, srv.Client(), 2, func(o *gotsem.Options) { o.TTL = time.Minute })

	a := long.TryAcquire(ctx, "mixed")
	b := short.TryAcquire(ctx, "mixed")
	if !a.Acquired || !b.Acquired {
		t.Fatal(a, b)
	}
	if r := long.TryAcquire(ctx, "mixed"); r.Acquired {
		t.Fatalf("a third of two: %+v", r)
	}
	soon(t, patience, "the short slot to lapse", func() bool { return long.ActiveCount(ctx, "mixed") == 1 })
	if _, still := members(t, srv, "mixed")[a.SlotID]; !still {
		t.Fatal("the long slot is gone")
	}
	lease, err := leases.Try(ctx, "mixed")
	if err != nil {
		t.Fatalf("one more should get in: %v", err)
	}
	if r := short.TryAcquire(ctx, "mixed"); r.Acquired || r.Active != 2 {
		t.Fatalf("%+v, want refused at two active", r)
	}
	if left := do(t, srv, "PTTL", prefix+"mixed").(int64); left < 50_000 {
		t.Fatalf("the key lives %d ms more, its longest slot nearly a minute", left)
	}
	if err := lease.Release(ctx); err != nil {
		t.Fatal(err)
	}
	if left := do(t, srv, "PTTL", prefix+"mixed").(int64); left < 50_000 {
		t.Fatalf("after a release the key lives %d ms more", left)
	}
}

// No client of ours says what time it is: only Redis does. So their clocks cannot
// matter; what a slot lives is counted by the server's.
func TestNoClientClockOnTheWire(t *testing.T) {
	srv := redistest.Start(t)
	relay := redistest.NewRelay(t, srv.Addr())
	var mu sync.Mutex
	var wire strings.Builder
	relay.DropReplyWhen(func(request []byte) bool { // looks, and drops nothing
		mu.Lock()
		defer mu.Unlock()
		wire.Write(request)
		return false
	})
	before := serverTime(t, srv)
	// In a bubble the process is in another year than the server, whose clock calls do
	// name: until when they may be carried out.
	synctest.Test(t, func(t *testing.T) {
		rdb := redis.NewClient(&redis.Options{Addr: relay.Addr()})
		defer func() { _ = rdb.Close() }()
		ctx := context.Background()
		const ttl = time.Minute
		sem := gotsem.NewGotsem(rdb, prefix, ttl, 3, nil, nil)
		defer func() { _ = sem.Close() }()
		a := sem.TryAcquire(ctx, "clock")
		if !a.Acquired {
			t.Fatal(a)
		}
		after := serverTime(t, srv)
		if at := members(t, srv, "clock")[a.SlotID]; at < before+ttl.Milliseconds() || at > after+ttl.Milliseconds() {
			t.Errorf("the slot lapses at %d by the server, asked for between %d and %d for %v", at, before, after, ttl)
		}
		sem.ActiveCount(ctx, "clock")
		sem.Release(ctx, "clock", a.SlotID)
		lease, err := sem.Acquire(ctx, "clock")
		if err != nil {
			t.Fatal(err)
		}
		if err := lease.Release(ctx); err != nil {
			t.Fatal(err)
		}
		sem.ForceRelease(ctx, "clock")

		mu.Lock()
		defer mu.Unlock()
		if !strings.Contains(wire.String(), prefix+"clock") {
			t.Fatal("the relay saw no call")
		}
		for _, number := range regexp.MustCompile(`\b\d{9,19}\b`).FindAllString(wire.String(), -1) {
			n, _ := strconv.ParseInt(number, 10, 64)
			for n > 1e11 {
				n /= 1000
			}
			if age := time.Since(time.Unix(n, 0)).Abs(); age < 24*time.Hour {
				t.Errorf("%s in a request is the time of day where the process is", number)
			}
		}
	})
}

// What lapsed and what was released does not come back to harm the next holder.
func TestLateAndDoubleRelease(t *testing.T) {
	srv := redistest.Start(t)
	ctx := t.Context()
	a := seedSem(t, srv.Client(), 300*time.Millisecond, 1)
	b := fullSem(t, srv.Client(), 1, func(o *gotsem.Options) { o.Queue = 5 })
	c := seedSem(t, srv.Client(), time.Minute, 1)
	d := fullSem(t, srv.Client(), 1, func(o *gotsem.Options) { o.Queue = 5 })

	late := a.TryAcquire(ctx, "late")
	if !late.Acquired {
		t.Fatal(late)
	}
	held, err := b.Acquire(ctx, "late") // waits until A's slot has lapsed
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() {
		l, err := d.Acquire(ctx, "late")
		if err == nil {
			err = l.Release(ctx)
		}
		served <- err
	}()
	soon(t, patience, "D to stand in line", func() bool { return len(waiting(t, srv, "late")) == 1 })

	pushed := calls(t, srv, "publish")
	a.Release(ctx, "late", late.SlotID)
	a.Release(ctx, "late", late.SlotID)
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() { a.Release(ctx, "late", late.SlotID) })
	}
	all.Wait()
	if n := calls(t, srv, "publish"); n != pushed {
		t.Errorf("%d wake-ups were sent for releases that freed nothing", n-pushed)
	}
	if n := c.ActiveCount(ctx, "late"); n != 1 {
		t.Errorf("%d active, want 1", n)
	}
	if r := c.TryAcquire(ctx, "late"); r.Acquired {
		t.Errorf("C was let in: %+v", r)
	}
	if err := context.Cause(held.Context()); err != nil {
		t.Errorf("B's lease ended: %v", err)
	}
	if m := members(t, srv, "late"); m[held.SlotID()] == 0 {
		t.Errorf("B is not among %v", m)
	}
	select {
	case err := <-served:
		t.Errorf("D was served: %v", err)
	default:
	}
	for range 50 { // a lease too
		all.Go(func() {
			if err := held.Release(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if err := received(t, served, patience, "D to be served"); err != nil {
		t.Fatal(err)
	}
	if n := c.ActiveCount(ctx, "late"); n != 0 {
		t.Errorf("%d active, want 0", n)
	}
}

// A holder that cannot reach Redis for longer than its TTL is told so before the
// next one holds, and re-creates nothing when it can.
func TestRenewAfterLapse(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	relay := redistest.NewRelay(t, srv.Addr())
	away := redis.NewClient(&redis.Options{Addr: relay.Addr()})
	t.Cleanup(func() { _ = away.Close() })
	ctx := t.Context()
	a := fullSem(t, away, 1, func(o *gotsem.Options) { o.TTL = 1500 * time.Millisecond; o.StoreTimeout = 400 * time.Millisecond })
	b := fullSem(t, srv.Client(), 1, func(o *gotsem.Options) { o.TTL = 10 * time.Second; o.Queue = 2 })

	old, err := a.Acquire(ctx, "lapse")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan time.Time, 1)
	go func() {
		<-old.Context().Done()
		ended <- time.Now()
	}()
	relay.Blackhole(true)
	got, err := b.Acquire(ctx, "lapse")
	granted := time.Now()
	if err != nil {
		t.Fatal(err)
	}
	if cause := context.Cause(old.Context()); !errors.Is(cause, gotsem.ErrLeaseLost) {
		t.Fatalf("B holds, and A's lease has ended with %v", cause)
	}
	if at := received(t, ended, patience, "A's context to end"); at.After(granted.Add(250 * time.Millisecond)) {
		t.Errorf("A was told %v after B held", at.Sub(granted))
	}
	relay.Blackhole(false)
	// A's background release of what it lost arrives now; B's stays.
	soon(t, patience, "A to reach Redis again", func() bool {
		_, err := a.Usage(ctx, "lapse")
		return err == nil
	})
	if err := old.Release(ctx); err != nil {
		t.Error(err)
	}
	if m := members(t, srv, "lapse"); len(m) != 1 || m[got.SlotID()] == 0 {
		t.Errorf("members %v, want only B's %q", m, got.SlotID())
	}
	if got.Fence() <= old.Fence() {
		t.Errorf("B's fence %d is not above A's %d", got.Fence(), old.Fence())
	}
}

// A lease that is taken away ends at once, and is not put back by its renewal.
func TestRenewAfterRevoke(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	ctx := t.Context()
	const ttl = 1500 * time.Millisecond
	a := fullSem(t, srv.Client(), 2, func(o *gotsem.Options) { o.TTL = ttl })
	admin := fullSem(t, srv.Client(), 2, func(o *gotsem.Options) { o.TTL = ttl })
	for how, take := range map[string]func(l *gotsem.Lease) error{
		"revoke": func(l *gotsem.Lease) error {
			ok, err := admin.Revoke(ctx, "taken", l.SlotID())
			if err == nil && !ok {
				err = errors.New("it says that there was no such lease")
			}
			return err
		},
		"clear": func(*gotsem.Lease) error { admin.ForceRelease(ctx, "taken"); return nil },
	} {
		lease, err := a.Acquire(ctx, "taken")
		if err != nil {
			t.Fatal(how, err)
		}
		if ok, err := admin.Revoke(ctx, "taken", "not-a-slot"); ok || err != nil {
			t.Errorf("revoking a wrong slot id: %v, %v", ok, err)
		}
		if err := take(lease); err != nil {
			t.Fatal(how, err)
		}
		received(t, lease.Context().Done(), patience, "the context of a lease that was taken to end")
		if cause := context.Cause(lease.Context()); !errors.Is(cause, gotsem.ErrLeaseLost) {
			t.Errorf("%s: the cause is %v, want ErrLeaseLost", how, cause)
		}
		if m := members(t, srv, "taken"); len(m) != 0 {
			t.Errorf("%s: it was put back: %v", how, m)
		}
		if err := lease.Release(ctx); err != nil {
			t.Errorf("%s: %v", how, err)
		}
	}
	if s := a.Stats(); s.Lost != 2 || s.Held != 0 {
		t.Errorf("%+v, want 2 lost and none held", s)
	}
}

// A renewal in the millisecond of expiry, beside an acquire: exactly one wins.
func TestRenewMeetsExpiry(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	ctx := t.Context()
	a, b := redisstore.New(srv.Client(), prefix), redisstore.New(srv.Client(), prefix)
	t.Cleanup(func() { _ = a.Close(); _ = b.Close() })
	const ttl = 25 * time.Millisecond
	at := ttl // when to ask; it follows the outcomes, so that both come about
	var renewed, taken int
	ends := time.Now().Add(patience)
	for round := 0; renewed+taken < 200 || renewed == 0 || taken == 0; round++ {
		if time.Now().After(ends) {
			t.Fatalf("%d renewed and %d taken, in %v", renewed, taken, patience)
		}
		id := fmt.Sprint("edge", round%7)
		ask := func(slot string) store.Request {
			return store.Request{ID: id, SlotID: fmt.Sprintf("%s%d", slot, round), Weight: 1, Limit: 1, TTL: ttl}
		}
		first := ask("a")
		d, err := a.Acquire(ctx, &first)
		if err != nil || d.Outcome != store.Granted {
			t.Fatal(d, err)
		}
		time.Sleep(at) // to hit the moment, not to wait for something
		var kept store.RenewResult
		var second store.Decision
		var both sync.WaitGroup
		both.Go(func() {
			kept = a.Renew(ctx, []store.Renewal{{ID: id, SlotID: first.SlotID, TTL: ttl, Weight: 1, Fence: d.Fence, Trust: 0}})[0]
		})
		both.Go(func() {
			r := ask("b")
			second, err = b.Acquire(ctx, &r)
		})
		both.Wait()
		switch {
		case kept.Err != nil || err != nil:
			t.Fatal(kept.Err, err)
		case kept.Outcome == store.Renewed && second.Outcome == store.Full:
			renewed++
			at += ttl / 50
		case kept.Outcome == store.Lost && second.Outcome == store.Full:
			// The acquire came a moment before the end, the renewal a moment after it.
			again := ask("b")
			if d, err := b.Acquire(ctx, &again); err != nil || d.Outcome != store.Granted {
				t.Fatalf("round %d: the renewal answers lost, and then the acquire %v, %v", round, d.Outcome, err)
			}
		case kept.Outcome == store.Lost && second.Outcome == store.Granted:
			taken++
			at -= ttl / 50
		default:
			t.Fatalf("round %d: the renewal answers %v, the acquire %v", round, kept.Outcome, second.Outcome)
		}
		for _, slot := range []string{first.SlotID, ask("b").SlotID} {
			if _, err := a.Release(ctx, &store.Release{ID: id, SlotID: slot}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A limit is for every process, whatever it remembers; raising it wakes, lowering
// takes nothing away.
func TestLimitRaisedAndLowered(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	ctx := t.Context()
	var sems [3]*gotsem.Semaphore
	for i := range sems {
		sems[i] = fullSem(t, srv.Client(), 10, func(o *gotsem.Options) { o.Queue = 20; o.TTL = time.Minute })
	}
	var held []*gotsem.Lease
	for i := range 10 {
		l, err := sems[i%3].Acquire(ctx, "limit")
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, l)
	}
	granted := make(chan *gotsem.Lease, 10)
	for i := range 5 {
		go func() {
			if l, err := sems[i%3].Acquire(ctx, "limit"); err == nil {
				granted <- l
			} else if ctx.Err() == nil {
				t.Errorf("waiter %d: %v", i, err)
			}
		}()
	}
	soon(t, patience, "5 to stand in line", func() bool { return len(waiting(t, srv, "limit")) == 5 })
	set := func(n int) {
		t.Helper()
		if err := sems[0].SetLimit(ctx, "limit", n); err != nil {
			t.Fatal(err)
		}
	}
	none := func(what string) {
		t.Helper()
		// Every process asks for itself: who would be granted would be now.
		for i, sem := range sems {
			if _, err := sem.Try(ctx, "limit"); !errors.Is(err, gotsem.ErrFull) {
				t.Errorf("%s: process %d: %v, want full", what, i, err)
			}
		}
		if len(granted) != 0 {
			t.Fatalf("%s: a waiter was granted", what)
		}
	}

	set(4)
	none("10 held of 4")
	for _, l := range held {
		if err := l.Context().Err(); err != nil {
			t.Errorf("lowering the limit ended a lease: %v", err)
		}
	}
	for range 6 {
		if err := held[0].Release(ctx); err != nil {
			t.Fatal(err)
		}
		held = held[1:]
	}
	none("4 held of 4")
	if err := held[0].Release(ctx); err != nil {
		t.Fatal(err)
	}
	held = append(held[1:], received(t, granted, patience, "a grant when less than 4 are held"))
	none("4 held of 4 again")

	began := time.Now()
	set(12)
	for range 4 {
		held = append(held, received(t, granted, patience, "the rest of the line to be woken by a higher limit"))
	}
	t.Logf("raising the limit woke 4 in %v", time.Since(began))

	set(0)
	for range 8 {
		if err := held[0].Release(ctx); err != nil {
			t.Fatal(err)
		}
		held = held[1:]
	}
	for i, sem := range sems {
		var full *gotsem.FullError
		if _, err := sem.Try(ctx, "limit"); !errors.As(err, &full) || full.Limit != 0 {
			t.Errorf("paused: process %d: %v, want full with limit 0", i, err)
		}
	}
	paused := make(chan error, 1)
	go func() {
		l, err := sems[1].Acquire(ctx, "limit")
		if err == nil {
			err = l.Release(ctx)
		}
		paused <- err
	}()
	soon(t, patience, "one to wait on a paused id", func() bool { return len(waiting(t, srv, "limit")) == 1 })
	if err := sems[2].ResetLimit(ctx, "limit"); err != nil {
		t.Fatal(err)
	}
	if err := received(t, paused, patience, "the pause to end"); err != nil {
		t.Fatal(err)
	}
	u, err := sems[0].Usage(ctx, "limit")
	if err != nil || u.LimitSet || u.Limit != 10 || u.Active != 0 {
		t.Errorf("%+v, %v, want nothing held of 10, not set", u, err)
	}
}

// Scripts are flushed all the time: nobody hears of it.
func TestScriptFlushUnderLoad(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	ctx := t.Context()
	// Short, so that renewals run too.
	sem := fullSem(t, srv.Client(), 4, func(o *gotsem.Options) { o.TTL = 1500 * time.Millisecond; o.Queue = 100 })
	seed, logs := loudSem(t, srv.Client(), 10*time.Second, 4)
	stop := make(chan struct{})
	n := 0
	var flusher sync.WaitGroup
	flusher.Go(func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if _, err := srv.Do("SCRIPT", "FLUSH"); err != nil {
					t.Error(err)
				}
				n++
			case <-stop:
				return
			}
		}
	})
	finish := sync.OnceFunc(func() { close(stop); flusher.Wait() })
	defer finish()
	keep, err := sem.Acquire(ctx, "kept")
	if err != nil {
		t.Fatal(err)
	}
	var holders tally
	var open atomic.Int64
	repeatedly(2*time.Second, 16, func(worker int) {
		if worker%2 == 0 {
			r := seed.TryAcquire(ctx, "flush")
			if r.FailedOpen() {
				open.Add(1)
			} else if r.Acquired {
				holders.in()
				time.Sleep(200 * time.Microsecond) // what a holder does
				holders.out()
				seed.Release(ctx, "flush", r.SlotID)
			}
			return
		}
		l, err := sem.Acquire(ctx, "flush")
		if err != nil {
			t.Error(err)
			return
		}
		holders.in()
		time.Sleep(200 * time.Microsecond)
		holders.out()
		if err := l.Release(ctx); err != nil {
			t.Error(err)
		}
	})
	finish()
	most, passed := holders.read()
	t.Logf("%d flushes, %d holders passed, at most %d at once", n, passed, most)
	if most > 4 || passed < 10 || n < 5 {
		t.Errorf("%d holders of 4 at once, %d in all, under %d flushes", most, passed, n)
	}
	if said := fmt.Sprint(logs.All()); strings.Contains(said, "NOSCRIPT") || open.Load() > int64(passed/10) {
		t.Errorf("%d failed open, logged: %s", open.Load(), said)
	}
	if s := sem.Stats(); s.Renewals == 0 || s.Lost != 0 {
		t.Errorf("%+v, want renewals, and nothing lost", s)
	}
	if err := context.Cause(keep.Context()); err != nil {
		t.Error(err)
	}
}

// Redis forgets everything: nobody is over-admitted, holders keep what they hold,
// waiters stand in line again, and no script fails on a missing key.
func TestDataLost(t *testing.T) {
	for how, lose := range map[string]func(t *testing.T, srv *redistest.Server){
		"flushall": func(t *testing.T, srv *redistest.Server) { do(t, srv, "FLUSHALL") },
		"restart":  func(_ *testing.T, srv *redistest.Server) { srv.Restart(false) },
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			srv := redistest.Start(t)
			ctx := t.Context()
			const limit, waiters = 2, 6
			var sems [3]*gotsem.Semaphore
			for i := range sems {
				sems[i] = fullSem(t, srv.Client(), limit, func(o *gotsem.Options) {
					o.TTL, o.Queue, o.StoreTimeout = 2*time.Second, 20, time.Second
				})
			}
			var holders tally
			var held []*gotsem.Lease
			for i := range limit {
				l, err := sems[i].Acquire(ctx, "forgotten")
				if err != nil {
					t.Fatal(err)
				}
				holders.in()
				held = append(held, l)
			}
			served := make(chan error, waiters)
			for i := range waiters {
				go func() {
					for {
						l, err := sems[i%3].Acquire(ctx, "forgotten")
						if errors.Is(err, gotsem.ErrUnavailable) { // while it restarts: by the policy, at once
							time.Sleep(10 * time.Millisecond) // as a client would
							continue
						}
						if err == nil {
							holders.in()
							holders.out()
							err = l.Release(ctx)
						}
						served <- err
						return
					}
				}()
			}
			soon(t, patience, "all to stand in line", func() bool { return len(waiting(t, srv, "forgotten")) == waiters })
			lose(t, srv)
			soon(t, patience, "the holders to come forward", func() bool { return len(members(t, srv, "forgotten")) == limit })
			soon(t, patience, "the waiters to stand in line again", func() bool { return len(waiting(t, srv, "forgotten")) == waiters })
			for _, l := range held {
				if err := context.Cause(l.Context()); err != nil {
					t.Errorf("a live lease ended: %v", err)
				}
				holders.out()
				if err := l.Release(ctx); err != nil {
					t.Error(err)
				}
			}
			for range waiters {
				if err := received(t, served, patience, "the waiters to be served"); err != nil {
					t.Error(err)
				}
			}
			if most, _ := holders.read(); most > limit {
				t.Errorf("%d held at once, limit %d", most, limit)
			}
			var putBack uint64
			for _, sem := range sems {
				putBack += sem.Stats().Restored
			}
			if putBack != limit {
				t.Errorf("%d leases were put back, want %d", putBack, limit)
			}
		})
	}
}

// oddIDs are ids whose braces, lengths and bytes invite mistakes.
var oddIDs = []string{
	"a", "a{b}c", "a{b}d", "{b}", "{}", "}{", "{a", "a}", "{}a", "{}{a}", "{a}{b}", "{{a}}", "x:y", ":", " ", "%s", "*", "[a]", `\`,
	strings.Repeat("long", 256), "ümläut-日本語-🙂", "new\nline", "nul\x00byte", "\xff\xfe", "a:q", "a:m", "}:m", "a}:m",
}

// Odd ids on a Cluster: each has a limit of its own, and keys in one slot.
func TestOddIDsOnCluster(t *testing.T) {
	cl := redistest.StartCluster(t, 3, 0)
	ctx := t.Context()
	sem := fullSem(t, cl.Client(), 2, func(o *gotsem.Options) { o.Queue = 5 })
	seed := seedSem(t, cl.Client(), time.Minute, 2)

	if r := seed.TryAcquire(ctx, ""); r.Acquired {
		t.Errorf("the empty id: %+v", r)
	}
	if _, err := sem.Try(ctx, ""); err == nil {
		t.Error("the empty id: no error")
	}
	var leases []*gotsem.Lease
	for _, id := range oddIDs {
		l, err := sem.Acquire(ctx, id)
		if err != nil {
			t.Fatalf("%q: %v", id, err)
		}
		leases = append(leases, l)
		if r := seed.TryAcquire(ctx, id); !r.Acquired || r.FailedOpen() || r.Active != 2 {
			t.Errorf("%q: %+v, want the second of 2: does it share a key with another?", id, r)
		}
		if err := sem.SetLimit(ctx, id, 2); err != nil {
			t.Errorf("%q: %v", id, err)
		}
	}
	for i, id := range oddIDs {
		if _, err := sem.Try(ctx, id); !errors.Is(err, gotsem.ErrFull) {
			t.Errorf("%q: %v, want full", id, err)
		}
		hs, err := sem.Holders(ctx, id)
		if err != nil || len(hs) != 2 || hs[0].SlotID != leases[i].SlotID() {
			t.Errorf("%q: holders %v, %v", id, hs, err)
		}
		// A waiter of each, so that the line's key is used too.
		served := make(chan error, 1)
		go func() {
			l, err := sem.Acquire(ctx, id)
			if err == nil {
				err = l.Release(ctx)
			}
			served <- err
		}()
		soon(t, patience, "one to wait", func() bool { u, err := sem.Usage(ctx, id); return err == nil && u.Waiting == 1 })
		if err := leases[i].Release(ctx); err != nil {
			t.Errorf("%q: %v", id, err)
		}
		if err := received(t, served, patience, fmt.Sprintf("the waiter of %q", id)); err != nil {
			t.Errorf("%q: %v", id, err)
		}
	}
	listed := make(map[string]bool)
	for id, err := range sem.IDs(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		listed[id] = true
	}
	for _, id := range oddIDs {
		if !listed[id] {
			t.Errorf("%q is held and not listed", id)
		}
		seed.ForceRelease(ctx, id)
		if n := seed.ActiveCount(ctx, id); n != 0 {
			t.Errorf("%q: %d active after clearing", id, n)
		}
	}
	if len(listed) != len(oddIDs) {
		t.Errorf("%d ids listed, want %d", len(listed), len(oddIDs))
	}
	if s := sem.Stats(); s.StoreErrors != 0 {
		t.Errorf("%d store errors", s.StoreErrors)
	}
}

// A slot of the Cluster moves to another node and back, under load: nobody is
// counted twice or forgotten.
func TestClusterSlotMovesUnderLoad(t *testing.T) {
	cl := redistest.StartCluster(t, 3, 0)
	ctx := t.Context()
	const id, limit = "moving", 3
	var sems [2]*gotsem.Semaphore
	for i := range sems {
		sems[i] = fullSem(t, cl.Client(), limit, func(o *gotsem.Options) {
			o.TTL, o.Queue, o.StoreTimeout = 5*time.Second, 50, 2*time.Second
		})
	}
	var holders tally
	var unavailable atomic.Int64
	stop := make(chan struct{})
	var load sync.WaitGroup
	for worker := range 12 {
		load.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				l, err := sems[worker%2].Acquire(ctx, id)
				switch {
				case errors.Is(err, gotsem.ErrUnavailable):
					unavailable.Add(1)
					continue
				case err != nil:
					t.Error(err)
					return
				}
				holders.in()
				time.Sleep(200 * time.Microsecond)
				holders.out()
				if err := l.Release(ctx); err != nil && !errors.Is(err, gotsem.ErrUnavailable) {
					t.Error(err)
				}
			}
		})
	}
	finish := sync.OnceFunc(func() { close(stop); load.Wait() })
	defer finish()
	// One that is held all along: its keys move with it.
	keep, err := sems[0].Acquire(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	holders.in()
	slot := redistest.Slot(prefix + id)
	from := cl.NodeFor(slot)
	to := cl.Nodes()[0]
	if to == from {
		to = cl.Nodes()[1]
	}
	for range 3 {
		m := cl.BeginMigration(slot, from, to)
		m.Move(1) // some of its keys here, some there
		m.Finish()
		from, to = to, from
		_, passed := holders.read()
		soon(t, patience, "grants to go on", func() bool { _, now := holders.read(); return now > passed+20 })
	}
	finish()
	if err := context.Cause(keep.Context()); err != nil {
		t.Errorf("the lease that was held all along ended: %v", err)
	}
	holders.out()
	if err := keep.Release(ctx); err != nil {
		t.Error(err)
	}
	most, passed := holders.read()
	t.Logf("%d holders passed, at most %d at once; %d calls found no answer", passed, most, unavailable.Load())
	if most > limit {
		t.Errorf("%d held at once, limit %d", most, limit)
	}
	soon(t, patience, "nothing to be held", func() bool {
		u, err := sems[1].Usage(ctx, id)
		return err == nil && u.Active == 0 && u.Waiting == 0
	})
}

// Close answers who waits, gives back what is held, and leaves no goroutine.
func TestCloseLeavesNothing(t *testing.T) {
	single := redistest.Start(t)
	cluster := redistest.StartCluster(t, 3, 0)
	for name, connect := range map[string]func() redis.UniversalClient{
		"single": func() redis.UniversalClient { return redis.NewClient(&redis.Options{Addr: single.Addr()}) },
		"cluster": func() redis.UniversalClient {
			return redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs()})
		},
		"wrapped": func() redis.UniversalClient {
			return wrapped{redis.NewClient(&redis.Options{Addr: single.Addr()})}
		},
	} {
		t.Run(name, func(t *testing.T) {
			check := leaktest.Begin(t)
			rdb := connect()
			st := redisstore.New(rdb, "close-"+name+":")
			sem, err := gotsem.New(gotsem.Options{Store: st, Limit: 3, Queue: 10, TTL: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			ctx := t.Context()
			var leases []*gotsem.Lease
			for range 3 {
				l, err := sem.Acquire(ctx, "x")
				if err != nil {
					t.Fatal(err)
				}
				leases = append(leases, l)
			}
			told := make(chan error, 5)
			for range cap(told) {
				go func() {
					_, err := sem.Acquire(ctx, "x")
					told <- err
				}()
			}
			soon(t, patience, "5 to wait", func() bool { u, err := sem.Usage(ctx, "x"); return err == nil && u.Waiting == 5 })
			began := time.Now()
			if err := sem.Close(); err != nil {
				t.Error(err)
			}
			t.Logf("closed in %v", time.Since(began))
			for range cap(told) {
				if err := received(t, told, patience, "a waiter's answer"); !errors.Is(err, gotsem.ErrClosed) {
					t.Errorf("a waiter: %v, want ErrClosed", err)
				}
			}
			for _, l := range leases {
				if cause := context.Cause(l.Context()); !errors.Is(cause, gotsem.ErrClosed) {
					t.Errorf("a lease ended with %v, want ErrClosed", cause)
				}
				if err := l.Release(ctx); err != nil {
					t.Error(err)
				}
			}
			if _, err := sem.Try(ctx, "x"); !errors.Is(err, gotsem.ErrClosed) {
				t.Errorf("after Close: %v", err)
			}
			if u, err := st.Usage(ctx, "x", 3); err != nil || u.Active != 0 || u.Waiting != 0 {
				t.Errorf("%+v, %v, want nothing held and nobody waiting", u, err)
			}
			if err := rdb.Ping(ctx).Err(); err != nil {
				t.Errorf("the client was closed: %v", err)
			}
			_ = st.Close()
			_ = rdb.Close()
			check()
		})
	}
}

// Many ids, each used once: nothing of them stays, in Redis or here. GOTSEM_IDS
// says how many (30,000).
func TestManyIDsOnceEach(t *testing.T) {
	many := 30_000
	if s := os.Getenv("GOTSEM_IDS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		many = n
	}
	srv := redistest.Start(t)
	ctx := t.Context()
	plan := func(context.Context, string) (int, error) { return 1, nil }
	seed := gotsem.NewGotsem(srv.Client(), prefix, 2*time.Second, 1, plan, nil)
	t.Cleanup(func() { _ = seed.Close() })
	sem := fullSem(t, srv.Client(), 1, func(o *gotsem.Options) {
		o.LimitFunc, o.KnownFull, o.Outage, o.StoreTimeout = plan, time.Second, gotsem.Local, 5*time.Second
	})
	var open atomic.Int64 // on a machine that stands still for a moment
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	const workers = 64
	use := func(from, to int) {
		var all sync.WaitGroup
		for w := range workers {
			all.Go(func() {
				for i := from + w; i < to; i += workers {
					id := fmt.Sprint("once-", i)
					if i%4 == 0 { // a lease, given back
						l, err := sem.Try(ctx, id)
						if err != nil {
							t.Error(err)
							return
						}
						if err := l.Release(ctx); err != nil {
							t.Error(err)
							return
						}
						continue
					}
					r, failed := seed.TryAcquire(ctx, id), false // a slot, forgotten
					for r.FailedOpen() && ctx.Err() == nil {
						failed = true
						open.Add(1)
						time.Sleep(time.Millisecond)
						r = seed.TryAcquire(ctx, id)
					}
					if !r.Acquired && !failed { // else the call that was not answered may hold it
						t.Errorf("%s: %+v", id, r)
						return
					}
				}
			})
		}
		all.Wait()
	}
	began := time.Now()
	use(0, many/5) // what is bounded is full after that
	first := heap()
	use(many/5, many)
	took := time.Since(began)
	last := heap()
	t.Logf("%d ids in %v, %d calls found no Redis; heap %.1f MiB after a fifth, %.1f MiB at the end",
		many, took.Round(time.Millisecond), open.Load(), mib(first), mib(last))
	if t.Failed() {
		return
	}
	if last > first+8<<20 {
		t.Errorf("the heap grew from %.1f to %.1f MiB", mib(first), mib(last))
	}
	soon(t, 60*time.Second, "Redis to forget the ids", func() bool {
		if do(t, srv, "DBSIZE").(int64) > 5 {
			return false
		}
		for _, key := range do(t, srv, "KEYS", "*").([]any) {
			if strings.Contains(key.(string), "once-") {
				return false
			}
		}
		return true
	})
}

func mib(n uint64) float64 { return float64(n) / (1 << 20) }
