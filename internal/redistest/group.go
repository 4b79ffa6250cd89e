//go:build unix

package redistest

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// group is servers that were started together.
type group []*Server

// each does something to every server at the same time.
func (g group) each(do func(*Server) error) error {
	errs := make([]error, len(g))
	var wg sync.WaitGroup
	for i, s := range g {
		wg.Go(func() {
			if err := do(s); err != nil {
				errs[i] = fmt.Errorf("%s: %w", s.Addr(), err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// awaitEach waits until every running server of the group is ready; the error ends with the logs of all.
func (g group) awaitEach(what string, limit time.Duration, ready func(*Server) error) error {
	return g.explain(await(what, limit, func() error { return g.running().each(ready) }))
}

// running returns the servers that can be asked.
func (g group) running() group {
	var up group
	for _, s := range g {
		if s.running() {
			up = append(up, s)
		}
	}
	return up
}

// revive brings back those that are dead, without their data, and lets those go on that are stopped.
func (g group) revive() error {
	return g.each(func(s *Server) error {
		if !s.process().alive() {
			return s.restart(false)
		}
		s.setStopped(false)
		return s.process().cont()
	})
}

// at returns the server of an address, or nil.
func (g group) at(addr string) *Server {
	for _, s := range g {
		if s.Addr() == addr {
			return s
		}
	}
	return nil
}

func (g group) addrs() []string {
	addrs := make([]string, len(g))
	for i, s := range g {
		addrs[i] = s.Addr()
	}
	return addrs
}

// explain adds the ends of all logs to an error.
func (g group) explain(err error) error {
	if err == nil {
		return nil
	}
	for _, s := range g {
		err = s.explain(err)
	}
	return err
}
