//go:build unix

package integration

import (
	"bytes"
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

// Looking in goes by connections of its own: looks that are never answered end within their
// budget, the breaker stays closed, and who acquires notices nothing.
func TestALookThatHangsHarmsNobody(t *testing.T) {
	relay := redistest.NewRelay(t, redistest.Start(t).Addr())
	rdb := redis.NewClient(&redis.Options{Addr: relay.Addr()})
	defer func() { _ = rdb.Close() }()
	sem, err := gotsem.New(gotsem.Options{Store: redisstore.New(rdb, prefix), Limit: 2, Outage: gotsem.Closed})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sem.Close() }()
	ctx, cancel := context.WithCancel(context.Background())
	var tries, failed atomic.Int64
	var trying sync.WaitGroup
	trying.Go(func() {
		for ctx.Err() == nil {
			lease, err := sem.Try(context.Background(), "worked on")
			if tries.Add(1); err != nil {
				failed.Add(1)
				continue
			}
			_ = lease.Release(context.Background())
		}
	})
	const watched = "id-that-is-watched" // in no script's text
	relay.MuteWhen(func(request []byte) bool {
		return bytes.Contains(request, []byte(watched)) || bytes.Contains(bytes.ToLower(request), []byte("\r\nscan\r\n"))
	})
	const patience = 2 * time.Second // eight times the budget of a call
	looks := map[string]func() error{
		"Usage":   func() error { _, err := sem.Usage(ctx, watched); return err },
		"Holders": func() error { _, err := sem.Holders(ctx, watched); return err },
		"Waiters": func() error { _, err := sem.Waiters(ctx, watched, 10); return err },
		"LimitOf": func() error { _, err := sem.LimitOf(ctx, watched); return err },
		"State":   func() error { _, err := sem.State(ctx, watched); return err },
		"Walk": func() (err error) {
			for _, err = range sem.Walk(ctx, 0) {
			}
			return err
		},
	}
	for range 3 {
		for name, look := range looks {
			began, before := time.Now(), tries.Load()
			if err := look(); err == nil || time.Since(began) > patience {
				t.Errorf("%s: %v, after %v", name, err, time.Since(began))
			}
			if tries.Load() == before {
				t.Errorf("while %s hung nobody could try", name)
			}
		}
	}
	cancel()
	trying.Wait()
	if st := sem.Stats(); st.Outages != 0 || st.Down || failed.Load() != 0 {
		t.Errorf("%d of %d tries failed, %d outages", failed.Load(), tries.Load(), st.Outages)
	}
}
