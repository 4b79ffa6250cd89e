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
	head    []string
	rows    [][]string
	bound   string // what bounds it
	targets []target
}

func (r *report) add(cells ...string) { r.rows = append(r.rows, cells) }

// target is a figure to reach.
type target struct {
	what    string
	got     float64
	minimal float64 // what the minimal batcher reached; 0: it does not take part
	atMost  bool
	want    float64
}

func (r *report) atLeast(want, got float64, what string) {
	r.targets = append(r.targets, target{what: what, got: got, want: want})
}

func (r *report) atMost(want, got float64, what string) {
	r.targets = append(r.targets, target{what: what, got: got, want: want, atMost: true})
}

// minimalReached says what the minimal batcher reached where the last target is gotsem's.
func (r *report) minimalReached(got float64) { r.targets[len(r.targets)-1].minimal = got }

// held reports whether the target was reached. What could not be measured was not.
func (f target) held() bool {
	if math.IsNaN(f.got) {
		return false
	}
	if f.atMost {
		return f.got <= f.want
	}
	return f.got >= f.want
}

func (f target) sign() string { return pick(f.atMost, "≤", "≥") }

// String says what was wanted, what there was, and by how much it missed.
func (f target) String() string {
	s := fmt.Sprintf("%s: %s, wanted %s %s", f.what, number(f.got), f.sign(), number(f.want))
	if !f.held() && f.want != 0 && !math.IsNaN(f.got) {
		s += fmt.Sprintf(" (off by %.0f %%)", 100*math.Abs(f.got-f.want)/f.want)
	}
	return s
}

// markdownTable writes cells as a table of markdown.
func markdownTable(b *strings.Builder, head []string, rows [][]string) {
	row := func(cells []string) { fmt.Fprintf(b, "| %s |\n", strings.Join(cells, " | ")) }
	row(head)
	fmt.Fprintf(b, "|---|%s\n", strings.Repeat("--:|", len(head)-1))
	for _, cells := range rows {
		row(cells)
	}
}

// wanted shows the targets of r, "" if it has none.
func (r *report) wanted(machine string, quick bool) string {
	if len(r.targets) == 0 {
		return ""
	}
	head := []string{"figure", "target", "measured", ""}
	bounded := slices.ContainsFunc(r.targets, func(f target) bool { return f.minimal != 0 })
	if bounded {
		head = append(head, "minimal batcher")
	}
	rows := make([][]string, len(r.targets))
	for i, f := range r.targets {
		rows[i] = []string{f.what, f.sign() + " " + number(f.want), number(f.got), pick(f.held(), "held", "**missed**")}
		if bounded {
			rows[i] = append(rows[i], pick(f.minimal == 0, "", number(f.minimal)))
		}
	}
	var b strings.Builder
	markdownTable(&b, head, rows)
	b.WriteString(measuredOn(machine, quick))
	return b.String()
}

func measuredOn(machine string, quick bool) string {
	return fmt.Sprintf("\nMeasured on %s%s.\n", machine, pick(quick, " -quick, which shows that it works and not how fast it is", ""))
}

// markdown shows r, and under it where it comes from: tables are written one by one,
// so that two in one document may be of different runs.
func (r *report) markdown(machine string, quick bool) string {
	var b strings.Builder
	markdownTable(&b, r.head, r.rows)
	if r.bound != "" {
		fmt.Fprintf(&b, "\nWhat bounds it: %s\n", r.bound)
	}
	b.WriteString(measuredOn(machine, quick))
	return b.String()
}
