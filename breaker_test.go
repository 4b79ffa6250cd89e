package gotsem

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

// Failures of one streak follow one another in time: what lies further apart says
// nothing about the time between.
func TestFailuresFarApartAreNoOutage(t *testing.T) {
	for _, apart := range []time.Duration{5 * time.Second, 5 * time.Minute} {
		for _, policy := range []Outage{Local, Open, Closed} {
			synctest.Test(t, func(t *testing.T) {
				st := newShaky()
				st.processes = 2
				s := open(t, Options{Store: st, Limit: 4, TTL: time.Second, Outage: policy, StoreTimeout: 100 * time.Millisecond})
				other := open(t, Options{Store: st.Store, Limit: 4, TTL: time.Second})
				mustRelease(t, mustTry(t, s, "id"))
				synctest.Wait() // the processes were counted
				for range 4 {
					mustTry(t, other, "id")
				}
				for range 2 * breakerFailures {
					st.is(refuses)
					_, err := ask(s, "id")
					st.is(well)
					if !errors.Is(err, ErrUnavailable) || !mayHaveArrived(err) {
						t.Fatal(err)
					}
					time.Sleep(apart)
				}
				st.is(refuses)
				l, err := s.Try(context.Background(), "id")
				st.is(well)
				if policy == Local && err == nil {
					t.Errorf("admitted beside 4 of 4: %v", l)
				}
				if st := s.Stats(); st.Outages != 0 {
					t.Errorf("%v: given up for failures %v apart: %+v", policy, apart, st)
				}
			})
		}
	}
}

// In an idle hour nobody looks, so that nobody knows whether the store was away all the
// while: the share begins one TTL after it is known again.
func TestTheShareBeginsWhenTheOutageIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = 10 * time.Second
		st := newShaky()
		s := open(t, Options{Store: st, Limit: 4, TTL: ttl, Queue: -1})
		mustRelease(t, mustTry(t, s, "id"))
		synctest.Wait()
		down(t, s, st)
		time.Sleep(time.Hour)
		began := time.Now()
		for {
			l, err := s.Try(context.Background(), "id")
			if err == nil {
				if d := time.Since(began); d < ttl || d > ttl+time.Second {
					t.Errorf("admitted after %v", d)
				}
				mustLeave(t, l)
				break
			}
			if time.Since(began) > 2*ttl {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Millisecond)
		}
		up(t, s, st)
	})
}

// Looking in and what an operator asks neither open a breaker nor ask the LimitFunc,
// and are not stopped by one that is open.
func TestLookingInDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		var questions atomic.Int64
		s := open(t, Options{
			Store: st, Limit: 7, Outage: Closed,
			LimitFunc: func(_ context.Context, id string) (int, error) {
				questions.Add(1)
				return 3, nil
			},
		})
		ctx := context.Background()
		st.is(refuses, "usage", "clear")
		for range 100 {
			if _, err := s.Usage(ctx, "id"); !errors.Is(err, ErrUnavailable) {
				t.Fatal(err)
			}
			if _, err := s.Clear(ctx, "id"); !errors.Is(err, ErrUnavailable) {
				t.Fatal(err)
			}
			s.ActiveCount(ctx, "id")
			time.Sleep(50 * time.Millisecond)
		}
		if st := s.Stats(); st.Outages != 0 || st.StoreErrors != 0 {
			t.Errorf("%+v", st)
		}
		st.is(well)
		for i := range 1000 {
			if u, err := s.Usage(ctx, fmt.Sprint(i)); err != nil || u.Limit != 7 {
				t.Fatal(u, err)
			}
		}
		_ = s.SetLimit(ctx, "set", 5)
		_, _ = s.Holders(ctx, "id")
		if n := questions.Load(); n != 0 {
			t.Errorf("the LimitFunc was asked %d times", n)
		}
		mustRelease(t, mustTry(t, s, "id"))
		if u, err := s.Usage(ctx, "id"); err != nil || u.Limit != 3 || questions.Load() != 1 {
			t.Errorf("%+v, %v, %d questions", u, err, questions.Load())
		}
		st.is(refuses, "acquire", "release")
		for range breakerFailures {
			_, _ = ask(s, "id")
		}
		if _, err := s.Usage(ctx, "id"); err != nil || !s.Stats().Down {
			t.Errorf("%v", err)
		}
		st.is(well)
	})
}

// Renewals are sent although the breaker is open.
func TestRenewalsGoOnWhileTheBreakerIsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newShaky()
		s := open(t, Options{Store: st, Limit: 5, TTL: time.Second, Outage: Closed, StoreTimeout: 100 * time.Millisecond})
		l := mustTry(t, s, "id")
		st.is(refuses, "acquire", "release")
		for began := time.Now(); time.Since(began) < 10*time.Second; time.Sleep(100 * time.Millisecond) {
			if _, err := s.Try(context.Background(), "id"); !errors.Is(err, ErrUnavailable) {
				t.Fatal(err)
			}
		}
		if st := s.Stats(); !st.Down || st.Outages != 1 {
			t.Errorf("%+v", st)
		}
		lives(t, l)
		st.is(well)
	})
}

// fullStore is one whose memory is full: it keeps and gives back, and takes nothing.
type fullStore struct {
	*shaky
	full atomic.Bool
}

var errOOM = errors.New("OOM command not allowed when used memory > 'maxmemory'")

func (f *fullStore) Acquire(ctx context.Context, r *store.Request) (store.Decision, error) {
	d, err := f.shaky.Usage(ctx, r.ID, r.Limit)
	if err == nil && f.full.Load() && d.Active < r.Limit {
		return store.Decision{}, errOOM
	}
	return f.shaky.Acquire(ctx, r)
}

func (f *fullStore) Probe(context.Context, string) error {
	if f.full.Load() {
		return errOOM
	}
	return nil
}

// A store that is full is given up once, until it takes again. What keeps and what
// gives back goes on, and nobody takes it for one that is away: what others hold goes
// on too.
func TestAFullStoreIsGivenUpOnce(t *testing.T) {
	for _, policy := range []Outage{Local, Closed, Open} {
		synctest.Test(t, func(t *testing.T) {
			const ttl = time.Second
			st := &fullStore{shaky: newShaky()}
			var log logged
			s := open(t, Options{Store: st, Limit: 4, TTL: ttl, Outage: policy, StoreTimeout: 100 * time.Millisecond, Logger: log.logger(), Queue: -1})
			other := open(t, Options{Store: st, Limit: 4, TTL: ttl, Outage: policy, StoreTimeout: 100 * time.Millisecond})
			mine := mustTry(t, s, "id")
			release := mustTry(t, s, "id")
			theirs := mustTry(t, other, "id")
			synctest.Wait()
			st.full.Store(true)
			admitted := 0
			for i := range 100 {
				if l, err := s.Try(context.Background(), "id"); err == nil && !l.FailedOpen() {
					admitted++
				}
				if i == 50 {
					mustRelease(t, release)
				}
				time.Sleep(100 * time.Millisecond)
			}
			if admitted > 0 {
				t.Errorf("%v: %d were admitted beside what is held", policy, admitted)
			}
			lives(t, mine)
			lives(t, theirs)
			if n := st.held(t, "id"); n != 2 {
				t.Errorf("%v: %d held", policy, n)
			}
			st.full.Store(false)
			time.Sleep(2 * time.Second)
			l := mustTry(t, s, "id")
			if l.FailedOpen() {
				t.Error("it takes again")
			}
			if n := s.Stats().Outages; n != 1 {
				t.Errorf("%v: given up %d times", policy, n)
			}
			if n := len(log.with("store unreachable")) + len(log.with("answers again")); n != 2 {
				t.Errorf("%v: %q", policy, log.lines)
			}
		})
	}
}

// parted is several stores, one for each server that ids name before their colon.
type parted struct {
	store.Store
	servers map[string]*shaky
}

func newParted(names ...string) *parted {
	p := &parted{servers: make(map[string]*shaky)}
	for _, name := range names {
		p.servers[name] = newShaky()
		p.servers[name].processes = 2
	}
	return p
}

func (p *parted) Partition(id string) string {
	server, _, _ := strings.Cut(id, ":")
	return server
}

func (p *parted) of(id string) *shaky { return p.servers[p.Partition(id)] }

func (p *parted) Acquire(ctx context.Context, r *store.Request) (store.Decision, error) {
	return p.of(r.ID).Acquire(ctx, r)
}

func (p *parted) Renew(ctx context.Context, rs []store.Renewal) []store.RenewResult {
	for _, r := range rs {
		if p.of(r.ID) != p.of(rs[0].ID) {
			panic("renewals of two servers in one call")
		}
	}
	return p.of(rs[0].ID).Renew(ctx, rs)
}

func (p *parted) Release(ctx context.Context, r *store.Release) (bool, error) {
	return p.of(r.ID).Release(ctx, r)
}

func (p *parted) Usage(ctx context.Context, id string, limit int) (store.Usage, error) {
	return p.of(id).Usage(ctx, id, limit)
}

func (p *parted) Clear(ctx context.Context, c store.Clear) (int, error) {
	return p.of(c.ID).Clear(ctx, c)
}

func (p *parted) Peers(context.Context, time.Duration) (int, error) { return 2, nil }

// One server that hangs takes down its own ids, and nothing else.
func TestAnOutageOfOneServerIsItsOwn(t *testing.T) {
	for _, policy := range []Outage{Local, Open, Closed} {
		for _, askers := range []int{0, 1, 8} {
			synctest.Test(t, func(t *testing.T) {
				const ttl = 6 * time.Second
				p := newParted("a", "b", "c")
				var log logged
				s := open(t, Options{Store: p, Limit: 2, TTL: ttl, Outage: policy, Logger: log.logger(), Queue: -1})
				var living, dead []*Lease
				for i := range 1000 {
					dead = append(dead, mustTry(t, s, fmt.Sprint("a:", i)))
					if i < 50 {
						living = append(living, mustTry(t, s, fmt.Sprint("b:", i)), mustTry(t, s, fmt.Sprint("c:", i)))
					}
				}
				synctest.Wait()
				p.servers["a"].is(hangs)
				flying := atomic.Int64{}
				p.servers["a"].hooked(func(verb, _ string) {
					if verb == "renew" {
						flying.Add(1)
						time.AfterFunc(DefaultStoreTimeout, func() { flying.Add(-1) })
						if n := flying.Load(); n > maxInFlight+1 {
							t.Errorf("%d renewals are under way to a server that hangs", n)
						}
					}
				})
				began := time.Now()
				stop := make(chan struct{})
				for range askers {
					go func() {
						for time.Since(began) < 14*time.Second {
							_, _ = s.Try(context.Background(), "a:0")
							time.Sleep(50 * time.Millisecond)
						}
					}()
				}
				go func() {
					defer close(stop)
					for time.Since(began) < 14*time.Second {
						before := time.Now()
						l, err := s.Try(context.Background(), "b:0")
						if err != nil || l.FailedOpen() || time.Since(before) != 0 {
							t.Errorf("%v: a server that answers: %v, %v after %v", policy, l, err, time.Since(before))
							return
						}
						mustRelease(t, l)
						time.Sleep(100 * time.Millisecond)
					}
				}()
				<-stop
				for _, l := range living {
					lives(t, l)
				}
				if n := s.Stats(); n.Outages != 1 || !n.Down {
					t.Errorf("%v, %d askers: %+v", policy, askers, n)
				}
				for _, l := range dead {
					if lost := l.Context().Err() != nil; lost != (policy != Local) {
						t.Fatalf("%v, %d askers: a lease on the server that hangs: lost %v", policy, askers, lost)
					}
				}
				if lines := log.with("store unreachable"); len(lines) != 1 || !contains(lines[0], "server=a") {
					t.Errorf("%q", lines)
				}
				p.servers["a"].is(well)
				time.Sleep(3 * time.Second)
				if s.Stats().Down {
					t.Error("down")
				}
				if l, err := s.Try(context.Background(), "a:new"); err != nil || l.FailedOpen() {
					t.Errorf("%v: %v, %v", policy, l, err)
				}
			})
		}
	}
}

// A breaker that nobody needs any more is forgotten, so that calls pass by it.
func TestBreakersAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParted("a", "b")
		s := open(t, Options{Store: p, Limit: 10, TTL: time.Second, StoreTimeout: 100 * time.Millisecond})
		p.servers["a"].is(refuses)
		for range 2 * breakerFailures {
			_, _ = s.Try(context.Background(), "a:1")
		}
		if n := s.gate.some.Load(); n != 1 || !s.Stats().Down {
			t.Fatalf("%d breakers", n)
		}
		time.Sleep(5 * time.Second)
		p.servers["a"].is(well)
		time.Sleep(time.Second)
		_, _ = s.Try(context.Background(), "a:1") // tells the store of the outage
		time.Sleep(2 * time.Second)
		mustRelease(t, mustTry(t, s, "a:1"))
		time.Sleep(breakerKept)
		mustRelease(t, mustTry(t, s, "b:1"))
		if n := s.gate.some.Load(); n != 0 {
			t.Errorf("%d breakers, a minute after all was well", n)
		}
	})
}
