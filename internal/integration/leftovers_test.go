//go:build unix

package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

// Callers that cancel, time out, wait and leave at random, over connections that are slow, cut and lose replies: what the store holds
// is what the callers hold, soon after the trouble is over, and long before it would have lapsed by itself.
func TestNothingStaysThatNobodyHolds(t *testing.T) {
	single := redistest.Start(t)
	cluster := redistest.StartCluster(t, 2, 0)
	for name, connect := range map[string]func(t *testing.T) (rdb redis.UniversalClient, relays []*redistest.Relay, mock *moody){
		"single": func(t *testing.T) (redis.UniversalClient, []*redistest.Relay, *moody) {
			r := redistest.NewRelay(t, single.Addr())
			return redis.NewClient(&redis.Options{Addr: r.Addr()}), []*redistest.Relay{r}, nil
		},
		"wrapped": func(t *testing.T) (redis.UniversalClient, []*redistest.Relay, *moody) {
			r := redistest.NewRelay(t, single.Addr())
			return own{redis.NewClient(&redis.Options{Addr: r.Addr()})}, []*redistest.Relay{r}, nil
		},
		"cluster": func(t *testing.T) (redis.UniversalClient, []*redistest.Relay, *moody) {
			relays := cluster.RelaysFor(t, nil)
			var addrs []string
			for _, r := range relays {
				addrs = append(addrs, r.Addr())
			}
			return redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs}), relays, nil
		},
		"mock": func(t *testing.T) (redis.UniversalClient, []*redistest.Relay, *moody) {
			rdb, mock := redis.NewClient(&redis.Options{Addr: single.Addr(), ContextTimeoutEnabled: true}), new(moody)
			rdb.AddHook(mock) // which the store keeps, of a client that it takes as it is
			return rdb, nil, mock
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb, relays, mock := connect(t)
			t.Cleanup(func() { _ = rdb.Close() })
			leftovers(t, rdb, relays, mock, name+":")
		})
	}
}

// moody is a mock as tests have one: it answers by itself, now and then, whether the
// command was carried out or not.
type moody struct{ bad atomic.Bool }

var errMoody = errors.New("the mock says no")

func (m *moody) DialHook(next redis.DialHook) redis.DialHook { return next }

func (m *moody) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := m.answer(func() error { return next(ctx, cmd) })
		if err != nil {
			cmd.SetErr(err)
		}
		return err
	}
}

func (m *moody) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := m.answer(func() error { return next(ctx, cmds) })
		if errors.Is(err, errMoody) {
			for _, cmd := range cmds {
				cmd.SetErr(err)
			}
		}
		return err
	}
}

func (m *moody) answer(next func() error) error {
	if !m.bad.Load() {
		return next()
	}
	switch rand.N(6) {
	case 0:
		return errMoody
	case 1:
		_ = next()
		return errMoody
	case 2:
		time.Sleep(rand.N(30 * time.Millisecond)) // whatever the ctx says
	}
	return next()
}

func leftovers(t *testing.T, rdb redis.UniversalClient, relays []*redistest.Relay, mock *moody, prefix string) {
	const (
		trouble = 5 * time.Second
		ids     = 4
	)
	st := redisstore.New(rdb, prefix)
	t.Cleanup(func() { _ = st.Close() })
	// A TTL far longer than the test: nothing that is free at its end has lapsed.
	sem, err := gotsem.New(gotsem.Options{Store: st, Limit: 3, Queue: 8, TTL: 5 * time.Minute, StoreTimeout: storeTimeout, Outage: gotsem.Closed})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sem.Close() })
	over, cancel := context.WithTimeout(t.Context(), trouble)
	defer cancel()
	var all sync.WaitGroup
	var granted atomic.Int64
	for range 12 {
		all.Go(func() {
			for over.Err() == nil {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+rand.N(40))*time.Millisecond)
				if rand.N(2) == 0 {
					time.AfterFunc(rand.N(20*time.Millisecond), cancel)
				}
				id := fmt.Sprint("id", rand.N(ids))
				var l *gotsem.Lease
				var err error
				if rand.N(2) == 0 {
					l, err = sem.Try(ctx, id)
				} else {
					l, err = sem.Acquire(ctx, id)
				}
				cancel()
				if err == nil {
					granted.Add(1)
					sleep(over, rand.N(5*time.Millisecond))
					_ = l.Release(t.Context())
				} else if errors.Is(err, gotsem.ErrUnavailable) {
					sleep(over, time.Millisecond) // during an outage the answer is at once, and asking on would only keep the machine busy
				}
			}
		})
	}
	for over.Err() == nil {
		if mock != nil { // in turns: a store that always answers so is an outage for good
			mock.bad.Store(!mock.bad.Load())
		}
		for _, r := range relays {
			switch rand.N(4) {
			case 0:
				r.SetDelay(rand.N(30 * time.Millisecond))
			case 1:
				r.SetDelay(0)
			case 2:
				r.CutAll()
			case 3:
				r.DropReplyWhen(func(request []byte) bool { return strings.Contains(string(request[:min(64, len(request))]), "eval") })
			}
		}
		sleep(over, 100*time.Millisecond)
	}
	all.Wait()
	if mock != nil {
		mock.bad.Store(false)
	}
	for _, r := range relays {
		r.SetDelay(0)
		r.DropReplyWhen(nil)
	}
	if granted.Load() == 0 {
		t.Error("nobody was granted anything")
	}
	for i := range ids {
		id := fmt.Sprint("id", i)
		var u gotsem.Usage
		began := time.Now()
		for {
			u, err = sem.Usage(t.Context(), id)
			if err == nil && u.Active == 0 && u.Waiting == 0 {
				break
			}
			if time.Since(began) > patience {
				t.Errorf("%s: %+v, %v, and nobody holds it or waits", id, u, err)
				break
			}
			sleep(t.Context(), 20*time.Millisecond)
		}
	}
	t.Logf("%d granted; %+v", granted.Load(), sem.Stats())
}
