package redisstore

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// client is how the store speaks to Redis.
//
// By default go-redis ignores the deadline of a ctx while it reads, tries four
// times, and dials for 5 s: a call on a Redis that hangs takes 5 s and more. So the
// store's client is one whose calls end with their ctx:
//
//   - a client with ContextTimeoutEnabled is used as it is;
//   - a single-server or Cluster client gets a twin with the same options, but for
//     those, and a pool of its own, which a busy application cannot starve;
//   - a Sentinel client is used through a view that shares its pool, since only
//     its own pool learns of a fail-over;
//   - of any other client (a Ring, a mock) nothing is known: its calls are made on
//     goroutines of the store, which may be left behind (see pump).
type client struct {
	redis.UniversalClient
	direct  bool                  // calls end with their ctx
	shared  bool                  // the pool is the caller's: waiting for a connection needs a bound too
	cluster bool                  // keys of different slots do not go into one call
	perID   bool                  // nor do keys of different ids
	once    redis.UniversalClient // nil, or the same client where a command is sent once, whatever becomes of it
	twin    interface{ Close() error }

	reloaded atomic.Int64 // when the Cluster was last asked who serves what, Unix ms
}

// twinTimeout bounds what a ctx does not: it always has a shorter deadline.
const twinTimeout = 5 * time.Second

func newClient(rdb redis.UniversalClient) *client {
	switch c := rdb.(type) {
	case *redis.Client:
		o := c.Options()
		switch {
		case o.ContextTimeoutEnabled:
			return &client{UniversalClient: c, direct: true, shared: true}
		case o.Addr == sentinelAddr:
			view := c.WithTimeout(twinTimeout)
			view.Options().ContextTimeoutEnabled = true // the view's own copy
			return &client{UniversalClient: view, direct: true, shared: true}
		}
		t := *o
		t.ContextTimeoutEnabled = true
		t.ReadTimeout, t.WriteTimeout, t.PoolTimeout = twinTimeout, twinTimeout, twinTimeout
		t.MaxRetries, t.MinRetryBackoff, t.MaxRetryBackoff = 1, time.Millisecond, 8*time.Millisecond
		t.DialerRetries, t.DialerRetryTimeout = 1, time.Millisecond
		t.MinIdleConns = 0
		t.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
		twin := redis.NewClient(&t)
		once := twin.WithTimeout(twinTimeout) // over the same pool
		once.Options().MaxRetries = 0         // its own copy
		return &client{UniversalClient: twin, once: once, direct: true, twin: twin}
	case *redis.ClusterClient:
		o := c.Options()
		if o.ContextTimeoutEnabled {
			return &client{UniversalClient: c, direct: true, shared: true, cluster: true}
		}
		t := *o
		t.ContextTimeoutEnabled = true
		t.ReadTimeout, t.WriteTimeout, t.PoolTimeout = twinTimeout, twinTimeout, twinTimeout
		t.MinRetryBackoff, t.MaxRetryBackoff = time.Millisecond, 8*time.Millisecond
		t.DialerRetries, t.DialerRetryTimeout = 1, time.Millisecond
		t.MinIdleConns = 0
		t.ReadOnly, t.RouteByLatency, t.RouteRandomly = false, false, false
		t.ClusterStateReloadInterval = 2 * time.Second
		t.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
		twin := redis.NewClusterClient(&t)
		return &client{UniversalClient: twin, direct: true, cluster: true, twin: twin}
	case *redis.Ring:
		return &client{UniversalClient: c, perID: true}
	}
	return &client{UniversalClient: rdb, perID: true}
}

// trips is the client that trips are made with.
func (c *client) trips() redis.UniversalClient {
	if c.once != nil {
		return c.once
	}
	return c.UniversalClient
}

// hearing subscribes to a channel. A Ring panics there when none of its shards is up.
func (c *client) hearing(ctx context.Context, channel string) (ps *redis.PubSub, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("redisstore: subscribing to %s: %v", channel, p)
		}
	}()
	return c.Subscribe(ctx, channel), nil
}

// sentinelAddr is what go-redis writes into Options.Addr of a client that
// NewFailoverClient made.
const sentinelAddr = "FailoverClient"

// reloadEvery is the least time between two questions to a Cluster who serves
// what.
const reloadEvery = 250 * time.Millisecond

// lookAround has a Cluster client learn who serves its slots, after an error that
// suggests a change. By itself go-redis looks when a node says so, which a dead one
// does not, and else once a minute
// (https://github.com/redis/go-redis/issues/3979).
func (c *client) lookAround(err error) {
	cl, ok := c.UniversalClient.(*redis.ClusterClient)
	if !ok || !isNetwork(err) {
		return
	}
	now, last := time.Now().UnixMilli(), c.reloaded.Load()
	if now-last >= reloadEvery.Milliseconds() && c.reloaded.CompareAndSwap(last, now) {
		cl.ReloadState(context.Background()) // in the background, one at a time
	}
}
