package redisstore

import (
	"context"
	"fmt"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

// What is asked seldom: each goes by itself, and not by a batcher.

const yes, no = "1", "0"

// Usage implements store.Store.
func (s *Store) Usage(ctx context.Context, id string, limit int) (store.Usage, error) {
	reply, err := s.run(ctx, usageScript, id, 0, limit, no)
	if err != nil {
		return store.Usage{}, err
	}
	u := store.Usage{Active: integer(reply, 1), Limit: integer(reply, 2), LimitSet: integer(reply, 3) == 1, Waiting: integer(reply, 4), NextIn: ms(int64(integer(reply, 5)))}
	if len(reply) > 6 {
		text, _ := reply[6].(string)
		_, _ = fmt.Sscan(text, &u.Line[0], &u.Line[1], &u.Line[2], &u.Line[3])
	}
	return u, nil
}

// Clear implements store.Store. It takes a page at a time, until none is left: what is
// granted or renewed between two pages is taken too, but not for ever.
func (s *Store) Clear(ctx context.Context, c store.Clear) (taken int, err error) {
	grace := s.exec.graces.any()
	ttl := min(max(c.TTL, time.Millisecond), store.MaxTTL).Milliseconds()
	for pages, last := 1, no; pages > 0; pages-- {
		if pages == 1 && taken > 0 {
			last = yes
		}
		reply, err := s.run(ctx, clearScript, c.ID, grace, c.SlotID, ttl, last)
		if err != nil {
			return taken, err
		}
		s.exec.wakeAll(reply[min(3, len(reply)):])
		left := integer(reply, 2)
		switch {
		case left == 0:
			pages = 1
		case taken == 0:
			pages += 2 * (left/clearPage + 1)
		}
		taken += integer(reply, 1)
	}
	return taken, nil
}

// clearPage is how many slots a call of clear.lua takes at most.
const clearPage = 1000

// SetLimit implements store.LimitSetter.
func (s *Store) SetLimit(ctx context.Context, id string, limit int) error {
	if limit < 0 {
		return fmt.Errorf("redisstore: limit %d of %q is negative: 0 pauses, ResetLimit takes a set limit off", limit, id)
	}
	if err := store.CheckLimit(limit); err != nil {
		return err
	}
	return s.limit(ctx, id, limit)
}

// ResetLimit implements store.LimitSetter.
func (s *Store) ResetLimit(ctx context.Context, id string) error { return s.limit(ctx, id, "") }

func (s *Store) limit(ctx context.Context, id string, limit any) error {
	reply, err := s.run(ctx, limitScript, id, s.exec.graces.any(), limit)
	if err != nil {
		return err
	}
	s.exec.wakeAll(reply[min(2, len(reply)):])
	return nil
}

// Peers implements store.PeerCounter.
func (s *Store) Peers(ctx context.Context, ttl time.Duration) (int, error) {
	if s.bad != nil {
		return 0, s.bad
	}
	n, err := s.exec.eval(ctx, peersScript, []string{peersKey(s.prefix)}, s.token, ttl.Milliseconds(), "1", "").Int()
	return n, classify(err)
}

// Probe implements store.Prober.
func (s *Store) Probe(ctx context.Context, id string) error {
	if err := s.check(ctx, id, "-"); err != nil {
		return err
	}
	return classify(s.exec.eval(ctx, probeScript, []string{keysOf(s.prefix, id).probe()}).Err())
}

// OnWake implements store.Waker. The subscription lives as long as somebody wants
// to be woken.
func (s *Store) OnWake(wake func(store.Wakeup)) (stop func()) {
	if s.bad != nil { // nothing will ever be granted
		return func() {}
	}
	return s.subscriber.add(wake)
}

// run runs a script on one id, alone: for what is asked seldom.
func (s *Store) run(ctx context.Context, sc *script, id string, grace int64, args ...any) ([]any, error) {
	if err := s.check(ctx, id, "-"); err != nil {
		return nil, err
	}
	return s.exec.run(ctx, sc, id, grace, args...)
}
