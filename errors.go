package gotsem

import (
	"errors"
	"fmt"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

// What a caller can match with errors.Is. Texts of the errors that come back
// say which id, which numbers and what to do; these are what they are.
var (
	// ErrFull: every slot of the id is taken. The error is a *FullError.
	ErrFull = errors.New("gotsem: full")

	// ErrQueueFull: every slot is taken, and so is every place in line. The error
	// is a *FullError.
	ErrQueueFull = errors.New("gotsem: the line is full")

	// ErrWaitTooLong: MaxWait passed, or cannot be kept. The error is a *FullError
	// and is ErrFull too.
	ErrWaitTooLong = errors.New("gotsem: waited too long")

	// ErrTooHeavy: the weight is above the whole limit, so that waiting would
	// never end.
	ErrTooHeavy = errors.New("gotsem: heavier than the limit")

	// ErrLeaseLost: the lease is not held any more: it was revoked, or it could
	// not be renewed in time. It is the cause of Lease.Context.
	ErrLeaseLost = errors.New("gotsem: lease lost")

	// ErrHeldTooLong: the lease was held for longer than Options.MaxHold. It is an
	// ErrLeaseLost.
	ErrHeldTooLong = errors.New("gotsem: lease held too long")

	// ErrUnavailable: the store could not be asked, and the outage policy does
	// not admit. It is not "full".
	ErrUnavailable = errors.New("gotsem: store unavailable")

	// ErrRecovering: the store lost its memory and grants nothing until the holders
	// have re-registered. The error is a *RecoveringError. It is neither an outage
	// nor "full".
	ErrRecovering = errors.New("gotsem: store recovering")

	// ErrNotReplicated: the lease was granted, but not acknowledged by as many
	// replicas as redisstore.Replicas asks for, and was released.
	ErrNotReplicated = store.ErrNotReplicated

	// ErrIDs: the ids of a call are not taken: one is empty or too long, there are too
	// many for one lease, or one comes twice.
	ErrIDs = errors.New("gotsem: such ids are not taken")

	// ErrClosed: the semaphore was closed.
	ErrClosed = errors.New("gotsem: semaphore closed")
)

// FullError says that there was no room, in numbers. It is ErrFull or
// ErrQueueFull; after MaxWait it is ErrFull and ErrWaitTooLong.
type FullError struct {
	ID         string        // the id that refused
	Level      int           // its place among those of the call: 0 is the first, see Also
	Active     int           // the sum of weights held
	Limit      int           // the limit that was applied
	Waiting    int           // how many wait in line
	RetryAfter time.Duration // when there is likely to be room, from how long leases of the id were held here lately; 0: not known
	NextLapse  time.Duration // until the first of the slots lapses, unless its holder renews it, as those that live do; 0: not known

	line   bool // the line was full too
	known  bool // the store was not asked: it said so a moment ago
	waited time.Duration
}

// Error says what is full and how much.
func (e *FullError) Error() string {
	what := "full"
	switch {
	case e.line:
		what = "full, and so is its line"
	case e.waited > 0:
		what = fmt.Sprintf("still full after %v", e.waited.Round(time.Millisecond))
	case e.Limit <= 0:
		what = "paused"
	}
	s := fmt.Sprintf("gotsem: %q is %s: %d of %d held, %d waiting", e.ID, what, e.Active, e.Limit, e.Waiting)
	if e.RetryAfter > 0 {
		s += fmt.Sprintf("; try again in about %v", e.RetryAfter.Round(time.Millisecond))
	}
	return s
}

// Is reports which of the sentinels e is.
func (e *FullError) Is(target error) bool {
	switch target {
	case ErrQueueFull:
		return e.line
	case ErrWaitTooLong:
		return e.waited > 0
	case ErrFull:
		return !e.line
	}
	return false
}

// RecoveringError is ErrRecovering with the time that is left.
type RecoveringError struct {
	ID         string
	RetryAfter time.Duration // until grants are made again
}

// Error says for how long.
func (e *RecoveringError) Error() string {
	return fmt.Sprintf("gotsem: the store of %q lost its memory; grants are made again in %v, when the holders have re-registered", e.ID, e.RetryAfter.Round(time.Millisecond))
}

// Is reports whether target is ErrRecovering.
func (e *RecoveringError) Is(target error) bool { return target == ErrRecovering }

// unavailable is ErrUnavailable with its cause.
type unavailable struct {
	id     string
	cause  error // of the call, or of the outage in which it was not sent
	unsent bool  // the store is known to be down, and was not asked
}

func (e *unavailable) Error() string {
	if e.unsent {
		return fmt.Sprintf("gotsem: %q: the store is known to be unreachable and is being probed: %v", e.id, e.cause)
	}
	return fmt.Sprintf("gotsem: %q: the store could not be asked: %v", e.id, e.cause)
}

func (e *unavailable) Is(target error) bool { return target == ErrUnavailable }
func (e *unavailable) Unwrap() error        { return e.cause }

// unsent is the error of a ctx that was over before the store was asked.
type unsent struct {
	id  string
	err error
}

func (e *unsent) Error() string { return fmt.Sprintf("gotsem: %q: %v", e.id, e.err) }
func (e *unsent) Unwrap() error { return e.err }

// mayHaveArrived reports whether a call that ended with err may have reached the store
// and been carried out.
func mayHaveArrived(err error) bool {
	var down *unavailable
	var never *unsent
	return !errors.Is(err, store.ErrConfig) && !errors.As(err, &never) && !(errors.As(err, &down) && down.unsent)
}
