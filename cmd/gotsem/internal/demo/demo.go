// Package demo is gotsem's main job, small enough to watch: an HTTP service that is
// limited per project and as a whole, under more load than it may take. Two projects share
// an id: a flood of sheddable work, and critical work beside it.
//
// It runs on the embedded store in one process, or on Redis in several, one of
// which is killed half-way. Every piece of work is counted by a referee that knows
// nothing of the store: what it counts is at most what is held, so that a count
// above the limit is a broken cap.
//
// Reading order: demo.go (the plan), service.go (what is limited), load.go (who
// wants in), referee.go, pod.go (several processes), report.go (what is printed).
package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/store"
)

// Options say how the demo runs.
type Options struct {
	Length   time.Duration // at least MinLength
	JSON     bool          // lines of JSON
	Terminal bool          // a table that is drawn over itself
	// Size is the terminal's columns and lines, which may change. Nil: 80 by 24.
	Size func() (columns, lines int)
	Out  io.Writer

	Pods       int    // processes; 0: this one, on the embedded store
	Executable string // that serves a pod when run with the argument "pod"
	Where      Where
	Open       func(Where) (s store.Store, shown string, end func(), err error)
	Err        io.Writer // of the pods

	// Page serves a page that shows what the semaphore's store keeps. Nil: there is none.
	Page func(*gotsem.Semaphore) (url string, stop func(), err error)

	embedded store.Store // nil: a new one
}

// Where is the Redis of a demo with pods.
type Where struct{ Redis, PasswordFile, Prefix string }

// MinLength is the shortest demo in which everything has time to happen.
const MinLength = 3 * time.Second

// project is one of those who want in.
type project struct {
	name    string
	limit   int
	clients int
	class   gotsem.Class // Default, where nothing is said
	on      string       // the id that it shares with others; "": one of its own
	what    string
}

// id is the name of what p's work is limited by, besides everything.
func (p project) id() string {
	if p.on != "" {
		return p.on
	}
	return p.name
}

// The projects: all but the last want more than they may have.
var projects = []project{
	{name: "mobile", limit: 4, clients: 12},
	{name: "reports", limit: 2, clients: 8},
	{name: "batch", limit: 3, clients: 9, what: "crashes its holders"},
	{name: "search", limit: 6, clients: 14, what: "its limit changes"},
	{name: "modest", limit: 4, clients: 2, what: "within its limit"},
	{name: "checkout", limit: 5, clients: 2, class: gotsem.Critical, on: "pictures", what: "critical, on one id with thumbs"},
	{name: "thumbs", limit: 5, clients: 12, class: gotsem.Sheddable, on: "pictures", what: "a flood of sheddable work"},
}

// everything is the id that all work takes a slot of too, and together how many there are:
// as many as the projects want at most, until the limit of one is raised.
const (
	everything = "all"
	together   = 22
)

// classes has sheddable work leave a part of every limit to the rest.
var classes = map[gotsem.Class]gotsem.ClassRule{gotsem.Sheddable: {Slots: .8}}

// limits are those of all ids, by their name.
func limits() map[string]int {
	all := map[string]int{everything: together}
	for _, p := range projects {
		all[p.id()] = p.limit
	}
	return all
}

const (
	crashing = "batch"
	changing = "search"
	raised   = 9
	lowered  = 3
)

// When things happen, in parts of the whole.
const (
	atCrash = 0.20
	atRaise = 0.35
	atKill  = 0.50
	atLower = 0.65
)

// ErrCap is what Run returns when more work ran at once than the limit allowed.
var ErrCap = errors.New("demo: the cap was broken")

// ttl is long enough to be seen, and short enough to be over in time.
func (o Options) ttl() time.Duration {
	return min(max((o.Length/6).Truncate(100*time.Millisecond), 500*time.Millisecond), 2*time.Second)
}

// limitOf is every process's own limit for an id.
func limitOf(_ context.Context, id string) (int, error) {
	_, name, _ := strings.Cut(id, "/")
	if limit, ok := limits()[name]; ok {
		return limit, nil
	}
	return 0, fmt.Errorf("demo: no project of the name %q", id)
}

// semaphore makes one of those that share the store.
func semaphore(s store.Store, ttl time.Duration, label string) (*gotsem.Semaphore, error) {
	return gotsem.New(gotsem.Options{Store: s, Limit: 1, LimitFunc: limitOf, TTL: ttl, Queue: -1, Classes: classes, Label: label})
}

// show is one run of the demo.
type show struct {
	Options
	tag     string // of this run: ids are tag/name
	where   string
	page    string // where it is to be seen; "": nowhere
	sem     *gotsem.Semaphore
	referee *referee
	load    *load
	pods    []*pod // none: everything is in this process
	report  *report
}

func (s *show) id(name string) string { return s.tag + "/" + name }

// Run runs the demo until it is over or ctx is, and prints how it goes and a
// summary. The error is ErrCap if the cap was broken.
func Run(ctx context.Context, o Options) error {
	s := &show{Options: o, tag: "demo-" + strings.ToLower(rand.Text()[:6]), referee: newReferee()}
	kept, where, end, err := o.store()
	if err != nil {
		return err
	}
	defer end()
	s.where = where
	if s.sem, err = semaphore(kept, o.ttl(), "demo"); err != nil {
		return err
	}
	defer s.sem.Close()
	if _, err := s.sem.Usage(ctx, s.id(changing)); err != nil { // is it there at all?
		return fmt.Errorf("the demo needs its store, %s: %w", where, err)
	}
	if o.Page != nil {
		url, stop, err := o.Page(s.sem)
		if err != nil {
			return err
		}
		defer stop()
		s.page = url
	}
	s.report = newReport(s)
	addresses, stop, err := s.serve(ctx)
	if err != nil {
		return err
	}
	defer stop()

	playing, over := context.WithTimeout(ctx, o.Length)
	defer over()
	s.load = startLoad(playing, addresses)
	events := s.direct(playing)
	s.report.watch(playing)
	s.load.wait()
	events()
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	err = s.report.summary(clean, ctx.Err() != nil)
	if reset := s.sem.ResetLimit(clean, s.id(changing)); reset != nil { // an override would stay
		err = errors.Join(err, fmt.Errorf("the limit of %s could not be taken off again: %w", s.id(changing), reset))
	}
	return err
}

// store is where the slots of the demo are.
func (o Options) store() (kept store.Store, where string, end func(), err error) {
	if o.Pods == 0 {
		return o.embedded, "the embedded store, one process", func() {}, nil
	}
	kept, where, end, err = o.Open(o.Where)
	if err != nil {
		return nil, "", nil, err
	}
	return kept, fmt.Sprintf("%s, %d pods", where, o.Pods), end, nil
}

// serve starts the service, here or in pods.
func (s *show) serve(ctx context.Context) (addresses func() []string, stop func(), err error) {
	if s.Pods > 0 {
		return s.startPods(ctx)
	}
	addr, stop, err := serve(&service{sem: s.sem, tag: s.tag, count: s.referee.counter("")})
	return func() []string { return []string{addr} }, stop, err
}

// direct makes things happen at their time. The returned func waits until they
// have.
func (s *show) direct(ctx context.Context) (wait func()) {
	type event struct {
		at   float64
		what func(context.Context)
	}
	events := []event{{atCrash, s.crash}, {atRaise, s.raise}, {atLower, s.lower}}
	if s.Pods > 0 {
		events[0] = event{atKill, s.kill}
	}
	done := make(chan struct{}, len(events))
	for _, e := range events {
		go func() {
			defer func() { done <- struct{}{} }()
			if sleep(ctx, time.Duration(e.at*float64(s.Length))) {
				e.what(ctx)
			}
		}()
	}
	return func() {
		for range events {
			<-done
		}
	}
}

// sleep reports whether d passed before ctx was over.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// raise and lower change the limit of a project that is running.

func (s *show) raise(ctx context.Context) {
	s.referee.raised(changing, raised) // before anybody is let in by it
	s.setLimit(ctx, raised)
}

func (s *show) lower(ctx context.Context) {
	if s.setLimit(ctx, lowered) {
		s.referee.lowered(changing, lowered) // when nobody is let in by the old one any more
	}
}

func (s *show) setLimit(ctx context.Context, n int) bool {
	if err := s.sem.SetLimit(ctx, s.id(changing), n); err != nil {
		if ctx.Err() == nil {
			s.report.event("%s: its limit could not be changed: %v", changing, err)
		}
		return false
	}
	s.report.limited(n)
	return true
}

// crash has the holders of a project crash until all its slots are held by the
// dead, and watches those lapse.
func (s *show) crash(ctx context.Context) {
	limit, _ := limitOf(ctx, s.id(crashing))
	s.load.crash(crashing, true)
	for sleep(ctx, 5*time.Millisecond) {
		if n, err := s.dead(ctx, crashing); err == nil && n >= limit {
			break
		}
	}
	s.load.crash(crashing, false)
	s.lapse(ctx, fmt.Sprintf("%s: its holders crashed", crashing), time.Now())
}

// lapse watches the slots of the dead until there are none. Those of which nothing is
// known have not lapsed.
func (s *show) lapse(ctx context.Context, what string, died time.Time) {
	count := func() (n int, known bool) {
		for name := range limits() {
			of, err := s.dead(ctx, name)
			switch {
			case err != nil:
				return 0, false
			case name != everything: // they are counted already
				n += of
			}
		}
		return n, true
	}
	left, known := count()
	for !known {
		if !sleep(ctx, 20*time.Millisecond) {
			s.report.event("%s; what they held is not known: the store did not answer", what)
			return
		}
		left, known = count()
	}
	s.report.crashed(what, left)
	for left > 0 || !known {
		if !sleep(ctx, 20*time.Millisecond) {
			return
		}
		left, known = count()
	}
	if ctx.Err() == nil {
		s.report.lapsed(time.Since(died))
	}
}

// dead counts the slots of an id whose holder is no more: nobody renews them.
func (s *show) dead(ctx context.Context, name string) (n int, err error) {
	holders, err := s.sem.Holders(ctx, s.id(name))
	if err != nil {
		return 0, err
	}
	for _, h := range holders {
		if s.isDead(h) {
			n += h.Weight
		}
	}
	return n, nil
}

func (s *show) isDead(h gotsem.Holder) bool {
	if s.Pods == 0 {
		return h.Fence == 0 // taken by TryAcquire: see service.crash
	}
	for _, p := range s.pods {
		if p.killed.Load() && strings.HasSuffix(h.Owner, " "+p.label()) {
			return true
		}
	}
	return false
}
