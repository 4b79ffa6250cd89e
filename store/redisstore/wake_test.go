//go:build unix

package redisstore

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem/internal/leaktest"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store"
)

// ear is a store and what it was told.
type ear struct {
	*Store
	heard chan string
	stop  func()
}

func listening(t testing.TB, rdb redis.UniversalClient) ear {
	t.Helper()
	e := ear{Store: opened(t, rdb, "sem:"), heard: make(chan string, 1000)}
	e.stop = e.OnWake(func(w store.Wakeup) { e.heard <- w.SlotID })
	t.Cleanup(e.stop)
	return e
}

func (e ear) await(t testing.TB, slot string) {
	t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		select {
		case got := <-e.heard:
			if got == slot {
				return
			}
		case <-timer.C:
			t.Fatalf("waited %v for word of %q", patience, slot)
		}
	}
}

// handOff has one store hold the only slot of id, the other wait for it, and the
// first release it.
func handOff(t testing.TB, from *Store, to ear, id string) {
	t.Helper()
	ask := func(s *Store, slot string) store.Outcome {
		d, err := s.Acquire(t.Context(), &store.Request{ID: id, SlotID: slot, Weight: 1, Limit: 1, TTL: time.Minute, Queue: 5, Budget: 5 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		return d.Outcome
	}
	give := func(s *Store, slot string) {
		if _, err := s.Release(t.Context(), &store.Release{ID: id, SlotID: slot, Budget: 5 * time.Second}); err != nil {
			t.Fatal(err)
		}
	}
	if o := ask(from, "holder"); o != store.Granted {
		t.Fatal(o)
	}
	if o := ask(to.Store, "waiter"); o != store.Waiting {
		t.Fatal(o)
	}
	if to.client.cluster { // its shard channel is subscribed to in the background; then all are told
		to.await(t, "")
	}
	give(from, "holder")
	to.await(t, "waiter")
	if o := ask(to.Store, "waiter"); o != store.Granted {
		t.Fatal(o)
	}
	give(to.Store, "waiter")
}

// A subscription that is killed is made again, and everybody is told to ask.
func TestSubscriptionIsMadeAgain(t *testing.T) {
	srv := redistest.Start(t)
	from, to := opened(t, srv.Client(), "sem:"), listening(t, srv.Client())
	to.await(t, "")
	handOff(t, from, to, "x")
	for range 3 {
		if n := command(t, srv, "CLIENT", "KILL", "TYPE", "pubsub").(int64); n != 1 {
			t.Fatalf("%d subscriptions, want 1", n)
		}
		to.await(t, "")
		handOff(t, from, to, "x")
	}
}

// A subscription over a connection that is half open, up for both sides and carrying
// nothing, is noticed.
func TestHalfOpenSubscription(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	relay := redistest.NewRelay(t, srv.Addr())
	rdb := redis.NewClient(&redis.Options{Addr: relay.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	from, to := opened(t, srv.Client(), "sem:"), listening(t, rdb)
	to.await(t, "")
	relay.FreezeExisting()
	frozen := time.Now()
	to.await(t, "")
	t.Logf("noticed after %v", time.Since(frozen).Round(time.Millisecond))
	if took := time.Since(frozen); took > 5*idleTimeout {
		t.Errorf("a half-open connection was noticed after %v, want about %v", took, idleTimeout)
	}
	handOff(t, from, to, "x")
}

// A client of one's own may panic when it is asked to subscribe, as a wrapped Ring whose
// shards are all down does: that must not end the process, and the subscription is made
// later.
func TestSubscribingSurvivesAPanic(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	rdb := &panicking{UniversalClient: srv.Client()}
	rdb.times.Store(3)
	e := listening(t, rdb)
	e.await(t, "")
	if n := rdb.times.Load(); n > 0 {
		t.Errorf("%d panics are left: that tests nothing", n)
	}
}

type panicking struct {
	redis.UniversalClient
	times atomic.Int32
}

func (p *panicking) Subscribe(ctx context.Context, channels ...string) *redis.PubSub {
	if p.times.Add(-1) >= 0 {
		panic("no shards")
	}
	return p.UniversalClient.Subscribe(ctx, channels...)
}

// On a Cluster the shard channel of an id moves with its slot.
func TestShardChannelMoves(t *testing.T) {
	t.Parallel()
	cl := redistest.StartCluster(t, 3, 0)
	from, to := opened(t, cl.Client(), "sem:"), listening(t, cl.Client())
	to.await(t, "")
	for i := range 3 { // several channels on one node
		handOff(t, from, to, fmt.Sprint("id", i))
	}
	slot := redistest.Slot("sem:moves")
	ask := func(s *Store, name string) store.Outcome {
		d, err := s.Acquire(t.Context(), &store.Request{ID: "moves", SlotID: name, Weight: 1, Limit: 1, TTL: time.Minute, Queue: 5, Budget: 5 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		return d.Outcome
	}
	if o := ask(from, "holder"); o != store.Granted {
		t.Fatal(o)
	}
	if o := ask(to.Store, "waiter"); o != store.Waiting {
		t.Fatal(o)
	}
	to.await(t, "") // subscribed
	owner := cl.NodeFor(slot)
	next := cl.Nodes()[0]
	if next == owner {
		next = cl.Nodes()[1]
	}
	cl.MigrateSlot(slot, owner, next)
	to.await(t, "") // subscribed there
	// The place in line has lapsed or not; asking keeps it.
	if o := ask(to.Store, "waiter"); o != store.Waiting {
		t.Fatal(o)
	}
	if _, err := from.Release(t.Context(), &store.Release{ID: "moves", SlotID: "holder", Budget: 5 * time.Second}); err != nil {
		t.Fatal(err)
	}
	to.await(t, "waiter")
}

// A waiter whose id turns out to be misconfigured neither asks again nor gives back: it
// leaves the channel of its shard with the answer.
func TestMisconfiguredWaiterLeavesItsShard(t *testing.T) {
	t.Parallel()
	cl := redistest.StartCluster(t, 3, 0)
	from, to := opened(t, cl.Client(), "sem:"), listening(t, cl.Client())
	to.await(t, "")
	ask := func(s *Store, id, slot string) error {
		_, err := s.Acquire(t.Context(), &store.Request{ID: id, SlotID: slot, Weight: 1, Limit: 1, TTL: time.Minute, Queue: 5, Budget: 5 * time.Second})
		return err
	}
	waiters := func() int {
		to.subscriber.shards.mu.Lock()
		defer to.subscriber.shards.mu.Unlock()
		n := 0
		for _, c := range to.subscriber.shards.channels {
			n += c.waiters
		}
		if n != len(to.subscriber.shards.waiters) {
			t.Errorf("%d waiters on the channels, %d in all", n, len(to.subscriber.shards.waiters))
		}
		return n
	}
	const ids = 6 // on several nodes
	for i := range ids {
		id := fmt.Sprint("id", i)
		if err := ask(from, id, "holder"); err != nil {
			t.Fatal(err)
		}
		if err := ask(to.Store, id, "waiter"+id); err != nil {
			t.Fatal(err)
		}
	}
	if n := waiters(); n != ids {
		t.Fatalf("%d wait at their shards, want %d", n, ids)
	}
	rdb := cl.Client()
	for i := range ids {
		id := fmt.Sprint("id", i)
		if err := rdb.Set(t.Context(), "sem:"+id, "not a set", 0).Err(); err != nil {
			t.Fatal(err)
		}
		if err := ask(to.Store, id, "waiter"+id); !errors.Is(err, store.ErrConfig) {
			t.Fatalf("%v, want store.ErrConfig", err)
		}
	}
	if n := waiters(); n != 0 {
		t.Errorf("%d of %d waiters are left at their shards", n, ids)
	}
}

// Nobody listens any more: no goroutine and no connection of ours is left.
func TestListeningEnds(t *testing.T) {
	srv := redistest.Start(t)
	cl := redistest.StartCluster(t, 3, 0)
	for name, connect := range map[string]func() redis.UniversalClient{
		"single":  func() redis.UniversalClient { return redis.NewClient(&redis.Options{Addr: srv.Addr()}) },
		"cluster": func() redis.UniversalClient { return redis.NewClusterClient(&redis.ClusterOptions{Addrs: cl.Addrs()}) },
	} {
		t.Run(name, func(t *testing.T) {
			check := leaktest.Begin(t)
			rdb := connect()
			e := listening(t, rdb)
			e.await(t, "")
			second := e.OnWake(func(store.Wakeup) {})
			second()
			second()
			from := opened(t, rdb, "sem:")
			handOff(t, from, e, "x")
			e.stop()
			e.stop()
			_ = e.Close()
			_ = from.Close()
			_ = rdb.Close()
			check()
		})
	}
}

// A user without the right to the channel is refused each time: the store asks less and
// less often, and hears again when the right is given.
func TestRefusedSubscriptionIsRetriedLessAndLess(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	command(t, srv, "ACL", "SETUSER", "mute", "on", "nopass", "+@all", "~*", "resetchannels")
	e := listening(t, srv.Client(func(o *redis.Options) { o.Username, o.Password = "mute", "x" }))
	soon(t, "four refusals", func() bool { return e.subscriber.refusals.Load() >= 4 })
	for _, want := range []time.Duration{1600 * time.Millisecond, 3200 * time.Millisecond} {
		e.subscriber.refusals.CompareAndSwap(3, 4)
		if got := e.subscriber.retryIn(proto("NOPERM this user has no permissions")); got < want {
			t.Errorf("the next pause is %v, want %v at least", got, want)
		}
	}
	if got := e.subscriber.retryIn(errTimeout); got != retryAfter {
		t.Errorf("after a break the pause is %v, want %v", got, retryAfter)
	}
	e.subscriber.refusals.Store(100)
	if got := e.subscriber.retryIn(proto("NOPERM")); got != retryMax {
		t.Errorf("the longest pause is %v, want %v", got, retryMax)
	}
}
