package redisstore

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"

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
