package redisstore

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// shardSubscriber has the shard channels of a Cluster client: a subscription per node, and
// on it the channels that are waited on there.
type shardSubscriber struct {
	all *subscriber

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
func (s *shardSubscriber) join(slotID, channel string) {
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
func (s *shardSubscriber) leave(slotID string) {
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
func (s *shardSubscriber) wants(channel string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.channels[channel]
	return c != nil && c.node != nil
}

// drop ends the subscriptions to channels that nobody has waited on for a while.
func (s *shardSubscriber) drop() {
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
func (s *shardSubscriber) place(channel string, c *shardChannel, after time.Duration) {
	e := s.all
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
			e.client.reloadTopology()
			pause(ctx, retryAfter)
		}
	})
}

// subscribe adds the channel to the subscription at node, and starts that one if it
// is the first. It may take as long as connecting does, and holds no lock meanwhile.
func (s *shardSubscriber) subscribe(ctx context.Context, node *redis.Client, channel string, pending *shardNode) {
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
		s.all.done.Go(func() {
			s.all.listen(n.ctx, func() (*redis.PubSub, error) { return n.ps, nil }, func(err error) bool {
				s.lost(n, err)
				return false
			})
		})
	}
}

// lost places the channels of a subscription that ended anew.
func (s *shardSubscriber) lost(n *shardNode, err error) {
	after := s.all.retryIn(err)
	s.all.client.reloadTopology()
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

func (s *shardSubscriber) close() {
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
