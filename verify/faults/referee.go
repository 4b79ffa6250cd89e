package faults

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// now is the machine's monotonic clock, the same for all its processes.
func now() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // this clock is always there
	}
	return time.Duration(t.Nano())
}

// Span is one lease, for as long as its holder believed in it.
type Span struct {
	Who, ID, Slot string
	Weight        int
	Fence         uint64
	Asked         time.Duration // by now: when it was asked for
	Start, End    time.Duration // by now: when the answer was there, and when it ended; 0: it has not
	Local         bool          // admitted without the store
	Told          bool          // it was told "lost" while it believed
}

// Sink hears of leases.
type Sink interface {
	Begin(Span)
	End(who, slot string, end time.Duration, told bool)
}

// Referee counts.
type Referee struct {
	mu   sync.Mutex
	open map[string]*Span // by who and slot
	all  []*Span
	asks []Ask
}

// NewReferee makes one.
func NewReferee() *Referee { return &Referee{open: make(map[string]*Span)} }

// Begin implements Sink.
func (r *Referee) Begin(s Span) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open[s.Who+"\x00"+s.Slot] = &s
	r.all = append(r.all, &s)
}

// End implements Sink.
func (r *Referee) End(who, slot string, end time.Duration, told bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := who + "\x00" + slot
	if s := r.open[key]; s != nil {
		s.End, s.Told = max(end, s.Start), told
		delete(r.open, key)
	}
}

// Asked hears of a question by one who waits.
func (r *Referee) Asked(a Ask) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asks = append(r.asks, a)
}

// Asks returns what was asked so far.
func (r *Referee) Asks() []Ask {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.asks)
}

// Killed ends all that a process believed.
func (r *Referee) Killed(who string, at time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, s := range r.open {
		if s.Who == who {
			s.End = max(at, s.Start)
			delete(r.open, key)
		}
	}
}

// Spans returns what was heard so far.
func (r *Referee) Spans() []Span {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]Span, len(r.all))
	for i, s := range r.all {
		out[i] = *s
	}
	return out
}

// Held returns how much of an id is held now.
func (r *Referee) Held(id string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.open {
		if s.ID == id {
			n += s.Weight
		}
	}
	return n
}

// change is one in what is held of an id.
type change struct {
	at time.Duration
	by int
}

// changes are all of them, in order.
func changes(spans []Span, id string) (all []change) {
	for _, s := range spans {
		if s.ID != id {
			continue
		}
		all = append(all, change{s.Start, s.Weight})
		if s.End > 0 {
			all = append(all, change{s.End, -s.Weight})
		}
	}
	slices.SortFunc(all, func(a, b change) int {
		if a.at != b.at {
			return compare(a.at, b.at)
		}
		return a.by - b.by // who leaves makes room first
	})
	return all
}

// Most returns the most that was held of an id at once, from a time on, and when.
func Most(spans []Span, id string, from time.Duration) (most int, at time.Duration) {
	held := 0
	for _, c := range changes(spans, id) {
		if c.at > from && held > most { // since before
			most, at = held, from
		}
		if held += c.by; held > most && c.at >= from {
			most, at = held, c.at
		}
	}
	return most, at
}

// Least returns the fewest holders of an id in a stretch of time.
func Least(spans []Span, id string, from, to time.Duration) int {
	least := -1
	for at := from; at < to; at += 5 * time.Millisecond {
		n := 0
		for _, s := range spans {
			if s.ID == id && s.Start <= at && (s.End == 0 || s.End > at) {
				n += s.Weight
			}
		}
		if least < 0 || n < least {
			least = n
		}
	}
	return max(least, 0)
}

// Told returns how many were told "lost".
func Told(spans []Span) (n int) {
	for _, s := range spans {
		if s.Told {
			n++
		}
	}
	return n
}

// FirstAfter returns how long after a time the first lease began that keep accepts; -1:
// none did.
func FirstAfter(spans []Span, at time.Duration, keep func(Span) bool) time.Duration {
	first := time.Duration(-1)
	for _, s := range spans {
		if d := s.Start - at; d > 0 && (first < 0 || d < first) && keep(s) {
			first = d
		}
	}
	return first
}

// Judge says what is wrong with what was counted.
func Judge(spans []Span, limit int) (wrong []string) {
	byID := make(map[string][]Span)
	for _, s := range spans {
		byID[s.ID] = append(byID[s.ID], s)
	}
	for id, of := range byID {
		if most, at := Most(of, id, 0); most > limit {
			wrong = append(wrong, fmt.Sprintf("%s: %d held of %d, at %v", id, most, limit, at))
		}
		wrong = append(wrong, fencesFall(of)...)
	}
	return wrong
}

// fencesFall says of which leases of an id the fence is not above that of a lease that had
// ended before they were asked for. (Of two who waited, and were granted at once, the
// second may be done before the first has heard.)
func fencesFall(of []Span) (wrong []string) {
	of = slices.Clone(of)
	slices.SortFunc(of, func(a, b Span) int { return compare(a.Asked, b.Asked) })
	type ended struct {
		at    time.Duration
		fence uint64
	}
	var ends []ended
	for _, s := range of {
		if s.End > 0 && s.Fence > 0 {
			ends = append(ends, ended{s.End, s.Fence})
		}
	}
	slices.SortFunc(ends, func(a, b ended) int { return compare(a.at, b.at) })
	var highest uint64
	i := 0
	for _, s := range of {
		for ; i < len(ends) && ends[i].at < s.Asked; i++ {
			highest = max(highest, ends[i].fence)
		}
		if s.Fence > 0 && s.Fence <= highest {
			wrong = append(wrong, fmt.Sprintf("%s: the fence %d of %s is not above %d, of a lease that had ended", s.ID, s.Fence, s.Slot, highest))
		}
	}
	return wrong
}
