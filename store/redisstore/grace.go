package redisstore

import (
	"context"
	"time"
)

// A grace must be as long as the longest TTL of those who hold something: whoever
// notices the loss may be one with a short TTL. The marker, which would know, is lost with
// the rest, so each process learns the longest from it while it is there.

// graceEvery is how often a process says its grace, and learns the longest, while it is
// at work; one with a short grace more often.
const graceEvery = 10 * time.Second

// graces returns the grace of a request, at least the longest that is known; 0: none.
func (s *Store) graces(own time.Duration) int64 {
	if own <= 0 {
		return own.Milliseconds()
	}
	return max(own.Milliseconds(), s.longest.Load())
}

// learnGrace says the process's own grace at the marker of a strict call, and learns the
// longest, if it is time for that.
func (s *Store) learnGrace(ctx context.Context, calls []*call) {
	own := s.grace.Load()
	now, last := time.Now().UnixNano(), s.learned.Load()
	if own == 0 || now-last < int64(min(graceEvery, time.Duration(own)*time.Millisecond/4)) || !s.learned.CompareAndSwap(last, now) {
		return
	}
	for _, c := range calls {
		if c.strict && c.cmd.Err() == nil {
			if n, err := s.client.trips().Eval(ctx, graceText, []string{*s.marker(c.slot)}, own).Int64(); err == nil {
				s.longest.Store(n)
			}
			return
		}
	}
}
