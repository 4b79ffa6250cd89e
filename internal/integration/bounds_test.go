//go:build unix

package integration

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

const (
	storeTimeout = 500 * time.Millisecond
	// promised is what a call may take beyond its budget; busy is what a busy machine adds.
	promised = 100 * time.Millisecond
	busy     = 250 * time.Millisecond

	hopeless = 5 * time.Second // a call that takes so long is waited for no longer

	warmAtOnce   = 8  // cells that connect
	placesAtOnce = 10 // so many times the calls of one wait at the same time
)

// place is a way to Redis that hangs at a step when it is told to.
type place struct {
	topology string // single, sentinel, cluster
	secure   bool
	client   string // default, timeouts (ContextTimeoutEnabled), own (a type of one's own)
	step     string
	cells    []string // the calls to make; nil: all

	addr   string
	nodes  []string
	relays []*redistest.Relay
	hung   atomic.Bool
	gate   chan struct{} // closed when a dialer may go on
}

func (p *place) String() string {
	how := "plain"
	if p.secure {
		how = "TLS"
	}
	return fmt.Sprintf("%s/%s/%s client/hangs at %s", p.topology, how, p.client, p.step)
}

// steps are where a way hangs. All but the last three need a new connection to be made.
var steps = []string{"dialer", "look-up", "connect", "handshake", "hello", "gone", "reply", "half a reply"}

func (p *place) hang() {
	p.hung.Store(true)
	name, _, _ := net.SplitHostPort(p.addr)
	names.Hang(name, true)
	for _, r := range p.relays {
		switch p.step {
		case "connect", "gone":
			r.HangAt(redistest.AtConnect)
		case "handshake":
			r.HangAt(redistest.AtHandshake)
		case "hello":
			r.HangAt(redistest.AtHello)
		case "reply":
			r.HangAt(redistest.AtReply)
		case "half a reply":
			r.HangAt(redistest.MidReply)
		}
		switch p.step {
		case "dialer", "look-up", "connect", "handshake", "hello":
			r.CutAll()
		}
	}
}

func (p *place) mend() {
	p.hung.Store(false)
	close(p.gate)
	name, _, _ := net.SplitHostPort(p.addr)
	names.Hang(name, false)
	for _, r := range p.relays {
		r.HangAt(redistest.Nowhere)
	}
}

// dial is a dialer that pays no heed to its ctx.
func (p *place) dial(_ context.Context, network, addr string) (net.Conn, error) {
	if p.hung.Load() {
		<-p.gate
		return nil, errors.New("the dialer has hung")
	}
	if p.secure {
		return tls.Dial(network, addr, identity.Client())
	}
	return net.Dial(network, addr)
}

// own is what many programs hand around: their own type around a client.
type own struct{ redis.UniversalClient }

func (p *place) connect() redis.UniversalClient {
	var config *tls.Config
	var dialer func(context.Context, string, string) (net.Conn, error)
	if p.step == "dialer" {
		dialer = p.dial
	} else if p.secure {
		config = identity.Client()
	}
	obeys := p.client == "timeouts"
	var rdb redis.UniversalClient
	switch p.topology {
	case "single":
		rdb = redis.NewClient(&redis.Options{Addr: p.addr, TLSConfig: config, Dialer: dialer, ContextTimeoutEnabled: obeys})
	case "sentinel":
		rdb = redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: redistest.MasterName, SentinelAddrs: p.nodes, TLSConfig: config, Dialer: dialer, ContextTimeoutEnabled: obeys,
		})
	case "cluster":
		rdb = redis.NewClusterClient(&redis.ClusterOptions{Addrs: p.nodes, TLSConfig: config, Dialer: dialer, ContextTimeoutEnabled: obeys})
	}
	if p.client == "own" {
		return own{rdb}
	}
	return rdb
}

// subject is what one call is made on.
type subject struct {
	sem    *gotsem.Semaphore // of New, Outage Closed
	local  *gotsem.Semaphore // the same store, Outage Local
	compat *gotsem.Semaphore // of NewGotsem
	idle   *gotsem.Semaphore // the same store, and nothing held
	rdb    redis.UniversalClient
	lease  *gotsem.Lease
	slot   gotsem.AcquireResult
	id     string
}

// bound is a call, and how long it may take when Redis hangs.
type bound struct {
	most time.Duration
	call func(ctx context.Context, s *subject) error
	// before, if not nil, is begun before Redis hangs, and what it returns is called then.
	before func(t testing.TB, s *subject) (call func() error)
}

const aMoment = 200 * time.Millisecond // of a ctx, or in line

var bounds = map[string]bound{
	"NewGotsem": {most: 0, call: func(_ context.Context, s *subject) error {
		_ = gotsem.NewGotsem(s.rdb, "new:", time.Minute, 1, nil, nil).Close()
		return nil
	}},
	"TryAcquire": {most: gotsem.DefaultStoreTimeout, call: func(ctx context.Context, s *subject) error {
		if r := s.compat.TryAcquire(ctx, s.id); !r.FailedOpen() {
			return fmt.Errorf("%+v, want to fail open", r)
		}
		return gotsem.ErrUnavailable
	}},
	"compat Release": {most: gotsem.DefaultStoreTimeout, call: func(ctx context.Context, s *subject) error {
		s.compat.Release(ctx, s.id, s.slot.SlotID)
		return gotsem.ErrUnavailable
	}},
	"ForceRelease": {most: gotsem.DefaultStoreTimeout, call: func(ctx context.Context, s *subject) error {
		s.compat.ForceRelease(ctx, s.id)
		return gotsem.ErrUnavailable
	}},
	"ActiveCount": {most: gotsem.DefaultStoreTimeout, call: func(ctx context.Context, s *subject) error {
		s.compat.ActiveCount(ctx, s.id)
		return gotsem.ErrUnavailable
	}},
	"Try": {most: storeTimeout, call: func(ctx context.Context, s *subject) error {
		_, err := s.sem.Try(ctx, s.id)
		return err
	}},
	"Try, a deadline": {most: aMoment, call: func(ctx context.Context, s *subject) error {
		ctx, cancel := context.WithTimeout(ctx, aMoment)
		defer cancel()
		_, err := s.sem.Try(ctx, s.id)
		return err
	}},
	"Try, cancelled": {most: aMoment, call: func(ctx context.Context, s *subject) error {
		ctx, cancel := context.WithCancel(ctx)
		defer time.AfterFunc(aMoment, cancel).Stop()
		_, err := s.sem.Try(ctx, s.id)
		return err
	}},
	"Acquire": {most: storeTimeout, call: func(ctx context.Context, s *subject) error {
		_, err := s.sem.Acquire(ctx, s.id)
		return err
	}},
	"Acquire, a deadline": {most: aMoment, call: func(ctx context.Context, s *subject) error {
		ctx, cancel := context.WithTimeout(ctx, aMoment)
		defer cancel()
		_, err := s.sem.Acquire(ctx, s.id)
		return err
	}},
	"Acquire, MaxWait": {most: storeTimeout + aMoment, call: func(ctx context.Context, s *subject) error {
		_, err := s.local.Acquire(ctx, s.id, gotsem.MaxWait(storeTimeout+aMoment))
		return err
	}},
	"Acquire, in line when it hangs": {most: aMoment, before: func(t testing.TB, s *subject) func() error {
		ctx, cancel := context.WithCancel(t.Context())
		answer := make(chan error, 1)
		go func() {
			_, err := s.local.Acquire(ctx, s.id, gotsem.Weight(2)) // the lease has one of two
			answer <- err
		}()
		soon(t, patience, "a waiter in line", func() bool { return s.local.Stats().Queued == 1 })
		return func() error {
			time.AfterFunc(aMoment, cancel)
			return <-answer
		}
	}},
	"Do": {most: storeTimeout, call: func(ctx context.Context, s *subject) error {
		return s.sem.Do(ctx, s.id, func(context.Context) error { return errors.New("it has run") })
	}},
	"Do, its release": {most: storeTimeout, before: func(t testing.TB, s *subject) func() error {
		begun, end, answer := make(chan struct{}, 1), make(chan struct{}), make(chan error, 1)
		go func() {
			answer <- settled(func() error {
				return s.sem.Do(t.Context(), s.id, func(context.Context) error {
					begun <- struct{}{}
					<-end
					return errors.New("done")
				})
			})
		}()
		select {
		case <-begun:
		case err := <-answer:
			t.Error(err)
			return nil
		}
		return func() error { close(end); return <-answer }
	}},
	"Release": {most: storeTimeout, call: func(ctx context.Context, s *subject) error { return s.lease.Release(ctx) }},
	"Usage":   {most: storeTimeout, call: func(ctx context.Context, s *subject) error { _, err := s.sem.Usage(ctx, s.id); return err }},
	"Holders": {most: storeTimeout, call: func(ctx context.Context, s *subject) error { _, err := s.sem.Holders(ctx, s.id); return err }},
	"IDs": {most: storeTimeout, call: func(ctx context.Context, s *subject) error {
		for _, err := range s.sem.IDs(ctx) {
			if err != nil {
				return err
			}
		}
		return nil
	}},
	"SetLimit":   {most: storeTimeout, call: func(ctx context.Context, s *subject) error { return s.sem.SetLimit(ctx, s.id, 3) }},
	"ResetLimit": {most: storeTimeout, call: func(ctx context.Context, s *subject) error { return s.sem.ResetLimit(ctx, s.id) }},
	"Revoke": {most: storeTimeout, call: func(ctx context.Context, s *subject) error {
		_, err := s.sem.Revoke(ctx, s.id, s.lease.SlotID())
		return err
	}},
	"Clear": {most: storeTimeout, call: func(ctx context.Context, s *subject) error { _, err := s.sem.Clear(ctx, s.id); return err }},
	"Close": {most: 2 * time.Second, call: func(_ context.Context, s *subject) error { _ = s.sem.Close(); return gotsem.ErrUnavailable }},
	"Close, nothing held": {most: 0, call: func(_ context.Context, s *subject) error {
		return errors.Join(gotsem.ErrUnavailable, s.idle.Close())
	}},
}

var (
	identity *redistest.Identity
	names    *redistest.Names
)

// No call waits on a Redis that hangs for longer than it promises: whichever call, over whichever client, at whichever step of the
// way it hangs. A cell that is late in the crowd is tried once more by itself.
func TestNoCallWaitsLongerThanItsBudget(t *testing.T) {
	single := redistest.Start(t)
	cluster := redistest.StartCluster(t, 2, 0)
	var places []*place
	for _, topology := range []string{"single", "sentinel", "cluster"} {
		for _, secure := range []bool{false, true} {
			for _, client := range []string{"default", "timeouts", "own"} {
				for _, step := range steps {
					if step == "look-up" && topology != "single" { // the others name their servers by address
						continue
					}
					if (secure || topology == "sentinel") && !slices.Contains([]string{"connect", "handshake", "hello", "reply", "half a reply"}, step) {
						continue // not another way than the plain one
					}
					places = append(places, &place{topology: topology, secure: secure, client: client, step: step})
				}
			}
		}
	}
	began := time.Now()
	table := &table{t: t, single: single, cluster: cluster, free: make(chan struct{}, warmAtOnce), late: make(map[*place][]string)}
	table.try(places, placesAtOnce)
	first := table.late
	n := 0
	for _, calls := range first {
		n += len(calls)
	}
	t.Logf("%d cells in %v, %d late in the crowd\n%s", table.tried, time.Since(began).Round(time.Second), n, table.report(first))
	if n > table.tried/10 { // no matter of a busy machine
		t.Errorf("%d of %d cells are late:\n%s", n, table.tried, table.report(first))
		return
	}
	var again []*place
	for p, calls := range first {
		for _, call := range calls {
			again = append(again, &place{topology: p.topology, secure: p.secure, client: p.client, step: p.step, cells: []string{call}})
		}
	}
	table.late = make(map[*place][]string)
	table.try(again, 4)
	if len(table.late) > 0 {
		t.Errorf("late also when it is alone:\n%s", table.report(table.late))
	}
}

// table tries cells.
type table struct {
	t       *testing.T
	single  *redistest.Server
	cluster *redistest.Cluster
	free    chan struct{}

	mu    sync.Mutex
	tried int
	took  map[string]time.Duration
	late  map[*place][]string
}

func (c *table) report(late map[*place][]string) string {
	var lines []string
	for p, calls := range late {
		slices.Sort(calls)
		var each []string
		for _, call := range calls {
			each = append(each, fmt.Sprintf("%s %v of %v", call, c.took[p.String()+call].Round(time.Millisecond), bounds[call].most))
		}
		lines = append(lines, p.String()+": "+strings.Join(each, "; "))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// try tries all cells of the places, so many places at once.
func (c *table) try(places []*place, atOnce int) {
	next := make(chan *place)
	var workers sync.WaitGroup
	for range atOnce {
		workers.Go(func() {
			for p := range next {
				c.t.Run(p.String(), func(t *testing.T) { c.place(t, p) })
			}
		})
	}
	for _, p := range places {
		next <- p
	}
	close(next)
	workers.Wait()
}

// place makes a way, subjects on it, has it hang, and makes the calls.
func (c *table) place(t *testing.T, p *place) {
	p.gate = make(chan struct{})
	front := func(addr string) *redistest.Relay {
		if p.secure {
			return redistest.NewTLSRelay(t, addr, identity)
		}
		return redistest.NewRelay(t, addr)
	}
	switch p.topology {
	case "single":
		r := front(c.single.Addr())
		p.relays, p.addr = []*redistest.Relay{r}, r.Addr()
		if p.step == "look-up" {
			_, port, _ := net.SplitHostPort(p.addr)
			p.addr = "redis" + port + ".test:" + port
		}
	case "sentinel":
		r := front(c.single.Addr())
		d := front(redistest.NewDirectory(t, r.Addr()).Addr())
		p.relays, p.nodes = []*redistest.Relay{r, d}, []string{d.Addr()}
	case "cluster":
		var with *redistest.Identity
		if p.secure {
			with = identity
		}
		p.relays = c.cluster.RelaysFor(t, with)
		for _, r := range p.relays {
			p.nodes = append(p.nodes, r.Addr())
		}
	}
	calls := p.cells
	if calls == nil {
		calls = slices.Sorted(maps.Keys(bounds))
	}
	ready := make([]func() error, len(calls))
	var all sync.WaitGroup
	for i, name := range calls {
		all.Go(func() {
			c.free <- struct{}{}
			defer func() { <-c.free }()
			var s *subject
			err := settled(func() (err error) { s, err = p.subject(t, name); return err })
			if err != nil {
				t.Errorf("%s: before it hangs: %v", name, err)
				return
			}
			b := bounds[name]
			if b.before != nil {
				ready[i] = b.before(t, s)
			} else {
				ready[i] = func() error { return b.call(context.Background(), s) }
			}
		})
	}
	all.Wait()
	p.hang()
	for i, name := range calls {
		if ready[i] == nil {
			continue
		}
		all.Go(func() {
			began := time.Now()
			err := ready[i]()
			took := time.Since(began)
			if err == nil && name != "NewGotsem" {
				t.Errorf("%s: it went well, and was not to", name)
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.took == nil {
				c.took = make(map[string]time.Duration)
			}
			c.tried++
			c.took[p.String()+name] = took
			if took > bounds[name].most+promised+busy {
				c.late[p] = append(c.late[p], name)
			}
		})
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		all.Wait()
	}()
	timer := time.NewTimer(hopeless)
	defer timer.Stop()
	select {
	case <-over:
	case <-timer.C: // late enough; mended, it ends
	}
	p.mend()
	<-over
}

// settled asks until the answer is neither that the store cannot be asked nor what follows from it for a moment: a busy machine uses up
// the budget of a call, which leaves a slot to be given back, and one that stands still looks like a clock that jumped.
func settled(ask func() error) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		err := ask()
		passing := errors.Is(err, gotsem.ErrUnavailable) || errors.Is(err, gotsem.ErrFull) || errors.Is(err, gotsem.ErrRecovering)
		if !passing || time.Now().After(deadline) {
			return err
		}
	}
}

var subjects atomic.Int64

// subject makes what a call is made on, over a client of its own that is warm, and holds a lease and a slot.
func (p *place) subject(t testing.TB, call string) (*subject, error) {
	rdb := p.connect()
	t.Cleanup(func() { _ = rdb.Close() })
	prefix := fmt.Sprintf("bound%d:", subjects.Add(1))
	s := &subject{rdb: rdb, id: "x"}
	ctx := t.Context()
	switch call {
	case "NewGotsem":
		return s, rdb.Ping(ctx).Err()
	case "TryAcquire", "compat Release", "ForceRelease", "ActiveCount":
		s.compat = gotsem.NewGotsem(rdb, prefix, time.Minute, 2, nil, nil)
		t.Cleanup(func() { _ = s.compat.Close() })
		for s.slot = s.compat.TryAcquire(ctx, s.id); !s.slot.Acquired || s.slot.FailedOpen(); s.slot = s.compat.TryAcquire(ctx, s.id) {
			time.Sleep(10 * time.Millisecond) // the budget of NewGotsem is the default, which a busy machine may use up
		}
		return s, nil
	}
	st := redisstore.New(rdb, prefix)
	t.Cleanup(func() { _ = st.Close() })
	o := gotsem.Options{Store: st, Limit: 2, TTL: time.Minute, StoreTimeout: storeTimeout, Outage: gotsem.Closed}
	if strings.HasPrefix(call, "Acquire, MaxWait") || strings.HasPrefix(call, "Acquire, in line") {
		o.Outage = gotsem.Local
	}
	sem, err := gotsem.New(o)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = sem.Close() })
	s.sem, s.local = sem, sem
	if call == "Close, nothing held" {
		o.StoreTimeout = patience // what was not answered in time would be owed
		if s.idle, err = gotsem.New(o); err != nil {
			return nil, err
		}
		lease, err := s.idle.Acquire(ctx, s.id)
		if err != nil {
			return nil, err
		}
		if err := lease.Release(ctx); err != nil {
			return nil, err
		}
	}
	err = settled(func() (err error) { s.lease, err = sem.Try(ctx, s.id); return err })
	return s, err
}
