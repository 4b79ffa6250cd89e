package redisstore

import (
	"context"
	"sync/atomic"
	"time"
)

// A grace must be as long as the longest TTL of those who hold something: whoever
// notices the loss may be one with a short TTL. The marker, which would know, is lost with
// the rest, so each process learns the longest from it while it is there.

// graceEvery is how often a process says its grace, and learns the longest, while it is
// at work; one with a short grace more often.
const graceEvery = 10 * time.Second

// graces knows how long the graces are that count.
type graces struct {
	own     atomic.Int64 // ms, the longest that a request has brought along
	longest atomic.Int64 // ms, of all who use the prefix
	learned atomic.Int64 // when that was learned, Unix ns
}

// note notes a request's grace.
func (g *graces) note(grace time.Duration) {
	if ms := grace.Milliseconds(); ms > g.own.Load() {
		g.own.Store(ms)
	}
}

// of returns the grace of a request in ms, at least the longest that is known; 0: none.
func (g *graces) of(own time.Duration) int64 {
	if own <= 0 {
		return own.Milliseconds()
	}
	return max(own.Milliseconds(), g.longest.Load())
}

// any is that of what asks seldom, and has no grace of its own.
func (g *graces) any() int64 { return g.of(ms(g.own.Load())) }

// learnGrace says the process's own grace at the marker of a strict call, and learns the
// longest, if it is time for that.
func (e *executor) learnGrace(ctx context.Context, calls []*call) {
	g := &e.graces
	own := g.own.Load()
	now, last := time.Now().UnixNano(), g.learned.Load()
	if own == 0 || now-last < int64(min(graceEvery, ms(own)/4)) || !g.learned.CompareAndSwap(last, now) {
		return
	}
	for _, c := range calls {
		if c.strict && c.cmd.Err() == nil {
			if n, err := e.client.batches().Eval(ctx, graceScript.text, []string{*e.codec.marker(c.slot)}, own).Int64(); err == nil {
				g.longest.Store(n)
			}
			return
		}
	}
}

// registry is what this store has said at P of its owner.
type registry struct {
	ttl  atomic.Int64 // ms, the longest of its leases
	said atomic.Int64 // when, Unix ns
}

// registerEvery is how often an owner is said, at least, while it takes leases.
const registerEvery = 10 * time.Second

// register says who the owner of the store's leases is, if it is time for that. What it is
// needs no server that answers: who lists holders sees less.
func (e *executor) register(ctx context.Context, calls []*call) {
	for _, c := range calls {
		if c.cmd.Err() != nil || !c.lease && c.verb != acquire && c.verb != joint && c.verb != renew || len(c.groups) == 0 {
			continue
		}
		g := c.groups[0]
		r := &e.registry
		if g.owner == "" {
			continue
		}
		if g.ttl > r.ttl.Load() {
			r.ttl.Store(g.ttl)
		}
		now, last := time.Now().UnixNano(), r.said.Load()
		if now-last < int64(registerEvery) || !r.said.CompareAndSwap(last, now) {
			return
		}
		lives := r.ttl.Load() + 2*registerEvery.Milliseconds() // it is not beaten by its leases
		_ = e.client.batches().Eval(ctx, peersScript.text, []string{peersKey(e.codec.prefix)}, e.token, lives, "0", g.owner).Err()
		return
	}
}
