//go:build unix

package redistest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// MasterName is what a [Sentinel]'s sentinels call the primary that they watch.
const MasterName = "primary"

const (
	sentinels        = 3
	sentinelReplicas = 2
	quorum           = 2

	formedWithin   = 20 * time.Second // servers that were started know each other
	promotedWithin = 20 * time.Second // a replica takes over from a primary
)

// sentinelTimers makes sentinels quick: ready in a second rather than ten. PING-PERIOD is bounded from both sides. While a primary
// is down, a sentinel asks replicas for INFO once a second, whatever INFO-PERIOD says, and promotes none whose INFO is older than
// five PING-PERIODs: at 100 ms some fail-overs found no replica good enough, and took ten seconds more. And a new primary is pinged
// for the first time after one PING-PERIOD: if that is all of down-after-milliseconds, it is held dead before it could answer.
var sentinelTimers = []any{
	"SENTINEL", "DEBUG", "INFO-PERIOD", 100, "ASK-PERIOD", 100, "PING-PERIOD", 400, "PUBLISH-PERIOD", 100,
	"ELECTION-TIMEOUT", 1000, "MIN-LINK-RECONNECT-PERIOD", 100,
	"TILT-PERIOD", 1000, // after a pause of the whole machine
}

// Sentinel is a primary, two replicas of it and three sentinels that watch them. They hold a primary dead after a second.
type Sentinel struct {
	tb       TB
	servers  group
	watchers group
}

// StartSentinel starts the six processes and returns when the replicas are in step and every sentinel knows both of them and both
// other sentinels. Options go to the three data servers.
func StartSentinel(tb TB, opts ...Option) *Sentinel {
	tb.Helper()
	s := &Sentinel{tb: tb}
	for i := range 1 + sentinelReplicas {
		server := newServer(tb, opts)
		server.args = server.redisArgs()
		if i > 0 {
			server.args = append(server.args, "--replicaof", "127.0.0.1 "+fmt.Sprint(s.servers[0].port))
		}
		s.servers = append(s.servers, server)
	}
	for range sentinels {
		watcher := newServer(tb, nil)
		config, err := s.configure(watcher)
		s.check(err)
		watcher.args = []string{config, "--sentinel"}
		s.watchers = append(s.watchers, watcher)
	}
	s.check(slices.Concat(s.servers, s.watchers).each((*Server).boot))
	s.check(s.form())
	return s
}

// configure writes a sentinel's configuration, a file because sentinels insist on one that they can rewrite.
func (s *Sentinel) configure(watcher *Server) (path string, err error) {
	path = filepath.Join(watcher.dir, "sentinel.conf")
	return path, os.WriteFile(path, fmt.Appendf(nil, `bind 127.0.0.1
port %d
sentinel monitor %[2]s 127.0.0.1 %d %d
sentinel down-after-milliseconds %[2]s 1000
sentinel failover-timeout %[2]s 2000
sentinel parallel-syncs %[2]s %d
`, watcher.port, MasterName, s.servers[0].port, quorum, sentinelReplicas), 0o600)
}

// form waits until the six have found each other.
func (s *Sentinel) form() error {
	if err := s.watchers.each(func(w *Server) error {
		_, err := w.Do(sentinelTimers...)
		return err
	}); err != nil {
		return err
	}
	if err := s.watchers.awaitEach("the sentinels to know all replicas and each other", formedWithin, func(w *Server) error {
		sees, err := watched(w)
		if err != nil {
			return err
		}
		if sees["flags"] != "master" || sees["num-slaves"] != fmt.Sprint(sentinelReplicas) ||
			sees["num-other-sentinels"] != fmt.Sprint(sentinels-1) {
			return fmt.Errorf("it sees a primary %s with %s replicas and %s other sentinels",
				sees["flags"], sees["num-slaves"], sees["num-other-sentinels"])
		}
		return nil
	}); err != nil {
		return err
	}
	return s.servers.awaitEach("the replicas to be in step", formedWithin, inStep(sentinelReplicas))
}

// watched is what a sentinel says about the primary.
func watched(watcher *Server) (map[string]string, error) {
	reply, err := watcher.Do("SENTINEL", "MASTER", MasterName)
	if err != nil {
		return nil, err
	}
	pairs, _ := reply.([]any)
	fields := make(map[string]string)
	for i := 0; i+1 < len(pairs); i += 2 {
		fields[fmt.Sprint(pairs[i])] = fmt.Sprint(pairs[i+1])
	}
	return fields, nil
}

// inStep returns a condition: a primary has that many replicas online, a replica's link to its primary is up.
func inStep(replicas int) func(*Server) error {
	return func(s *Server) error {
		link, err := s.info("replication")
		if err != nil {
			return err
		}
		if link["role"] == "slave" {
			if link["master_link_status"] != "up" {
				return errors.New("its link to the primary is " + link["master_link_status"])
			}
			return nil
		}
		if link["connected_slaves"] != fmt.Sprint(replicas) {
			return fmt.Errorf("it has %s of %d replicas", link["connected_slaves"], replicas)
		}
		return nil
	}
}

// Addrs returns the addresses of the sentinels.
func (s *Sentinel) Addrs() []string { return s.watchers.addrs() }

// Servers returns the three data servers; the first was the primary at the start.
func (s *Sentinel) Servers() []*Server { return slices.Clone(s.servers) }

// Sentinels returns the three sentinel processes, which can be killed like any other; a sentinel that comes back by Restart
// remembers what it knew but has slow timers until Heal.
func (s *Sentinel) Sentinels() []*Server { return slices.Clone(s.watchers) }

// Client returns a failover client with go-redis's default options, as changed by opts. It is closed with the test.
func (s *Sentinel) Client(opts ...func(*redis.FailoverOptions)) *redis.Client {
	options := &redis.FailoverOptions{MasterName: MasterName, SentinelAddrs: s.Addrs()}
	for _, opt := range opts {
		opt(options)
	}
	rdb := redis.NewFailoverClient(options)
	s.tb.Cleanup(func() { rdb.Close() })
	return rdb
}

// Primary returns the server that the sentinels, all that are running, name as the primary; they have up to 20 s to agree. It may
// be dead: for a moment they still name one that was just killed.
func (s *Sentinel) Primary() *Server {
	s.tb.Helper()
	var primary *Server
	s.check(s.watchers.explain(await("the sentinels to agree on a primary", promotedWithin, func() (err error) {
		primary, err = s.named()
		return err
	})))
	return primary
}

// named returns the primary if all running sentinels name the same, which is what clients go by.
func (s *Sentinel) named() (*Server, error) {
	var primary *Server
	for _, watcher := range s.watchers.running() {
		reply, err := watcher.Do("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MasterName)
		if err != nil {
			return nil, err
		}
		addr := fmt.Sprintf("%s:%s", reply.([]any)...)
		server := s.servers.at(addr)
		if server == nil || primary != nil && primary != server {
			return nil, fmt.Errorf("%s names %s", watcher.Addr(), addr)
		}
		primary = server
	}
	if primary == nil {
		return nil, errors.New("no sentinel is running")
	}
	return primary, nil
}

// KillPrimary kills the primary and returns it. It does not wait for another.
func (s *Sentinel) KillPrimary() *Server {
	s.tb.Helper()
	primary := s.Primary()
	primary.Kill()
	return primary
}

// StopPrimary stops the primary, as SIGSTOP does, and returns it. It does not wait for another.
func (s *Sentinel) StopPrimary() *Server {
	s.tb.Helper()
	primary := s.Primary()
	primary.Stop()
	return primary
}

// AwaitPromotion waits up to 20 s until another server than old is the primary: all running sentinels name it, and it takes itself
// for one. It usually takes about two seconds, and up to five more after a split vote.
func (s *Sentinel) AwaitPromotion(old *Server) *Server {
	s.tb.Helper()
	var primary *Server
	everyone := slices.Concat(s.servers, s.watchers)
	s.check(everyone.explain(await("another primary than "+old.Addr(), promotedWithin, func() (err error) {
		if primary, err = s.named(); err != nil {
			return err
		}
		if primary == old {
			return errors.New("the sentinels still name it")
		}
		link, err := primary.info("replication")
		if err == nil && link["role"] != "master" {
			err = fmt.Errorf("%s is not promoted yet", primary.Addr())
		}
		return err
	})))
	return primary
}

// Heal brings back every process that was killed, data servers without their data, lets those go on that were stopped, and waits
// up to 40 s until all are as at the start, though perhaps with another primary.
func (s *Sentinel) Heal() {
	s.tb.Helper()
	s.check(s.servers.revive())
	s.check(s.watchers.revive())
	s.check(s.form())
}

func (s *Sentinel) check(err error) {
	s.tb.Helper()
	if err != nil {
		s.tb.Fatalf("redistest: sentinel: %v", err)
	}
}
