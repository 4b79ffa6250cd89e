package faults

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
)

// LocalResult is what an outage under the policy Local showed.
type LocalResult struct {
	Limit, Processes int
	Outage           time.Duration
	Most             int           // holders at once, over all of it
	LeastOut         int           // holders during the outage, from one TTL after it began
	MostAfter        int           // holders at once after it
	Slowest          time.Duration // call to Try
	Back             time.Duration // from the server's return to the first grant by it
	Local            int           // leases that were admitted without the store
	Told             int
	Errors           map[string]int
	killed           bool // a server that comes back empty begins a grace, which is longer
}

// sharesRegister is the pause after an outage in which a server that comes back grants
// nothing, so that those who were admitted without it are registered first: 1 s, less by
// what the first call to reach it took.
const sharesRegister = 800 * time.Millisecond

// Local has three processes load one id with a limit of 9 under Outage Local, and takes
// the server away for a while: it stops, or with killed it ends and comes back empty.
func Local(tb redistest.TB, outage time.Duration, killed bool, seed uint64) LocalResult {
	const limit, processes, ttl = 9, 3, 2 * time.Second
	srv := redistest.Start(tb)
	referee := NewReferee()
	r := rand.New(rand.NewPCG(seed, 1))
	var workers []*worker
	for i := range processes {
		w, err := startWorker(workerConfig{
			Who: fmt.Sprint("w", i), Kind: Single, Addrs: []string{srv.Addr()}, Prefix: "local:", Limit: limit, TTL: ttl, Outage: gotsem.Local, Seed: r.Uint64(),
			Load: Load{IDs: []string{"hot"}, Workers: 12, TryShare: 70, Patience: time.Second, HoldLeast: 50 * time.Millisecond, HoldMost: 1500 * time.Millisecond, Pause: 10 * time.Millisecond},
		}, referee)
		if err != nil {
			tb.Fatalf("faults: %v", err)
		}
		workers = append(workers, w)
		tb.Cleanup(func() { w.kill(referee) })
	}
	if err := await("all slots to be held", 15*time.Second, func() error {
		if n := referee.Held("hot"); n < limit {
			return fmt.Errorf("%d of %d are", n, limit)
		}
		return nil
	}); err != nil {
		tb.Fatalf("faults: %v", err)
	}
	time.Sleep(2 * ttl) // every process has been counted by the others
	out := now()
	if killed {
		srv.Kill()
	} else {
		srv.Stop()
	}
	time.Sleep(outage)
	back := now()
	if killed {
		srv.Restart(false)
	} else {
		srv.Cont()
	}
	time.Sleep(4*ttl + 2*time.Second)
	result := LocalResult{Limit: limit, Processes: processes, Outage: outage, Errors: map[string]int{}, killed: killed}
	for _, w := range workers {
		if err := w.stop(referee); err != nil {
			tb.Fatalf("faults: %v", err)
		}
		result.Slowest = max(result.Slowest, w.calls.Slowest)
		for kind, n := range w.calls.Errors {
			result.Errors[kind] += n
		}
	}
	spans := referee.Spans()
	result.Most, _ = Most(spans, "hot", 0)
	result.MostAfter, _ = Most(spans, "hot", back)
	result.LeastOut = Least(spans, "hot", out+ttl+500*time.Millisecond, back)
	result.Back = FirstAfter(spans, back, func(s Span) bool { return !s.Local && s.Fence > 0 })
	result.Told = Told(spans)
	for _, s := range spans {
		if s.Local {
			result.Local++
		}
	}
	return result
}

func (r LocalResult) String() string {
	return fmt.Sprintf("limit %d, %d processes, server away for %v: %d held at most, %d after it; never less than %d while it was away, from one TTL on; slowest Try %v; first grant %v after its return; %d leases admitted without it, %d told lost; %v",
		r.Limit, r.Processes, r.Outage, r.Most, r.MostAfter, r.LeastOut, r.Slowest.Round(time.Millisecond), r.Back.Round(time.Millisecond), r.Local, r.Told, r.Errors)
}

// Bad says what is wrong with it.
func (r LocalResult) Bad() (wrong []string) {
	if r.Most > r.Limit {
		wrong = append(wrong, fmt.Sprintf("%d held of %d", r.Most, r.Limit))
	}
	if !r.killed && r.Outage > time.Second && r.Back >= 0 && r.Back < sharesRegister {
		wrong = append(wrong, fmt.Sprintf("granted %v after its return, before the shares have registered", r.Back))
	}
	if r.LeastOut < 1 {
		wrong = append(wrong, "at some moment nobody held anything")
	}
	if r.Slowest > 5*gotsem.DefaultStoreTimeout {
		wrong = append(wrong, fmt.Sprintf("a call took %v", r.Slowest))
	}
	return wrong
}
