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

func TestJudgeSeesTooManyAndFencesThatFall(t *testing.T) {
	fine := []Span{
		{ID: "a", Slot: "1", Weight: 1, Fence: 5, Asked: ms(0), Start: ms(1), End: ms(10)},
		{ID: "a", Slot: "2", Weight: 1, Fence: 4, Asked: ms(5), Start: ms(12), End: ms(20)}, // it had asked before
	}
	if wrong := Judge(fine, 1, true); len(wrong) > 0 {
		t.Errorf("%q", wrong)
	}
	for _, bad := range [][]Span{
		append(fine, Span{ID: "a", Slot: "3", Weight: 1, Fence: 9, Asked: ms(13), Start: ms(14), End: ms(15)}),
		append(fine, Span{ID: "a", Slot: "3", Weight: 1, Fence: 3, Asked: ms(30), Start: ms(31)}),
	} {
		if wrong := Judge(bad, 1, true); len(wrong) != 1 {
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
