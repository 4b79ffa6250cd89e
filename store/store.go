// Package store says what a place that keeps slots must do.
//
// A store is asked five things, always by id (what is limited) and slot id
// (who asks): acquire, renew, release, usage, clear. "Full" and "lost" are
// answers; an error means that the store could not be asked, or did not
// answer in time, and that nothing is known about what it did.
//
// # The contract
//
// Every store that passes package storetest keeps these rules.
//
//   - A slot id is the identity of a request, chosen by the asker and never
//     used for a second one. Asking again with the same slot id is the retry
//     and the poll in one: it answers the same grant, with a fence that is not
//     lower, or keeps the same place in line. So an answer that got lost cannot leak
//     a slot. Whether asking again makes a plain slot last longer is left open.
//   - Only durations cross the contract, never points in time. A store goes by
//     one clock, its own.
//   - A slot counts from its grant until it is released, cleared, or lapses:
//     its TTL has passed since the grant or the last renewal. Renewing never
//     shortens that.
//   - At every instant of the store's clock the weights of the slots that count
//     sum to at most the limit in force at the last grant. The limit is the one
//     set in the store, if one is set, else the one the asker brought along. A
//     waiter's grant is judged by the waiter's own limit, never by the limit of
//     whoever made room.
//   - Grants to those who wait follow the order in which they joined. While
//     somebody waits, nobody else is granted: not even a slot which the head of
//     the line is too heavy to take.
//   - A place in line lives [Life] after it was last asked for, a grant made to
//     a waiter must be claimed (by asking again) within [Claim]; by one that has not
//     asked for more than a second, before its place in line would have ended, or
//     within a second if that is later. What is not claimed goes to the next; its
//     waiter may come back with its ticket and stands where it stood. Either way it
//     is the waiter's for Claim after it last asked, so that a [Wakeup] of the grant can be
//     believed by who knows when that was.
//   - Whoever makes or finds room hands it on in the same atomic step.
//   - An id that nobody holds, waits for, or has set a limit for takes no room.
//
// The package is experimental: the contract may still grow by optional
// capabilities, which are found by type assertion ([Waker], [Lister],
// [LimitSetter], [PeerCounter], [Partitioner], [Prober], [Joint]).
package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"time"
)

const (
	// Life is how long a place in line lives without being asked for. A waiter
	// asks each second, so two polls may be lost before it loses its place.
	Life = 3 * time.Second

	// Claim is how long a grant waits to be claimed by its waiter.
	Claim = 2 * time.Second

	// Pause is how long no grants are made when the first process comes back from
	// an outage, so that the others can register first. They look for the store
	// every half second.
	Pause = time.Second
)

// What numbers a store takes. Whatever lies outside is refused with [ErrConfig], in
// words, at every store: above 2^53 a store that counts in floating point, as Redis's
// scripts do, adds up wrongly. They fit with room for sums.
const (
	MaxLimit  = 1 << 40                    // of a limit, and below zero as much
	MaxWeight = 1 << 40                    // of one request
	MaxTTL    = 100 * 365 * 24 * time.Hour // of a slot, and of a grace
)

// CheckLimit returns an error, [ErrConfig], unless limit is one that stores take.
func CheckLimit(limit int) error {
	if int64(limit) > MaxLimit || int64(limit) < -MaxLimit {
		return fmt.Errorf("%w: the limit %d is beyond what is counted exactly: at most %d", ErrConfig, limit, int64(MaxLimit))
	}
	return nil
}

// CheckWeight returns an error, [ErrConfig], unless weight is one that stores take.
func CheckWeight(weight int) error {
	if weight < 1 || int64(weight) > MaxWeight {
		return fmt.Errorf("%w: the weight %d must be from 1 to %d", ErrConfig, weight, int64(MaxWeight))
	}
	return nil
}

// CheckTTL returns an error, [ErrConfig], unless ttl is one that stores take.
func CheckTTL(ttl time.Duration) error {
	if ttl < time.Millisecond || ttl > MaxTTL {
		return fmt.Errorf("%w: the ttl %v must be from 1ms to %v", ErrConfig, ttl, MaxTTL)
	}
	return nil
}

// Check returns an error, [ErrConfig], unless the request's numbers are ones that
// stores take.
func (r *Request) Check() error {
	if r.Weight >= 1 && int64(r.Weight) <= MaxWeight && int64(r.Limit) <= MaxLimit && int64(r.Limit) >= -MaxLimit &&
		r.TTL >= time.Millisecond && r.TTL <= MaxTTL && r.Grace <= MaxTTL && r.Lead >= 0 && r.Lead <= MaxTTL {
		return nil
	}
	if r.Lead < 0 || r.Lead > MaxTTL {
		return fmt.Errorf("%w: %q: the lead %v must be from 0 to %v", ErrConfig, r.ID, r.Lead, MaxTTL)
	}
	return checkAll(r.ID, r.Weight, r.Limit, r.TTL, r.Grace)
}

// Check returns an error, [ErrConfig], unless the renewal's numbers are ones that
// stores take.
func (r *Renewal) Check() error { return checkAll(r.ID, r.Weight, r.Limit, r.TTL, r.Grace) }

func checkAll(id string, weight, limit int, ttl, grace time.Duration) error {
	err := CheckTTL(max(ttl, grace))
	if ttl < time.Millisecond {
		err = CheckTTL(ttl)
	}
	if err = cmp.Or(CheckWeight(weight), CheckLimit(limit), err); err != nil {
		return fmt.Errorf("%q: %w", id, err)
	}
	return nil
}

// Store keeps slots. Its methods are safe for concurrent use, and return when
// ctx is over at the latest. What they are given they do not keep.
type Store interface {
	// Acquire asks for r.Weight slots of r.ID at once, or asks again.
	Acquire(ctx context.Context, r *Request) (Decision, error)

	// Renew makes each slot last its TTL from now, and answers in the order of
	// the renewals. It is one call so that a thousand leases are not a thousand
	// round trips; one slot's failure is its own.
	Renew(ctx context.Context, rs []Renewal) []RenewResult

	// Release gives a slot or a place in line back, and hands on the room. It
	// reports whether there was something to give back: releasing twice, or
	// what has lapsed, changes nothing. (A slot that has lapsed, or a plain one that was
	// given back before, may be reported as given back.)
	Release(ctx context.Context, r *Release) (freed bool, err error)

	// Usage tells how an id stands, and changes nothing. The limit it answers
	// is the one set in the store, else the one given.
	Usage(ctx context.Context, id string, limit int) (Usage, error)

	// Clear takes slots away from their holders, and hands on the room. It
	// answers how many slot ids it took.
	Clear(ctx context.Context, c Clear) (int, error)
}

// Request asks for slots.
type Request struct {
	ID     string        // what is limited
	SlotID string        // who asks
	Weight int           // how many slots, at least 1
	Limit  int           // the asker's limit; one set in the store wins
	TTL    time.Duration // how long a grant lasts without renewal

	// Queue is how many may wait for ID; a request that finds so many is
	// refused. Zero or less: this request does not wait at all.
	Queue int

	// Ticket is the one that an earlier decision about this slot id gave. A
	// waiter that finds itself forgotten stands where it stood.
	Ticket uint64

	// Lead is how much earlier than it comes the request stands in line, when it joins: a
	// Ticket that it comes back with says that already.
	Lead time.Duration

	// Share is how much of the limit may be in use with this request, if it does not
	// wait, in thousandths: see ShareOf. Zero, or for who waits: all of it. A request
	// heavier than that is TooHeavy.
	Share int

	// Class is told to whoever asks for Usage. A store decides by Lead, Share and Queue.
	Class Class

	// Owner describes the asker to whoever lists holders.
	Owner string

	// Plain asks for a slot and no more: no fence, no owner. It saves the store
	// what it would have to remember about a lease.
	Plain bool

	// FirstAttempt promises that SlotID is asked for the first time, so that a store need not
	// look whether it holds something.
	FirstAttempt bool

	// Budget is the most the store may take to answer, beside ctx. Zero: as
	// long as ctx allows.
	Budget time.Duration

	// Grace is how long a store that finds it has lost its memory refuses
	// grants, so that holders can say what they hold. Zero: not at all.
	Grace time.Duration

	// OutageFor is how long the asker could not ask the store, if it comes back from
	// such a time and others may have to register what they hold. A store that
	// more than one process can be cut off from then pauses its grants for
	// [Pause], unless it has just done so.
	OutageFor time.Duration
}

// Outcome is what a store decided about a request.
type Outcome uint8

// The outcomes of a request.
const (
	Full       Outcome = iota // no room, and no place in line asked for
	Granted                   // yours for Request.TTL
	Waiting                   // in line; ask again after RetryIn, or when woken
	LineFull                  // no room, and Request.Queue others wait already
	TooHeavy                  // heavier than the whole limit
	Recovering                // the store lost its memory: no grants for RetryIn
)

// String returns the outcome in words.
func (o Outcome) String() string {
	switch o {
	case Full:
		return "full"
	case Granted:
		return "granted"
	case Waiting:
		return "waiting"
	case LineFull:
		return "line full"
	case TooHeavy:
		return "too heavy"
	case Recovering:
		return "recovering"
	}
	return "unknown"
}

// Decision answers a Request.
type Decision struct {
	Outcome Outcome
	Active  int    // the sum of weights held, after the decision
	Limit   int    // the limit that was applied
	Waiting int    // how many wait
	Place   int    // Waiting: 1 is the head of the line
	Fence   uint64 // Granted, not Plain: rises with every grant of this id
	Ticket  uint64 // Waiting: the place in line, for a Request that comes back
	PollID  uint64 // Waiting: names this very asking to a [Wakeup] that comes after it

	// RetryIn: until the next slot of this id lapses (Full, LineFull); until it
	// is worth asking again without being woken (Waiting); until grants are made
	// again (Recovering). Zero: not known.
	RetryIn time.Duration
}

// Renewal asks for more time for one slot.
type Renewal struct {
	ID     string
	SlotID string
	TTL    time.Duration

	// Weight, Fence, Owner and Trust let a store that has lost its memory put the
	// slot back. Trust is how long its holder may still believe in it; with none
	// left nothing is put back. A slot that somebody else has evicted from a store
	// which remembers it is put back if there is room by Limit, or by the limit set
	// in the store.
	Weight    int
	Limit     int
	Fence     uint64
	Owner     string
	Trust     time.Duration
	Grace     time.Duration // as Request.Grace
	OutageFor time.Duration // as Request.OutageFor

	// Register puts the slot back whatever the store remembers, above the limit
	// too: it was granted without the store, while that could not be asked.
	Register bool
}

// RenewOutcome is what a store answers to one renewal.
type RenewOutcome uint8

// The answers to a renewal.
const (
	Lost     RenewOutcome = iota // not yours any more
	Renewed                      // yours for another TTL
	Restored                     // was forgotten, and is yours again for another TTL
	Revoked                      // not yours any more: Clear took it, within the last Clear.TTL
)

// RenewResult answers a Renewal. Err means that the store could not be asked.
type RenewResult struct {
	Outcome RenewOutcome
	Err     error

	// Waited is how long the renewal waited within the store before it was sent, so
	// that its holder can count the time it has from the sending. Zero: it did not, or
	// that is not known.
	Waited time.Duration
}

// Release gives back a slot, or a place in line.
type Release struct {
	ID     string
	SlotID string
	Budget time.Duration // as Request.Budget
	Grace  time.Duration // as Request.Grace: handing on room is a grant
	Plain  bool          // a hint: it was acquired so

	// Async, if not nil, lets the store return at once, with false and no error.
	// It is called exactly once, when the release is done or has failed, and must
	// not block.
	Async func(id, slotID string, err error)
}

// Clear takes away one slot, or every slot, of an id.
type Clear struct {
	ID     string
	SlotID string        // empty: all that are held; the line stays
	TTL    time.Duration // how long to remember that, should a holder try to put it back
}

// Usage is how an id stands.
type Usage struct {
	Active   int           // the sum of weights held
	Limit    int           // the limit that applies
	LimitSet bool          // Limit is one that was set in the store
	Waiting  int           // how many wait
	Line     [Classes]int  // of the first 1,000 of them, by Class.Index, those that are not Default
	NextIn   time.Duration // until the next slot lapses; zero: none is held
	HeadAge  time.Duration // for how long the first in line has waited; zero: nobody waits, or it is not known
}

// Waker is a Store that can tell when asking again is worth while.
type Waker interface {
	// OnWake has wake called when the standing of a slot id may have changed: a
	// waiter was granted or must go, a holder's slot was cleared. It is a hint and
	// may be lost. wake must not block. stop ends the calls.
	OnWake(wake func(Wakeup)) (stop func())
}

// Wakeup is what a Waker says of a slot id.
type Wakeup struct {
	SlotID string // empty: any waiter, since word may have been lost

	// Fence, if not zero, says that SlotID was granted, with that fence and by that
	// limit, after the asking that Asked names. So whoever knows when it sent that
	// asking knows how old the word is at most, however long it lay about; and for
	// [Claim] after the sending it holds the slots without asking again. It keeps
	// them by renewing.
	Fence  uint64
	Limit  int
	PollID uint64 // a Decision.PollID
}

// Lister is a Store that can list what it keeps, a page at a time.
type Lister interface {
	// Holders lists who holds slots of id, those that lapse first coming first: n of
	// them at most, 1 to MaxPage. after is empty, or the next that came with the page
	// before; the last page comes with an empty one. Who renews between two pages may come
	// twice. Who holds all the while comes.
	Holders(ctx context.Context, id, after string, n int) (page []Holder, next string, err error)
	// Waiters lists the first n of the line of id, 1 to MaxPage, in its order.
	Waiters(ctx context.Context, id string, n int) ([]Waiter, error)
	// Walk lists how the ids stand that are held, waited for, or have a limit set by hand,
	// in no order; one may come twice. limit is as in Usage. Each piece of the walk takes
	// [PageTimeout] at most, and between two it waits for pause.
	Walk(ctx context.Context, limit int, pause time.Duration) iter.Seq2[Standing, error]
}

// Rest waits for pause, or until ctx is over, and then is its error.
func Rest(ctx context.Context, pause time.Duration) error {
	if pause > 0 && ctx.Err() == nil {
		timer := time.NewTimer(pause)
		defer timer.Stop()
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
	}
	return ctx.Err()
}

// Standing is an id, and how it stands.
type Standing struct {
	ID string
	Usage
}

// MaxPage is how many a Lister lists at once.
const MaxPage = 1000

// CheckPage reports a page that is too long, or empty.
func CheckPage(n int) error {
	if n < 1 || n > MaxPage {
		return fmt.Errorf("%w: a page of %d: 1 to %d", ErrConfig, n, MaxPage)
	}
	return nil
}

// Holder is one slot id and what it holds.
type Holder struct {
	SlotID string
	Weight int
	Fence  uint64        // zero: the slot was taken plain, or the store does not keep it
	Owner  string        // as Request.Owner; empty: the slot was taken plain, or it is not known
	Age    time.Duration // since it was asked for; zero: not known
	Left   time.Duration // until it lapses
}

// Waiter is one slot id that waits in line.
type Waiter struct {
	SlotID string
	Weight int
	Class  Class
	Owner  string        // as Request.Owner
	Age    time.Duration // since it was asked for; zero: not known
	Left   time.Duration // until its place ends, unless it asks again
}

// LimitSetter is a Store that can keep a limit, which then wins over any that
// requests bring along.
type LimitSetter interface {
	// ChangeLimit sets the limit of an id for all who share the store, or takes it off,
	// and returns what is set then. Raising it hands on the room. A change of another
	// version than the one that is set is refused with a *LimitConflict.
	ChangeLimit(ctx context.Context, c LimitChange) (Override, error)
	// LimitOf returns what is set for id. It writes nothing.
	LimitOf(ctx context.Context, id string) (Override, error)
}

// LimitChange sets a limit, or takes it off.
type LimitChange struct {
	ID    string
	Limit int           // zero pauses the id: nobody is granted
	Reset bool          // take off what was set; of the rest only OnlyIf counts then
	For   time.Duration // it ends by itself after that, to the ms; zero: it does not
	By    string        // who sets it; at most MaxBy bytes

	OnlyIf  bool   // change it only if this is what is set:
	Version uint64 // its version; zero: nothing is
}

// MaxBy is how long LimitChange.By may be, in bytes.
const MaxBy = 200

// Check reports what is wrong with c.
func (c *LimitChange) Check() error {
	switch {
	case c.ID == "":
		return fmt.Errorf("%w: the id must not be empty", ErrConfig)
	case c.Reset:
		return nil
	case c.Limit < 0:
		return fmt.Errorf("%w: limit %d of %q is negative: 0 pauses, a reset takes a set limit off", ErrConfig, c.Limit, c.ID)
	case c.For < 0 || c.For > MaxTTL || c.For > 0 && c.For < time.Millisecond:
		return fmt.Errorf("%w: a limit of %q for %v: from 1ms to %v, or 0 for one without an end", ErrConfig, c.ID, c.For, MaxTTL)
	case len(c.By) > MaxBy:
		return fmt.Errorf("%w: who sets the limit of %q: %d bytes, at most %d", ErrConfig, c.ID, len(c.By), MaxBy)
	}
	return CheckLimit(c.Limit)
}

// Override is a limit that was set in the store.
type Override struct {
	Limit   int
	Version uint64        // of this setting: an id never has one twice. Zero: nothing is set
	Age     time.Duration // since it was set, by the store's clock
	Left    time.Duration // until it ends by itself; zero: it does not
	By      string        // as LimitChange.By
}

// LimitConflict is why a change was not made: what is set is not what it was to change.
type LimitConflict struct {
	ID   string
	Want uint64   // the version that it was to change
	Now  Override // what is set
}

func (c *LimitConflict) Error() string {
	return fmt.Sprintf("store: the limit of %q was changed meanwhile: %v, not version %d: look again, and decide anew", c.ID, c.Now, c.Want)
}

// String tells what is set, for people.
func (o Override) String() string {
	if o.Version == 0 {
		return "none is set"
	}
	text := fmt.Sprintf("%d, set %v ago", o.Limit, o.Age.Round(time.Second))
	if o.By != "" {
		text += fmt.Sprintf(" by %q", o.By)
	}
	if o.Left > 0 {
		text += fmt.Sprintf(", for %v more", o.Left.Round(time.Second))
	}
	return fmt.Sprintf("%s (version %d)", text, o.Version)
}

// Checker is a Store that can look whether it is set up as its promises need it.
type Checker interface {
	// Check returns what it found, in words for whoever runs the store. ttl is how
	// long leases last. An error means that it could not look.
	Check(ctx context.Context, ttl time.Duration) ([]Finding, error)
}

// Finding is one thing that a Checker looked at.
type Finding struct {
	What string // "version", "eviction", …
	OK   bool
	Text string // what is so, and if that is not well, what follows and what to do
}

// PeerCounter is a Store that can tell how many processes share it.
type PeerCounter interface {
	// Peers says that this process lives, for ttl, and answers how many do,
	// itself included.
	Peers(ctx context.Context, ttl time.Duration) (int, error)
}

// Stater is a Store that can tell of itself.
type Stater interface {
	// State tells who shares the store, and how the server that keeps id does.
	State(ctx context.Context, id string) (State, error)
}

// State is how a store does.
type State struct {
	Processes []Process     // that have taken leases of late; at most MaxPage. Empty: not known
	Losses    int           // how often the server was found to have lost its memory
	LossAge   time.Duration // since that was last found; zero: it never was
	Grace     time.Duration // for how long it grants nothing, so that holders can come forward
}

// Process is one that shares a store.
type Process struct {
	Owner string        // as Request.Owner
	Left  time.Duration // until it is given up, unless it is heard of
}

// Stamper is a Store that reads from the slot id of a lease who asked for it, and when,
// so that it need not keep that.
type Stamper interface {
	// Stamp returns what the slot id of a lease is to begin with: at most 16
	// bytes, the same length each time, good for a second. At least 14 random ones
	// follow. A slot id without it is served too, but shows no owner, and its holder is
	// not woken when it is taken from it. It must not block.
	Stamp() string
}

// Partitioner is a Store whose ids lie on several servers, each of which can fail by
// itself.
type Partitioner interface {
	// Partition names the server that keeps id: what has the same name fails
	// together, and what has another goes on. Empty: there is only one, or it is not
	// known yet. The answer may change when an id moves. It must not block.
	Partition(id string) string
}

// Joint is a Store that can take slots of several ids in one step.
type Joint interface {
	// AcquireAll grants all of rs, or none: then the last of its decisions is that of the
	// request which could not be granted, and those before it say nothing. Nobody waits:
	// Request.Queue and Ticket do not count. Requests of one id come once. It is ErrApart
	// if the ids do not lie where one step reaches all of them; then nothing was asked.
	// Asked again with the same slot ids it answers the same grants.
	AcquireAll(ctx context.Context, rs []*Request) ([]Decision, error)
}

// ErrApart is what Joint answers where one step does not reach all of the ids, as on a
// Cluster where they lie in several slots. They are to be asked for one by one.
var ErrApart = errors.New("store: the ids lie apart")

// Prober is a Store that can be asked whether it serves acquires again.
type Prober interface {
	// Probe does what an acquire of id needs, a write that needs memory among it, on
	// the server that keeps id, and leaves nothing. An error is that of an acquire.
	Probe(ctx context.Context, id string) error
}

// ErrNotReplicated is what the error of an acquire is if the slot was granted, but the
// store could not make sure of it as well as it was asked to. The asker gives it back.
var ErrNotReplicated = errors.New("store: the grant was not replicated in time")

// ErrMoving is what the error of a call is if its id is being moved from one server to
// another, and it has to wait for that. The servers answer: it is no outage of theirs.
var ErrMoving = errors.New("store: the id is being moved to another server")

// ErrConfig is what an error is when asking again will not mend it: the key has
// another type, a password or a right is missing. It is not an outage, and must
// not be taken for one.
var ErrConfig = errors.New("store: misconfigured")
