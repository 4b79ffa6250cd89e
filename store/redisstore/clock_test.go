package redisstore

import (
	"context"
	"regexp"
	"testing"
	"time"

	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store"
)

// A call that was sent later is answered first: the header of the earlier one was
// then not one that the scripts can read, since it said "-3 ms ago".
func TestHeaderOfACallThatWasOvertaken(t *testing.T) {
	cd := newCodec("sem:", "token", &client{})
	sent := time.Now()
	cd.clocks.read(7, 1_700_000_000_000, sent.Add(3*time.Millisecond), sent.Add(4*time.Millisecond), false)
	h := *cd.header(&call{callKey: callKey{slot: 7}, strict: true, sent: sent})
	if !regexp.MustCompile(`^\d \d \S+ \d+ \d \d+ \d+ \d+$`).MatchString(h) {
		t.Errorf("%q is not a header", h)
	}
}

// The proof that the clock jumped was told, and answered; an older call, answered later,
// must not bring the old clock back.
func TestAnOldAnswerSetTheClockBack(t *testing.T) {
	var c clocks
	at := func(ms int) time.Time { return epoch.Add(time.Duration(ms) * time.Millisecond) }
	c.read(0, 1_060_000, at(0), at(1), false)
	c.read(0, 1_000_010, at(10), at(11), false)
	if seen, jump, behind := c.header(0, at(12)); seen != '2' || jump > 1_000_010 || behind < 60_000 || behind > 60_010 {
		t.Fatalf("%c %d %d; want a jump by a minute", seen, jump, behind)
	}
	c.read(0, 1_060_005, at(5), at(13), false) // from before the jump
	c.read(0, 1_000_020, at(20), at(21), true)
	if seen, server, behind := c.header(0, at(20)); seen != '4' || server != 1_000_020 || behind < 59_990 || behind > 60_010 {
		t.Fatalf("%c %d %d; want a clock that is a minute behind its fences", seen, server, behind)
	}
}

// A clock that went back catches up with the fences that were given before, which rise
// at half its pace.
func TestAClockThatWentBackCatchesUp(t *testing.T) {
	var c clocks
	at := func(s int) time.Time { return epoch.Add(time.Duration(s) * time.Second) }
	c.read(0, 1_060_000, at(0), at(0), false)
	c.read(0, 1_000_000, at(0), at(0), false)
	for s := range 119 {
		c.read(0, int64(1_000_000+1000*s), at(s), at(s), true)
		want := 60_002 - 500*int64(s)
		if seen, server, behind := c.header(0, at(s)); seen != '4' || server != int64(1_000_000+1000*s) || behind != want {
			t.Fatalf("after %d s: %c %d %d; want it %d ms behind", s, seen, server, behind, want)
		}
	}
	c.read(0, 1_121_000, at(121), at(121), true)
	if seen, _, _ := c.header(0, at(121)); seen != '1' {
		t.Fatalf("%c after two minutes", seen)
	}
}

// One process knew that the clock had gone back, another did not, and was the first to
// speak after a second loss: it learns from the numbers that it is given.
func TestAProcessDidNotLearnFromItsFences(t *testing.T) {
	var c clocks
	c.read(0, 1_000_000, epoch, epoch, false)
	c.gave(0, 1_000_000_000+3)
	if seen, _, _ := c.header(0, epoch); seen != '1' {
		t.Fatalf("%c after a fence that is as old as the clock", seen)
	}
	for n := range uint64(100) { // one grant does not raise the next
		c.gave(0, 1_060_000_000+n)
		if seen, server, behind := c.header(0, epoch); seen != '4' || server+behind != 1_060_000 {
			t.Fatalf("%c %d %d after the fence %d", seen, server, behind, 1_060_000_000+n)
		}
	}
}

var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// Fences fell when the server's clock went back and what it knew was lost within that
// time: they are read off the clock.
func TestFencesFellAfterTheClockWentBack(t *testing.T) {
	const grace, back = 500 * time.Millisecond, time.Minute
	ctx := context.Background()
	slots, limit := 0, 99
	ask := func(t *testing.T, s *Store, id string, queue int, ticket uint64) store.Decision {
		t.Helper()
		slots++
		d, err := s.Acquire(ctx, &store.Request{
			ID: id, SlotID: string(rune('a' + slots)), Weight: 1, Limit: limit, TTL: time.Minute, Grace: grace, Queue: queue, Ticket: ticket, Budget: 5 * time.Second,
		})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	granted := func(t *testing.T, s *Store, id string) (fence uint64) {
		t.Helper()
		soon(t, "a grant", func() bool {
			d := ask(t, s, id, 0, 0)
			fence = d.Fence
			return d.Outcome == store.Granted
		})
		return fence
	}
	// The clock cannot be set here; what was read off it can.
	wasAhead := func(s *Store) (fence uint64) {
		s.codec.clocks.mu.Lock()
		defer s.codec.clocks.mu.Unlock()
		k := s.codec.clocks.of[0]
		k.server += back.Milliseconds()
		return uint64(k.server+time.Since(k.sent).Milliseconds()) * 1000
	}
	lose := func(t *testing.T, srv *redistest.Server) { command(t, srv, "FLUSHALL") }

	above := func(t *testing.T, what string, got, last uint64) {
		t.Helper()
		if got <= last {
			t.Fatalf("%s: %d, after %d: %d µs lower", what, got, last, last-got)
		}
	}

	t.Run("a process knows", func(t *testing.T) {
		srv := redistest.Start(t)
		one, other := opened(t, srv.Client(), "sem:"), opened(t, srv.Client(), "sem:")
		granted(t, one, "x")
		granted(t, other, "x")
		old := wasAhead(one)
		last := old
		for _, loss := range []string{"first", "second", "third"} {
			lose(t, srv)
			if d := ask(t, one, "x", 0, 0); d.Outcome != store.Recovering {
				t.Fatalf("the %s loss: %+v", loss, d)
			}
			for _, s := range []*Store{one, other, opened(t, srv.Client(), "sem:")} {
				fence := granted(t, s, "x")
				above(t, "a fence after the "+loss+" loss", fence, last)
				last = fence
			}
			// The plain case is decided elsewhere; the first call of a process sweeps, and is
			// no plain one.
			s := opened(t, srv.Client(), "sem:")
			for _, id := range []string{"a" + loss, "b" + loss} {
				above(t, "the fence of another id", granted(t, s, id), old)
			}
		}
	})
	t.Run("another process was quicker", func(t *testing.T) {
		srv := redistest.Start(t)
		one, other := opened(t, srv.Client(), "sem:"), opened(t, srv.Client(), "sem:")
		granted(t, one, "x")
		granted(t, other, "x")
		old := wasAhead(one)
		lose(t, srv)
		ask(t, other, "x", 0, 0)
		for range 2 { // it sees that the clock went back, and says so
			if d := ask(t, one, "x", 0, 0); d.Outcome != store.Recovering {
				t.Fatalf("%+v", d)
			}
		}
		above(t, "a fence", granted(t, other, "x"), old)
	})
	t.Run("only the marker knows", func(t *testing.T) {
		srv := redistest.Start(t)
		granted(t, opened(t, srv.Client(), "sem:"), "x")
		seen := time.Now().Add(back)
		command(t, srv, "HSET", markerKey("sem:", false, 0), "seen", seen.UnixMilli())
		last := uint64(seen.UnixMicro())
		for range 3 {
			// Nobody held or waited, for longer than the id was remembered.
			command(t, srv, "DEL", keysOf("sem:", "x").m, keysOf("sem:", "x").s)
			fence := granted(t, opened(t, srv.Client(), "sem:"), "x")
			above(t, "a fence", fence, last)
			last = fence
			command(t, srv, "HINCRBY", markerKey("sem:", false, 0), "seen", -3000)
		}
	})
	t.Run("tickets", func(t *testing.T) {
		srv := redistest.Start(t)
		one := opened(t, srv.Client(), "sem:")
		granted(t, one, "x")
		old := wasAhead(one)
		lose(t, srv)
		ask(t, one, "y", 0, 0)
		limit = 0 // nobody looks at the marker for a grant
		if d := ask(t, one, "x", 5, old); d.Ticket != old {
			t.Fatalf("who came back with the ticket %d has %d", old, d.Ticket)
		}
		above(t, "the ticket of who is new", ask(t, one, "x", 5, 0).Ticket, old)
	})
}
