package watch

import (
	"slices"
	"testing"
	"time"

	"github.com/ashfaqjani916/gotsem"
)

// An id whose line is old hurts more than a full one, and that more than one with room.
func TestTheOldestLineHurtsMost(t *testing.T) {
	worst := []gotsem.Usage{
		{Active: 1, Limit: 9, Waiting: 1, HeadAge: time.Minute},
		{Active: 9, Limit: 9, Waiting: 50, HeadAge: time.Second},
		{Active: 9, Limit: 9, Waiting: 2, HeadAge: time.Second},
		{Active: 12, Limit: 9},
		{Active: 9, Limit: 9},
		{Active: 90, Limit: 100},
		{Active: 9, Limit: 100},
		{Limit: 100},
	}
	shuffled := slices.Clone(worst)
	slices.Reverse(shuffled)
	slices.SortFunc(shuffled, Compare)
	if !slices.Equal(shuffled, worst) {
		t.Errorf("%+v", shuffled)
	}
}

func TestAnIDStandsInOneWord(t *testing.T) {
	for want, u := range map[string]gotsem.Usage{
		"Paused":  {LimitSet: true, Waiting: 3, Active: 2},
		"Over":    {Limit: 2, Active: 3, Waiting: 1},
		"Waiting": {Limit: 2, Active: 2, Waiting: 1},
		"Full":    {Limit: 2, Active: 2},
		"Busy":    {Limit: 2, Active: 1},
		"Idle":    {Limit: 2},
	} {
		if got := Word(u, true); got != want || Idle(u) != (want == "Idle") {
			t.Errorf("%+v: %s, want %s", u, got, want)
		}
	}
	if got := Word(gotsem.Usage{Active: 3}, false); got != "Busy" {
		t.Errorf("of a limit that is not known: %s", got)
	}
}
