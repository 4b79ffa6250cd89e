package redisstore

import (
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

// verb is what an operation does. Those of a batch are carried out in this order, so that
// what is given back can be taken.
type verb uint8

const (
	release verb = iota
	renew
	plainRelease // by the plain script, which serves ids that have no meta
	plainAcquire // likewise; both go into one call
	acquire
	joint // several ids at once: see joint.go
	verbs
)

func (v verb) plain() bool { return v == plainRelease || v == plainAcquire }
func (v verb) takes() bool { return v == plainAcquire || v == acquire || v == joint }
func (v verb) gives() bool { return v == plainRelease || v == release }

// script is what carries the verb out.
func (v verb) script() *script { return verbScripts[v] }

var verbScripts = [verbs]*script{
	release: releaseScript, renew: renewScript, plainRelease: plainScript, plainAcquire: plainScript, acquire: acquireScript, joint: jointScript,
}

// The numbers of the protocol between this package and its scripts. What they mean is
// said at the head of the script that they belong to.
const (
	// callNumbers is how many calls there are until a number comes again. A reply repeats
	// the number of its call.
	callNumbers = 1024

	// The weights of the parts of the plain script's head.
	plainSweep    = 1  // look at the clock, and for lapsed slots
	plainFirst    = 2  // no slot id was asked for before
	plainOnePerID = 4  // one slot of each id, and one limit
	plainFull     = 8  // the keys of meta are named
	plainLeases   = 16 // what is taken are leases
	plainNumber   = 32 // the number of the call
	plainReleases = plainNumber * callNumbers

	// What the plain script answers for an id that is not for it, for a call that is
	// too late to take, and where the marker is to be looked at closely.
	notPlainAcquire = -1 << 52
	plainTooLate    = notPlainAcquire + 1
	plainNotWell    = notPlainAcquire + 2
	notPlainRelease = -1

	// What the others answer to a call that came at an odd moment. From the time in the
	// answer the store knows whether the server's clock jumped, and the second call says
	// so.
	acquireAgain = 6
	renewAgain   = 4
)

// recoveringNumber is what outcomes has for Recovering.
const recoveringNumber = 5

// outcomes are the scripts' numbers.
var outcomes = [...]store.Outcome{store.Full, store.Granted, store.Waiting, store.LineFull, store.TooHeavy, store.Recovering}

// question is what an operation asks. Its numbers are fields that arguments point
// to, because go-redis encodes a *string or an *int64 without an allocation of its
// own.
type question struct {
	verb         verb // see by
	plain        bool // acquire: no fence, no owner
	lease        bool // acquire, by the plain script: a fence, or the marker, counts
	firstAttempt bool // acquire: its slot id was never asked for before
	register     bool // renew

	id, slot, owner              string
	weight, limit, queue, ticket int64
	ttl                          int64 // ms
	fence, trust, grace          int64
	class                        int64 // acquire: Class.Index + 1; 0: Default
	outage                       int64 // ms: its caller comes back from an outage of so long

	budget time.Duration
	due    time.Time // when the budget is over, or the ctx if that is sooner
}

// answer is what Redis says to it.
type answer struct {
	decision store.Decision
	refusal  int // joint: which id refuses, from 1; 0: none
	freed    bool
	outcome  store.RenewOutcome // renew
	sentAt   time.Time          // renew: when what Redis answered was sent; zero: not known
	err      error
}

// stage is how far an op has come: see batcher.
type stage uint8

const (
	queued  stage = iota
	leading       // its caller is told to run its batch
	sent          // it is under way
	late          // its batch was given up: its caller leaves it to that
	done          // it was answered
)

// ride is where an op is on its way: who waits for it, and what became of it so far.
type ride struct {
	inFull   bool // the plain script has said that ids of the prefix may have meta
	notPlain bool // and that this one has: it goes by the other verb that does the same
	tries    int  // how often it was asked again since it came late, or in doubt
	next     *op  // of the same group

	stage     stage
	abandoned bool // its caller has left
	async     func(id, slotID string, err error)
}

// op is one operation on one slot id.
type op struct {
	question
	answer
	ride

	keys  keys   // see names
	named string // the id that they are of
	all   bool   // they are all there, and not only S

	also []*op         // joint: what it asks of further ids
	turn chan struct{} // of one that may lead a batch: told to, or that it is answered
}

// reset makes o fit for another operation. Its keys stay, since that is of the same id
// most often, and so does its channel.
func (o *op) reset() {
	// In place: a whole op to copy from would lie on the stack of each caller that waits.
	o.question, o.answer, o.ride = question{}, answer{}, ride{}
	clear(o.also)
	o.also = o.also[:0]
}

// names makes the keys of the op's id, which the first of a group does for all of it. An
// op that is used again for the same id has them.
func (o *op) names(prefix string) *keys {
	if o.named != o.id || !o.all {
		o.keys, o.named, o.all = keysOf(prefix, o.id), o.id, true
	}
	return &o.keys
}

// holders makes one of them, S, or all.
func (o *op) holders(prefix string, all bool) *string {
	if all {
		return &o.names(prefix).s
	}
	if o.named != o.id {
		o.keys, o.named, o.all = keys{s: prefix + o.id}, o.id, false
	}
	return &o.keys.s
}

// by is the verb that carries o out.
func (o *op) by() verb {
	switch {
	case !o.notPlain:
	case o.verb == plainRelease:
		return release
	case o.verb == plainAcquire:
		return acquire
	}
	return o.verb
}

// askAnew reports whether o is to be asked again after it came late, or at a moment that
// the clock did not explain: it is in time, and has not been asked so too often.
func (o *op) askAnew() bool {
	o.tries++
	return o.tries <= maxTries && time.Now().Before(o.due)
}

// maxTries is how often an op is asked again.
const maxTries = 3
