package gotsem

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
	"github.com/ashfaqjani916/gotsem/store/memstore"
)

// Defaults of Options.
const (
	DefaultTTL          = 30 * time.Second
	DefaultStoreTimeout = 250 * time.Millisecond
)

// MinTTL is the shortest TTL that New takes: below it, renewing in time is luck.
const MinTTL = 200 * time.Millisecond

// Options say what New makes. The zero value is valid but for Limit (or
// LimitFunc). Options are copied; New writes nothing into them.
type Options struct {
	// Store keeps the slots. Nil: a memory store, exact within this process.
	Store store.Store

	// Limit is how many slots each id has. More than store.MaxLimit counts as that,
	// here and from LimitFunc: it is no limit that anybody reaches.
	Limit int

	// LimitFunc is asked for the limit of an id. Its answers are remembered for a
	// minute, for 10,000 ids, and one call at a time is made per id, at most 500 at
	// once. Zero or less, an error, or no answer within a second: Limit; after an error
	// it is asked again after 5 s. Without a Limit, an id that has no answer is refused
	// with an error that says so.
	LimitFunc func(ctx context.Context, id string) (int, error)

	// TTL is how long a lease lasts without renewal: how long the slots of a
	// crashed process stay taken. It is renewed at about TTL/3. From MinTTL to
	// store.MaxTTL. 0: DefaultTTL.
	TTL time.Duration

	// Queue is how many may wait per id, over all processes. 0: as many as the
	// limit. Negative: nobody waits, and Acquire refuses like Try.
	Queue int

	// QueueFunc is asked how many may wait for an id, as LimitFunc is for its limit, and
	// its answers are remembered as those are. Zero or less, an error, or no answer
	// within a second: Queue; for the further ids of a call (Also) at least 1,000, since
	// who stands there has passed a narrower limit, and is bounded by it.
	QueueFunc func(ctx context.Context, id string) (int, error)

	// Classes says what the calls of each class may do (As); a call without As is of the
	// class Default. Nil: calls without As are all alike, and those with it go by Sheddable
	// {Line: .5}, Batch {Line: .75}, Default {} and Critical {HeadStart: 2 s}. A class that
	// is left out has no bound and no head start. From a class to the next nothing may
	// fall. All who share the store should say the same.
	Classes map[Class]ClassRule

	// Outage is what happens while the store cannot be asked.
	Outage Outage

	// StoreTimeout is the most that a call waits on the store.
	// 0: DefaultStoreTimeout, or half the TTL if that is shorter.
	StoreTimeout time.Duration

	// KnownFull is how long a refusal may be believed without asking the store
	// again. A release by this process, or a wake-up, ends it early.
	// 0: not at all.
	KnownFull time.Duration

	// Grace is how long a store that finds it has lost its memory (a fail-over, a
	// restart without data) makes no grants, so that the holders can re-register.
	// 0: TTL + 1 s, which is safe where a deposed primary stops taking writes
	// within a second. Negative: no grace, as under Outage Open; under Outage Local a
	// millisecond, since the pause after an outage needs what keeps the grace.
	Grace time.Duration

	// MaxHold is the most that a lease is held: one that is held longer ends as a lost one
	// does, with a cause that is ErrHeldTooLong too, and its slots are given back. It is
	// counted, and logged once. 0: for as long as its holder likes. What Outage Open
	// admitted holds no slot, and does not end so.
	MaxHold time.Duration

	// SlowHold and SlowWait have one line logged of a lease that is held for longer, and
	// of a call that waited longer in line. 0: none.
	SlowHold, SlowWait time.Duration

	// AsyncRelease has Release return at once: the slot is released in the
	// background, with the next batch to the store. A Try that follows right after
	// may still find it taken.
	AsyncRelease bool

	// Label says more about this process to whoever lists holders, beside its
	// host and pid. At most 100 bytes.
	Label string

	// Logger is told of outages, of lost leases and of limits that could not be
	// asked for. Nil: nothing is logged.
	Logger *slog.Logger
}

// withDefaults returns o with its gaps filled in.
func (o Options) withDefaults() Options {
	if o.Store == nil {
		o.Store = memstore.New()
	}
	o.TTL = cmp.Or(o.TTL, DefaultTTL)
	o.StoreTimeout = cmp.Or(o.StoreTimeout, max(0, min(DefaultStoreTimeout, o.TTL/2)))
	switch {
	case o.Grace < 0 && o.Outage == Local:
		// The pause in which shares register is kept in the marker, which only calls
		// with a grace look at.
		o.Grace = time.Millisecond
	case o.Grace < 0 || o.Outage == Open:
		o.Grace = 0
	case o.Grace == 0:
		o.Grace = min(o.TTL, store.MaxTTL-time.Second) + time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// validate reports all that is wrong with o, which has its defaults.
func (o Options) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("gotsem: "+format, args...)) }
	if o.Limit < 0 || o.Limit == 0 && o.LimitFunc == nil {
		bad("Options.Limit is %d: give the number of slots per id, at least 1 (or a LimitFunc)", o.Limit)
	}
	if o.TTL > store.MaxTTL {
		bad("Options.TTL is %v: at most %v", o.TTL, store.MaxTTL)
	}
	if o.Grace > store.MaxTTL {
		bad("Options.Grace is %v: at most %v", o.Grace, store.MaxTTL)
	}
	if v := reflect.ValueOf(o.Store); v.Kind() == reflect.Pointer && v.IsNil() {
		bad("Options.Store is a nil %T: leave it out for a store in memory", o.Store)
	}
	if o.TTL < MinTTL {
		bad("Options.TTL is %v: at least %v, so that a lease can be renewed in time", o.TTL, MinTTL)
	}
	if o.StoreTimeout < 0 || o.StoreTimeout > o.TTL {
		bad("Options.StoreTimeout is %v: between 0 and the TTL (%v), since a lease must outlive the call that asks for it", o.StoreTimeout, o.TTL)
	}
	if o.MaxHold < 0 || o.SlowHold < 0 || o.SlowWait < 0 {
		bad("Options.MaxHold, SlowHold and SlowWait are %v, %v and %v: 0 (off) or more", o.MaxHold, o.SlowHold, o.SlowWait)
	}
	if o.KnownFull < 0 {
		bad("Options.KnownFull is %v: 0 or more", o.KnownFull)
	}
	if o.Outage < Local || o.Outage > Closed {
		bad("Options.Outage is %d: Local, Open or Closed", int(o.Outage))
	}
	if len(o.Label) > 100 {
		bad("Options.Label has %d bytes: at most 100, every lease carries it", len(o.Label))
	}
	if strings.ContainsRune(o.Label, 0) {
		bad("Options.Label %q contains a NUL: what stands behind it would be lost in Redis", o.Label)
	}
	if err := checkClasses(o.Classes); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
