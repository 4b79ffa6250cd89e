//go:build unix

package redisstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store"
)

// wrapped is what many programs hand around: a type of their own around a client.
type wrapped struct{ redis.UniversalClient }

// hangingDialer looks at no ctx, and returns when the test is over.
func hangingDialer(t *testing.T) func(context.Context, string, string) (net.Conn, error) {
	over := make(chan struct{})
	t.Cleanup(func() { close(over) })
	return func(context.Context, string, string) (net.Conn, error) {
		<-over
		return nil, errors.New("the test is over")
	}
}

// Whatever hangs while a connection is made, a call ends with its budget, or with its ctx
// if that is sooner; cancelling it ends it at once.
func TestCallsEndInTimeWhileConnectingHangs(t *testing.T) {
	hole := redistest.Blackhole(t) // accepts, and says nothing
	secure := &tls.Config{InsecureSkipVerify: true}
	creds := func(context.Context) (string, string, error) { select {} }
	for name, connect := range map[string]func(t *testing.T) redis.UniversalClient{
		"dialing": func(t *testing.T) redis.UniversalClient {
			return redis.NewClient(&redis.Options{Dialer: hangingDialer(t)})
		},
		"greeting": func(*testing.T) redis.UniversalClient { return redis.NewClient(&redis.Options{Addr: hole.Addr()}) },
		"TLS": func(*testing.T) redis.UniversalClient {
			return redis.NewClient(&redis.Options{Addr: hole.Addr(), TLSConfig: secure})
		},
		"a password": func(*testing.T) redis.UniversalClient {
			return redis.NewClient(&redis.Options{Addr: hole.Addr(), CredentialsProviderContext: creds})
		},
		"own deadlines, dialing": func(t *testing.T) redis.UniversalClient {
			return redis.NewClient(&redis.Options{Dialer: hangingDialer(t), ContextTimeoutEnabled: true})
		},
		"own deadlines, TLS": func(*testing.T) redis.UniversalClient {
			return redis.NewClient(&redis.Options{Addr: hole.Addr(), TLSConfig: secure, ContextTimeoutEnabled: true})
		},
		"wrapped": func(*testing.T) redis.UniversalClient {
			return wrapped{redis.NewClient(&redis.Options{Addr: hole.Addr()})}
		},
		"Cluster, dialing": func(t *testing.T) redis.UniversalClient {
			return redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"a:1", "b:1"}, Dialer: hangingDialer(t)})
		},
		"Cluster, TLS": func(*testing.T) redis.UniversalClient {
			return redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{hole.Addr()}, TLSConfig: secure})
		},
		"Sentinel": func(t *testing.T) redis.UniversalClient {
			return redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{hole.Addr()}})
		},
		"Sentinel, dialing": func(t *testing.T) redis.UniversalClient {
			return redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{"a:1"}, Dialer: hangingDialer(t)})
		},
		"Sentinel as a Cluster": func(*testing.T) redis.UniversalClient {
			return redis.NewFailoverClusterClient(&redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{hole.Addr()}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb := connect(t)
			t.Cleanup(func() { go func() { _ = rdb.Close() }() }) // a client of one's own may hang in that
			s := New(rdb, "sem:")
			t.Cleanup(func() { go func() { _ = s.Close() }() })
			const budget = 150 * time.Millisecond
			for what, call := range map[string]func(ctx context.Context, slot string) error{
				"acquire": func(ctx context.Context, slot string) error {
					_, err := s.Acquire(ctx, &store.Request{ID: "x", SlotID: slot, Weight: 1, Limit: 1, TTL: time.Minute, Plain: true, Budget: budget})
					return err
				},
				"release": func(ctx context.Context, slot string) error {
					_, err := s.Release(ctx, &store.Release{ID: "x", SlotID: slot, Budget: budget})
					return err
				},
				"renew": func(ctx context.Context, slot string) error {
					ctx, cancel := context.WithTimeout(ctx, budget)
					defer cancel()
					return s.Renew(ctx, []store.Renewal{{ID: "x", SlotID: slot, TTL: time.Minute, Weight: 1}})[0].Err
				},
				"usage": func(ctx context.Context, _ string) error {
					ctx, cancel := context.WithTimeout(ctx, budget)
					defer cancel()
					_, err := s.Usage(ctx, "x", 1)
					return err
				},
			} {
				var all sync.WaitGroup
				for i := range 20 {
					all.Go(func() {
						began := time.Now()
						if err := call(context.Background(), fmt.Sprint(what, i)); err == nil || errors.Is(err, store.ErrConfig) {
							t.Errorf("%s: %v, want an outage", what, err)
						}
						if took := time.Since(began); took > budget+time.Second {
							t.Errorf("%s took %v, its budget is %v", what, took, budget)
						}
					})
				}
				all.Wait()
			}
			s2 := New(rdb, "sem:")
			t.Cleanup(func() { go func() { _ = s2.Close() }() })
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(20*time.Millisecond, cancel)
			began := time.Now()
			_, err := s2.Acquire(ctx, &store.Request{ID: "x", SlotID: "y", Weight: 1, Limit: 1, TTL: time.Minute, Budget: time.Minute})
			if took := time.Since(began); !errors.Is(err, context.Canceled) || took > time.Second {
				t.Errorf("cancelled after 20ms: %v after %v", err, took)
			}
		})
	}
}

// A ctx that is cancelled ends a call that has nobody to wait for but Redis, and what it
// leaves under way is given back by the release that follows.
func TestCancelEndsACallAtOnce(t *testing.T) {
	srv := redistest.Start(t)
	relay := redistest.NewRelay(t, srv.Addr())
	rdb := redis.NewClient(&redis.Options{Addr: relay.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	s := opened(t, rdb, "sem:")
	if _, err := s.Usage(t.Context(), "x", 1); err != nil { // connects
		t.Fatal(err)
	}
	relay.Blackhole(true)
	for what, call := range map[string]func(ctx context.Context) error{
		"acquire": func(ctx context.Context) error {
			_, err := s.Acquire(ctx, &store.Request{ID: "x", SlotID: "slot", Weight: 1, Limit: 1, TTL: time.Minute, Budget: patience})
			return err
		},
		"usage": func(ctx context.Context) error {
			_, err := s.Usage(ctx, "x", 1)
			return err
		},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(20*time.Millisecond, cancel)
		began := time.Now()
		if err := call(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v, want that it was cancelled", what, err)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("%s was cancelled after 20ms, and took %v", what, took)
		}
	}
	if !s.inDoubt.any() {
		t.Error("the acquire is not in doubt: that tests nothing")
	}
	relay.Blackhole(false)
	if _, err := s.Release(t.Context(), &store.Release{ID: "x", SlotID: "slot", Budget: patience}); err != nil {
		t.Error(err)
	}
	if u, err := s.Usage(t.Context(), "x", 1); err != nil || u.Active != 0 {
		t.Errorf("%+v, %v: want nothing held", u, err)
	}
	soon(t, "the batcher to come to rest", func() bool { ok, _ := s.batcher.idle(); return ok })
}

// On a client of which nothing is known, callers leave in the moment in which their batch
// ends: nothing stays in doubt, so that no release waits for what has ended.
func TestNothingStaysInDoubt(t *testing.T) {
	srv := redistest.Start(t)
	relay := redistest.NewRelay(t, srv.Addr())
	rdb := wrapped{redis.NewClient(&redis.Options{Addr: relay.Addr()})}
	t.Cleanup(func() { _ = rdb.Close() })
	s := opened(t, rdb, "sem:")
	ask := func(ctx context.Context, slot string) error {
		_, err := s.Acquire(ctx, &store.Request{ID: "x", SlotID: slot, Weight: 1, Limit: 1 << 20, TTL: time.Hour, Plain: true, Budget: patience})
		return err
	}
	var all sync.WaitGroup
	for i := range 8 { // connections, scripts
		all.Go(func() {
			if err := ask(t.Context(), fmt.Sprint("warm", i)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	relay.SetDelay(time.Millisecond)
	left := 0
	for round := range 200 {
		var mu sync.Mutex
		for w := range 8 {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Microsecond+rand.N(3*time.Millisecond))
				defer cancel()
				if ask(ctx, fmt.Sprintf("slot-%d-%d", round, w)) != nil {
					mu.Lock()
					left++
					mu.Unlock()
				}
			})
		}
		all.Wait()
	}
	if left == 0 {
		t.Error("nobody left: that tests nothing")
	}
	soon(t, "nothing to be in doubt", func() bool { ok, _ := s.batcher.idle(); return ok })
}
