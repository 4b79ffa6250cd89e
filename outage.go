package gotsem

import (
	"fmt"
	"sync"
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

// openLeases are the leases that Outage Open admitted: nobody renews them, and Close ends
// them like the others.
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
