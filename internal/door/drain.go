package door

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ashfaqjani916/gotsem"
)

// MaxRetryAfter is what a client is told at most.
const MaxRetryAfter = 30 * time.Second

const (
	unmeasured = 5 * time.Second // what is said at most where nothing was measured
	drainsKept = 10_000          // ids
)

// drains knows for each id how fast its slots come free here, and up to when
// comebacks were promised. An id is remembered by its hash, when a request of it
// was let in: what is refused leaves nothing behind.
type drains struct {
	mu       sync.Mutex
	admitted uint64
	held     int
	local    drain // of this server's own semaphore
	ids      map[uint64]*drain
}

// drain is one id. Its lock is that of drains.
type drain struct {
	running int           // requests of it that hold a slot here
	hold    time.Duration // how long they hold it: a moving mean; 0: not measured yet
	last    time.Duration // when one of them began or ended
	next    time.Duration // comebacks are promised up to then
}

// begin notes that a request was let in.
func (d *Door) begin(h *Held, a Asker) {
	hash, ds := d.hash(a.ID), &d.drains
	ds.mu.Lock()
	defer ds.mu.Unlock()
	h.drain = ds.of(hash)
	h.drain.begin(h.began)
	for _, id := range a.Also {
		of := ds.of(d.hash(id))
		of.begin(h.began)
		h.more = append(h.more, of)
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
func (d *Door) end(h *Held, now time.Duration) {
	ds := &d.drains
	ds.mu.Lock()
	defer ds.mu.Unlock()
	h.drain.end(h.began, now)
	for _, of := range h.more {
		of.end(h.began, now)
	}
	ds.held--
	if h.local != nil {
		ds.local.end(h.began, now)
	}
}

// Counts is how many requests were let in, and how many of them hold a slot now.
func (d *Door) Counts() (admitted uint64, held int) {
	d.drains.mu.Lock()
	defer d.drains.mu.Unlock()
	return d.drains.admitted, d.drains.held
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

// RetryIn promises a client that found the id of full to be full the next place that
// comes free after those who wait, and those who were promised one before. So clients
// that are refused together come back as fast as slots come free, and not all at once.
// It returns when that is, to be spread by Spread; or, where nothing was measured yet,
// false, and the most that should be said.
func (d *Door) RetryIn(full *gotsem.FullError) (wait time.Duration, measured bool) {
	hash, now, ds := d.hash(full.ID), d.Now(), &d.drains
	ds.mu.Lock()
	defer ds.mu.Unlock()
	return ds.ids[hash].retryIn(full, now)
}

// RetryInLocal is RetryIn for this server's own semaphore.
func (d *Door) RetryInLocal(full *gotsem.FullError) (wait time.Duration, measured bool) {
	now, ds := d.Now(), &d.drains
	ds.mu.Lock()
	defer ds.mu.Unlock()
	return ds.local.retryIn(full, now)
}

func (d *drain) retryIn(full *gotsem.FullError, now time.Duration) (wait time.Duration, measured bool) {
	if d == nil || d.hold == 0 {
		wait = unmeasured
		if full.RetryAfter > 0 {
			wait = min(wait, full.RetryAfter)
		}
		return wait, false
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
	wait = d.next - now
	d.next = min(d.next, now+MaxRetryAfter)
	return wait, true
}

// Spread adds chance to a time to come back: up to half as much again, and up to least at
// least, for clients that would be told the same. It is MaxRetryAfter at most.
func Spread(wait, least time.Duration) time.Duration {
	wait += rand.N(max(least, wait/2))
	if wait > MaxRetryAfter { // spread them, too
		wait = MaxRetryAfter/2 + rand.N(MaxRetryAfter/2)
	}
	return wait
}
