// Package tally is what promsem and otelsem have in common: the bounds of histograms, the
// counts that Stats does not have, and how the ids of a list are looked at.
package tally

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/ashfaqjani916/gotsem"
)

// Bounds of the histograms, in seconds: for those who wait for people, for work of any
// length, and for a store in the same network.
var (
	WaitBounds  = []float64{.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
	LeaseBounds = []float64{.01, .05, .1, .5, 1, 5, 10, 30, 60, 300, 900, 3600}
	StoreBounds = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1}
)

// Acquires counts calls by how they ended and by who said so. The zero value is ready.
type Acquires [gotsem.Invalid + 1][gotsem.FromOpen + 1]atomic.Uint64

// Add counts one.
func (c *Acquires) Add(o gotsem.Outcome, s gotsem.Source) {
	if o <= gotsem.Invalid && s <= gotsem.FromOpen {
		c[o][s].Add(1)
	}
}

// Count is how often calls ended so.
type Count struct {
	Outcome gotsem.Outcome
	Source  gotsem.Source
	N       uint64
}

// All yields the counts that are to be shown: those that are not 0, and the ordinary ones
// from the start, since a series that begins at 0 shows its first increase.
func (c *Acquires) All() iter.Seq[Count] {
	return func(yield func(Count) bool) {
		for o := range c {
			for s := range c[o] {
				count := Count{gotsem.Outcome(o), gotsem.Source(s), c[o][s].Load()}
				if (count.N > 0 || ordinary(count.Outcome, count.Source)) && !yield(count) {
					return
				}
			}
		}
	}
}

func ordinary(o gotsem.Outcome, s gotsem.Source) bool {
	switch s {
	case gotsem.FromStore:
		return true
	case gotsem.FromMemory:
		return o == gotsem.Full
	}
	return o == gotsem.Granted
}

// Histogram counts durations: so many up to each bound, and those above all. It is for
// what happens a hundred thousand times a second, where to find a series by its labels
// costs more than to count.
type Histogram struct {
	bounds []time.Duration
	counts []atomic.Uint64 // one more than there are bounds
	sum    atomic.Int64
}

// NewHistogram returns one with those bounds, which are in seconds and rise.
func NewHistogram(bounds []float64) *Histogram {
	h := &Histogram{bounds: make([]time.Duration, len(bounds)), counts: make([]atomic.Uint64, len(bounds)+1)}
	for i, b := range bounds {
		h.bounds[i] = time.Duration(math.Round(b * float64(time.Second)))
	}
	return h
}

// Add counts d.
func (h *Histogram) Add(d time.Duration) {
	i := 0
	for i < len(h.bounds) && d > h.bounds[i] { // a dozen at most, and most calls are short
		i++
	}
	h.counts[i].Add(1)
	h.sum.Add(int64(d))
}

// Read returns how many were counted, their sum in seconds, and how many are at most as
// long as each bound.
func (h *Histogram) Read() (n uint64, sum float64, upTo map[float64]uint64) {
	upTo = make(map[float64]uint64, len(h.bounds))
	for i := range h.counts {
		n += h.counts[i].Load()
		if i < len(h.bounds) {
			upTo[h.bounds[i].Seconds()] = n
		}
	}
	return n, time.Duration(h.sum.Load()).Seconds(), upTo
}

// Operations are what calls to the store do.
var Operations = []string{"acquire", "renew", "release"}

// ErrorTypes are what gotsem.Call.ErrorType may say.
var ErrorTypes = []string{"", "timeout", "canceled", "config", "not_replicated", "moving", "error"}

// CallSeries numbers the series of calls to the store: by operation, then by error type.
// ok is whether it is one.
func CallSeries(operation, errorType string) (n int, ok bool) {
	o, e := slices.Index(Operations, operation), 0
	if errorType != "" {
		e = slices.Index(ErrorTypes, errorType)
	}
	return o*len(ErrorTypes) + e, o >= 0 && e >= 0
}

// Loss is how many leases ended before they were released, for one reason.
type Loss struct {
	Reason string
	N      uint64
}

// Losses splits Stats.Lost.
func Losses(s gotsem.Stats) []Loss {
	return []Loss{
		{"revoked", s.Revoked}, {"lapsed", s.Expired}, {"held_too_long", s.HeldTooLong},
		{"forgotten", s.Lost - min(s.Lost, s.Revoked+s.Expired+s.HeldTooLong)},
	}
}

const (
	maxIDs      = 100                    // of a list: each is five series, and two calls to the store each time
	lookTimeout = 250 * time.Millisecond // for all of a list
	maxHolders  = 1000                   // with more, who has held for how long is not asked: it would cost the store too much
)

// CheckIDs returns an error unless ids can be looked at: 1 to 100 different ones, which
// are text, since labels are.
func CheckIDs(ids []string) error {
	if len(ids) == 0 || len(ids) > maxIDs {
		return fmt.Errorf("%d ids: 1 to %d can be watched, for each costs series and calls to the store", len(ids), maxIDs)
	}
	for i, id := range ids {
		switch {
		case id == "":
			return errors.New("an id is empty")
		case !utf8.ValidString(id):
			return fmt.Errorf("the id %q is not UTF-8: it cannot be a label", id)
		case slices.Contains(ids[:i], id):
			return fmt.Errorf("the id %q is there twice", id)
		}
	}
	return nil
}

// Standing is how an id stands.
type Standing struct {
	ID string
	gotsem.Usage
	SlotAge    time.Duration // of the oldest lease
	SlotAgeSet bool          // it is known
}

// Look yields how the ids stand, for a quarter of a second at most. Those that the store
// does not tell of in that time are left out.
func Look(ctx context.Context, sem *gotsem.Semaphore, ids []string) iter.Seq[Standing] {
	return func(yield func(Standing) bool) {
		ctx, cancel := context.WithTimeout(ctx, lookTimeout)
		defer cancel()
		for _, id := range ids {
			u, err := sem.Usage(ctx, id)
			if err != nil {
				continue
			}
			s := Standing{ID: id, Usage: u, SlotAgeSet: u.Active == 0}
			if u.Active > 0 && u.Active <= maxHolders {
				// The oldest comes first. Of slots of TryAcquire it is not known since when.
				if hs, err := sem.Holders(ctx, id); err == nil && (len(hs) == 0 || !hs[0].Since.IsZero()) {
					s.SlotAgeSet = true
					if len(hs) > 0 {
						s.SlotAge = max(time.Since(hs[0].Since), 0)
					}
				}
			}
			if !yield(s) {
				return
			}
		}
	}
}
