package gotsem

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/ashfaqjani916/gotsem/store"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

// A client that is nil is an error from New, and NewGotsem admits nobody with it and logs:
// neither panics, then or later.
func TestANilClientIsRefusedInWords(t *testing.T) {
	for _, rdb := range []redis.UniversalClient{nil, (*redis.Client)(nil), (*redis.ClusterClient)(nil)} {
		if _, err := New(Options{Limit: 1, Store: redisstore.New(rdb, "sem:")}); !errors.Is(err, store.ErrConfig) || !contains(err.Error(), "client is nil") {
			t.Errorf("%T: %v", rdb, err)
		}
		core, logs := observer.New(zapcore.InfoLevel)
		sem := NewGotsem(rdb, "sem:", time.Second, 5, nil, zap.New(core).Sugar())
		if r := sem.TryAcquire(context.Background(), "id"); r.Acquired {
			t.Errorf("%T: %+v", rdb, r)
		}
		sem.Release(context.Background(), "id", "x")
		if _, err := sem.Acquire(context.Background(), "id"); !errors.Is(err, store.ErrConfig) {
			t.Errorf("%T: %v", rdb, err)
		}
		if err := sem.Close(); err != nil {
			t.Errorf("%T: %v", rdb, err)
		}
		if logs.Len() == 0 {
			t.Errorf("%T: nothing is logged", rdb)
		}
	}
}

// The first renewal of a lease that was long on its way goes at once.
func TestALeaseThatWasLongOnItsWayIsRenewedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		s := open(t, Options{Store: st, Limit: 2, TTL: 600 * time.Millisecond, StoreTimeout: 500 * time.Millisecond, Outage: Closed})
		mustTry(t, s, "id")
		time.Sleep(20 * time.Millisecond) // the renewer sleeps
		st.hooked(func(verb, _ string) {
			if verb == "acquire" {
				time.Sleep(100 * time.Millisecond)
			}
		})
		l := mustTry(t, s, "id")
		before := l.Expires()
		time.Sleep(s.renewer.tick + time.Millisecond)
		if !l.Expires().After(before) {
			t.Errorf("not renewed: %v", l.Expires().Sub(before))
		}
	})
}
