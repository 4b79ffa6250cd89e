package httpshed

import (
	"context"
	"hash/maphash"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ashfaqjani916/gotsem"
)

const (
	maxRetryAfter = 30 * time.Second // what a client is told at most
	minSpread     = 2 * time.Second  // clients that were refused together come back over at least that
	unmeasured    = 5 * time.Second  // what is said at most where nothing was measured
	drainsKept    = 10_000           // ids
	standingAge   = 100 * time.Millisecond
	standingsKept = 256
)

// drains knows for each id how fast its slots come free here, and up to when
// comebacks were promised. An id is remembered by its hash, when a request of it
// was let in: what is refused leaves nothing behind.
type drains struct {
	seed maphash.Seed

	mu        sync.Mutex
	admitted  uint64 // Stats.Admitted
	held      int    // Stats.Held
	local     drain  // of Options.Local
	ids       map[uint64]*drain
	standings []remembered // by hash; without Options.Local none
}

// drain is one id. Its lock is that of drains.
type drain struct {
	running int           // requests of it that hold a slot here
	hold    time.Duration // how long they hold it: a moving mean; 0: not measured yet
	last    time.Duration // when one of them began or ended
	next    time.Duration // comebacks are promised up to then
}

func newDrains(local bool) *drains {
	ds := &drains{seed: maphash.MakeSeed(), ids: make(map[uint64]*drain)}
	if local {
		ds.standings = make([]remembered, standingsKept)
	}
	return ds
}

// begin notes that a request was let in.
func (ds *drains) begin(h *held, a asker) {
	hash := maphash.String(ds.seed, a.id)
	ds.mu.Lock()
	defer ds.mu.Unlock()
	h.drain = ds.of(hash)
	h.drain.begin(h.began)
	for _, id := range a.also {
		d := ds.of(maphash.String(ds.seed, id))
		d.begin(h.began)
		h.more = append(h.more, d)
	}
	ds.admitted++
	ds.held++
	if h.local != nil {
		ds.local.begin(h.began)
	}
}

// of returns the drain of an id. mu is held.
func (ds *drains) of(hash uint64) *drain {
	d := ds.ids[hash]
	if d == nil {
		ds.makeRoom()
		d = new(drain)
		ds.ids[hash] = d
	}
	return d
}

// end notes that it gave its slot back.
func (ds *drains) end(h *held, now time.Duration) {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	h.drain.end(h.began, now)
	for _, d := range h.more {
		d.end(h.began, now)
	}
	ds.held--
	if h.local != nil {
		ds.local.end(h.began, now)
	}
}

func (ds *drains) counts() (admitted uint64, held int) {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	return ds.admitted, ds.held
}

func (d *drain) begin(now time.Duration) {
	d.running++
	d.last = now
}

func (d *drain) end(began, now time.Duration) {
	took := now - began
	if d.hold == 0 {
		d.hold = took
	} else {
		d.hold += (took - d.hold) / 4
	}
	d.hold = max(d.hold, time.Microsecond) // measured, if next to nothing
	d.running--
	d.last = now
}

// makeRoom forgets an id when drainsKept are known: of a few that the map offers,
// the one that was quiet for longest. mu is held.
func (ds *drains) makeRoom() {
	if len(ds.ids) < drainsKept {
		return
	}
	const look = 8
	var oldest uint64
	var at *drain
	looked := 0
	for hash, d := range ds.ids {
		if at == nil || d.running == 0 && at.running > 0 || (d.running == 0) == (at.running == 0) && d.last < at.last {
			oldest, at = hash, d
		}
		if looked++; looked == look {
			break
		}
	}
	delete(ds.ids, oldest)
}

// retryIn is how many seconds a client that found id full is told to stay away, at
// least 1.
func (ds *drains) retryIn(id string, full *gotsem.FullError, now time.Duration) int {
	hash := maphash.String(ds.seed, id)
	ds.mu.Lock()
	defer ds.mu.Unlock()
	return ds.ids[hash].retryIn(full, now)
}

// retryInLocal is retryIn for Options.Local.
func (ds *drains) retryInLocal(full *gotsem.FullError, now time.Duration) int {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	return ds.local.retryIn(full, now)
}

// retryIn promises the next place that comes free after those who wait, and those
// who were promised one before. So clients that are refused together come back as
// fast as slots come free, and not all at once. A header has whole seconds; chance
// spreads those who would share one.
func (d *drain) retryIn(full *gotsem.FullError, now time.Duration) int {
	if d == nil || d.hold == 0 {
		wait := unmeasured
		if full.RetryAfter > 0 {
			wait = min(wait, full.RetryAfter)
		}
		return 1 + rand.IntN(max(seconds(wait), 3))
	}
	// Nothing began or ended for longer than a request usually takes: then that is
	// how long they take now.
	each := max(d.hold, now-d.last)
	running := d.running
	if running == 0 { // all of them elsewhere in the fleet
		running = full.Limit
	}
	each = min(each, time.Hour) / time.Duration(max(running, 1))
	d.next = max(d.next, now+each*time.Duration(min(full.Waiting, 10_000))) + each
	wait := d.next - now
	d.next = min(d.next, now+maxRetryAfter)
	wait += rand.N(max(minSpread, wait/2))
	if wait > maxRetryAfter { // spread them, too
		wait = maxRetryAfter/2 + rand.N(maxRetryAfter/2)
	}
	return seconds(wait)
}

// seconds rounds up, to at least 1.
func seconds(d time.Duration) int {
	return max(1, int((d+time.Second-1)/time.Second))
}

// standing is how the fleet stands when this server is full.
type standing uint8

const (
	fleetUnknown standing = iota
	fleetFree
	fleetFull
)

// remembered is an answer to how an id stands in the fleet. It is asked once in
// standingAge, since a refusal has to be quick, and because a server that is full
// refuses a lot.
type remembered struct {
	hash  uint64
	until time.Duration
	usage gotsem.Usage
	known bool
}

// standing asks how id stands in the fleet, unless that is known.
func (s *Shedder) standing(ctx context.Context, id string, weight int) (standing, gotsem.Usage) {
	ds := s.drains
	hash := maphash.String(ds.seed, id)
	now := s.now()
	ds.mu.Lock()
	m := &ds.standings[hash%standingsKept]
	if m.hash != hash {
		*m = remembered{hash: hash}
	}
	ask := now >= m.until
	if ask {
		m.until = now + standingAge // the others go by the old answer meanwhile
	}
	usage, known := m.usage, m.known
	ds.mu.Unlock()
	if ask {
		var err error
		usage, err = s.opt.Semaphore.Usage(ctx, id)
		known = err == nil
		ds.mu.Lock()
		if m.hash == hash {
			m.usage, m.known = usage, known
		}
		ds.mu.Unlock()
	}
	switch {
	case !known:
		return fleetUnknown, usage
	case usage.Active+weight <= usage.Limit && usage.Waiting == 0:
		return fleetFree, usage
	}
	return fleetFull, usage
}
