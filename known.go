package gotsem

import (
	"sync"
	"sync/atomic"
	"time"
)

// knownFull remembers refusals for a short while, so that the next one costs
// nothing. A release by this process ends what it remembers of that id.
type knownFull struct {
	keep  time.Duration
	start time.Time
	some  atomic.Int64
	mu    sync.RWMutex
	ids   map[string]*knownEntry
}

type knownEntry struct {
	full   *FullError // shared by all who are refused: nobody writes into it
	weight int
	until  time.Duration
}

// knownMax bounds what is remembered; at the bound all of it is forgotten.
const knownMax = 10_000

func newKnownFull(keep time.Duration) *knownFull {
	return &knownFull{keep: keep, start: time.Now(), ids: make(map[string]*knownEntry)}
}

// full returns the refusal of id for that weight, if one is remembered.
func (k *knownFull) full(id string, weight int) *FullError {
	if k.some.Load() == 0 {
		return nil
	}
	k.mu.RLock()
	e := k.ids[id]
	k.mu.RUnlock()
	if e == nil || weight < e.weight || time.Since(k.start) >= e.until {
		return nil
	}
	return e.full
}

func (k *knownFull) learn(full *FullError, weight int) {
	keep := k.keep
	if full.RetryAfter > 0 {
		keep = min(keep, full.RetryAfter)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.ids) >= knownMax {
		clear(k.ids)
	}
	k.ids[full.ID] = &knownEntry{full: full, weight: weight, until: time.Since(k.start) + keep}
	k.some.Store(int64(len(k.ids)))
}

func (k *knownFull) forget(id string) {
	if k.some.Load() == 0 {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.ids, id)
	k.some.Store(int64(len(k.ids)))
}
