package main

import (
	"context"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// least is a combiner and nothing else: the ceiling of whatever gathers calls and wakes
// those who made them, on the machine that it runs on. Nobody should use it. It knows no
// ctx, no deadline, no error, no retry and no outage; its slots do not lapse, a slot id is
// a count, a line or a limit set by hand is not looked for, and a late reply may be
// taken for another one's. What it shares with gotsem is how it gathers: at most three
// trips at a time, at most 256 operations in one, led by one of those who wait.
type least struct {
	rdb    *redis.Client
	prefix string
	limit  string
	slots  atomic.Int64
	ops    sync.Pool // of *leastOp

	mu        sync.Mutex
	waiting   []*leastOp
	flying    int
	gathering bool
	arrived   atomic.Int32
}

type leastOp struct {
	key, slot string
	release   bool
	granted   bool
	turn      chan bool // true: lead
}

// Both scripts: KEYS are those of the releases, then those of the acquires. ARGV is how
// many releases, the limit, and the slots.
var (
	leastOneID = redis.NewScript(`
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
	leastManyIDs = redis.NewScript(`
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

func (l *least) do(o *leastOp) {
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
func (l *least) next() {
	if len(l.waiting) > 0 && l.flying < 3 && !l.gathering {
		l.flying++
		l.gathering = true
		l.waiting[0].turn <- true
	}
}

// lead makes a trip. mu is held, and given back.
func (l *least) lead(self *leastOp, gather bool) {
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
	batch := append([]*leastOp(nil), l.waiting[:n]...)
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

func (l *least) ask(batch []*leastOp) {
	var releases, acquires []*leastOp
	one := true
	for _, o := range batch {
		one = one && o.key == batch[0].key
		if o.release {
			releases = append(releases, o)
		} else {
			acquires = append(acquires, o)
		}
	}
	script, keys := leastOneID, 1
	if !one {
		script, keys = leastManyIDs, len(batch)
	}
	args := make([]any, 0, 5+2*len(batch))
	args = append(args, "evalsha", script.Hash(), keys)
	for _, o := range append(releases, acquires...)[:keys] {
		args = append(args, &o.key)
	}
	args = append(args, strconv.Itoa(len(releases)), l.limit)
	for _, ops := range [][]*leastOp{releases, acquires} {
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

func (l *least) tryAcquire(id string) (*leastOp, bool) {
	o := l.ops.Get().(*leastOp)
	o.key, o.slot, o.release = l.prefix+id, "f2Vz8fI"+strconv.FormatInt(l.slots.Add(1), 36), false
	l.do(o)
	return o, o.granted
}

func (l *least) release(o *leastOp) {
	o.release = true
	l.do(o)
	l.ops.Put(o)
}

func (l *least) pair(id string) bool {
	o, granted := l.tryAcquire(id)
	if granted {
		l.release(o)
	} else {
		l.ops.Put(o)
	}
	return granted
}

func newLeast(rdb *redis.Client, prefix string, limit int) (*least, error) {
	for _, s := range []*redis.Script{leastOneID, leastManyIDs} {
		if err := s.Load(context.Background(), rdb).Err(); err != nil {
			return nil, err
		}
	}
	return &least{
		rdb: rdb, prefix: prefix, limit: strconv.Itoa(limit),
		ops: sync.Pool{New: func() any { return &leastOp{turn: make(chan bool, 1)} }},
	}, nil
}

var theLeast = racer{nameLeast, func(e entry) (*runner, error) {
	rdb := e.client()
	l, err := newLeast(rdb, e.prefix, e.limit)
	if err != nil {
		return nil, err
	}
	return &runner{pair: l.pair, close: func() { _ = rdb.Close() }}, nil
}}
