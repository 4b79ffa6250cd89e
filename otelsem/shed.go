package otelsem

import (
	"context"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/ashfaqjani916/gotsem/httpshed"
)

// Shedder is an httpshed.Shedder, or a grpcshed.Shedder.
type Shedder interface{ Stats() httpshed.Stats }

// RegisterShedder tells of what a Shedder says at its door, under a name that tells it
// from others, until stop is called.
func RegisterShedder(shed Shedder, name string, opts ...Option) (stop func(), err error) {
	c := configOf(opts)
	leave, err := c.claim("Shedder", name)
	if err != nil {
		return nil, err
	}
	var (
		key         = attribute.String("gotsem.shed", name)
		own         = set(key)
		i           = instruments{meter: c.meter()}
		requests    = i.counter("gotsem.shed.requests", "{request}", "Requests, by what they were told.")
		active      = i.state("gotsem.shed.active", "{request}", "Requests that hold a slot.")
		connections = i.counter("gotsem.shed.connections", "{connection}", "Connections of refused requests, by what became of them.")
	)
	unregister, err := i.collect(func(_ context.Context, to metric.Observer) error {
		s := shed.Stats()
		for _, v := range []struct {
			verdict string
			n       uint64
		}{
			{"admitted", s.Admitted}, {"skipped", s.Skipped}, {"full", s.Full}, {"line_full", s.LineFull},
			{"waited_too_long", s.WaitedTooLong}, {"server_full", s.ServerFull}, {"too_heavy", s.TooHeavy},
			{"bad_request", s.BadRequest}, {"unavailable", s.Unavailable}, {"recovering", s.Recovering},
			{"server_fault", s.ServerFault}, {"client_gone", s.ClientGone}, {"shadowed", s.Shadowed},
		} {
			to.ObserveInt64(requests, int64(v.n), set(key, attribute.String("gotsem.verdict", v.verdict)))
		}
		to.ObserveInt64(active, int64(s.Held), own)
		for _, v := range []struct {
			fate string
			n    uint64
		}{{"closed", s.Closed}, {"spared", s.Spared}, {"cut", s.Cut}} {
			to.ObserveInt64(connections, int64(v.n), set(key, attribute.String("gotsem.fate", v.fate)))
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
