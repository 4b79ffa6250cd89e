package redisstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem/store"
)

// trialTTL is how long what a trial takes lasts, should its last step not be reached.
const trialTTL = 10 * time.Second

// trial makes one real call of each verb, on an id of its own, and says what is refused.
// Only that shows that a call works: rights may not be looked up, a proxy may not know a
// command, and a server in cluster mode refuses what a single one takes. It goes on
// after a refusal, so that all of them are told at once.
//
// Nothing is left behind. The prefix is its own too, below the store's, since a limit
// that is set makes the marker of its prefix: made by us, it would tell others that
// this server's memory is whole.
func (c *checker) trial(ctx context.Context, id, at string) {
	s, t := New(c.s.client.UniversalClient, c.trialPrefix()), trial{checker: c, at: at}
	defer func() { _ = s.Close() }()
	s.exec.registry.said.Store(math.MaxInt64) // its owner is not registered
	slot := func(n int) string { return fmt.Sprintf("%s-%d", s.token, n) }
	request := func(n int) *store.Request {
		return &store.Request{ID: id, SlotID: slot(n), Weight: 1, Limit: 1, Queue: 1, TTL: trialTTL, Owner: "gotsem doctor"}
	}
	release := func(verb string, n int, bare bool) {
		freed, err := s.Release(ctx, &store.Release{ID: id, SlotID: slot(n), Plain: bare})
		t.expect(verb, freed, freed, err)
	}

	d, err := s.Acquire(ctx, request(1))
	if t.expect("acquire", d.Outcome == store.Granted, d, err) {
		d, err = s.Acquire(ctx, request(2))
		if t.expect("wait in line", d.Outcome == store.Waiting, d, err) {
			line, err := s.Waiters(ctx, id, 10)
			t.expect("waiters", len(line) == 1, line, err)
			release("leave the line", 2, false)
		}
		renewed := s.Renew(ctx, []store.Renewal{{ID: id, SlotID: slot(1), TTL: trialTTL, Weight: 1, Limit: 1, Fence: d.Fence, Trust: time.Second}})
		t.expect("renew", true, renewed, renewed[0].Err)
		u, err := s.Usage(ctx, id, 1)
		t.expect("usage", u.Active == 1, u, err)
		holders, _, err := s.Holders(ctx, id, "", 10)
		t.expect("holders", len(holders) == 1, holders, err)
		if _, err := s.ChangeLimit(ctx, store.LimitChange{ID: id, Limit: 3}); t.expect("set a limit", true, nil, err) {
			u, err = s.Usage(ctx, id, 1)
			t.expect("read a limit", u.Limit == 3, u, err)
			_, err = s.ChangeLimit(ctx, store.LimitChange{ID: id, Reset: true})
			t.expect("reset a limit", true, nil, err)
		}
		release("release", 1, false)
	}
	bare := request(3)
	bare.Plain, bare.Queue, bare.Owner = true, 0, ""
	d, err = s.Acquire(ctx, bare)
	if t.expect("acquire (TryAcquire)", d.Outcome == store.Granted, d, err) {
		release("release (TryAcquire)", 3, true)
	}
	if d, err = s.Acquire(ctx, request(4)); err == nil && d.Outcome == store.Granted {
		n, err := s.Clear(ctx, store.Clear{ID: id, TTL: time.Millisecond})
		t.expect("clear", n == 1, n, err)
	}

	k := keysOf(s.prefix, id)
	for _, key := range []string{k.s, k.m, k.q, k.l, markerKey(s.prefix, false, 0), markerKey(s.prefix, true, k.slot)} { // one by one: on a Cluster one call has one slot
		if err := c.s.client.Del(ctx, key).Err(); err != nil {
			t.refused("remove what was tried", err)
			break
		}
	}
	if !t.failed {
		c.say("call", true, "%sacquire, wait, renew, release, usage, holders, limit and clear work", at)
	}
}

// trial is what came of the calls of one.
type trial struct {
	*checker
	at     string
	failed bool
}

func (t *trial) refused(verb string, err error) {
	t.failed = true
	t.say("call", false, "%s%s: %v", t.at, verb, err)
}

// expect reports whether a call had the answer that it should have.
func (t *trial) expect(verb string, good bool, got any, err error) bool {
	switch {
	case err != nil:
		t.refused(verb, err)
	case !good:
		t.refused(verb, fmt.Errorf("the answer is wrong: %+v", got))
	}
	return err == nil && good
}

// trialPrefix is that of the keys of a trial.
func (c *checker) trialPrefix() string { return c.s.prefix + "gotsem-doctor-" + c.s.token + ":" }

// trialID returns an id that node keeps; on a single server any.
func (c *checker) trialID(ctx context.Context, node redis.UniversalClient) string {
	id := "trial"
	cluster, ok := c.s.client.UniversalClient.(*redis.ClusterClient)
	one, single := node.(*redis.Client)
	if !ok || !single {
		return id
	}
	for n := range 10_000 {
		try := fmt.Sprintf("%s-%d", id, n)
		if master, err := cluster.MasterForKey(ctx, c.trialPrefix()+try); err == nil && master.Options().Addr == one.Options().Addr {
			return try
		}
	}
	return id // it serves next to no slots
}

// tried names each command that is refused when it is really given, on a key of its own
// that is gone afterwards. It is what remains where a user may not look up rights.
func (c *checker) tried(ctx context.Context, node redis.UniversalClient, need []string, id string) (missing []string, err error) {
	// What changes a connection of the pool, or is tried by push and by the calls.
	leave := []string{"subscribe", "unsubscribe", "ssubscribe", "sunsubscribe", "spublish", "readonly", "hello", "client|setinfo", "command", "del", "pexpireat"}
	key := keysOf(c.trialPrefix(), id).probe()
	ask := func(name string) {
		args := dryRun(name, c.s.prefix)
		for i, a := range args {
			if a == c.s.prefix+"x" {
				args[i] = key
			}
		}
		if e := node.Do(ctx, args...).Err(); e != nil && isRight(e) {
			missing = append(missing, "+"+name)
		} else if e != nil && !errors.Is(e, redis.Nil) && !isAnswer(e) {
			err = e
		}
	}
	for _, name := range need {
		if !slices.Contains(leave, name) {
			ask(name)
		}
	}
	ask("pexpireat") // into the past: the key is gone
	ask("del")
	return missing, err
}

// isRight reports whether an answer says that the user lacks a right to a command.
func isRight(err error) bool {
	return redis.HasErrorPrefix(err, "NOPERM") && strings.Contains(err.Error(), "command")
}

// isAnswer reports whether err is an answer of Redis.
func isAnswer(err error) bool {
	var answer redis.Error
	return errors.As(err, &answer)
}
