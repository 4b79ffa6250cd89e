// Package migrations runs a database's migrations once, however many replicas start.
package migrations

import (
	"context"
	"errors"

	"github.com/ashfaqjani916/gotsem"
)

// Schema is the table that says how far the migrations are, and which lease did the last one.
// Advance sets both in one transaction with the migration itself, and fails with ErrStale
// if a higher fence stands there:
//
//	UPDATE schema SET version = $1, fence = $2 WHERE fence <= $2
type Schema interface {
	Version(ctx context.Context) (int, error)
	Advance(ctx context.Context, to int, fence uint64) error
}

// ErrStale is what a process is told that was suspended in the middle, and lost its lease.
var ErrStale = errors.New("migrations: somebody else goes on with them")

// Run brings the schema to version to. Whoever comes second waits, and finds that nothing is
// left to do.
func Run(ctx context.Context, sem *gotsem.Semaphore, database string, s Schema, to int) error {
	lease, err := sem.Acquire(ctx, "migrate:"+database)
	if err != nil {
		return err
	}
	defer func() { _ = lease.Release(context.WithoutCancel(ctx)) }()
	ctx = lease.Context() // ends when the lease is lost
	for {
		at, err := s.Version(ctx)
		if err != nil || at >= to {
			return err
		}
		if err := s.Advance(ctx, at+1, lease.Fence()); err != nil {
			return err
		}
	}
}
