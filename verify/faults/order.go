package faults

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

// Ask is a question of one slot id that was answered: wait, or yes.
type Ask struct {
	Who, ID, Slot string
	Ticket        uint64        // 0: it never stood in line, as far as its process knows
	First         time.Duration // by now: when the slot id was asked for first
	Sent, Back    time.Duration // of this question
	Granted       bool
	Since         time.Duration // granted: it was not yet at that time

	asked uint64 // store.Decision.PollID
}

// watched is a store whose answers to those who wait are told to somebody.
type watched struct {
	*redisstore.Store
	tell func(Ask)

	mu   sync.Mutex
	open map[string]Ask // the latest, by slot id
	done map[string]bool
}

func watch(st *redisstore.Store, who string, tell func(Ask)) *watched {
	return &watched{Store: st, tell: func(a Ask) { a.Who = who; tell(a) }, open: make(map[string]Ask), done: make(map[string]bool)}
}

// Acquire implements store.Store.
func (w *watched) Acquire(ctx context.Context, r *store.Request) (store.Decision, error) {
	id, slot := r.ID, r.SlotID
	sent := now()
	w.mu.Lock()
	a, ok := w.open[slot]
	if !ok {
		a = Ask{ID: id, Slot: slot, First: sent, Since: sent}
		w.open[slot] = a
	}
	w.mu.Unlock()
	d, err := w.Store.Acquire(ctx, r)
	a.Sent, a.Back = sent, now()
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err != nil, w.done[slot]: // asked again after a grant that came late
		return d, err
	case d.Outcome == store.Granted:
		a.Granted = true
		w.done[slot] = true
		delete(w.open, slot)
	case d.Ticket > 0 && (d.Outcome == store.Waiting || d.Outcome == store.Recovering):
		a.Ticket, a.Since, a.asked = d.Ticket, a.Back, d.PollID
		w.open[slot] = a
	default:
		delete(w.open, slot)
		return d, err
	}
	w.tell(a)
	return d, err
}

// OnWake implements store.Waker: a grant that is told, after the latest question, is an
// answer too.
func (w *watched) OnWake(wake func(store.Wakeup)) (stop func()) {
	return w.Store.OnWake(func(word store.Wakeup) {
		w.mu.Lock()
		a, ok := w.open[word.SlotID]
		if ok = ok && word.Fence > 0 && word.PollID == a.asked && !w.done[word.SlotID]; ok {
			w.done[word.SlotID] = true
			delete(w.open, word.SlotID)
			a.Granted, a.Sent, a.Back = true, now(), now()
			w.tell(a)
		}
		w.mu.Unlock()
		wake(word)
	})
}

// steady is the longest that two questions of a waiter may lie apart for it to have stood
// in line all the time in between: less than a grant may wait to be claimed, so that it
// cannot have been granted and dropped, and less than its place lives.
const steady = 1500 * time.Millisecond

// Stretch is a stretch of time, by now.
type Stretch struct{ From, To time.Duration }

// Overtaken says which grants went past somebody who had joined before, and stood in line
// from before the grant until after it, by questions that were answered "wait" on either
// side. judged counts the pairs of a grant and a waiter of which that could be said
// either way. Losses are when Redis lost its memory.
//
// What the protocol allows, and is not judged:
//   - going past a waiter who did not ask for longer than steady: it was cut off or
//     stopped, and has lost its place, or a grant that it did not claim in time;
//   - going past one who had been granted before, and had not heard of it when
//     Redis forgot the grant: it comes back to its place in line. So no loss may lie
//     between the two questions.
//
// That Redis forgot the line is no excuse: nothing is granted before the grace is over,
// and whoever can ask has come back by then, with its ticket.
func Overtaken(asks []Ask, losses []Stretch) (judged int, wrong []string) {
	byID := make(map[string][]Ask)
	for _, a := range asks {
		byID[a.ID] = append(byID[a.ID], a)
	}
	for id, of := range byID {
		slices.SortFunc(of, func(a, b Ask) int { return compare(a.Sent, b.Sent) })
		waits := make(map[string][]Ask)
		var who []string
		for _, a := range of {
			if a.Granted {
				continue
			}
			if waits[a.Slot] == nil {
				who = append(who, a.Slot)
			}
			waits[a.Slot] = append(waits[a.Slot], a)
		}
		for _, y := range of {
			if !y.Granted {
				continue
			}
			for _, slot := range who {
				x := waits[slot]
				if slot == y.Slot || x[0].Back > y.Since || x[len(x)-1].Sent < y.Back || !stood(x, y.Since, y.Back, losses) {
					continue
				}
				if y.Ticket == 0 && x[0].Back > y.First {
					continue // either may have come first
				}
				judged++
				if y.Ticket == 0 || x[0].Ticket < y.Ticket {
					wrong = append(wrong, fmt.Sprintf("%s: %s of %s was granted at %v past %s of %s, which waited from %v (tickets %d and %d)",
						id, y.Slot, y.Who, y.Back, slot, x[0].Who, x[0].Back, y.Ticket, x[0].Ticket))
				}
			}
		}
	}
	return judged, wrong
}

// stood reports whether one who asked so stood in line from before since until after back.
func stood(asks []Ask, since, back time.Duration, losses []Stretch) bool {
	first := -1
	for i, a := range asks {
		if a.Back <= since {
			first = i
		}
	}
	if first < 0 {
		return false
	}
	for i := first; ; i++ {
		if asks[i].Sent >= back {
			return !slices.ContainsFunc(losses, func(l Stretch) bool { return l.From <= asks[i].Back && l.To >= asks[first].Sent })
		}
		if i+1 == len(asks) || asks[i+1].Back-asks[i].Sent > steady {
			return false
		}
	}
}

func compare(a, b time.Duration) int { return int(min(max(a-b, -1), 1)) }

// orderSurvivesFaults has more waiters than slots, and Redis forget the line, lose its
// connections, and answers get lost, doubled and late.
func orderSurvivesFaults(c *checker) error {
	const limit, processes, length = 2, 3, 4500 * time.Millisecond
	srv := redistest.Start(c)
	referee := NewReferee()
	ctx, cancel := context.WithTimeout(c.ctx, length)
	defer cancel()
	load := Load{
		IDs: []string{"hot"}, Workers: 6, TryShare: 10, Patience: time.Minute,
		HoldLeast: 20 * time.Millisecond, HoldMost: 150 * time.Millisecond, Pause: 10 * time.Millisecond,
	}
	var all sync.WaitGroup
	var relays []*redistest.Relay
	for i := range processes {
		relay := redistest.NewRelay(c, srv.Addr())
		relays = append(relays, relay)
		rdb := redis.NewClient(&redis.Options{Addr: relay.Addr()})
		c.Cleanup(func() { _ = rdb.Close() })
		who := fmt.Sprint("p", i)
		st := redisstore.New(rdb, "check:")
		sem, err := gotsem.New(gotsem.Options{
			Store: watch(st, who, referee.Asked), Limit: limit, Queue: 100, TTL: time.Second, Grace: 1200 * time.Millisecond, StoreTimeout: time.Second, Outage: gotsem.Closed,
		})
		if err != nil {
			return err
		}
		c.Cleanup(func() { _ = sem.Close(); _ = st.Close() })
		if _, err := c.take(sem, fmt.Sprint("warm", i)); err != nil {
			return err
		}
		all.Go(func() { load.Run(ctx, sem, who, uint64(i), referee, nil) })
	}
	var losses []Stretch
	for n := 0; ctx.Err() == nil; n++ {
		relay := relays[n%processes]
		switch n % 11 {
		case 1:
			if n == 12 {
				from := now()
				_, _ = srv.Do("FLUSHALL")
				losses = append(losses, Stretch{from, now()})
			}
		case 3:
			_, _ = srv.Do("CLIENT", "KILL", "TYPE", "pubsub")
		case 5:
			_, _ = srv.Do("CLIENT", "KILL", "TYPE", "normal")
		case 7:
			relay.DropReplies(1)
		case 8:
			relay.DoubleReplies(1, redistest.AtOnce)
		case 9:
			relay.SetDelay(time.Duration(n%4) * 10 * time.Millisecond)
		}
		sleep(ctx, 50*time.Millisecond)
	}
	all.Wait()
	judged, wrong := Overtaken(referee.Asks(), losses)
	wrong = append(wrong, Judge(referee.Spans(), limit)...)
	c.note("%d leases, %d pairs of a grant and a waiter judged", len(referee.Spans()), judged)
	switch {
	case len(wrong) > 0:
		return errors.New(strings.Join(wrong[:min(3, len(wrong))], "; "))
	case judged < 100:
		return fmt.Errorf("only %d pairs of a grant and a waiter could be judged", judged)
	}
	return nil
}
