package gotsem

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// A client that is nil is an error from New, and NewGotsem admits nobody with it and
// logs: neither panics, then or later.
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
