package faults

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
	"github.com/ashfaqjani916/gotsem/verify/skew"
)

// Check is something short that must hold. Its name is what a mutation names.
type Check struct {
	Name string
	run  func(c *checker) error
}

// checker is what a check works with.
type checker struct {
	redistest.TB
	clocks *skew.Clocks
	ctx    context.Context
	notes  []string
}

// note adds what was measured to the report.
func (c *checker) note(format string, args ...any) {
	c.notes = append(c.notes, fmt.Sprintf(format, args...))
}

// Run runs the check on servers of its own, and returns what it measured.
func (c Check) Run(clocks *skew.Clocks) (notes string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	wrong, failed := Within(c.Name, func(tb redistest.TB) error {
		ch := &checker{TB: tb, clocks: clocks, ctx: ctx}
		err := c.run(ch)
		notes = strings.Join(ch.notes, "; ")
		return err
	})
	return notes, errors.Join(wrong, failed)
}

// Checks returns all of them.
func Checks() []Check {
	all := []Check{ // the slow ones first
		{Name: "local", run: localKeepsTheCap},
		{Name: "random faults", run: func(c *checker) error { return randomFaults(c, 17) }},
		{Name: "cluster, 100 leases", run: hundredLeasesOutliveAPrimary},
		{Name: "cluster, migration", run: handOffsGoOnAfterAMigration},
		{Name: "half-open", run: halfOpenSubscriberIsReplaced},
		{Name: "limit", run: limitHolds},
		{Name: "send-time", run: trustCountsFromSending},
		{Name: "poll", run: pollWithoutPushes},
		{Name: "purge", run: graceKeepsWhatLooksLapsed},
		{Name: "stopped", run: stoppedServerLeavesNoGhosts},
		{Name: "give-up", run: givingUpInGraceGrantsNothing},
		{Name: "refused-first", run: refusalIsNoHistory},
		{Name: "restore", run: restoredServerIsALoss},
		{Name: "quiet-jump", run: clockStepBringsOneGrace},
		{Name: "step-try", run: tryAfterAStepTakesNothing},
		{Name: "flush-try", run: tryAfterAFlushTakesNothing},
		{Name: "promoted-try", run: tryOnANewPrimaryTakesNothing},
		{Name: "history", run: historyIsLinear},
		{Name: "resume", run: grantsResume},
		{Name: "packets", run: packetsVanish},
		{Name: "split brain, min-replicas-to-write 0", run: splitLeavesNothing},
		{Name: "order", run: orderSurvivesFaults},
		{Name: "doubled", run: repliesDoubled},
		{Name: "doubled late", run: repliesDoubledLate},
	}
	for _, f := range tableFaults {
		all = append(all, Check{Name: f.name, run: func(c *checker) error {
			got := f.round(c, c.clocks, tableGrace, 1)
			switch {
			case got.most > tableLimit:
				return fmt.Errorf("%d held of %d", got.most, tableLimit)
			case got.told > 0:
				return fmt.Errorf("%d were told lost", got.told)
			case got.first < 0:
				return fmt.Errorf("nothing was granted afterwards")
			}
			c.note("%d of %d held, next grant after %.2f s", got.most, tableLimit, got.first.Seconds())
			return nil
		}})
	}
	return all
}

// semaphore makes a semaphore as a process has one.
func (c *checker) semaphore(rdb redis.UniversalClient, o gotsem.Options) *gotsem.Semaphore {
	st := redisstore.New(rdb, "check:")
	o.Store = st
	sem, err := gotsem.New(o)
	if err != nil {
		c.Fatalf("%v", err)
	}
	c.Cleanup(func() { _ = sem.Close(); _ = st.Close() })
	return sem
}

func (c *checker) process(srv *redistest.Server, o gotsem.Options) *gotsem.Semaphore {
	return c.semaphore(srv.Client(), o)
}

// take takes a lease at the beginning, when a busy machine may still be slow to connect.
func (c *checker) take(sem *gotsem.Semaphore, id string) (lease *gotsem.Lease, err error) {
	err = await("a first lease", 10*time.Second, func() (err error) {
		lease, err = sem.Try(c.ctx, id)
		return err
	})
	return lease, err
}

// The server is away for three TTLs under the policy Local, and comes back.
func localKeepsTheCap(c *checker) error {
	r := Local(c, 6*time.Second, false, 1)
	c.note("%d of %d held at most, at least %d while it was away, back after %v", r.Most, r.Limit, r.LeastOut, r.Back.Round(10*time.Millisecond))
	if wrong := r.Bad(); len(wrong) > 0 {
		return errors.New(strings.Join(wrong, "; "))
	}
	return nil
}

// A short soak of a single server.
func randomFaults(c *checker, seed uint64) error {
	r, err := Soak(Single, seed, 15*time.Second, false, c.clocks, io.Discard)
	if err != nil {
		return err
	}
	c.note("seed %d: %d faults, %d leases", seed, r.Faults, r.Leases)
	if len(r.Wrong) > 0 {
		return errors.New(strings.Join(r.Wrong, "; "))
	}
	return nil
}

// Two processes ask for all they can get: the limit is what they get, as leases and as
// the slots of TryAcquire.
func limitHolds(c *checker) error {
	srv := redistest.Start(c)
	const limit = 7
	for _, bare := range []bool{false, true} {
		id := fmt.Sprint("bare ", bare)
		var mu sync.Mutex
		granted := 0
		var all sync.WaitGroup
		for range 2 {
			sem := c.process(srv, gotsem.Options{Limit: limit, TTL: 20 * time.Second, StoreTimeout: 5 * time.Second, Outage: gotsem.Closed})
			if bare {
				sem = gotsem.NewGotsem(srv.Client(), "check:", 20*time.Second, limit, nil, nil)
			}
			for range 10 {
				try := func() {
					var ok bool
					if bare {
						got := sem.TryAcquire(c.ctx, id)
						ok = got.Acquired && !got.FailedOpen()
					} else {
						_, err := sem.Try(c.ctx, id)
						ok = err == nil
					}
					if ok {
						mu.Lock()
						granted++
						mu.Unlock()
					}
				}
				if bare {
					try() // one by one: the plainest case of all
				} else {
					all.Go(try)
				}
			}
		}
		all.Wait()
		if granted != limit {
			return fmt.Errorf("%s: %d granted of %d", id, granted, limit)
		}
	}
	return nil
}

// With 150 ms each way, a lease must be believed from the sending on, not from the answer.
func trustCountsFromSending(c *checker) error {
	srv := redistest.Start(c)
	relay := redistest.NewRelay(c, srv.Addr())
	rdb := redis.NewClient(&redis.Options{Addr: relay.Addr()})
	c.Cleanup(func() { _ = rdb.Close() })
	const ttl, trip = 3 * time.Second, 300 * time.Millisecond
	sem := c.semaphore(rdb, gotsem.Options{Limit: 1, TTL: ttl, StoreTimeout: 2 * time.Second})
	warm, err := c.take(sem, "warm") // connections are there
	if err != nil {
		return err
	}
	relay.SetDelay(trip / 2)
	_ = warm.Release(c.ctx)
	asked := time.Now()
	lease, err := sem.Try(c.ctx, "slow")
	if err != nil {
		return err
	}
	first := lease.Expires()
	if late := first.Sub(asked) - ttl; late > 0 {
		return fmt.Errorf("granted: believed for %v longer than its TTL", late)
	}
	var late time.Duration
	if err := await("a renewal", ttl, func() error {
		seen, at := lease.Expires(), time.Now()
		if seen.Equal(first) {
			return errors.New("none yet")
		}
		late = seen.Sub(at.Add(-trip)) - ttl
		return nil
	}); err != nil {
		return err
	}
	if late > 0 {
		return fmt.Errorf("renewed: believed for %v longer than its TTL", late)
	}
	return nil
}

// No message gets through: who waits asks by itself, each second.
func pollWithoutPushes(c *checker) error {
	srv := redistest.Start(c)
	if _, err := srv.Do("ACL", "SETUSER", "default", "resetchannels"); err != nil {
		return err
	}
	o := gotsem.Options{Limit: 1, TTL: time.Minute, StoreTimeout: 5 * time.Second}
	holder, waiter := c.process(srv, o), c.process(srv, o)
	lease, err := c.take(holder, "id")
	if err != nil {
		return err
	}
	granted := make(chan error, 1)
	go func() {
		_, err := waiter.Acquire(c.ctx, "id", gotsem.MaxWait(20*time.Second))
		granted <- err
	}()
	if err := await("the waiter to stand in line", 5*time.Second, func() error {
		if u, err := holder.Usage(c.ctx, "id"); err != nil || u.Waiting == 0 {
			return fmt.Errorf("%+v, %w", u, err)
		}
		return nil
	}); err != nil {
		return err
	}
	_ = lease.Release(c.ctx)
	select {
	case err := <-granted:
		return err
	case <-time.After(5 * time.Second):
		return errors.New("a waiter was not served within 5 s of the release")
	}
}

// After a fail-over to a server whose clock is ahead, slots look lapsed whose holders
// believe in them. They must still be there while the grace lasts.
func graceKeepsWhatLooksLapsed(c *checker) error {
	pair := NewPair(c)
	if err := c.clocks.Set(pair.Replica, 10*time.Second); err != nil {
		return err
	}
	o := gotsem.Options{Limit: 4, Queue: 10, TTL: 3 * time.Second, Outage: gotsem.Closed}
	holder, other := c.semaphore(pair.Client("holder"), o), c.semaphore(pair.Client("other"), o)
	o.TTL = time.Minute
	long := c.semaphore(pair.Client("long"), o) // keeps the key alive
	if _, err := c.take(long, "id"); err != nil {
		return err
	}
	var slots []string
	for range 3 {
		l, err := c.take(holder, "id")
		if err != nil {
			return err
		}
		slots = append(slots, l.SlotID())
	}
	if _, err := c.take(other, "another id"); err != nil { // it has met the marker
		return err
	}
	if err := await("the replica to have them", 5*time.Second, func() error {
		if n, err := pair.Replica.Do("ZCARD", "check:id"); err != nil || n != int64(4) {
			return fmt.Errorf("%v, %w", n, err)
		}
		return nil
	}); err != nil {
		return err
	}
	pair.Cut()
	pair.Primary.Kill()
	pair.Promote()
	pair.Lead("other", pair.Replica)
	ctx, cancel := context.WithTimeout(c.ctx, 700*time.Millisecond)
	defer cancel()
	if l, err := other.Acquire(ctx, "id"); err == nil {
		return fmt.Errorf("granted during the grace: %v", l.SlotID())
	}
	for _, slot := range slots {
		if _, err := pair.Replica.Do("ZSCORE", "check:id", slot); err != nil {
			return fmt.Errorf("a slot was swept during the grace: %w", err)
		}
	}
	return nil
}

// A server stops for longer than the TTL, and then works off what it was sent: nothing
// of that may take room from the living.
func stoppedServerLeavesNoGhosts(c *checker) error {
	srv := redistest.Start(c)
	const limit = 5
	o := gotsem.Options{Limit: limit, TTL: time.Second, Grace: 2 * time.Second, Outage: gotsem.Closed}
	a, b := c.process(srv, o), c.process(srv, o)
	for range limit {
		if _, err := c.take(a, "id"); err != nil {
			return err
		}
	}
	if _, err := c.take(b, "another id"); err != nil {
		return err
	}
	time.Sleep(500 * time.Millisecond) // renewals have begun
	srv.Stop()
	time.Sleep(2 * time.Second)
	srv.Cont()
	began := time.Now()
	return await("the slots to be granted anew", 5*time.Second, func() error {
		u, err := b.Usage(c.ctx, "id")
		if err == nil && u.Active > limit {
			return fmt.Errorf("%d slots of %d, %v after the server went on", u.Active, limit, time.Since(began))
		}
		_, err = b.Try(c.ctx, "id")
		return err
	})
}

// During the grace waiters give up: their places go, and nobody is granted for that.
func givingUpInGraceGrantsNothing(c *checker) error {
	srv := redistest.Start(c)
	o := gotsem.Options{Limit: 2, Queue: 50, TTL: 2 * time.Second, Outage: gotsem.Closed}
	holder, waiter := c.process(srv, o), c.process(srv, o)
	var leases []*gotsem.Lease
	for range 2 {
		l, err := c.take(holder, "id")
		if err != nil {
			return err
		}
		leases = append(leases, l)
	}
	if _, err := c.take(waiter, "another id"); err != nil {
		return err
	}
	rdb := srv.Client()
	if err := rdb.FlushAll(c.ctx).Err(); err != nil {
		return err
	}
	began := time.Now()
	granted := make(chan time.Duration, 50)
	for i := range 50 {
		go func() {
			ctx, cancel := context.WithTimeout(c.ctx, time.Duration(50+20*i)*time.Millisecond) // of the 3 s
			defer cancel()
			if _, err := waiter.Acquire(ctx, "id"); err == nil {
				granted <- time.Since(began)
			}
		}()
	}
	select {
	case after := <-granted:
		return fmt.Errorf("granted %v after FLUSHALL, in the grace, with %d held", after, len(leases))
	case <-time.After(1500 * time.Millisecond):
		return nil
	}
}

// A process that was only ever refused has no history: an empty server is a new one.
func refusalIsNoHistory(c *checker) error {
	sem := c.process(redistest.Start(c), gotsem.Options{Limit: 2, TTL: 10 * time.Second, StoreTimeout: 5 * time.Second, Outage: gotsem.Closed})
	if _, err := sem.Try(c.ctx, "id", gotsem.Weight(3)); !errors.Is(err, gotsem.ErrTooHeavy) {
		return fmt.Errorf("weight 3 of 2: %w", err)
	}
	_, err := sem.Try(c.ctx, "id")
	return err
}

// A server comes back at once with what it saved a moment before: what it has granted
// since, it does not know.
func restoredServerIsALoss(c *checker) error {
	srv := redistest.Start(c)
	o := gotsem.Options{Limit: 4, TTL: 4 * time.Second, Outage: gotsem.Closed}
	a, b := c.process(srv, o), c.process(srv, o)
	for _, sem := range []*gotsem.Semaphore{a, b} {
		if _, err := c.take(sem, "another id"); err != nil {
			return err
		}
	}
	if _, err := srv.Do("SAVE"); err != nil {
		return err
	}
	for range 4 {
		if _, err := c.take(a, "id"); err != nil {
			return err
		}
	}
	srv.Kill()
	srv.Restart(true)
	var last error
	for began := time.Now(); time.Since(began) < time.Second; time.Sleep(20 * time.Millisecond) {
		if _, last = b.Try(c.ctx, "id"); last == nil {
			return fmt.Errorf("a fifth lease of 4 was granted %v after the restart", time.Since(began))
		}
	}
	if !errors.Is(last, gotsem.ErrRecovering) && !errors.Is(last, gotsem.ErrFull) {
		return last
	}
	return nil
}

// held has one process hold the only slot of an id for longer than a check lasts without a
// renewal, which could hide that the slot was forgotten, and has another come to know the
// server. So what follows needs no luck.
func (c *checker) held(holder, other redis.UniversalClient, between func()) (try func() error, err error) {
	o := gotsem.Options{Limit: 1, TTL: 30 * time.Second, StoreTimeout: 5 * time.Second, Outage: gotsem.Closed}
	a, b := c.semaphore(holder, o), c.semaphore(other, o)
	if _, err := c.take(b, "another id"); err != nil {
		return nil, err
	}
	if _, err := c.take(a, "yet another"); err != nil {
		return nil, err
	}
	between()
	if _, err := c.take(a, "id"); err != nil {
		return nil, err
	}
	return func() error {
		if l, err := b.Try(c.ctx, "id"); err == nil {
			return fmt.Errorf("a second lease of 1 was granted: %v", l.SlotID())
		}
		return nil
	}, nil
}

// The clock steps past the end of a lease that its holder believes in: whoever asks next,
// with a clock that does not explain the step, is granted nothing.
func tryAfterAStepTakesNothing(c *checker) error {
	srv := redistest.Start(c)
	try, err := c.held(srv.Client(), srv.Client(), func() {})
	if err == nil {
		err = c.clocks.Set(srv, time.Minute)
	}
	if err != nil {
		return err
	}
	return try()
}

// The server forgets all it knew.
func tryAfterAFlushTakesNothing(c *checker) error {
	srv := redistest.Start(c)
	try, err := c.held(srv.Client(), srv.Client(), func() {})
	if err == nil {
		_, err = srv.Do("FLUSHALL")
	}
	if err != nil {
		return err
	}
	return try()
}

// A replica is promoted that has the marker, and not the lease.
func tryOnANewPrimaryTakesNothing(c *checker) error {
	pair := NewPair(c)
	var late error
	try, err := c.held(pair.Client("holder"), pair.Client("other"), func() {
		late = await("the replica to have the marker", 5*time.Second, func() error {
			if pair.Replica.Info("replication")["master_repl_offset"] != pair.Primary.Info("replication")["master_repl_offset"] {
				return errors.New("it is behind")
			}
			return nil
		})
		pair.Cut()
	})
	if err = errors.Join(err, late); err != nil {
		return err
	}
	pair.Primary.Kill()
	pair.Promote()
	pair.Lead("other", pair.Replica)
	return try()
}

// The clock steps once: one grace, however many processes notice.
func clockStepBringsOneGrace(c *checker) error {
	srv := redistest.Start(c)
	o := gotsem.Options{Limit: 1, TTL: time.Second, Grace: 1500 * time.Millisecond, Outage: gotsem.Closed}
	var sems []*gotsem.Semaphore
	for range 5 {
		sem := c.process(srv, o)
		if l, err := c.take(sem, "id"); err != nil {
			return err
		} else if err := l.Release(c.ctx); err != nil {
			return err
		}
		sems = append(sems, sem)
	}
	if err := c.clocks.Set(srv, time.Minute); err != nil {
		return err
	}
	began := time.Now()
	for i, sem := range sems { // one after the other: the later ones were idle meanwhile
		if err := await("a grant", 4*time.Second, func() error {
			l, err := sem.Try(c.ctx, "id")
			if err == nil {
				err = l.Release(c.ctx)
			}
			return err
		}); err != nil {
			return fmt.Errorf("process %d, %v after the step: %w", i, time.Since(began), err)
		}
	}
	if took := time.Since(began); took > 4*time.Second {
		return fmt.Errorf("five processes were served after %v: a grace of 1.5 s each?", took)
	}
	return nil
}
