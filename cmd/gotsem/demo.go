package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/cmd/gotsem/internal/demo"
	"github.com/ashfaqjani916/gotsem/semui"
	"github.com/ashfaqjani916/gotsem/store"
)

// demoPrefix keeps the demo away from keys that are in use.
const demoPrefix = "gotsem-demo:"

type demoCmd struct {
	Redis             string  `placeholder:"URL" help:"Run on this Redis, in several processes, one of which is killed half-way. GOTSEM_REDIS_URL is ignored here. The keys begin with gotsem-demo: and expire by themselves, except a small one, gotsem:e:gotsem-demo:, which stays."`
	RedisPasswordFile string  `placeholder:"FILE" help:"Read the password from the first line of a file."`
	Pods              int     `placeholder:"N" help:"How many processes, with --redis: 2 to 8 (default 3)."`
	Seconds           float64 `default:"0" placeholder:"N" help:"How long it runs: 3 or more (default 12; 600 with --ui)."`
	UI                bool    `name:"ui" help:"Serve a page of it too, on a free loopback port, as gotsem ui does; it shows and changes nothing."`
	JSON              bool    `help:"Print JSON, a line each: start, tick, event, summary."`
}

func (*demoCmd) Help() string {
	return `Starts a real HTTP service on a loopback port that lets so many requests of each project in at once, and drives it with real HTTP load from projects that want more. One project's holders crash (on Redis: a whole process is killed with -9), and their slots lapse by themselves; another has its limit raised and lowered while it runs. All projects together have a limit too, and a flood of sheddable work shares an id with critical work, and is refused before it. All work is counted outside the store. The exit code is 1 if there ever was more of it than the limit allowed, and 0 otherwise, after Ctrl-C too.`
}

func (c *demoCmd) Validate() error {
	switch {
	case c.Seconds != 0 && c.Seconds < demo.MinLength.Seconds() || c.Seconds > 3600:
		return fmt.Errorf("--seconds %v: %v to 3600", c.Seconds, demo.MinLength.Seconds())
	case c.Pods != 0 && c.Redis == "":
		return errors.New("--pods: processes share their slots through a Redis: give --redis redis://host:6379 too")
	case c.Pods != 0 && (c.Pods < 2 || c.Pods > 8):
		return fmt.Errorf("--pods %d: 2 to 8", c.Pods)
	}
	return nil
}

func (c *demoCmd) Run(a *app) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if c.Seconds == 0 {
		c.Seconds = 12
		if c.UI {
			c.Seconds = 600
		}
	}
	o := demo.Options{
		Length: time.Duration(c.Seconds * float64(time.Second)),
		JSON:   c.JSON, Terminal: term.IsTerminal(int(os.Stdout.Fd())),
		Size: func() (int, int) {
			columns, lines, _ := term.GetSize(int(os.Stdout.Fd()))
			return columns, lines
		},
		Out: a.stdout, Err: os.Stderr, Open: a.openFor,
	}
	if c.UI {
		o.Page = servePage
	}
	if c.Redis != "" {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("the pods run this program, which cannot be found: %w", err)
		}
		o.Executable, o.Pods = self, cmp.Or(c.Pods, 3)
		o.Where = demo.Where{Redis: c.Redis, PasswordFile: c.RedisPasswordFile, Prefix: demoPrefix}
	}
	return demo.Run(ctx, o)
}

// servePage serves what sem's store keeps, to look at.
func servePage(sem *gotsem.Semaphore) (url string, stop func(), err error) {
	page, err := semui.New(semui.Options{Semaphore: sem, Authorize: semui.ViewOnly, Interval: 500 * time.Millisecond, Hosts: loopbackHosts})
	if err != nil {
		return "", nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		_ = page.Close()
		return "", nil, fmt.Errorf("--ui: %w", err)
	}
	srv := &http.Server{Handler: page, ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = srv.Serve(listener) }()
	return "http://" + listener.Addr().String() + "/", func() { _, _ = page.Close(), srv.Close() }, nil
}

// podCmd is one of the processes of the demo.
type podCmd struct{}

func (*podCmd) Run(a *app) error { return demo.ServePod(a.stdin, a.stdout, a.openFor) }

// openFor opens what the demo runs on.
func (a *app) openFor(w demo.Where) (store.Store, string, func(), error) {
	c := connection{Redis: w.Redis, RedisPasswordFile: w.PasswordFile, Prefix: w.Prefix}
	link, err := c.open(a)
	if err != nil {
		return nil, "", nil, err
	}
	return link.store, link.target.String(), link.close, nil
}
