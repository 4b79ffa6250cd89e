//go:build unix

package integration

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
)

// A reply is lost after the script ran, and the client asks again: one member, the
// one that the caller was told.
func TestALostReplyTakesOneSlot(t *testing.T) {
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
func TestALostGrantIsGivenBack(t *testing.T) {
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
