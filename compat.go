package gotsem

import (
	"context"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/ashfaqjani916/gotsem/store"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

// This file is the compatibility API: NewGotsem and five methods. They are views of
// what stands in the other files; a slot that they take is a plain member of a sorted
// set, is not renewed, and lives slotTTL at most.

// AcquireResult is the answer to TryAcquire.
type AcquireResult struct {
	Acquired bool   // whether the slot was granted
	SlotID   string // opaque id to pass to Release; empty if not acquired
	Active   int    // slots held after the call, lapsed ones not counted
	Max      int    // the limit that was applied
}

// FailedOpen reports that Redis could not be asked, and that the call was admitted
// without it. Nothing was counted.
func (r AcquireResult) FailedOpen() bool { return r.SlotID == failedOpenID }

// NewGotsem makes a semaphore on Redis, for any go-redis v9 client: a single
// server, Sentinel, Cluster. The slots of an id lie in a sorted set at
// keyPrefix+id, scored by when they lapse.
//
// slotTTL is the most that a slot lives: what a crashed process held is free
// again after it. defaultMax is the limit of ids for which planFn knows none;
// planFn may be nil. Its answers are remembered for a minute; zero, less than
// zero or an error mean defaultMax, and after an error it is asked again after
// 5 s. A defaultMax of zero or less grants nothing. A nil logger is silence.
//
// If Redis is unreachable, TryAcquire admits (AcquireResult.FailedOpen), within
// DefaultStoreTimeout and a little at first, and in microseconds from then on.
// rdb stays the caller's: it is never closed. The semaphore needs no Close.
func NewGotsem(rdb redis.UniversalClient, keyPrefix string, slotTTL time.Duration, defaultMax int, planFn func(ctx context.Context, id string) (int, error), logger *zap.SugaredLogger) *Semaphore {
	o := Options{
		Store:     redisstore.New(rdb, keyPrefix),
		Limit:     defaultMax,
		LimitFunc: planFn,
		TTL:       min(max(slotTTL, time.Millisecond), store.MaxTTL), // Redis keeps no slot for less
		Outage:    Open,

		StoreTimeout: DefaultStoreTimeout, // however short slotTTL is: nothing is renewed
	}
	if logger != nil {
		o.Logger = slog.New(zapHandler{logger.WithOptions(zap.WithCaller(false))})
	}
	o = o.withDefaults()
	if err := o.Store.(*redisstore.Store).Err(); err != nil {
		o.Logger.Error("gotsem: nobody will be admitted", "error", err)
	}
	return newSemaphore(o)
}

// TryAcquire takes a slot if there is room, and never waits for one. It asks Redis
// once.
//
// It fails open: if Redis does not answer, the result is Acquired with FailedOpen.
// A ctx that is over, an id that is empty or longer than MaxID, and a Redis that
// is misconfigured (a wrong type at the key, no password, no right) are no
// outage: not acquired, and logged.
func (s *Semaphore) TryAcquire(ctx context.Context, id string) AcquireResult {
	seen := s.see()
	result, err := s.tryPlain(ctx, id)
	if seen != nil {
		s.answeredPlain(ctx, seen, id, result, err)
	}
	return result
}

// tryPlain is TryAcquire, and what it does not tell: why the store was not asked, or did
// not answer.
func (s *Semaphore) tryPlain(ctx context.Context, id string) (AcquireResult, error) {
	limit, err := s.admissible(ctx, id, callOptions{weight: 1}, true)
	if full, ok := err.(*FullError); ok {
		return AcquireResult{Active: full.Active, Max: full.Limit}, nil
	} else if err != nil {
		s.opt.Logger.Warn("gotsem: not acquired", "id", id, "error", err)
		return AcquireResult{Max: s.opt.Limit}, err
	}
	s.checkStore()
	r := s.plainRequest(id, 1, limit)
	r.SlotID = r.ids.next()
	defer s.requests.Put(r)
	r.Plain = true
	s.classify(&r.Request, callOptions{})
	d, err := s.askOnce(ctx, r)
	switch {
	case err == nil && d.Outcome == store.Granted:
		s.stats.granted.Add(1)
		return AcquireResult{Acquired: true, SlotID: r.SlotID, Active: d.Active, Max: d.Limit}, nil
	case err == nil:
		if s.known == nil { // nobody reads the error, and making it is not free
			s.countRefusal(d, 0)
		} else {
			_ = s.refusal(r, d, 0)
		}
		return AcquireResult{Active: d.Active, Max: store.ShareOf(d.Limit, r.Share)}, nil
	case d.Outcome == store.Granted: // it came too late
		s.opt.Logger.Warn("gotsem: not acquired", "id", id, "error", err)
		return AcquireResult{Max: d.Limit}, err
	case s.failsOpen(ctx, &r.Request, err):
		s.stats.failedOpen.Add(1)
		return AcquireResult{Acquired: true, SlotID: failedOpenID, Max: limit}, nil
	}
	_ = s.turnedAway(err)
	return AcquireResult{Max: limit}, err
}

// Release releases a slot of TryAcquire. It goes on when ctx is over, and
// waits for Redis at most DefaultStoreTimeout; what Redis does not take then is
// released in the background. Releasing twice, or a slot that lapsed, does
// nothing.
func (s *Semaphore) Release(ctx context.Context, id, slotID string) {
	if id == "" || slotID == "" || slotID == failedOpenID {
		return
	}
	r := s.releases.Get().(*store.Release)
	defer s.releases.Put(r)
	*r = store.Release{} // and then in place, as in request
	r.ID, r.SlotID, r.Plain, r.Grace = id, slotID, true, s.opt.Grace
	s.stats.released.Add(1)
	if s.opt.AsyncRelease {
		s.gate.releaseAsync(r)
		return
	}
	if _, err := s.gate.release(detached(ctx), r); err != nil {
		s.gate.backlog.add(id, slotID, false)
	}
}

// ForceRelease drops every slot of id, whoever holds it: for a deployment that is
// stuck. Clear does the same, and tells how it went.
func (s *Semaphore) ForceRelease(ctx context.Context, id string) {
	if _, err := s.Clear(ctx, id); err != nil {
		s.opt.Logger.Warn("gotsem: not cleared", "id", id, "error", err)
	}
}

// ActiveCount returns how many slots of id are held now. It is 0 if Redis cannot be
// asked, which is logged; Usage tells that apart.
func (s *Semaphore) ActiveCount(ctx context.Context, id string) int {
	u, err := s.Usage(ctx, id)
	if err != nil {
		s.opt.Logger.Warn("gotsem: no active count", "id", id, "error", err)
		return 0
	}
	return u.Active
}

// zapHandler has slog speak through zap.
type zapHandler struct{ log *zap.SugaredLogger }

func (h zapHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h zapHandler) Handle(_ context.Context, r slog.Record) error {
	fields := make([]any, 0, 2*r.NumAttrs())
	r.Attrs(func(a slog.Attr) bool {
		fields = append(fields, a.Key, a.Value.Any())
		return true
	})
	switch {
	case r.Level >= slog.LevelError:
		h.log.Errorw(r.Message, fields...)
	case r.Level >= slog.LevelWarn:
		h.log.Warnw(r.Message, fields...)
	default:
		h.log.Infow(r.Message, fields...)
	}
	return nil
}

func (h zapHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	l := h.log
	for _, a := range attrs {
		l = l.With(a.Key, a.Value.Any())
	}
	return zapHandler{l}
}

func (h zapHandler) WithGroup(string) slog.Handler { return h }
