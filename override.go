package gotsem

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

// LimitOption says more of a change of a limit.
type LimitOption func(*store.LimitChange)

// For has the limit end by itself after d, by the store's clock, to the millisecond:
// then Options.Limit and LimitFunc count again. Who waits hears of it within a second.
func For(d time.Duration) LimitOption { return func(c *store.LimitChange) { c.For = d } }

// By says who changes the limit, for those who look at it later; at most 200 bytes.
func By(who string) LimitOption { return func(c *store.LimitChange) { c.By = who } }

// IfVersion has the change made only if the limit that is set has that version, as
// LimitOf says; 0: if none is set. Else the error is a *LimitConflict. So of two who
// change what both have seen one is told.
func IfVersion(v uint64) LimitOption {
	return func(c *store.LimitChange) { c.OnlyIf, c.Version = true, v }
}

// Override is a limit that was set with SetLimit.
type Override struct {
	Limit   int
	Version uint64    // of this setting: an id never has one twice. 0: none is set
	At      time.Time // when it was set, by this process's clock
	Until   time.Time // when it ends by itself; zero: it does not
	By      string    // who set it, if that was said
}

// LimitConflict is the error of a change that was not made, since what is set is not what
// it was to change.
type LimitConflict struct {
	ID   string
	Want uint64   // the version that it was to change
	Now  Override // what is set

	cause *store.LimitConflict
}

func (c *LimitConflict) Error() string {
	return fmt.Sprintf("gotsem: %q: the limit was changed meanwhile: %v, not version %d: look again, and decide anew", c.ID, c.cause.Now, c.Want)
}

func (c *LimitConflict) Unwrap() error { return c.cause }

// SetLimit sets the limit of id for every process that shares the store. It wins
// over Options.Limit and LimitFunc until ResetLimit, or for as long as For says. Raising
// it lets waiters in at once; lowering it takes nothing away, but nothing is granted until
// less than the new limit is held. 0 pauses the id.
func (s *Semaphore) SetLimit(ctx context.Context, id string, n int, opts ...LimitOption) error {
	if n < 0 {
		return fmt.Errorf("gotsem: %q: limit %d: 0 pauses, ResetLimit takes a set limit off", id, n)
	}
	return s.changeLimit(ctx, store.LimitChange{ID: id, Limit: n}, opts)
}

// ResetLimit takes off what SetLimit set: Options.Limit and LimitFunc count again. Of opts
// only IfVersion counts.
func (s *Semaphore) ResetLimit(ctx context.Context, id string, opts ...LimitOption) error {
	return s.changeLimit(ctx, store.LimitChange{ID: id, Reset: true}, opts)
}

func (s *Semaphore) changeLimit(ctx context.Context, c store.LimitChange, opts []LimitOption) error {
	for _, o := range opts {
		o(&c)
	}
	if err := c.Check(); err != nil && c.ID != "" {
		return fmt.Errorf("gotsem: %w", err)
	}
	defer s.known.forget(c.ID)
	err := s.limiter(ctx, c.ID, func(ctx context.Context, l store.LimitSetter) error {
		_, err := l.ChangeLimit(ctx, c)
		return err
	})
	var other *store.LimitConflict
	if errors.As(err, &other) {
		return &LimitConflict{ID: c.ID, Want: c.Version, Now: overrideOf(other.Now), cause: other}
	}
	return err
}

// LimitOf returns what SetLimit has set for id, by whom and until when. It asks the store
// once; how that ends does not count.
func (s *Semaphore) LimitOf(ctx context.Context, id string) (Override, error) {
	var set store.Override
	err := s.limiter(ctx, id, func(ctx context.Context, l store.LimitSetter) (err error) {
		set, err = l.LimitOf(ctx, id)
		return err
	})
	return overrideOf(set), err
}

// overrideOf tells by this process's clock what is set.
func overrideOf(o store.Override) Override {
	if o.Version == 0 {
		return Override{}
	}
	now := time.Now()
	out := Override{Limit: o.Limit, Version: o.Version, At: now.Add(-o.Age), By: o.By}
	if o.Left > 0 {
		out.Until = now.Add(o.Left)
	}
	return out
}

func (s *Semaphore) limiter(ctx context.Context, id string, do func(context.Context, store.LimitSetter) error) error {
	if err := s.sensible(ctx, id, 1); err != nil {
		return err
	}
	l, ok := s.opt.Store.(store.LimitSetter)
	if !ok {
		return s.cannot("keep limits")
	}
	return s.gate.call(ctx, id, func(ctx context.Context) error { return do(ctx, l) })
}
