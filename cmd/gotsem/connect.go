package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redisurl"
	"github.com/ashfaqjani916/gotsem/store"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

// connection is the flags of every command that needs Redis.
type connection struct {
	Redis             string `env:"GOTSEM_REDIS_URL" placeholder:"URL" help:"Where Redis is; gotsem --help lists the forms."`
	RedisPasswordFile string `env:"GOTSEM_REDIS_PASSWORD_FILE" placeholder:"FILE" help:"Read the password from the first line of a file."`
	CACert            string `name:"cacert" env:"GOTSEM_REDIS_CACERT" placeholder:"FILE" help:"Check the server's certificate against the CA certificates in a PEM file, not the system's."`
	Insecure          bool   `env:"GOTSEM_REDIS_INSECURE" help:"Do not check the server's certificate. Anyone on the network path can then read the password."`
	Prefix            string `env:"GOTSEM_PREFIX" default:"sem:" help:"Prefix of this semaphore's keys (default ${default})."`
}

// link is a store on Redis, and the way to it.
type link struct {
	store  *redisstore.Store
	target *redisurl.Target
	rdb    redis.UniversalClient
}

// open makes a link. It does not dial yet. From here on nothing that is printed
// shows the password.
func (c *connection) open(a *app, options ...redisstore.Option) (*link, error) {
	if c.Redis == "" {
		return nil, errors.New("no Redis is named, and without one no other process would see the slots: give --redis redis://host:6379 or set GOTSEM_REDIS_URL")
	}
	target, err := redisurl.Parse(c.Redis)
	if err != nil {
		return nil, err
	}
	a.stderr.redact = target.Redact
	if c.RedisPasswordFile != "" {
		password, err := os.ReadFile(c.RedisPasswordFile)
		if err != nil {
			return nil, fmt.Errorf("--redis-password-file: %w", err)
		}
		first, _, _ := strings.Cut(string(password), "\n")
		target.SetPassword(strings.TrimSuffix(first, "\r"))
	}
	if c.CACert != "" {
		if err := target.SetRoots(c.CACert); err != nil {
			return nil, fmt.Errorf("--cacert: %w", err)
		}
	}
	if c.Insecure {
		if err := target.SetInsecure(); err != nil {
			return nil, fmt.Errorf("--insecure: %w", err)
		}
	}
	redis.SetLogger(quiet{}) // it writes to stderr, which is the command's too
	rdb := target.Client()
	return &link{store: redisstore.New(rdb, c.Prefix, options...), target: target, rdb: rdb}, nil
}

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

func (l *link) close() { _ = l.rdb.Close() }

// semaphore is one to look in and to change with, not to acquire from: its limit is shown
// as that of the programs that do.
func (l *link) semaphore(limit int, timeout, ttl time.Duration) (*gotsem.Semaphore, error) {
	return gotsem.New(gotsem.Options{
		Store: l.store, Limit: limit, Queue: -1, TTL: max(ttl, timeout), StoreTimeout: timeout,
		Outage: gotsem.Closed, Logger: slog.New(slog.DiscardHandler), // its errors come back
	})
}

// Whether a silent server is one that does not speak TLS is looked at when it has
// been silent for so long, and this is how long a handshake may take.
const (
	silentAfter  = 500 * time.Millisecond
	handshakeMax = 3 * time.Second
)

// doubting returns a ctx that ends early, with why as its cause, if Redis is to be
// spoken to in TLS and does not. ok is called when Redis has answered.
func (l *link) doubting(ctx context.Context) (_ context.Context, ok func()) {
	if !l.target.TLS {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	answered := make(chan struct{})
	go func() {
		select {
		case <-answered:
			return
		case <-ctx.Done():
			return
		case <-time.After(silentAfter):
		}
		bounded, stop := context.WithTimeout(ctx, handshakeMax)
		defer stop()
		if err := l.target.Handshake(bounded); err != nil && ctx.Err() == nil {
			select {
			case <-answered:
			default:
				cancel(fmt.Errorf("%w: %w", gotsem.ErrUnavailable, err))
			}
		}
	}()
	return ctx, sync.OnceFunc(func() { close(answered) })
}

// causeOf is what ended ctx, if that ended what err says.
func causeOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, gotsem.ErrUnavailable) {
		return cause
	}
	return err
}

// explain says where the store is that could not be asked.
func (l *link) explain(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, store.ErrConfig):
		return fmt.Errorf("%w (asked at %v; check the user, the password, its rights and --prefix)", err, l.target)
	case errors.Is(err, gotsem.ErrUnavailable):
		return fmt.Errorf("%w (asked at %v; check that Redis is there, and --redis or GOTSEM_REDIS_URL)", err, l.target)
	}
	return err
}
