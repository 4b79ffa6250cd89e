package otelsem

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/tally"
)

// RegisterIDs tells how ids stand in the store: how much of them is held, their limit, and
// who waits. It is for the few, at most 100, that somebody wants to be told of by name.
// All processes would tell the same, so let one of them do it: these are gauges, which do
// not sum up.
//
// Each collection asks the store twice for each id, for 250 ms at most. What it does not
// tell in that time is left out of that collection.
func RegisterIDs(sem *gotsem.Semaphore, name string, ids []string, opts ...Option) (stop func(), err error) {
	c := configOf(opts)
	leave, err := c.claim("semaphore's list of ids", name)
	if err != nil {
		return nil, err
	}
	if err := tally.CheckIDs(ids); err != nil {
		leave()
		return nil, fmt.Errorf("otelsem: %q: %w", name, err)
	}
	ids = slices.Clone(ids)
	var (
		key      = attribute.String("gotsem.semaphore", name)
		i        = instruments{meter: c.meter()}
		usage    = i.gauge("gotsem.slot.usage", "{slot}", "The sum of weights that are held of the id, by all processes.")
		limit    = i.gauge("gotsem.slot.limit", "{slot}", "The limit of the id that is in force. 0: it is paused.")
		override = i.gauge("gotsem.limit.override", "{override}", "1 if an operator set the limit of the id, else 0.")
		line     = i.gauge("gotsem.line.length", "{waiter}", "How many wait for the id, of all processes.")
		slotAge  = i.seconds("gotsem.slot.age", "How long the oldest lease of the id is held. Absent above 1,000 slots, or where it is not known.")
	)
	unregister, err := i.collect(func(ctx context.Context, to metric.Observer) error {
		for s := range tally.Look(ctx, sem, ids) {
			own := set(key, attribute.String("gotsem.id", s.ID))
			to.ObserveInt64(usage, int64(s.Active), own)
			to.ObserveInt64(limit, int64(s.Limit), own)
			by := int64(0)
			if s.LimitSet {
				by = 1
			}
			to.ObserveInt64(override, by, own)
			to.ObserveInt64(line, int64(s.Waiting), own)
			if s.SlotAgeSet {
				to.ObserveFloat64(slotAge, s.SlotAge.Seconds(), own)
			}
		}
		return nil
	})
	if err != nil {
		leave()
		return nil, err
	}
	return sync.OnceFunc(func() {
		unregister()
		leave()
	}), nil
}
