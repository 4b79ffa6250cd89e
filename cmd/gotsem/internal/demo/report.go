package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// report prints how the demo goes: a table that is drawn over itself on a
// terminal, else plain lines or lines of JSON.
type report struct {
	show  *show
	began time.Time

	mu             sync.Mutex
	err            error // of the first write that failed
	height         int   // lines of the table that stand there
	columns, lines int   // of the terminal when they were drawn
	events         []string
	limits         []int  // that changing was set to
	crash          *crash // what became of the dead
}

// crash is the holders that died, and what became of their slots.
type crash struct {
	What   string  `json:"what"`
	Slots  int     `json:"slots"`
	Lapsed float64 `json:"lapsed_after_s"` // 0: not yet
}

func newReport(s *show) *report { return &report{show: s, began: time.Now()} }

// row is how one project stands, and its id; or how everything does.
type row struct {
	Project string `json:"project"`
	Held    int    `json:"held"`
	Limit   int    `json:"limit"`
	Dead    int    `json:"held_by_the_dead"`
	verdict
	tally
	what    string
	unknown bool // the store did not say how it stands
}

func (r *report) rows(ctx context.Context) (rows []row) {
	all := r.row(ctx, everything)
	all.Project, all.what = everything, "all of them together"
	for _, p := range projects {
		row := r.row(ctx, p.id())
		row.Project, row.tally, row.what = p.name, r.show.load.tally(p.name), p.what
		if p.name == crashing && r.show.Pods > 0 {
			row.what = ""
		}
		all.Admitted += row.Admitted
		all.Refused += row.Refused
		all.Errors += row.Errors
		rows = append(rows, row)
	}
	return append(rows, all)
}

// row is how an id stands.
func (r *report) row(ctx context.Context, name string) row {
	row := row{verdict: r.show.referee.verdict(name)}
	u, err := r.show.sem.Usage(ctx, r.show.id(name))
	if err == nil {
		row.Held, row.Limit = u.Active, u.Limit
		row.Dead, err = r.show.dead(ctx, name)
	}
	row.unknown = err != nil
	return row
}

// watch prints the rows again and again until ctx is over.
func (r *report) watch(ctx context.Context) {
	every := 2 * time.Second
	switch {
	case r.show.Terminal && !r.show.JSON:
		every = 250 * time.Millisecond
	case r.show.JSON:
		every = time.Second
	}
	r.header()
	tick := time.NewTicker(min(every, r.show.Length/4))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		rows := r.rows(ctx)
		if ctx.Err() != nil {
			return // they may be half empty
		}
		r.mu.Lock()
		switch {
		case r.show.JSON:
			r.json(map[string]any{"type": "tick", "t": r.seconds(), "projects": rows})
		case r.show.Terminal:
			r.draw(rows)
		default:
			for _, row := range rows {
				r.printf("%6.1fs  %s\n", r.seconds(), row.plain())
			}
		}
		r.mu.Unlock()
	}
}

func (r *report) seconds() float64 { return float64(time.Since(r.began).Milliseconds()) / 1000 }

func (r *report) header() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.show.JSON {
		r.json(map[string]any{"type": "start", "store": r.show.where, "page": r.show.page, "seconds": r.show.Length.Seconds(), "ttl_s": r.show.ttl().Seconds()})
		return
	}
	r.printf("%s", r.heading())
}

func (r *report) heading() string {
	page := ""
	if r.show.page != "" {
		page = "Open " + r.show.page + " in a browser.\n"
	}
	return fmt.Sprintf("gotsem demo: an HTTP service limited per project and as a whole, on %s. %v, TTL %v. Ctrl-C ends it.\n%s\n", r.show.where, r.show.Length, r.show.ttl(), page)
}

// limited tells that the limit was overridden.
func (r *report) limited(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.limits = append(r.limits, n)
	r.tell("%s: limit set to %d, for every process at once", changing, n)
}

// event tells what happens.
func (r *report) event(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tell(format, args...)
}

func (r *report) tell(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if r.show.JSON {
		r.json(map[string]any{"type": "event", "t": r.seconds(), "text": text})
		return
	}
	text = fmt.Sprintf("%6.1fs  %s", r.seconds(), text)
	r.events = append(r.events, text)
	if !r.show.Terminal {
		r.printf("%s\n", text)
	}
}

func (r *report) crashed(what string, slots int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.crash = &crash{What: what, Slots: slots}
	r.tell("%s, leaving %d slots behind, held by nobody", what, slots)
}

func (r *report) lapsed(after time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.crash.Lapsed = float64(after.Milliseconds()) / 1000
	r.tell("its %d slots lapsed by themselves, %.1f s after the crash (TTL %v)", r.crash.Slots, r.crash.Lapsed, r.show.ttl())
}

func (w row) plain() string {
	s := fmt.Sprintf("%-8s %d/%d  admitted %d  refused %d", w.Project, w.Held, w.Limit, w.Admitted, w.Refused)
	if w.P99 > 0 {
		s += fmt.Sprintf("  refusal p50 %.2f ms p99 %.2f ms", w.P50, w.P99)
	}
	if note := w.note(); note != "" {
		s += "  " + note
	}
	return s
}

// note is what is worth knowing about a row besides its numbers.
func (w row) note() string {
	switch {
	case w.Broken > 0:
		return fmt.Sprintf("CAP BROKEN %d TIMES", w.Broken)
	case w.unknown:
		return "the store does not answer"
	case w.Dead > 0:
		return fmt.Sprintf("%d held by the dead", w.Dead)
	}
	return w.what
}

// barWidth is of the bars that show slots.
const barWidth = 9

// table is the rows as a table: how they stand, or at the end how much of it there
// was at most.
func table(rows []row, final bool) (lines []string) {
	held := "HELD"
	if final {
		held = "MOST"
	}
	lines = append(lines, fmt.Sprintf("  %-8s %-*s %5s %8s %7s %6s %6s", "PROJECT", barWidth, "", held, "ADMITTED", "REFUSED", "p50 ms", "p99 ms"))
	for _, w := range rows {
		each := (max(w.Limit, w.Held, w.Most) + barWidth - 1) / barWidth // slots to a character
		part := func(of string, n int) string { return strings.Repeat(of, (max(n, 0)+each-1)/max(each, 1)) }
		dead, live := min(w.Dead, w.Held), max(0, w.Held-w.Dead)
		bar := part("x", dead) + part("#", live) + part(".", (w.Limit-w.Held)/max(each, 1)*each)
		held := fmt.Sprintf("%d/%d", w.Held, w.Limit)
		if final {
			bar, held = part("#", w.Most), strconv.Itoa(w.Most)
		}
		p50, p99 := "-", "-"
		if w.P99 > 0 {
			p50, p99 = fmt.Sprintf("%.2f", w.P50), fmt.Sprintf("%.2f", w.P99)
		}
		lines = append(lines, strings.TrimRight(fmt.Sprintf("  %-8s %-*s %5s %8d %7d %6s %6s  %s",
			w.Project, barWidth, bar, held, w.Admitted, w.Refused, p50, p99, w.note()), " "))
	}
	return lines
}

// draw draws the table over the last one. No line is longer than the terminal is wide,
// nor are there more than it has: what wraps or scrolls cannot be drawn over. When the
// terminal's size has changed it has moved what stood there, and all is drawn anew.
func (r *report) draw(rows []row) {
	columns, lines := 80, 24
	if r.show.Size != nil {
		if c, l := r.show.Size(); c > 0 && l > 0 {
			columns, lines = c, l
		}
	}
	all := append(table(rows, false), "", fmt.Sprintf("  # working  x held by the dead  . free   p50, p99: of a refusal   %4.1f s", r.seconds()), "")
	events := r.events
	if room := max(0, lines-1-len(all)); len(events) > room {
		events = events[len(events)-room:] // the latest
	}
	all = append(all, events...)
	all = all[:min(len(all), max(1, lines-1))]
	var b strings.Builder
	b.WriteString("\x1b[?7l") // no wrapping, should it shrink meanwhile
	switch {
	case r.height > 0 && (columns != r.columns || lines != r.lines):
		b.WriteString("\x1b[H\x1b[2J")
		if strings.Count(r.heading(), "\n")+len(all) < lines {
			b.WriteString(r.heading())
		}
	case r.height > 0:
		fmt.Fprintf(&b, "\x1b[%dA\r", r.height)
	}
	for _, line := range all {
		if text := []rune(line); len(text) > columns-1 {
			line = string(text[:max(0, columns-1)])
		}
		b.WriteString("\x1b[2K" + line + "\n")
	}
	b.WriteString("\x1b[J\x1b[?7h")
	r.height, r.columns, r.lines = len(all), columns, lines
	r.printf("%s", b.String())
}

// summary prints what it came to. Its error is ErrCap, or that of a write.
func (r *report) summary(ctx context.Context, interrupted bool) error {
	rows := r.rows(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	broken, all := r.show.referee.broken(), rows[len(rows)-1]
	admitted, refused := all.Admitted, all.Refused
	stuck := r.crash != nil && r.crash.Lapsed == 0 && r.crash.Slots > 0 && !interrupted
	if r.show.JSON {
		r.json(map[string]any{
			"type": "summary", "t": r.seconds(), "store": r.show.where, "interrupted": interrupted, "projects": rows,
			"admitted": admitted, "refused": refused, "crash": r.crash, "limits": r.limits, "store_answers": !away(rows), "cap_broken": broken, "cap_held": broken == 0,
		})
	} else {
		r.printf("\nSummary: %.1f s on %s\n%s\n", r.seconds(), r.show.where, strings.Join(table(rows, true), "\n"))
		r.printf("  %d admitted, %d refused with 429 (p50, p99: how long that took). MOST: work at once, counted outside the store.\n", admitted, refused)
		if r.crash != nil && r.crash.Lapsed > 0 {
			r.printf("  %s; its %d slots lapsed by themselves after %.1f s (TTL %v).\n", r.crash.What, r.crash.Slots, r.crash.Lapsed, r.show.ttl())
		}
		if r.crash != nil && r.crash.Lapsed == 0 && r.crash.Slots > 0 {
			r.printf("  %s; its %d slots have not lapsed, as far as is known.\n", r.crash.What, r.crash.Slots)
		}
		r.printf("  %s\n", r.changes())
		if away(rows) {
			r.printf("  The store does not answer now: how its slots stand is not known.\n")
		}
		if broken == 0 {
			r.printf("  The cap was never broken.\n")
		}
	}
	switch {
	case broken > 0:
		return fmt.Errorf("%w: %d times more work began than the limit allowed", ErrCap, broken)
	case stuck:
		return fmt.Errorf("demo: the %d slots that a crash left behind had not lapsed at the end; they should after %v", r.crash.Slots, r.show.ttl())
	}
	return r.err
}

// changes says what became of the limit that was to change.
func (r *report) changes() string {
	if len(r.limits) == 0 {
		return changing + ": its limit was not changed."
	}
	text := changing + ": its limit went from 6"
	for _, n := range r.limits {
		text += fmt.Sprintf(" to %d", n)
	}
	if len(r.limits) < 2 {
		text += ", and no further"
	}
	return text + "."
}

// away reports whether the store did not answer for some of the rows.
func away(rows []row) bool {
	return slices.ContainsFunc(rows, func(w row) bool { return w.unknown })
}

func (r *report) json(v any) {
	line, err := json.Marshal(v)
	if err != nil {
		panic(err) // numbers and our own texts
	}
	r.printf("%s\n", line)
}

func (r *report) printf(format string, args ...any) {
	if _, err := fmt.Fprintf(r.show.Out, format, args...); err != nil && r.err == nil {
		r.err = err
	}
}
