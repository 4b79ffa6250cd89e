// Package cron runs scheduled jobs on one host at a time.
package cron

import (
	"context"

	"github.com/ashfaqjani916/gotsem"
)

// Locker gives jobs to one of many schedulers. It has the methods of gocron's Locker, whose
// lock is not extended while a job runs; this one is renewed for as long as it is held.
type Locker struct{ Semaphore *gotsem.Semaphore }

// Lock takes key, or fails at once: another host runs the job.
func (l Locker) Lock(ctx context.Context, key string) (*Lock, error) {
	lease, err := l.Semaphore.Try(ctx, "cron:"+key)
	if err != nil {
		return nil, err
	}
	return &Lock{lease}, nil
}

// Lock is a job's.
type Lock struct{ lease *gotsem.Lease }

// Context ends when the lock is lost: stop then.
func (l *Lock) Context() context.Context { return l.lease.Context() }

// Unlock gives it back.
func (l *Lock) Unlock(ctx context.Context) error { return l.lease.Release(ctx) }
