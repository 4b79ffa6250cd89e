package faults

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

// AwayResult is what a server that came back empty showed, under the policy Closed.
type AwayResult struct {
	Limit         int
	Outage, Grace time.Duration
	Most          int
	Slowest       time.Duration   // call to Try, over all of it
	Resumed       []time.Duration // of each process, from when the server answers to its first grant
	Errors        map[string]int
	Wrong         []string
}

// Away kills a server under the load of three processes' worth of semaphores, starts it
// empty after a while, and waits until each of them is granted something again.
func Away(tb redistest.TB, outage, ttl, grace time.Duration) AwayResult {
	const limit, processes = 6, 3
	srv := redistest.Start(tb)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	referee, calls := NewReferee(), new(Calls)
	load := Load{IDs: []string{"hot"}, Workers: 6, TryShare: 50, Patience: 2 * time.Second, HoldLeast: 10 * time.Millisecond, HoldMost: ttl / 2, Pause: 20 * time.Millisecond}
	must := func(err error) {
		if err != nil {
			tb.Fatalf("faults: %v", err)
		}
	}
	var all sync.WaitGroup
	for i := range processes {
		st := redisstore.New(srv.Client(), "away:")
		sem, err := gotsem.New(gotsem.Options{Store: st, Limit: limit, Queue: 100, TTL: ttl, Grace: grace, Outage: gotsem.Closed})
		must(err)
		tb.Cleanup(func() { _ = sem.Close(); _ = st.Close() })
		all.Go(func() { load.Run(ctx, sem, fmt.Sprint("p", i), uint64(i), referee, calls) })
	}
	resumed := func(from time.Duration) (after []time.Duration, err error) {
		spans := referee.Spans()
		for i := range processes {
			d := FirstAfter(spans, from, func(s Span) bool { return s.Who == fmt.Sprint("p", i) })
			if d < 0 {
				err = fmt.Errorf("p%d was granted nothing", i)
			}
			after = append(after, d)
		}
		return after, err
	}
	must(await("everybody to be served", 10*time.Second, func() error { _, err := resumed(0); return err }))
	srv.Kill()
	time.Sleep(outage)
	srv.Restart(false)
	back := now()
	r := AwayResult{Limit: limit, Outage: outage, Grace: grace}
	if grace == 0 {
		r.Grace = ttl + time.Second
	}
	var err error
	if err = await("everybody to be served again", r.Grace+10*time.Second, func() error { r.Resumed, err = resumed(back); return err }); err != nil {
		r.Wrong = append(r.Wrong, err.Error())
	}
	cancel()
	all.Wait()
	spans := referee.Spans()
	r.Most, _ = Most(spans, "hot", 0)
	r.Slowest, r.Errors = calls.Slowest, calls.Errors
	r.Wrong = append(r.Wrong, Judge(spans, limit)...)
	for i, d := range r.Resumed {
		switch {
		case d > r.Grace+5*time.Second/2:
			r.Wrong = append(r.Wrong, fmt.Sprintf("p%d was granted nothing for %v", i, d))
		case d >= 0 && d < r.Grace-300*time.Millisecond: // it may have begun before the restart was noticed
			r.Wrong = append(r.Wrong, fmt.Sprintf("p%d was granted something after %v, within the grace of %v", i, d, r.Grace))
		}
	}
	return r
}

func (r AwayResult) String() string {
	return fmt.Sprintf("killed for %v, back empty, grace %v: %d of %d held at most, slowest Try %v, processes were granted again %v after it answered; %v",
		r.Outage, r.Grace, r.Most, r.Limit, r.Slowest.Round(time.Millisecond), rounded(r.Resumed), r.Errors)
}

func rounded(all []time.Duration) (out []time.Duration) {
	for _, d := range all {
		out = append(out, d.Round(10*time.Millisecond))
	}
	return out
}

// grantsResume is a short one.
func grantsResume(c *checker) error {
	r := Away(c, 1500*time.Millisecond, 500*time.Millisecond, 0)
	c.note("%v", r)
	if len(r.Wrong) > 0 {
		return errors.New(strings.Join(r.Wrong, "; "))
	}
	return nil
}
