//go:build unix

package redistest

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestSentinelFailsOver(t *testing.T) {
	t.Parallel()
	began := time.Now()
	s := StartSentinel(t)
	t.Logf("ready after %v", time.Since(began))
	rdb := s.Client(func(o *redis.FailoverOptions) { o.DialTimeout = time.Second })
	if s.Primary() != s.Servers()[0] {
		t.Fatal("the first server is not the primary")
	}
	setEverywhere(t, rdb, "k", "v", sentinelReplicas)

	began = time.Now()
	dead := s.KillPrimary()
	primary := s.AwaitPromotion(dead)
	t.Logf("promoted after %v", time.Since(began))
	if primary == dead || s.Primary() != primary {
		t.Fatalf("primary %s after %s was killed", s.Primary().Addr(), dead.Addr())
	}
	must(t, await("a write", 10*time.Second, func() error { return rdb.Set(t.Context(), "l", "w", 0).Err() }))
	if got, err := primary.Do("MGET", "k", "l"); err != nil || got.([]any)[0] != "v" || got.([]any)[1] != "w" {
		t.Errorf("the new primary has %v, %v", got, err)
	}

	began = time.Now()
	s.Heal()
	t.Logf("healed after %v", time.Since(began))
	if s.Primary() != primary {
		t.Errorf("primary %s after Heal, was %s", s.Primary().Addr(), primary.Addr())
	}
	if role := dead.Info("replication")["role"]; role != "slave" {
		t.Errorf("the old primary came back as a %s", role)
	}

	began = time.Now()
	asleep := s.StopPrimary()
	s.AwaitPromotion(asleep)
	t.Logf("promoted after %v, the other asleep", time.Since(began))
}

// setEverywhere sets a key on a primary and all its replicas. WAIT waits only for what its own connection wrote.
func setEverywhere(t *testing.T, rdb *redis.Client, key, value string, replicas int64) {
	t.Helper()
	pipe := rdb.Pipeline()
	pipe.Set(t.Context(), key, value, 0)
	acks := pipe.Do(t.Context(), "WAIT", replicas, 5000)
	_, err := pipe.Exec(t.Context())
	must(t, err)
	if got, err := acks.Int64(); got != replicas {
		t.Fatalf("%d of %d replicas have it, %v", got, replicas, err)
	}
}
