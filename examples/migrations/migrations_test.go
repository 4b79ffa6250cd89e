package migrations

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/examples/internal/extest"
)

// table is a schema table in memory. before, if not nil, runs within Advance, before the
// transaction.
type table struct {
	mu      sync.Mutex
	version int
	fence   uint64
	ran     []int
	before  func()
}

func (s *table) Version(context.Context) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.version, nil
}

func (s *table) Advance(_ context.Context, to int, fence uint64) error {
	if s.before != nil {
		s.before()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if fence < s.fence {
		return ErrStale
	}
	s.version, s.fence, s.ran = to, fence, append(s.ran, to)
	return nil
}

// Of five replicas that start at once, each migration is run by one.
func TestEachMigrationRunsOnce(t *testing.T) {
	first, srv := extest.Semaphore(t, gotsem.Options{Limit: 1, Queue: 10})
	db := new(table)
	var all sync.WaitGroup
	for i := range 5 {
		sem := first
		if i > 0 {
			sem = extest.On(t, srv, gotsem.Options{Limit: 1, Queue: 10})
		}
		all.Go(func() {
			if err := Run(t.Context(), sem, "db", db, 7); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if len(db.ran) != 7 {
		t.Errorf("run: %v", db.ran)
	}
}

// A replica that is suspended between its check and its write, for so long that another one
// has gone on, writes nothing: the table refuses its fence.
func TestASuspendedReplicaIsRefusedByTheTable(t *testing.T) {
	one, srv := extest.Semaphore(t, gotsem.Options{Limit: 1, Queue: 10})
	two := extest.On(t, srv, gotsem.Options{Limit: 1, Queue: 10})
	db := new(table)
	db.before = func() {
		db.before = nil
		if _, err := two.Clear(t.Context(), "migrate:db"); err != nil { // as if its lease had lapsed
			t.Error(err)
		}
		if err := Run(t.Context(), two, "db", db, 3); err != nil {
			t.Error(err)
		}
	}
	if err := Run(t.Context(), one, "db", db, 3); !errors.Is(err, ErrStale) {
		t.Errorf("the one that was suspended: %v", err)
	}
	if len(db.ran) != 3 {
		t.Errorf("run: %v", db.ran)
	}
}
