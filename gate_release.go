package gotsem

import (
	"cmp"
	"context"
	"sync"

	"github.com/ashfaqjani916/gotsem/store"
)

// release gives back a slot, within r.Budget if it has one.
func (g *gate) release(ctx context.Context, r *store.Release) (bool, error) {
	if err := g.allow(ctx, keeps, r.ID); err != nil {
		return false, err
	}
	return g.send(ctx, r)
}

// send is release, whatever the breaker says.
func (g *gate) send(ctx context.Context, r *store.Release) (bool, error) {
	r.Budget = cmp.Or(r.Budget, g.timeout)
	g.onFree(r.ID) // before and after: in between it makes room, at a moment nobody knows
	began := g.timed()
	freed, err := g.store.Release(ctx, r)
	g.called(began, "release", 1, err)
	g.onFree(r.ID)
	return freed, g.record(ctx, keeps, r.ID, err)
}

// releaseAll gives back slots together, each within its Budget, and returns an error for
// each.
func (g *gate) releaseAll(ctx context.Context, rs []*store.Release) []error {
	errs := make([]error, len(rs))
	var answered sync.WaitGroup
	for i, r := range rs {
		if errs[i] = g.allow(ctx, keeps, r.ID); errs[i] != nil {
			continue
		}
		answered.Add(1)
		began := g.timed()
		r.Async = func(id, _ string, err error) {
			g.called(began, "release", 1, err)
			g.onFree(id)
			errs[i] = g.record(ctx, keeps, id, err)
			answered.Done()
		}
		g.onFree(r.ID)
		_, _ = g.store.Release(ctx, r) // it speaks through Async, at the end of its Budget at the latest
	}
	answered.Wait()
	return errs
}

// releaseAsync has a slot released without waiting for it. If the store does not take
// it, it is released later.
func (g *gate) releaseAsync(r *store.Release) {
	if err := g.allow(context.Background(), keeps, r.ID); err != nil {
		g.backlog.add(r.ID, r.SlotID, false)
		return
	}
	r.Budget = g.timeout
	r.Async = g.onReleased
	if began := g.timed(); began != 0 {
		r.Async = func(id, slotID string, err error) {
			g.called(began, "release", 1, err)
			g.released(id, slotID, err)
		}
	}
	g.onFree(r.ID)
	_, _ = g.store.Release(context.Background(), r) // it speaks through Async
}

// released hears how a release ended for which nobody waits.
func (g *gate) released(id, slotID string, err error) {
	g.onFree(id)
	if g.record(context.Background(), keeps, id, err) != nil {
		g.backlog.add(id, slotID, false)
	}
}
