package watch

import (
	"cmp"

	"github.com/ashfaqjani916/gotsem"
)

// Compare orders ids: whose line is the oldest comes first, then the longest line, then
// the fullest.
func Compare(a, b gotsem.Usage) int {
	return cmp.Or(cmp.Compare(b.HeadAge, a.HeadAge), cmp.Compare(b.Waiting, a.Waiting), cmp.Compare(fill(b), fill(a)), cmp.Compare(b.Active, a.Active))
}

func fill(u gotsem.Usage) float64 { return float64(u.Active) / float64(max(u.Limit, 1)) }

// Word says how an id stands. limited: its limit is known.
func Word(u gotsem.Usage, limited bool) string {
	switch {
	case u.LimitSet && u.Limit == 0:
		return "Paused"
	case limited && u.Active > u.Limit:
		return "Over"
	case u.Waiting > 0:
		return "Waiting"
	case limited && u.Active >= u.Limit:
		return "Full"
	case u.Active > 0:
		return "Busy"
	}
	return "Idle"
}

// Idle reports whether there is nothing to show.
func Idle(u gotsem.Usage) bool { return u.Active == 0 && u.Waiting == 0 && !u.LimitSet }
