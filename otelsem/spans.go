package otelsem

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/ashfaqjani916/gotsem"
)

// Spans is which calls get a span.
type Spans uint8

// The choices.
const (
	Waits   Spans = iota // those that stood in line; what was granted or refused at once makes none
	All                  // every Try, Acquire and TryAcquire: to look for something, since most tell nothing
	NoSpans              // none
)

// spanner makes spans of answers.
type spanner struct {
	tracer    trace.Tracer
	which     Spans
	withoutID bool
	semaphore attribute.KeyValue
}

func (c *config) spanner(name string) *spanner {
	return &spanner{
		tracer: c.tracers.Tracer(scope), which: c.spans, withoutID: c.withoutID,
		semaphore: attribute.String("gotsem.semaphore", name),
	}
}

// wants is whether a call is to have a span.
func (s *spanner) wants(queued bool) bool { return s.which == All || s.which == Waits && queued }

// answered makes a span of a call after the fact: it begins when the call did. Full and
// gave_up are answers, and no errors.
func (s *spanner) answered(ctx context.Context, a gotsem.Answer) {
	_, span := s.tracer.Start(ctx, "gotsem.acquire", trace.WithTimestamp(a.Began), trace.WithSpanKind(trace.SpanKindInternal), trace.WithAttributes(s.semaphore))
	defer span.End(trace.WithTimestamp(a.Began.Add(a.Waited)))
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(
		attribute.String("gotsem.outcome", a.Outcome.String()),
		attribute.String("gotsem.source", a.Source.String()),
		attribute.String("gotsem.class", a.Class.String()),
		attribute.Int("gotsem.weight", a.Weight),
	)
	switch {
	case s.withoutID:
	case len(a.IDs) > 1:
		span.SetAttributes(attribute.StringSlice("gotsem.ids", a.IDs))
		fallthrough
	default:
		span.SetAttributes(attribute.String("gotsem.id", a.ID))
	}
	for _, n := range []struct {
		key string
		n   int
	}{
		{"gotsem.line.place", a.Place}, {"gotsem.line.length", a.Waiting},
		{"gotsem.slot.usage", a.Active}, {"gotsem.slot.limit", a.Limit}, {"gotsem.fence", int(a.Fence)},
	} {
		if n.n > 0 {
			span.SetAttributes(attribute.Int(n.key, n.n))
		}
	}
	switch a.Outcome {
	case gotsem.Unavailable, gotsem.Recovering, gotsem.NotReplicated:
		span.SetAttributes(attribute.String("error.type", a.Outcome.String()))
		span.SetStatus(codes.Error, a.Outcome.String())
	}
}

// ended puts an event on the span that a lease was acquired in, if the lease was lost and
// the span is not over.
func (s *spanner) ended(ctx context.Context, e gotsem.End) {
	if s.which == NoSpans || e.Why == gotsem.Released || e.Why == gotsem.ByClose {
		return
	}
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	attributes := []attribute.KeyValue{s.semaphore, attribute.String("gotsem.reason", e.Why.String()), attribute.Float64("gotsem.held", e.Held.Seconds())}
	if !s.withoutID {
		attributes = append(attributes, attribute.String("gotsem.id", e.ID))
	}
	span.AddEvent("gotsem.lease.lost", trace.WithAttributes(attributes...))
}
