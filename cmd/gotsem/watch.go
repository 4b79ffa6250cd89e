package main

import (
	"context"
	"sync"

	"github.com/ashfaqjani916/gotsem/store"
)

// whole is a store with all that it may have besides.
type whole interface {
	store.Store
	store.Waker
	store.Lister
	store.Limiter
	store.Counter
}

// watched is a store that remembers its last decision: Acquire tells nobody what
// place in line it has.
type watched struct {
	whole
	moved chan struct{} // there is a new one

	mu   sync.Mutex
	last store.Decision
}

func watch(s store.Store) *watched {
	return &watched{whole: s.(whole), moved: make(chan struct{}, 1)}
}

func (w *watched) Acquire(ctx context.Context, r *store.Request) (store.Decision, error) {
	d, err := w.whole.Acquire(ctx, r)
	if err == nil {
		w.mu.Lock()
		w.last = d
		w.mu.Unlock()
		select {
		case w.moved <- struct{}{}:
		default:
		}
	}
	return d, err
}

func (w *watched) decision() store.Decision {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last
}
