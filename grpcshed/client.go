package grpcshed

import (
	"context"
	"errors"
	"sync"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ashfaqjani916/gotsem"
)

// ClientOptions say how many calls a client makes at once.
type ClientOptions struct {
	Semaphore *gotsem.Semaphore                                                // required
	Key       func(ctx context.Context, fullMethod string) (id string)         // required: what is limited
	Options   func(ctx context.Context, fullMethod string) (o []gotsem.Option) // of Acquire, such as MaxWait; nil: none
}

// UnaryClient has each call take a slot first, and wait in line for it as long as its ctx
// allows. A call without one fails with RESOURCE_EXHAUSTED, or UNAVAILABLE where the store
// could not be asked, and never leaves this process: IsLocal tells it from a server's no.
// grpc's retry policy does not see it.
func UnaryClient(o ClientOptions) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		lease, err := o.acquire(ctx, method)
		if err != nil {
			return err
		}
		within, release := hold(ctx, lease)
		defer release()
		return invoke(within, method, req, reply, cc, opts...)
	}
}

// StreamClient is UnaryClient for streams: one holds its slot until it has ended, whoever
// ends it.
func StreamClient(o ClientOptions) grpc.StreamClientInterceptor {
	return func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		lease, err := o.acquire(ctx, method)
		if err != nil {
			return nil, err
		}
		within, release := hold(ctx, lease)
		stream, err := open(within, desc, cc, method, append(opts, grpc.OnFinish(func(error) { release() }))...)
		if err != nil {
			release()
		}
		return stream, err
	}
}

// hold returns a ctx that ends with ctx, and with lease, and what ends both.
func hold(ctx context.Context, lease *gotsem.Lease) (within context.Context, release func()) {
	within, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(lease.Context(), func() { cancel(context.Cause(lease.Context())) })
	return within, sync.OnceFunc(func() {
		stop()
		cancel(nil)
		_ = lease.Release(context.WithoutCancel(ctx))
	})
}

func (o ClientOptions) acquire(ctx context.Context, method string) (*gotsem.Lease, error) {
	var opts []gotsem.Option
	if o.Options != nil {
		opts = o.Options(ctx, method)
	}
	lease, err := o.Semaphore.Acquire(ctx, o.Key(ctx, method), opts...)
	if err == nil {
		return lease, nil
	}
	code := codes.ResourceExhausted
	switch over := ctx.Err(); {
	case over != nil:
		return nil, status.FromContextError(over).Err()
	case errors.Is(err, gotsem.ErrUnavailable), errors.Is(err, gotsem.ErrRecovering):
		code = codes.Unavailable
	case errors.Is(err, gotsem.ErrTooHeavy):
		code = codes.FailedPrecondition
	}
	st, bad := status.New(code, "this client has no slot for the call").WithDetails(&errdetails.ErrorInfo{Reason: Reason, Domain: Domain, Metadata: map[string]string{"at": "client"}})
	if bad != nil {
		return nil, status.Error(code, "this client has no slot for the call")
	}
	return nil, &localError{st, err}
}

// localError is the status of a call that never left, and why.
type localError struct {
	st    *status.Status
	cause error
}

func (e *localError) Error() string              { return e.st.Err().Error() + ": " + e.cause.Error() }
func (e *localError) Unwrap() error              { return e.cause }
func (e *localError) GRPCStatus() *status.Status { return e.st }

// IsLocal reports whether err is that of a call which had no slot on the client's side, and
// never left.
func IsLocal(err error) bool {
	var local *localError
	return errors.As(err, &local)
}
