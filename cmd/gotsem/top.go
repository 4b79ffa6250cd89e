package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/watch"
)

type topCmd struct {
	looking
	Pattern  text          `arg:"" optional:"" help:"Only ids that match, such as 'project-*'."`
	Interval time.Duration `default:"2s" help:"Between two looks (default ${default})."`
	Count    int           `short:"n" placeholder:"N" help:"End after N looks. Where the output is no terminal 1, unless it is given."`
	Limit    int           `default:"0" placeholder:"N" help:"The limit that your programs bring along; 0: not known, so that only limits set by hand are shown."`
}

func (*topCmd) Help() string {
	return `Shows what hurts, the worst first: whose line is the oldest, then who is fullest. On a terminal it is drawn over itself until q or Ctrl-C; elsewhere it is printed once, a line an id. FOR is how long the first in line has waited. Redis is asked 150 times a second at most. A large prefix is walked over minutes, and the head says how far that is.`
}

// topBudget is as much as the page asks.
const topBudget = 150

func (c *topCmd) Validate() error {
	switch {
	case c.Interval < 100*time.Millisecond || c.Interval > time.Hour:
		return fmt.Errorf("--interval %v: 100ms to 1h", c.Interval)
	case c.Count < 0:
		return fmt.Errorf("-n %d: 1 or more", c.Count)
	case c.Limit < 0:
		return fmt.Errorf("--limit %d: 1 or more, or 0 for not known", c.Limit)
	}
	return (&lsCmd{Pattern: c.Pattern}).Validate()
}

func (c *topCmd) Run(a *app) error {
	return c.doWith(a, max(c.Limit, 1), 0, func(ctx context.Context, _ *link, sem *gotsem.Semaphore) error {
		// What follows waits out a Redis that is away; this call says so.
		if _, err := sem.Usage(ctx, "gotsem-top"); err != nil {
			return err
		}
		w := watch.New(watch.Options{Semaphore: sem, Interval: c.Interval, Budget: topBudget})
		defer w.Close()
		screen, quit, restore := terminalOf(a)
		defer restore()
		if screen != nil && !c.JSON {
			return c.live(ctx, a, w, screen, quit)
		}
		for looks := 0; looks < max(c.Count, 1); looks++ {
			if looks > 0 {
				select {
				case <-ctx.Done():
					return nil
				case <-time.After(c.Interval):
				}
			}
			if !walked(ctx, w) {
				return ctx.Err()
			}
			if err := c.print(a, w); err != nil {
				return err
			}
		}
		return nil
	})
}

// walked waits until all ids have been seen once, or the store does not answer.
func walked(ctx context.Context, w *watch.Watch) bool {
	for w.Look("") {
		done := false
		w.View(func(_ []*watch.Row, st watch.State) { done = st.Whole >= 0 || st.Err != nil })
		if done {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(20 * time.Millisecond):
		}
	}
	return false
}

// line is one id, in JSON.
type topLine struct {
	standing
	Health string `json:"health"`
	HeadMS int64  `json:"head_ms"` // for how long the first in line has waited
}

func (c *topCmd) print(a *app, w *watch.Watch) (err error) {
	if !c.JSON {
		for _, line := range c.table(w, 0, 0) {
			fmt.Fprintln(a.stdout, line)
		}
		return nil
	}
	w.View(func(rows []*watch.Row, _ watch.State) {
		for _, r := range rows {
			if (&lsCmd{Pattern: c.Pattern}).shows(r.ID) && err == nil {
				err = printJSON(a.stdout, topLine{standingOf(r.ID, r.Usage), c.health(r.Usage), r.Usage.HeadAge.Milliseconds()})
			}
		}
	})
	return err
}

func (c *topCmd) health(u gotsem.Usage) string { return watch.Word(u, u.LimitSet || c.Limit > 0) }

// table is what is seen, as lines of at most so many columns (0: as long as they are), and
// no more of them than there is room for (0: all).
func (c *topCmd) table(w *watch.Watch, columns, lines int) (out []string) {
	w.View(func(rows []*watch.Row, st watch.State) {
		held, waiting, oldest := 0, 0, time.Duration(0)
		for _, r := range rows {
			held, waiting, oldest = held+r.Usage.Active, waiting+r.Usage.Waiting, max(oldest, r.Usage.HeadAge)
		}
		store := "the store answers"
		if st.Err != nil {
			store = "THE STORE DOES NOT ANSWER, this is the last that is known: " + printable(st.Err.Error())
		}
		walk := fmt.Sprintf("first walk: %d ids so far", st.Seen)
		if st.Whole >= 0 {
			walk = fmt.Sprintf("%d ids in the last walk", st.Whole)
		}
		out = append(out, fmt.Sprintf("%d held, %d waiting, the oldest for %s; %s; %s", held, waiting, short(oldest), walk, store),
			"", fmt.Sprintf("%-8s %7s %7s %7s %8s  %s", "HEALTH", "HELD", "LIMIT", "WAITING", "FOR", "ID"))
		more := 0
		for _, r := range rows {
			switch {
			case !(&lsCmd{Pattern: c.Pattern}).shows(r.ID):
			case lines > 0 && len(out) >= lines-1:
				more++
			default:
				limit := "-"
				if r.Usage.LimitSet || c.Limit > 0 {
					limit = strconv.Itoa(r.Usage.Limit)
				}
				out = append(out, fmt.Sprintf("%-8s %7d %7s %7d %8s  %s", c.health(r.Usage), r.Usage.Active, limit, r.Usage.Waiting, short(r.Usage.HeadAge), printable(r.ID)))
			}
		}
		if more > 0 {
			out = append(out, fmt.Sprintf("and %d more that hurt less", more))
		}
	})
	for i, line := range out {
		if columns > 0 && utf8.RuneCountInString(line) > columns {
			out[i] = string([]rune(line)[:max(columns-1, 0)]) + "…"
		}
	}
	return out
}

// short is how long something lasts, in few characters.
func short(d time.Duration) string {
	switch {
	case d == 0:
		return "-"
	case d < time.Minute:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < 100*time.Minute:
		return fmt.Sprintf("%.0fm", d.Minutes())
	}
	return fmt.Sprintf("%.0fh", d.Hours())
}

// screen is a terminal that is drawn over.
type screen struct {
	out  io.Writer
	size func() (columns, lines int)
}

// terminalOf returns the terminal that there is, else nil. quit tells of a q or a Ctrl-C, and
// what is typed is not shown until restore is called.
func terminalOf(a *app) (s *screen, quit <-chan struct{}, restore func()) {
	fd := int(os.Stdout.Fd())
	if !term.IsTerminal(fd) {
		return nil, nil, func() {}
	}
	s = &screen{a.stdout, func() (int, int) {
		columns, lines, err := term.GetSize(fd)
		if err != nil || columns <= 0 || lines <= 0 {
			return 80, 24
		}
		return columns, lines
	}}
	in := int(os.Stdin.Fd())
	if !term.IsTerminal(in) {
		return s, nil, func() {}
	}
	before, err := term.MakeRaw(in) // Ctrl-C comes as a key, too
	if err != nil {
		return s, nil, func() {}
	}
	typed := make(chan struct{})
	go func() { // it ends with the process: a read of a terminal cannot be broken off
		for keys := bufio.NewReader(os.Stdin); ; {
			if key, err := keys.ReadByte(); err != nil {
				return
			} else if key == 'q' || key == '\x03' {
				close(typed)
				return
			}
		}
	}()
	return s, typed, func() { _ = term.Restore(in, before) }
}

// live draws what is seen over itself, until q, Ctrl-C or enough looks.
func (c *topCmd) live(ctx context.Context, a *app, w *watch.Watch, s *screen, quit <-chan struct{}) error {
	fmt.Fprint(s.out, "\x1b[?1049h\x1b[?25l") // a screen of its own, without a cursor
	defer fmt.Fprint(s.out, "\x1b[?25h\x1b[?1049l")
	for looks := 0; c.Count == 0 || looks < c.Count; looks++ {
		w.Look("")
		columns, lines := s.size()
		var b strings.Builder
		b.WriteString("\x1b[H")
		for _, line := range c.table(w, columns, lines-1) {
			b.WriteString(line + "\x1b[K\r\n")
		}
		b.WriteString("\x1b[J")
		if _, err := io.WriteString(s.out, b.String()); err != nil {
			return err
		}
		wait := c.Interval
		if looks == 0 {
			wait = min(wait, 200*time.Millisecond) // the first look has seen nothing yet
		}
		select {
		case <-ctx.Done():
			return nil
		case <-quit:
			return nil
		case <-time.After(wait):
		}
	}
	return nil
}
