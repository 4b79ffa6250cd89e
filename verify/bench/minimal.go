package main

import (
	"context"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// minimal is a minimal batcher: the lower bound, on the machine that it runs on, of what
// grouping calls and waking their callers costs. Nobody should use it. It knows no ctx,
// deadline, error, retry or outage; its slots do not expire and their ids are a count; it
// looks for no line and no override, and may take a late reply for another one's. It
// groups as gotsem does: at most three batches in flight, at most 256 operations in one,
// each run by one of those who wait.
type minimal struct {
	rdb    *redis.Client
	prefix string
	limit  string
	slots  atomic.Int64
	ops    sync.Pool // of *minimalOp

	mu        sync.Mutex
	waiting   []*minimalOp
	flying    int
	gathering bool
	arrived   atomic.Int32
}

type minimalOp struct {
	key, slot string
	release   bool
	granted   bool
	turn      chan bool // true: lead
}

// Both scripts: KEYS are those of the releases, then those of the acquires. ARGV is how
// many releases, the limit, and the slots.
var (
	minimalOneID = redis.NewScript(`
local call, releases, key = redis.call, ARGV[1] + 0, KEYS[1]
if releases > 0 then call('ZREM', key, unpack(ARGV, 3, 2 + releases)) end
local acquires = #ARGV - 2 - releases
local active = call('ZCARD', key)
local give = math.min(acquires, ARGV[2] - active)
if give <= 0 then return 0 end
local expiry, add = string.format('%.0f', call('TIME')[1] * 1000 + 30000), {}
for i = 1, give do
	add[2 * i - 1], add[2 * i] = expiry, ARGV[2 + releases + i]
end
call('ZADD', key, unpack(add))
if active == 0 then call('PEXPIREAT', key, expiry) end
return give`)
	minimalManyIDs = redis.NewScript(`
local call, releases, limit = redis.call, ARGV[1] + 0, ARGV[2] + 0
for i = 1, releases do call('ZREM', KEYS[i], ARGV[2 + i]) end
local expiry, refused = string.format('%.0f', call('TIME')[1] * 1000 + 30000), {}
for i = releases + 1, #KEYS do
	local active = call('ZCARD', KEYS[i])
	if active < limit then
		call('ZADD', KEYS[i], expiry, ARGV[2 + i])
		if active == 0 then call('PEXPIREAT', KEYS[i], expiry) end
	else
		refused[#refused + 1] = i - releases
	end
end
return refused`)
)

func (l *minimal) do(o *minimalOp) {
	l.mu.Lock()
	l.waiting = append(l.waiting, o)
	l.arrived.Store(int32(len(l.waiting)))
	if l.flying < 3 && !l.gathering {
		l.flying++
		l.lead(o, l.flying > 1)
		return
	}
	l.mu.Unlock()
	if <-o.turn {
		l.mu.Lock()
		l.lead(o, true)
	}
}

// next has somebody lead the next trip. mu is held.
func (l *minimal) next() {
	if len(l.waiting) > 0 && l.flying < 3 && !l.gathering {
		l.flying++
		l.gathering = true
		l.waiting[0].turn <- true
	}
}

// lead makes a trip. mu is held, and given back.
func (l *minimal) lead(self *minimalOp, gather bool) {
	if gather {
		l.gathering = true
		l.mu.Unlock()
		for n, still := l.arrived.Load(), 0; n < 64 && still < 8; {
			runtime.Gosched()
			if m := l.arrived.Load(); m != n {
				n, still = m, 0
			} else {
				still++
			}
		}
		l.mu.Lock()
	}
	l.gathering = false
	n := min(len(l.waiting), 256)
	batch := append([]*minimalOp(nil), l.waiting[:n]...)
	l.waiting = append(l.waiting[:0], l.waiting[n:]...)
	l.next()
	l.mu.Unlock()
	l.ask(batch)
	l.mu.Lock()
	l.flying--
	l.next()
	l.mu.Unlock()
	for _, o := range batch {
		if o != self {
			o.turn <- false
		}
	}
}

func (l *minimal) ask(batch []*minimalOp) {
	var releases, acquires []*minimalOp
	one := true
	for _, o := range batch {
		one = one && o.key == batch[0].key
		if o.release {
			releases = append(releases, o)
		} else {
			acquires = append(acquires, o)
		}
	}
	script, keys := minimalOneID, 1
	if !one {
		script, keys = minimalManyIDs, len(batch)
	}
	args := make([]any, 0, 5+2*len(batch))
	args = append(args, "evalsha", script.Hash(), keys)
	for _, o := range append(releases, acquires...)[:keys] {
		args = append(args, &o.key)
	}
	args = append(args, strconv.Itoa(len(releases)), l.limit)
	for _, ops := range [][]*minimalOp{releases, acquires} {
		for _, o := range ops {
			args = append(args, &o.slot)
		}
	}
	cmd := redis.NewCmd(background, args...)
	if err := l.rdb.Process(background, cmd); err != nil {
		panic(err)
	}
	if give, ok := cmd.Val().(int64); ok {
		for i, o := range acquires {
			o.granted = int64(i) < give
		}
		return
	}
	for _, o := range acquires {
		o.granted = true
	}
	for _, i := range cmd.Val().([]any) {
		acquires[i.(int64)-1].granted = false
	}
}

func (l *minimal) tryAcquire(id string) (*minimalOp, bool) {
	o := l.ops.Get().(*minimalOp)
	o.key, o.slot, o.release = l.prefix+id, "f2Vz8fI"+strconv.FormatInt(l.slots.Add(1), 36), false
	l.do(o)
	return o, o.granted
}

func (l *minimal) release(o *minimalOp) {
	o.release = true
	l.do(o)
	l.ops.Put(o)
}

func (l *minimal) pair(id string) bool {
	o, granted := l.tryAcquire(id)
	if granted {
		l.release(o)
	} else {
		l.ops.Put(o)
	}
	return granted
}

func newMinimal(rdb *redis.Client, prefix string, limit int) (*minimal, error) {
	for _, s := range []*redis.Script{minimalOneID, minimalManyIDs} {
		if err := s.Load(context.Background(), rdb).Err(); err != nil {
			return nil, err
		}
	}
	return &minimal{
		rdb: rdb, prefix: prefix, limit: strconv.Itoa(limit),
		ops: sync.Pool{New: func() any { return &minimalOp{turn: make(chan bool, 1)} }},
	}, nil
}

var theMinimal = contender{nameMinimal, func(e entry) (*runner, error) {
	rdb := e.client()
	l, err := newMinimal(rdb, e.prefix, e.limit)
	if err != nil {
		return nil, err
	}
	return &runner{pair: l.pair, close: func() { _ = rdb.Close() }}, nil
}}
