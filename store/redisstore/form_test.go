//go:build unix

package redisstore

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store"
)

// What the server is decides how keys and markers are named, and not the type of the
// client: a limit that was set over one holds over all others.
func TestClientsOfOneServerAgreeOnItsKeys(t *testing.T) {
	whole, shard, sentinel := redistest.StartCluster(t, 3, 0), redistest.StartCluster(t, 1, 0), redistest.StartSentinel(t)
	for name, clients := range map[string][]redis.UniversalClient{
		"Cluster":              {whole.Client(), wrapped{whole.Client()}},
		"Cluster of one shard": {shard.Client(), redis.NewClient(&redis.Options{Addr: shard.Addrs()[0]}), wrapped{shard.Client()}},
		"Sentinel":             {sentinel.Client(), redis.NewFailoverClusterClient(&redis.FailoverOptions{MasterName: redistest.MasterName, SentinelAddrs: sentinel.Addrs()})},
	} {
		t.Run(name, func(t *testing.T) {
			for i, by := range clients {
				setter := opened(t, by, "sem:")
				id := fmt.Sprint("id", i)
				if _, err := setter.ChangeLimit(t.Context(), store.LimitChange{ID: id, Limit: 1}); err != nil {
					t.Fatalf("%T: %v", by, err)
				}
				for j, rdb := range clients {
					s := opened(t, rdb, "sem:")
					granted := 0
					for k := range 3 {
						d, err := s.Acquire(t.Context(), &store.Request{ID: id, SlotID: fmt.Sprint(j, k), Weight: 1, Limit: 10, TTL: time.Minute, Plain: true, FirstAttempt: true, Budget: patience})
						if err != nil {
							t.Fatalf("%T: %v", rdb, err)
						}
						if d.Outcome == store.Granted {
							granted++
						}
					}
					if granted != 1 {
						t.Errorf("%T granted %d by the limit of 1 that %T set", rdb, granted, by)
					}
					if _, err := s.Clear(t.Context(), store.Clear{ID: id, TTL: time.Second}); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
}

// A Ring would move ids to a shard that knows nothing of their holders: every call says so.
func TestRingIsRefused(t *testing.T) {
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": "127.0.0.1:1"}})
	t.Cleanup(func() { _ = ring.Close() })
	type mine struct{ *redis.Ring }
	for _, rdb := range []redis.UniversalClient{ring, mine{ring}} {
		s := New(rdb, "sem:")
		if err := s.Err(); !errors.Is(err, store.ErrConfig) {
			t.Errorf("%T: %v", rdb, err)
		}
		_, err := s.Acquire(t.Context(), &store.Request{ID: "x", SlotID: "y", Weight: 1, Limit: 1, TTL: time.Minute})
		if !errors.Is(err, store.ErrConfig) {
			t.Errorf("%T: Acquire: %v", rdb, err)
		}
	}
	type other struct{ *redis.ClusterClient }
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	t.Cleanup(func() { _ = c.Close() })
	if err := New(other{c}, "sem:").Err(); err != nil {
		t.Errorf("a ClusterClient in a type of one's own: %v", err)
	}
}

// What asking again will not mend is a matter of configuration. All else is an outage,
// since nobody knows every word for "not now".
func TestUnknownErrorRepliesAreOutages(t *testing.T) {
	for _, text := range []string{
		"upstream failure", "no upstream host", "ERR Connection refused", "ERR max daily request limit exceeded", "THROTTLED", "ERR Proxy error",
		"LOADING Redis is loading", "READONLY You can't write against a read only replica. script: f, on @user_script:12.",
		"OOM command not allowed when used memory > 'maxmemory'. script: f, on @user_script: 3.", "BUSY Redis is busy", "TRYAGAIN Multiple keys",
		"CLUSTERDOWN The cluster is down", "MISCONF Redis is configured to save", "NOREPLICAS Not enough good replicas", "ERR max number of clients reached",
	} {
		if err := classify(proto(text)); errors.Is(err, store.ErrConfig) || err == nil || err.Error() != text {
			t.Errorf("%q became %v, want an outage with its text", text, err)
		}
	}
	for _, text := range []string{
		"WRONGTYPE Operation against a key", "NOAUTH Authentication required.", "WRONGPASS invalid username-password pair", "NOPERM this user has no permissions",
		"CROSSSLOT Keys in request don't hash", "ERR unknown command 'EVALSHA', with args beginning with: 'secret'", "NOPROTO unsupported protocol version",
		"ERR wrong number of arguments for 'zadd' command", "ERR user_script:1: Script attempted to access nonexistent global variable 'x' script: f, on @user_script:1.",
		"ERR Error running script (call to f_1): @user_script:1: x", "ERR Error compiling script (new function): user_script:1: x",
	} {
		if err := classify(proto(text)); !errors.Is(err, store.ErrConfig) {
			t.Errorf("%q became %v, want store.ErrConfig", text, err)
		}
	}
	if err := classify(context.DeadlineExceeded); errors.Is(err, store.ErrConfig) {
		t.Error(err)
	}
}

// proto is an error reply of Redis.
type proto string

func (e proto) Error() string { return string(e) }
func (proto) RedisError()     {}
