//go:build unix

package integration

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

// What lapsed and what was released does not come back to harm the next holder.
func TestALateReleaseHarmsNobody(t *testing.T) {
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
func TestALapsedHolderIsToldBeforeTheNextHolds(t *testing.T) {
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
func TestARevokedLeaseIsNotRestored(t *testing.T) {
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
func TestRenewalAndExpiryHaveOneWinner(t *testing.T) {
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
