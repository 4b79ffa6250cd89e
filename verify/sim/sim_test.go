package sim

import (
	"strings"
	"testing"
	"time"
)

// seeds is how many are played of each kind; go run . sim plays as many as one likes.
func seeds(t *testing.T, n int) int {
	t.Helper()
	if testing.Short() {
		return n / 4
	}
	return n
}

func TestASeedIsAReplay(t *testing.T) {
	for f := range faults {
		a, b := Run(7, Params{Fault: f, S: time.Second}, true), Run(7, Params{Fault: f, S: time.Second}, true)
		if strings.Join(a.Story, "\n") != strings.Join(b.Story, "\n") || a.String() != b.String() {
			t.Errorf("%v: the same seed told two stories", f)
		}
		if a.Granted < 5 || f != None && a.Refused == 0 {
			t.Errorf("nothing happened: %v", a)
		}
	}
}

func TestNoFaultBreaksTheCap(t *testing.T) {
	for f := range faults {
		if f == Split {
			continue // below
		}
		n := seeds(t, 200)
		if bad, r := Search(1, n, Params{Fault: f}); bad > 0 {
			t.Errorf("%d of %d: %v", bad, n, r)
		}
	}
}

// A split brain needs both inequalities, and clients whose renewals come through until
// then; what is left otherwise is in docs/faults.md.
func TestTheTwoInequalities(t *testing.T) {
	const ttl = 3 * time.Second // renewed each second
	n := seeds(t, 200)
	for _, c := range []struct {
		s, grace time.Duration
		holds    bool
		why      string
	}{
		{time.Second, ttl + time.Second, true, "both hold"},
		{1500 * time.Millisecond, ttl + 1500*time.Millisecond, true, "both hold"},
		{2 * time.Second, ttl / 2, false, "G < TTL + S"},
		{2500 * time.Millisecond, ttl + 2500*time.Millisecond, false, "TTL < S + renewal + RTT"},
		{3500 * time.Millisecond, ttl + 3500*time.Millisecond, false, "TTL < S + renewal + RTT"},
	} {
		bad, r := Search(1, n, Params{TTL: ttl, S: c.s, Grace: c.grace, Fault: Split, Calm: true})
		if (bad == 0) != c.holds {
			t.Errorf("%s (S %v, G %v): %d of %d bad; first %v", c.why, c.s, c.grace, bad, n, r)
		}
	}
}

// Every rule is needed: without it, some seed of the first bounded number is bad.
func TestEveryRuleIsNeeded(t *testing.T) {
	for name, m := range Mutations() {
		p := Params{Any: true, Mutation: m}
		r, tried, ok := First(1, 2000, p)
		if !ok {
			t.Errorf("%s: no seed of %d shows it", name, tried)
			continue
		}
		t.Logf("%-20s seed %d", name, r.Seed)
		p.Mutation = 0
		if r := Run(r.Seed, p, false); r.Bad() {
			t.Errorf("%s: the seed is bad without it, too: %v", name, r)
		}
	}
}
