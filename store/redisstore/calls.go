package redisstore

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"io"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// callKey is what the operations of a call have in common.
type callKey struct {
	verb  verb   // plainAcquire for both that are plain
	ttl   int64  // of those that acquire plain slots
	lease bool   // they are leases
	slot  uint16 // on a Cluster

	bySlot bool   // keys go by cluster slot
	id     string // on a client of which nothing is known
}

// call is one script call of a batch.
type call struct {
	callKey
	backs  []*op // those of a plain call that give back; each the first of the ops of one id, in order
	groups []*op // all others, likewise
	inFull bool  // a plain call names the keys of meta
	strict bool  // the marker goes along
	outage int64 // so does word of one

	fence    int64 // of a plain call's next grant
	cmd      *redis.Cmd
	number   int64 // that its reply must repeat
	sent     time.Time
	latest   int64 // by the server's clock, when it may take something
	sweep    bool  // it looks at the clock, and for lapsed slots
	told     bool  // it tells Redis that its clock jumped
	unacked  error // too few replicas have acknowledged its grants
	answered bool  // its ops were answered by other means
}

// frame is what executing a batch needs on the way. Frames are used again, so that a
// batch allocates next to nothing.
type frame struct {
	calls []*call
	spare []*call // all that were ever made, calls among them

	args []any
	nums []int64  // that args point to
	rest [2][]*op // to be asked again, of this round and the last

	tails [256]tail
	pass  uint64
}

// tail is the last op of a group, at a hash of its id. Where one is overwritten, an id
// has two groups, which does no harm.
type tail struct {
	pass uint64
	op   *op
	call *call
}

var hashSeed = maphash.MakeSeed()

// group divides ops into script calls: one per verb, on a Cluster one per verb and slot.
// Within a call, the ops of one id stand together.
func (f *frame) group(cd *codec, ops []*op) {
	f.calls = f.calls[:0]
	f.pass++
	var last [verbs]*tail // all of a batch are of one id, often
	for _, o := range ops {
		o.next = nil
		v := o.by()
		at := last[v]
		if at == nil || at.op.id != o.id {
			at = &f.tails[(maphash.String(hashSeed, o.id)+uint64(v))%uint64(len(f.tails))]
			last[v] = at
		}
		c := at.call
		if at.pass == f.pass && at.op.mergeable(o) {
			o.behind(at.op)
			at.op = o
		} else {
			switch {
			case v == joint:
				c = f.add(cd.callKey(o))
				c.joint(o)
			case v == plainRelease:
				c = f.call(cd.callKey(o), false)
				c.backs = append(c.backs, o)
			default:
				c = f.call(cd.callKey(o), v.takes())
				c.groups = append(c.groups, o)
			}
			*at = tail{f.pass, o, c}
		}
		c.inFull = c.inFull || o.inFull
		c.strict = c.strict || o.grace > 0
		c.outage = max(c.outage, o.outage)
	}
	if len(f.calls) > 1 {
		slices.SortStableFunc(f.calls, func(a, b *call) int { return cmp.Compare(a.verb, b.verb) })
	}
}

// callKey says which call o belongs into.
func (cd *codec) callKey(o *op) callKey {
	k := callKey{verb: o.by()}
	switch {
	case cd.slotted():
		k.slot, k.bySlot = o.names(cd.prefix).slot, true
	case cd.perID:
		k.id = o.id
	}
	if k.verb.plain() {
		k.verb, k.ttl, k.lease = plainAcquire, o.ttl, o.lease
	}
	return k
}

// uniform reports whether o, and all of its group, ask for nothing but a slot now: but
// for the slot ids, they are the same.
func (o *op) uniform() bool {
	return o.by() == acquire && o.queue <= 0 && o.ticket == 0 && o.class == 0 || o.by() == joint
}

// mergeable reports whether other belongs into o's group.
func (o *op) mergeable(other *op) bool {
	switch {
	case o.id != other.id || o.by() != other.by() || o.grace != other.grace:
		return false
	case o.by().plain():
		return o.limit == other.limit && o.ttl == other.ttl && o.lease == other.lease
	case o.uniform():
		return other.uniform() && o.alike(other)
	}
	return !other.uniform()
}

// call returns the call of k, one of those there are or a new one. What gives back
// plain slots has no ttl, and goes with any, but in the first.
func (f *frame) call(k callKey, takes bool) *call {
	for _, c := range f.calls {
		at := c.callKey
		if k.verb.plain() && (!takes || at.ttl == 0) {
			at.ttl, at.lease = k.ttl, k.lease
		}
		if at == k {
			if takes {
				c.ttl, c.lease = k.ttl, k.lease
			}
			return c
		}
	}
	return f.add(k)
}

// add returns a new call of k.
func (f *frame) add(k callKey) *call {
	n := len(f.calls)
	if n == len(f.spare) {
		f.spare = append(f.spare, new(call))
	}
	c := f.spare[n]
	*c = call{callKey: k, backs: c.backs[:0], groups: c.groups[:0]}
	f.calls = append(f.calls, c)
	return c
}

// group returns how many ops stand behind the first of a group, itself included.
func (o *op) group() (n int64) {
	for ; o != nil; o = o.next {
		n++
	}
	return n
}

// appendTo adds a group to ops.
func (o *op) appendTo(ops []*op) []*op {
	for ; o != nil; o = o.next {
		ops = append(ops, o)
	}
	return ops
}

// each calls do for every op of the call.
func (c *call) each(do func(o *op)) {
	for _, groups := range [...][]*op{c.backs, c.groups} {
		for _, g := range groups {
			for o := g; o != nil; o = o.next {
				do(o)
			}
		}
	}
}

// anyOp is one of the call's: all of them share its cluster slot.
func (c *call) anyOp() *op {
	if len(c.backs) > 0 {
		return c.backs[0]
	}
	return c.groups[0]
}

// leaves is when the last of those who ask something of c that is not giving back leaves.
func (c *call) leaves() (due time.Time) {
	for _, g := range c.groups {
		for o := g; o != nil; o = o.next {
			if o.due.After(due) {
				due = o.due
			}
		}
	}
	return due
}

// onePerID reports whether c, a plain call, is about one slot of each id, and of one limit.
func (c *call) onePerID() bool {
	for _, g := range c.backs {
		if g.next != nil {
			return false
		}
	}
	for _, g := range c.groups {
		if g.next != nil || g.limit != c.groups[0].limit {
			return false
		}
	}
	return true
}

// split returns a call for each id of c, and leaves c without any. What was asked for
// may have been granted already.
func (c *call) split(calls []*call) []*call {
	c.each(func(o *op) { o.firstAttempt = false })
	giving := c.callKey
	giving.lease = false // it does not look at the marker
	for i := range c.backs {
		calls = append(calls, &call{callKey: giving, backs: c.backs[i : i+1], inFull: c.inFull})
	}
	for i, g := range c.groups {
		calls = append(calls, &call{callKey: c.callKey, groups: c.groups[i : i+1], inFull: c.inFull, strict: g.grace > 0})
	}
	c.backs, c.groups, c.answered = nil, nil, true
	return calls
}

// match makes an error of a reply that belongs to another call. A connection can be out
// of step with its replies: something on the way delivers one twice, a client leaves one
// unread. Believed, it would make a refusal a grant.
func (c *call) match() {
	if err := c.cmd.Err(); err != nil {
		if redis.HasErrorPrefix(err, "ERR unknown subcommand") { // a script call has none
			c.cmd.SetErr(errOutOfStep)
		}
		return
	}
	n, alone := c.cmd.Val().(int64)
	if list, ok := c.cmd.Val().([]any); ok && len(list) > 0 {
		n, alone = list[0].(int64)
	}
	if n < 0 && (!c.verb.plain() || c.lease) {
		n = -n
	}
	if !alone || (n%callNumbers+callNumbers)%callNumbers != c.number {
		c.cmd.SetErr(errOutOfStep)
	}
}

var errOutOfStep = fmt.Errorf("redisstore: Redis, or something on the way to it, answered another call than this one: %w", io.ErrUnexpectedEOF)
