package gotsem

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

// knownFull remembers refusals for a short while, so that the next one costs
// nothing. A release by this process ends what it remembers of that id: when it is
// sent and when it is answered, since in between it makes room at a moment that nobody
// here knows. A refusal that may be older than that is not remembered at all.
//
// A nil *knownFull remembers nothing.
type knownFull struct {
	keep  time.Duration
	start time.Time
	hash  maphash.Seed
	freed [64]atomic.Uint64 // by a hash of the id: how often something was forgotten
	some  atomic.Int64
	mu    sync.RWMutex
	ids   map[string]*knownEntry
}

type knownEntry struct {
	full   *FullError // shared by all who are refused: nobody writes into it
	weight int
	share  int // of the limit, in thousandths: whoever may take more may find room
	until  time.Duration
}

// knownMax bounds what is remembered; at the bound all of it is forgotten.
const knownMax = 10_000

func newKnownFull(keep time.Duration) *knownFull {
	return &knownFull{keep: keep, start: time.Now(), hash: maphash.MakeSeed(), ids: make(map[string]*knownEntry)}
}

// full returns the refusal of id for that weight and share, if one is remembered.
func (k *knownFull) full(id string, weight, share int) *FullError {
	if k.some.Load() == 0 {
		return nil
	}
	k.mu.RLock()
	e := k.ids[id]
	k.mu.RUnlock()
	if e == nil || weight < e.weight || wholly(share) > wholly(e.share) || time.Since(k.start) >= e.until {
		return nil
	}
	return e.full
}

// mark is taken before the store is asked, for learn.
func (k *knownFull) mark(id string) uint64 {
	if k == nil {
		return 0
	}
	return k.freedOf(id).Load()
}

func (k *knownFull) freedOf(id string) *atomic.Uint64 {
	return &k.freed[maphash.String(k.hash, id)%uint64(len(k.freed))]
}

// learn remembers the refusal in err, if it is one, unless something was forgotten of
// its id since mark.
func (k *knownFull) learn(err error, weight, share int, mark uint64) {
	full, ok := err.(*FullError)
	if k == nil || !ok || full.line {
		return
	}
	keep := k.keep
	if full.NextLapse > 0 {
		keep = min(keep, full.NextLapse)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.ids) >= knownMax {
		clear(k.ids)
	}
	known := *full
	known.known = true
	k.ids[full.ID] = &knownEntry{full: &known, weight: weight, share: share, until: time.Since(k.start) + keep}
	k.some.Store(int64(len(k.ids)))
	if k.mark(full.ID) != mark { // looked at last: forget counts first, and looks at some then
		delete(k.ids, full.ID)
		k.some.Store(int64(len(k.ids)))
	}
}

// wholly is a share where 0 says all.
func wholly(share int) int {
	if share == 0 {
		return store.WholeShare
	}
	return share
}

func (k *knownFull) forget(id string) {
	if k == nil {
		return
	}
	k.freedOf(id).Add(1)
	if k.some.Load() == 0 {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.ids, id)
	k.some.Store(int64(len(k.ids)))
}
