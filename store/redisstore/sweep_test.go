package redisstore_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

// Thousands of weighted slots that have lapsed beside one that lives: refusals take them
// out, a page each, and do not count them again for as long as that one lives.
func TestRefusalsSweepWhatHasLapsed(t *testing.T) {
	srv := redistest.Start(t)
	rdb := srv.Client()
	st := redisstore.New(rdb, "sweep:")
	defer func() { _ = st.Close() }()
	ask := func(slot string, weight, limit int, ttl time.Duration) store.Decision {
		d, err := st.Acquire(t.Context(), &store.Request{ID: "id", SlotID: slot, Weight: weight, Limit: limit, TTL: ttl, Owner: "me", FirstAttempt: true})
		if err != nil {
			t.Error(err)
		}
		return d
	}
	ask("lives", 2, 1<<20, time.Hour)
	const many, pages = 3500, 4
	var all sync.WaitGroup
	for g := range 50 {
		all.Go(func() {
			for i := range many / 50 {
				ask(fmt.Sprint("short", g, ".", i), 2, 1<<20, 2*time.Second)
			}
		})
	}
	all.Wait()
	members := func() int64 { return rdb.ZCard(t.Context(), "sweep:id").Val() }
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		u, err := st.Usage(t.Context(), "id", 2)
		if err == nil && u.Active == 2 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%+v, %v: they do not lapse", u, err)
		}
	}
	if n := members(); n < many/2 {
		t.Fatalf("%d members: too few are left for this test to show anything", n)
	}
	for i := range pages {
		if d := ask(fmt.Sprint("refused", i), 1, 2, time.Minute); d.Outcome != store.Full || d.Active != 2 {
			t.Errorf("%+v", d)
		}
	}
	if n := members(); n >= 1000 {
		t.Errorf("%d members after %d refusals", n, pages)
	}
	if d := ask("in", 1, 3, time.Minute); d.Outcome != store.Granted || d.Active != 3 {
		t.Errorf("%+v", d)
	}
}
