package semui

import (
	"context"
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"github.com/ashfaqjani916/gotsem"
)

// What this process refused is known to it alone: the store keeps no account of it.
// refusals counts the calls of late, by id and outcome, for the ids that are refused most.
type refusals struct {
	seed   maphash.Seed
	shards [16]refusalShard
}

type refusalShard struct {
	mu  sync.Mutex
	ids map[string]*refused
}

// refusedKept is how many ids a shard counts. A further one takes the place of that which
// was refused least: so one of a million that come once each costs no memory.
const refusedKept = 64

const outcomes = int(gotsem.Invalid) + 1

// refused are the counts of an id, in this minute and in the one before.
type refused struct {
	minute      int64
	now, before [outcomes]uint32
}

func newRefusals() *refusals {
	r := &refusals{seed: maphash.MakeSeed()}
	for i := range r.shards {
		r.shards[i].ids = make(map[string]*refused)
	}
	return r
}

// answered is an Observer's hook.
func (r *refusals) answered(_ context.Context, a gotsem.Answer) {
	if a.Outcome == gotsem.Granted || int(a.Outcome) >= outcomes {
		return
	}
	id := a.ID
	if a.Level < len(a.IDs) {
		id = a.IDs[a.Level]
	}
	if id == "" || len(id) > gotsem.MaxID {
		return
	}
	minute := time.Now().Unix() / 60
	s := &r.shards[maphash.String(r.seed, id)%uint64(len(r.shards))]
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.ids[id]
	if c == nil {
		if len(s.ids) >= refusedKept {
			s.forget(minute)
		}
		c = &refused{minute: minute}
		s.ids[id] = c
	}
	c.turn(minute)
	c.now[a.Outcome]++
}

// forget makes room: the id that was refused least goes.
func (s *refusalShard) forget(minute int64) {
	least, of := ^uint32(0), ""
	for id, c := range s.ids {
		c.turn(minute)
		if n := c.sum(); n < least {
			least, of = n, id
		}
	}
	delete(s.ids, of)
}

// turn begins a new minute if it is time for that.
func (c *refused) turn(minute int64) {
	switch minute - c.minute {
	case 0:
		return
	case 1:
		c.before = c.now
	default:
		c.before = [outcomes]uint32{}
	}
	c.minute, c.now = minute, [outcomes]uint32{}
}

func (c *refused) sum() (n uint32) {
	for o := range outcomes {
		n += c.now[o] + c.before[o]
	}
	return n
}

// of returns what of id was refused within the last one to two minutes, by outcome.
func (r *refusals) of(id string) (by map[string]uint32, sum uint32) {
	by = make(map[string]uint32)
	s := &r.shards[maphash.String(r.seed, id)%uint64(len(r.shards))]
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.ids[id]
	if c == nil {
		return by, 0
	}
	c.turn(time.Now().Unix() / 60)
	for o := range outcomes {
		if n := c.now[o] + c.before[o]; n > 0 {
			by[gotsem.Outcome(o).String()] = n
		}
	}
	return by, c.sum()
}

// worst returns the n ids that were refused most of late.
func (r *refusals) worst(n int) []string {
	type one struct {
		id  string
		sum uint32
	}
	var all []one
	minute := time.Now().Unix() / 60
	for i := range r.shards {
		s := &r.shards[i]
		s.mu.Lock()
		for id, c := range s.ids {
			c.turn(minute)
			if sum := c.sum(); sum == 0 {
				delete(s.ids, id)
			} else {
				all = append(all, one{id, sum})
			}
		}
		s.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b one) int { return int(int64(b.sum) - int64(a.sum)) })
	ids := make([]string, min(n, len(all)))
	for i := range ids {
		ids[i] = all[i].id
	}
	return ids
}
