package gotsem

import (
	"context"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

// startProbing probes from now on, if nobody does. mu is held.
func (b *breaker) startProbing() {
	if b.probing {
		return
	}
	select {
	case <-b.stop:
	default:
		b.probing = true
		go b.probes()
	}
}

func (b *breaker) probes() {
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-b.stop:
		}
		b.mu.Lock()
		if b.rest() {
			b.probing = false
			b.mu.Unlock()
			return
		}
		id := b.id
		b.mu.Unlock()
		take, keep := b.probe(id)
		switch {
		case answer(take):
			b.answered(takes)
		case answer(keep):
			b.answered(keeps)
			b.mu.Lock()
			b.count(takes, id, take, true)
			b.silent = 0
			b.mu.Unlock()
		default:
			b.mu.Lock()
			b.count(keeps, id, keep, true)
			b.count(takes, id, take, false)
			b.mu.Unlock()
		}
	}
}

// rest reports whether probing can stop: all is well, or nobody asks. mu is held.
func (b *breaker) rest() bool {
	select {
	case <-b.stop:
		return true
	default:
	}
	if b.streaks[keeps].n == 0 && b.streaks[takes].n == 0 && b.state.Load() == breakerClosed {
		b.id = ""
		return true
	}
	if b.now()-time.Duration(b.called.Load()) <= probeIdle {
		return false
	}
	b.state.CompareAndSwap(breakerOpen, breakerHalfOpen)
	return true
}

// probeSlot is never held: releasing it changes nothing, and yet tells whether
// the store takes writes.
const probeSlot = "gotsem-probe"

// probeStore asks the server of id whether it serves acquires, and whether it serves
// releases. A store without a Prober is asked for a release alone.
func probeStore(st store.Store, id string, timeout, grace time.Duration) (take, keep error) {
	release := func() error {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		_, err := st.Release(ctx, &store.Release{ID: id, SlotID: probeSlot, Budget: timeout, Grace: grace})
		return err
	}
	p, ok := st.(store.Prober)
	if !ok {
		keep = release()
		return keep, keep
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if take = p.Probe(ctx, id); answer(take) {
		return nil, nil
	}
	return take, release()
}
