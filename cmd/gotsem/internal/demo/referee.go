package demo

import (
	"errors"
	"sync"
	"time"
)

// settling is how long after SetLimit has returned work may still be reported that
// was let in before.
const settling = 500 * time.Millisecond

// referee counts the work that runs, and knows nothing of the store. Work is
// reported after its slot was granted, and its end, which the worker waits to see
// counted, before the slot is released. So what is counted is at most what is
// held, whatever is late.
type referee struct {
	mu     sync.Mutex
	scores map[string]*score
	gone   map[string]bool // pods that were killed
}

// score is the work at one id.
type score struct {
	by      map[string]int // by pod
	running int
	most    int // at once, ever
	limit   int
	lower   int       // the limit from then on, if then is not zero
	then    time.Time // see settling
	broken  int       // how often work began above the limit
}

func newReferee() *referee {
	r := &referee{scores: make(map[string]*score), gone: make(map[string]bool)}
	for name, limit := range limits() {
		r.scores[name] = &score{by: make(map[string]int), limit: limit}
	}
	return r
}

var errNoSuch = errors.New("demo: no such project, or a pod that is gone")

// counter counts for one pod.
func (r *referee) counter(pod string) counter {
	return func(project string) (func(), error) {
		if err := r.begin(project, pod); err != nil {
			return nil, err
		}
		return func() { r.end(project, pod) }, nil
	}
}

func (r *referee) begin(project, pod string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	p, ok := projectOf(project)
	if !ok || r.gone[pod] {
		return errNoSuch
	}
	r.scores[p.id()].begin(pod)
	r.scores[everything].begin(pod)
	return nil
}

func (s *score) begin(pod string) {
	if !s.then.IsZero() && time.Now().After(s.then) {
		s.limit, s.then = s.lower, time.Time{}
	}
	s.running++
	s.by[pod]++
	s.most = max(s.most, s.running)
	if s.running > s.limit {
		s.broken++
	}
}

func (r *referee) end(project, pod string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p, ok := projectOf(project); ok {
		r.scores[p.id()].end(pod)
		r.scores[everything].end(pod)
	}
}

func (s *score) end(pod string) {
	if s.by[pod] > 0 {
		s.by[pod]--
		s.running--
	}
}

// raised says that the limit is about to be raised.
func (r *referee) raised(project string, limit int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.scores[project].limit = limit
}

// lowered says that the limit has been lowered: nothing begins any more that makes
// more than the new one. What runs may go on.
func (r *referee) lowered(project string, limit int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.scores[project]
	s.lower, s.then = limit, time.Now().Add(settling)
}

// forget takes off the work of a pod that was killed, and hears no more of it.
func (r *referee) forget(pod string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gone[pod] = true
	for _, s := range r.scores {
		s.running -= s.by[pod]
		delete(s.by, pod)
	}
}

// broken is how often a limit was.
func (r *referee) broken() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.scores {
		n += s.broken
	}
	return n
}

// verdict is a score in numbers.
type verdict struct {
	Running int `json:"working"`
	Most    int `json:"most_at_once"`
	Broken  int `json:"cap_broken"`
}

func (r *referee) verdict(name string) verdict {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.scores[name]
	return verdict{s.running, s.most, s.broken}
}
