package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// table is one of the documents' tables.
type table struct {
	name string
	doc  string
	run  func(*lab) (*report, error)
}

// report is what a table shows.
type report struct {
	head   []string
	rows   [][]string
	bound  string // what bounds it
	floors []floor
}

func (r *report) add(cells ...string) { r.rows = append(r.rows, cells) }

// floor is a figure that was demanded.
type floor struct {
	what   string
	got    float64
	least  float64 // what the least reached; 0: it does not take part
	atMost bool
	want   float64
}

func (r *report) atLeast(want, got float64, what string) {
	r.floors = append(r.floors, floor{what: what, got: got, want: want})
}

func (r *report) atMost(want, got float64, what string) {
	r.floors = append(r.floors, floor{what: what, got: got, want: want, atMost: true})
}

// leastGot says what the least reached where the last floor was demanded of gotsem.
func (r *report) leastGot(got float64) { r.floors[len(r.floors)-1].least = got }

// held reports whether the floor was reached. What could not be measured was not.
func (f floor) held() bool {
	if math.IsNaN(f.got) {
		return false
	}
	if f.atMost {
		return f.got <= f.want
	}
	return f.got >= f.want
}

func (f floor) sign() string { return pick(f.atMost, "≤", "≥") }

// String says what was wanted, what there was, and by how much it missed.
func (f floor) String() string {
	s := fmt.Sprintf("%s: %s, wanted %s %s", f.what, number(f.got), f.sign(), number(f.want))
	if !f.held() && f.want != 0 && !math.IsNaN(f.got) {
		s += fmt.Sprintf(" (off by %.0f %%)", 100*math.Abs(f.got-f.want)/f.want)
	}
	return s
}

// markdown shows r, and under it where it comes from: tables are written one by one,
// so that two in one document may be of different runs.
func (r *report) markdown(machine string, quick bool) string {
	var b strings.Builder
	row := func(cells []string) { fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | ")) }
	rule := func(n int) { fmt.Fprintf(&b, "|---|%s\n", strings.Repeat("--:|", n-1)) }
	row(r.head)
	rule(len(r.head))
	for _, cells := range r.rows {
		row(cells)
	}
	if len(r.floors) > 0 {
		b.WriteByte('\n')
		head := []string{"demanded", "floor", "measured", ""}
		ceiling := slices.ContainsFunc(r.floors, func(f floor) bool { return f.least != 0 })
		if ceiling {
			head = append(head, "the least")
		}
		row(head)
		rule(len(head))
		for _, f := range r.floors {
			cells := []string{f.what, f.sign() + " " + number(f.want), number(f.got), pick(f.held(), "held", "**missed**")}
			if ceiling {
				cells = append(cells, pick(f.least == 0, "", number(f.least)))
			}
			row(cells)
		}
	}
	if r.bound != "" {
		fmt.Fprintf(&b, "\nWhat bounds it: %s\n", r.bound)
	}
	fmt.Fprintf(&b, "\nMeasured on %s%s.\n", machine, pick(quick, " -quick, which shows that it works and not how fast it is", ""))
	return b.String()
}
