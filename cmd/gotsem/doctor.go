package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ashfaqjani916/gotsem"
)

type doctorCmd struct {
	looking
	TTL time.Duration `default:"30s" help:"How long your leases last: some findings depend on it (default ${default})."`
}

func (*doctorCmd) Help() string {
	return `Checks whether this Redis is set up as the guarantees need it: version, eviction, role, what a fail-over can forget, rights of the user, health of the Cluster, clock, wake-ups, latency. It makes each call of the semaphore once, on an id of its own, and leaves nothing of that; it changes nothing else. Exit code 1: a check failed.`
}

// errChecks comes after the findings, which say what to fix.
var errChecks = errors.New("checks failed")

func (c *doctorCmd) Run(a *app) error {
	return c.do(a, c.TTL, func(ctx context.Context, l *link, _ *gotsem.Semaphore) error {
		ctx, cancel := context.WithTimeout(ctx, c.Timeout)
		defer cancel()
		found, err := l.store.Check(ctx, c.TTL)
		for _, f := range found {
			if c.JSON {
				err = errors.Join(err, printJSON(a.stdout, struct {
					What string `json:"what"`
					OK   bool   `json:"ok"`
					Text string `json:"text"`
				}{f.What, f.OK, f.Text}))
				continue
			}
			mark := "ok  "
			if !f.OK {
				mark = "BAD "
			}
			fmt.Fprintf(a.stdout, "%s %-12s %s\n", mark, f.What, printable(f.Text))
		}
		if err != nil {
			return fmt.Errorf("looking at %v: %w", l.target, err)
		}
		for _, f := range found {
			if !f.OK {
				return errChecks
			}
		}
		return nil
	})
}
