package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

// What is asked seldom: each goes by itself, and not by a batcher.

const yes, no = "1", "0"

// Usage implements store.Store.
func (s *Store) Usage(ctx context.Context, id string, limit int) (store.Usage, error) {
	reply, err := s.run(ctx, usageScript, id, 0, limit)
	if err != nil {
		return store.Usage{}, err
	}
	return usageOf(reply, 0), nil
}

// usageOf reads what usage.lua says of the i-th of the ids that it was asked about.
func usageOf(reply []any, i int) (u store.Usage) {
	at := 1 + 7*i
	if len(reply) < at+7 {
		return u
	}
	u = store.Usage{Active: integer(reply, at), Limit: integer(reply, at+1), LimitSet: integer(reply, at+2) == 1, Waiting: integer(reply, at+3), NextIn: ms(int64(integer(reply, at+4)))}
	classes, _ := reply[at+5].(string)
	_, _ = fmt.Sscan(classes, &u.Line[0], &u.Line[1], &u.Line[2], &u.Line[3])
	head, _ := reply[at+6].(string)
	if _, since, ok := readStamp(head); ok {
		u.HeadAge = ms(max(replyTime(reply)-since, 1))
	}
	return u
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

// ChangeLimit implements store.LimitSetter.
func (s *Store) ChangeLimit(ctx context.Context, c store.LimitChange) (store.Override, error) {
	if err := c.Check(); err != nil {
		return store.Override{}, fmt.Errorf("redisstore: %w", err)
	}
	what, expected := "set", ""
	if c.Reset {
		what, c.For = "off", 0
	}
	if c.OnlyIf {
		expected = strconv.FormatUint(c.Version, 10)
	}
	reply, err := s.run(ctx, limitScript, c.ID, s.exec.graces.any(), what, c.Limit, c.For.Milliseconds(), c.By, expected)
	if err != nil {
		return store.Override{}, err
	}
	now := override(reply)
	if integer(reply, 1) == 0 {
		return now, &store.LimitConflict{ID: c.ID, Want: c.Version, Now: now}
	}
	s.exec.wakeAll(reply[min(7, len(reply)):])
	return now, nil
}

// LimitOf implements store.LimitSetter.
func (s *Store) LimitOf(ctx context.Context, id string) (store.Override, error) {
	reply, err := s.run(ctx, limitScript, id, 0, "look", 0, 0, "", "")
	if err != nil {
		return store.Override{}, err
	}
	return override(reply), nil
}

// override reads what limit.lua says is set.
func override(reply []any) (o store.Override) {
	if len(reply) < 7 {
		return o
	}
	o.Limit, o.Version = integer(reply, 2), uint64(integer(reply, 3))
	o.Age, o.Left = ms(int64(integer(reply, 4))), ms(int64(integer(reply, 5)))
	o.By, _ = reply[6].(string)
	return o
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
	return s.exec.run(ctx, sc, []string{id}, grace, args...)
}
