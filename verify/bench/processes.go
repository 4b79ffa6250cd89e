package main

import (
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

// What is between processes: fairness, the line, leases.

func fairTable(l *lab) (*report, error) {
	const limit, big, small = 10, 64, 4
	kinds := []string{nameOurs, nameLeases, nameBaseline}
	total, share := make(map[string][]float64), make(map[string][]float64)
	span := max(l.span, 200*time.Millisecond)
	for range l.rounds {
		for _, kind := range kinds {
			l.prefixes++
			args := []string{"-kind", "fair-" + kind, "-addr", l.srv.Addr(), "-prefix", fmt.Sprintf("fair%d:", l.prefixes), "-limit", strconv.Itoa(limit),
				"-span", span.String(), "-at", strconv.FormatInt(time.Now().Add(300*time.Millisecond).UnixMilli(), 10), "-n"}
			var grants [2]float64
			err := func() error {
				var kids [2]*kid
				for i, n := range []int{big, small} {
					k, err := spawn(nil, append(args, strconv.Itoa(n))...)
					if err != nil {
						return err
					}
					defer k.end()
					kids[i] = k
				}
				for i, k := range kids {
					var tries float64
					if err := k.hear(&grants[i], &tries); err != nil {
						return err
					}
				}
				return nil
			}()
			if err != nil {
				return nil, fmt.Errorf("%s: %w", kind, err)
			}
			total[kind] = append(total[kind], (grants[0]+grants[1])/span.Seconds())
			share[kind] = append(share[kind], 100*grants[1]/max(grants[0]+grants[1], 1))
		}
	}
	r := &report{head: []string{fmt.Sprintf("limit %d, hold 1 ms, %d and %d workers in two processes", limit, big, small), "grants/s", "× baseline", "share of the small one, %"}}
	for _, kind := range kinds {
		x := ""
		if kind != nameBaseline {
			x = number(spreadOf(total[kind]).med/spreadOf(total[nameBaseline]).med) + "×"
		}
		r.add(kind, spreadOf(total[kind]).String(), x, spreadOf(share[kind]).String())
	}
	r.atLeast(100*small/float64(big+small), spreadOf(share[nameOurs]).med, "the small one's share of the grants, against its share of the workers, in %")
	r.bound = "ten slots of 1 ms and what it takes to hear of a free one. Workers try again at once, so the line, which would order them, is not used. The small process is often served above its share, since its few workers share a trip with few."
	return r, nil
}

func lineTable(l *lab) (*report, error) {
	r := &report{head: []string{"", "measured"}}
	rdb := redis.NewClient(&redis.Options{Addr: l.srv.Addr()})
	defer rdb.Close()

	var tight histogram
	for range pick(l.quick, 300, 5_000) {
		at := time.Now()
		if err := rdb.Ping(background).Err(); err != nil {
			return nil, err
		}
		tight.add(time.Since(at))
	}
	r.add("PING round trip in a tight loop, median, µs", number(tight.quantile(0.5)/1e3))
	for _, quiet := range []time.Duration{work, 0} {
		between, pings, words, err := l.handOff(rdb, pick(l.quick, 20, 1_000), quiet)
		if err != nil {
			return nil, err
		}
		ping := pings.quantile(0.5)
		times := func(h *histogram) string {
			return fmt.Sprintf("%s = %s × PING", number(h.quantile(0.5)/1e3), number(h.quantile(0.5)/ping))
		}
		when := fmt.Sprintf("after %v of quiet", quiet)
		if quiet == 0 {
			when = "at once after other calls"
		}
		r.add("PING round trip, "+when+", median, µs", number(ping/1e3))
		r.add("PUBLISH alone to a subscriber in another process, "+when+", median, µs", times(words))
		r.add("hand-off to a holder in another process, "+when+", median, µs", times(between))
		r.add("the slowest hundredth, µs", number(between.quantile(0.99)/1e3))
		if quiet > 0 {
			r.atMost(3, between.quantile(0.5)/ping, fmt.Sprintf("hand-off between processes after %v of work, of a PING after so long", work))
		}
	}

	here, err := handOffHere(pick(l.quick, 200, 20_000))
	if err != nil {
		return nil, err
	}
	r.add("hand-off in one process on the memory store, median, ns", number(here.quantile(0.5)))

	if err := l.waiters(r, rdb); err != nil {
		return nil, err
	}
	r.bound = "a hand-off is a release, which grants to the head in the same script, and a message that tells it so: half a round trip, the script, and half of another to a process that must be woken, as the PUBLISH alone must. A waiter costs one question a second, and those of a process share their calls."
	return r, nil
}

// work is how long a holder holds before it hands on: a core has gone to sleep by then.
const work = 2 * time.Millisecond

// handOff measures from just before a release in this process to just after the
// waiting Acquire in another has returned. Both read the machine's one clock. Before
// it, before a PING, and before a message to a subscriber in another process it is
// quiet for as long: all three find the machine in the same state.
func (l *lab) handOff(rdb *redis.Client, n int, quiet time.Duration) (times, pings, words *histogram, err error) {
	l.prefixes++
	prefix := fmt.Sprintf("hand%d:", l.prefixes)
	sem, err := gotsem.New(gotsem.Options{Store: redisstore.New(rdb, prefix), Limit: 1, TTL: ttl})
	if err != nil {
		return nil, nil, nil, err
	}
	defer sem.Close()
	waiter, err := spawn(nil, "-kind", "handoff", "-addr", l.srv.Addr(), "-prefix", prefix)
	if err != nil {
		return nil, nil, nil, err
	}
	defer waiter.end()
	subscriber, err := spawn(nil, "-kind", "subscriber", "-addr", l.srv.Addr(), "-prefix", prefix)
	if err != nil {
		return nil, nil, nil, err
	}
	defer subscriber.end()
	var ready int
	if err := subscriber.hear(&ready); err != nil {
		return nil, nil, nil, err
	}
	times, pings, words = new(histogram), new(histogram), new(histogram)
	one := func() error {
		lease, err := sem.Acquire(background, "id")
		if err != nil {
			return err
		}
		if err := waiter.say("go"); err != nil {
			return err
		}
		if err := inLine(sem, 1); err != nil {
			return err
		}
		time.Sleep(quiet)
		began := time.Now()
		if err := lease.Release(background); err != nil {
			return err
		}
		var got int64
		if err := waiter.hear(&got); err != nil {
			return err
		}
		times.add(time.Duration(got - began.UnixNano()))
		var released int
		if err := waiter.hear(&released); err != nil {
			return err
		}
		time.Sleep(quiet)
		began = time.Now()
		if err := rdb.Ping(background).Err(); err != nil {
			return err
		}
		pings.add(time.Since(began))
		time.Sleep(quiet)
		began = time.Now()
		if err := rdb.Publish(background, prefix, "a slot id and its fence, in so many bytes").Err(); err != nil {
			return err
		}
		if err := subscriber.hear(&got); err != nil {
			return err
		}
		words.add(time.Duration(got - began.UnixNano()))
		return nil
	}
	for stop := time.Now().Add(time.Minute); n > 0 && time.Now().Before(stop); n-- {
		if err := one(); err != nil {
			return nil, nil, nil, err
		}
	}
	return times, pings, words, nil
}

// handOffHere is the same between goroutines, on the memory store.
func handOffHere(n int) (*histogram, error) {
	sem, err := gotsem.New(gotsem.Options{Limit: 1})
	if err != nil {
		return nil, err
	}
	defer sem.Close()
	times := new(histogram)
	held := make(chan time.Time)
	goOn := make(chan struct{})
	defer close(goOn)
	go func() {
		for range goOn {
			lease, err := sem.Acquire(background, "id")
			held <- time.Now()
			if err == nil {
				_ = lease.Release(background)
			}
			held <- time.Time{}
		}
	}()
	for range n {
		lease, err := sem.Acquire(background, "id")
		if err != nil {
			return nil, err
		}
		goOn <- struct{}{}
		if err := inLine(sem, 1); err != nil {
			return nil, err
		}
		began := time.Now()
		if err := lease.Release(background); err != nil {
			return nil, err
		}
		times.add((<-held).Sub(began))
		<-held
	}
	return times, nil
}

// inLine waits until n stand in line.
func inLine(sem *gotsem.Semaphore, n int) error {
	for deadline := time.Now().Add(time.Minute); ; {
		u, err := sem.Usage(background, "id")
		if err != nil {
			return err
		}
		if u.Waiting == n {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d stand in line after a minute, %d are awaited", u.Waiting, n)
		}
	}
}

// waiters looks at a long line while nothing happens.
func (l *lab) waiters(r *report, rdb *redis.Client) error {
	const processes = 4
	each := pick(l.quick, 100, 2_500)
	idle := pick(l.quick, time.Second, 10*time.Second)
	l.prefixes++
	prefix := fmt.Sprintf("wait%d:", l.prefixes)
	sem, err := gotsem.New(gotsem.Options{Store: redisstore.New(rdb, prefix), Limit: 1, TTL: ttl, Queue: 1 << 20})
	if err != nil {
		return err
	}
	defer sem.Close()
	if _, err := sem.Try(background, "id"); err != nil {
		return err
	}
	empty := look(l.srv)
	var kids []*kid
	for range processes {
		k, err := spawn(nil, "-kind", "waiters", "-addr", l.srv.Addr(), "-prefix", prefix, "-n", strconv.Itoa(each))
		if err != nil {
			return err
		}
		defer k.end()
		kids = append(kids, k)
	}
	for _, k := range kids {
		if err := k.say("go"); err != nil {
			return err
		}
	}
	var perWaiter float64
	for _, k := range kids {
		var bytes float64
		if err := k.hear(&bytes); err != nil {
			return err
		}
		perWaiter += bytes / processes
	}
	all := float64(processes * each)
	if err := inLine(sem, int(all)); err != nil {
		return err
	}
	time.Sleep(idle / 5) // the load of joining is over
	before, began := look(l.srv), time.Now()
	time.Sleep(idle)
	after, took := look(l.srv), time.Since(began).Seconds()
	u, err := sem.Usage(background, "id")
	if err != nil {
		return err
	}
	if u.Waiting != int(all) {
		return fmt.Errorf("%d of %s waiters are left in line after %v", u.Waiting, number(all), idle)
	}
	busy := (after.cpu - before.cpu) / 1e6 / took * 100
	what := fmt.Sprintf("%s waiters of %d processes on one id", number(all), processes)
	r.add(what+": memory of the process a waiter, bytes", number(perWaiter))
	r.add(what+": memory of Redis a waiter, bytes", number((after.memory-empty.memory)/all))
	r.add(what+": calls to Redis a waiter and second", number((after.calls-before.calls)/all/took))
	r.add(what+": Redis commands a waiter and second, those within scripts counted", number((after.commands-before.commands)/all/took))
	r.add(what+": CPU of Redis while nothing happens, % of a core", number(busy))
	r.atMost(1, (after.calls-before.calls)/all/took, "calls to Redis a waiter and second")
	r.atMost(10, busy, "CPU of Redis with "+what+", % of a core")
	return nil
}

// leasesTable holds leases in a process that has one core and a loop that keeps it
// busy.
func leasesTable(l *lab) (*report, error) {
	n := pick(l.quick, 500, 10_000)
	span := pick(l.quick, 2*time.Second, time.Minute)
	life := pick(l.quick, time.Second, ttl)
	l.prefixes++
	k, err := spawn([]string{"GOMAXPROCS=1"}, "-kind", "leases", "-addr", l.srv.Addr(), "-prefix", fmt.Sprintf("lease%d:", l.prefixes),
		"-n", strconv.Itoa(n), "-ttl", life.String(), "-span", span.String(), "-limit", "10")
	if err != nil {
		return nil, err
	}
	defer k.end()
	var held int
	if err := k.hear(&held); err != nil {
		return nil, err
	}
	before, began := look(l.srv), time.Now()
	if err := k.say("go"); err != nil {
		return nil, err
	}
	var lost, renewals, left float64
	if err := k.hear(&lost, &renewals, &left); err != nil {
		return nil, err
	}
	after, took := look(l.srv), time.Since(began).Seconds()
	busy := (after.cpu - before.cpu) / 1e6 / took * 100
	r := &report{head: []string{fmt.Sprintf("%s leases held by a process with GOMAXPROCS=1 and a busy loop, TTL %v, for %v", number(float64(held)), life, span), "measured"}}
	r.add("renewals/s", number(renewals/took))
	r.add("calls to Redis/s", number((after.calls-before.calls)/took))
	r.add("Redis commands/s, those within scripts counted", number((after.commands-before.commands)/took))
	r.add("CPU of Redis, % of a core", number(busy))
	r.add("leases lost", number(lost))
	r.atMost(10, busy, "CPU of Redis, % of a core")
	r.atMost(0, lost+float64(n)-left, "leases lost")
	r.bound = "leases ÷ (TTL ÷ 3) renewals a second, by the hundred in a call. The busy loop is the scheduler's matter: Go takes the core from it every 10 ms."
	return r, nil
}
