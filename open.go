package gotsem

import "sync"

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
