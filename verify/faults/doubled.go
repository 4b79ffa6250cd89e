package faults

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

// repliesDoubled has replies delivered twice under load, at once and late. Who does not
// notice is one reply behind from then on, and takes the answer to one call for that to
// another: a refusal for a grant.
func repliesDoubled(c *checker) error {
	const limit, processes, length = 3, 3, 3 * time.Second
	srv := redistest.Start(c)
	relay := redistest.NewRelay(c, srv.Addr())
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	referee := NewReferee()
	load := Load{
		IDs: []string{"a", "b"}, Workers: 8, TryShare: 50, Patience: 500 * time.Millisecond,
		HoldLeast: time.Millisecond, HoldMost: 100 * time.Millisecond, Pause: 10 * time.Millisecond,
	}
	calls := new(Calls)
	var all sync.WaitGroup
	var sems []*gotsem.Semaphore
	for i := range processes {
		rdb := redis.NewClient(&redis.Options{Addr: relay.Addr()})
		c.Cleanup(func() { _ = rdb.Close() })
		sem := c.semaphore(rdb, gotsem.Options{Limit: limit, Queue: 100, TTL: 2 * time.Second, StoreTimeout: time.Second, Outage: gotsem.Closed})
		if _, err := c.take(sem, fmt.Sprint("warm", i)); err != nil { // connections are there
			return err
		}
		sems = append(sems, sem)
	}
	for i, sem := range sems {
		all.Go(func() { load.Run(ctx, sem, fmt.Sprint("p", i), uint64(i), referee, calls) })
	}
	how := redistest.AtOnce
	for began := time.Now(); time.Since(began) < length; time.Sleep(20 * time.Millisecond) {
		relay.DoubleReplies(1, how)
		how = redistest.AtOnce + redistest.BeforeNext - how
	}
	relay.DoubleReplies(0, redistest.AtOnce)
	cancel()
	all.Wait()
	spans := referee.Spans()
	wrong := Judge(spans, limit)
	if told := Told(spans); told > 0 {
		wrong = append(wrong, fmt.Sprintf("%d were told lost", told))
	}
	// What nobody knows of any more is gone after its TTL.
	if err := await("nothing to be left behind", 8*time.Second, func() error { return nothingLeft(srv.Client(), "check:", limit, load.IDs) }); err != nil {
		wrong = append(wrong, err.Error())
	}
	c.note("%d replies doubled, %d leases; %v", relay.Stats().Doubled, len(spans), calls.Errors)
	if len(wrong) > 0 {
		return errors.New(strings.Join(wrong, "; "))
	}
	return nil
}

// repliesDoubledLate is the worst of it: the copy of a grant arrives when the next call on
// the connection has been sent, whose answer is a refusal. go-redis gives up a connection
// on which anything lies when it comes back to its pool or leaves it; this one looks
// well both times.
func repliesDoubledLate(c *checker) error {
	srv := redistest.Start(c)
	relay := redistest.NewRelay(c, srv.Addr())
	o := gotsem.Options{Limit: 1, TTL: time.Minute, StoreTimeout: 5 * time.Second, Outage: gotsem.Closed}
	holder := c.process(srv, o)
	bareHolder := gotsem.NewGotsem(srv.Client(), "check:bare:", time.Minute, 1, nil, nil)
	rdb := redis.NewClient(&redis.Options{Addr: relay.Addr()})
	c.Cleanup(func() { _ = rdb.Close() })
	sem := c.semaphore(rdb, o)
	bare := gotsem.NewGotsem(rdb, "check:bare:", time.Minute, 1, nil, nil)
	if _, err := c.take(holder, "taken"); err != nil {
		return err
	}
	if _, err := c.take(sem, "warm"); err != nil {
		return err
	}
	if err := await("a first slot", 10*time.Second, func() error {
		if got := bareHolder.TryAcquire(c.ctx, "taken"); !got.Acquired || got.FailedOpen() {
			return errors.New("refused")
		}
		return nil
	}); err != nil {
		return err
	}
	const rounds = 20
	leases, slots := 0, 0
	for i := range rounds {
		relay.DoubleReplies(1, redistest.BeforeNext)
		_, _ = sem.Try(c.ctx, fmt.Sprint("free", i))
		if _, err := sem.Try(c.ctx, "taken"); err == nil {
			leases++
		}
		relay.DoubleReplies(1, redistest.BeforeNext)
		bare.TryAcquire(c.ctx, fmt.Sprint("free", i))
		if got := bare.TryAcquire(c.ctx, "taken"); got.Acquired && !got.FailedOpen() {
			slots++
		}
	}
	if n := relay.Stats().Doubled; n < rounds {
		return fmt.Errorf("only %d replies were doubled", n)
	}
	if leases+slots > 0 {
		return fmt.Errorf("of %d refusals each, %d were taken for the grant of a lease, and %d for that of a slot", rounds, leases, slots)
	}
	return nil
}

// nothingLeft returns nil if nobody holds and nobody waits.
func nothingLeft(rdb redis.UniversalClient, prefix string, limit int, ids []string) error {
	st := redisstore.New(rdb, prefix)
	defer func() { _ = st.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	for _, id := range ids {
		u, err := st.Usage(ctx, id, limit)
		if err != nil {
			return err
		}
		if u.Active > 0 || u.Waiting > 0 {
			return fmt.Errorf("%s: %d held, %d waiting", id, u.Active, u.Waiting)
		}
	}
	return nil
}
