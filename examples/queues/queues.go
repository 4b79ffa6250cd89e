// Package queues limits the running jobs of a tenant, over all workers of a job queue.
package queues

import (
	"context"
	"errors"
	"time"

	"github.com/hibiken/asynq"

	"github.com/ashfaqjani916/gotsem"
)

// Busy is the error of a job that was not run, since its tenant has as many running as it
// may. In is when to try again.
type Busy struct {
	In  time.Duration
	err error
}

func (b *Busy) Error() string { return "not run yet: " + b.err.Error() }
func (b *Busy) Unwrap() error { return b.err }

// Run runs a job of a tenant, or returns a *Busy at once. It does not wait: the worker is
// free for the jobs of others. Any queue can use it: a worker of River returns
// river.JobSnooze(busy.In) for a *Busy.
func Run(ctx context.Context, sem *gotsem.Semaphore, tenant string, job func(context.Context) error) error {
	lease, err := sem.Try(ctx, "tenant:"+tenant)
	var full *gotsem.FullError
	switch {
	case errors.As(err, &full):
		return &Busy{max(full.RetryAfter, time.Second), err}
	case err != nil: // such as gotsem.ErrUnavailable
		return &Busy{time.Second, err}
	}
	defer func() { _ = lease.Release(context.WithoutCancel(ctx)) }()
	own, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(lease.Context(), func() { cancel(context.Cause(lease.Context())) })
	defer stop()
	return job(own)
}

// Middleware has asynq's jobs go by Run.
func Middleware(sem *gotsem.Semaphore, tenantOf func(*asynq.Task) string) asynq.MiddlewareFunc {
	return func(next asynq.Handler) asynq.Handler {
		return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			return Run(ctx, sem, tenantOf(task), func(ctx context.Context) error { return next.ProcessTask(ctx, task) })
		})
	}
}

// Config has asynq put off a job that was not run, without counting an attempt.
func Config(c asynq.Config) asynq.Config {
	c.IsFailure = func(err error) bool { return !errors.As(err, new(*Busy)) }
	c.RetryDelayFunc = func(n int, err error, task *asynq.Task) time.Duration {
		var busy *Busy
		if errors.As(err, &busy) {
			return busy.In
		}
		return asynq.DefaultRetryDelayFunc(n, err, task)
	}
	return c
}
