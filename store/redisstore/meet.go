package redisstore

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// meeting finds out who serves the slots of a Cluster, once for all who wait for it.
type meeting struct {
	met   atomic.Bool
	mu    sync.Mutex
	under chan struct{} // closed when it is over; nil: none is under way
	err   error         // how the last one ended
}

const (
	// askNode is how long one node may take to say who serves what, before the next is
	// asked.
	askNode = time.Second
	// meetWithin is how long the first answer may take.
	meetWithin = 4 * askNode
)

// meet returns when it is known who serves the slots, or ctx is over.
func (c *client) meet(ctx context.Context, key string) error {
	m := &c.meeting
	if m.met.Load() {
		return nil
	}
	cluster, ok := c.UniversalClient.(*redis.ClusterClient)
	if !ok {
		return nil
	}
	m.mu.Lock()
	under := m.under
	if under == nil {
		under = make(chan struct{})
		m.under = under
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), meetWithin)
			defer cancel()
			_, err := cluster.MasterForKey(ctx, key)
			if err == nil {
				m.met.Store(true)
			}
			m.mu.Lock()
			m.err, m.under = err, nil
			m.mu.Unlock()
			close(under)
		}()
	}
	m.mu.Unlock()
	select {
	case <-under:
	case <-ctx.Done():
		return ctx.Err()
	}
	if m.met.Load() {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return classify(m.err)
}

// over is a ctx that is over: who is given it cannot wait for anything.
var over = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// nodeOf returns the address of the node that serves key's slot; empty if it is not
// known, or there is only one server.
func (c *client) nodeOf(key string) string {
	if !c.meeting.met.Load() {
		return ""
	}
	node, err := c.UniversalClient.(*redis.ClusterClient).MasterForKey(over, key)
	if err != nil {
		return ""
	}
	return node.Options().Addr
}

// nodeHook is on every node of a Cluster's twin.
//
// It bounds the question who serves what: go-redis asks one node after another, and one
// that hangs would keep it from the next for as long as a read may take.
//
// And it counts the sendings that ended with their connection: go-redis sends those again
// by itself, and of two sendings one can be late (see resent).
type nodeHook struct{ broken *atomic.Int64 }

func (nodeHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h nodeHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if _, ok := cmd.(*redis.ClusterSlotsCmd); ok {
			bounded, cancel := context.WithTimeout(ctx, askNode)
			defer cancel()
			ctx = bounded
		}
		return h.count(next(ctx, cmd))
	}
}

func (h nodeHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error { return h.count(next(ctx, cmds)) }
}

func (h nodeHook) count(err error) error {
	if isBroken(err) {
		h.broken.Add(1)
	}
	return err
}
