package main

import (
	"fmt"
	"strings"
)

// The contests on Redis. Limits above all workers are "never full".

const never = 1 << 20

func (l *lab) hot() (*contest, error) {
	return l.contest(workload{name: "hot", workers: 256, ids: 1, limit: never}, ours, ourLeases, theMinimal, theBaseline, baselineAutoPipelined, twoEvalSha, limiter)
}

func (l *lab) full(workers int) (*contest, error) {
	return l.contest(workload{name: fmt.Sprint("full", workers), workers: workers, ids: 1, limit: 10}, ours, ourLeases, theMinimal, theBaseline, baselineAutoPipelined, limiter, lockOfRueidis)
}

func (l *lab) many() (*contest, error) {
	return l.contest(workload{name: "many", workers: 256, ids: 10_000, limit: never}, ours, ourLeases, theMinimal, theBaseline, baselineAutoPipelined, twoEvalSha, limiter)
}

func (l *lab) sixteen(nIDs int) (*contest, error) {
	return l.contest(workload{name: fmt.Sprint("sixteen", nIDs), workers: 16, ids: nIDs, limit: never}, ours, asynchronous, ourLeases, theMinimal, theBaseline, twoEvalSha, limiter)
}

func (l *lab) alone() (*contest, error) {
	return l.contest(workload{name: "alone", workers: 1, ids: 1, limit: never, slices: 10}, ours, ourLeases, theMinimal, theBaseline, baselineAutoPipelined, twoEvalSha, limiter)
}

func (l *lab) far(nIDs int) (*contest, error) {
	return l.contest(workload{name: fmt.Sprint("far", nIDs), workers: 256, ids: nIDs, limit: never, far: true}, ours, ourLeases, theBaseline, twoEvalSha)
}

// contendersOf are those of c, the order of the table.
func contendersOf(c *contest) (names []string) {
	for _, name := range []string{nameOurs, nameAsync, nameLeases, nameMinimal, nameBaseline, nameBaselineAP, nameEvalSha, nameLimiter, nameLock, nameRedsync, nameRueidis} {
		if len(c.results[name]) > 0 {
			names = append(names, name)
		}
	}
	return names
}

// against shows a ratio, or nothing for what it is measured against.
func (c *contest) against(a, b string, figure func(sample) float64) string {
	if a == b || len(c.results[a]) == 0 || len(c.results[b]) == 0 {
		return ""
	}
	return number(c.ratio(a, b, figure)) + "×"
}

func rateTable(c *contest) *report {
	r := &report{head: []string{"", "pairs/s", "× baseline", "× EVALSHA", "p50 µs", "p99 µs"}}
	for _, name := range contendersOf(c) {
		r.add(name, c.of(name, attempts).String(), c.against(name, nameBaseline, attempts), c.against(name, nameEvalSha, attempts), number(c.of(name, p50).med), c.of(name, p99).String())
	}
	return r
}

func hotTable(l *lab) (*report, error) {
	c, err := l.hot()
	if err != nil {
		return nil, err
	}
	r := rateTable(c)
	r.bound = "waking the callers, one channel operation each, and one script call per batch of about a hundred; the two EVALSHA and the baseline are bound by a system call and a wake-up per operation on either side. Of limiters, a mutex per buffer lets one call of a process through at a time."
	r.atLeast(12, c.ratio(nameOurs, nameBaseline, attempts), "pairs/s, of the baseline's")
	r.minimalReached(c.ratio(nameMinimal, nameBaseline, attempts))
	r.atLeast(9, c.ratio(nameOurs, nameEvalSha, attempts), "pairs/s, of two EVALSHA")
	r.minimalReached(c.ratio(nameMinimal, nameEvalSha, attempts))
	r.atMost(0.3, c.ratio(nameOurs, nameBaseline, p99), "p99, of the baseline's")
	r.minimalReached(c.ratio(nameMinimal, nameBaseline, p99))
	r.atLeast(0.77, c.ratio(nameLeases, nameOurs, attempts), "leases: pairs/s, of TryAcquire's")
	r.atLeast(7.5, c.ratio(nameLeases, nameBaseline, attempts), "leases: pairs/s, of the baseline's")
	return r, nil
}

func fullTable(l *lab) (*report, error) {
	r := &report{head: []string{"", "goroutines", "attempts/s", "× baseline", "grants/s", "× baseline"}}
	for _, workers := range []int{256, 1024} {
		c, err := l.full(workers)
		if err != nil {
			return nil, err
		}
		for _, name := range contendersOf(c) {
			r.add(name, number(float64(workers)), c.of(name, attempts).String(), c.against(name, nameBaseline, attempts), c.of(name, grants).String(), c.against(name, nameBaseline, grants))
		}
		r.atLeast(14, c.ratio(nameOurs, nameBaseline, attempts), fmt.Sprintf("attempts/s at %d, of the baseline's", workers))
		r.minimalReached(c.ratio(nameMinimal, nameBaseline, attempts))
		r.atLeast(14, c.ratio(nameOurs, nameBaseline, grants), fmt.Sprintf("grants/s at %d, of the baseline's", workers))
		r.minimalReached(c.ratio(nameMinimal, nameBaseline, grants))
		r.atLeast(5, c.ratio(nameOurs, nameRueidis, attempts), fmt.Sprintf("attempts/s at %d, of rueidislock's steps", workers))
		r.minimalReached(c.ratio(nameMinimal, nameRueidis, attempts))
	}
	r.bound = "waking the callers; a full id costs Redis one count per batch. rueidislock has a limit of one, so its grants do not compare; a limiters buffer lets one caller of a process ask at a time, so that this one process never fills it."
	return r, nil
}

func manyTable(l *lab) (*report, error) {
	c, err := l.many()
	if err != nil {
		return nil, err
	}
	r := rateTable(c)
	r.bound = "Redis: a batch of many ids is one script call, but each id is looked at, counted, written and given an end of its own, and its key made and removed."
	r.atLeast(5.5, c.ratio(nameOurs, nameBaseline, attempts), "pairs/s, of the baseline's")
	r.minimalReached(c.ratio(nameMinimal, nameBaseline, attempts))
	r.atLeast(3.5, c.ratio(nameOurs, nameEvalSha, attempts), "pairs/s, of two EVALSHA")
	r.minimalReached(c.ratio(nameMinimal, nameEvalSha, attempts))
	r.atLeast(0.83, c.ratio(nameLeases, nameOurs, attempts), "leases: pairs/s, of TryAcquire's")
	r.atLeast(4.8, c.ratio(nameLeases, nameBaseline, attempts), "leases: pairs/s, of the baseline's")
	return r, nil
}

func sixteenTable(l *lab) (*report, error) {
	r := &report{head: []string{"", "ids", "pairs/s", "× baseline", "× EVALSHA", "p50 µs", "p99 µs"}}
	for _, n := range []int{1, 10_000} {
		c, err := l.sixteen(n)
		if err != nil {
			return nil, err
		}
		for _, name := range contendersOf(c) {
			r.add(name, number(float64(n)), c.of(name, attempts).String(), c.against(name, nameBaseline, attempts), c.against(name, nameEvalSha, attempts), number(c.of(name, p50).med), number(c.of(name, p99).med))
		}
		what := pick(n == 1, "one id", "10,000 ids")
		r.atLeast(1.7, c.ratio(nameOurs, nameBaseline, attempts), "pairs/s, of the baseline's, "+what)
		r.minimalReached(c.ratio(nameMinimal, nameBaseline, attempts))
		r.atLeast(2.8, c.ratio(nameAsync, nameBaseline, attempts), "with the release asynchronous, "+what)
		r.atLeast(0.75, c.ratio(nameLeases, nameOurs, attempts), "leases: pairs/s, of TryAcquire's, "+what)
	}
	r.bound = "round trips: sixteen callers share them by four to seven. A pair takes two of them, or one with the release asynchronous."
	return r, nil
}

func aloneTable(l *lab) (*report, error) {
	c, err := l.alone()
	if err != nil {
		return nil, err
	}
	r := &report{head: []string{"", "p50 µs", "of the baseline's", "of EVALSHA", "p99 µs", "pairs/s"}}
	for _, name := range contendersOf(c) {
		r.add(name, c.of(name, p50).String(), c.against(name, nameBaseline, p50), c.against(name, nameEvalSha, p50), number(c.of(name, p99).med), number(c.of(name, attempts).med))
	}
	r.bound = "two round trips of system calls and wake-ups, most of it the kernel's. No batching can help a caller that is alone; it must not harm it either."
	r.atMost(0.85, c.ratio(nameOurs, nameBaseline, p50), "median, of the baseline's")
	r.minimalReached(c.ratio(nameMinimal, nameBaseline, p50))
	r.atMost(1.15, c.ratio(nameOurs, nameEvalSha, p50), "median, of two EVALSHA's")
	r.minimalReached(c.ratio(nameMinimal, nameEvalSha, p50))
	r.atMost(1.4, c.ratio(nameLeases, nameOurs, p50), "leases: median, of TryAcquire's")
	return r, nil
}

func farTable(l *lab) (*report, error) {
	r := &report{head: []string{"", "ids", "pairs/s", "× baseline", "× EVALSHA", "p50 ms", "p99 ms"}}
	for _, n := range []int{1, 10_000} {
		c, err := l.far(n)
		if err != nil {
			return nil, err
		}
		for _, name := range contendersOf(c) {
			r.add(name, number(float64(n)), c.of(name, attempts).String(), c.against(name, nameBaseline, attempts), c.against(name, nameEvalSha, attempts), number(c.of(name, p50).med/1e3), number(c.of(name, p99).med/1e3))
		}
		r.atLeast(pick(n == 1, 10.0, 8.0), c.ratio(nameOurs, nameBaseline, attempts), "pairs/s, of the baseline's, "+pick(n == 1, "one id", "10,000 ids"))
	}
	r.bound = "the round trip: trips under way × operations a trip ÷ 2 ms. The baseline and the two EVALSHA are bound by their pool (20 connections by default on two cores): 20 ÷ (2 × round trip) pairs/s."
	return r, nil
}

func locksTable(l *lab) (*report, error) {
	c, err := l.contest(workload{name: "locks", workers: 256, ids: 10_000, limit: 1}, ours, ourLeases, theBaseline, lockOfBSM, lockOfRedsync, lockOfRueidis)
	if err != nil {
		return nil, err
	}
	r := &report{head: []string{"limit 1, 10,000 ids, 256 goroutines", "pairs/s", "gotsem's ÷ this", "granted", "p99 µs"}}
	for _, name := range contendersOf(c) {
		share := c.of(name, grants).med / c.of(name, attempts).med
		r.add(name, c.of(name, attempts).String(), c.against(nameOurs, name, attempts), fmt.Sprintf("%.0f %%", 100*share), number(c.of(name, p99).med))
	}
	r.bound = "as with many ids above. These are locks; a semaphore of limit 1 does the same. Not served by the module proxy, so not here: rueidislock itself (its way over the rueidis client stands in for it), amitaifrey/redisemaphore, omeyang/xkit."
	return r, nil
}

func allocsTable(l *lab) (*report, error) {
	one, err := l.alone()
	if err != nil {
		return nil, err
	}
	hot, err := l.hot()
	if err != nil {
		return nil, err
	}
	many, err := l.many()
	if err != nil {
		return nil, err
	}
	r := &report{head: []string{"allocations a pair", "alone", "256, one id", "256, 10,000 ids"}}
	for _, name := range contendersOf(hot) {
		r.add(name, number(one.of(name, allocs).med), number(hot.of(name, allocs).med), number(many.of(name, allocs).med))
	}
	r.bound = "alone, the client library's command and reply, twice; at 256 these are shared. Everything the process allocated is counted, the measuring too."
	r.atMost(12, one.of(nameOurs, allocs).med, "alone")
	r.atMost(3, hot.of(nameOurs, allocs).med, "at 256, one id")
	return r, nil
}

func serverTable(l *lab) (*report, error) {
	r := &report{head: []string{"", "work", "server CPU, µs a pair", "of the baseline's", "in scripts, µs", "script calls a pair", "commands a pair", "bytes in + out a pair"}}
	works := []struct {
		what string
		run  func() (*contest, error)
		want float64
	}{
		{"256 goroutines, one id", l.hot, 0.3},
		{"256 goroutines, 10,000 ids", l.many, 0.5},
		{"alone", l.alone, 1.0},
	}
	for _, w := range works {
		c, err := w.run()
		if err != nil {
			return nil, err
		}
		for _, name := range contendersOf(c) {
			if name == nameBaselineAP {
				continue
			}
			r.add(name, w.what, c.of(name, cpu).String(), c.against(name, nameBaseline, cpu), number(c.of(name, script).med), number(c.of(name, calls).med), number(c.of(name, commands).med),
				strings.Join([]string{number(c.of(name, bytesIn).med), number(c.of(name, bytesOut).med)}, " + "))
		}
		r.atMost(w.want, c.ratio(nameOurs, nameBaseline, cpu), "server CPU a pair, of the baseline's, "+w.what)
		if w.what != "alone" {
			r.atMost(1.35, c.ratio(nameLeases, nameOurs, cpu), "leases: server CPU a pair, of TryAcquire's, "+w.what)
		}
	}
	r.bound = "CPU is what the server's process used (INFO cpu, kernel time for its sockets included), so it is the honest price of a pair; time in scripts is INFO commandstats, commands count those within scripts."
	return r, nil
}
