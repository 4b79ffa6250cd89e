package redisstore_test

import (
	"regexp"
	"testing"
	"time"

	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

// Who waits without a class leaves in Redis what it left before there were classes; with
// one it says so behind the token of its process. Neither has a head start in its score
// that it did not ask for.
func TestAClassIsARecordsSuffix(t *testing.T) {
	srv := redistest.Start(t)
	rdb := srv.Client()
	st := redisstore.New(rdb, "class:")
	defer func() { _ = st.Close() }()
	ask := func(slot string, class store.Class, lead time.Duration) store.Decision {
		d, err := st.Acquire(t.Context(), &store.Request{
			ID: "id", SlotID: slot, Weight: 1, Limit: 1, TTL: time.Minute, Queue: 10, Owner: "me", FirstAttempt: true, Class: class, Lead: lead,
		})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	ask("holder", store.Default, 0)
	plain := ask("plain", store.Default, 0)
	low := ask("low", store.Sheddable, 0)
	high := ask("high", store.Critical, 2*time.Second)
	for slot, want := range map[string]string{
		"plain": `^w \d+ 1 1 [\w-]{6} me$`, "low": `^w \d+ 1 1 [\w-]{6}/1 me$`, "high": `^w \d+ 1 1 [\w-]{6}/4 me$`,
	} {
		record, err := rdb.HGet(t.Context(), "gotsem:{class:id}:m", slot).Result()
		if err != nil || !regexp.MustCompile(want).MatchString(record) {
			t.Errorf("%s: %q, %v; want %s", slot, record, err, want)
		}
	}
	now := time.Now().UnixMicro()
	for name, d := range map[string]store.Decision{"plain": plain, "low": low} {
		if age := now - int64(d.Ticket); age < -1e6 || age > 60e6 {
			t.Errorf("%s: ticket %d, now is %d", name, d.Ticket, now)
		}
	}
	if ahead := time.Duration(low.Ticket-high.Ticket) * time.Microsecond; ahead <= time.Second || ahead > 2*time.Second || high.Place != 1 {
		t.Errorf("the critical one stands %v ahead, at %d", ahead, high.Place)
	}
}
