//go:build unix

package redisstore

import (
	"errors"
	"testing"
	"time"

	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store"
)

// A grant whose reply was lost was sent again as if for the first time, found the id full
// of itself, and was refused; its slot stayed for a TTL.
func TestGrantSentAgainFoundItselfInTheWay(t *testing.T) {
	for name, opts := range map[string][]Option{"plain": nil, "durable": {Replicas(1, 10*time.Millisecond)}} {
		for _, bare := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				srv := redistest.Start(t)
				relay := redistest.NewRelay(t, srv.Addr())
				rdb := srv.Client()
				rdb.Options().Addr = relay.Addr()
				s := New(rdb, "sem:", opts...)
				t.Cleanup(func() { _ = s.Close() })
				ask := func(id, slot string) (store.Decision, error) {
					return s.Acquire(t.Context(), &store.Request{ID: id, SlotID: slot, Weight: 1, Limit: 1, TTL: time.Hour, Plain: bare, FirstAttempt: true, Budget: 5 * time.Second})
				}
				_, _ = ask("warm", "w") // the connection's handshake, and the scripts
				relay.DropReplies(1)
				d, err := ask("x", "a")
				if d.Outcome != store.Granted && !errors.Is(err, store.ErrNotReplicated) {
					t.Errorf("bare %v: %+v, %v: want the grant", bare, d, err)
				}
			})
		}
	}
}
