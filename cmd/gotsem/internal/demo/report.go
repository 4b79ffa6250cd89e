package demo

import (
	"context"
	"encoding/json"
	"fmt"
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

	mu     sync.Mutex
	err    error // of the first write that failed
	height int   // lines of the table that stand there
	events []string
	crash  *crash // what became of the dead
}

// crash is the holders that died, and what became of their slots.
type crash struct {
	What   string  `json:"what"`
	Slots  int     `json:"slots"`
	Lapsed float64 `json:"lapsed_after_s"` // 0: not yet
}

func newReport(s *show) *report { return &report{show: s, began: time.Now()} }

// row is how one project stands.
type row struct {
	Project string `json:"project"`
	Held    int    `json:"held"`
	Limit   int    `json:"limit"`
	Dead    int    `json:"held_by_the_dead"`
	verdict
	tally
	what string
}

func (r *report) rows(ctx context.Context) (rows []row) {
	for _, p := range projects {
		row := row{Project: p.name, verdict: r.show.referee.verdict(p.name), tally: r.show.load.tally(p.name), what: p.what}
		if u, err := r.show.sem.Usage(ctx, r.show.id(p.name)); err == nil {
			row.Held, row.Limit = u.Active, u.Limit
		}
		row.Dead = r.show.dead(ctx, p.name)
		if p.name == crashing && r.show.Pods > 0 {
			row.what = ""
		}
		rows = append(rows, row)
	}
	return rows
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
		r.json(map[string]any{"type": "start", "store": r.show.where, "seconds": r.show.Length.Seconds(), "ttl_s": r.show.ttl().Seconds()})
		return
	}
	r.printf("gotsem demo: an HTTP service limited per project, on %s. %v, TTL %v. Ctrl-C ends it.\n\n", r.show.where, r.show.Length, r.show.ttl())
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
	if w.Refused > 0 {
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
	case w.Dead > 0:
		return fmt.Sprintf("%d held by the dead", w.Dead)
	}
	return w.what
}

// table is the rows as a table: how they stand, or at the end how much of it there
// was at most.
func table(rows []row, final bool) (lines []string) {
	held := "HELD"
	if final {
		held = "MOST"
	}
	lines = append(lines, fmt.Sprintf("  %-8s %-9s %4s %8s %7s %6s %6s", "PROJECT", "", held, "ADMITTED", "REFUSED", "p50 ms", "p99 ms"))
	for _, w := range rows {
		dead, live := min(w.Dead, w.Held), max(0, w.Held-w.Dead)
		bar := strings.Repeat("x", dead) + strings.Repeat("#", live) + strings.Repeat(".", max(0, w.Limit-w.Held))
		held := fmt.Sprintf("%d/%d", w.Held, w.Limit)
		if final {
			bar, held = strings.Repeat("#", w.Most), strconv.Itoa(w.Most)
		}
		p50, p99 := "-", "-"
		if w.Refused > 0 {
			p50, p99 = fmt.Sprintf("%.2f", w.P50), fmt.Sprintf("%.2f", w.P99)
		}
		lines = append(lines, strings.TrimRight(fmt.Sprintf("  %-8s %-9s %4s %8d %7d %6s %6s  %s",
			w.Project, bar, held, w.Admitted, w.Refused, p50, p99, w.note()), " "))
	}
	return lines
}

// width is what a line may have: one that is wrapped would spoil the drawing.
const width = 79

// draw draws the table over the last one.
func (r *report) draw(rows []row) {
	lines := append(table(rows, false), "", fmt.Sprintf("  # working  x held by the dead  . free   p50, p99: of a refusal   %4.1f s", r.seconds()), "")
	lines = append(lines, r.events...)
	var b strings.Builder
	if r.height > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", r.height)
	}
	for _, line := range lines {
		b.WriteString("\x1b[2K" + line[:min(len(line), width)] + "\n")
	}
	r.height = len(lines)
	r.printf("%s", b.String())
}

// summary prints what it came to. Its error is ErrCap, or that of a write.
func (r *report) summary(ctx context.Context, interrupted bool) error {
	rows := r.rows(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	broken, admitted, refused := 0, 0, 0
	for _, w := range rows {
		broken += w.Broken
		admitted += w.Admitted
		refused += w.Refused
	}
	stuck := r.crash != nil && r.crash.Lapsed == 0 && r.crash.Slots > 0 && !interrupted
	if r.show.JSON {
		r.json(map[string]any{
			"type": "summary", "t": r.seconds(), "store": r.show.where, "interrupted": interrupted, "projects": rows,
			"admitted": admitted, "refused": refused, "crash": r.crash, "cap_broken": broken, "cap_held": broken == 0,
		})
	} else {
		r.printf("\nSummary: %.1f s on %s\n%s\n", r.seconds(), r.show.where, strings.Join(table(rows, true), "\n"))
		r.printf("  %d admitted, %d refused with 429 (p50, p99: how long that took). MOST: work at once, counted outside the store.\n", admitted, refused)
		if r.crash != nil && r.crash.Lapsed > 0 {
			r.printf("  %s; its %d slots lapsed by themselves after %.1f s (TTL %v).\n", r.crash.What, r.crash.Slots, r.crash.Lapsed, r.show.ttl())
		}
		r.printf("  %s: its limit went from 6 to %d to %d.\n", changing, raised, lowered)
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
