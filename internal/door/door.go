// Package door is what the doors of this project share, whatever protocol they speak:
// it takes the slots of a request, from the fleet's semaphore and from this server's own,
// holds them for as long as the request has a share in them, and tells when those that
// were refused should come back. How a request is told no is the doors' own.
//
// door.go (taking slots), held.go (what a request holds), drain.go (when to come back),
// standing.go (whether another server has room).
package door

import (
	"context"
	"errors"
	"hash/maphash"
	"time"

	"github.com/ashfaqjani916/gotsem"
)

// LocalID is the one id under which slots of this server's own semaphore are taken.
const LocalID = "server"

// Door lets requests in.
type Door struct {
	fleet, local *gotsem.Semaphore
	start        time.Time // instants are kept as durations since then, monotonic
	seed         maphash.Seed
	drains       drains
	standings    standings
}

// New makes the door of a fleet's semaphore and, unless it is nil, of this server's.
func New(fleet, local *gotsem.Semaphore) *Door {
	d := &Door{fleet: fleet, local: local, start: time.Now(), seed: maphash.MakeSeed()}
	d.drains.ids = make(map[uint64]*drain)
	if local != nil {
		d.standings.at = make([]remembered, standingsKept)
	}
	return d
}

// Now is the time since the Door was made. It does not jump with the wall clock.
func (d *Door) Now() time.Duration { return time.Since(d.start) }

// hash is by what the Door remembers an id.
func (d *Door) hash(id string) uint64 { return maphash.String(d.seed, id) }

// Asker is what a request asks for: slots of an id, and of further ones.
type Asker struct {
	ID     string
	Also   []string
	Weight int
	Class  *gotsem.Class // nil: nobody says
}

// Take takes a slot of the fleet's, and one of this server's if it has a cap. While it
// waits for the one it does not hold the other. AtLocal says that err is of this server's
// semaphore.
func (d *Door) Take(ctx context.Context, a Asker, patience time.Duration) (h *Held, atLocal bool, err error) {
	var ends time.Duration
	if patience > 0 {
		ends = d.Now() + patience
	}
	server := Asker{ID: LocalID, Weight: a.Weight, Class: a.Class}
	var local *gotsem.Lease
	if d.local != nil {
		if local, err = Acquire(ctx, d.local, server, patience); err != nil {
			return nil, true, err
		}
		patience = 0
	}
	lease, err := Acquire(ctx, d.fleet, a, patience)
	if err != nil && local != nil {
		release(ctx, local)
		_, full := err.(*gotsem.FullError)
		if left := ends - d.Now(); full && ends > 0 && left > 0 {
			lease, err = Acquire(ctx, d.fleet, a, left)
			if err == nil {
				if local, err = Acquire(ctx, d.local, server, 0); err != nil {
					release(ctx, lease)
					return nil, true, err
				}
			}
		}
	}
	if err != nil {
		return nil, false, err
	}
	if ends > 0 && ctx.Err() != nil { // its client hung up in the moment that its turn came
		if local != nil {
			release(ctx, local)
		}
		release(ctx, lease)
		return nil, false, ctx.Err()
	}
	return d.hold(ctx, a, lease, local), false, nil
}

// Acquire takes slots of one semaphore: it waits in line for at most patience, and not at
// all without any.
func Acquire(ctx context.Context, sem *gotsem.Semaphore, a Asker, patience time.Duration) (*gotsem.Lease, error) {
	if len(a.Also) > 0 || a.Class != nil {
		opts := make([]gotsem.Option, 0, 3+len(a.Also))
		opts = append(opts, gotsem.Weight(a.Weight), gotsem.MaxWait(patience))
		if a.Class != nil {
			opts = append(opts, gotsem.As(*a.Class))
		}
		for _, id := range a.Also {
			opts = append(opts, gotsem.Also(id, gotsem.Weight(a.Weight)))
		}
		if patience <= 0 {
			return sem.Try(ctx, a.ID, opts...)
		}
		return sem.Acquire(ctx, a.ID, opts...)
	}
	if patience <= 0 {
		return sem.Try(ctx, a.ID, gotsem.Weight(a.Weight))
	}
	return sem.Acquire(ctx, a.ID, gotsem.Weight(a.Weight), gotsem.MaxWait(patience))
}

// release releases a slot. What the store does not take now, gotsem releases in the
// background.
func release(ctx context.Context, l *gotsem.Lease) { _ = l.Release(ctx) }

// Loss is why l ended, if it was not released.
func Loss(l *gotsem.Lease) error {
	if l == nil {
		return nil
	}
	ctx := l.Context()
	if ctx.Err() == nil {
		return nil
	}
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}
