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
	return `Looks whether this Redis is set up as the promises need it: its version, what it evicts, whether it is a primary, what a fail-over can forget, what the user may not do, whether the Cluster is whole, its clock, whether a word gets through, and how long it takes. And each call that the semaphore makes is made once, on an id of its own, of which nothing is left; nothing else is changed. Exit code 1: something is not well.`
}

// errUnwell is that the findings say enough.
var errUnwell = errors.New("not all is well")

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
				return errUnwell
			}
		}
		return nil
	})
}
