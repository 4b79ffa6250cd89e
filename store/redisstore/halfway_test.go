package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

// A script that is refused a command half-way leaves no slot.
func TestScriptThatFailsHalfwayLeavesNoSlot(t *testing.T) {
	srv := redistest.Start(t)
	admin := srv.Client()
	ctx := context.Background()
	for _, right := range []string{"pexpireat", "pexpiretime", "hset", "hget", "zcount"} {
		if _, err := srv.Do("acl", "setuser", "u", "reset", "on", ">p", "~*", "&*", "+@all", "-"+right); err != nil {
			t.Fatal(err)
		}
		s := redisstore.New(srv.Client(func(o *redis.Options) { o.Username, o.Password = "u", "p" }), right+":")
		t.Cleanup(func() { _ = s.Close() })
		for i, r := range []store.Request{
			{Plain: true}, {Plain: true, Limit: 3}, {}, {Grace: time.Minute}, {Queue: 5}, {Weight: 2}, {Queue: 5, Grace: time.Minute, Weight: 2},
		} {
			r.ID, r.SlotID, r.Weight, r.Limit, r.TTL = fmt.Sprint("x", i), "s", max(r.Weight, 1), max(r.Limit, 2), time.Minute
			if r.Limit == 3 { // beside one that is held
				admin.ZAdd(ctx, right+":"+r.ID, redis.Z{Score: float64(time.Now().Add(time.Hour).UnixMilli()), Member: "other"})
			}
			d, err := s.Acquire(ctx, &r)
			if err == nil && d.Outcome == store.Granted {
				continue // it did not need that
			}
			if !errors.Is(err, store.ErrConfig) {
				t.Errorf("without %s, %+v: %+v, %v", right, r, d, err)
			}
			for end := time.Now().Add(5 * time.Second); admin.ZScore(ctx, right+":"+r.ID, "s").Err() != redis.Nil; time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("without %s, %+v: a slot stays, of an acquire that failed: %v", right, r, err)
				}
			}
		}
	}
}
