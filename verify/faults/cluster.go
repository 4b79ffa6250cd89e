package faults

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
)

// The primary of a Cluster dies under a hundred leases of a client with go-redis's
// default options, which by themselves look for another once a minute.
func hundredLeasesOutliveAPrimary(c *checker) error {
	cl := redistest.StartCluster(c, 3, 1)
	const ttl = 6 * time.Second
	sem := c.semaphore(cl.Client(), gotsem.Options{Limit: 5, TTL: ttl, StoreTimeout: 2 * time.Second, Outage: gotsem.Closed})
	var leases []*gotsem.Lease
	for i := range 100 {
		l, err := c.take(sem, fmt.Sprint("id", i/5))
		if err != nil {
			return err
		}
		leases = append(leases, l)
	}
	slot := redistest.Slot("check:id0")
	began := time.Now()
	old := cl.KillMaster(slot)
	cl.AwaitPromotion(slot, old)
	promoted := time.Since(began)
	time.Sleep(ttl + time.Second - min(promoted, ttl)) // what was not renewed since is over
	for i, l := range leases {
		if err := l.Context().Err(); err != nil {
			return fmt.Errorf("lease %d of 100, of %d, was lost; the replica took over after %v", i, redistest.Slot(fmt.Sprint("check:id", i/5)), promoted)
		}
	}
	active := 0
	for i := range 20 {
		if err := await("the store to count", 5*time.Second, func() error {
			u, err := sem.Usage(c.ctx, fmt.Sprint("id", i))
			if err == nil && u.Active != 5 {
				err = fmt.Errorf("%d of 5 held", u.Active)
			}
			if err == nil {
				active += u.Active
			}
			return err
		}); err != nil {
			return fmt.Errorf("id%d: %w", i, err)
		}
	}
	c.note("%d of 100 still held %v after the kill", active, time.Since(began).Round(100*time.Millisecond))
	return nil
}

// A slot moves to a node that was never promoted: no loss, so no grace, and whoever waits
// there is told.
func handOffsGoOnAfterAMigration(c *checker) error {
	cl := redistest.StartCluster(c, 3, 0)
	o := gotsem.Options{Limit: 1, TTL: 30 * time.Second, StoreTimeout: 2 * time.Second, Outage: gotsem.Closed}
	a, b := c.semaphore(cl.Client(), o), c.semaphore(cl.Client(), o)
	slot := redistest.Slot("check:id")
	from := cl.NodeFor(slot)
	// A target that began about when the marker was last written might be one that came
	// back with old data. Uptimes are whole seconds.
	for _, node := range cl.Nodes() {
		if err := await("nodes that are not brand-new", 15*time.Second, func() error {
			if up := node.Info("server")["uptime_in_seconds"]; len(up) == 1 && up < "5" {
				return fmt.Errorf("%s is up for %s s", node.Addr(), up)
			}
			return nil
		}); err != nil {
			return err
		}
	}
	to := cl.NodeFor((slot + redistest.Slots/2) % redistest.Slots)
	var worst time.Duration
	for round := range 4 {
		lease, err := c.take(a, "id")
		if err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
		granted := make(chan error, 1)
		go func() {
			l, err := b.Acquire(c.ctx, "id", gotsem.MaxWait(30*time.Second))
			granted <- err
			if err == nil {
				_ = l.Release(c.ctx)
			}
		}()
		if err := await("somebody to wait", 5*time.Second, func() error {
			if u, err := a.Usage(c.ctx, "id"); err != nil || u.Waiting == 0 {
				return fmt.Errorf("%+v, %w", u, err)
			}
			return nil
		}); err != nil {
			return err
		}
		if round%2 == 0 {
			cl.MigrateSlot(slot, from, to)
			from, to = to, from
		}
		began := time.Now()
		_ = lease.Release(c.ctx)
		if err := <-granted; err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
		worst = max(worst, time.Since(began))
	}
	c.note("slowest hand-off %v", worst.Round(time.Millisecond))
	if worst > 10*time.Second {
		return fmt.Errorf("a hand-off took %v", worst)
	}
	return nil
}

// The connection of a subscription is up for both sides, and carries nothing.
func halfOpenSubscriberIsReplaced(c *checker) error {
	srv := redistest.Start(c)
	relay := redistest.NewRelay(c, srv.Addr())
	rdb := redis.NewClient(&redis.Options{Addr: relay.Addr()})
	c.Cleanup(func() { _ = rdb.Close() })
	sem := c.semaphore(rdb, gotsem.Options{Limit: 1, StoreTimeout: 2 * time.Second})
	if _, err := c.take(sem, "id"); err != nil {
		return err
	}
	subscribers := func() (ids map[string]bool, err error) {
		reply, err := srv.Do("CLIENT", "LIST", "TYPE", "pubsub")
		ids = make(map[string]bool)
		for line := range strings.Lines(fmt.Sprint(reply)) {
			if id, _, ok := strings.Cut(line, " "); ok {
				ids[id] = true
			}
		}
		return ids, err
	}
	var before map[string]bool
	if err := await("a subscription", 5*time.Second, func() (err error) {
		if before, err = subscribers(); err == nil && len(before) == 0 {
			err = errors.New("none")
		}
		return err
	}); err != nil {
		return err
	}
	relay.FreezeExisting()
	began := time.Now()
	err := await("another subscription", 25*time.Second, func() error {
		ids, err := subscribers()
		if err != nil {
			return err
		}
		for id := range ids {
			if !before[id] {
				return nil
			}
		}
		return errors.New("none")
	})
	c.note("replaced after %v", time.Since(began).Round(10*time.Millisecond))
	return err
}
