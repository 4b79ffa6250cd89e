package memstore

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

// shard holds the ids that hash to it.
type shard struct {
	mu    sync.Mutex
	ids   map[string]*entry
	peak  int    // the most ids since ids was made: a Go map does not shrink
	epoch uint64 // the wall clock's microseconds at the store's start
	last  uint64 // the last fence or ticket given; one for all ids, so that forgetting an id forgets no fence
	woken []string
	timer *time.Timer
	sweep time.Duration // when the timer fires; never: it does not

	revoked    map[string]time.Duration // slots that Clear took, and until when that is remembered
	revokedDue time.Duration            // when the first of them is forgotten; without any it says nothing

	spareEntries []*entry // what a busy id leaves behind between two grants
	spareSlots   []*slot
	_            [64]byte // shards are written by different cores
}

// tombstonesMax bounds what a shard remembers of slots that were taken away: the holders
// of more are told lost instead of revoked.
const tombstonesMax = 1 << 16

// revoke remembers that slotID was taken away from its holder, for ttl.
func (sh *shard) revoke(slotID string, now, ttl time.Duration) {
	if ttl <= 0 || len(sh.revoked) >= tombstonesMax {
		return
	}
	if sh.revoked == nil {
		sh.revoked = make(map[string]time.Duration)
		sh.revokedDue = never
	}
	until := now + min(ttl, store.MaxTTL)
	sh.revoked[slotID] = until
	sh.revokedDue = min(sh.revokedDue, until)
}

func (sh *shard) wasRevoked(slotID string, now time.Duration) bool {
	until, ok := sh.revoked[slotID]
	return ok && until > now
}

// sweepRevoked forgets what is due, and returns when the next is.
func (sh *shard) sweepRevoked(now time.Duration) time.Duration {
	if sh.revoked == nil {
		return never
	}
	if sh.revokedDue <= now {
		sh.revokedDue = never
		for slotID, until := range sh.revoked {
			if until <= now {
				delete(sh.revoked, slotID)
			} else {
				sh.revokedDue = min(sh.revokedDue, until)
			}
		}
		if len(sh.revoked) == 0 {
			sh.revoked = nil // a map does not shrink
		}
	}
	return sh.revokedDue
}

// spares bounds what a shard keeps for reuse.
const spares = 32

// claimLeast is how long a grant waits at least for its waiter, whose place in line may
// be about to end.
const claimLeast = time.Second

const never = time.Duration(1<<63 - 1)

// entry is all that is known of one id.
type entry struct {
	slots  map[string]*slot // holders and waiters, once there were more than few
	held   []*slot          // holders: a heap, the first to lapse on top
	line   []*slot          // waiters, by ticket
	oldest *slot            // waiters again, by when they last asked
	newest *slot
	active int // the sum of weights in held
	set    *setLimit
}

// setLimit is a limit that was set in the store.
type setLimit struct {
	limit    int
	version  uint64
	at, ends time.Duration
	by       string
}

// override is what is set, for others.
func (e *entry) override(now time.Duration) (o store.Override) {
	if l := e.set; l != nil {
		o = store.Override{Limit: l.limit, Version: l.version, Age: now - l.at, By: l.by}
		if l.ends != never {
			o.Left = l.ends - now
		}
	}
	return o
}

// slot is one slot id: a holder, or one who waits.
type slot struct {
	id     string
	weight int
	at     int           // its index in held; -1: in line
	until  time.Duration // a holder's expiry, a waiter's end of life
	since  time.Duration
	limit  int // a waiter's own
	fence  uint64
	ticket uint64
	owner  string
	class  store.Class
	bare   bool

	older, newer *slot // a waiter's neighbours by when they last asked
}

func (sh *shard) entry(id string) *entry {
	if e := sh.ids[id]; e != nil {
		return e
	}
	var e *entry
	if n := len(sh.spareEntries); n > 0 {
		e, sh.spareEntries = sh.spareEntries[n-1], sh.spareEntries[:n-1]
	} else {
		e = new(entry)
	}
	if sh.ids == nil {
		sh.ids = make(map[string]*entry)
	}
	sh.ids[id] = e
	sh.peak = max(sh.peak, len(sh.ids))
	return e
}

// forget drops id if nothing is held, waited for or set.
func (sh *shard) forget(id string, e *entry) {
	if e.len() > 0 || e.set != nil {
		return
	}
	delete(sh.ids, id)
	if len(sh.spareEntries) < spares && cap(e.held) <= spares && cap(e.line) <= spares {
		sh.spareEntries = append(sh.spareEntries, e)
	}
	if sh.peak > 1024 && len(sh.ids) <= sh.peak/8 {
		ids := make(map[string]*entry, len(sh.ids)) // maps.Clone keeps the room
		maps.Copy(ids, sh.ids)
		sh.ids, sh.peak = ids, len(ids)
	}
}

// next returns a number above all that came before: the time in microseconds
// where that is enough, as a store that may lose its memory has to do it.
func (sh *shard) next(now time.Duration) uint64 {
	sh.last = max(sh.last+1, sh.epoch+uint64(now/time.Microsecond))
	return sh.last
}

func (sh *shard) wake(slotID string) { sh.woken = append(sh.woken, slotID) }

func (e *entry) limitFor(asked int) int {
	if e.set != nil {
		return e.set.limit
	}
	return asked
}

// nextIn is how long until the next slot lapses.
func (e *entry) nextIn(now time.Duration) time.Duration {
	if len(e.held) == 0 {
		return 0
	}
	return e.held[0].until - now
}

// due returns when the first of e lapses.
func (e *entry) due() time.Duration {
	due := never
	if len(e.held) > 0 {
		due = e.held[0].until
	}
	if e.oldest != nil {
		due = min(due, e.oldest.until)
	}
	if e.set != nil {
		due = min(due, e.set.ends)
	}
	return due
}

// settle makes e true for now: what has lapsed is gone, and the room is handed
// on. It comes before everything else.
func (e *entry) settle(sh *shard, now time.Duration) {
	for len(e.held) > 0 && e.held[0].until <= now {
		e.drop(sh, e.held[0])
	}
	for e.oldest != nil && e.oldest.until <= now {
		e.drop(sh, e.oldest)
	}
	if e.set != nil && e.set.ends <= now {
		e.set = nil
	}
	e.advance(sh, now)
}

// advance hands room to the head of the line for as long as that is possible.
func (e *entry) advance(sh *shard, now time.Duration) {
	for len(e.line) > 0 {
		head := e.line[0]
		limit := e.limitFor(head.limit)
		switch {
		case limit > 0 && head.weight > limit: // the limit was lowered under it
			sh.wake(head.id)
			e.drop(sh, head)
		case e.active+head.weight > limit:
			return
		default:
			// A grant does not make the dead live longer than their place in line, but by
			// what being woken may take. Who lives has asked within the last second.
			claim := min(store.Claim, max(head.until-now, claimLeast))
			e.unline(head)
			e.hold(sh, head, now, now+claim)
			sh.wake(head.id)
		}
	}
}

// acquire decides about r; e is settled.
func (e *entry) acquire(sh *shard, r *store.Request, now time.Duration) store.Decision {
	sl := e.find(r.SlotID)
	limit := e.limitFor(r.Limit)
	room := limit // for r
	if r.Queue <= 0 {
		room = store.ShareOf(limit, r.Share)
	}
	if sl != nil && sl.at < 0 { // a waiter asks again
		sl.limit, sl.owner = r.Limit, r.Owner
		e.unask(sl)
		e.ask(sl, now)
		if limit > 0 && sl.weight > limit { // it became too heavy while it waited
			e.drop(sh, sl)
		}
		e.advance(sh, now)
		sl = e.find(r.SlotID)
	}
	answer := func(o store.Outcome) store.Decision {
		return store.Decision{Outcome: o, Active: e.active, Limit: limit, Waiting: len(e.line), RetryIn: e.nextIn(now)}
	}
	switch {
	case sl != nil && sl.at >= 0: // a claim, or a retry
		e.extend(sl, now+r.TTL)
	case sl != nil:
		return e.waiting(sl, answer(store.Waiting))
	case room > 0 && r.Weight > room:
		return answer(store.TooHeavy)
	case len(e.line) == 0 && e.active+r.Weight <= room:
		sl = e.add(sh, r)
		e.hold(sh, sl, now, now+r.TTL)
	case r.Queue <= 0:
		return answer(store.Full)
	case r.Ticket == 0 && len(e.line) >= r.Queue:
		return answer(store.LineFull)
	default:
		sl = e.add(sh, r)
		e.join(sh, sl, r, now)
		if e.advance(sh, now); sl.at < 0 {
			return e.waiting(sl, answer(store.Waiting))
		}
		e.extend(sl, now+r.TTL) // it came back to the head, and there was room
	}
	d := answer(store.Granted)
	d.Fence, d.RetryIn = sl.fence, 0
	return d
}

// judge says what acquire would, of a request that does not wait, and does nothing; e is
// settled.
func (e *entry) judge(r *store.Request, now time.Duration) store.Decision {
	limit := e.limitFor(r.Limit)
	room := store.ShareOf(limit, r.Share)
	d := store.Decision{Active: e.active, Limit: limit, Waiting: len(e.line), RetryIn: e.nextIn(now)}
	switch sl := e.find(r.SlotID); {
	case sl != nil && sl.at >= 0: // it is held already
		d.Outcome = store.Granted
	case sl != nil: // it stands in line
		d.Outcome = store.Full
	case room > 0 && r.Weight > room:
		d.Outcome = store.TooHeavy
	case len(e.line) == 0 && e.active+r.Weight <= room:
		d.Outcome = store.Granted
	}
	return d
}

func (e *entry) waiting(sl *slot, d store.Decision) store.Decision {
	at, _ := e.place(sl.ticket)
	d.Place, d.Ticket = at+1, sl.ticket
	return d
}

func (e *entry) renew(sh *shard, r *store.Renewal, now time.Duration) store.RenewOutcome {
	if sl := e.find(r.SlotID); sl != nil && sl.at >= 0 {
		e.extend(sl, now+r.TTL)
		return store.Renewed
	}
	if sh.wasRevoked(r.SlotID, now) {
		return store.Revoked
	}
	if !r.Register || e.find(r.SlotID) != nil {
		return store.Lost
	}
	sl := e.add(sh, &store.Request{SlotID: r.SlotID, Weight: r.Weight, Owner: r.Owner})
	e.hold(sh, sl, now, now+r.TTL)
	return store.Restored
}

// few slots are found by looking at each: most ids never have more at once, and a map
// costs as much as all the rest of an acquire.
const few = 8

func (e *entry) len() int { return len(e.held) + len(e.line) }

// find returns the holder or the waiter with that slot id, or nil.
func (e *entry) find(slotID string) *slot {
	if e.slots != nil {
		return e.slots[slotID]
	}
	for _, of := range [...][]*slot{e.held, e.line} {
		for _, sl := range of {
			if sl.id == slotID {
				return sl
			}
		}
	}
	return nil
}

// add makes a slot for r that neither holds nor waits yet, but is about to.
func (e *entry) add(sh *shard, r *store.Request) *slot {
	var sl *slot
	if n := len(sh.spareSlots); n > 0 {
		sl, sh.spareSlots = sh.spareSlots[n-1], sh.spareSlots[:n-1]
	} else {
		sl = new(slot)
	}
	*sl = slot{id: r.SlotID, weight: r.Weight, at: -1, limit: r.Limit, class: r.Class, bare: r.Plain}
	if !r.Plain {
		sl.owner = r.Owner
	}
	if e.slots == nil && e.len() >= few {
		e.slots = make(map[string]*slot, 2*few)
		for _, of := range [...][]*slot{e.held, e.line} {
			for _, other := range of {
				e.slots[other.id] = other
			}
		}
	}
	if e.slots != nil {
		e.slots[sl.id] = sl
	}
	return sl
}

// drop takes a holder or a waiter out of e.
func (e *entry) drop(sh *shard, sl *slot) {
	delete(e.slots, sl.id) // if there is a map
	if sl.at >= 0 {
		e.active -= sl.weight
		e.unheap(sl)
	} else {
		e.unline(sl)
	}
	if *sl = (slot{}); len(sh.spareSlots) < spares {
		sh.spareSlots = append(sh.spareSlots, sl)
	}
}

// place finds a ticket in line.
func (e *entry) place(ticket uint64) (int, bool) {
	return slices.BinarySearchFunc(e.line, ticket, func(s *slot, t uint64) int { return cmp.Compare(s.ticket, t) })
}

// join makes sl a waiter.
func (e *entry) join(sh *shard, sl *slot, r *store.Request, now time.Duration) {
	if sl.ticket = r.Ticket; sl.ticket == 0 {
		sl.ticket = sh.next(now)
		sl.ticket -= min(sl.ticket-1, uint64(r.Lead/time.Microsecond))
	}
	at, taken := e.place(sl.ticket)
	for taken { // a made-up ticket: stand behind its owner
		sl.ticket++
		at, taken = e.place(sl.ticket)
	}
	sl.since = now
	e.line = slices.Insert(e.line, at, sl)
	e.ask(sl, now)
}

// unline makes sl no waiter any more.
func (e *entry) unline(sl *slot) {
	e.unask(sl)
	if at, _ := e.place(sl.ticket); at > 0 || len(e.line) < spares {
		e.line = slices.Delete(e.line, at, at+1)
	} else { // the head of a long line goes without moving all the others
		e.line[0] = nil
		e.line = e.line[1:]
	}
}

// ask notes that a waiter asked now: it lives from then on.
func (e *entry) ask(sl *slot, now time.Duration) {
	sl.until = now + store.Life
	if sl.older = e.newest; e.newest != nil {
		e.newest.newer = sl
	} else {
		e.oldest = sl
	}
	e.newest = sl
}

func (e *entry) unask(sl *slot) {
	if sl.older != nil {
		sl.older.newer = sl.newer
	} else {
		e.oldest = sl.newer
	}
	if sl.newer != nil {
		sl.newer.older = sl.older
	} else {
		e.newest = sl.older
	}
	sl.older, sl.newer = nil, nil
}

// hold makes sl a holder.
func (e *entry) hold(sh *shard, sl *slot, now, until time.Duration) {
	if !sl.bare {
		sl.fence = sh.next(now)
	}
	sl.since, sl.until, sl.at = now, until, len(e.held)
	e.active += sl.weight
	e.held = append(e.held, sl)
	e.up(sl.at)
}

// extend moves the expiry of a holder back, never forward.
func (e *entry) extend(sl *slot, until time.Duration) {
	if until > sl.until {
		sl.until = until
		e.down(sl.at)
	}
}

// A heap of its own: container/heap boxes every slot it pops, and slots must
// know where they are.

func (e *entry) unheap(sl *slot) {
	at, last := sl.at, len(e.held)-1
	e.swap(at, last)
	e.held[last] = nil
	e.held = e.held[:last]
	if at < last {
		e.down(at)
		e.up(at)
	}
}

func (e *entry) up(i int) {
	for i > 0 && e.held[i].until < e.held[(i-1)/2].until {
		e.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
}

func (e *entry) down(i int) {
	for {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < len(e.held); c++ {
			if e.held[c].until < e.held[least].until {
				least = c
			}
		}
		if least == i {
			return
		}
		e.swap(i, least)
		i = least
	}
}

func (e *entry) swap(i, j int) {
	e.held[i], e.held[j] = e.held[j], e.held[i]
	e.held[i].at, e.held[j].at = i, j
}
