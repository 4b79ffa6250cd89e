package main

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

// graceTable shows what the protection against loss of memory costs the server when
// nothing is lost: an operation with Options.Grace at its default beside one without.
func graceTable(l *lab) (*report, error) {
	rounds := l.rounds * pick(l.quick, 1, 5)
	r, stop, err := redistest.Launch("bench", func(tb redistest.TB) *report { return graces(tb, rounds+1) })
	stop()
	return r, err
}

// graces measures grants, refusals and renewals, one by one and of 64 goroutines at once,
// with the protection and without, in turn in one run.
func graces(tb redistest.TB, rounds int) *report {
	const ids, atOnce, each, alone = 50, 64, 12, 400
	srv := redistest.Start(tb)
	ctx := background
	must := func(err error) {
		if err != nil {
			tb.Fatalf("bench: %v", err)
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
		do   func(s *one) (ops int)
	}{
		{"grant, alone", func(s *one) int {
			for n := range alone {
				grant(s, n)
			}
			return alone
		}},
		{"renewal, alone", func(s *one) int {
			for _, r := range renewals(s, alone) {
				must(s.st.Renew(ctx, []store.Renewal{r})[0].Err)
			}
			return alone
		}},
		{"refusal, alone", func(s *one) int {
			for range alone {
				refused(s)
			}
			return alone
		}},
		{"grant, batched", func(s *one) int {
			many(func(n int) { grant(s, n) })
			return atOnce * each
		}},
		{"renewal, batched", func(s *one) int {
			rs := renewals(s, atOnce*each)
			for batch := range slices.Chunk(rs, atOnce) {
				for _, got := range s.st.Renew(ctx, batch) {
					must(got.Err)
				}
			}
			return len(rs)
		}},
		{"refusal, batched", func(s *one) int {
			many(func(int) { refused(s) })
			return atOnce * each
		}},
	}
	var script, cpu, batch, ratio [6][2][]float64
	for round := range rounds {
		for turn := range both {
			which := (round + turn) % 2
			s := &both[which]
			for i, step := range steps {
				before := look(srv)
				ops := float64(step.do(s))
				after := look(srv)
				if round == 0 {
					continue // connections, caches
				}
				script[i][which] = append(script[i][which], (after.scriptTime-before.scriptTime)/ops)
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
	r := &report{
		head:  []string{"operation", "a script call carries", "script time without, µs", "with, µs", "of it", "server CPU without, µs", "with, µs", "of it"},
		bound: "script time is what Redis counts for EVALSHA, CPU that of the whole server; a ratio is the median of the rounds' own. Batched: 64 goroutines on 50 ids.",
	}
	med := func(xs []float64) string { return number(spreadOf(xs).med) }
	for i, step := range steps {
		r.add(step.what, med(batch[i][0]), med(script[i][1]), med(script[i][0]), med(ratio[i][0])+"×", med(cpu[i][1]), med(cpu[i][0]), med(ratio[i][1])+"×")
	}
	return r
}
