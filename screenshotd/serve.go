package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/httpshed"
	"github.com/ashfaqjani916/gotsem/screenshotd/internal/browser"
	"github.com/ashfaqjani916/gotsem/screenshotd/internal/guard"
	"github.com/ashfaqjani916/gotsem/screenshotd/internal/server"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

type serveCmd struct {
	Listen   string `default:"127.0.0.1:7080" help:"Address to listen on. There is no authentication: put something in front before it is not loopback."`
	Chromium string `placeholder:"PATH" help:"The browser. Default: chromium-headless-shell, chromium and others are looked for in PATH."`

	Max         int           `default:"6" help:"Captures at once on this server. One more gets a refusal."`
	Queue       int           `default:"0" help:"How many may wait for a slot, where bursts should be absorbed. Needs --wait."`
	Wait        time.Duration `default:"0s" help:"The most that one waits."`
	FullWeight  int           `default:"2" help:"Slots that a full page takes."`
	Status      int           `default:"429" help:"Status of a refusal: 429 or 503."`
	BehindProxy bool          `help:"A balancer of requests is in front: refusals keep their connection."`

	Redis       string `placeholder:"URL" help:"Share the cap of a fleet through this Redis: redis://[user:password@]host:port/db. Better set in the environment, if it has a password."`
	RedisPrefix string `default:"screenshotd:" help:"Prefix of the keys in Redis."`
	FleetMax    int    `placeholder:"N" help:"Captures at once in the whole fleet, with --redis. Default: as --max."`
	Outage      string `enum:"local,open,closed" default:"local" help:"While Redis is away: keep to this server's share of the cap (local), to --max alone (open), or refuse (closed)."`

	Timeout      time.Duration `default:"15s" help:"Time for a capture that names none."`
	MaxTimeout   time.Duration `default:"1m" help:"The most that a capture may ask for."`
	MaxPixels    int           `default:"25000000" help:"Most pixels of a picture: width × height × scale²."`
	MaxHeight    int           `default:"16384" help:"Most height of a page, in CSS pixels; what is below is cut off."`
	MaxPage      int64         `default:"67108864" help:"Most bytes that a page may load."`
	MaxPicture   int           `default:"33554432" help:"Most bytes of a picture."`
	MaxMemory    int64         `default:"536870912" help:"Most bytes of memory that a page's process may have for itself; one with more is ended, and the others go on. Negative: any."`
	MaxUnread    int64         `default:"134217728" help:"Most bytes of pictures that wait to be read by slow clients; with more, captures are refused."`
	RestartAfter int           `default:"1000" help:"A fresh browser after so many captures."`
	NoSandbox    bool          `help:"Chromium's own sandbox off, for containers whose seccomp profile forbids it user namespaces. A page that breaks out of it then has what this process has."`
	Nice         int           `default:"5" help:"By how much the browser's priority is lowered, so that refusals stay fast. Negative: not."`

	Overload string `enum:"auto,yes,no" default:"auto" help:"Whether the page has a button that overloads this server with captures of a sample (auto: if it listens on loopback, without --redis)."`

	AllowTarget []string `placeholder:"PREFIX" help:"Addresses that may be captured although they are not public: 10.1.2.3:8080, 10.0.0.0/8."`
	AllowPort   []uint16 `default:"80,443" help:"Ports of targets."`

	Drain           time.Duration `default:"3s" help:"When told to stop: for how long captures are still taken while /readyz says no, so that a balancer learns of it."`
	ShutdownTimeout time.Duration `default:"30s" help:"Time for captures under way when told to stop."`

	ready func(addr string) // told of the address, by tests
}

// Validate reports what the flags alone do not: what goes together.
func (c *serveCmd) Validate() error {
	switch {
	case c.Max < 1:
		return fmt.Errorf("--max is %d: at least 1", c.Max)
	case c.FullWeight < 1 || c.FullWeight > c.Max:
		return fmt.Errorf("--full-weight is %d: between 1 and --max (%d), or no full page gets in", c.FullWeight, c.Max)
	case c.Queue < 0 || c.Wait < 0 || (c.Queue == 0) != (c.Wait == 0):
		return fmt.Errorf("--queue is %d and --wait is %v: both are above 0, or neither is", c.Queue, c.Wait)
	case c.Status != http.StatusTooManyRequests && c.Status != http.StatusServiceUnavailable:
		return fmt.Errorf("--status is %d: 429 or 503", c.Status)
	case c.FleetMax != 0 && c.Redis == "":
		return errors.New("--fleet-max needs --redis: without it no fleet is known")
	case c.FleetMax != 0 && c.FleetMax < c.FullWeight:
		return fmt.Errorf("--fleet-max is %d: at least --full-weight (%d)", c.FleetMax, c.FullWeight)
	case c.Timeout <= 0 || c.MaxTimeout < c.Timeout:
		return fmt.Errorf("--timeout is %v and --max-timeout is %v: above 0, and the second not below the first", c.Timeout, c.MaxTimeout)
	case c.Drain < 0:
		return fmt.Errorf("--drain is %v: 0 or more", c.Drain)
	case c.MaxUnread < 1:
		return fmt.Errorf("--max-unread is %d: at least 1", c.MaxUnread)
	case c.MaxPixels < 1 || c.MaxHeight < 1 || c.MaxPage < 1 || c.MaxPicture < 1 || c.RestartAfter < 1:
		return errors.New("--max-pixels, --max-height, --max-page, --max-picture and --restart-after are at least 1")
	}
	return nil
}

// Run serves until ctx ends, and then lets what is under way finish.
func (c *serveCmd) Run(ctx context.Context, log *slog.Logger) (err error) {
	var allow []guard.Exception
	for _, s := range c.AllowTarget {
		e, err := guard.ParseException(s)
		if err != nil {
			return fmt.Errorf("--allow-target: %w", err)
		}
		allow = append(allow, e)
	}
	g := guard.New(guard.Options{
		Ports: c.AllowPort, Allow: allow, Inside: map[string]http.Handler{server.SampleHost: server.SamplePage()}, Logger: log,
	})
	if err := g.Start(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.Close()) }()

	b, err := browser.New(browser.Options{
		Path: c.Chromium, Guard: g, RestartAfter: c.RestartAfter, MaxPage: c.MaxPage, MaxPicture: c.MaxPicture, MaxMemory: c.MaxMemory, NoSandbox: c.NoSandbox, Nice: c.Nice, Logger: log,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()

	sems, err := c.semaphores(log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sems.close()) }()

	s, err := server.New(server.Options{
		Browser: b, Semaphore: sems.shared, Local: sems.local, MaxQueue: c.Queue, Wait: c.Wait, FullWeight: c.FullWeight, MaxUnread: c.MaxUnread,
		Status: c.Status, Close: c.closePolicy(), Overload: c.overload(), Logger: log,
		Limits: server.Limits{MaxPixels: c.MaxPixels, MaxHeight: c.MaxHeight, Timeout: c.Timeout, MaxTimeout: c.MaxTimeout},
	})
	if err != nil {
		return err
	}
	return c.listen(ctx, s, log)
}

func (c *serveCmd) closePolicy() httpshed.ClosePolicy {
	if c.BehindProxy {
		return httpshed.CloseNever
	}
	return httpshed.CloseRefused
}

// overload: the button takes slots from everybody who shares them, so by itself it is
// there only where somebody tries the service out.
func (c *serveCmd) overload() bool {
	if c.Overload != "auto" {
		return c.Overload == "yes"
	}
	host, _, err := net.SplitHostPort(c.Listen)
	at, parsed := netip.ParseAddr(host)
	return err == nil && c.Redis == "" && (host == "localhost" || parsed == nil && at.IsLoopback())
}

func (c *serveCmd) listen(ctx context.Context, s *server.Server, log *slog.Logger) error {
	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return err
	}
	srv := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    32 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	log.Info("screenshotd: listening", "addr", l.Addr().String(), "max", c.Max, "queue", c.Queue, "fleet", c.Redis != "")
	if c.ready != nil {
		c.ready(l.Addr().String())
	}
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(l) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	// Balancers ask /readyz, and over new connections: they are taken for a
	// while. After its answer each connection is closed, so that none is cut off later.
	log.Info("screenshotd: stopping; /readyz says no, and then captures under way may finish", "drain", c.Drain, "within", c.ShutdownTimeout)
	s.Closing()
	srv.SetKeepAlivesEnabled(false)
	select {
	case err := <-failed:
		return err
	case <-time.After(c.Drain):
	}
	last, cancel := context.WithTimeout(context.Background(), c.ShutdownTimeout)
	defer cancel()
	if err := srv.Shutdown(last); err != nil {
		_ = srv.Close()
		return fmt.Errorf("captures did not end within %v, and were cut off: %w", c.ShutdownTimeout, err)
	}
	return nil
}

// semaphores are the caps: of this server, and with Redis of the fleet.
type semaphores struct {
	shared, local *gotsem.Semaphore
	rdb           *redis.Client
}

func (s semaphores) close() error {
	err := s.shared.Close()
	if s.local != nil {
		err = errors.Join(err, s.local.Close())
	}
	if s.rdb != nil {
		err = errors.Join(err, s.rdb.Close())
	}
	return err
}

var outages = map[string]gotsem.Outage{"local": gotsem.Local, "open": gotsem.Open, "closed": gotsem.Closed}

func (c *serveCmd) semaphores(log *slog.Logger) (s semaphores, err error) {
	queue := c.Queue
	if queue == 0 {
		queue = -1 // nobody waits
	}
	mine, err := gotsem.New(gotsem.Options{Limit: c.Max, Queue: queue, Logger: log})
	if err != nil || c.Redis == "" {
		return semaphores{shared: mine}, err
	}
	opt, err := redis.ParseURL(c.Redis)
	if err != nil {
		// The parser's error has the password in it.
		return s, errors.New("--redis is not a URL of the form redis://[user:password@]host:port/db (rediss:// for TLS)")
	}
	opt.ContextTimeoutEnabled = true
	s.rdb, s.local = redis.NewClient(opt), mine
	s.shared, err = gotsem.New(gotsem.Options{
		Store: redisstore.New(s.rdb, c.RedisPrefix), Limit: cmp.Or(c.FleetMax, c.Max), Queue: queue,
		Outage: outages[c.Outage], Label: "screenshotd", Logger: log,
	})
	return s, err
}
