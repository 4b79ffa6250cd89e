package gotsem

import (
	"sync"
	"time"
)

// leaseList is a list of leases, sorted by when they are due. Most are due one interval
// after they were renewed, so that a new one belongs near the end; what is urgent
// belongs near the front.
type leaseList struct {
	mu          sync.Mutex
	first, last *Lease
	_           [40]byte // a cache line each
}

// insert puts l where it belongs by due, behind those due at the same time. It looks
// from the end that is nearer in time.
func (t *leaseList) insert(l *Lease, due time.Duration) {
	l.due, l.kept = due, true
	before := t.last
	switch {
	case t.first == nil:
	case due <= t.first.due: // retries and suspects: no walk over all the others
		before = nil
	case due-t.first.due < t.last.due-due:
		before = t.first
		for before.next != nil && before.next.due <= due {
			before = before.next
		}
	default:
		for before != nil && before.due > due {
			before = before.prev
		}
	}
	l.prev = before
	if before != nil {
		l.next, before.next = before.next, l
	} else {
		l.next, t.first = t.first, l
	}
	if l.next != nil {
		l.next.prev = l
	} else {
		t.last = l
	}
}

// unlink takes l out, if it is in.
func (t *leaseList) unlink(l *Lease) {
	if !l.kept {
		return
	}
	if l.prev != nil {
		l.prev.next = l.next
	} else {
		t.first = l.next
	}
	if l.next != nil {
		l.next.prev = l.prev
	} else {
		t.last = l.prev
	}
	l.prev, l.next, l.kept = nil, nil, false
}
