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
	pingEvery  = time.Second     // on a subscription that is silent
	deafAfter  = 3 * time.Second // without a word, pongs included, a subscription is given up
	lingerFor  = 10 * time.Second
	retryAfter = 100 * time.Millisecond // a subscription that failed
	retryMax   = time.Minute            // one that is refused, each time twice as long
)

// ears hear whom to wake. On a single server and with Sentinel a process has one
// channel. On a Cluster its waiters are told by shard channels, one per id that is
// waited for, which do not leave their shard; the process's channel is for the
// holders of leases that are taken away.
//
// A word may be lost: whenever a subscription is made, or made again, every waiter
// is told to ask.
type ears struct {
	client   *client
	token    string
	refusals atomic.Int32 // of subscriptions, one after the other
	doubting bool         // grants are not passed on: a waiter must ask, since more than the grant is needed

	callbacks atomic.Pointer[[]*func(store.Wakeup)]

	mu     sync.Mutex
	stop   context.CancelFunc // of the process's channel; nil: nobody listens
	done   sync.WaitGroup
	ctx    context.Context
	shards shardEars
}

// hears passes on what a script said: see push in the prelude.
func (e *ears) hears(text string) {
	w := store.Wakeup{SlotID: text}
	if part := strings.SplitN(text, " ", 4); len(part) == 4 {
		asked, err1 := strconv.ParseUint(part[0], 10, 64)
		fence, err2 := strconv.ParseUint(part[1], 10, 64)
		limit, err3 := strconv.Atoi(part[2])
		if err1 == nil && err2 == nil && err3 == nil {
			w = store.Wakeup{SlotID: part[3]}
			e.shards.leave(w.SlotID) // if it must ask after all, it joins again
			if !e.doubting {
				w.PollID, w.Fence, w.Limit = asked, fence, limit
			}
		}
	}
	e.tell(w)
}

func (e *ears) tell(w store.Wakeup) {
	if cs := e.callbacks.Load(); cs != nil {
		for _, c := range *cs {
			(*c)(w)
		}
	}
}

// add has wake called from now on, until the func that it returns is.
func (e *ears) add(wake func(store.Wakeup)) (remove func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.change(func(cs []*func(store.Wakeup)) []*func(store.Wakeup) { return append(cs, &wake) })
	if e.stop == nil {
		e.ctx, e.stop = context.WithCancel(context.Background())
		channel := wakeChannel(e.token)
		ctx := e.ctx
		e.done.Go(func() {
			e.listen(ctx, func() (*redis.PubSub, error) { return e.client.hearing(ctx, channel) }, nil)
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
func (e *ears) context() context.Context {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ctx
}

func (e *ears) change(f func([]*func(store.Wakeup)) []*func(store.Wakeup)) int {
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
func (e *ears) listen(ctx context.Context, subscribe func() (*redis.PubSub, error), changed func(error) bool) {
	for ctx.Err() == nil {
		ps, err := subscribe()
		if err == nil {
			err = e.hear(ctx, ps)
		}
		if ctx.Err() != nil || changed != nil && !changed(err) {
			return
		}
		e.client.lookAround(err)
		pause(ctx, e.retryIn(err))
	}
}

// retryIn is how long to wait after a subscription failed. What Redis refuses, such as a
// user without the right to the channel, it will refuse again: the pause grows, so that
// a process does not connect ten times a second for ever. Check says what is missing, and
// waiters are woken by their polls.
func (e *ears) retryIn(err error) time.Duration {
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

// hear reads a subscription until it fails, falls silent or ctx is over. go-redis
// sends pings on it by itself, but waits for no pong, so that a half-open
// connection would stay silent for good.
func (e *ears) hear(ctx context.Context, ps *redis.PubSub) error {
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
		case time.Since(heard) > deafAfter:
			return err
		default:
			if err := ps.Ping(ctx); err != nil {
				return err
			}
			continue
		}
		switch m := msg.(type) {
		case *redis.Message:
			e.hears(m.Payload)
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

// shardEars are the shard channels of a Cluster client: a subscription per node, and
// on it the channels that are waited on there.
type shardEars struct {
	ears *ears

	mu       sync.Mutex
	waiters  map[string]string // slot id -> channel
	channels map[string]*shardChannel
	nodes    map[string]*shardNode // by address
	timer    *time.Timer           // drops channels that nobody waits on any more
}

type shardChannel struct {
	waiters int
	since   time.Time // when the last waiter left
	node    *shardNode
}

type shardNode struct {
	addr     string
	ctx      context.Context
	cancel   context.CancelFunc
	ps       *redis.PubSub
	channels map[string]bool
}

// join has the waiter told by the channel.
func (s *shardEars) join(slotID, channel string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.waiters[slotID]; ok {
		return
	}
	if s.waiters == nil {
		s.waiters, s.channels, s.nodes = make(map[string]string), make(map[string]*shardChannel), make(map[string]*shardNode)
	}
	s.waiters[slotID] = channel
	c := s.channels[channel]
	if c == nil {
		c = new(shardChannel)
		s.channels[channel] = c
	}
	c.waiters++
	if c.node == nil {
		s.place(channel, c, 0)
	}
}

// leave ends join. The channel is kept for a while, since the next waiter of the id
// may be near.
func (s *shardEars) leave(slotID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	channel, ok := s.waiters[slotID]
	if !ok {
		return
	}
	delete(s.waiters, slotID)
	c := s.channels[channel]
	if c.waiters--; c.waiters == 0 {
		c.since = time.Now()
		if s.timer == nil {
			s.timer = time.AfterFunc(lingerFor, s.drop)
		}
	}
}

// wants reports whether the channel is still waited on.
func (s *shardEars) wants(channel string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.channels[channel]
	return c != nil && c.node != nil
}

// drop ends the subscriptions to channels that nobody has waited on for a while.
func (s *shardEars) drop() {
	s.mu.Lock()
	s.timer = nil
	idle := false
	quiet := make(map[*shardNode][]string)
	for channel, c := range s.channels {
		switch {
		case c.waiters > 0:
		case time.Since(c.since) < lingerFor:
			idle = true
		default:
			delete(s.channels, channel)
			if n := c.node; n != nil {
				c.node = nil
				delete(n.channels, channel)
				if len(n.channels) == 0 && n.cancel != nil {
					delete(s.nodes, n.addr)
					n.cancel()
				} else if n.ps != nil {
					quiet[n] = append(quiet[n], channel)
				}
			}
		}
	}
	if idle {
		s.timer = time.AfterFunc(lingerFor, s.drop)
	}
	s.mu.Unlock()
	for n, channels := range quiet { // a connection may be slow: not while others want the lock
		for _, channel := range channels {
			_ = n.ps.SUnsubscribe(n.ctx, channel)
		}
	}
}

// place subscribes to the channel at the node that serves its slot. mu is held; the
// work that takes time is done in the background.
func (s *shardEars) place(channel string, c *shardChannel, after time.Duration) {
	e := s.ears
	cluster, ok := e.client.UniversalClient.(*redis.ClusterClient)
	ctx := e.context()
	if !ok || ctx == nil || ctx.Err() != nil {
		return
	}
	pending := &shardNode{} // so that it is placed once
	c.node = pending
	e.done.Go(func() {
		pause(ctx, after)
		for ctx.Err() == nil {
			bounded, cancel := context.WithTimeout(ctx, time.Second)
			node, err := cluster.MasterForKey(bounded, channel)
			cancel()
			if err == nil {
				s.subscribe(ctx, node, channel, pending)
				return
			}
			e.client.lookAround(context.DeadlineExceeded)
			pause(ctx, retryAfter)
		}
	})
}

// subscribe adds the channel to the subscription at node, and starts that one if it
// is the first. It may take as long as connecting does, and holds no lock meanwhile.
func (s *shardEars) subscribe(ctx context.Context, node *redis.Client, channel string, pending *shardNode) {
	s.mu.Lock()
	c := s.channels[channel]
	if c == nil || c.node != pending {
		s.mu.Unlock()
		return // nobody waits on it any more
	}
	addr := node.Options().Addr
	n := s.nodes[addr]
	first := n == nil
	if first {
		n = &shardNode{addr: addr, ps: node.SSubscribe(ctx), channels: make(map[string]bool)}
		n.ctx, n.cancel = context.WithCancel(ctx)
		s.nodes[addr] = n
	}
	n.channels[channel] = true
	c.node = n
	s.mu.Unlock()
	if err := n.ps.SSubscribe(n.ctx, channel); err != nil {
		if first {
			_ = n.ps.Close()
		}
		s.lost(n, err)
		return
	}
	if first {
		s.ears.done.Go(func() {
			s.ears.listen(n.ctx, func() (*redis.PubSub, error) { return n.ps, nil }, func(err error) bool {
				s.lost(n, err)
				return false
			})
		})
	}
}

// lost places the channels of a subscription that ended anew.
func (s *shardEars) lost(n *shardNode, err error) {
	after := s.ears.retryIn(err)
	s.ears.client.lookAround(context.DeadlineExceeded)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nodes[n.addr] != n {
		return // somebody has seen to it
	}
	delete(s.nodes, n.addr)
	n.cancel()
	for channel := range n.channels {
		if c := s.channels[channel]; c != nil && c.node == n {
			s.place(channel, c, after) // the Cluster is being asked who serves it now
		}
	}
}

func (s *shardEars) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
	for _, n := range s.nodes {
		n.cancel()
	}
	s.waiters, s.channels, s.nodes = nil, nil, nil
}
