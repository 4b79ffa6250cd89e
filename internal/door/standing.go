package door

import (
	"context"
	"sync"
	"time"

	"github.com/ashfaqjani916/gotsem"
)

// Standing is how the fleet stands when this server is full.
type Standing uint8

// The standings.
const (
	Unknown Standing = iota // it cannot be asked
	Free                    // it has room, so another server has
	Full
)

const (
	standingAge   = 100 * time.Millisecond
	standingsKept = 256
)

// standings are what is remembered of how ids stand.
type standings struct {
	mu sync.Mutex
	at []remembered // by hash; none where this server has no semaphore of its own
}

// remembered is an answer to how an id stands in the fleet. It is asked once in
// standingAge, since a refusal has to be quick, and because a server that is full
// refuses a lot.
type remembered struct {
	hash  uint64
	until time.Duration
	usage gotsem.Usage
	known bool
}

// Standing asks how id stands in the fleet, unless that is known, for a request of that
// weight which found this server full.
func (d *Door) Standing(ctx context.Context, id string, weight int) (Standing, gotsem.Usage) {
	hash, now, ss := d.hash(id), d.Now(), &d.standings
	ss.mu.Lock()
	m := &ss.at[hash%standingsKept]
	if m.hash != hash {
		*m = remembered{hash: hash}
	}
	ask := now >= m.until
	if ask {
		m.until = now + standingAge // the others go by the old answer meanwhile
	}
	usage, known := m.usage, m.known
	ss.mu.Unlock()
	if ask {
		var err error
		usage, err = d.fleet.Usage(ctx, id)
		known = err == nil
		ss.mu.Lock()
		if m.hash == hash {
			m.usage, m.known = usage, known
		}
		ss.mu.Unlock()
	}
	switch {
	case !known:
		return Unknown, usage
	case usage.Active+weight <= usage.Limit && usage.Waiting == 0:
		return Free, usage
	}
	return Full, usage
}
