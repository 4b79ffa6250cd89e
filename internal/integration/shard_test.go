//go:build unix

package integration

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

// shardFaults are what can befall one of three shards. Each returns what ends it, or nil if nothing does.
var shardFaults = map[string]func(t *testing.T, c *redistest.Cluster, relays []*redistest.Relay) (mend func()){
	"hangs": func(_ *testing.T, c *redistest.Cluster, _ []*redistest.Relay) func() {
		c.Nodes()[0].Stop()
		return c.Nodes()[0].Cont
	},
	"is gone": func(_ *testing.T, c *redistest.Cluster, relays []*redistest.Relay) func() {
		c.Nodes()[0].Kill()
		relays[0].Refuse(true)
		relays[0].CutAll()
		return nil
	},
	"has lost its host": func(_ *testing.T, _ *redistest.Cluster, relays []*redistest.Relay) func() {
		relays[0].HangAt(redistest.AtConnect)
		return func() { relays[0].HangAt(redistest.Nowhere) }
	},
	"is slow": func(_ *testing.T, _ *redistest.Cluster, relays []*redistest.Relay) func() {
		relays[0].SetDelay(storeTimeout) // each way
		return func() { relays[0].SetDelay(0) }
	},
	"is full": func(t *testing.T, c *redistest.Cluster, _ []*redistest.Relay) func() {
		set(t, c.Nodes()[0], "maxmemory", 1)
		return func() { set(t, c.Nodes()[0], "maxmemory", 0) }
	},
	"takes no writes": func(t *testing.T, c *redistest.Cluster, _ []*redistest.Relay) func() {
		set(t, c.Nodes()[0], "min-replicas-to-write", 1)
		return func() { set(t, c.Nodes()[0], "min-replicas-to-write", 0) }
	},
	"is half moved": func(_ *testing.T, c *redistest.Cluster, _ []*redistest.Relay) func() {
		m := c.BeginMigration(redistest.Slot("ailing"), c.Nodes()[0], c.Nodes()[1])
		m.Move(3)
		return m.Finish
	},
}

func set(t *testing.T, srv *redistest.Server, name string, value any) {
	t.Helper()
	if _, err := srv.Do("CONFIG", "SET", name, value); err != nil {
		t.Fatal(err)
	}
}

// What befalls one shard of a Cluster concerns its ids alone, under each outage policy: leases on the others are kept, what is held
// there is refused and what is free there is granted, while goroutines ask the sick one all the time.
func TestAShardThatFailsConcernsItsOwnIDs(t *testing.T) {
	for name, befall := range shardFaults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := redistest.StartCluster(t, 3, 0, redistest.WithArgs("--cluster-require-full-coverage", "no"))
			relays := c.Relays(nil)
			var addrs []string
			for _, r := range relays {
				addrs = append(addrs, r.Addr())
			}
			var subjects []*sharded
			for _, policy := range []gotsem.Outage{gotsem.Open, gotsem.Closed, gotsem.Local} {
				subjects = append(subjects, newSharded(t, c, addrs, policy))
			}
			mend := befall(t, c, relays)
			ctx, cancel := context.WithTimeout(t.Context(), 2*shardTTL)
			defer cancel()
			var all sync.WaitGroup
			for _, s := range subjects {
				for range 2 {
					all.Go(func() { s.askSick(ctx) })
				}
				all.Go(func() { s.askWell(t, ctx) })
			}
			all.Wait()
			for _, s := range subjects {
				s.check(t)
			}
			if mend == nil {
				return
			}
			mend()
			for _, s := range subjects {
				soon(t, patience, "the shard to be asked again", func() bool {
					l, err := s.sem.Try(t.Context(), s.spare)
					if err != nil {
						return false
					}
					_ = l.Release(t.Context())
					return !l.FailedOpen()
				})
			}
		})
	}
}

const (
	shardTTL  = 3 * time.Second
	shardHeld = 30
)

// sharded is a semaphore over a Cluster of three, with leases on the two shards that will be well.
type sharded struct {
	policy gotsem.Outage
	sem    *gotsem.Semaphore
	held   []string // ids with a limit of 1
	leases []*gotsem.Lease
	free   string // on a shard that will be well
	sick   string
	spare  string // on the sick shard too

	asked, wrong int
	last         error
}

func newSharded(t *testing.T, c *redistest.Cluster, addrs []string, policy gotsem.Outage) *sharded {
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
	t.Cleanup(func() { _ = rdb.Close() })
	prefix := policy.String() + ":"
	st := redisstore.New(rdb, prefix)
	t.Cleanup(func() { _ = st.Close() })
	sem, err := gotsem.New(gotsem.Options{Store: st, Limit: 1, TTL: shardTTL, StoreTimeout: storeTimeout, Outage: policy})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sem.Close() })
	s := &sharded{policy: policy, sem: sem, sick: "{ailing}", spare: "{ailing}spare"}
	isSick := func(slot int) bool { return slot < redistest.Slots/3 }
	if !isSick(redistest.Slot("ailing")) {
		t.Fatal("the tag is not of the first shard")
	}
	try := func(id string) *gotsem.Lease {
		var l *gotsem.Lease
		soon(t, patience, "a lease of "+id, func() bool { l, err = sem.Try(t.Context(), id); return err == nil && !l.FailedOpen() })
		return l
	}
	for i := 0; len(s.held) < shardHeld; i++ {
		id := fmt.Sprint("id", i)
		switch {
		case isSick(redistest.Slot(prefix + id)):
		case s.free == "":
			s.free = id
			_ = try(id).Release(t.Context())
		default:
			s.held = append(s.held, id)
			s.leases = append(s.leases, try(id))
		}
	}
	try(s.sick)
	return s
}

// askSick asks the sick shard all the time.
func (s *sharded) askSick(ctx context.Context) {
	for ctx.Err() == nil {
		if l, err := s.sem.Try(context.Background(), s.spare); err == nil {
			_ = l.Release(context.Background())
		}
		sleep(ctx, 20*time.Millisecond)
	}
}

// askWell asks the others, and counts answers that are not right.
func (s *sharded) askWell(t *testing.T, ctx context.Context) {
	count := func(err error) {
		if s.asked++; err != nil {
			s.wrong++
			s.last = err
		}
	}
	for i := 0; ctx.Err() == nil; i++ {
		id := s.held[i%len(s.held)]
		_, err := s.sem.Try(t.Context(), id)
		if errors.Is(err, gotsem.ErrFull) {
			err = nil
		} else if err == nil {
			err = errors.New("admitted above the limit")
		}
		count(err)
		l, err := s.sem.Try(t.Context(), s.free)
		if err == nil && l.FailedOpen() {
			err = errors.New("admitted without asking")
		} else if err == nil {
			err = l.Release(t.Context())
		}
		count(err)
		sleep(ctx, 10*time.Millisecond)
	}
}

func (s *sharded) check(t *testing.T) {
	t.Helper()
	lost := 0
	for _, l := range s.leases {
		if l.Context().Err() != nil {
			lost++
		}
	}
	if lost > 0 {
		t.Errorf("%v: %d of %d leases of other shards were lost", s.policy, lost, len(s.leases))
	}
	// A busy machine may be late with one in a hundred.
	if s.wrong > s.asked/100 {
		t.Errorf("%v: %d of %d answers of other shards are wrong: %v", s.policy, s.wrong, s.asked, s.last)
	}
}

// sleep is a pause between two requests of a load.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
