package gotsem

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

// A holder is told why its lease ended, and Stats tell the reasons apart.
func TestAHolderIsToldWhyItLostItsLease(t *testing.T) {
	for _, c := range []struct {
		name string
		lose func(s *Semaphore, st *shaky, l *Lease)
		why  string
		want Stats
	}{
		{"Revoke", func(s *Semaphore, _ *shaky, l *Lease) { _, _ = s.Revoke(context.Background(), "id", l.SlotID()) }, "it was revoked", Stats{Lost: 1, Revoked: 1}},
		{"Clear", func(s *Semaphore, _ *shaky, _ *Lease) { _, _ = s.Clear(context.Background(), "id") }, "it was revoked", Stats{Lost: 1, Revoked: 1}},
		{"no renewal", func(_ *Semaphore, st *shaky, _ *Lease) { st.is(refuses) }, "it could not be renewed in time", Stats{Lost: 1, Expired: 1}},
		{"a store that forgets", func(_ *Semaphore, st *shaky, l *Lease) { st.forget("id", l.SlotID()) }, "does not know it any more", Stats{Lost: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := newShaky()
				s := open(t, Options{Store: st, Limit: 2, Outage: Closed})
				l := mustTry(t, s, "id")
				early := l.Context()
				c.lose(s, st, l)
				ends(t, l, ErrLeaseLost)
				synctest.Wait() // it is counted next
				for _, ctx := range []context.Context{early, l.Context()} {
					if cause := context.Cause(ctx); !contains(cause.Error(), c.why) || !contains(cause.Error(), `"id"`) {
						t.Errorf("%v", cause)
					}
				}
				if got := s.Stats(); got.Lost != c.want.Lost || got.Revoked != c.want.Revoked || got.Expired != c.want.Expired {
					t.Errorf("%+v", got)
				}
				st.is(well)
			})
		})
	}
}

// forget takes a slot away as a store does that loses its memory: without a word.
func (s *shaky) forget(id, slotID string) {
	_, _ = s.Store.Release(context.Background(), &store.Release{ID: id, SlotID: slotID})
}

// Do says that its lease was lost, whatever f returned.
func TestDoTellsOfALostLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own := errors.New("its own")
		for _, returns := range []error{nil, own, context.Canceled} {
			s := open(t, Options{Limit: 1})
			err := s.Do(context.Background(), "id", func(ctx context.Context) error {
				_, _ = s.Clear(context.Background(), "id")
				<-ctx.Done()
				if !errors.Is(context.Cause(ctx), ErrLeaseLost) {
					t.Errorf("the cause is %v", context.Cause(ctx))
				}
				return returns
			})
			if !errors.Is(err, ErrLeaseLost) || returns != nil && !errors.Is(err, returns) || !contains(err.Error(), "it was revoked") {
				t.Errorf("%v: %v", returns, err)
			}
		}
		s := open(t, Options{Limit: 1})
		if err := s.Do(context.Background(), "id", func(context.Context) error { return own }); !errors.Is(err, own) || errors.Is(err, ErrLeaseLost) {
			t.Errorf("%v", err)
		}
	})
}

// stopped has the semaphore's clock jump past the end of every lease, as if the process
// had been stopped: no timer and no goroutine of it has run.
func stopped(s *Semaphore) { s.start = s.start.Add(-2 * s.opt.TTL) }

// After the process was stopped, the first look at any of the contexts that are handed
// out sees the loss: none waits for a goroutine.
func TestTheFirstLookAfterWakingSeesTheLoss(t *testing.T) {
	for name, look := range map[string]func(ctx context.Context) bool{
		"Err":   func(ctx context.Context) bool { return ctx.Err() != nil },
		"Cause": func(ctx context.Context) bool { return errors.Is(context.Cause(ctx), ErrLeaseLost) },
		"Done": func(ctx context.Context) bool {
			select {
			case <-ctx.Done():
				return true
			default:
				return false
			}
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := open(t, Options{Limit: 5, Outage: Closed})
			l := mustTry(t, s, "id")
			ctx := l.Context()
			synctest.Wait()
			err := s.Do(context.Background(), "other", func(held context.Context) error {
				synctest.Wait()
				stopped(s)
				if !look(held) {
					t.Errorf("%s of the ctx of Do does not see it", name)
				}
				if !look(ctx) {
					t.Errorf("%s of the lease's context does not see it", name)
				}
				return nil
			})
			if !errors.Is(err, ErrLeaseLost) {
				t.Error(err)
			}
			time.Sleep(time.Second)
		})
	}
}

// Between the end of a lease and that of its context nobody sees it held.
func TestALeaseThatIsOverIsNotSeenHeld(t *testing.T) {
	s := open(t, Options{Limit: 1})
	l := mustTry(t, s, "id")
	ctx := l.Context()
	l.why.Store(&leaseLost{"id", revoked})
	l.state.Store(lost) // and whoever did that is about to cancel
	if ctx.Err() == nil || !errors.Is(context.Cause(ctx), ErrLeaseLost) {
		t.Errorf("%v, %v", ctx.Err(), context.Cause(ctx))
	}
	s.stats.held.Add(-1)
	s.renewer.remove(l)
}
