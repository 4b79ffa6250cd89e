// Package watch looks at all ids of a store at a bounded pace while somebody looks, and says
// which hurt most: for the operators' page, and for the terminal.
package watch

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/store"
)

// Options say what is watched, and how often.
type Options struct {
	Semaphore *gotsem.Semaphore
	Interval  time.Duration        // between two looks at the ids that hurt most
	Budget    int                  // calls to the store a second, at most
	Pinned    []string             // ids that are always looked at
	Also      func(n int) []string // further ones, n at most; nil: none
}

// Bounds of what is remembered.
const (
	lookFor  = 30 * time.Second // after the last request, looking goes on for so long
	rowsKept = 20_000           // ids; beyond that, those that hurt least are forgotten
	hotMost  = 100              // ids looked at each interval
	alsoMost = 20               // of them, those that this process refused most
	pointsOf = 150              // of an id's history
	between  = 10 * time.Second // two walks, if the first was over sooner

	walkPause = 100 * time.Millisecond // between two pieces, of fifty ids or a thousand keys
)

// Point is how an id stood once.
type Point struct{ Held, Limit, Line int }

// Row is what is known of an id.
type Row struct {
	ID      string
	Usage   gotsem.Usage
	At      time.Time // of Usage
	History []Point   // while it is looked at each interval
}

// State is how the watching goes.
type State struct {
	Err   error     // of the last call; nil: it was answered
	OK    time.Time // when the store answered last; zero: never
	Seen  int       // ids in this walk over all so far
	Whole int       // ids of the last walk that came to its end; -1: none did yet
}

// Watch looks at the store while somebody looks at it. One goroutine asks each interval for
// the ids that hurt most, within the budget, and one walks over all, ten pieces a second.
type Watch struct {
	opt Options

	mu      sync.Mutex
	rows    map[string]*Row
	open    map[string]time.Time // ids that are looked at by themselves, and when that was asked for last
	looked  time.Time            // the last Look
	state   State
	running bool
	closed  bool
	cancel  context.CancelFunc
	ended   sync.WaitGroup
	next    time.Time // the next call's turn
}

// New makes a watch. It asks nothing of the store yet.
func New(o Options) *Watch {
	if o.Also == nil {
		o.Also = func(int) []string { return nil }
	}
	return &Watch{opt: o, rows: make(map[string]*Row), open: make(map[string]time.Time), state: State{Whole: -1}}
}

// View has f look at the rows, those that hurt most first, and at how it goes. f keeps
// nothing of rows, and does not block.
func (w *Watch) View(f func(rows []*Row, st State)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(w.sorted(), w.state)
}

// Row returns what is known of an id, and whether that is no older than two intervals.
func (w *Watch) Row(id string) (r Row, fresh bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	known := w.rows[id]
	if known == nil {
		return Row{ID: id}, false
	}
	r = *known
	r.History = slices.Clone(known.History)
	return r, time.Since(r.At) < 2*w.opt.Interval
}

// Look tells that somebody looks, at one id if it is named. It reports false after Close.
func (w *Watch) Look(id string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return false
	}
	w.looked = time.Now()
	if id != "" && (len(w.open) < hotMost || !w.open[id].IsZero()) {
		w.open[id] = w.looked
	}
	if !w.running {
		w.running = true
		ctx, cancel := context.WithCancel(context.Background())
		w.cancel = cancel
		w.ended.Go(func() { w.run(ctx) })
	}
	return true
}

// Close ends the looking, and returns when it has ended.
func (w *Watch) Close() {
	w.mu.Lock()
	w.closed = true
	if w.cancel != nil {
		w.cancel()
	}
	w.mu.Unlock()
	w.ended.Wait()
}

// Spend waits until a call is within the budget. Turns are given out in order.
func (w *Watch) Spend(ctx context.Context) error {
	w.mu.Lock()
	turn := w.next
	if now := time.Now(); turn.Before(now) {
		turn = now
	}
	w.next = turn.Add(time.Second / time.Duration(w.opt.Budget))
	w.mu.Unlock()
	if wait := time.Until(turn); wait > 0 {
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
	return ctx.Err()
}

// leave reports whether nobody looks any more; then the next look starts anew.
func (w *Watch) leave(ctx context.Context) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if ctx.Err() == nil && time.Since(w.looked) < lookFor {
		return false
	}
	w.running = false
	w.cancel()
	return true
}

func (w *Watch) run(ctx context.Context) {
	var walking sync.WaitGroup
	walking.Go(func() { w.walk(ctx) })
	defer walking.Wait()
	for !w.leave(ctx) {
		tick := time.Now().Add(w.opt.Interval)
		for _, id := range w.hot() {
			if w.Ask(ctx, id) != nil {
				break // one failure is enough to know; the next interval asks again
			}
		}
		_ = store.Rest(ctx, time.Until(tick))
	}
}

// walk walks over all ids, again and again.
func (w *Watch) walk(ctx context.Context) {
	for ctx.Err() == nil {
		began := time.Now()
		w.begin()
		var failed error
		for st, err := range w.opt.Semaphore.Walk(ctx, walkPause) {
			if failed = err; err == nil {
				w.keep(st.ID, st.Usage, false)
				w.count()
			}
		}
		if ctx.Err() == nil { // what was broken off says nothing
			w.finish(failed)
		}
		if ctx.Err() == nil && failed == nil {
			w.forget(began)
		}
		_ = store.Rest(ctx, max(between, time.Since(began)/10))
	}
}

// Ask asks how an id stands, and keeps it.
func (w *Watch) Ask(ctx context.Context, id string) error {
	if err := w.Spend(ctx); err != nil {
		return err
	}
	u, err := w.opt.Semaphore.Usage(ctx, id)
	if err != nil {
		if ctx.Err() == nil {
			w.finish(err)
		}
		return err
	}
	w.keep(id, u, true)
	return nil
}

// keep keeps how an id stands; with a history if it is hot.
func (w *Watch) keep(id string, u gotsem.Usage, hot bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.rows[id]
	if r == nil {
		r = &Row{ID: id}
		w.rows[id] = r
	}
	r.Usage, r.At = u, time.Now()
	w.state.OK, w.state.Err = r.At, nil
	if hot {
		if len(r.History) >= pointsOf {
			r.History = slices.Delete(r.History, 0, len(r.History)-pointsOf+1)
		}
		r.History = append(r.History, Point{u.Active, u.Limit, u.Waiting})
	}
	if len(w.rows) > rowsKept {
		for _, r := range w.sorted()[rowsKept/2:] {
			delete(w.rows, r.ID)
		}
	}
}

// sorted returns all rows, by pain. It needs mu.
func (w *Watch) sorted() []*Row {
	all := make([]*Row, 0, len(w.rows))
	for _, r := range w.rows {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b *Row) int { return cmp.Or(Compare(a.Usage, b.Usage), cmp.Compare(a.ID, b.ID)) })
	return all
}

// hot returns the ids to look at now: those pinned, those that are open, those of
// Options.Also, and those that hurt most. What is idle and none of these is
// forgotten.
func (w *Watch) hot() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	ids := slices.Clone(w.opt.Pinned)
	for id, at := range w.open {
		if time.Since(at) > lookFor {
			delete(w.open, id)
		} else if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	for _, id := range w.opt.Also(alsoMost) {
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	most := min(hotMost, max(1, int(float64(w.opt.Budget)*w.opt.Interval.Seconds())))
	for _, r := range w.sorted() {
		switch named := slices.Contains(ids, r.ID); {
		case named:
		case Idle(r.Usage):
			delete(w.rows, r.ID)
		case len(ids) < most:
			ids = append(ids, r.ID)
		default:
			r.History = nil
		}
	}
	return ids
}

func (w *Watch) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.state.Seen = 0
}

func (w *Watch) count() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.state.Seen++
}

// forget drops the ids that were not seen since a walk began that has come to its end.
func (w *Watch) forget(began time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, r := range w.rows {
		if r.At.Before(began) {
			delete(w.rows, id)
		}
	}
}

// finish ends a walk, with the error that broke it off, if one did.
func (w *Watch) finish(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		w.state.Whole = w.state.Seen
	} else {
		w.state.Err = err
	}
}
