// Package grpcshed refuses gRPC calls for which there is no slot, before their message is
// read. It is for gRPC what httpshed is for HTTP.
//
//	shed, err := grpcshed.New(grpcshed.Options{Semaphore: sem, Key: grpcshed.ByMetadata("project")})
//	srv := grpc.NewServer(grpc.StaticStreamWindowSize(65535))
//	pb.RegisterScreenshotsServer(shed.Registrar(srv), impl)
//
// An interceptor is called with the message read and decoded: a refusal has cost its memory
// by then. Registrar wraps the methods themselves, which grpc-go (1.84 and later) calls
// before that, so that a refused call costs what its sender had on the way: 64 KiB, with the
// window above. Unary and Stream are interceptors, for those who cannot change how services
// are registered.
//
// A refusal is RESOURCE_EXHAUSTED, with when to come back in RetryInfo and in the trailer
// grpc-retry-pushback-ms, which clients with a retry policy obey.
//
// Reading order: options.go, grpcshed.go (how a call comes to its slot), refuse.go (how it is
// told no), client.go (slots on the side that calls).
package grpcshed

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/httpshed"
	"github.com/ashfaqjani916/gotsem/internal/door"
)

// Shedder lets calls in, and refuses those for which there is no room.
type Shedder struct {
	opt   Options
	door  *door.Door
	stats struct {
		skipped, gone atomic.Uint64
		refused       [httpshed.ServerFault + 1]atomic.Uint64
	}
}

// New makes a Shedder. It starts nothing, and needs no closing.
func New(o Options) (*Shedder, error) {
	if o.Skip == nil {
		o.Skip = probes
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if err := o.validate(); err != nil {
		return nil, err
	}
	return &Shedder{opt: o, door: door.New(o.Semaphore, o.Local)}, nil
}

// Stats returns the counters and gauges of this Shedder, for promsem and otelsem too. It
// asks nobody.
func (s *Shedder) Stats() httpshed.Stats {
	c := &s.stats
	admitted, held := s.door.Counts()
	return httpshed.Stats{
		Admitted: admitted, Skipped: c.skipped.Load(), ClientGone: c.gone.Load(), Held: held,
		Full: c.refused[httpshed.Full].Load(), LineFull: c.refused[httpshed.LineFull].Load(), WaitedTooLong: c.refused[httpshed.WaitedTooLong].Load(),
		ServerFull: c.refused[httpshed.ServerFull].Load(), TooHeavy: c.refused[httpshed.TooHeavy].Load(), BadRequest: c.refused[httpshed.BadRequest].Load(),
		Unavailable: c.refused[httpshed.Unavailable].Load(), Recovering: c.refused[httpshed.Recovering].Load(), ServerFault: c.refused[httpshed.ServerFault].Load(),
	}
}

// Registrar returns what services are to be registered at instead of at: their methods then
// take a slot before they read anything.
func (s *Shedder) Registrar(at grpc.ServiceRegistrar) grpc.ServiceRegistrar { return registrar{at, s} }

type registrar struct {
	grpc.ServiceRegistrar
	shed *Shedder
}

// RegisterService implements grpc.ServiceRegistrar.
func (r registrar) RegisterService(desc *grpc.ServiceDesc, impl any) {
	own := *desc
	own.Methods = make([]grpc.MethodDesc, len(desc.Methods))
	for i, m := range desc.Methods {
		name := "/" + desc.ServiceName + "/" + m.MethodName
		next := m.Handler
		m.Handler = func(srv any, ctx context.Context, dec func(any) error, in grpc.UnaryServerInterceptor) (any, error) {
			return r.shed.unary(ctx, name, func(ctx context.Context) (any, error) { return next(srv, ctx, dec, in) })
		}
		own.Methods[i] = m
	}
	own.Streams = make([]grpc.StreamDesc, len(desc.Streams))
	for i, m := range desc.Streams {
		name := "/" + desc.ServiceName + "/" + m.StreamName
		next := m.Handler
		m.Handler = func(srv any, ss grpc.ServerStream) error {
			return r.shed.stream(ss, name, func(ss grpc.ServerStream) error { return next(srv, ss) })
		}
		own.Streams[i] = m
	}
	r.ServiceRegistrar.RegisterService(&own, impl)
}

// Unary refuses unary calls, once their message has been read and decoded. See Registrar.
func (s *Shedder) Unary() grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		return s.unary(ctx, info.FullMethod, func(ctx context.Context) (any, error) { return next(ctx, req) })
	}
}

// Stream refuses streams. One holds its slot until its handler returns.
func (s *Shedder) Stream() grpc.StreamServerInterceptor {
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		return s.stream(ss, info.FullMethod, func(ss grpc.ServerStream) error { return next(srv, ss) })
	}
}

func (s *Shedder) unary(ctx context.Context, method string, next func(context.Context) (any, error)) (any, error) {
	ctx, h, err := s.admit(ctx, method)
	if err != nil {
		return nil, err
	}
	if h == nil {
		return next(ctx)
	}
	defer h.Returned()
	resp, err := next(ctx)
	return resp, lost(h, err)
}

func (s *Shedder) stream(ss grpc.ServerStream, method string, next func(grpc.ServerStream) error) error {
	ctx, h, err := s.admit(ss.Context(), method)
	if err != nil {
		return err
	}
	if h == nil {
		return next(&within{ss, ctx})
	}
	defer h.Returned()
	return lost(h, next(&within{ss, ctx}))
}

// within is a stream with a context of its own.
type within struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (w *within) Context() context.Context { return w.ctx }

// lost has a call whose lease was lost end with that, unless it has ended well: it was told
// to stop, and what it says of that is "canceled" mostly.
func lost(h *door.Held, err error) error {
	cause := door.Loss(h.Lease())
	if err == nil || cause == nil {
		return err
	}
	if code := status.Code(err); code != codes.Canceled && code != codes.Unknown && code != codes.DeadlineExceeded {
		return err
	}
	return status.Error(codes.Aborted, "lease lost")
}

// Keep takes the slot of a call over from the Shedder, as httpshed.Keep does: for work that
// outlives its call.
func Keep(ctx context.Context) (release func()) { return door.Keep(ctx) }

// Lease returns the lease of the call whose context ctx is, or is made from; nil for a call
// that holds no slot. It is released by the Shedder or by what Keep returned.
func Lease(ctx context.Context) *gotsem.Lease {
	if h := door.Of(ctx); h != nil {
		return h.Lease()
	}
	return nil
}

// admit takes the slots of a call. Without a slot and without an error it was skipped.
func (s *Shedder) admit(ctx context.Context, method string) (context.Context, *door.Held, error) {
	if s.opt.Skip(method) || door.Of(ctx) != nil && door.Of(ctx).By(s.door) { // Registrar and an interceptor, both
		s.stats.skipped.Add(1)
		return ctx, nil, nil
	}
	if s.opt.Before != nil {
		var err error
		if ctx, err = s.opt.Before(ctx, method); err != nil {
			return ctx, nil, s.notAccepted(ctx, method, err)
		}
	}
	a, err := s.who(ctx, method)
	if err != nil {
		return ctx, nil, s.notAccepted(ctx, method, err)
	}
	patience := s.opt.Wait
	if ends, ok := ctx.Deadline(); ok && patience > 0 {
		patience = max(min(patience, time.Until(ends)*9/10), 0)
	}
	h, atLocal, err := s.door.Take(ctx, a, patience)
	if err != nil {
		return ctx, nil, s.refuse(ctx, method, a, atLocal, err)
	}
	return h, h, nil
}

var errNoKey = errors.New("the id is empty")

// who finds out for whom the call is.
func (s *Shedder) who(ctx context.Context, method string) (a door.Asker, err error) {
	if a.ID, err = s.opt.Key(ctx, method); err == nil && a.ID == "" {
		err = errNoKey
	}
	a.Weight = 1
	if err == nil && s.opt.Weight != nil {
		a.Weight, err = s.opt.Weight(ctx, method)
	}
	if err == nil && s.opt.Also != nil {
		a.Also = s.opt.Also(ctx, method)
	}
	if s.opt.Class != nil {
		class := s.opt.Class(ctx, method)
		a.Class = &class
	}
	return a, err
}
