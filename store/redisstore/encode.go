package redisstore

import (
	"context"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem/internal/plainpath"
)

// codec makes calls into commands, and replies into answers. It knows the scripts and
// the keys, and what is to be remembered from one call to the next; it sends nothing.
type codec struct {
	prefix     string
	head       string // of headers, after the first field
	shardHead  string // likewise, where waiters are woken by shard channels
	oneMarker  string // the marker where there is one server
	cluster    bool   // the client knows the nodes of a Cluster
	perID      bool   // keys of different ids do not go into one call
	atMostOnce bool   // a command is sent once: a slot id that was never asked for cannot be there
	general    bool   // every call goes by the general scripts: for tests
	clocks     clocks
	bySlot     atomic.Bool // keys go by cluster slot: see form.go
	calls      atomic.Uint64
	swept      atomic.Int64 // when, Unix ns
	special    atomic.Int64 // until then, Unix ns, plain calls name the keys of meta
	metas      metas
}

func newCodec(prefix, token string, c *client) *codec {
	cd := &codec{
		prefix: prefix, head: " 0 " + token + " ", shardHead: " 1 " + token + " ", oneMarker: markerKey(prefix, false, 0),
		cluster: c.cluster, perID: c.perID, atMostOnce: c.once != nil, general: plainpath.Off.Load(),
	}
	cd.bySlot.Store(c.cluster && !c.told)
	cd.clocks.local = !cd.slotted()
	return cd
}

// slotted reports whether keys go by cluster slot.
func (cd *codec) slotted() bool { return cd.bySlot.Load() }

// goBySlot has keys go by cluster slot from now on.
func (cd *codec) goBySlot() {
	cd.clocks.apart()
	cd.bySlot.Store(true)
}

// sharded reports whether waiters are woken by shard channels, which a client that knows
// the nodes of a Cluster listens to. Any other is woken on the channel of its process.
func (cd *codec) sharded() bool { return cd.cluster && cd.slotted() }

// Arguments that are the same in every call.
var (
	argEval, argEvalsha = "eval", "evalsha"
	argSmall            = [...]int64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
)

// weigh returns n if it is so, else 0.
func weigh(so bool, n int64) int64 {
	if so {
		return n
	}
	return 0
}

func bits(one, two bool) (n int64) {
	if one {
		n++
	}
	if two {
		n += 2
	}
	return n
}

// num makes n an argument.
func (f *frame) num(n int64) *int64 {
	if n >= 0 && n < int64(len(argSmall)) {
		return &argSmall[n]
	}
	f.nums = append(f.nums, n) // arguments may point into what it was before it grew
	return &f.nums[len(f.nums)-1]
}

// command builds the command of c. With text Redis compiles the script, which it
// needs after a restart or a fail-over.
func (cd *codec) command(ctx context.Context, f *frame, c *call, text bool) *redis.Cmd {
	sc := c.verb.script()
	c.sent = time.Now()
	c.number = int64(cd.calls.Add(1) % callNumbers)
	c.latest, c.sweep = never, cd.sweepNow(c.sent)
	if len(c.groups) > 0 && c.verb != release {
		stale := false
		if c.latest, stale = cd.clocks.latest(c.slot, c.sent, c.leaves()); stale {
			c.sweep = true
		}
	}
	nKeys := 4*len(c.groups) + 1
	if c.verb.plain() {
		c.inFull = c.inFull || c.sent.UnixNano() < cd.special.Load()
		if nKeys = len(c.backs) + len(c.groups) + 1; c.inFull {
			nKeys = 2*len(c.backs) + 3*len(c.groups) + 1
		}
	}
	begin := len(f.args)
	args := f.args
	if text {
		args = append(args, &argEval, &sc.text)
	} else {
		args = append(args, &argEvalsha, &sc.sha)
	}
	args = append(args, f.num(int64(nKeys)))
	if c.verb.plain() {
		args = cd.plainArgs(f, c, args)
	} else {
		args = cd.fullArgs(f, c, args)
	}
	f.args = args
	return redis.NewCmd(ctx, args[begin:len(args):len(args)]...)
}

// plainArgs appends the keys and the arguments of the plain script.
func (cd *codec) plainArgs(f *frame, c *call, args []any) []any {
	for _, g := range c.backs {
		args = append(args, g.holders(cd.prefix, c.inFull))
	}
	sure := cd.atMostOnce
	for _, g := range c.groups {
		args = append(args, g.holders(cd.prefix, c.inFull))
		for o := g; o != nil; o = o.next {
			sure = sure && o.firstAttempt
		}
	}
	if c.inFull {
		for _, g := range c.backs {
			args = append(args, &g.keys.m)
		}
		for _, g := range c.groups {
			args = append(args, &g.keys.m, &g.keys.l)
		}
	}
	args = append(args, cd.marker(c.slot))
	single := c.onePerID()
	head := weigh(c.sweep, plainSweep) + weigh(sure, plainFirst) + weigh(single, plainOnePerID) + weigh(c.inFull, plainFull) + weigh(c.lease, plainLeases) +
		plainNumber*c.number + plainReleases*int64(len(c.backs))
	if args = append(args, f.num(head)); c.lease {
		args = append(args, f.num(cd.expected(c)))
	}
	for _, g := range c.backs {
		if !single {
			args = append(args, f.num(g.group()))
		}
		for o := g; o != nil; o = o.next {
			args = append(args, &o.slot)
		}
	}
	if len(c.groups) > 0 {
		args = append(args, &c.groups[0].ttl)
		if single {
			args = append(args, &c.groups[0].limit)
		}
		args = append(args, f.num(c.latest))
	}
	for _, g := range c.groups {
		n := g.group()
		if !single {
			args = append(args, f.num(n), &g.limit)
			if sure { // more than the limit cannot be granted
				n = min(n, g.limit)
			}
		}
		for o := g; o != nil && n > 0; o, n = o.next, n-1 {
			args = append(args, &o.slot)
		}
	}
	return args
}

// expected is what the server's clock should say when it carries out c, as far as the plain
// script is concerned. A clock that the store has doubts about is not for it.
func (cd *codec) expected(c *call) int64 {
	const unknown, noGrace, doubtful = 0, -1, 1
	if !c.strict {
		return noGrace
	}
	switch seen, echo, ago := cd.clocks.header(c.slot, c.sent); {
	case seen != '0' && seen != '1':
		return doubtful
	case echo == 0:
		return unknown
	default:
		return echo + ago
	}
}

// fullArgs appends the keys and the arguments of the other scripts.
func (cd *codec) fullArgs(f *frame, c *call, args []any) []any {
	for _, g := range c.groups {
		args = append(args, &g.names(cd.prefix).s)
	}
	for _, g := range c.groups {
		args = append(args, &g.keys.m)
	}
	for _, g := range c.groups {
		args = append(args, &g.keys.q)
	}
	for _, g := range c.groups {
		args = append(args, &g.keys.l)
	}
	args = append(args, cd.marker(c.slot), cd.header(c))
	sure := cd.atMostOnce
	for _, g := range c.groups {
		n, alike := g.group(), g.uniform()
		if alike {
			n = -n
		}
		if args = append(args, f.num(n), &g.grace); alike {
			args = append(args, &g.weight, &g.limit, &g.ttl, &g.queue, &g.ticket, f.num(bits(g.plain, sure && g.firstAttempt)+4*g.class), &g.owner)
		}
		for o := g; o != nil; o = o.next {
			switch args = append(args, &o.slot); {
			case c.verb == renew:
				args = append(args, &o.ttl, &o.weight, &o.fence, &o.trust, f.num(bits(o.register, false)), &o.owner, &o.limit)
			case c.verb == acquire && !alike:
				args = append(args, &o.weight, &o.limit, &o.ttl, &o.queue, &o.ticket, f.num(bits(o.plain, sure && o.firstAttempt)+4*o.class), &o.owner)
			}
		}
	}
	return args
}

// marker is the name of the marker of a cluster slot.
func (cd *codec) marker(slot uint16) *string {
	if !cd.slotted() {
		return &cd.oneMarker
	}
	name := markerKey(cd.prefix, true, slot)
	return &name
}

// header is ARGV[1]; the prelude says what is in it.
func (cd *codec) header(c *call) *string {
	b := make([]byte, 0, 80)
	b = append(b, byte('0'+bits(c.sweep, false)))
	if cd.sharded() {
		b = append(b, cd.shardHead...)
	} else {
		b = append(b, cd.head...)
	}
	b = strconv.AppendInt(b, c.number, 10)
	seen, echo, ago := byte('1'), int64(0), int64(0)
	if c.strict {
		seen, echo, ago = cd.clocks.header(c.slot, c.sent)
		c.told = seen == '2'
		if c.outage > 0 && seen != '2' {
			seen, echo, ago = '3', c.outage, 0
		}
	}
	b = append(b, ' ', seen, ' ')
	b = strconv.AppendInt(b, echo, 10)
	b = append(b, ' ')
	b = strconv.AppendInt(b, ago, 10)
	b = append(b, ' ')
	b = strconv.AppendInt(b, c.latest, 10)
	h := string(b)
	return &h
}

// sweepEvery is how often a process has calls that write look for lapsed slots.
// They do not count either way; looking costs a command.
const sweepEvery = 20 * time.Millisecond

func (cd *codec) sweepNow(now time.Time) bool {
	if cd.general {
		return true
	}
	t, last := now.UnixNano(), cd.swept.Load()
	return t-last >= int64(sweepEvery) && cd.swept.CompareAndSwap(last, t)
}
