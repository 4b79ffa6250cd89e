package gotsem

import (
	"hash/maphash"
	"sync/atomic"
	"time"
)

// drains know for how long leases of an id were held here lately, from which a refusal
// tells when it is worth while to come back. Nothing is measured before somebody was
// refused or stood in line: until then nobody asks, and a release pays for nothing.
//
// An id has a cell by its hash. Two ids that share one take it from each other, and two
// releases at a time may count as one: it is a hint.
type drains struct {
	seed   maphash.Seed
	wanted atomic.Bool
	cells  [drainCells]drainCell
}

type drainCell struct {
	hash atomic.Uint64
	hold atomic.Int64 // a moving mean
	last atomic.Int64 // when one of them was given back
}

const (
	drainCells     = 256
	retryUnknown   = time.Second // what is said at most where nothing was measured
	retryAfterMost = time.Hour
)

// want has releases measured from now on.
func (d *drains) want() {
	if !d.wanted.Load() { // else each refusal would take the line from the others
		d.wanted.Store(true)
	}
}

func (d *drains) cell(id string) (*drainCell, uint64) {
	hash := maphash.String(d.seed, id)
	return &d.cells[hash%drainCells], hash
}

// released notes that a lease of id was given back which was held that long.
func (d *drains) released(id string, held, now time.Duration) {
	c, hash := d.cell(id)
	mean := time.Duration(c.hold.Load())
	if c.hash.Load() != hash {
		c.hash.Store(hash)
		mean = held
	}
	c.hold.Store(int64(max(mean+(held-mean)/4, time.Microsecond)))
	c.last.Store(int64(now))
}

// retryAfter is when a place for a request of that weight is likely to come free, after
// those who wait: the leases that are held end one after the other within the time that
// one is usually held, or, where none has ended for longer than that, in as much again.
// Who does not renew (its slot lapses within ttl/2) is gone, or holds a plain slot: its
// place is free then.
func (d *drains) retryAfter(e *FullError, weight int, ttl, now time.Duration) time.Duration {
	if e.Limit <= 0 {
		return 0 // paused: nothing that ends makes room
	}
	wait := retryUnknown
	if c, hash := d.cell(e.ID); c.hash.Load() == hash {
		mean := max(time.Duration(c.hold.Load()), now-time.Duration(c.last.Load()))
		each := min(mean, retryAfterMost) / time.Duration(max(e.Active, 1))
		wait = min(each*time.Duration(min(e.Waiting+weight, 10_000)), retryAfterMost)
	}
	if e.NextLapse > 0 && e.NextLapse < ttl/2 {
		wait = min(wait, e.NextLapse)
	}
	return max(wait, time.Millisecond)
}
