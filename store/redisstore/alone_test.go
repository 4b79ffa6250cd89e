package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

// A cluster slot that is open for migration takes no command that names a key which does
// not exist beside one that does. Slots in it are kept, given back and taken all the
// same, wherever the keys of their id are.
func TestOpenClusterSlot(t *testing.T) {
	c := redistest.StartCluster(t, 2, 0)
	for _, grace := range []time.Duration{0, time.Minute} {
		for _, moved := range []string{"nothing", "a part", "all"} {
			t.Run(fmt.Sprintf("grace %v, %s is moved", grace, moved), func(t *testing.T) {
				ctx := context.Background()
				prefix := fmt.Sprintf("{%v %s}", grace, moved)
				slot := redistest.Slot(prefix)
				s := redisstore.New(c.Client(), prefix)
				t.Cleanup(func() { _ = s.Close() })
				ask := func(id, slotID string, limit int, bare bool) store.Decision {
					t.Helper()
					g := grace
					if bare {
						g = 0
					}
					d, err := s.Acquire(ctx, &store.Request{ID: id, SlotID: slotID, Weight: 1, Limit: limit, TTL: time.Minute, Plain: bare, Grace: g})
					if err != nil {
						t.Fatalf("%s for %s: %v", id, slotID, err)
					}
					return d
				}
				granted := func(id, slotID string, limit int, bare bool) store.Decision {
					t.Helper()
					d := ask(id, slotID, limit, bare)
					if d.Outcome != store.Granted {
						t.Fatalf("%s for %s: %+v", id, slotID, d)
					}
					return d
				}
				full := func(id string, limit int, bare bool) {
					t.Helper()
					if d := ask(id, "over", limit, bare); d.Outcome != store.Full || d.Active != limit {
						t.Fatalf("%s: %+v", id, d)
					}
				}
				first := granted("leases", "a", 3, false)
				granted("plain", "a", 3, true)
				d, err := s.Acquire(ctx, &store.Request{ID: "heavy", SlotID: "a", Weight: 2, Limit: 3, TTL: time.Minute, Grace: grace})
				if err != nil || d.Outcome != store.Granted {
					t.Fatalf("%+v, %v", d, err)
				}
				if _, err := s.ChangeLimit(ctx, store.LimitChange{ID: "set", Limit: 1}); err != nil {
					t.Fatal(err)
				}

				from := c.NodeFor(slot)
				to := c.Nodes()[0]
				if to == from {
					to = c.Nodes()[1]
				}
				m := c.BeginMigration(slot, from, to)
				switch moved {
				case "a part":
					m.Move(3)
				case "all":
					m.Move(1000)
				}

				for range 3 {
					for _, id := range []string{"leases", "heavy", "plain"} {
						r := s.Renew(ctx, []store.Renewal{{ID: id, SlotID: "a", Weight: 1, Limit: 3, TTL: time.Minute, Trust: time.Minute, Grace: grace}})[0]
						if r.Err != nil || r.Outcome != store.Renewed {
							t.Fatalf("%s: renewed: %+v", id, r)
						}
					}
				}
				for _, bare := range []bool{true, false} {
					id := fmt.Sprint("new ", bare)
					granted(id, "a", 2, bare)
					granted(id, "b", 2, bare)
					granted(id, "b", 2, bare) // asked again
					full(id, 2, bare)
				}
				granted("leases", "b", 3, true)
				if second := granted("leases", "c", 3, false); second.Fence <= first.Fence {
					t.Errorf("fence %d after %d", second.Fence, first.Fence)
				}
				full("leases", 3, false)
				granted("heavy", "b", 3, false)
				full("heavy", 3, true)
				granted("set", "a", 9, false)
				full("set", 1, false)
				_, err = s.Acquire(ctx, &store.Request{ID: "heavy", SlotID: "w", Weight: 2, Limit: 3, TTL: time.Minute, Queue: 5, Grace: grace})
				if moved != "all" && !errors.Is(err, store.ErrMoving) {
					t.Errorf("a place in line: %v", err)
				}
				for _, id := range []string{"leases", "heavy", "plain", "new true", "new false", "set"} {
					if freed, err := s.Release(ctx, &store.Release{ID: id, SlotID: "a", Grace: grace}); err != nil || !freed {
						t.Fatalf("%s: released: %v, %v", id, freed, err)
					}
				}
				granted("leases", "d", 3, false)
				full("leases", 3, false)
				m.Finish()
				for id, n := range map[string]int{"leases": 3, "heavy": 1, "plain": 0, "new true": 1, "new false": 1, "set": 0} {
					if u, err := s.Usage(ctx, id, 3); err != nil || u.Active != n {
						t.Errorf("%s, afterwards: %+v, %v; want %d", id, u, err, n)
					}
				}
				for _, slotID := range []string{"b", "c", "d"} {
					r := s.Renew(ctx, []store.Renewal{{ID: "leases", SlotID: slotID, Weight: 1, Limit: 3, TTL: time.Minute, Trust: time.Minute, Grace: grace}})[0]
					if r.Err != nil || r.Outcome != store.Renewed {
						t.Errorf("%s, afterwards: %+v", slotID, r)
					}
				}
			})
		}
	}
}
