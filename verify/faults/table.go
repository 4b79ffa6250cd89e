package faults

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
	"github.com/ashfaqjani916/gotsem/verify/skew"
)

// The table: what an id with a limit of 10 sees of each fault, with the grace and
// without. 40 goroutines in 4 semaphores, each with its own connections as a process
// has them, want slots all the time; TTL 1.5 s, renewed each 0.5 s.
const (
	tableLimit = 10
	tableTTL   = 1500 * time.Millisecond
	tableGrace = tableTTL + time.Second // the default
)

// A fault of the table. strike is called under full load, or at once if rising: then the
// load begins before, and the fault falls into what the replica has not got yet.
type tableFault struct {
	name   string
	rising bool
	lag    time.Duration // of the replication
	before time.Duration // rising: for how long the load runs until the fault
	skew   time.Duration // of the replica's clock
	args   []string
	strike func(p *Pair, clocks *skew.Clocks)
	split  bool // the second half of the processes is led away
}

var tableFaults = []tableFault{
	{name: "FLUSHALL", strike: func(p *Pair, _ *skew.Clocks) { _, err := p.Primary.Do("FLUSHALL"); p.must(err) }},
	{name: "restart without data", strike: func(p *Pair, _ *skew.Clocks) { p.Primary.Restart(false) }},
	{name: "fail-over, burst inside 300 ms of lag", rising: true, lag: 300 * time.Millisecond, before: 250 * time.Millisecond, strike: failOver},
	{name: "fail-over, replication 2 s behind", rising: true, lag: 2 * time.Second, before: 1700 * time.Millisecond, strike: failOver},
	{name: "fail-over, new primary +60 s", skew: time.Minute, strike: failOver},
	{name: "fail-over, new primary -60 s", skew: -time.Minute, strike: failOver},
	{name: "running primary steps +60 s", strike: func(p *Pair, c *skew.Clocks) { p.must(c.Set(p.Primary, time.Minute)) }},
	{name: "running primary steps -60 s", strike: func(p *Pair, c *skew.Clocks) { p.must(c.Set(p.Primary, -time.Minute)) }},
	{name: "split brain, min-replicas-to-write 1, burst inside 300 ms of lag", rising: true, lag: 300 * time.Millisecond, before: 250 * time.Millisecond, args: []string{"--min-replicas-to-write", "1", "--min-replicas-max-lag", "1"}, split: true,
		strike: func(p *Pair, _ *skew.Clocks) {
			p.Cut()
			_, err := p.Replica.Do("CONFIG", "SET", "min-replicas-to-write", "0") // it has nobody yet
			p.must(err)
			p.Promote()
		}},
}

func failOver(p *Pair, _ *skew.Clocks) { p.FailOver() }

// tableRound is one round of one fault.
type tableRound struct {
	most, told int
	first      time.Duration // until the next new grant; -1: none
}

func (f tableFault) round(tb redistest.TB, clocks *skew.Clocks, grace time.Duration, seed uint64) tableRound {
	pair := NewPair(tb, redistest.WithArgs(f.args...))
	if f.skew != 0 {
		pair.must(clocks.Set(pair.Replica, f.skew))
	}
	ctx, cancel := context.WithCancel(context.Background())
	referee := NewReferee()
	const processes = 4
	load := Load{IDs: []string{"hot"}, Workers: 10, TryShare: 50, Patience: 20 * time.Second, HoldLeast: 500 * time.Millisecond, HoldMost: 6 * time.Second, Pause: 20 * time.Millisecond}
	var sems []*gotsem.Semaphore
	for i := range processes {
		st := redisstore.New(pair.Client(fmt.Sprint("p", i)), "table:")
		sem, err := gotsem.New(gotsem.Options{Store: st, Limit: tableLimit, Queue: 100, TTL: tableTTL, Grace: grace, Outage: gotsem.Closed})
		pair.must(err)
		sems = append(sems, sem)
		tb.Cleanup(func() { _ = sem.Close(); _ = st.Close() })
		// A process without a past is a stated exception: this one has one.
		pair.must(await("a first lease", 10*time.Second, func() error {
			warm, err := sem.Try(ctx, "warm")
			if err == nil {
				_ = warm.Release(ctx)
			}
			return err // a primary with min-replicas refuses until its replica has reported
		}))
	}
	if f.lag > 0 {
		pair.must(await("the replica to have the warm-up", 5*time.Second, func() error {
			if pair.Replica.Info("replication")["master_repl_offset"] != pair.Primary.Info("replication")["master_repl_offset"] {
				return fmt.Errorf("it is behind")
			}
			return nil
		}))
		pair.Link.SetDelay(f.lag)
	}
	var all sync.WaitGroup
	for i, sem := range sems {
		all.Go(func() { load.Run(ctx, sem, fmt.Sprint("p", i), seed*processes+uint64(i), referee, nil) })
	}
	if f.rising {
		time.Sleep(f.before)
	} else {
		pair.must(await("all slots to be held", 10*time.Second, func() error {
			if n := referee.Held("hot"); n < tableLimit {
				return fmt.Errorf("%d of %d are", n, tableLimit)
			}
			return nil
		}))
		time.Sleep(700 * time.Millisecond) // some renewals have been made
	}
	f.strike(pair, clocks)
	struck := now() + 50*time.Millisecond // answers that were under way have arrived
	moved := func(string) bool { return true }
	if f.split {
		for _, who := range []string{"p2", "p3"} {
			pair.Lead(who, pair.Replica)
		}
		moved = func(who string) bool { return who >= "p2" }
		time.Sleep(tableTTL / 2)
		for _, who := range []string{"p0", "p1"} { // they learn of it
			pair.Lead(who, pair.Replica)
		}
	}
	time.Sleep(tableGrace + tableTTL + time.Second)
	cancel()
	all.Wait()
	spans := referee.Spans()
	most, _ := Most(spans, "hot", 0)
	return tableRound{most: most, told: Told(spans), first: FirstAfter(spans, struck, func(s Span) bool { return moved(s.Who) })}
}

// TableRow is one row.
type TableRow struct {
	Fault         string
	Plain, Ours   TableCell
	Rounds, Limit int
}

// TableCell is what the rounds of one fault showed.
type TableCell struct {
	Most, Within int // the most holders; rounds that stayed within the limit
	Told         int // told "lost" though nobody took it from them
	First        time.Duration
	FirstWorst   time.Duration
}

// Table runs all faults, with grace and without, and returns the rows. At most side of
// the rounds run at once.
func Table(clocks *skew.Clocks, rounds, side int, only string, progress io.Writer) ([]TableRow, error) {
	type job struct {
		row, round int
		ours       bool
	}
	var rows []TableRow
	var results [][2][]tableRound
	var jobs []job
	var faults []tableFault
	for _, f := range tableFaults {
		if only != "" && only != f.name {
			continue
		}
		for round := range rounds {
			jobs = append(jobs, job{len(rows), round, true}, job{len(rows), round, false})
		}
		rows = append(rows, TableRow{Fault: f.name, Rounds: rounds, Limit: tableLimit})
		results = append(results, [2][]tableRound{})
		faults = append(faults, f)
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("no fault is called %q", only)
	}
	var mu sync.Mutex
	var failed error
	slots := make(chan struct{}, side)
	var all sync.WaitGroup
	for _, j := range jobs {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			grace, which := tableGrace, 0
			if !j.ours {
				grace, which = -1, 1
			}
			got, err := Within("table", func(tb redistest.TB) tableRound {
				return faults[j.row].round(tb, clocks, grace, uint64(j.round))
			})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = err
				return
			}
			results[j.row][which] = append(results[j.row][which], got)
			_, _ = fmt.Fprintf(progress, "%s, grace %v, round %d: %d held, %d told lost, next grant after %v\n", faults[j.row].name, grace, j.round, got.most, got.told, got.first)
		})
	}
	all.Wait()
	for i := range rows {
		rows[i].Ours, rows[i].Plain = cell(results[i][0]), cell(results[i][1])
	}
	return rows, failed
}

func cell(rounds []tableRound) (c TableCell) {
	n := 0
	for _, r := range rounds {
		c.Most = max(c.Most, r.most)
		if r.most <= tableLimit {
			c.Within++
		}
		c.Told += r.told
		if r.first >= 0 {
			c.First += r.first
			c.FirstWorst = max(c.FirstWorst, r.first)
			n++
		}
	}
	if n > 0 {
		c.First /= time.Duration(n)
	}
	return c
}

// WriteTable writes the rows as markdown.
func WriteTable(w io.Writer, rows []TableRow) {
	p := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }
	p("| fault | without grace: most holders, rounds within the limit | told lost | with grace: most holders, rounds within | told lost | next new grant, mean and worst |\n|---|---|---|---|---|---|\n")
	for _, r := range rows {
		p("| %s | %d of %d, %d/%d | %d | **%d of %d, %d/%d** | %d | %.2f s, %.2f s |\n", r.Fault,
			r.Plain.Most, r.Limit, r.Plain.Within, r.Rounds, r.Plain.Told,
			r.Ours.Most, r.Limit, r.Ours.Within, r.Rounds, r.Ours.Told, r.Ours.First.Seconds(), r.Ours.FirstWorst.Seconds())
	}
}

// Within runs something with servers of its own in a program that is not a test.
func Within[T any](name string, run func(tb redistest.TB) T) (got T, err error) {
	got, stop, err := redistest.Launch(name, run)
	stop()
	return got, err
}
