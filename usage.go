package gotsem

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

// Usage is how an id stands.
type Usage struct {
	Active   int           // the sum of weights held
	Limit    int           // the limit that applies
	LimitSet bool          // it was set with SetLimit
	Waiting  int           // how many wait in line
	Line     [4]int        // of the first 1,000 of them, those that are not Default: see WaitingAs
	NextIn   time.Duration // until the next slot lapses if it is not renewed; 0: none is held
	HeadAge  time.Duration // for how long the first in line has waited; 0: nobody waits
}

// WaitingAs is how many of a class are among the first 1,000 in line.
func (u Usage) WaitingAs(c Class) int {
	if c != Default {
		return u.Line[c.Index()]
	}
	n := min(u.Waiting, 1000)
	for _, other := range u.Line {
		n -= other
	}
	return max(n, 0)
}

// Usage tells how id stands. It changes nothing, and asks the store once, also while
// that is given up: how looking in ends does not count. It does not ask the LimitFunc:
// the limit is the one set in the store, else what the LimitFunc answered last, else
// Options.Limit.
func (s *Semaphore) Usage(ctx context.Context, id string) (Usage, error) {
	if err := s.sensible(ctx, id, 1); err != nil {
		return Usage{}, err
	}
	limit := s.limits.remembered(id, s.opt.Limit)
	var u store.Usage
	err := s.gate.call(ctx, id, func(ctx context.Context) (err error) {
		u, err = s.opt.Store.Usage(ctx, id, limit)
		return err
	})
	return Usage(u), err
}

// Holder is one lease, or one slot of a TryAcquire.
type Holder struct {
	SlotID string
	Weight int
	Since  time.Time // by this process's clock; zero: not known, the slot was taken by TryAcquire
	Until  time.Time // when it lapses if it is not renewed, by this process's clock
	Fence  uint64    // 0: taken by TryAcquire, or not kept, as of leases of weight 1 in Redis
	Owner  string    // host:pid and label; empty: taken by TryAcquire
}

// Holders lists who holds slots of id, the oldest first, and last those of whom it is not
// known since when. It asks the store once for each thousand. See HoldersPage where there
// may be too many.
func (s *Semaphore) Holders(ctx context.Context, id string) ([]Holder, error) {
	var all []Holder
	seen := make(map[string]bool)
	for after, more := "", true; more; more = after != "" {
		page, next, err := s.HoldersPage(ctx, id, after, store.MaxPage)
		if err != nil {
			return nil, err
		}
		for _, h := range page {
			if !seen[h.SlotID] { // who renewed between two pages is in both
				seen[h.SlotID] = true
				all = append(all, h)
			}
		}
		after = next
	}
	slices.SortStableFunc(all, func(a, b Holder) int {
		switch unknown := a.Since.IsZero(); {
		case unknown == b.Since.IsZero():
			return a.Since.Compare(b.Since)
		case unknown:
			return 1
		}
		return -1
	})
	return all, nil
}

// HoldersPage lists n of those who hold slots of id, 1 to 1,000, those whose slots lapse
// first coming first. after is empty, or the next that came with the page before; the last
// page comes with an empty one. Who renews between two pages may be in both. It asks the
// store once, or twice.
func (s *Semaphore) HoldersPage(ctx context.Context, id, after string, n int) (page []Holder, next string, err error) {
	var hs []store.Holder
	err = s.list(ctx, id, func(ctx context.Context, l store.Lister) (err error) {
		hs, next, err = l.Holders(ctx, id, after, n)
		return err
	})
	now := time.Now()
	page = make([]Holder, len(hs))
	for i, h := range hs {
		page[i] = Holder{SlotID: h.SlotID, Weight: h.Weight, Until: now.Add(h.Left), Fence: h.Fence, Owner: h.Owner}
		if h.Age > 0 {
			page[i].Since = now.Add(-h.Age)
		}
	}
	return page, next, err
}

// State is how the store does.
type State struct {
	Processes []Process     // that have taken leases of late, the first 1,000; of the memory store this one
	Losses    int           // how often the server that keeps the id was found to have lost its memory
	LastLoss  time.Time     // when that was last found, by this process's clock; zero: it never was
	Grace     time.Duration // for how long that server grants nothing, so that holders can come forward
}

// Process is one that shares the store.
type Process struct {
	Owner string    // host:pid and label
	Until time.Time // when it is given up, unless it is heard of; by this process's clock. Zero: not known
}

// State tells who shares the store, and how the server that keeps id does. It asks the
// store once or twice.
func (s *Semaphore) State(ctx context.Context, id string) (State, error) {
	if err := s.sensible(ctx, id, 1); err != nil {
		return State{}, err
	}
	st, ok := s.opt.Store.(store.Stater)
	if !ok {
		return State{Processes: []Process{{Owner: s.owner}}}, nil
	}
	var found store.State
	err := s.gate.call(ctx, id, func(ctx context.Context) (err error) {
		found, err = st.State(ctx, id)
		return err
	})
	if err != nil {
		return State{}, err
	}
	now := time.Now()
	out := State{Losses: found.Losses, Grace: found.Grace}
	if found.LossAge > 0 {
		out.LastLoss = now.Add(-found.LossAge)
	}
	for _, p := range found.Processes {
		out.Processes = append(out.Processes, Process{Owner: p.Owner, Until: now.Add(p.Left)})
	}
	return out, nil
}

// Finding is one thing that was looked at: whether the store is set up as its promises need.
type Finding = store.Finding

// Check looks whether the store is set up as its promises need it, as gotsem doctor does.
// It makes a few dozen calls, of which each takes StoreTimeout at most, and leaves nothing.
// A store that cannot tell is found to have nothing amiss. An error means that it could not
// look.
func (s *Semaphore) Check(ctx context.Context) ([]Finding, error) {
	c, ok := s.opt.Store.(store.Checker)
	if !ok {
		return nil, nil
	}
	return c.Check(ctx, s.opt.TTL)
}

// Waiter is one who waits in line.
type Waiter struct {
	Weight int
	Class  Class
	Since  time.Time // by this process's clock; zero: not known
	Owner  string    // host:pid and label
}

// Waiters lists the first n of the line of id, 1 to 1,000, in its order.
func (s *Semaphore) Waiters(ctx context.Context, id string, n int) ([]Waiter, error) {
	var line []store.Waiter
	err := s.list(ctx, id, func(ctx context.Context, l store.Lister) (err error) {
		line, err = l.Waiters(ctx, id, n)
		return err
	})
	now := time.Now()
	out := make([]Waiter, len(line))
	for i, w := range line {
		out[i] = Waiter{Weight: w.Weight, Class: w.Class, Owner: w.Owner}
		if w.Age > 0 {
			out[i].Since = now.Add(-w.Age)
		}
	}
	return out, err
}

// list asks what only a store.Lister knows.
func (s *Semaphore) list(ctx context.Context, id string, ask func(context.Context, store.Lister) error) error {
	if err := s.sensible(ctx, id, 1); err != nil {
		return err
	}
	l, ok := s.opt.Store.(store.Lister)
	if !ok {
		return s.cannot("list holders and waiters")
	}
	return s.gate.call(ctx, id, func(ctx context.Context) error { return ask(ctx, l) })
}

// Standing is an id, and how it stands.
type Standing struct {
	ID string
	Usage
}

// Walk lists how the ids stand that are held at the moment, that somebody waits for, or whose
// limit was set with SetLimit, in no order; one may come twice if the store changes
// meanwhile. It walks over all that the store keeps, a piece at a time, for as long as
// ctx allows; each piece takes StoreTimeout at most, and between two it waits for pause, so
// that it need be no burden. On Redis a piece is a SCAN of a thousand keys, of which all are
// looked at twice, or a script about fifty ids, on a Cluster about those of one slot.
func (s *Semaphore) Walk(ctx context.Context, pause time.Duration) iter.Seq2[Standing, error] {
	return func(yield func(Standing, error) bool) {
		l, ok := s.opt.Store.(store.Lister)
		if !ok {
			yield(Standing{}, s.cannot("list ids"))
			return
		}
		for st, err := range l.Walk(store.WithPageTimeout(ctx, s.opt.StoreTimeout), s.opt.Limit, pause) {
			if err == nil && !st.LimitSet {
				st.Limit = s.limits.remembered(st.ID, s.opt.Limit)
			}
			if !yield(Standing{st.ID, Usage(st.Usage)}, err) {
				return
			}
		}
	}
}

// IDs is Walk without a pause, and without how they stand.
func (s *Semaphore) IDs(ctx context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for st, err := range s.Walk(ctx, 0) {
			if !yield(st.ID, err) {
				return
			}
		}
	}
}

// Revoke takes the lease with that slot id away from its holder, wherever that
// is: its Context ends, at once if the store can push, at its next renewal at the
// latest. The head of the line has the room at once. It reports whether there was
// such a lease; a wrong slot id harms nobody.
func (s *Semaphore) Revoke(ctx context.Context, id, slotID string) (bool, error) {
	if slotID == "" {
		return false, errors.New("gotsem: revoke: the slot id is empty: Holders lists them")
	}
	n, err := s.clear(ctx, id, slotID)
	return n > 0, err
}

// Clear takes every slot of id away from its holder, as Revoke does with one, and
// returns how many slot ids it took. Who waits goes on waiting, and is let in.
func (s *Semaphore) Clear(ctx context.Context, id string) (int, error) {
	return s.clear(ctx, id, "")
}

// clear takes one slot, or with none named all of them.
func (s *Semaphore) clear(ctx context.Context, id, slotID string) (n int, err error) {
	if err := s.sensible(ctx, id, 1); err != nil {
		return 0, err
	}
	err = s.gate.call(ctx, id, func(ctx context.Context) (err error) {
		n, err = s.opt.Store.Clear(ctx, store.Clear{ID: id, SlotID: slotID, TTL: s.opt.TTL})
		return err
	})
	s.known.forget(id)
	return n, err
}

func (s *Semaphore) cannot(what string) error {
	return fmt.Errorf("gotsem: a store of type %T cannot %s", s.opt.Store, what)
}
