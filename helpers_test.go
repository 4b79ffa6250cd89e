package gotsem

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ashfaqjani916/gotsem/internal/leaktest"
	"github.com/ashfaqjani916/gotsem/store"
	"github.com/ashfaqjani916/gotsem/store/memstore"
)

// TestMain looks a name up first: package net makes what it keeps for that with the first of
// its look-ups, which must not be in a bubble. go-redis before v9.23 looks names up in New.
func TestMain(m *testing.M) {
	_, _ = net.LookupHost("localhost")
	leaktest.Main(m)
}

// open makes a semaphore that is closed at the end of the test.
func open(t testing.TB, o Options) *Semaphore {
	t.Helper()
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	if jointHidden {
		s.gate.joint = nil
	}
	t.Cleanup(func() {
		_ = s.Close()
		if time.Now().Year() == 2000 { // a bubble: what hangs in the store may end
			time.Sleep(DefaultTTL)
		}
	})
	return s
}

func mustTry(t testing.TB, s *Semaphore, id string, opts ...Option) *Lease {
	t.Helper()
	l, err := s.Try(context.Background(), id, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func mustRelease(t testing.TB, l *Lease) {
	t.Helper()
	if err := l.Release(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// stands checks how id stands in the store.
func stands(t testing.TB, s *Semaphore, id string, active, waiting int) {
	t.Helper()
	u, err := s.Usage(context.Background(), id)
	if err != nil || u.Active != active || u.Waiting != waiting {
		t.Fatalf("%+v, %v; want %d held, %d waiting", u, err, active, waiting)
	}
}

// queued is an Acquire in a goroutine of its own.
type queued struct {
	cancel context.CancelFunc
	done   chan struct{}
	lease  *Lease
	err    error
	at     time.Time
}

// queue has one more wait for id, and returns when it does, or has its answer.
func queue(s *Semaphore, id string, opts ...Option) *queued {
	ctx, cancel := context.WithCancel(context.Background())
	w := &queued{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		w.lease, w.err = s.Acquire(ctx, id, opts...)
		w.at = time.Now()
	}()
	synctest.Wait()
	return w
}

// answered reports whether there is an answer, with no time passing.
func (w *queued) answered() bool {
	synctest.Wait()
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

// holds checks that the waiter has its lease, with no time passing.
func (w *queued) holds(t testing.TB) *Lease {
	t.Helper()
	if !w.answered() {
		t.Fatal("still waiting")
	}
	if w.err != nil {
		t.Fatal(w.err)
	}
	return w.lease
}

// was checks that the waiter was told that, with no time passing.
func (w *queued) was(t testing.TB, want error) {
	t.Helper()
	if !w.answered() {
		t.Fatalf("still waiting, want %v", want)
	}
	if !errors.Is(w.err, want) {
		t.Fatalf("%v, %v; want %v", w.lease, w.err, want)
	}
}

// ends waits for the end of a lease and checks its cause.
func ends(t testing.TB, l *Lease, cause error) {
	t.Helper()
	select {
	case <-l.Context().Done():
	case <-time.After(time.Hour): // in a bubble
		t.Fatal("it does not end")
	}
	if got := context.Cause(l.Context()); !errors.Is(got, cause) {
		t.Fatalf("its cause is %v, want %v", got, cause)
	}
}

// lives checks that a lease has not ended.
func lives(t testing.TB, l *Lease) {
	t.Helper()
	synctest.Wait()
	if err := l.Context().Err(); err != nil {
		t.Fatalf("it is over: %v", context.Cause(l.Context()))
	}
}

// mood is how a shaky store is.
type mood int

const (
	well      mood = iota
	refuses        // fails at once, having done nothing
	hangs          // does nothing until its budget is over
	forgetful      // does it, and fails to say so
	wrong          // store.ErrConfig
	lonely         // does it, and store.ErrNotReplicated
)

// shaky is a memory store that can be away, as a Redis can.
type shaky struct {
	*memstore.Store
	processes int // what Peers answers; 0: one

	mu    sync.Mutex
	moods map[string]mood // by verb; "": the others
	calls map[string]int
	hook  func(verb, id string) // called before; it may block
	pause time.Time             // until then no grants: somebody comes back from an outage
}

func newShaky() *shaky {
	return &shaky{Store: memstore.New(), moods: make(map[string]mood), calls: make(map[string]int)}
}

// is sets the mood for some verbs, or for all.
func (s *shaky) is(m mood, verbs ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(verbs) == 0 {
		clear(s.moods)
		s.moods[""] = m
	}
	for _, v := range verbs {
		s.moods[v] = m
	}
}

// asked returns how often a verb was called; "": all of them together.
func (s *shaky) asked(verb string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if verb != "" {
		return s.calls[verb]
	}
	for _, c := range s.calls {
		n += c
	}
	return n
}

func (s *shaky) hooked(hook func(verb, id string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hook = hook
}

// paused is how long no grants are made; word of an outage begins that anew.
func (s *shaky) paused(away time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if away > 0 && time.Since(s.pause) > store.Pause {
		s.pause = time.Now().Add(store.Pause)
	}
	return time.Until(s.pause)
}

var errAway = errors.New("connection refused")

// do calls f as the mood wants it.
func (s *shaky) do(ctx context.Context, verb, id string, budget time.Duration, f func() error) error {
	s.mu.Lock()
	s.calls[verb]++
	m, ok := s.moods[verb]
	if !ok {
		m = s.moods[""]
	}
	hook := s.hook
	s.mu.Unlock()
	if hook != nil {
		hook(verb, id)
	}
	switch m {
	case refuses:
		return errAway
	case hangs:
		if budget > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, budget)
			defer cancel()
		}
		<-ctx.Done()
		return ctx.Err()
	case forgetful:
		_ = f()
		return errAway
	case lonely:
		return errors.Join(f(), store.ErrNotReplicated)
	case wrong:
		return fmt.Errorf("%w: NOAUTH", store.ErrConfig)
	}
	return f()
}

func (s *shaky) Acquire(ctx context.Context, r *store.Request) (d store.Decision, err error) {
	err = s.do(ctx, "acquire", r.ID, r.Budget, func() (err error) {
		if left := s.paused(r.OutageFor); left > 0 {
			d = store.Decision{Outcome: store.Recovering, RetryIn: left}
			return nil
		}
		d, err = s.Store.Acquire(ctx, r)
		return err
	})
	if err != nil {
		d = store.Decision{}
	}
	return d, err
}

func (s *shaky) AcquireAll(ctx context.Context, rs []*store.Request) (ds []store.Decision, err error) {
	err = s.do(ctx, "acquire", rs[0].ID, rs[0].Budget, func() error {
		ds, err = s.Store.AcquireAll(context.Background(), rs)
		return err
	})
	return ds, err
}

func (s *shaky) Renew(ctx context.Context, rs []store.Renewal) (out []store.RenewResult) {
	err := s.do(ctx, "renew", rs[0].ID, 0, func() error {
		for _, r := range rs {
			s.paused(r.OutageFor)
		}
		out = s.Store.Renew(ctx, rs)
		return nil
	})
	if err != nil {
		out = slices.Repeat([]store.RenewResult{{Err: err}}, len(rs))
	}
	return out
}

func (s *shaky) Release(ctx context.Context, r *store.Release) (bool, error) {
	whole, told := *r, r.Async
	whole.Async = nil
	give := func() (freed bool, err error) {
		err = s.do(ctx, "release", whole.ID, whole.Budget, func() (err error) { freed, err = s.Store.Release(ctx, &whole); return err })
		return freed && err == nil, err
	}
	if told == nil {
		return give()
	}
	go func() {
		_, err := give()
		told(whole.ID, whole.SlotID, err)
	}()
	return false, nil
}

func (s *shaky) Usage(ctx context.Context, id string, limit int) (u store.Usage, err error) {
	err = s.do(ctx, "usage", id, 0, func() (err error) { u, err = s.Store.Usage(ctx, id, limit); return err })
	return u, err
}

func (s *shaky) Clear(ctx context.Context, c store.Clear) (n int, err error) {
	err = s.do(ctx, "clear", c.ID, 0, func() (err error) { n, err = s.Store.Clear(ctx, c); return err })
	return n, err
}

func (s *shaky) Peers(ctx context.Context, _ time.Duration) (n int, err error) {
	err = s.do(ctx, "peers", "", 0, func() error { n = max(s.processes, 1); return nil })
	return n, err
}

// held is what the store keeps of id, whatever its mood.
func (s *shaky) held(t testing.TB, id string) int {
	t.Helper()
	u, err := s.Store.Usage(context.Background(), id, 1)
	if err != nil {
		t.Fatal(err)
	}
	return u.Active
}

// only is a store without any capability.
type only struct{ store.Store }

// logged is a logger that remembers.
type logged struct {
	mu    sync.Mutex
	lines []string
}

func (l *logged) logger() *slog.Logger { return slog.New(l) }

func (l *logged) Enabled(context.Context, slog.Level) bool { return true }

func (l *logged) Handle(_ context.Context, r slog.Record) error {
	line := r.Level.String() + " " + r.Message
	r.Attrs(func(a slog.Attr) bool { line += " " + a.String(); return true })
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, line)
	return nil
}

func (l *logged) WithAttrs([]slog.Attr) slog.Handler { return l }
func (l *logged) WithGroup(string) slog.Handler      { return l }

// with returns the lines that have text in them.
func (l *logged) with(text string) (out []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		if strings.Contains(line, text) {
			out = append(out, line)
		}
	}
	return out
}

func contains(s, part string) bool { return strings.Contains(s, part) }
