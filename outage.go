package gotsem

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ashfaqjani916/gotsem/store"
)

// Outage is what happens to requests while the store cannot be asked.
type Outage int

const (
	// Local keeps the cap from what this process knows: for one TTL after the
	// last good answer it admits only into slots that it held in the store then;
	// after that into its share, the limit divided by the processes last seen.
	// It is the default.
	Local Outage = iota
	// Open admits, and marks what it admitted (Lease.FailedOpen).
	Open
	// Closed refuses with ErrUnavailable.
	Closed
)

// String returns the policy in a word.
func (o Outage) String() string {
	switch o {
	case Local:
		return "local"
	case Open:
		return "open"
	case Closed:
		return "closed"
	}
	return fmt.Sprintf("Outage(%d)", int(o))
}

// turnedAway counts a call that gets nothing, and returns err.
func (s *Semaphore) turnedAway(err error) error {
	if errors.Is(err, ErrUnavailable) {
		s.stats.unavailable.Add(1)
	}
	return err
}

// failsOpen reports whether Outage Open admits a call that the store did not answer. A
// ctx that is over is no outage, and an id without a limit is open to nobody.
func (s *Semaphore) failsOpen(ctx context.Context, r *store.Request, err error) bool {
	return s.opt.Outage == Open && r.Limit > 0 && errors.Is(err, ErrUnavailable) && over(ctx) == nil
}

// policy is what the outage policy makes of err, why the store did not answer: a lease,
// or err.
func (s *Semaphore) policy(ctx context.Context, r *request, err error) (*Lease, error) {
	if s.failsOpen(ctx, &r.Request, err) {
		if r.part == nil {
			s.stats.failedOpen.Add(1)
		}
		return s.openLease(ctx, r), nil
	}
	if s.opt.Outage == Local && errors.Is(err, ErrUnavailable) && over(ctx) == nil {
		if lease := s.local.admit(ctx, r); lease != nil {
			if r.part == nil {
				s.stats.local.Add(1)
			}
			return lease, nil
		}
	}
	return nil, err
}

// failedOpenID is the slot id of what was admitted without the store. It is not one
// that slotIDs makes, and releasing it does nothing.
const failedOpenID = "gotsem-failed-open"

// openLease is what Outage Open admits with.
func (s *Semaphore) openLease(ctx context.Context, r *request) *Lease {
	open := store.Request{ID: r.ID, SlotID: failedOpenID, Weight: r.Weight}
	l := s.newLease(ctx, &open, byOpen, store.Decision{}, s.now())
	if l.part = r.part != nil; !l.part {
		s.stats.held.Add(1)
	}
	s.opens.add(l)
	return l
}

// openLeases are the leases that Outage Open admitted: nobody renews them, and Close
// ends them like the others.
type openLeases struct {
	mu     sync.Mutex
	all    map[*Lease]struct{}
	closed bool
}

func (o *openLeases) add(l *Lease) {
	o.mu.Lock()
	closed := o.closed
	if !closed {
		if o.all == nil {
			o.all = make(map[*Lease]struct{})
		}
		o.all[l] = struct{}{}
	}
	o.mu.Unlock()
	if closed {
		l.end(ended)
	}
}

func (o *openLeases) remove(l *Lease) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if delete(o.all, l); len(o.all) == 0 {
		o.all = nil // a map does not shrink by itself
	}
}

func (o *openLeases) close() {
	o.mu.Lock()
	all := o.all
	o.all, o.closed = nil, true
	o.mu.Unlock()
	for l := range all {
		l.end(ended)
	}
}
