package gotsem

import (
	"errors"
	"fmt"
	"sync"
)

// ErrOrder: two calls of this process list the same two ids in different orders, so that
// they could wait for each other. It is the second that is refused.
var ErrOrder = errors.New("gotsem: ids are listed in two orders")

// ordersKept is how many pairs of ids are remembered: the newest.
const ordersKept = 1024

// order remembers which of two ids was listed before the other. It sees this process
// only: that all services list them in the same order is for whoever writes them.
type order struct {
	mu    sync.Mutex
	pairs map[pair]struct{}
	ring  []pair // in the order in which they were added
	next  int
}

type pair struct{ before, after string }

// check refuses levels that are listed in another order than others were, and remembers
// theirs.
func (o *order) check(levels []level) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := range levels {
		for j := i + 1; j < len(levels); j++ {
			if _, other := o.pairs[pair{levels[j].id, levels[i].id}]; other {
				return fmt.Errorf("%w: %q before %q, and %q before %q in an earlier call: list them alike everywhere, the narrower limit first",
					ErrOrder, levels[i].id, levels[j].id, levels[j].id, levels[i].id)
			}
		}
	}
	for i := range levels {
		for j := i + 1; j < len(levels); j++ {
			o.remember(pair{levels[i].id, levels[j].id})
		}
	}
	return nil
}

func (o *order) remember(p pair) {
	if _, known := o.pairs[p]; known {
		return
	}
	if o.pairs == nil {
		o.pairs = make(map[pair]struct{})
	}
	if len(o.ring) < ordersKept {
		o.ring = append(o.ring, p)
	} else {
		delete(o.pairs, o.ring[o.next])
		o.ring[o.next] = p
		o.next = (o.next + 1) % ordersKept
	}
	o.pairs[p] = struct{}{}
}
