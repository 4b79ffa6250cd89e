package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strconv"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncpool "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/mennanov/limiters"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

// Every contender gets a client of its own, with default options, and the same TTL.
const ttl = 30 * time.Second

// Names of the contenders, as the tables show them.
const (
	nameOurs       = "gotsem, TryAcquire"
	nameLeases     = "gotsem, leases (Try)"
	nameAsync      = "gotsem, asynchronous release"
	nameBaseline   = "baseline: the original gotsem's documented steps"
	nameBaselineAP = "baseline over go-redis AutoPipeline"
	nameEvalSha    = "two EVALSHA `return 1`"
	nameMinimal    = "minimal batcher (lower bound)"
	nameLimiter    = "mennanov/limiters v1.11.0"
	nameLock       = "bsm/redislock v0.9.4"
	nameRedsync    = "go-redsync v4.18.1"
	nameRueidis    = "rueidislock's steps, over rueidis v1.0.79"
)

// ours is the compatibility API: NewGotsem, TryAcquire, Release.
var ours = contender{nameOurs, func(e entry) (*runner, error) {
	rdb := e.client()
	sem := gotsem.NewGotsem(rdb, e.prefix, ttl, e.limit, nil, nil)
	return &runner{
		pair: func(id string) bool {
			r := sem.TryAcquire(background, id)
			if r.Acquired {
				sem.Release(background, id, r.SlotID)
			}
			return r.Acquired && !r.FailedOpen()
		},
		close: func() { _ = rdb.Close() },
	}, nil
}}

// ourLeases is the lease API: with a fence, a context, renewal, and grace after data
// loss, which no rival has.
var ourLeases = contender{nameLeases, func(e entry) (*runner, error) {
	rdb := e.client()
	sem, err := gotsem.New(gotsem.Options{Store: redisstore.New(rdb, e.prefix), Limit: e.limit, TTL: ttl})
	if err != nil {
		return nil, err
	}
	return &runner{
		pair: func(id string) bool {
			lease, err := sem.Try(background, id)
			if err != nil {
				return false
			}
			_ = lease.Release(background)
			return true
		},
		close: func() { _ = sem.Close(); _ = rdb.Close() },
	}, nil
}}

// asynchronous is ours with Options.AsyncRelease: a release returns at once.
var asynchronous = contender{nameAsync, func(e entry) (*runner, error) {
	rdb := e.client()
	sem, err := gotsem.New(gotsem.Options{Store: redisstore.New(rdb, e.prefix), Limit: e.limit, TTL: ttl, Outage: gotsem.Open, AsyncRelease: true})
	if err != nil {
		return nil, err
	}
	return &runner{
		pair: func(id string) bool {
			r := sem.TryAcquire(background, id)
			if r.Acquired {
				sem.Release(background, id, r.SlotID)
			}
			return r.Acquired && !r.FailedOpen()
		},
		// Calls go in order: what was asynchronous over before these has been carried.
		drain: func() {
			for range 3 {
				sem.ActiveCount(background, "other")
				if r := sem.TryAcquire(background, "other"); r.Acquired {
					sem.Release(background, "other", r.SlotID)
				}
			}
		},
		close: func() { _ = sem.Close(); _ = rdb.Close() },
	}, nil
}}

// baseline does what the documentation of the original gotsem says that it does, written by
// ourselves: an acquire is one script that evicts what has lapsed by the client's
// clock, compares the count with the limit, adds, and sets the key's end; a release
// is one that removes, and cleans up. Slot ids have 37 bytes.
type baseline struct {
	rdb    redis.Scripter
	prefix string
	limit  int
}

var (
	baselineAcquire = redis.NewScript(`
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', tonumber(ARGV[1]))
local active = redis.call('ZCARD', KEYS[1])
if active >= tonumber(ARGV[2]) then
	return {0, active}
end
redis.call('ZADD', KEYS[1], tonumber(ARGV[3]), ARGV[4])
redis.call('PEXPIRE', KEYS[1], tonumber(ARGV[5]))
return {1, active + 1}`)
	baselineRelease = redis.NewScript(`
local removed = redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', tonumber(ARGV[2]))
return {removed, redis.call('ZCARD', KEYS[1])}`)
)

func baselineSlotID() string {
	var b [12]byte
	_, _ = rand.Read(b[:])
	return fmt.Sprintf("%d%s", time.Now().UnixMilli(), hex.EncodeToString(b[:]))
}

func (s *baseline) tryAcquire(ctx context.Context, id string) (slotID string, ok bool) {
	slotID = baselineSlotID()
	now := time.Now().UnixMilli()
	got, err := baselineAcquire.Run(ctx, s.rdb, []string{s.prefix + id}, now, s.limit, now+ttl.Milliseconds(), slotID, ttl.Milliseconds()).Int64Slice()
	return slotID, err == nil && len(got) == 2 && got[0] == 1
}

func (s *baseline) release(ctx context.Context, id, slotID string) {
	_ = baselineRelease.Run(context.WithoutCancel(ctx), s.rdb, []string{s.prefix + id}, slotID, time.Now().UnixMilli()).Err()
}

func (s *baseline) pair(id string) bool {
	slotID, ok := s.tryAcquire(background, id)
	if ok {
		s.release(background, id, slotID)
	}
	return ok
}

var theBaseline = contender{nameBaseline, func(e entry) (*runner, error) {
	rdb := e.client()
	s := &baseline{rdb: rdb, prefix: e.prefix, limit: e.limit}
	return &runner{pair: s.pair, close: func() { _ = rdb.Close() }}, nil
}}

// baselineAutoPipelined is the baseline's way over a client that gathers commands.
var baselineAutoPipelined = contender{nameBaselineAP, func(e entry) (*runner, error) {
	rdb := e.client()
	ap, err := rdb.AutoPipeline()
	if err != nil {
		return nil, err
	}
	s := &baseline{rdb: ap, prefix: e.prefix, limit: e.limit}
	return &runner{pair: s.pair, close: func() { _ = ap.Close(); _ = rdb.Close() }}, nil
}}

// twoEvalSha is the bound for whoever asks one script call per operation: nothing is done.
var twoEvalSha = contender{nameEvalSha, func(e entry) (*runner, error) {
	rdb := e.client()
	sha, err := rdb.ScriptLoad(background, "return 1").Result()
	if err != nil {
		return nil, err
	}
	call := func(id string) bool {
		return rdb.EvalSha(background, sha, []string{e.prefix + id}, "f2Vz8fIhlSMu3Q4J1", "10", "30000", "30020", "1").Err() == nil
	}
	return &runner{
		pair: func(id string) bool {
			first := call(id)
			return call(id) && first
		},
		close: func() { _ = rdb.Close() },
	}, nil
}}

// limiter is mennanov/limiters' concurrent buffer: one per id, without its
// distributed lock, which is the fastest that it can be set up (and may refuse when
// there is room). A buffer lets one caller of a process ask at a time.
var limiter = contender{nameLimiter, func(e entry) (*runner, error) {
	rdb := e.client()
	buffers := make(map[string]*limiters.ConcurrentBuffer, len(e.ids))
	for _, id := range e.ids {
		back := limiters.NewConcurrentBufferRedis(rdb, e.prefix+id, ttl, limiters.NewSystemClock())
		buffers[id] = limiters.NewConcurrentBuffer(limiters.NewLockNoop(), back, int64(e.limit), limiters.NewStdLogger())
	}
	return &runner{
		pair: func(id string) bool {
			b, slotID := buffers[id], baselineSlotID()
			if b.Limit(background, slotID) != nil {
				return false
			}
			_ = b.Done(background, slotID)
			return true
		},
		close: func() { _ = rdb.Close() },
	}, nil
}}

// Those below are locks: a limit of one, whatever is asked for.

var lockOfBSM = contender{nameLock, func(e entry) (*runner, error) {
	rdb := e.client()
	locker := redislock.New(rdb)
	return &runner{
		pair: func(id string) bool {
			lock, err := locker.Obtain(background, e.prefix+id, ttl, nil)
			if err != nil {
				return false
			}
			_ = lock.Release(background)
			return true
		},
		close: func() { _ = rdb.Close() },
	}, nil
}}

var lockOfRedsync = contender{nameRedsync, func(e entry) (*runner, error) {
	rdb := e.client()
	rs := redsync.New(redsyncpool.NewPool(rdb))
	return &runner{
		pair: func(id string) bool {
			m := rs.NewMutex(e.prefix+id, redsync.WithExpiry(ttl))
			if m.TryLock() != nil {
				return false
			}
			_, _ = m.Unlock()
			return true
		},
		close: func() { _ = rdb.Close() },
	}, nil
}}

// lockOfRueidis stands in for rueidislock, which the module proxy does not serve: what
// its documentation says that a try does, by default, written by ourselves. It sets
// three keys, if they are not there, and has the lock if it got two of them. It also
// watches its keys and extends them, which is left out here. rueidis sends what
// callers ask at the same time together, by itself.
var lockOfRueidis = contender{nameRueidis, func(e entry) (*runner, error) {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{e.addr}})
	if err != nil {
		return nil, err
	}
	unlock := rueidis.NewLuaScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`)
	return &runner{
		pair: func(id string) bool {
			const keys, majority = 3, 2
			token := baselineSlotID()
			var names [keys]string
			var sets [keys]rueidis.Completed
			for i := range names {
				names[i] = e.prefix + strconv.Itoa(i) + ":" + id
				sets[i] = client.B().Set().Key(names[i]).Value(token).Nx().PxMilliseconds(ttl.Milliseconds()).Build()
			}
			var mine []rueidis.LuaExec
			for i, r := range client.DoMulti(background, sets[:]...) {
				if err := r.Error(); err == nil {
					mine = append(mine, rueidis.LuaExec{Keys: names[i : i+1], Args: []string{token}})
				} else if !rueidis.IsRedisNil(err) {
					panic(fmt.Errorf("rueidis: %w", err))
				}
			}
			if len(mine) > 0 {
				unlock.ExecMulti(background, client, mine...)
			}
			return len(mine) >= majority
		},
		close: client.Close,
	}, nil
}}
