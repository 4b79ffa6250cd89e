// Command screenshotd takes screenshots of web pages over HTTP, a few at once, and
// says no at once to what is more. It is the worked case of gotsem: see README.md.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/alecthomas/kong"
)

type cli struct {
	Log     string           `enum:"text,json" default:"text" help:"How the log is written: ${enum}."`
	Version kong.VersionFlag `help:"Print the version and quit."`

	Serve serveCmd `cmd:"" default:"withargs" help:"Serve captures (the default command)."`
	Lab   labCmd   `cmd:"" help:"Compare ways to say no, and soak the service."`

	LabServer labServerCmd `cmd:"" hidden:"" help:"A server under test in the lab."`
}

func main() {
	os.Exit(run(os.Args[1:]))
}

// newParser makes the command line's parser.
func newParser(c *cli, options ...kong.Option) (*kong.Kong, error) {
	return kong.New(c, append(options,
		kong.Name("screenshotd"),
		kong.Description("Screenshots over HTTP: so many at once, and a quick no to the rest. Every flag can be set in the environment as SCREENSHOTD_NAME."),
		kong.DefaultEnvars("SCREENSHOTD"),
		kong.Vars{"version": version()},
	)...)
}

func run(args []string) int {
	var c cli
	parser, err := newParser(&c)
	if err != nil {
		panic(err) // the struct above is wrong
	}
	k, err := parser.Parse(args)
	if err != nil {
		parser.Errorf("%s", err)
		return 2
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if c.Log == "json" {
		log = slog.New(slog.NewJSONHandler(os.Stderr, nil))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	k.BindTo(ctx, (*context.Context)(nil))
	if err := k.Run(log); err != nil {
		fmt.Fprintln(os.Stderr, "screenshotd:", err)
		return 1
	}
	return 0
}

// version is the module's version, and what it was built with.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "screenshotd (version not known)"
	}
	v := "screenshotd " + info.Main.Version
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && info.Main.Version == "(devel)" {
			v += " " + s.Value[:min(12, len(s.Value))]
		}
	}
	return v + " " + info.GoVersion
}
