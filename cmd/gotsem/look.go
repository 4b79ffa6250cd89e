package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"os/user"
	"path"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/store"
)

// looking is the flags of the commands that look in and change.
type looking struct {
	connection
	JSON    bool          `help:"Print JSON, a line each."`
	Timeout time.Duration `default:"10s" help:"Give up when Redis does not answer for so long (default ${default})."`
}

// do runs f with a semaphore, until it is done, Timeout passes or Ctrl-C comes.
func (l *looking) do(a *app, ttl time.Duration, f func(context.Context, *link, *gotsem.Semaphore) error) error {
	return l.doWith(a, 1, ttl, f)
}

// doWith is do, where the programs that acquire are known to bring along a limit.
func (l *looking) doWith(a *app, limit int, ttl time.Duration, f func(context.Context, *link, *gotsem.Semaphore) error) error {
	link, err := l.open(a)
	if err != nil {
		return err
	}
	defer link.close()
	sem, err := link.semaphore(limit, l.Timeout, ttl)
	if err != nil {
		return fmt.Errorf("--timeout or --ttl: %w", err)
	}
	defer sem.Close()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx, answered := link.doubting(ctx)
	defer answered()
	return link.explain(causeOf(ctx, f(ctx, link, sem)))
}

// standing is how one id stands, in JSON. A limit that is not set in the store is
// brought along by each program, and not known here.
type standing struct {
	rawID
	Active  int   `json:"active"`
	Limit   *int  `json:"limit"` // null: none is set
	Waiting int   `json:"waiting"`
	NextIn  int64 `json:"next_in_ms"` // until the next slot lapses if it is not renewed; 0: none is held
}

func standingOf(id string, u gotsem.Usage) standing {
	s := standing{rawID: rawIDOf(id), Active: u.Active, Waiting: u.Waiting, NextIn: u.NextIn.Milliseconds()}
	if u.LimitSet {
		s.Limit = &u.Limit
	}
	return s
}

// limit is the set limit as a text.
func (s standing) limit(unset string) string {
	if s.Limit == nil {
		return unset
	}
	return strconv.Itoa(*s.Limit)
}

type lsCmd struct {
	looking
	Pattern text `arg:"" optional:"" help:"Only ids that match, such as 'project-*'."`
}

func (c *lsCmd) Validate() error {
	if _, err := path.Match(string(c.Pattern), ""); err != nil {
		return fmt.Errorf("the pattern %s: a [ without its ], or a \\ at its end", printable(string(c.Pattern)))
	}
	return nil
}

// shows reports whether an id is asked for. A * stands for a slash too: ids are not
// paths, though many are made of one.
func (c *lsCmd) shows(id string) bool {
	if c.Pattern == "" {
		return true
	}
	flat := strings.NewReplacer("/", "\x00")
	ok, _ := path.Match(flat.Replace(string(c.Pattern)), flat.Replace(id)) // Validate has seen the error
	return ok
}

func (*lsCmd) Help() string {
	return `In a pattern, * stands for any bytes, ? for one character, [a-z] for one of a range; a backslash escapes them. Quote the pattern, else the shell expands it to file names. HELD is the sum of the weights held. LIMIT is an override by "gotsem limit"; a dash means that each program uses its own. Ids are listed in no order, as they are found: the whole keyspace is walked, a page at a time. Control characters in ids are escaped.`
}

func (c *lsCmd) Run(a *app) error {
	return c.do(a, 0, func(ctx context.Context, _ *link, sem *gotsem.Semaphore) error {
		// The walk may be long and is not bounded by Timeout; this call is.
		if _, err := sem.Usage(ctx, "gotsem-ls"); err != nil {
			return err
		}
		const row = "%6s %6s %8s  %s\n"
		seen := make(map[string]bool)
		for st, err := range sem.Walk(ctx, 0) {
			if err != nil {
				return fmt.Errorf("listing ids, after %d: %w", len(seen), err)
			}
			id := st.ID
			if seen[id] || !c.shows(id) {
				continue
			}
			s := standingOf(id, st.Usage)
			if c.JSON {
				if err := printJSON(a.stdout, s); err != nil {
					return err
				}
			} else {
				if len(seen) == 0 {
					fmt.Fprintf(a.stdout, row, "HELD", "LIMIT", "WAITING", "ID")
				}
				fmt.Fprintf(a.stdout, row, strconv.Itoa(s.Active), s.limit("-"), strconv.Itoa(s.Waiting), printable(id))
			}
			seen[id] = true
		}
		if len(seen) == 0 && !c.JSON {
			like := ""
			if c.Pattern != "" {
				like = " that matches " + printable(string(c.Pattern))
			}
			fmt.Fprintf(a.stderr, "gotsem: no id%s is held, waited for or limited by hand under the prefix %q\n", like, c.Prefix)
		}
		return nil
	})
}

type waitersCmd struct {
	looking
	ID text `arg:"" help:"What is limited."`
	N  int  `short:"n" default:"100" help:"How many of the line, from its head on, at most 1000."`
}

func (*waitersCmd) Help() string {
	return `The first in line comes first. WAITED is by the server's clock. A caller's place ends 3 seconds after it last asked.`
}

func (c *waitersCmd) Validate() error {
	if c.N < 1 || c.N > store.MaxPage {
		return fmt.Errorf("-n %d: 1 to %d", c.N, store.MaxPage)
	}
	return nil
}

// waitingCaller is one who waits, in JSON.
type waitingCaller struct {
	Place  int        `json:"place"`
	Weight int        `json:"weight"`
	Class  string     `json:"class"`
	Since  *time.Time `json:"since"` // null: not known
	Owner  string     `json:"owner"`
}

func (c *waitersCmd) Run(a *app) error {
	return c.do(a, 0, func(ctx context.Context, _ *link, sem *gotsem.Semaphore) error {
		line, err := sem.Waiters(ctx, string(c.ID), c.N)
		if err != nil {
			return err
		}
		if c.JSON {
			for i, w := range line {
				caller := waitingCaller{Place: i + 1, Weight: w.Weight, Class: w.Class.String(), Owner: w.Owner}
				if !w.Since.IsZero() {
					since := w.Since.UTC()
					caller.Since = &since
				}
				if err := printJSON(a.stdout, caller); err != nil {
					return err
				}
			}
			return nil
		}
		if len(line) == 0 {
			fmt.Fprintf(a.stderr, "gotsem: nobody waits for a slot of %s\n", printable(string(c.ID)))
			return nil
		}
		table := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, "PLACE\tWEIGHT\tCLASS\tWAITED\tOWNER")
		for i, w := range line {
			waited := "-"
			if !w.Since.IsZero() {
				waited = time.Since(w.Since).Round(100 * time.Millisecond).String()
			}
			fmt.Fprintf(table, "%d\t%d\t%v\t%s\t%s\n", i+1, w.Weight, w.Class, waited, printable(w.Owner))
		}
		return table.Flush()
	})
}

type holdersCmd struct {
	looking
	ID text `arg:"" help:"What is limited."`
}

func (*holdersCmd) Help() string {
	return `The oldest comes first. SINCE and LAPSES IN are by the server's clock; a lease that lives is renewed before it lapses. A slot of TryAcquire has no fence and no owner, and is not renewed. SLOT is what "gotsem revoke" takes.`
}

// heldSlot is one holder, in JSON.
type heldSlot struct {
	SlotID string     `json:"slot"`
	Weight int        `json:"weight"`
	Since  *time.Time `json:"since"` // null: not known
	Until  time.Time  `json:"until"`
	Fence  uint64     `json:"fence"`
	Owner  string     `json:"owner"`
}

func (c *holdersCmd) Run(a *app) error {
	return c.do(a, 0, func(ctx context.Context, _ *link, sem *gotsem.Semaphore) error {
		holders, err := sem.Holders(ctx, string(c.ID))
		if err != nil {
			return err
		}
		if c.JSON {
			for _, h := range holders {
				s := heldSlot{SlotID: h.SlotID, Weight: h.Weight, Until: h.Until.UTC(), Fence: h.Fence, Owner: h.Owner}
				if !h.Since.IsZero() {
					since := h.Since.UTC()
					s.Since = &since
				}
				if err := printJSON(a.stdout, s); err != nil {
					return err
				}
			}
			return nil
		}
		if len(holders) == 0 {
			fmt.Fprintf(a.stderr, "gotsem: nobody holds a slot of %s\n", printable(string(c.ID)))
			return nil
		}
		table := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, "SLOT\tWEIGHT\tSINCE\tLAPSES IN\tFENCE\tOWNER")
		now := time.Now()
		for _, h := range holders {
			since, fence, owner := "-", "-", "-"
			if !h.Since.IsZero() {
				since = now.Sub(h.Since).Round(100 * time.Millisecond).String()
			}
			if h.Fence != 0 {
				fence = strconv.FormatUint(h.Fence, 10)
			}
			if h.Owner != "" {
				owner = printable(h.Owner)
			}
			fmt.Fprintf(table, "%s\t%d\t%s\t%v\t%s\t%s\n", printable(h.SlotID), h.Weight, since, h.Until.Sub(now).Round(100*time.Millisecond), fence, owner)
		}
		return table.Flush()
	})
}

type usageCmd struct {
	looking
	ID text `arg:"" help:"What is limited."`
}

func (c *usageCmd) Run(a *app) error {
	return c.do(a, 0, func(ctx context.Context, _ *link, sem *gotsem.Semaphore) error {
		u, err := sem.Usage(ctx, string(c.ID))
		if err != nil {
			return err
		}
		s := standingOf(string(c.ID), u)
		if c.JSON {
			return printJSON(a.stdout, s)
		}
		fmt.Fprintf(a.stdout, "%s: %d held, limit %s, %d waiting", printable(string(c.ID)), s.Active, s.limit("not set"), s.Waiting)
		if u.NextIn > 0 {
			fmt.Fprintf(a.stdout, ", next lapses in %v unless it is renewed", u.NextIn.Round(time.Millisecond))
		}
		fmt.Fprintln(a.stdout)
		return nil
	})
}

type limitCmd struct {
	looking
	ID    text `arg:"" help:"What is limited."`
	N     *int `arg:"" optional:"" help:"The new limit. 0 pauses the id."`
	Reset bool `help:"Remove the override: each program uses its own limit again."`

	For time.Duration `placeholder:"DURATION" help:"The override ends by itself after that, such as 1h."`
	By  string        `placeholder:"WHO" help:"Who sets it, and why, for those who look at it later (default: user@host)."`
}

func (*limitCmd) Help() string {
	return `An override wins over the programs' own limits, in every process, at once, until it is removed. Raising it lets waiters in. Lowering it revokes nothing: nothing is granted until less than the new limit is held. Without N and --reset the limit is shown.`
}

func (c *limitCmd) Validate() error {
	switch {
	case c.N != nil && c.Reset:
		return fmt.Errorf("a limit of %d and --reset: one of the two", *c.N)
	case c.N == nil && (c.For != 0 || c.By != ""):
		return errors.New("--for and --by are of a new limit: name it")
	case c.N != nil && *c.N < 0:
		return fmt.Errorf("a limit of %d: 0 pauses, --reset takes a set limit off", *c.N)
	}
	return nil
}

func (c *limitCmd) Run(a *app) error {
	return c.do(a, 0, func(ctx context.Context, _ *link, sem *gotsem.Semaphore) error {
		var err error
		switch {
		case c.Reset:
			err = sem.ResetLimit(ctx, string(c.ID))
		case c.N != nil:
			err = sem.SetLimit(ctx, string(c.ID), *c.N, gotsem.For(c.For), gotsem.By(cmp.Or(c.By, me())))
		}
		if err != nil {
			return err
		}
		set, err := sem.LimitOf(ctx, string(c.ID))
		if err != nil {
			return err
		}
		u, err := sem.Usage(ctx, string(c.ID))
		if err != nil {
			return err
		}
		s := standingOf(string(c.ID), u)
		if c.JSON {
			return printJSON(a.stdout, limitStanding{s, overrideOf(set)})
		}
		fmt.Fprintf(a.stdout, "%s: limit %s%s, %d held, %d waiting\n", printable(string(c.ID)), s.limit("not set: each program goes by its own"), origin(set), s.Active, s.Waiting)
		return nil
	})
}

// limitStanding is a standing, and what is known of a limit that is set.
type limitStanding struct {
	standing
	Override *override `json:"override"` // null: none is set
}

type override struct {
	Limit   int        `json:"limit"`
	Version uint64     `json:"version"`
	At      time.Time  `json:"at"`
	Until   *time.Time `json:"until"` // null: it does not end by itself
	By      string     `json:"by"`
}

func overrideOf(o gotsem.Override) *override {
	if o.Version == 0 {
		return nil
	}
	out := &override{Limit: o.Limit, Version: o.Version, At: o.At.UTC().Truncate(time.Second), By: o.By}
	if !o.Until.IsZero() {
		until := o.Until.UTC().Truncate(time.Second)
		out.Until = &until
	}
	return out
}

// origin tells of a limit that is set since when, until when and by whom.
func origin(o gotsem.Override) string {
	if o.Version == 0 {
		return ""
	}
	text := fmt.Sprintf(" (since %v", time.Since(o.At).Round(time.Second))
	if !o.Until.IsZero() {
		text += fmt.Sprintf(", for %v more", time.Until(o.Until).Round(time.Second))
	}
	if o.By != "" {
		text += ", by " + printable(o.By)
	}
	return text + ")"
}

// me is who runs the command, as far as the system says.
func me() string {
	name := "somebody"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if host, err := os.Hostname(); err == nil {
		name += "@" + host
	}
	return strings.ToValidUTF8(name[:min(len(name), store.MaxBy)], "")
}

// taking is the flags of the commands that take slots away.
type taking struct {
	looking
	TTL time.Duration `default:"30s" help:"How long the revocation is remembered, so that no holder restores its slot: the TTL of the holders or more (default ${default})."`
}

type revokeCmd struct {
	taking
	ID   text `arg:"" help:"What is limited."`
	Slot text `arg:"" help:"The slot id, as gotsem holders lists it."`
}

func (*revokeCmd) Help() string {
	return `The holder is told at once if its process is subscribed, else at its next renewal. The freed room goes to the head of the line. A slot id that holds nothing is harmless, and the exit code is 1.`
}

func (c *revokeCmd) Run(a *app) error {
	return c.do(a, c.TTL, func(ctx context.Context, _ *link, sem *gotsem.Semaphore) error {
		revoked, err := sem.Revoke(ctx, string(c.ID), string(c.Slot))
		if err != nil {
			return err
		}
		if c.JSON {
			err = printJSON(a.stdout, struct {
				rawID
				SlotID  string `json:"slot"`
				Revoked bool   `json:"revoked"`
			}{rawIDOf(string(c.ID)), string(c.Slot), revoked})
		} else if revoked {
			_, err = fmt.Fprintf(a.stdout, "%s: revoked %s\n", printable(string(c.ID)), printable(string(c.Slot)))
		}
		switch {
		case err != nil:
			return err
		case !revoked && c.JSON:
			return &exitError{code: exitFailed}
		case !revoked:
			return fmt.Errorf("%s: no slot %s is held, nothing was changed; gotsem holders lists those that are", printable(string(c.ID)), printable(string(c.Slot)))
		}
		return nil
	})
}

type clearCmd struct {
	taking
	ID text `arg:"" help:"What is limited."`
}

func (*clearCmd) Help() string {
	return `For a deployment that is stuck. Every holder loses its lease, and is told as by revoke. Waiters keep their places, and get the freed room. An override stays.`
}

func (c *clearCmd) Run(a *app) error {
	return c.do(a, c.TTL, func(ctx context.Context, _ *link, sem *gotsem.Semaphore) error {
		n, err := sem.Clear(ctx, string(c.ID))
		if err != nil {
			return err
		}
		if c.JSON {
			return printJSON(a.stdout, struct {
				rawID
				Cleared int `json:"cleared"`
			}{rawIDOf(string(c.ID)), n})
		}
		fmt.Fprintf(a.stdout, "%s: cleared %s\n", printable(string(c.ID)), plural(n, "slot"))
		return nil
	})
}
