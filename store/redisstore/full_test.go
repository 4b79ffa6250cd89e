package redisstore_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

// fill has a server take no more memory.
func fill(t *testing.T, srv *redistest.Server) {
	t.Helper()
	for _, args := range [][]any{{"config", "set", "maxmemory-policy", "noeviction"}, {"config", "set", "maxmemory", "1"}} {
		if _, err := srv.Do(args...); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := srv.Do("set", "more", "x"); err == nil || !strings.HasPrefix(err.Error(), "OOM") {
		t.Fatalf("it is not full: %v", err)
	}
}

// What keeps and what gives back works on a server that takes no more memory: only
// acquires are refused.
func TestFullServerKeepsAndGivesBack(t *testing.T) {
	for name, grace := range map[string]time.Duration{"grace": time.Minute, "no grace": 0} {
		t.Run(name, func(t *testing.T) {
			srv := redistest.Start(t)
			ctx := context.Background()
			s := redisstore.New(srv.Client(), "f:")
			t.Cleanup(func() { _ = s.Close() })
			ask := func(id, slot string, queue int, ticket uint64) (store.Decision, error) {
				return s.Acquire(ctx, &store.Request{ID: id, SlotID: slot, Weight: 1, Limit: 1, TTL: 5 * time.Second, Queue: queue, Ticket: ticket, Grace: grace})
			}
			must := func(want store.Outcome) func(d store.Decision, err error) store.Decision {
				return func(d store.Decision, err error) store.Decision {
					t.Helper()
					if err != nil || d.Outcome != want {
						t.Fatalf("%+v, %v; want %v", d, err, want)
					}
					return d
				}
			}
			release := func(id, slot string) {
				t.Helper()
				if freed, err := s.Release(ctx, &store.Release{ID: id, SlotID: slot, Grace: grace}); err != nil || !freed {
					t.Fatalf("release %s %s: %v, %v", id, slot, freed, err)
				}
			}
			held := func(id string, waiting int) {
				t.Helper()
				if u, err := s.Usage(ctx, id, 1); err != nil || u.Active != 1 || u.Waiting != waiting {
					t.Fatalf("%s: %+v, %v", id, u, err)
				}
			}
			for _, id := range []string{"one", "two", "line", "long", "gone", "clear", "limit"} {
				must(store.Granted)(ask(id, "a", 0, 0))
			}
			must(store.Waiting)(ask("line", "b", 9, 0))
			first := must(store.Waiting)(ask("long", "b", 9, 0))
			second := must(store.Waiting)(ask("long", "c", 9, 0))
			must(store.Waiting)(ask("clear", "b", 9, 0))
			must(store.Waiting)(ask("limit", "b", 9, 0))
			must(store.Waiting)(ask("gone", "b", 9, 0))
			if err := s.Probe(ctx, "one"); err != nil {
				t.Fatal(err)
			}
			fill(t, srv)

			if _, err := ask("three", "a", 0, 0); err == nil || !strings.Contains(err.Error(), "OOM") {
				t.Fatalf("acquire on a full server: %v", err)
			}
			if err := s.Probe(ctx, "one"); err == nil || !strings.Contains(err.Error(), "OOM") {
				t.Fatalf("a probe tries what an acquire does: %v", err)
			}
			renew := func(id, slot string, ttl time.Duration) {
				t.Helper()
				r := s.Renew(ctx, []store.Renewal{{ID: id, SlotID: slot, Weight: 1, Limit: 1, TTL: ttl, Trust: time.Second, Grace: grace}})[0]
				if r.Err != nil || r.Outcome != store.Renewed {
					t.Fatalf("renew %s %s: %+v", id, slot, r)
				}
			}
			for _, id := range []string{"one", "two", "line"} {
				renew(id, "a", time.Minute)
				renew(id, "a", time.Second) // where no end need be moved
			}
			release("one", "a")

			// A place in line is kept, and a grant is handed on and claimed.
			must(store.Waiting)(ask("long", "b", 9, first.Ticket))
			must(store.Waiting)(ask("long", "c", 9, second.Ticket))
			release("long", "a")
			must(store.Granted)(ask("long", "b", 9, first.Ticket))
			renew("long", "b", time.Minute)
			release("line", "a")
			held("line", 0)
			renew("line", "b", time.Minute)
			release("gone", "b") // a place in line
			held("gone", 0)

			// So is what an operator says.
			if n, err := s.Clear(ctx, store.Clear{ID: "clear", SlotID: "a", TTL: time.Minute}); err != nil || n != 1 {
				t.Fatalf("revoke: %d, %v", n, err)
			}
			held("clear", 0)
			if _, err := s.ChangeLimit(ctx, store.LimitChange{ID: "limit", Limit: 2}); err != nil {
				t.Fatal(err)
			}
			if n, err := s.Clear(ctx, store.Clear{ID: "limit", TTL: time.Minute}); err != nil || n != 2 {
				t.Fatalf("clear: %d, %v", n, err)
			}
		})
	}
}

// A probe leaves nothing, whatever the id.
func TestProbeLeavesNothing(t *testing.T) {
	c := redistest.StartCluster(t, 2, 0)
	rdb := c.Client()
	s := redisstore.New(rdb, "f:")
	t.Cleanup(func() { _ = s.Close() })
	for _, id := range []string{"x", "{y}z", "a}b", "{}", "p:m}:m"} {
		if err := s.Probe(context.Background(), id); err != nil {
			t.Errorf("%q: %v", id, err)
		}
	}
	for _, node := range c.Nodes() {
		if n, err := node.Do("dbsize"); err != nil || n != int64(0) {
			t.Errorf("%v keys are left, %v", n, err)
		}
	}
}
