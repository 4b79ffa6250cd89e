package faults

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

// CostRow is what the protection against loss of memory costs the server when nothing is
// lost: an operation with Options.Grace at its default beside one without.
type CostRow struct {
	What                  string
	Batch                 [2]float64 // operations a script call: with, without
	Script                [2]float64 // µs an operation in scripts, by commandstats; the median of the rounds
	CPU                   [2]float64 // µs an operation of the server's processor time
	ScriptRatio, CPURatio float64    // with ÷ without: the median of the rounds' own
	Goal                  float64
}

// costs counts what a server has spent.
type costs struct {
	calls, script, cpu float64
}

func costsOf(srv *redistest.Server) (c costs) {
	for _, name := range []string{"evalsha", "eval"} {
		for field := range strings.SplitSeq(srv.Info("commandstats")["cmdstat_"+name], ",") {
			key, value, _ := strings.Cut(field, "=")
			n, _ := strconv.ParseFloat(value, 64)
			switch key {
			case "calls":
				c.calls += n
			case "usec":
				c.script += n
			}
		}
	}
	for _, name := range []string{"used_cpu_user", "used_cpu_sys"} {
		n, _ := strconv.ParseFloat(srv.Info("cpu")[name], 64)
		c.cpu += n * 1e6
	}
	return c
}

// Cost measures grants, refusals and renewals, one by one and of 64 goroutines at once,
// with the protection and without, in turn in one run.
func Cost(tb redistest.TB, rounds int) []CostRow {
	const ids, atOnce, each, alone = 50, 64, 12, 400
	srv := redistest.Start(tb)
	ctx := context.Background()
	must := func(err error) {
		if err != nil {
			tb.Fatalf("faults: %v", err)
		}
	}
	type one struct {
		st   *redisstore.Store
		sem  *gotsem.Semaphore
		full *gotsem.Semaphore // of a limit of 1
		o    gotsem.Options
	}
	var both [2]one
	for i := range both {
		s := &both[i]
		s.st = redisstore.New(srv.Client(), [2]string{"with:", "without:"}[i])
		s.o = gotsem.Options{Store: s.st, Limit: 1_000_000, TTL: 10 * time.Minute, StoreTimeout: 5 * time.Second, Grace: [2]time.Duration{0, -1}[i], Outage: gotsem.Closed}
		var err error
		s.sem, err = gotsem.New(s.o)
		must(err)
		o := s.o
		o.Limit = 1
		s.full, err = gotsem.New(o)
		must(err)
		_, err = s.full.Try(ctx, "full")
		must(err)
		tb.Cleanup(func() { _ = s.sem.Close(); _ = s.full.Close(); _ = s.st.Close() })
	}
	// Each does something and returns how often.
	type holding struct {
		id string
		*gotsem.Lease
	}
	var held []holding
	var mu sync.Mutex
	grant := func(s *one, n int) {
		id := fmt.Sprint("id", n%ids)
		l, err := s.sem.Try(ctx, id)
		must(err)
		mu.Lock()
		held = append(held, holding{id, l})
		mu.Unlock()
	}
	many := func(do func(n int)) {
		var all sync.WaitGroup
		for g := range atOnce {
			all.Go(func() {
				for k := range each {
					do(g*each + k)
				}
			})
		}
		all.Wait()
	}
	renewals := func(s *one, n int) (rs []store.Renewal) {
		grace := s.o.TTL + time.Second
		if s.o.Grace < 0 {
			grace = 0
		}
		for _, l := range held[:n] {
			rs = append(rs, store.Renewal{ID: l.id, SlotID: l.SlotID(), TTL: s.o.TTL, Weight: 1, Fence: l.Fence(), Limit: s.o.Limit, Trust: s.o.TTL, Grace: grace})
		}
		return rs
	}
	refused := func(s *one) {
		if _, err := s.full.Try(ctx, "full"); !errors.Is(err, gotsem.ErrFull) {
			must(fmt.Errorf("not refused: %w", err))
		}
	}
	steps := []struct {
		what string
		goal float64
		do   func(s *one) (ops int)
	}{
		{"grant, alone", 2, func(s *one) int {
			for n := range alone {
				grant(s, n)
			}
			return alone
		}},
		{"renewal, alone", 1, func(s *one) int {
			for _, r := range renewals(s, alone) {
				must(s.st.Renew(ctx, []store.Renewal{r})[0].Err)
			}
			return alone
		}},
		{"refusal, alone", 1, func(s *one) int {
			for range alone {
				refused(s)
			}
			return alone
		}},
		{"grant, batched", 1.3, func(s *one) int {
			many(func(n int) { grant(s, n) })
			return atOnce * each
		}},
		{"renewal, batched", 1, func(s *one) int {
			rs := renewals(s, atOnce*each)
			for batch := range slices.Chunk(rs, atOnce) {
				for _, got := range s.st.Renew(ctx, batch) {
					must(got.Err)
				}
			}
			return len(rs)
		}},
		{"refusal, batched", 1, func(s *one) int {
			many(func(int) { refused(s) })
			return atOnce * each
		}},
	}
	rows := make([]CostRow, len(steps))
	var script, cpu, batch, ratio [6][2][]float64
	for round := range rounds {
		for turn := range both {
			which := (round + turn) % 2
			s := &both[which]
			for i, step := range steps {
				before := costsOf(srv)
				ops := float64(step.do(s))
				after := costsOf(srv)
				if round == 0 {
					continue // connections, caches
				}
				script[i][which] = append(script[i][which], (after.script-before.script)/ops)
				cpu[i][which] = append(cpu[i][which], (after.cpu-before.cpu)/ops)
				batch[i][which] = append(batch[i][which], ops/(after.calls-before.calls))
			}
			for _, l := range held {
				must(l.Release(ctx))
			}
			held = nil
		}
		for i := range steps {
			if n := len(script[i][0]); n > 0 {
				ratio[i][0] = append(ratio[i][0], script[i][0][n-1]/script[i][1][n-1])
				ratio[i][1] = append(ratio[i][1], cpu[i][0][n-1]/cpu[i][1][n-1])
			}
		}
	}
	for i, step := range steps {
		rows[i] = CostRow{What: step.what, Goal: step.goal, ScriptRatio: median(ratio[i][0]), CPURatio: median(ratio[i][1])}
		for which := range both {
			rows[i].Batch[which], rows[i].Script[which], rows[i].CPU[which] = median(batch[i][which]), median(script[i][which]), median(cpu[i][which])
		}
	}
	return rows
}

func median(all []float64) float64 {
	if len(all) == 0 {
		return 0
	}
	all = slices.Sorted(slices.Values(all))
	return all[len(all)/2]
}

// WriteCost writes the rows as markdown.
func WriteCost(w io.Writer, rows []CostRow) {
	_, _ = fmt.Fprint(w, "| operation | a script call carries | script time without, with | CPU without, with | ratio of script time | of CPU | goal |\n|---|---|---|---|---|---|---|\n")
	for _, r := range rows {
		_, _ = fmt.Fprintf(w, "| %s | %.0f | %.1f, %.1f µs | %.1f, %.1f µs | %.2f | %.2f | %.1f |\n",
			r.What, r.Batch[0], r.Script[1], r.Script[0], r.CPU[1], r.CPU[0], r.ScriptRatio, r.CPURatio, r.Goal)
	}
}
