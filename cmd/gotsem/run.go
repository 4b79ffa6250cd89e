//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/store"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

type runCmd struct {
	connection
	ID          text          `arg:"" help:"What is limited: everything that names the same id shares its slots."`
	Limit       int           `short:"n" default:"1" placeholder:"N" help:"How many slots the id has (default ${default}). An override by gotsem limit wins."`
	Weight      int           `default:"1" placeholder:"N" help:"How many slots of ID the command takes (default ${default})."`
	Also        []further     `sep:"none" placeholder:"ID=N" help:"A further id of which the command holds a slot, and how many that has (default: as --limit; =NxW: W slots of N). May be given several times: the narrowest first, in the same order everywhere."`
	Class       string        `enum:"sheddable,batch,default,critical" default:"default" placeholder:"CLASS" help:"How important the command is: sheddable, batch, default or critical (default ${default}). The less important is refused sooner, and waits longer."`
	Wait        time.Duration `default:"30s" help:"The most to wait in line for them, such as 90s or 2h; 0: not at all (default ${default})."`
	Queue       int           `default:"1000" placeholder:"N" help:"How many may wait in line; further ones are not admitted (default ${default})."`
	TTL         time.Duration `name:"ttl" default:"30s" help:"How long the slots stay taken if gotsem is killed or Redis cannot be reached; until then they are renewed (default ${default})."`
	KillAfter   time.Duration `default:"10s" help:"When the lease is lost: how long the command has from TERM to KILL (default ${default})."`
	Fresh       bool          `env:"GOTSEM_FRESH" help:"Take a Redis that does not know the prefix for a new one, and do not wait for holders to re-register. For a Redis that only this job uses."`
	Refused     int           `name:"refused-code" short:"E" default:"${refused}" placeholder:"CODE" help:"Exit code if the command was not admitted (default ${default})."`
	CommandOnly bool          `help:"Release the slots when the command itself has ended, whatever it has left running."`
	Label       string        `help:"Shown by gotsem holders, beside host and pid."`
	Command     []text        `arg:"" help:"The command and its arguments, after --."`
}

func (*runCmd) Help() string {
	return `  gotsem run nightly -n 4 -- make report

  gotsem run key:42 -n 2 --also tenant:7=5 --also all=40 -- ./export

Waits in line for a slot, runs the command while holding it, and releases it when the command and everything it started have ended (on Linux also processes in other groups or sessions; --command-only does not wait for them). At most N run at once, over all machines that share the Redis.

Exit codes: the command's own; 128+N if signal N ended it; 75 not admitted (-E changes it): full, the line is full, or waited too long; 124 ended by gotsem since the lease was lost; 125 gotsem itself failed, which includes a Redis that cannot be reached; 126 the command cannot be run; 127 there is no such command.

A Redis that does not know the prefix is new, or has lost its memory (a restart without data, FLUSHALL). Nobody can tell which, so the first run waits --ttl plus a second, and says so: holders re-register meanwhile. With --wait 0 it is not admitted. --fresh skips that. If Redis does not answer while gotsem stands in line, gotsem keeps waiting until --wait is over.

The lease is lost if it is revoked or cleared, or cannot be renewed for a whole --ttl: then others may hold the slots. The command and everything it started get TERM, and after --kill-after KILL.

The command finds GOTSEM_ID, GOTSEM_SLOT, GOTSEM_FENCE (a number that rises with every lease of the id, for a resource that refuses lower ones) and GOTSEM_EXPIRES (until when the lease is good without the next renewal; RFC 3339) in its environment. Gotsem prints nothing of its own to stdout, and only problems to stderr. While it waits and stderr is a terminal, it shows the place in line and who holds the slots.

Signals are passed on to the command and everything it started. While gotsem waits, a signal that would have ended the command ends the waiting, with 128+N. Without a terminal the command has a process group of its own. With one it stays in gotsem's, so that Ctrl-C, Ctrl-Z, fg, bg and pagers work as they do without gotsem; then INT, QUIT and WINCH come from the terminal itself and are not passed on a second time.`
}

func (c *runCmd) Validate() error {
	switch {
	case c.Limit < 1:
		return fmt.Errorf("--limit %d: at least 1", c.Limit)
	case c.Weight < 1:
		return fmt.Errorf("--weight %d: at least 1", c.Weight)
	case c.Wait < 0 || c.KillAfter < 0:
		return errors.New("--wait and --kill-after: 0 or more")
	case c.TTL < gotsem.MinTTL:
		return fmt.Errorf("--ttl %v: at least %v", c.TTL, gotsem.MinTTL)
	case c.Refused < 0 || c.Refused > 255:
		return fmt.Errorf("-E %d: 0 to 255", c.Refused)
	}
	return nil
}

func (c *runCmd) Run(a *app) error {
	// The kernel ends the child when the thread that made it ends (see attributes).
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	argv := make([]string, len(c.Command))
	for i, arg := range c.Command {
		argv[i] = string(arg)
	}
	path, err := exec.LookPath(argv[0]) // before waiting for nothing
	if err != nil && !errors.Is(err, exec.ErrDot) {
		return cannotRun(argv[0], err)
	}
	signals := make(chan os.Signal, 64)
	tty := controlled()
	signal.Notify(signals, passed(tty)...)
	defer signal.Stop(signals)

	// Each gotsem is a process without a past: that it has never met this Redis's memory
	// says nothing about whether that was lost.
	var options []redisstore.Option
	if !c.Fresh {
		options = append(options, redisstore.StrictStart())
	}
	link, err := c.open(a, options...)
	if err != nil {
		return &exitError{exitOwn, err}
	}
	defer link.close()
	line := watchedBy(link.store)
	log := &troubles{w: a.stderr}
	sem, err := gotsem.New(gotsem.Options{
		Store: line, Limit: c.Limit, LimitFunc: c.limitOf, Queue: queueFor(c.Wait, c.Queue), TTL: c.TTL, Label: c.Label,
		// The command never runs without its slots. Nobody is in a hurry here: a
		// call has long enough to get over a reconnect.
		Outage: gotsem.Closed, StoreTimeout: min(5*time.Second, c.TTL/3),
		Logger: slog.New(log),
	})
	if err != nil {
		return &exitError{exitOwn, err}
	}
	defer sem.Close()

	lease, err := c.acquire(a, link, sem, line, signals)
	if err != nil {
		return c.notAdmitted(link, err)
	}
	log.on.Store(true) // until here, the error says it
	child, err := start(path, argv, environment(string(c.ID), lease), tty)
	if err != nil {
		_ = lease.Release(context.Background())
		return cannotRun(argv[0], err)
	}
	code := c.supervise(a, child, lease, signals)
	if err := lease.Release(context.Background()); err != nil {
		a.complain(link.explain(err))
	}
	if code != 0 {
		return &exitError{code: code}
	}
	return nil
}

// queueFor is Options.Queue: without a wait there is no line.
func queueFor(wait time.Duration, queue int) int {
	if wait == 0 || queue <= 0 {
		return -1
	}
	return queue
}

// interrupted is a signal that ended the waiting.
type interrupted struct{ syscall.Signal }

func (i interrupted) Error() string { return "interrupted: " + i.String() }

// acquire waits in line for the lease.
func (c *runCmd) acquire(a *app, link *link, sem *gotsem.Semaphore, line *watched, signals <-chan os.Signal) (*gotsem.Lease, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	type answer struct {
		lease *gotsem.Lease
		err   error
	}
	answered := make(chan answer, 1)
	began := time.Now()
	go func() {
		ctx, ok := link.doubting(ctx)
		lease, err := c.ask(ctx, a, sem, line, ok)
		answered <- answer{lease, causeOf(ctx, err)}
	}()
	show := c.display(ctx, a, sem, line, began)
	defer show()
	var by os.Signal
	for {
		select {
		case got := <-answered:
			if by == nil {
				return got.lease, got.err
			}
			if got.lease != nil { // the grant met the signal
				_ = got.lease.Release(context.Background())
			}
			return nil, interrupted{by.(syscall.Signal)}
		case s := <-signals:
			switch {
			case s == syscall.SIGTSTP:
				stopSelf()
			case fatal(s) && by == nil:
				by = s
				cancel()
			}
		}
	}
}

// ask asks for the lease. The grace of a Redis without a memory is not counted by
// --wait: it is longer than most waits, and nobody's fault.
func (c *runCmd) ask(ctx context.Context, a *app, sem *gotsem.Semaphore, line *watched, ok func()) (*gotsem.Lease, error) {
	defer ok()
	opts := []gotsem.Option{gotsem.Weight(c.Weight)}
	if class, err := store.ParseClass(c.Class); err == nil && class != gotsem.Default {
		opts = append(opts, gotsem.As(class))
	}
	for _, f := range c.Also {
		opts = append(opts, gotsem.Also(f.id, gotsem.Weight(f.weight)))
	}
	if c.Wait == 0 {
		return sem.Try(ctx, string(c.ID), opts...)
	}
	wait := c.Wait
	lease, err := sem.Try(ctx, string(c.ID), opts...)
	ok()
	recovering := (*gotsem.RecoveringError)(nil)
	switch {
	case errors.As(err, &recovering):
		a.complain(fmt.Errorf("the prefix %s is not known to Redis yet, or not any more: waiting %v, so that holders can re-register; --wait counts from then on (--fresh skips this, for a Redis that only this job uses)",
			printable(c.Prefix), recovering.RetryAfter.Round(100*time.Millisecond)))
		wait += recovering.RetryAfter
	case !errors.Is(err, gotsem.ErrFull):
		return lease, err
	}
	told := false
	line.away = func(err error, since, left time.Duration) {
		if !told && since >= time.Second {
			told = true
			a.complain(fmt.Errorf("no answer from Redis (%w): waiting on, for %v at the most", err, left.Round(time.Second)))
		}
	}
	line.wait(time.Now().Add(wait))
	return sem.Acquire(ctx, string(c.ID), append(opts, gotsem.MaxWait(wait))...)
}

// further is an id of --also.
type further struct {
	id            string
	limit, weight int // limit 0: that of --limit
}

// UnmarshalText takes ID, ID=LIMIT or ID=LIMITxWEIGHT. An id may contain "=": what stands
// behind the last counts as numbers only if it is some.
func (f *further) UnmarshalText(b []byte) error {
	*f = further{id: string(b), weight: 1}
	at := strings.LastIndexByte(f.id, '=')
	if at < 0 {
		return nil
	}
	limit, weight, weighted := strings.Cut(f.id[at+1:], "x")
	n, err := strconv.Atoi(limit)
	if err != nil {
		return nil
	}
	if weighted {
		if f.weight, err = strconv.Atoi(weight); err != nil || f.weight < 1 {
			return fmt.Errorf("%s: the weight behind x: a number, at least 1", printable(f.id))
		}
	}
	if n < 1 {
		return fmt.Errorf("%s: the limit behind =: at least 1", printable(f.id))
	}
	f.id, f.limit = f.id[:at], n
	return nil
}

// limitOf is the limit of an id of the call, as the command line says.
func (c *runCmd) limitOf(_ context.Context, id string) (int, error) {
	for _, f := range c.Also {
		if f.id == id && f.limit > 0 {
			return f.limit, nil
		}
	}
	return c.Limit, nil
}

// display shows on a terminal how the waiting goes, until done is called.
func (c *runCmd) display(ctx context.Context, a *app, sem *gotsem.Semaphore, line *watched, began time.Time) (done func()) {
	fd := int(os.Stderr.Fd())
	if !term.IsTerminal(fd) {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		shown := false
		for {
			select {
			case <-ctx.Done():
				if shown {
					fmt.Fprint(a.stderr, "\r\x1b[K")
				}
				return
			case <-line.moved:
			case <-tick.C:
			}
			d, id := line.decision()
			if d.Outcome != store.Waiting && d.Outcome != store.Recovering {
				continue
			}
			text := c.progress(ctx, sem, id, d, time.Since(began))
			if width, _, err := term.GetSize(fd); err == nil && len(text) >= width {
				text = strings.ToValidUTF8(text[:max(0, width-1)], "")
			}
			fmt.Fprint(a.stderr, "\r\x1b[K"+text)
			shown = true
		}
	}()
	return func() { cancel(); <-ended }
}

// progress is the waiting in one line.
func (c *runCmd) progress(ctx context.Context, sem *gotsem.Semaphore, id string, d store.Decision, waited time.Duration) string {
	text := fmt.Sprintf("gotsem: waiting for %s, %v of %v: ", printable(id), waited.Round(time.Second), c.Wait)
	if d.Outcome == store.Recovering {
		return text + fmt.Sprintf("the store lost its memory, holders have %v to re-register", d.RetryIn.Round(time.Second))
	}
	text += fmt.Sprintf("place %d of %d in line, %d of %d held", d.Place, d.Waiting, d.Active, d.Limit)
	holders, err := sem.Holders(ctx, id)
	if err != nil {
		return text // it is only for show
	}
	for i, h := range holders {
		if i == 0 {
			text += " by "
		} else {
			text += ", "
		}
		if h.Owner == "" {
			text += "a TryAcquire"
			continue
		}
		text += printable(h.Owner)
		if !h.Since.IsZero() {
			text += fmt.Sprintf(" (%v)", time.Since(h.Since).Round(time.Second))
		}
	}
	return text
}

// notAdmitted turns what Acquire said into an exit code.
func (c *runCmd) notAdmitted(link *link, err error) error {
	var by interrupted
	switch {
	case errors.As(err, &by):
		return &exitError{code: exitSignal + int(by.Signal)}
	case errors.Is(err, gotsem.ErrFull), errors.Is(err, gotsem.ErrQueueFull), errors.Is(err, gotsem.ErrWaitTooLong),
		errors.Is(err, gotsem.ErrTooHeavy), errors.Is(err, gotsem.ErrRecovering):
		return &exitError{c.Refused, fmt.Errorf("not admitted: %s (gotsem holders lists who holds slots)", strings.TrimPrefix(err.Error(), "gotsem: "))}
	}
	return &exitError{exitOwn, link.explain(err)}
}

// cannotRun is 127 for what is not there, 126 for what is and cannot be run.
func cannotRun(command string, err error) error {
	code, cause := exitCannotRun, err
	if e := (*exec.Error)(nil); errors.As(err, &e) {
		cause = e.Err
	}
	if e := (*fs.PathError)(nil); errors.As(cause, &e) {
		cause = e.Err
	}
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		code = exitNotFound
	}
	return &exitError{code, fmt.Errorf("cannot run %s: %w", printable(command), cause)}
}

// environment is ours and what the lease is.
func environment(id string, lease *gotsem.Lease) []string {
	return append(os.Environ(),
		"GOTSEM_ID="+id,
		"GOTSEM_SLOT="+lease.SlotID(),
		fmt.Sprintf("GOTSEM_FENCE=%d", lease.Fence()),
		"GOTSEM_EXPIRES="+lease.Expires().UTC().Format("2006-01-02T15:04:05.000Z07:00"),
	)
}

// supervise waits until the command, and all that it started, has ended; it passes
// signals on, and ends what is left when the lease is lost. It returns the exit code.
func (c *runCmd) supervise(a *app, child *child, lease *gotsem.Lease, signals <-chan os.Signal) int {
	lost := lease.Context().Done()
	reap := make(chan os.Signal, 1)
	signal.Notify(reap, syscall.SIGCHLD)
	defer signal.Stop(reap)
	var look <-chan time.Time // nil: there is nothing to look for
	var code int
	var since time.Time // when the command ended
	said := false
	for {
		select {
		case code = <-child.ended:
			child.over, since = true, time.Now()
			if c.CommandOnly || len(child.left()) == 0 {
				return code
			}
			look = time.After(lookEvery)
		case s := <-signals:
			child.pass(s.(syscall.Signal))
		case <-lost:
			a.complain(fmt.Errorf("the lease of %s is lost, others may hold its slots: ending the command, TERM now, KILL in %v", printable(string(c.ID)), c.KillAfter))
			c.end(a, child, signals)
			return exitEnded
		case <-reap: // ends of what was adopted come together: one look is enough for all
			if look == nil {
				look = time.After(lookEvery)
			}
		case <-look:
			look = nil
			left := child.left()
			if !child.over {
				continue
			}
			if len(left) == 0 {
				return code
			}
			if !said && time.Since(since) > time.Second {
				said = true
				a.complain(fmt.Errorf("the command has ended (%d), and %s that it started: its slots of %s stay held until then (--command-only does not wait)", code, goOn(left), printable(string(c.ID))))
			}
			look = time.After(lookEvery)
		}
	}
}

// lookEvery is how often the process table is looked through, where that is needed.
const lookEvery = 50 * time.Millisecond

// goOn names processes.
func goOn(left map[int]uint64) string {
	pids := slices.Sorted(maps.Keys(left))
	if len(pids) == 1 {
		return fmt.Sprintf("process %d goes on", pids[0])
	}
	return fmt.Sprintf("%d processes go on (%d among them)", len(pids), pids[0])
}

// end ends the command and all that it started: nothing of it may go on without the
// slots.
func (c *runCmd) end(a *app, child *child, signals <-chan os.Signal) {
	told := child.signal(syscall.SIGTERM)
	child.signal(syscall.SIGCONT) // what is stopped would not hear it
	kill := time.NewTimer(c.KillAfter)
	defer kill.Stop()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	var ended <-chan int
	if !child.over {
		ended = child.ended
	}
	var killed time.Time
	for {
		select {
		case <-ended:
			ended, child.over = nil, true
		case s := <-signals:
			child.pass(s.(syscall.Signal))
		case <-kill.C:
			killed = time.Now()
		case <-look.C:
		}
		if !killed.IsZero() { // whatever was started meanwhile too
			child.signal(syscall.SIGKILL)
		} else {
			child.signalNew(syscall.SIGTERM, told)
		}
		left := child.left()
		if ended == nil && len(left) == 0 {
			return
		}
		if !killed.IsZero() && time.Since(killed) > unkillable {
			a.complain(fmt.Errorf("%s although it was sent KILL %v ago (in the kernel, or another user's)", goOn(left), unkillable))
			return
		}
	}
}

// unkillable is how long what was killed is waited for.
const unkillable = 5 * time.Second
