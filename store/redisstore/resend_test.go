//go:build unix

package redisstore

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

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

// A Cluster client sends again by itself what lost its connection: the first sending can
// still come after the slot was given back, and what it takes is given back too.
func TestLateSendingOfAClusterIsGivenBack(t *testing.T) {
	t.Parallel()
	cl := redistest.StartCluster(t, 1, 0)
	relay := cl.Relays(nil)[0]
	s := opened(t, cl.Client(func(o *redis.ClusterOptions) { o.Addrs = []string{relay.Addr()} }), "sem:")
	other := opened(t, cl.Client(), "sem:")
	ask := func(s *Store, slot string) {
		t.Helper()
		d, err := s.Acquire(t.Context(), &store.Request{ID: "x", SlotID: slot, Weight: 1, Limit: 5, TTL: time.Hour, Plain: true, FirstAttempt: true, Budget: 2 * time.Second})
		if err != nil || d.Outcome != store.Granted {
			t.Fatalf("%+v, %v", d, err)
		}
	}
	ask(s, "w") // the handshake, and the scripts
	if n := s.exec.resent.n.Load(); n != 0 {
		t.Fatalf("%d slots were sent twice, and no connection ended", n)
	}
	relay.DropReplyWhen(func(request []byte) bool { return bytes.Contains(bytes.ToLower(request), []byte("evalsha")) })
	ask(s, "a")
	if _, err := s.Release(t.Context(), &store.Release{ID: "x", SlotID: "a", Budget: 2 * time.Second}); err != nil {
		t.Fatal(err)
	}
	ask(other, "a") // the first sending, late
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		u, err := other.Usage(t.Context(), "x", 5)
		if err != nil {
			t.Fatal(err)
		}
		if u.Active == 1 { // "w"
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d slots of 1 are held", u.Active)
		}
	}
}
