package faults

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem/internal/redistest"
)

// Pair is a primary and its replica, with a relay in the replication link, and clients
// that are led to one of them by hand: a fail-over whose moment and whose losses the
// test chooses.
type Pair struct {
	tb      redistest.TB
	Primary *redistest.Server
	Replica *redistest.Server
	Link    *redistest.Relay

	mu    sync.Mutex
	sides map[string]*side
}

// side is where one process's connections lead.
type side struct {
	addr  string
	conns []net.Conn
}

// NewPair starts the two, in step.
func NewPair(tb redistest.TB, opts ...redistest.Option) *Pair {
	p := &Pair{tb: tb, sides: make(map[string]*side)}
	p.Primary, p.Replica = redistest.Start(tb, opts...), redistest.Start(tb, opts...)
	p.Link = redistest.NewRelay(tb, p.Primary.Addr())
	host, port, err := net.SplitHostPort(p.Link.Addr())
	p.must(err)
	_, err = p.Replica.Do("REPLICAOF", host, port)
	p.must(err)
	p.must(await("the replica to be in step", 15*time.Second, func() error {
		if s := p.Replica.Info("replication")["master_link_status"]; s != "up" {
			return fmt.Errorf("its link is %q", s)
		}
		if n := p.Primary.Info("replication")["connected_slaves"]; n != "1" {
			return fmt.Errorf("the primary has %q replicas", n)
		}
		return nil
	}))
	return p
}

func (p *Pair) must(err error) {
	if err != nil {
		p.tb.Fatalf("faults: %v", err)
	}
}

// Client returns a client, with go-redis's default options, of the process who.
func (p *Pair) Client(who string) *redis.Client {
	p.mu.Lock()
	s := &side{addr: p.Primary.Addr()}
	p.sides[who] = s
	p.mu.Unlock()
	rdb := redis.NewClient(&redis.Options{Addr: s.addr, Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
		p.mu.Lock()
		addr := s.addr
		p.mu.Unlock()
		var d net.Dialer
		conn, err := d.DialContext(ctx, network, addr)
		if err == nil {
			p.mu.Lock()
			s.conns = append(s.conns, conn)
			moved := s.addr != addr
			p.mu.Unlock()
			if moved {
				_ = conn.Close()
			}
		}
		return conn, err
	}})
	p.tb.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// Lead leads a process to another server: its connections end.
func (p *Pair) Lead(who string, to *redistest.Server) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.sides[who]
	s.addr = to.Addr()
	for _, c := range s.conns {
		_ = c.Close()
	}
	s.conns = nil
}

// Cut ends the replication: what is under way is lost.
func (p *Pair) Cut() {
	p.Link.Refuse(true)
	p.Link.CutAll()
}

// Promote makes the replica a primary.
func (p *Pair) Promote() {
	_, err := p.Replica.Do("REPLICAOF", "NO", "ONE")
	p.must(err)
}

// Demote makes the primary a replica of the promoted one, as whoever finds two does.
func (p *Pair) Demote() {
	host, port, err := net.SplitHostPort(p.Replica.Addr())
	p.must(err)
	_, err = p.Primary.Do("REPLICAOF", host, port)
	p.must(err)
}

// FailOver kills the primary, with what its replica has not got, and leads everybody to
// the replica.
func (p *Pair) FailOver() {
	p.Cut()
	p.Primary.Kill()
	p.Promote()
	p.mu.Lock()
	var all []string
	for who := range p.sides {
		all = append(all, who)
	}
	p.mu.Unlock()
	for _, who := range all {
		p.Lead(who, p.Replica)
	}
}

// await polls until ready returns nil.
func await(what string, limit time.Duration, ready func() error) error {
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		err := ready()
		if err == nil {
			return nil
		}
		if time.Since(began) > limit {
			return fmt.Errorf("waited %v for %s: %w", limit, what, err)
		}
	}
}
