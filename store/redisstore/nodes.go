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

// batchers are the pumps of a Cluster's nodes, by address: what waits for a node that
// hangs waits there, and holds up nobody else.
type batchers struct {
	mu sync.Mutex
	of atomic.Pointer[map[string]*pump] // replaced when one is added
}

// pumpOf returns the pump of the server that keeps o's id. On a Cluster it finds out
// first who serves what, in so far as nobody has: ctx and o's budget bound that.
func (s *Store) pumpOf(ctx context.Context, o *op) (*pump, error) {
	if !s.client.cluster {
		return &s.pump, nil
	}
	key := o.names(s.prefix).s
	addr := s.client.nodeOf(key)
	if addr == "" {
		ctx, cancel := context.WithDeadline(ctx, s.due(o.budget))
		defer cancel()
		if err := s.client.meet(ctx, key); err != nil {
			return nil, err
		}
		addr = s.client.nodeOf(key)
	}
	return s.pumpAt(addr), nil
}

// pumpNow is pumpOf for an op that nobody waits for: before it is known who serves what
// it goes with all that are in that case.
func (s *Store) pumpNow(o *op) *pump {
	if !s.client.cluster {
		return &s.pump
	}
	return s.pumpAt(s.client.nodeOf(o.names(s.prefix).s))
}

func (s *Store) pumpAt(addr string) *pump {
	if addr == "" {
		return &s.pump
	}
	b := &s.batchers
	if all := b.of.Load(); all != nil {
		if p := (*all)[addr]; p != nil {
			return p
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	all := make(map[string]*pump)
	if old := b.of.Load(); old != nil {
		if p := (*old)[addr]; p != nil {
			return p
		}
		maps.Copy(all, *old)
		maps.DeleteFunc(all, func(_ string, p *pump) bool { return len(all) > pumpsMax && p.idleNow() })
	}
	all[addr] = s.newPump()
	b.of.Store(&all)
	return all[addr]
}

// pumpsMax is how many addresses of a Cluster are remembered, unless more are in use:
// nodes may get a new one with every restart.
const pumpsMax = 256

func (s *Store) newPump() *pump { return &pump{store: s, run: s.exec.exec, inline: s.client.inline} }

// idleNow reports whether nothing is in the pump.
func (p *pump) idleNow() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.waiting) == 0 && len(p.under) == 0 && p.flying == 0
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
