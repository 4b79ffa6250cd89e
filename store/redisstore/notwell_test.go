//go:build unix

package redisstore

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store"
)

// Leases of several ids may go in one call that meets no marker: each is answered.
func TestManyIDsMeetNoMarker(t *testing.T) {
	srv := redistest.Start(t)
	rdb := redis.NewClient(&redis.Options{Addr: srv.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	s := opened(t, rdb, "many:")
	var ops []*op
	for i := range 5 {
		ops = append(ops, &op{question: question{
			verb: plainAcquire, lease: true, id: fmt.Sprint("id", i), slot: fmt.Sprint("slot", i),
			weight: 1, limit: 1, ttl: 60000, grace: 1000, budget: time.Second, due: time.Now().Add(time.Second),
		}})
	}
	s.exec.exec(context.Background(), ops)
	for _, o := range ops {
		if o.err != nil || o.decision.Outcome != store.Granted || o.decision.Fence == 0 {
			t.Errorf("%s: %+v, %v", o.id, o.decision, o.err)
		}
	}
}

// What gives back has not looked at the marker, also where it was split off a call of leases.
func TestASplitReleaseHasNotMetTheMarker(t *testing.T) {
	srv := redistest.Start(t)
	rdb := redis.NewClient(&redis.Options{Addr: srv.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	s := opened(t, rdb, "split:")
	command(t, srv, "SET", "split:wrong", "type")
	due := time.Now().Add(time.Second)
	ops := []*op{
		{question: question{verb: plainRelease, id: "back", slot: "slot", grace: 1000, due: due}},
		{question: question{verb: plainAcquire, lease: true, id: "wrong", slot: "slot", weight: 1, limit: 1, ttl: 60000, grace: 1000, due: due}},
	}
	s.exec.codec.swept.Store(0)
	s.exec.codec.general = true // sweeps always
	s.exec.exec(context.Background(), ops)
	if ops[0].err != nil || ops[1].err == nil {
		t.Errorf("errors %v and %v", ops[0].err, ops[1].err)
	}
	if seen, _, _ := s.exec.codec.clocks.header(0, time.Now()); seen != '0' {
		t.Errorf("seen is %c before there is a marker", seen)
	}
}
