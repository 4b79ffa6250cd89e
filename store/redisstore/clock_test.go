package redisstore

import (
	"regexp"
	"testing"
	"time"
)

// A call that was sent later is answered first: the header of the earlier one was
// then not one that the scripts can read, since it said "-3 ms ago".
func TestHeaderOfACallThatWasOvertaken(t *testing.T) {
	s := &Store{headers: [2]string{"0 0 token " + plainClock, "1 0 token " + plainClock}}
	sent := time.Now()
	s.clocks.read(7, 1_700_000_000_000, sent.Add(3*time.Millisecond), sent.Add(4*time.Millisecond), false)
	h := *s.header(&call{slot: 7, strict: true, sent: sent})
	if !regexp.MustCompile(`^\d \d \S+ \d \d+ \d+$`).MatchString(h) {
		t.Errorf("%q is not a header", h)
	}
}
