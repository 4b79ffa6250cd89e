package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

// watched is the store of one who waits. It remembers its last decision: Acquire
// tells nobody what place in line it has. And it stays in line while Redis is away: a
// semaphore whose policy is Closed would leave at the first question without an answer,
// and the policy that waits would admit, too.
type watched struct {
	*redisstore.Store
	moved chan struct{}                              // there is a new decision
	away  func(err error, since, left time.Duration) // told of each failure that is waited out

	mu       sync.Mutex
	last     store.Decision
	id       string    // that it was about
	answered bool      // Redis has been there
	until    time.Time // patience ends
}

func watchedBy(s *redisstore.Store) *watched {
	return &watched{Store: s, moved: make(chan struct{}, 1), away: func(error, time.Duration, time.Duration) {}}
}

// wait has Acquire get over a Redis that is away, if it ever was there, until a time.
func (w *watched) wait(until time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.until = until
}

// askAgain is the pause after a question that Redis did not answer.
const askAgain = 100 * time.Millisecond

func (w *watched) Acquire(ctx context.Context, r *store.Request) (store.Decision, error) {
	var since time.Time
	for {
		d, err := w.Store.Acquire(ctx, r)
		w.mu.Lock()
		if err == nil {
			w.last, w.id, w.answered = d, r.ID, true
		}
		left := time.Until(w.until)
		patient := w.answered && left > 0 && !errors.Is(err, store.ErrConfig)
		w.mu.Unlock()
		if err == nil {
			select {
			case w.moved <- struct{}{}:
			default:
			}
			return d, nil
		}
		if !patient || ctx.Err() != nil {
			return d, err
		}
		if since.IsZero() {
			since = time.Now()
		}
		w.away(err, time.Since(since), left)
		r.FirstAttempt = false // it may have been carried out: the same slot id is answered the same grant
		select {
		case <-ctx.Done():
			return d, err
		case <-time.After(min(askAgain, left)):
		}
	}
}

// decision is the last one, and the id that it was about.
func (w *watched) decision() (store.Decision, string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last, w.id
}
