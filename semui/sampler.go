package semui

import (
	"cmp"
	"context"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/pain"
)

// Bounds of what is remembered.
const (
	lookFor   = 30 * time.Second // after the last request, looking goes on for so long
	rowsKept  = 20_000           // ids; beyond that, those that hurt least are forgotten
	hotMost   = 100              // ids looked at each interval
	worstMost = 20               // of them, those that this process refused most
	pointsOf  = 150              // of an id's history
	between   = 10 * time.Second // two walks, if the first was over sooner
)

// point is how an id stood once.
type point struct{ held, limit, line int }

// row is what is known of an id.
type row struct {
	id      string
	usage   gotsem.Usage
	at      time.Time // of usage
	history []point   // while it is hot
}

// sampler looks at the store while somebody looks at the page. One goroutine asks: each
// interval the ids that hurt most, and in what is left of the budget it walks over all.
type sampler struct {
	opt     Options
	refused *refusals

	mu      sync.Mutex
	rows    map[string]*row
	open    map[string]time.Time // ids whose screen is open, and when that was asked for last
	details details
	looked  time.Time // the last request
	err     error     // of the last call; nil: it was answered
	ok      time.Time // when the store answered last
	seen    int       // ids in this walk so far
	whole   int       // ids of the last walk that came to its end; -1: none did yet
	running bool
	closed  bool
	cancel  context.CancelFunc
	ended   sync.WaitGroup
	next    time.Time // the next call's turn
}

func newSampler(o Options, refused *refusals) *sampler {
	return &sampler{opt: o, refused: refused, rows: make(map[string]*row), open: make(map[string]time.Time), whole: -1}
}

// look tells that somebody looks, at one id if it is named. It reports false after close.
func (s *sampler) look(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.looked = time.Now()
	if id != "" && (len(s.open) < hotMost || !s.open[id].IsZero()) {
		s.open[id] = s.looked
	}
	if !s.running {
		s.running = true
		ctx, cancel := context.WithCancel(context.Background())
		s.cancel = cancel
		s.ended.Go(func() { s.run(ctx) })
	}
	return true
}

func (s *sampler) close() {
	s.mu.Lock()
	s.closed = true
	if s.cancel != nil {
		s.cancel()
	}
	s.mu.Unlock()
	s.ended.Wait()
}

// spend waits until a call is within the budget. Turns are given out in order.
func (s *sampler) spend(ctx context.Context) error {
	s.mu.Lock()
	turn := s.next
	if now := time.Now(); turn.Before(now) {
		turn = now
	}
	s.next = turn.Add(time.Second / time.Duration(s.opt.Budget))
	s.mu.Unlock()
	if wait := time.Until(turn); wait > 0 {
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
	return ctx.Err()
}

// leave reports whether nobody looks any more; then the next look starts anew.
func (s *sampler) leave(ctx context.Context) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() == nil && time.Since(s.looked) < lookFor {
		return false
	}
	s.running = false
	s.cancel()
	return true
}

func (s *sampler) run(ctx context.Context) {
	var walk func() (string, error, bool)
	stop := func() {}
	defer func() { stop() }()
	var resume time.Time    // when the next walk begins
	var paged time.Duration // what this walk has spent on pages, which spend does not see
	for !s.leave(ctx) {
		tick := time.Now().Add(s.opt.Interval)
		for _, id := range s.hot() {
			if s.ask(ctx, id, true) != nil {
				break // one failure is enough to know; the next interval asks again
			}
		}
		for ctx.Err() == nil && time.Now().Before(tick) {
			if walk == nil {
				if time.Now().Before(resume) {
					break
				}
				walk, stop = iter.Pull2(s.opt.Semaphore.IDs(ctx))
				paged = 0
				s.begin()
			}
			page := time.Now()
			id, err, more := walk()
			paged += time.Since(page)
			if more && err == nil {
				err = s.ask(ctx, id, false)
				s.count()
			}
			if !more || err != nil {
				s.finish(err)
				stop()
				walk, stop = nil, func() {}
				resume = time.Now().Add(max(between, 20*paged))
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Until(tick)):
		}
	}
}

// ask asks how an id stands, and keeps it.
func (s *sampler) ask(ctx context.Context, id string, hot bool) error {
	if err := s.spend(ctx); err != nil {
		return err
	}
	u, err := s.opt.Semaphore.Usage(ctx, id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err = err; err != nil {
		return err
	}
	r := s.rows[id]
	if r == nil {
		r = &row{id: id}
		s.rows[id] = r
	}
	r.usage, r.at = u, time.Now()
	s.ok = r.at
	if hot {
		if len(r.history) >= pointsOf {
			r.history = slices.Delete(r.history, 0, len(r.history)-pointsOf+1)
		}
		r.history = append(r.history, point{u.Active, u.Limit, u.Waiting})
	}
	if len(s.rows) > rowsKept {
		for _, r := range s.sorted()[rowsKept/2:] {
			delete(s.rows, r.id)
		}
	}
	return nil
}

// sorted returns all rows, by pain. It needs mu.
func (s *sampler) sorted() []*row {
	all := make([]*row, 0, len(s.rows))
	for _, r := range s.rows {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b *row) int { return cmp.Or(pain.Compare(a.usage, b.usage), cmp.Compare(a.id, b.id)) })
	return all
}

// hot returns the ids to look at now: those pinned, those that are open, those that this
// process refused most, and those that hurt most. What is idle and none of these is
// forgotten.
func (s *sampler) hot() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := slices.Clone(s.opt.Pinned)
	for id, at := range s.open {
		if time.Since(at) > lookFor {
			delete(s.open, id)
		} else if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	for _, id := range s.refused.worst(worstMost) {
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	most := min(hotMost, max(1, int(float64(s.opt.Budget)*s.opt.Interval.Seconds()/2))) // half of the budget walks
	for _, r := range s.sorted() {
		switch named := slices.Contains(ids, r.id); {
		case named:
		case pain.Idle(r.usage):
			delete(s.rows, r.id)
		case len(ids) < most:
			ids = append(ids, r.id)
		default:
			r.history = nil
		}
	}
	return ids
}

func (s *sampler) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = 0
}

func (s *sampler) count() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen++
}

// finish ends a walk, with the error that broke it off, if one did.
func (s *sampler) finish(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.whole = s.seen
	} else {
		s.err = err
	}
}
