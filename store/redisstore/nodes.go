package redisstore

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem/store"
)

var _ store.Partitioner = (*Store)(nil)

// Partition implements store.Partitioner: the address of the node of a Cluster that
// serves id, as far as the client knows. It looks at what the client has learned, and asks
// nobody.
func (s *Store) Partition(id string) string { return s.client.nodeOf(s.prefix + id) }

// nodeBatchers are those of a Cluster's nodes, by address: what waits for a node that
// hangs waits there, and holds up nobody else.
type nodeBatchers struct {
	mu sync.Mutex
	of atomic.Pointer[map[string]*batcher] // replaced when one is added
}

// batcherOf returns the batcher of the server that keeps o's id. On a Cluster it finds out
// first who serves what, in so far as nobody has: ctx and o's budget bound that.
func (s *Store) batcherOf(ctx context.Context, o *op) (*batcher, error) {
	if !s.client.cluster {
		return s.batcher, nil
	}
	key := o.names(s.prefix).s
	addr := s.client.nodeOf(key)
	if addr == "" {
		ctx, cancel := context.WithDeadline(ctx, dueIn(o.budget))
		defer cancel()
		if err := s.client.meet(ctx, key); err != nil {
			return nil, err
		}
		addr = s.client.nodeOf(key)
	}
	return s.batcherAt(addr), nil
}

// batcherNow is batcherOf for an op that nobody waits for: before it is known who serves what
// it goes with all that are in that case.
func (s *Store) batcherNow(o *op) *batcher {
	if !s.client.cluster {
		return s.batcher
	}
	return s.batcherAt(s.client.nodeOf(o.names(s.prefix).s))
}

func (s *Store) batcherAt(addr string) *batcher {
	if addr == "" {
		return s.batcher
	}
	b := &s.nodes
	if all := b.of.Load(); all != nil {
		if p := (*all)[addr]; p != nil {
			return p
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	all := make(map[string]*batcher)
	if old := b.of.Load(); old != nil {
		if p := (*old)[addr]; p != nil {
			return p
		}
		maps.Copy(all, *old)
		maps.DeleteFunc(all, func(_ string, p *batcher) bool { return len(all) > maxNodes && p.idleNow() })
	}
	all[addr] = s.newBatcher()
	b.of.Store(&all)
	return all[addr]
}

// maxNodes is how many addresses of a Cluster are remembered, unless more are in use:
// nodes may get a new one with every restart.
const maxNodes = 256

func (s *Store) newBatcher() *batcher {
	return &batcher{
		exec: s.exec.exec, ctxBound: s.client.ctxBound, free: s.free, inDoubt: &s.inDoubt,
		givenUp: func() { s.client.reloadTopology() },
	}
}

// idleNow reports whether nothing is in the batcher.
func (b *batcher) idleNow() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.waiting) == 0 && len(b.running) == 0 && b.flying == 0
}

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

// askBriefly bounds the question who serves what: go-redis asks one node after another,
// and one that hangs would keep it from the next for as long as a read may take.
type askBriefly struct{}

func (askBriefly) DialHook(next redis.DialHook) redis.DialHook { return next }

func (askBriefly) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if _, ok := cmd.(*redis.ClusterSlotsCmd); ok {
			bounded, cancel := context.WithTimeout(ctx, askNode)
			defer cancel()
			ctx = bounded
		}
		return next(ctx, cmd)
	}
}

func (askBriefly) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
