package redisstore

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem/store"
)

const (
	pingEvery   = time.Second     // on a subscription that is silent
	idleTimeout = 3 * time.Second // without a message, pongs included, a subscription is given up
	lingerFor   = 10 * time.Second
	retryAfter  = 100 * time.Millisecond // a subscription that failed
	retryMax    = time.Minute            // one that is refused, each time twice as long
)

// subscriber hears whom to wake. On a single server and with Sentinel a process has one
// channel. On a Cluster its waiters are told by shard channels, one per id that is
// waited for, which do not leave their shard; the process's channel is for the
// holders of leases that are taken away.
//
// A wake-up may be lost: whenever a subscription is made, or made again, every waiter
// is told to ask.
type subscriber struct {
	client        *client
	token         string
	refusals      atomic.Int32 // of subscriptions, one after the other
	confirmGrants bool         // grants are not passed on: a waiter must ask, since more than the grant is needed

	callbacks atomic.Pointer[[]*func(store.Wakeup)]

	mu     sync.Mutex
	stop   context.CancelFunc // of the process's channel; nil: nobody listens
	done   sync.WaitGroup
	ctx    context.Context
	shards shardSubscriber
}

// deliver passes on what a script said: see push in the prelude.
func (e *subscriber) deliver(text string) {
	w := store.Wakeup{SlotID: text}
	if part := strings.SplitN(text, " ", 4); len(part) == 4 {
		asked, err1 := strconv.ParseUint(part[0], 10, 64)
		fence, err2 := strconv.ParseUint(part[1], 10, 64)
		limit, err3 := strconv.Atoi(part[2])
		if err1 == nil && err2 == nil && err3 == nil {
			w = store.Wakeup{SlotID: part[3]}
			e.shards.leave(w.SlotID) // if it must ask after all, it joins again
			if !e.confirmGrants {
				w.PollID, w.Fence, w.Limit = asked, fence, limit
			}
		}
	}
	e.tell(w)
}

func (e *subscriber) tell(w store.Wakeup) {
	if cs := e.callbacks.Load(); cs != nil {
		for _, c := range *cs {
			(*c)(w)
		}
	}
}

// add has wake called from now on, until the func that it returns is.
func (e *subscriber) add(wake func(store.Wakeup)) (remove func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.change(func(cs []*func(store.Wakeup)) []*func(store.Wakeup) { return append(cs, &wake) })
	if e.stop == nil {
		e.ctx, e.stop = context.WithCancel(context.Background())
		channel := wakeChannel(e.token)
		ctx := e.ctx
		e.done.Go(func() {
			e.listen(ctx, func() (*redis.PubSub, error) { return e.client.subscribe(ctx, channel) }, nil)
		})
	}
	return sync.OnceFunc(func() {
		e.mu.Lock()
		left := e.change(func(cs []*func(store.Wakeup)) []*func(store.Wakeup) {
			return slices.DeleteFunc(cs, func(c *func(store.Wakeup)) bool { return c == &wake })
		})
		stop := e.stop
		if left == 0 {
			e.stop = nil
		}
		e.mu.Unlock()
		if left == 0 {
			stop()
			e.shards.close()
			e.done.Wait()
		}
	})
}

// context is the one that ends with the last listener; nil if there never was one.
func (e *subscriber) context() context.Context {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ctx
}

// listened reports whether anybody listens.
func (e *subscriber) listened() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stop != nil
}

func (e *subscriber) change(f func([]*func(store.Wakeup)) []*func(store.Wakeup)) int {
	var cs []*func(store.Wakeup)
	if old := e.callbacks.Load(); old != nil {
		cs = slices.Clone(*old)
	}
	cs = f(cs)
	e.callbacks.Store(&cs)
	return len(cs)
}

// errMoved ends a subscription whose channel has moved to another node.
var errMoved = errors.New("the channel has moved")

// listen keeps a subscription until ctx is over. changed, if not nil, is told why it
// ended, and says whether to subscribe anew.
func (e *subscriber) listen(ctx context.Context, subscribe func() (*redis.PubSub, error), changed func(error) bool) {
	for ctx.Err() == nil {
		ps, err := subscribe()
		if err == nil {
			err = e.receive(ctx, ps)
		}
		if ctx.Err() != nil || changed != nil && !changed(err) {
			return
		}
		e.client.reloadOn(err)
		pause(ctx, e.retryIn(err))
	}
}

// retryIn is how long to wait after a subscription failed. What Redis refuses, such as a
// user without the right to the channel, it will refuse again: the pause grows, so that
// a process does not connect ten times a second for ever. Check says what is missing, and
// waiters are woken by their polls.
func (e *subscriber) retryIn(err error) time.Duration {
	if !isConfig(err) {
		return retryAfter
	}
	n := min(e.refusals.Add(1)-1, 16)
	return min(retryAfter<<n, retryMax)
}

// pause waits for d, or until ctx is over.
func pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// receive reads a subscription until it fails, falls silent or ctx is over. go-redis
// sends pings on it by itself, but waits for no pong, so that a half-open
// connection would stay silent for good.
func (e *subscriber) receive(ctx context.Context, ps *redis.PubSub) error {
	stop := context.AfterFunc(ctx, func() { _ = ps.Close() }) // reading does not end with ctx
	defer func() {
		stop()
		_ = ps.Close()
	}()
	heard := time.Now()
	for {
		msg, err := ps.ReceiveTimeout(ctx, pingEvery)
		switch {
		case err == nil:
			heard = time.Now()
		case ctx.Err() != nil:
			return ctx.Err()
		case !isTimeout(err):
			return err
		case time.Since(heard) > idleTimeout:
			return err
		default:
			if err := ps.Ping(ctx); err != nil {
				return err
			}
			continue
		}
		switch m := msg.(type) {
		case *redis.Message:
			e.deliver(m.Payload)
		case *redis.Subscription:
			switch m.Kind {
			case "subscribe", "ssubscribe":
				e.refusals.Store(0)
				e.tell(store.Wakeup{})
			case "sunsubscribe":
				if e.shards.wants(m.Channel) {
					return errMoved
				}
			}
		}
	}
}
