// Package temporal limits a Temporal activity across workers and task queues.
package temporal

import (
	"context"
	"errors"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/temporal"

	"github.com/ashfaqjani916/gotsem"
)

// Interceptor has each activity that Key names take a slot while it runs. One that finds
// none fails at once, to be tried again when a slot is likely to be free; so it holds no
// worker's place while it waits. Give it to worker.Options.Interceptors.
type Interceptor struct {
	interceptor.WorkerInterceptorBase
	Semaphore *gotsem.Semaphore
	Key       func(activity.Info) (id string) // "": no limit
}

// InterceptActivity implements interceptor.WorkerInterceptor.
func (i *Interceptor) InterceptActivity(_ context.Context, next interceptor.ActivityInboundInterceptor) interceptor.ActivityInboundInterceptor {
	return &inbound{interceptor.ActivityInboundInterceptorBase{Next: next}, i}
}

type inbound struct {
	interceptor.ActivityInboundInterceptorBase
	*Interceptor
}

// ExecuteActivity implements interceptor.ActivityInboundInterceptor.
func (i *inbound) ExecuteActivity(ctx context.Context, in *interceptor.ExecuteActivityInput) (any, error) {
	id := i.Key(activity.GetInfo(ctx))
	if id == "" {
		return i.Next.ExecuteActivity(ctx, in)
	}
	lease, err := i.Semaphore.Try(ctx, id)
	if err != nil {
		again := time.Second
		if full, ok := errors.AsType[*gotsem.FullError](err); ok {
			again = max(again, full.RetryAfter)
		}
		return nil, temporal.NewApplicationErrorWithOptions("no slot of "+id, "NoSlot",
			temporal.ApplicationErrorOptions{NextRetryDelay: again, Cause: err})
	}
	defer func() { _ = lease.Release(context.WithoutCancel(ctx)) }()
	own, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(lease.Context(), func() { cancel(context.Cause(lease.Context())) })
	defer stop()
	return i.Next.ExecuteActivity(own, in)
}
