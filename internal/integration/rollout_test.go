//go:build unix

package integration

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
)

// peer speaks to Redis as its readme says that the public seed does: a sorted set at
// prefix+id, scored by expiry in Unix ms; lapsed slots evicted first, by its own clock;
// counted, added. It knows nothing else.
type peer struct {
	rdb   redis.UniversalClient
	ttl   time.Duration
	ahead time.Duration // its clock
	n     *atomic.Int64
}

func newPeer(rdb redis.UniversalClient, ttl, ahead time.Duration) peer {
	return peer{rdb: rdb, ttl: ttl, ahead: ahead, n: new(atomic.Int64)}
}

var (
	peerAcquire = redis.NewScript(`
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ARGV[1])
local held = redis.call('ZCARD', KEYS[1])
if held >= tonumber(ARGV[2]) then return 0 end
redis.call('ZADD', KEYS[1], ARGV[3], ARGV[4])
redis.call('PEXPIRE', KEYS[1], ARGV[5])
return 1`)
	peerRelease = redis.NewScript(`
redis.call('ZREM', KEYS[1], ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ARGV[1])`)
)

func (p peer) now() int64 { return time.Now().Add(p.ahead).UnixMilli() }

// acquire returns a slot id, or "" if there is no room.
func (p peer) acquire(t testing.TB, id string, limit int) string {
	slot := fmt.Sprintf("peer-%p-%d", p.n, p.n.Add(1))
	now := p.now()
	got, err := peerAcquire.Run(context.Background(), p.rdb, []string{prefix + id}, now, limit, now+p.ttl.Milliseconds(), slot, p.ttl.Milliseconds()).Int()
	if err != nil {
		t.Error(err)
	}
	if got == 1 {
		return slot
	}
	return ""
}

func (p peer) release(t testing.TB, id, slot string) {
	err := peerRelease.Run(context.Background(), p.rdb, []string{prefix + id}, p.now(), slot).Err()
	if err != nil && !errors.Is(err, redis.Nil) {
		t.Error(err)
	}
}

// During a roll-out the public seed's processes and ours share the limit of an id, also
// beside callers of all classes, who wait in line.
func TestRollOutSharesTheLimit(t *testing.T) {
	srv := redistest.Start(t)
	ctx := t.Context()
	const ttl, limit = 30 * time.Second, 5
	old := newPeer(srv.Client(), ttl, 0)
	seed := seedSem(t, srv.Client(), ttl, limit)
	full := fullSem(t, srv.Client(), limit, func(o *gotsem.Options) { o.TTL, o.Queue = ttl, 50 })

	// One after the other.
	var slots []string
	for range limit {
		slots = append(slots, old.acquire(t, "shared", limit))
	}
	if r := seed.TryAcquire(ctx, "shared"); r.Acquired || r.Active != limit {
		t.Errorf("%+v beside %d of the old ones", r, limit)
	}
	if _, err := full.Try(ctx, "shared"); !errors.Is(err, gotsem.ErrFull) {
		t.Errorf("%v, want full", err)
	}
	old.release(t, "shared", slots[0])
	r := seed.TryAcquire(ctx, "shared")
	if !r.Acquired {
		t.Fatalf("%+v after one of the old ones gave back", r)
	}
	old.release(t, "shared", slots[1])
	l, err := full.Try(ctx, "shared")
	if err != nil {
		t.Fatal(err)
	}
	if slot := old.acquire(t, "shared", limit); slot != "" {
		t.Error("an old one got in beside 3 of its own and 2 of ours")
	}
	seed.Release(ctx, "shared", r.SlotID)
	if slot := old.acquire(t, "shared", limit); slot == "" {
		t.Error("an old one was refused though we gave back")
	}
	if err := l.Release(ctx); err != nil {
		t.Error(err)
	}

	// All at once, counted outside Redis.
	var holders tally
	var passed [4]atomic.Int64
	hold := func(kind int) {
		holders.in()
		passed[kind].Add(1)
		time.Sleep(200 * time.Microsecond) // what a holder does
		holders.out()
	}
	repeatedly(time.Second, 16, func(worker int) {
		switch kind := worker % 4; kind {
		case 0:
			if slot := old.acquire(t, "load", limit); slot != "" {
				hold(kind)
				old.release(t, "load", slot)
			}
		case 1:
			if r := seed.TryAcquire(ctx, "load"); r.Acquired && !r.FailedOpen() {
				hold(kind)
				seed.Release(ctx, "load", r.SlotID)
			}
		case 2:
			if l, err := full.Try(ctx, "load"); err == nil {
				hold(kind)
				if err := l.Release(ctx); err != nil {
					t.Error(err)
				}
			}
		case 3:
			class := []gotsem.Class{gotsem.Sheddable, gotsem.Batch, gotsem.Default, gotsem.Critical}[worker/4%4]
			if l, err := full.Acquire(ctx, "load", gotsem.As(class), gotsem.MaxWait(time.Second)); err == nil {
				hold(kind)
				if err := l.Release(ctx); err != nil {
					t.Error(err)
				}
			}
		}
	})
	most, all := holders.read()
	t.Logf("%d passed (%d of the seed, %d TryAcquire, %d leases, %d of classes), at most %d at once", all, passed[0].Load(), passed[1].Load(), passed[2].Load(), passed[3].Load(), most)
	if most > limit {
		t.Errorf("%d held at once, limit %d", most, limit)
	}
	for kind := range passed {
		if passed[kind].Load() == 0 {
			t.Errorf("kind %d never got in", kind)
		}
	}
	if n := seed.ActiveCount(ctx, "load"); n != 0 {
		t.Errorf("%d active at the end", n)
	}
}

// Whatever a peer's clock says, we never take its slot from it early.
func TestRollOutKeepsSkewedPeers(t *testing.T) {
	srv := redistest.Start(t)
	ctx := t.Context()
	const ttl, limit = time.Minute, 3
	fast, slow := newPeer(srv.Client(), ttl, 5*time.Minute), newPeer(srv.Client(), ttl, -30*time.Second)
	seed := seedSem(t, srv.Client(), ttl, limit)
	full := fullSem(t, srv.Client(), limit, func(o *gotsem.Options) { o.TTL = ttl })
	a, b := slow.acquire(t, "skew", limit), fast.acquire(t, "skew", limit)
	// The fast one believes that the slow one's has lapsed, and has evicted it: that is
	// between the two of them.
	if m := members(t, srv, "skew"); len(m) != 1 || m[a] != 0 {
		t.Fatalf("%v: the peers do not behave as the seed does", m)
	}
	a = slow.acquire(t, "skew", limit)
	for range 3 {
		r := seed.TryAcquire(ctx, "skew")
		if !r.Acquired || r.Active != 3 {
			t.Fatalf("%+v, want the third", r)
		}
		if again := seed.TryAcquire(ctx, "skew"); again.Acquired {
			t.Errorf("a fourth of three: %+v", again)
		}
		if _, err := full.Try(ctx, "skew"); !errors.Is(err, gotsem.ErrFull) {
			t.Errorf("%v, want full", err)
		}
		if n := seed.ActiveCount(ctx, "skew"); n != 3 {
			t.Errorf("%d active, want 3", n)
		}
		if u, err := full.Usage(ctx, "skew"); err != nil || u.Active != 3 {
			t.Errorf("%+v, %v, want 3 active", u, err)
		}
		seed.Release(ctx, "skew", r.SlotID)
	}
	if m := members(t, srv, "skew"); m[a] == 0 || m[b] == 0 || len(m) != 2 {
		t.Errorf("%v is left, want the peers' %q and %q", m, a, b)
	}
}

// A peer whose clock is fast evicts our leases. They are put back at their renewal if
// there is room, else they are lost, and their holder is told.
func TestRollOutRestoresEvictedLeases(t *testing.T) {
	const ttl = 2 * time.Second
	for name, test := range map[string]struct {
		limit, weight int
		peerTTL       time.Duration
		putBack       bool
	}{
		"room":              {limit: 2, weight: 1, peerTTL: time.Minute, putBack: true},
		"no room":           {limit: 1, weight: 1, peerTTL: time.Minute},
		"weighted, room":    {limit: 4, weight: 3, peerTTL: time.Minute, putBack: true},
		"weighted, no room": {limit: 3, weight: 3, peerTTL: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := redistest.Start(t)
			ctx := t.Context()
			ours := fullSem(t, srv.Client(), test.limit, func(o *gotsem.Options) { o.TTL = ttl })
			fast := newPeer(srv.Client(), test.peerTTL, 5*time.Minute)
			lease, err := ours.Acquire(ctx, "evict", gotsem.Weight(test.weight))
			if err != nil {
				t.Fatal(err)
			}
			slot := fast.acquire(t, "evict", test.limit)
			if m := members(t, srv, "evict"); len(m) != 1 || m[slot] == 0 {
				t.Fatalf("%v: the peer did not evict", m)
			}
			if test.putBack {
				soon(t, patience, "the lease to be put back", func() bool { return ours.Stats().Restored == 1 })
				if m := members(t, srv, "evict"); m[lease.SlotID()] == 0 || m[slot] == 0 {
					t.Errorf("%v, want both", m)
				}
				if err := context.Cause(lease.Context()); err != nil {
					t.Errorf("the lease ended: %v", err)
				}
				u, err := ours.Usage(ctx, "evict")
				if err != nil || u.Active != test.weight+1 {
					t.Errorf("%+v, %v, want %d active", u, err, test.weight+1)
				}
			} else {
				received(t, lease.Context().Done(), patience, "the holder to be told")
				if cause := context.Cause(lease.Context()); !errors.Is(cause, gotsem.ErrLeaseLost) {
					t.Errorf("the cause is %v, want ErrLeaseLost", cause)
				}
				if m := members(t, srv, "evict"); len(m) != 1 || m[slot] == 0 {
					t.Errorf("%v, want only the peer's", m)
				}
			}
			if err := lease.Release(ctx); err != nil {
				t.Error(err)
			}
			fast.release(t, "evict", slot)
			soon(t, patience, "nothing to be held, of any weight", func() bool {
				l, err := ours.Try(ctx, "evict", gotsem.Weight(test.limit))
				if err != nil {
					return false
				}
				if err := l.Release(ctx); err != nil {
					t.Error(err)
				}
				return true
			})
		})
	}
}

// A peer with a short TTL shortens the key of all; our lease in it is put back.
func TestRollOutRestoresLeasesOfAShortKey(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	ctx := t.Context()
	ours := fullSem(t, srv.Client(), 3, func(o *gotsem.Options) { o.TTL = 3 * time.Second })
	short := newPeer(srv.Client(), 50*time.Millisecond, 0)
	lease, err := ours.Acquire(ctx, "short")
	if err != nil {
		t.Fatal(err)
	}
	short.acquire(t, "short", 3)
	soon(t, patience, "the key to be gone", func() bool { return len(members(t, srv, "short")) == 0 })
	soon(t, patience, "the lease to be put back", func() bool { return members(t, srv, "short")[lease.SlotID()] != 0 })
	if err := context.Cause(lease.Context()); err != nil {
		t.Errorf("the lease ended: %v", err)
	}
	if err := lease.Release(ctx); err != nil {
		t.Error(err)
	}
}
