package redisstore

import (
	"context"
	"fmt"
	"net"
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
//   - of any other client (a type that wraps one, a mock) nothing is known.
//
// A call on a twin ends with its ctx, if that has both a deadline and a Done: reading
// goes by the one, and waiting for a connection by the other. So do calls on the
// others, in so far as no code of the caller runs in them (a dialer, a hook, a source of
// credentials), which may do as it likes. They are made where they can be left behind:
// see batcher, and aside.
type client struct {
	redis.UniversalClient
	ctxBound bool                  // calls end with their ctx, for certain
	shared   bool                  // the pool is the caller's, and so are the hooks
	cluster  bool                  // it is a ClusterClient
	told     bool                  // one that is told who serves what, and does not ask
	perID    bool                  // keys of different ids do not go into one call
	once     redis.UniversalClient // nil, or the same client where a command is sent once, whatever becomes of it
	twin     interface{ Close() error }
	open     *connections // of the twin

	broken   atomic.Int64 // sendings that a Cluster's twin may have repeated: see nodeHook
	reloaded atomic.Int64 // when the Cluster was last asked who serves what, Unix ms
	left     leftBehind
	meeting  meeting
}

const (
	// twinTimeout bounds what a ctx does not: it always has a shorter deadline.
	twinTimeout = 5 * time.Second
	// dialTimeout is how long a dial of a twin holds a place in its pool.
	dialTimeout = 2 * time.Second
	// connectWithin is how long it may take to subscribe.
	connectWithin = time.Second
)

// defaultBudget bounds a call that says nothing of its own, and whose ctx has no
// deadline: every call has an end.
const defaultBudget = 5 * time.Second

func newClient(rdb redis.UniversalClient) *client {
	switch c := rdb.(type) {
	case *redis.Client:
		o := c.Options()
		switch {
		case o.ContextTimeoutEnabled:
			return &client{UniversalClient: c, shared: true}
		case o.Addr == sentinelAddr:
			view := c.WithTimeout(twinTimeout)
			view.Options().ContextTimeoutEnabled = true // the view's own copy
			return &client{UniversalClient: view, shared: true}
		}
		t := *o
		t.ContextTimeoutEnabled = true
		t.ReadTimeout, t.WriteTimeout, t.PoolTimeout = twinTimeout, twinTimeout, twinTimeout
		t.MaxRetries, t.MinRetryBackoff, t.MaxRetryBackoff = 1, time.Millisecond, 8*time.Millisecond
		open := &connections{after: idleAfter}
		t.DialTimeout, t.Dialer = min(t.DialTimeout, dialTimeout), open.tracked(leavable(o.Dialer))
		t.DialerRetries, t.DialerRetryTimeout = 1, time.Millisecond
		t.MinIdleConns = 0
		t.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
		twin := redis.NewClient(&t)
		once := twin.WithTimeout(twinTimeout) // over the same pool
		once.Options().MaxRetries = 0         // its own copy
		foreign := o.OnConnect != nil || o.Limiter != nil || o.CredentialsProvider != nil ||
			o.CredentialsProviderContext != nil || o.StreamingCredentialsProvider != nil
		return &client{UniversalClient: twin, once: once, ctxBound: !foreign, twin: twin, open: open}
	case *redis.ClusterClient:
		o := c.Options()
		if o.ContextTimeoutEnabled {
			return &client{UniversalClient: c, shared: true, cluster: true, told: o.ClusterSlots != nil}
		}
		t := *o
		t.ContextTimeoutEnabled = true
		t.ReadTimeout, t.WriteTimeout, t.PoolTimeout = twinTimeout, twinTimeout, twinTimeout
		t.MinRetryBackoff, t.MaxRetryBackoff = time.Millisecond, 8*time.Millisecond
		t.MaxRetries = -1 // a node sends once; the Cluster sends on, where nodeHook sees it
		dial := o.Dialer
		if dial == nil {
			dial = redis.NewDialer(&redis.Options{DialTimeout: o.DialTimeout, TLSConfig: o.TLSConfig})
		}
		open := &connections{after: idleAfter}
		t.DialTimeout, t.Dialer = min(t.DialTimeout, dialTimeout), open.tracked(leavable(dial))
		t.DialerRetries, t.DialerRetryTimeout = 1, time.Millisecond
		t.MinIdleConns = 0
		t.ReadOnly, t.RouteByLatency, t.RouteRandomly = false, false, false
		t.ClusterStateReloadInterval = 2 * time.Second
		t.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
		twin := redis.NewClusterClient(&t)
		foreign := o.OnConnect != nil || o.NewClient != nil || o.ClusterSlots != nil || o.CredentialsProvider != nil ||
			o.CredentialsProviderContext != nil || o.StreamingCredentialsProvider != nil
		made := &client{UniversalClient: twin, ctxBound: !foreign, cluster: true, told: o.ClusterSlots != nil, twin: twin, open: open}
		twin.OnNewNode(func(node *redis.Client) { node.AddHook(nodeHook{&made.broken}) })
		return made
	}
	return &client{UniversalClient: rdb, shared: true, perID: true}
}

// leftMax is how many calls, and how many dials, may hang with nobody waiting for them.
const leftMax = 64

// leftBehind counts calls that were left behind and have not ended.
type leftBehind struct{ n atomic.Int32 }

var errHangs = fmt.Errorf("redisstore: %d calls hang in the client, beyond their time: %w", leftMax, context.DeadlineExceeded)

// aside makes a call where it can be left behind when ctx is over, or defaultBudget if
// ctx has no end. discard, if not nil, gets what comes too late.
func aside[T any](ctx context.Context, left *leftBehind, call func(ctx context.Context) (T, error), discard func(T)) (got T, err error) {
	if left.n.Load() >= leftMax {
		return got, errHangs
	}
	if _, ok := ctx.Deadline(); !ok {
		bounded, cancel := context.WithTimeout(ctx, defaultBudget)
		defer cancel()
		ctx = bounded
	}
	own := ctx
	if batch, ok := ctx.(*batchContext); ok {
		// It is used again when its batch has ended, which a call that was left behind
		// outlives.
		bounded, cancel := context.WithDeadline(context.Background(), batch.due)
		defer cancel()
		own = bounded
	}
	type answer struct {
		got T
		err error
	}
	answers := make(chan answer, 1)
	left.n.Add(1)
	go func() {
		defer left.n.Add(-1)
		got, err := call(own)
		answers <- answer{got, err}
	}()
	select {
	case a := <-answers:
		return a.got, a.err
	case <-ctx.Done():
		if discard != nil {
			go func() {
				if a := <-answers; a.err == nil {
					discard(a.got)
				}
			}()
		}
		return got, ctx.Err()
	}
}

// leavable has a dialer end with its ctx: go-redis's own does not while it shakes hands
// over TLS, and a caller's may look at nothing. A connection that comes too late is closed.
func leavable(dial dialer) dialer {
	var left leftBehind
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		return aside(ctx, &left, func(ctx context.Context) (net.Conn, error) { return dial(ctx, network, addr) },
			func(late net.Conn) { _ = late.Close() })
	}
}

// batches is the client that batches are sent with.
func (c *client) batches() redis.UniversalClient {
	if c.once != nil {
		return c.once
	}
	return c.UniversalClient
}

// subscribe subscribes to a channel.
func (c *client) subscribe(ctx context.Context, channel string) (*redis.PubSub, error) {
	return c.subscribeBy(ctx, channel, func(ctx context.Context) *redis.PubSub { return c.Subscribe(ctx, channel) })
}

// subscribeBy makes a subscription. Connecting may hang, and then closing the
// subscription does too, which waits for it: so it is left behind with ctx, or after
// connectWithin, and closed when it has ended.
func (c *client) subscribeBy(ctx context.Context, channel string, subscribe func(ctx context.Context) *redis.PubSub) (*redis.PubSub, error) {
	bounded, cancel := context.WithTimeout(ctx, connectWithin)
	defer cancel()
	return aside(bounded, &c.left, func(ctx context.Context) (ps *redis.PubSub, err error) {
		defer func() {
			if p := recover(); p != nil { // a client of one's own may, such as a wrapped Ring
				err = fmt.Errorf("redisstore: subscribing to %s: %v", channel, p)
			}
		}()
		return subscribe(ctx), nil
	}, func(late *redis.PubSub) { _ = late.Close() })
}

// sentinelAddr is what go-redis writes into Options.Addr of a client that
// NewFailoverClient made.
const sentinelAddr = "FailoverClient"

// reloadEvery is the least time between two questions to a Cluster who serves
// what.
const reloadEvery = 250 * time.Millisecond

// reloadOn has a Cluster client learn who serves its slots, after an error that suggests
// a change. By itself go-redis looks when a node says so, which a dead one does not, and
// else once a minute (https://github.com/redis/go-redis/issues/3979).
func (c *client) reloadOn(err error) {
	if isNetwork(err) {
		c.reloadTopology()
	}
}

// reloadTopology is reloadOn where it is known that something is wrong.
func (c *client) reloadTopology() {
	cl, ok := c.UniversalClient.(*redis.ClusterClient)
	if !ok {
		return
	}
	now, last := time.Now().UnixMilli(), c.reloaded.Load()
	if now-last >= reloadEvery.Milliseconds() && c.reloaded.CompareAndSwap(last, now) {
		cl.ReloadState(context.Background()) // in the background, one at a time
	}
}
