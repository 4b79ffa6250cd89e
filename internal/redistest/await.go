package redistest

import (
	"errors"
	"fmt"
	"time"
)

// pollEvery is short, because tests stand still meanwhile, and long enough for six servers to be asked on two cores.
const pollEvery = 10 * time.Millisecond

// errHopeless, wrapped, tells await that more patience will not help.
var errHopeless = errors.New("it never will")

// await polls ready until it returns nil, for at most limit (and the one call of ready that is under way then). The error says
// what was awaited, for how long, and what was missing last.
func await(what string, limit time.Duration, ready func() error) error {
	for began := time.Now(); ; time.Sleep(pollEvery) {
		missing := ready()
		if missing == nil {
			return nil
		}
		if waited := time.Since(began); waited > limit || errors.Is(missing, errHopeless) {
			return fmt.Errorf("waited %v for %s: %w", waited.Round(time.Millisecond), what, missing)
		}
	}
}
