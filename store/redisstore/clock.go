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

	// By how much the clock was behind, when it was last read, what fences and tickets
	// may have risen to before it went back. They rise on by half of the time that passes.
	behind time.Duration
}

// apart has each slot go by a clock of its own from now on.
func (c *clocks) apart() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.local {
		c.local, c.of = false, nil
	}
}

// jumpMax is how much a server's clock may run ahead or behind in one step.
const jumpMax = 400 * time.Millisecond

// numbersAhead is by how much fences may be ahead of the clock that they are read off:
// several are given in one microsecond, and the clock is told in milliseconds.
const numbersAhead = 2 * time.Millisecond

// header returns what a call says about the clock: '0' if this marker was never
// met, '1' if it was; what the clock said; and how many ms ago. '2' if the clock is
// proven to have jumped: when that can have been at the earliest, since a loss that was
// noticed later has taken care of it; and by how many ms it is behind the fences that
// were given before. '4' if it is behind them and nothing else is new: what it should say
// now, and by how many ms.
func (c *clocks) header(slot uint16, now time.Time) (seen byte, server, ago int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.local {
		slot = 0
	}
	k := c.of[slot]
	seen = '0'
	if c.strict || k != nil && k.met {
		seen = '1'
	}
	if k == nil {
		return seen, 0, 0
	}
	// A call that was sent later may have been answered before this one is built.
	since := max(0, now.Sub(k.sent))
	ago = since.Milliseconds()
	switch behind := max(0, k.behind-since/2).Milliseconds(); {
	case k.jumped:
		return '2', k.jump, behind
	case behind > 0 && seen == '1':
		return '4', k.server + ago, behind
	}
	return seen, k.server, ago
}

// never is later than any time, and is counted exactly.
const never = 1<<53 - 1

// latest returns, by the server's clock, when whoever asks leaves at due at the latest:
// what arrives later must not take anything, since nobody would give it back. It is the
// upper bound that the last reading allows. stale says that this is long ago, or that
// there was none, so that the clock is to be read anew.
func (c *clocks) latest(slot uint16, now, due time.Time) (ms int64, stale bool) {
	if c.local {
		slot = 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.of[slot]
	if k == nil {
		return never, true
	}
	since := due.Sub(k.sent)
	return k.server + (since + since/driftOne + 2*time.Millisecond).Milliseconds(), now.Sub(k.sent) > readEvery
}

const (
	driftOne  = 500         // clocks run apart by less than this part of the time
	readEvery = time.Second // that a server's clock is read, at least, while it is asked
)

// read notes that a call read the clock. The server read it between sending and
// receiving; a step that no such moments explain is a jump. It is negative if the call
// did not come across the marker: whoever was only ever refused knows nothing of it,
// and must not take its absence for a loss.
//
// told says that the call brought the proof of a jump along. It is got rid of when a
// call that did has looked at the marker: a renewal or a refusal may not have.
func (c *clocks) read(slot uint16, server int64, sent, received time.Time, told bool) {
	met := server > 0
	if !met {
		server = -server
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.local {
		slot = 0
	}
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
	proven := k.jumped
	k.jumped = proven && !(told && met)
	if sent.Before(k.sent) {
		return // an older call, answered later
	}
	if step < least-jumpMax {
		k.behind += most - step + numbersAhead
	} else {
		k.behind = max(0, k.behind-max(0, step)/2)
	}
	if !proven && (step > most+jumpMax || step < least-jumpMax) {
		// A machine that slept measures too little by its own clock, and must not
		// accuse the server: its wall clock shows it.
		wall := received.Round(0).Sub(k.sent.Round(0))
		k.jumped, k.jump = (wall-most).Abs() < jumpMax, server-most.Milliseconds()
	}
	k.server, k.sent, k.received = server, sent, received
}

// gave notes a fence or a ticket that the server gave. It is ahead of the clock if that
// went back, and another process may have known better how far it had got.
func (c *clocks) gave(slot uint16, number uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.local {
		slot = 0
	}
	if k := c.of[slot]; k != nil {
		ahead := time.Duration(int64(number)/1000-k.server) * time.Millisecond
		if ahead > jumpMax { // else it is how far the clock has gone
			// Rounded down: else each grant would raise the next.
			k.behind = max(k.behind, ahead)
		}
	}
}
