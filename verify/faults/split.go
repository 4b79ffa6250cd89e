package faults

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
	"github.com/ashfaqjani916/gotsem/verify/skew"
)

// Split is a split brain whose deposed primary goes on taking writes, as one without
// min-replicas-to-write does: half of the processes stay with it until it is found and
// demoted. Nothing keeps both sides together within the limit; what is left to show is
// how much it is, how soon it is over, and what the fences are worth.
type Split struct {
	Limit int
	TTL   time.Duration
	Grace time.Duration // negative: none
	Apart time.Duration
	Skew  time.Duration // of the new primary's clock
}

// SplitResult is what it showed.
type SplitResult struct {
	Split       Split
	Before      int           // holders at once until the split
	Most        int           // over all of it
	OldSide     int           // of processes that stayed with the deposed primary
	NewSide     int           // of the others
	SlotSeconds float64       // above the limit
	Over        time.Duration // after the deposed primary was demoted, until all were within the limit for good
	MostAfter   int           // holders at once from one TTL after that on
	Told        int           // told lost
	Fences      []string      // of leases that were asked for after that, not above those of leases that had ended; with whatever else is wrong about them
	FencesApart int           // the same while they were apart, between the sides
}

// Run runs it once.
func (s Split) Run(tb redistest.TB, clocks *skew.Clocks, seed uint64) SplitResult {
	pair := NewPair(tb)
	if s.Skew != 0 {
		pair.must(clocks.Set(pair.Replica, s.Skew))
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	referee := NewReferee()
	const processes = 4
	load := Load{IDs: []string{"hot"}, Workers: s.Limit, TryShare: 50, Patience: 20 * time.Second, HoldLeast: s.TTL / 3, HoldMost: 4 * s.TTL, Pause: 20 * time.Millisecond}
	var all sync.WaitGroup
	for i := range processes {
		who := fmt.Sprint("p", i)
		st := redisstore.New(pair.Client(who), "split:")
		sem, err := gotsem.New(gotsem.Options{Store: st, Limit: s.Limit, Queue: 100, TTL: s.TTL, Grace: s.Grace, Outage: gotsem.Closed})
		pair.must(err)
		tb.Cleanup(func() { _ = sem.Close(); _ = st.Close() })
		pair.must(await("a first lease", 10*time.Second, func() error {
			warm, err := sem.Try(ctx, "warm")
			if err == nil {
				_ = warm.Release(ctx)
			}
			return err
		}))
		all.Go(func() { load.Run(ctx, sem, who, seed*processes+uint64(i), referee, nil) })
	}
	pair.must(await("all slots to be held", 10*time.Second, func() error {
		if n := referee.Held("hot"); n < s.Limit {
			return fmt.Errorf("%d of %d are", n, s.Limit)
		}
		return nil
	}))
	time.Sleep(s.TTL / 2) // some renewals have been made
	split := now()
	pair.Cut()
	pair.Promote()
	pair.Lead("p2", pair.Replica)
	pair.Lead("p3", pair.Replica)
	time.Sleep(s.Apart)
	healed := now()
	pair.Demote()
	pair.Lead("p0", pair.Replica)
	pair.Lead("p1", pair.Replica)
	time.Sleep(s.TTL + 600*time.Millisecond)
	cancel()
	all.Wait()

	spans := referee.Spans()
	r := SplitResult{Split: s, Told: Told(spans)}
	var before, between, oldSide, newSide []Span
	for _, sp := range spans {
		if sp.Start < split {
			before = append(before, sp)
		}
		if sp.Asked < healed {
			between = append(between, sp)
		}
		switch {
		case sp.Start >= healed:
		case sp.Who < "p2":
			oldSide = append(oldSide, sp)
		default:
			newSide = append(newSide, sp)
		}
	}
	for i := range before {
		if before[i].End == 0 || before[i].End > split {
			before[i].End = split
		}
	}
	r.Before, _ = Most(before, "hot", 0)
	r.Most, _ = Most(spans, "hot", 0)
	r.OldSide, _ = Most(oldSide, "hot", 0)
	r.NewSide, _ = Most(newSide, "hot", 0)
	r.MostAfter, _ = Most(spans, "hot", healed+s.TTL)
	r.SlotSeconds, r.Over = Excess(spans, "hot", s.Limit, healed)
	known := fencesFall(between)
	r.FencesApart = len(known)
	for _, wrong := range fencesFall(spans) {
		if !slices.Contains(known, wrong) {
			r.Fences = append(r.Fences, wrong)
		}
	}
	return r
}

// Excess returns the slot-seconds above a limit, and how long after a time there were
// holders above it.
func Excess(spans []Span, id string, limit int, from time.Duration) (slotSeconds float64, until time.Duration) {
	held, last := 0, time.Duration(0)
	for _, c := range changes(spans, id) {
		if over := held - limit; over > 0 {
			slotSeconds += float64(over) * (c.at - last).Seconds()
			until = max(until, c.at-from)
		}
		held, last = held+c.by, c.at
	}
	return slotSeconds, until
}

func (r SplitResult) String() string {
	grace := "no grace"
	if r.Split.Grace >= 0 {
		grace = "grace " + r.Split.Grace.String()
	}
	s := fmt.Sprintf("%s, apart for %v: %d of %d held at most (%d by the processes of the deposed primary, %d by the others), %.1f slot-seconds above the limit; over %v after the deposed primary was demoted, then %d; %d told lost; fences that fall: %d between the sides, %d after",
		grace, r.Split.Apart, r.Most, r.Split.Limit, r.OldSide, r.NewSide, r.SlotSeconds, r.Over.Round(10*time.Millisecond), r.MostAfter, r.Told, r.FencesApart, len(r.Fences))
	if r.Split.Skew != 0 {
		s = fmt.Sprintf("new primary's clock %v, %s", r.Split.Skew, s)
	}
	return s
}

// Bad says what is wrong even so.
func (r SplitResult) Bad() (wrong []string) {
	if r.Before > r.Split.Limit {
		wrong = append(wrong, fmt.Sprintf("%d held before it began", r.Before))
	}
	if r.OldSide > r.Split.Limit || r.NewSide > r.Split.Limit {
		wrong = append(wrong, fmt.Sprintf("%d and %d held on the two sides: more than the limit on one of them", r.OldSide, r.NewSide))
	}
	if r.MostAfter > r.Split.Limit {
		wrong = append(wrong, fmt.Sprintf("%d held one TTL after the deposed primary was demoted", r.MostAfter))
	}
	if len(r.Fences) > 0 {
		wrong = append(wrong, fmt.Sprintf("%d fences fell after the deposed primary was demoted; the first: %s", len(r.Fences), r.Fences[0]))
	}
	return wrong
}

// splitLeavesNothing is a short one.
func splitLeavesNothing(c *checker) error {
	r := Split{Limit: 10, TTL: time.Second, Grace: 1200 * time.Millisecond, Apart: 3 * time.Second}.Run(c, c.clocks, 1)
	c.note("%v", r)
	if wrong := r.Bad(); len(wrong) > 0 {
		return errors.New(strings.Join(wrong, "; "))
	}
	if r.Most <= r.Split.Limit {
		return fmt.Errorf("%d of %d held: this was no split", r.Most, r.Split.Limit)
	}
	return nil
}

// WriteSplit writes one as a line of markdown.
func WriteSplit(w io.Writer, what string, all []SplitResult) {
	var most, after, told, apart, fences int
	var excess, worst float64
	var over time.Duration
	for _, r := range all {
		most, after, told = max(most, r.Most), max(after, r.MostAfter), told+r.Told
		excess += r.SlotSeconds / float64(len(all))
		worst, over = max(worst, r.SlotSeconds), max(over, r.Over)
		apart, fences = apart+r.FencesApart, fences+len(r.Fences)
	}
	_, _ = fmt.Fprintf(w, "| %s | %d of %d | %.1f, %.1f | %.2f s | %d | %d | %d, %d |\n", what, most, all[0].Split.Limit, excess, worst, over.Seconds(), after, told, apart, fences)
}

// Splits runs one so often.
func Splits(s Split, clocks *skew.Clocks, rounds, side int) ([]SplitResult, error) {
	all := make([]SplitResult, rounds)
	errs := make([]error, rounds)
	slots := make(chan struct{}, side)
	var done sync.WaitGroup
	for i := range rounds {
		slots <- struct{}{}
		done.Go(func() {
			defer func() { <-slots }()
			all[i], errs[i] = Within("split", func(tb redistest.TB) SplitResult { return s.Run(tb, clocks, uint64(i)) })
		})
	}
	done.Wait()
	return all, errors.Join(errs...)
}
