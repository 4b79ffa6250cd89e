package redisstore

import (
	"sync"
	"time"
)

// clocks remembers, per marker, what a server's clock said when it was last read,
// so that a jump of that clock is noticed before it makes live slots look lapsed.
type clocks struct {
	mu    sync.Mutex
	of    map[uint16]*clock
	local bool // one server: one clock, whatever the slot

	strict bool // a marker that was never met counts as met
}

type clock struct {
	server         int64     // ms
	sent, received time.Time // of the call that read it
	jumped         bool      // proven, and not yet told
	jump           int64     // the earliest that it can have been, by the new clock, ms
	met            bool      // a call found the marker, or made it
}

// jumpMax is how much a server's clock may run ahead or behind in one step.
const jumpMax = 400 * time.Millisecond

// header returns what a call says about the clock: '0' if this marker was never
// met, '1' if it was, '2' if the clock is proven to have jumped; what the clock
// said; and how many ms ago. With '2' it is when the clock can have jumped at the
// earliest: a loss that was noticed since has taken care of it.
func (c *clocks) header(slot uint16, now time.Time) (seen byte, server, ago int64) {
	if c.local {
		slot = 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.of[slot]
	seen = '0'
	if c.strict || k != nil && k.met {
		seen = '1'
	}
	switch {
	case k == nil:
		return seen, 0, 0
	case k.jumped:
		return '2', k.jump, 0
	}
	// A call that was sent later may have been answered before this one is built.
	return seen, k.server, max(0, now.Sub(k.sent).Milliseconds())
}

// read notes that a call read the clock. The server read it between sending and
// receiving; a step that no such moments explain is a jump. It is negative if the call
// did not come across the marker: whoever was only ever refused knows nothing of it,
// and must not take its absence for a loss.
//
// told says that the call brought the proof of a jump along. It is got rid of when a
// call that did has looked at the marker: a renewal or a refusal may not have.
func (c *clocks) read(slot uint16, server int64, sent, received time.Time, told bool) {
	if c.local {
		slot = 0
	}
	met := server > 0
	if !met {
		server = -server
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.of[slot]
	if k == nil {
		if c.of == nil {
			c.of = make(map[uint16]*clock)
		}
		c.of[slot] = &clock{server: server, sent: sent, received: received, met: met}
		return
	}
	k.met = k.met || met
	step := time.Duration(server-k.server) * time.Millisecond
	most, least := received.Sub(k.sent), sent.Sub(k.received)
	switch {
	case k.jumped:
		k.jumped = !told || !met
	case sent.Before(k.sent):
		return // an older call, answered later
	case step > most+jumpMax || step < least-jumpMax:
		// A machine that slept measures too little by its own clock, and must not
		// accuse the server: its wall clock shows it.
		wall := received.Round(0).Sub(k.sent.Round(0))
		k.jumped, k.jump = (wall-most).Abs() < jumpMax, server-most.Milliseconds()
	}
	k.server, k.sent, k.received = server, sent, received
}
