package faults

import (
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }

func TestMostIsWhatOverlaps(t *testing.T) {
	spans := []Span{
		{ID: "a", Slot: "1", Weight: 1, Start: ms(0), End: ms(10)},
		{ID: "a", Slot: "2", Weight: 2, Start: ms(10), End: ms(20)}, // who leaves makes room first
		{ID: "a", Slot: "3", Weight: 1, Start: ms(15)},              // has not ended
		{ID: "b", Slot: "4", Weight: 9, Start: ms(5), End: ms(6)},
		{ID: "a", Slot: "5", Weight: 1, Start: ms(30), End: ms(31)},
	}
	if most, at := Most(spans, "a", 0); most != 3 || at != ms(15) {
		t.Errorf("%d at %v, want 3 at 15ms", most, at)
	}
	if most, _ := Most(spans, "a", ms(25)); most != 2 {
		t.Errorf("%d from 25ms on, want 2", most)
	}
	if least := Least(spans, "a", ms(1), ms(9)); least != 1 {
		t.Errorf("at least %d, want 1", least)
	}
	if first := FirstAfter(spans, ms(16), func(s Span) bool { return s.ID == "a" }); first != ms(14) {
		t.Errorf("first after %v, want 14ms", first)
	}
}

func TestMostCountsWhoHeldBefore(t *testing.T) {
	spans := []Span{
		{ID: "a", Slot: "1", Weight: 3, Start: ms(0), End: ms(10)},
		{ID: "a", Slot: "2", Weight: 1, Start: ms(20), End: ms(30)},
	}
	for from, want := range map[int]int{5: 3, 10: 1, 25: 1, 30: 0} {
		if most, _ := Most(spans, "a", ms(from)); most != want {
			t.Errorf("%d from %d ms on, want %d", most, from, want)
		}
	}
}

func TestExcessIsWhatIsAboveTheLimit(t *testing.T) {
	spans := []Span{
		{ID: "a", Slot: "1", Weight: 2, Start: ms(0), End: ms(1000)},
		{ID: "a", Slot: "2", Weight: 1, Start: ms(500), End: ms(700)},
		{ID: "a", Slot: "3", Weight: 1, Start: ms(600), End: ms(2000)},
		{ID: "b", Slot: "4", Weight: 9, Start: ms(0), End: ms(2000)},
	}
	slots, until := Excess(spans, "a", 2, ms(400))
	if want := 0.1 + 0.2 + 0.3; slots < want-1e-9 || slots > want+1e-9 || until != ms(600) {
		t.Errorf("%v slot-seconds until %v, want %v until 600ms", slots, until, want)
	}
	if slots, until := Excess(spans, "a", 4, ms(400)); slots != 0 || until != 0 {
		t.Errorf("%v slot-seconds until %v, want none", slots, until)
	}
}

func TestJudgeSeesTooManyAndFencesThatFall(t *testing.T) {
	fine := []Span{
		{ID: "a", Slot: "1", Weight: 1, Fence: 5, Asked: ms(0), Start: ms(1), End: ms(10)},
		{ID: "a", Slot: "2", Weight: 1, Fence: 4, Asked: ms(5), Start: ms(12), End: ms(20)}, // it had asked before
	}
	if wrong := Judge(fine, 1); len(wrong) > 0 {
		t.Errorf("%q", wrong)
	}
	for _, bad := range [][]Span{
		append(fine, Span{ID: "a", Slot: "3", Weight: 1, Fence: 9, Asked: ms(13), Start: ms(14), End: ms(15)}),
		append(fine, Span{ID: "a", Slot: "3", Weight: 1, Fence: 3, Asked: ms(30), Start: ms(31)}),
	} {
		if wrong := Judge(bad, 1); len(wrong) != 1 {
			t.Errorf("%q, want one thing wrong", wrong)
		}
	}
}

func TestRefereeEndsWhatWasKilled(t *testing.T) {
	r := NewReferee()
	r.Begin(Span{Who: "w", ID: "a", Slot: "1", Weight: 1, Start: ms(1)})
	r.Begin(Span{Who: "v", ID: "a", Slot: "2", Weight: 1, Start: ms(1)})
	r.Killed("w", ms(5))
	r.End("w", "1", ms(9), true) // too late
	if n := r.Held("a"); n != 1 {
		t.Errorf("%d held, want 1", n)
	}
	if s := r.Spans()[0]; s.End != ms(5) || s.Told {
		t.Errorf("%+v", s)
	}
}

func TestOvertakenIsWhoStoodThere(t *testing.T) {
	wait := func(slot string, ticket uint64, sent, back int) Ask {
		return Ask{ID: "a", Slot: slot, Ticket: ticket, Sent: ms(sent), Back: ms(back)}
	}
	grant := func(slot string, ticket uint64, first, since, back int) Ask {
		return Ask{ID: "a", Slot: slot, Ticket: ticket, First: ms(first), Since: ms(since), Sent: ms(back - 1), Back: ms(back), Granted: true}
	}
	for name, c := range map[string]struct {
		asks          []Ask
		judged, wrong int
	}{
		"a later ticket":                   {[]Ask{wait("x", 1, 0, 1), grant("y", 2, 5, 10, 20), wait("x", 1, 21, 22)}, 1, 1},
		"an earlier ticket":                {[]Ask{wait("x", 3, 0, 1), grant("y", 2, 5, 10, 20), wait("x", 3, 21, 22)}, 1, 0},
		"before a loss":                    {[]Ask{wait("x", 1, 0, 1), grant("y", 2, 5, 10, 20), wait("x", 1, 190, 210)}, 0, 0},
		"after a loss":                     {[]Ask{wait("x", 1, 0, 1), wait("x", 1, 300, 301), grant("y", 2, 5, 310, 320), wait("x", 1, 321, 322)}, 1, 1},
		"a newcomer":                       {[]Ask{wait("x", 1, 0, 1), grant("y", 0, 5, 5, 20), wait("x", 1, 21, 22)}, 1, 1},
		"who asked at the same time":       {[]Ask{wait("x", 1, 0, 6), grant("y", 0, 5, 10, 20), wait("x", 1, 21, 22)}, 0, 0},
		"who was not seen to wait after":   {[]Ask{wait("x", 1, 0, 1), grant("y", 2, 5, 10, 20), wait("x", 1, 19, 22)}, 0, 0},
		"who was not seen to wait before":  {[]Ask{wait("x", 1, 0, 11), grant("y", 2, 5, 10, 20), wait("x", 1, 21, 22)}, 0, 0},
		"who did not ask for two seconds":  {[]Ask{wait("x", 1, 0, 1), grant("y", 2, 5, 10, 20), wait("x", 1, 2021, 2022)}, 0, 0},
		"who asked often":                  {[]Ask{wait("x", 1, 0, 1), wait("x", 1, 100, 101), wait("x", 1, 102, 103), grant("y", 2, 5, 110, 150), wait("x", 1, 151, 152)}, 1, 1},
		"another id, or the same who asks": {[]Ask{{ID: "b", Slot: "x", Ticket: 1, Back: 1}, wait("y", 2, 5, 10), grant("y", 2, 5, 10, 20)}, 0, 0},
	} {
		if judged, wrong := Overtaken(c.asks, []Stretch{{ms(200), ms(210)}}); judged != c.judged || len(wrong) != c.wrong {
			t.Errorf("%s: %d judged, %q, want %d and %d", name, judged, wrong, c.judged, c.wrong)
		}
	}
}

// The model refuses what a semaphore must not say, and takes what it may not know.
func TestHistoryModel(t *testing.T) {
	op := func(client int, call, ret int64, in historyInput, out historyOutput) porcupine.Operation {
		return porcupine.Operation{ClientId: client, Call: call, Return: ret, Input: in, Output: out}
	}
	try := func(slot string) historyInput { return historyInput{id: "a", slot: slot} }
	release := func(slot string) historyInput { return historyInput{id: "a", slot: slot, release: true} }
	for name, c := range map[string]struct {
		legal   bool
		history []porcupine.Operation
	}{
		"one after the other": {true, []porcupine.Operation{op(0, 0, 1, try("x"), outGranted), op(0, 2, 3, release("x"), 0), op(1, 4, 5, try("y"), outGranted)}},
		"two at once":         {false, []porcupine.Operation{op(0, 0, 1, try("x"), outGranted), op(1, 2, 3, try("y"), outGranted)}},
		"full, and nobody":    {false, []porcupine.Operation{op(0, 0, 1, try("x"), outFull)}},
		"full by what nobody heard of": {true, []porcupine.Operation{
			op(0, 0, 99, try("x"), outUnknown), op(2, 1, 99, release("x"), outUnknown), op(1, 2, 3, try("y"), outFull)}},
		"given back by what nobody heard of": {true, []porcupine.Operation{
			op(0, 0, 1, try("x"), outGranted), op(0, 2, 99, release("x"), 0), op(1, 3, 4, try("y"), outGranted)}},
	} {
		if got := porcupine.CheckOperations(historyModel(1), c.history); got != c.legal {
			t.Errorf("%s: legal %v, want %v", name, got, c.legal)
		}
	}
}

func TestAChecksNameIsItsOwn(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range Checks() {
		if seen[c.Name] {
			t.Errorf("two checks are called %q", c.Name)
		}
		seen[c.Name] = true
	}
}
