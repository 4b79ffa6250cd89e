// Package memstore keeps slots in the memory of this process: the embedded
// default of gotsem, exact, and the shortest full statement of what a store
// does.
//
// It is sharded by id, so that ids do not wait for each other. An id takes room
// while it is held, waited for or has a limit set, and none afterwards.
package memstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

// shards is a power of two well above the cores of one machine: two busy ids
// seldom meet, and an empty Store stays at a few kilobytes.
const shards = 64

// Store is a store.Store in memory, and all of its capabilities. It goes by the
// monotonic clock.
type Store struct {
	hash   maphash.Seed
	start  time.Time // points in time are kept as durations since then
	shards [shards]shard
	wakers atomic.Pointer[[]*waker]
	wakeMu sync.Mutex // taken to change wakers
}

type waker struct{ wake func(store.Wakeup) }

// New returns an empty store.
func New() *Store {
	s := &Store{hash: maphash.MakeSeed(), start: time.Now()}
	for i := range s.shards {
		s.shards[i].epoch = uint64(s.start.UnixMicro())
		s.shards[i].sweep = never
	}
	return s
}

var (
	_ store.Store       = (*Store)(nil)
	_ store.Waker       = (*Store)(nil)
	_ store.Lister      = (*Store)(nil)
	_ store.LimitSetter = (*Store)(nil)
	_ store.PeerCounter = (*Store)(nil)
)

// lock returns the shard of id, locked, and the time: one that was read before
// might be older than what others have done meanwhile.
func (s *Store) lock(id string) (*shard, time.Duration) {
	sh := &s.shards[maphash.String(s.hash, id)%shards]
	sh.mu.Lock()
	return sh, time.Since(s.start)
}

// Acquire implements store.Store. It never fails but for a request that says
// nothing sensible, or a ctx that is over.
func (s *Store) Acquire(ctx context.Context, r *store.Request) (store.Decision, error) {
	if err := check(ctx, r.ID, r.SlotID); err != nil {
		return store.Decision{}, err
	}
	if err := r.Check(); err != nil {
		return store.Decision{}, err
	}
	sh, now := s.lock(r.ID)
	e := sh.entry(r.ID)
	e.settle(sh, now)
	d := e.acquire(sh, r, now)
	s.leave(sh, r.ID, e, now)
	return d, nil
}

// AcquireAll implements store.Joint. It holds the locks of all shards concerned, in their
// order.
func (s *Store) AcquireAll(ctx context.Context, rs []*store.Request) ([]store.Decision, error) {
	at := make([]int, len(rs))
	for i, r := range rs {
		if err := check(ctx, r.ID, r.SlotID); err != nil {
			return nil, err
		}
		if err := r.Check(); err != nil {
			return nil, err
		}
		at[i] = int(maphash.String(s.hash, r.ID) % shards)
	}
	locks := slices.Compact(slices.Sorted(slices.Values(at)))
	for _, n := range locks {
		s.shards[n].mu.Lock()
	}
	now := time.Since(s.start)
	ds := make([]store.Decision, 0, len(rs))
	refused := false
	for i, r := range rs {
		sh := &s.shards[at[i]]
		e := sh.entry(r.ID)
		e.settle(sh, now)
		if d := e.judge(r, now); d.Outcome != store.Granted {
			ds, refused = append(ds, d), true
			break
		}
		ds = append(ds, store.Decision{})
	}
	for i, r := range rs {
		sh := &s.shards[at[i]]
		e := sh.ids[r.ID]
		if e == nil {
			continue
		}
		if !refused {
			own := *r
			own.Queue, own.Ticket = 0, 0
			ds[i] = e.acquire(sh, &own, now)
		}
		s.arm(sh, e.due(), now)
		sh.forget(r.ID, e)
	}
	for _, n := range locks {
		s.unlock(&s.shards[n])
	}
	return ds, nil
}

// Renew implements store.Store.
func (s *Store) Renew(ctx context.Context, rs []store.Renewal) []store.RenewResult {
	out := make([]store.RenewResult, len(rs))
	for i, r := range rs {
		if err := cmp.Or(check(ctx, r.ID, r.SlotID), r.Check()); err != nil {
			out[i].Err = err
			continue
		}
		sh, now := s.lock(r.ID)
		e := sh.entry(r.ID)
		e.settle(sh, now)
		out[i].Outcome = e.renew(sh, &rs[i], now)
		s.leave(sh, r.ID, e, now)
	}
	return out
}

// Release implements store.Store.
func (s *Store) Release(ctx context.Context, r *store.Release) (bool, error) {
	err := check(ctx, r.ID, r.SlotID)
	freed := err == nil && s.release(r.ID, r.SlotID)
	if r.Async != nil {
		r.Async(r.ID, r.SlotID, err)
		return false, nil
	}
	return freed, err
}

func (s *Store) release(id, slotID string) (freed bool) {
	sh, now := s.lock(id)
	e := sh.ids[id]
	if e == nil {
		sh.mu.Unlock()
		return false
	}
	e.settle(sh, now)
	if sl := e.find(slotID); sl != nil {
		e.drop(sh, sl)
		e.advance(sh, now)
		freed = true
	}
	s.leave(sh, id, e, now)
	return freed
}

// Usage implements store.Store.
func (s *Store) Usage(ctx context.Context, id string, limit int) (store.Usage, error) {
	if err := check(ctx, id, "-"); err != nil {
		return store.Usage{}, err
	}
	sh, now := s.lock(id)
	e := sh.entry(id)
	e.settle(sh, now)
	u := e.usage(now, limit)
	s.leave(sh, id, e, now)
	return u, nil
}

func (e *entry) usage(now time.Duration, limit int) store.Usage {
	u := store.Usage{Active: e.active, Limit: e.limitFor(limit), LimitSet: e.set != nil, Waiting: len(e.line), NextIn: e.nextIn(now)}
	if len(e.line) > 0 {
		u.HeadAge = now - e.line[0].since
	}
	for _, sl := range e.line[:min(len(e.line), 1000)] {
		if sl.class != store.Default {
			u.Line[sl.class.Index()]++
		}
	}
	return u
}

// clearPage is how many slots are taken away in one step: others of the shard get in
// between.
const clearPage = 1000

// Clear implements store.Store. It takes what was held when it began. For c.TTL a
// holder whose slot it took is told so.
func (s *Store) Clear(ctx context.Context, c store.Clear) (int, error) {
	if err := check(ctx, c.ID, "-"); err != nil {
		return 0, err
	}
	gone := []string{c.SlotID}
	if c.SlotID == "" {
		gone = s.holders(c.ID)
	}
	n := 0
	for page := range slices.Chunk(gone, clearPage) {
		n += s.clear(c.ID, page, c.TTL)
	}
	return n, nil
}

// holders returns the slot ids that hold slots of id.
func (s *Store) holders(id string) []string {
	sh, now := s.lock(id)
	e := sh.entry(id)
	e.settle(sh, now)
	ids := make([]string, len(e.held))
	for i, sl := range e.held {
		ids[i] = sl.id
	}
	s.leave(sh, id, e, now)
	return ids
}

// clear takes away those of the slots that are held.
func (s *Store) clear(id string, slots []string, ttl time.Duration) (n int) {
	sh, now := s.lock(id)
	e := sh.entry(id)
	e.settle(sh, now)
	for _, slotID := range slots {
		if sl := e.find(slotID); sl != nil && sl.at >= 0 {
			sh.wake(slotID)
			e.drop(sh, sl)
			sh.revoke(slotID, now, ttl)
			n++
		}
	}
	e.advance(sh, now)
	s.arm(sh, sh.sweepRevoked(now), now)
	s.leave(sh, id, e, now)
	return n
}

// ChangeLimit implements store.LimitSetter.
func (s *Store) ChangeLimit(ctx context.Context, c store.LimitChange) (store.Override, error) {
	if err := check(ctx, c.ID, "-"); err != nil {
		return store.Override{}, err
	}
	if err := c.Check(); err != nil {
		return store.Override{}, fmt.Errorf("memstore: %w", err)
	}
	sh, now := s.lock(c.ID)
	e := sh.entry(c.ID)
	e.settle(sh, now)
	was := e.override(now)
	if c.OnlyIf && c.Version != was.Version {
		s.leave(sh, c.ID, e, now)
		return was, &store.LimitConflict{ID: c.ID, Want: c.Version, Now: was}
	}
	if e.set = nil; !c.Reset {
		e.set = &setLimit{limit: c.Limit, version: sh.next(now), at: now, ends: never, by: c.By}
		if c.For > 0 {
			e.set.ends = now + c.For.Truncate(time.Millisecond)
		}
	}
	set := e.override(now)
	e.settle(sh, now)
	s.leave(sh, c.ID, e, now)
	return set, nil
}

// LimitOf implements store.LimitSetter.
func (s *Store) LimitOf(ctx context.Context, id string) (store.Override, error) {
	if err := check(ctx, id, "-"); err != nil {
		return store.Override{}, err
	}
	sh, now := s.lock(id)
	e := sh.entry(id)
	e.settle(sh, now)
	set := e.override(now)
	s.leave(sh, id, e, now)
	return set, nil
}

// Holders implements store.Lister. A page costs as much as there are holders.
func (s *Store) Holders(ctx context.Context, id, after string, n int) (page []store.Holder, next string, err error) {
	if err := cmp.Or(check(ctx, id, "-"), store.CheckPage(n)); err != nil {
		return nil, "", err
	}
	from, afterSlot := time.Duration(0), ""
	if after != "" {
		at, slot, _ := strings.Cut(after, " ")
		ns, err := strconv.ParseInt(at, 10, 64)
		if err != nil {
			return nil, "", fmt.Errorf("%w: %q is not what a page of holders ended with", store.ErrConfig, after)
		}
		from, afterSlot = time.Duration(ns), slot
	}
	sh, now := s.lock(id)
	e := sh.entry(id)
	e.settle(sh, now)
	held := make([]slot, 0, len(e.held))
	for _, sl := range e.held {
		if cmp.Or(cmp.Compare(sl.until, from), cmp.Compare(sl.id, afterSlot)) > 0 {
			held = append(held, *sl)
		}
	}
	s.leave(sh, id, e, now)
	slices.SortFunc(held, func(a, b slot) int { return cmp.Or(cmp.Compare(a.until, b.until), cmp.Compare(a.id, b.id)) })
	if len(held) > n {
		held = held[:n]
		next = fmt.Sprintf("%d %s", held[n-1].until, held[n-1].id)
	}
	for _, sl := range held {
		page = append(page, store.Holder{SlotID: sl.id, Weight: sl.weight, Fence: sl.fence, Owner: sl.owner, Age: now - sl.since, Left: sl.until - now})
	}
	return page, next, nil
}

// Waiters implements store.Lister.
func (s *Store) Waiters(ctx context.Context, id string, n int) ([]store.Waiter, error) {
	if err := cmp.Or(check(ctx, id, "-"), store.CheckPage(n)); err != nil {
		return nil, err
	}
	sh, now := s.lock(id)
	e := sh.entry(id)
	e.settle(sh, now)
	line := e.line[:min(len(e.line), n)]
	out := make([]store.Waiter, len(line))
	for i, sl := range line {
		out[i] = store.Waiter{SlotID: sl.id, Weight: sl.weight, Class: sl.class, Owner: sl.owner, Age: now - sl.since, Left: sl.until - now}
	}
	s.leave(sh, id, e, now)
	return out, nil
}

// walkPiece is how many ids, at least, there are between two pauses of a walk.
const walkPiece = 50

// Walk implements store.Lister. It looks at one shard at a time, and does not
// hold its lock while the caller looks at an id.
func (s *Store) Walk(ctx context.Context, limit int, pause time.Duration) iter.Seq2[store.Standing, error] {
	return func(yield func(store.Standing, error) bool) {
		listed := 0
		for i := range s.shards {
			rest := time.Duration(0)
			if listed >= walkPiece {
				rest, listed = pause, 0
			}
			if err := store.Rest(ctx, rest); err != nil {
				yield(store.Standing{}, err)
				return
			}
			sh := &s.shards[i]
			sh.mu.Lock()
			now := time.Since(s.start)
			all := make([]store.Standing, 0, len(sh.ids))
			for id, e := range sh.ids {
				if e.settle(sh, now); len(e.held) > 0 || len(e.line) > 0 || e.set != nil {
					all = append(all, store.Standing{ID: id, Usage: e.usage(now, limit)})
				}
			}
			s.unlock(sh)
			listed += len(all)
			for _, st := range all {
				if !yield(st, nil) {
					return
				}
			}
		}
	}
}

// Peers implements store.PeerCounter: a memory store has one process.
func (s *Store) Peers(context.Context, time.Duration) (int, error) { return 1, nil }

// OnWake implements store.Waker. Its words carry no grants: asking costs next to nothing
// here.
func (s *Store) OnWake(wake func(store.Wakeup)) (stop func()) {
	w := &waker{wake}
	s.changeWakers(func(ws []*waker) []*waker { return append(ws, w) })
	return func() {
		s.changeWakers(func(ws []*waker) []*waker {
			return slices.DeleteFunc(ws, func(x *waker) bool { return x == w })
		})
	}
}

func (s *Store) changeWakers(change func([]*waker) []*waker) {
	s.wakeMu.Lock()
	defer s.wakeMu.Unlock()
	var ws []*waker
	if old := s.wakers.Load(); old != nil {
		ws = slices.Clone(*old) // whoever is calling them keeps the old list
	}
	ws = change(ws)
	s.wakers.Store(&ws)
}

// leave forgets e if nothing is left of it, sees to it that what lapses is
// noticed though nobody asks, unlocks, and wakes whom the call concerned.
func (s *Store) leave(sh *shard, id string, e *entry, now time.Duration) {
	s.arm(sh, e.due(), now)
	sh.forget(id, e)
	s.unlock(sh)
}

func (s *Store) unlock(sh *shard) {
	woken := sh.woken
	sh.woken = nil
	sh.mu.Unlock()
	if len(woken) == 0 {
		return
	}
	if ws := s.wakers.Load(); ws != nil {
		for _, id := range woken {
			for _, w := range *ws {
				w.wake(store.Wakeup{SlotID: id})
			}
		}
	}
}

// sweepEvery is the least time between two sweeps of a shard. A waiter asks
// again by itself when the next slot lapses, so sweeping only gives back memory
// and need not be prompt.
const sweepEvery = time.Second

// arm has sh swept when something lapses at due.
func (s *Store) arm(sh *shard, due, now time.Duration) {
	if due == never {
		return
	}
	if due = max(due, now+sweepEvery); due >= sh.sweep {
		return
	}
	if sh.sweep = due; sh.timer == nil {
		sh.timer = time.AfterFunc(due-now, func() { s.sweep(sh) })
	} else {
		sh.timer.Reset(due - now)
	}
}

func (s *Store) sweep(sh *shard) {
	sh.mu.Lock()
	now := time.Since(s.start)
	due := never
	for id, e := range sh.ids {
		e.settle(sh, now)
		due = min(due, e.due())
		sh.forget(id, e)
	}
	due = min(due, sh.sweepRevoked(now))
	sh.sweep = never
	s.arm(sh, due, now)
	s.unlock(sh)
}

func check(ctx context.Context, id, slotID string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if id == "" || slotID == "" {
		return errNoID
	}
	return nil
}

var errNoID = errors.New("memstore: the id and the slot id must not be empty")
