package gotsem

import "context"

// Context returns a context that ends when the lease does: with a cause that is
// ErrLeaseLost and says why when it was revoked or could not be renewed in time, with
// ErrClosed when the semaphore was closed, with context.Canceled when it was released.
//
// It has the values of the context that the lease was acquired with, but not its
// end: that one often bounds no more than the waiting. Its Err and Done look at
// the clock, so that the first code that runs after the process or the machine
// was suspended sees the loss. A context that is derived from it (WithCancel,
// WithTimeout, WithValue and those of a library) is told by a goroutine, and sees it
// some milliseconds later: code that must not act after a loss asks this one, and hands
// Fence to the resource.
func (l *Lease) Context() context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx == nil {
		inner, cancel := context.WithCancelCause(context.WithoutCancel(l.parent))
		l.ctx = &leaseContext{Context: inner, cancel: cancel, lease: l}
		if l.state.Load() != held {
			cancel(l.cause())
		}
	}
	return l.ctx
}

// leaseContext is a context that ends with a lease, and looks at the clock.
type leaseContext struct {
	context.Context
	cancel context.CancelCauseFunc
	lease  *Lease
}

func (c *leaseContext) Err() error {
	c.look()
	return c.Context.Err()
}

func (c *leaseContext) Done() <-chan struct{} {
	c.look()
	return c.Context.Done()
}

// Value looks at the clock too, since context.Cause finds what it answers by a Value.
func (c *leaseContext) Value(key any) any {
	c.look()
	return c.Context.Value(key)
}

// look ends the context if the lease is over: whoever ends that may be between the one
// and the other.
func (c *leaseContext) look() {
	if c.lease.look(); c.lease.state.Load() != held {
		c.cancel(c.lease.cause())
	}
}
