// Command gotsem holds a slot while a command runs, looks into a semaphore and
// changes it, and shows what it does (gotsem demo).
//
// Reading order: main.go (the commands, exit codes), connect.go (to Redis), run.go
// with child_unix.go (a command under a slot), look.go (ls, holders, usage, limit,
// revoke, clear), ui.go (the page), manual.go (man page, completions), print.go (what is printed, and how it is made harmless). The demo
// lives in internal/demo.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"
)

// Exit codes. Those of run are timeout(1)'s, and flock(1)'s for "not admitted".
const (
	exitFailed      = 1   // it could not be done, or the answer is no
	exitUsage       = 2   // wrong arguments
	exitNotAdmitted = 75  // run: no slot; EX_TEMPFAIL of sysexits.h
	exitEnded       = 124 // run: ended by us, since the lease was lost
	exitOwn         = 125 // run: gotsem itself failed
	exitCannotRun   = 126 // run: the command is there and cannot be run
	exitNotFound    = 127 // run: the command is not there
	exitSignal      = 128 // run: plus the number of the signal that ended it
)

type commands struct {
	Demo       demoCmd       `cmd:"" help:"Show an HTTP service limited per project, under load, in a live table."`
	Run        runCmd        `cmd:"" help:"Run a command while holding a slot."`
	Ls         lsCmd         `cmd:"" help:"List the ids that are held."`
	Top        topCmd        `cmd:"" help:"Show the ids that hurt most, live, the worst first."`
	Holders    holdersCmd    `cmd:"" help:"List who holds the slots of an id."`
	Waiters    waitersCmd    `cmd:"" help:"List who waits in line for an id."`
	Usage      usageCmd      `cmd:"" help:"Show how much of an id is held."`
	Limit      limitCmd      `cmd:"" help:"Show, set or reset the limit of an id."`
	Revoke     revokeCmd     `cmd:"" help:"Take one slot away from its holder."`
	Clear      clearCmd      `cmd:"" help:"Take all slots of an id away from their holders."`
	UI         uiCmd         `cmd:"" name:"ui" help:"Serve a page that shows who holds and who waits, on loopback."`
	Doctor     doctorCmd     `cmd:"" help:"Check whether this Redis is set up as the guarantees need it."`
	Man        manCmd        `cmd:"" help:"Print the man page."`
	Completion completionCmd `cmd:"" help:"Print a completion script for a shell."`
	Pod        podCmd        `cmd:"" hidden:"" help:"One of the processes of demo --pods; started by it."`

	Version kong.VersionFlag `help:"Print the version and exit."`
}

const description = `A distributed semaphore: at most N at once per id, across all processes.

Redis is named by --redis or GOTSEM_REDIS_URL, in one of these forms:

  redis://[user:password@]host[:port][/db]
  redis+sentinel://[user:password@]host[:port][,host[:port]...]/master[?db=1]
  redis+cluster://[user:password@]host[:port][,host[:port]...]
  unix:///path/to/socket[?db=1]

rediss in the place of redis is TLS. Write / ? # @ in a password as %2F %3F %23 %40. Arguments can be seen by every user of the machine: put a password into GOTSEM_REDIS_URL or a --redis-password-file.

Exit codes: 0 done; 1 it could not be done, or the answer is no; 2 wrong arguments. "run" has its own: gotsem run --help.`

// app is where a command reads and writes.
type app struct {
	stdin  io.Reader
	stdout io.Writer
	stderr *cleanWriter
}

// text is an argument as it was given. Kong takes strings through JSON, which
// replaces bytes that are not UTF-8: ids and file names have such.
type text string

// Decode implements kong.MapperValue.
func (t *text) Decode(ctx *kong.DecodeContext) error {
	token, err := ctx.Scan.PopValue("text")
	if err == nil {
		*t = text(token.Value.(string))
	}
	return err
}

// exitError ends the program with a code of its own. Without err nothing is said.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

func main() { os.Exit(execute(os.Args[1:])) }

// execute does what args say, and returns the exit code.
func execute(args []string) int {
	a := &app{stdin: os.Stdin, stdout: os.Stdout, stderr: &cleanWriter{w: os.Stderr}}
	parser, err := kong.New(new(commands),
		kong.Name("gotsem"), kong.Description(description), kong.Vars{"version": version(), "refused": strconv.Itoa(exitNotAdmitted)},
		kong.Writers(a.stdout, a.stderr), kong.Bind(a), kong.BindTo(context.Background(), (*context.Context)(nil)),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}),
	)
	if err != nil {
		panic(err) // the struct tags above are wrong
	}
	ctx, err := parser.Parse(args)
	if err != nil {
		return a.misused(err)
	}
	if err = ctx.Run(); err == nil {
		return 0
	}
	exit := &exitError{exitFailed, err}
	errors.As(err, &exit)
	if exit.err != nil {
		a.complain(exit.err)
	}
	return exit.code
}

// complain prints an error.
func (a *app) complain(err error) {
	said := err.Error()
	if !strings.HasPrefix(said, "gotsem: ") {
		said = "gotsem: " + said
	}
	fmt.Fprintln(a.stderr, said)
}

// anyURL is a Redis URL in the wrong place, of which nothing is repeated, and
// nothing of what follows: a password may hold a blank.
var anyURL = regexp.MustCompile(`(?is)\b(rediss?|unix)(\+\w*)?:/.*`)

// misused prints what is wrong with the arguments.
func (a *app) misused(err error) int {
	help, code := "gotsem --help", exitUsage
	var parse *kong.ParseError
	if errors.As(err, &parse) && parse.Context.Selected() != nil {
		name := parse.Context.Selected().Name
		help = "gotsem " + name + " --help"
		if name == "run" {
			code = exitOwn
		}
	}
	said := anyURL.ReplaceAllString(err.Error(), "(a Redis URL)")
	a.complain(fmt.Errorf("%s; see %s", printable(said), help))
	return code
}

// version is the module's version, and what it was built with.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "gotsem (version not known)"
	}
	v := "gotsem " + info.Main.Version
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && info.Main.Version == "(devel)" {
			v += " " + s.Value[:min(12, len(s.Value))]
		}
	}
	return v + " " + info.GoVersion
}
