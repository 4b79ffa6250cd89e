package grpcshed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/httpshed"
)

// Options say what New makes. Semaphore and Key are needed.
type Options struct {
	// Semaphore has the slots: shared by a fleet, or of this process alone.
	Semaphore *gotsem.Semaphore

	// Local, if not nil, is this server's own cap beside that of the fleet, as in
	// httpshed: a refusal by it says UNAVAILABLE, since another server may have room.
	Local *gotsem.Semaphore

	// Key names what is limited: a project, an API key, a method. It runs before the
	// request is read, and of unary calls before interceptors, so it knows the metadata,
	// the peer, and what Before put into ctx. An error that has a gRPC status is answered
	// as it is; any other, and an empty id, is INVALID_ARGUMENT. See ByMetadata, Fixed.
	Key func(ctx context.Context, fullMethod string) (string, error)

	// Before, if not nil, runs first: to authenticate, as interceptors are too late for
	// Key. Its error is answered as one of Key. Handlers get the ctx that it returns.
	Before func(ctx context.Context, fullMethod string) (context.Context, error)

	// Also, Weight and Class are as in httpshed.Options.
	Also   func(ctx context.Context, fullMethod string) []string
	Weight func(ctx context.Context, fullMethod string) (int, error)
	Class  func(ctx context.Context, fullMethod string) gotsem.Class

	// Wait is the most that a call waits in line for its slot, and nine tenths of the time
	// to its deadline at most, so that there is some left to work in. 0: nobody waits.
	Wait time.Duration

	// Skip lets a call through untouched. Nil: health checks and reflection, which probes
	// need, and whose streams may never end.
	Skip func(fullMethod string) bool

	// OnRefuse, if not nil, is told of each refusal, before it is answered. It is called on
	// the call's goroutine, and must not block.
	OnRefuse func(ctx context.Context, fullMethod string, no Refusal)

	// Logger is told what is wrong with this server. Nil: slog.Default().
	Logger *slog.Logger
}

// Refusal is one no. Its Status and Close say nothing here.
type Refusal = httpshed.Refusal

// ByMetadata takes the id from a field of the metadata, which callers write: check it in
// Options.Before, or where the call comes from.
func ByMetadata(field string) func(context.Context, string) (string, error) {
	return func(ctx context.Context, _ string) (string, error) {
		if values := metadata.ValueFromIncomingContext(ctx, field); len(values) == 1 && values[0] != "" {
			return values[0], nil
		}
		return "", fmt.Errorf("the metadata needs %s, once", field)
	}
}

// Fixed gives all calls one id.
func Fixed(id string) func(context.Context, string) (string, error) {
	return func(context.Context, string) (string, error) { return id, nil }
}

func probes(fullMethod string) bool {
	return strings.HasPrefix(fullMethod, "/grpc.health.") || strings.HasPrefix(fullMethod, "/grpc.reflection.")
}

// validate reports all that is wrong with o.
func (o Options) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("grpcshed: "+format, args...)) }
	if o.Semaphore == nil {
		bad("Options.Semaphore is nil: give the semaphore whose slots calls take")
	}
	if o.Local != nil && o.Local == o.Semaphore {
		bad("Options.Local is Options.Semaphore: give this server a cap of its own, or none")
	}
	if o.Key == nil {
		bad("Options.Key is nil: say what is limited, such as ByMetadata(\"project\")")
	}
	if o.Wait < 0 {
		bad("Options.Wait is %v: 0 (nobody waits) or more", o.Wait)
	}
	return errors.Join(errs...)
}
