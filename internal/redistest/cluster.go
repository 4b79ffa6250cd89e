//go:build unix

package redistest

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// nodeTimeout is after how much silence a node holds another dead. Shorter ones cost false alarms on a busy machine.
const nodeTimeout = 500 * time.Millisecond

// Cluster is a Redis Cluster: primaries that share the slots evenly, and replicas of each.
type Cluster struct {
	tb                TB
	primaries, copies int   // as started: primaries in all, replicas of each
	nodes             group // the first primaries, then the replicas of the first, of the second, …
}

// StartCluster starts primaries × (1 + replicasEach) nodes and returns when every node holds the cluster for sound, knows all
// others, and every replica is in step; about 2 s, which a new primary takes before it calls the cluster writable. Options go to
// every node. Fail-over needs three primaries, since a majority of them votes.
func StartCluster(tb TB, primaries, replicasEach int, opts ...Option) *Cluster {
	tb.Helper()
	if primaries < 1 || primaries > Slots || replicasEach < 0 {
		tb.Fatalf("redistest: no cluster has %d primaries with %d replicas each", primaries, replicasEach)
	}
	c := &Cluster{tb: tb, primaries: primaries, copies: replicasEach}
	busPorts := make(map[*Server]int)
	for range primaries * (1 + replicasEach) {
		node := newServer(tb, opts)
		busPort, release, err := reservePort()
		c.check(err)
		tb.Cleanup(release)
		node.args = append(node.redisArgs(), "--cluster-enabled", "yes",
			"--cluster-announce-ip", "127.0.0.1", "--cluster-port", strconv.Itoa(busPort),
			"--cluster-config-file", filepath.Join(node.dir, "nodes.conf"), // not with the data: who comes back empty still belongs
			"--cluster-node-timeout", strconv.FormatInt(nodeTimeout.Milliseconds(), 10),
			"--cluster-replica-validity-factor", "0") // a replica that was behind may still take over
		c.nodes = append(c.nodes, node)
		busPorts[node] = busPort
	}
	c.check(c.nodes.each((*Server).boot))
	c.check(c.nodes.explain(c.introduce(busPorts)))
	c.check(c.form())
	return c
}

// introduce deals out the slots, makes the nodes known to each other, and the replicas replicas.
func (c *Cluster) introduce(busPorts map[*Server]int) error {
	ids := make(map[*Server]any)
	for i, node := range c.nodes {
		if _, err := node.Do("CLUSTER", "SET-CONFIG-EPOCH", i+1); err != nil {
			return err
		}
		id, err := node.Do("CLUSTER", "MYID")
		if err != nil {
			return err
		}
		ids[node] = id
		if i < c.primaries {
			first, next := i*Slots/c.primaries, (i+1)*Slots/c.primaries
			if _, err := node.Do("CLUSTER", "ADDSLOTSRANGE", first, next-1); err != nil {
				return err
			}
		}
	}
	// Everyone meets everyone: gossip alone would take seconds.
	for _, node := range c.nodes {
		for _, other := range c.nodes {
			if node == other {
				continue
			}
			if _, err := node.Do("CLUSTER", "MEET", "127.0.0.1", other.port, busPorts[other]); err != nil {
				return err
			}
		}
	}
	for i, replica := range c.nodes[c.primaries:] {
		primary := c.nodes[i/c.copies]
		if err := await(replica.Addr()+" to know its primary", formedWithin, func() error {
			_, err := replica.Do("CLUSTER", "REPLICATE", ids[primary])
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// form waits until every running node finds everything in order.
func (c *Cluster) form() error {
	if err := c.nodes.awaitEach("every node to know the cluster", formedWithin, func(node *Server) error {
		if err := sound(node); err != nil {
			return err
		}
		sees, err := view(node)
		if err != nil {
			return err
		}
		return sees.complete(c.primaries, c.primaries*c.copies)
	}); err != nil {
		return err
	}
	return c.nodes.awaitEach("the replicas to be in step", formedWithin, inStep(c.copies))
}

// sound returns nil if the node calls the cluster usable.
func sound(node *Server) error {
	state, err := node.fields("CLUSTER", "INFO")
	if err == nil && state["cluster_state"] != "ok" {
		err = errors.New("cluster_state is " + state["cluster_state"])
	}
	return err
}

// Addrs returns the addresses of all nodes.
func (c *Cluster) Addrs() []string { return c.nodes.addrs() }

// Nodes returns all nodes: at the start, first the primaries in the order of their slots, then the replicas of the first of them, of
// the second, and so on.
func (c *Cluster) Nodes() []*Server { return slices.Clone(c.nodes) }

// Relays starts a relay in front of each node, in the order of Nodes. To their clients the cluster lies at the relays: replies that
// name a node name its relay. With an identity clients speak TLS.
func (c *Cluster) Relays(identity *Identity) []*Relay {
	c.tb.Helper()
	return c.RelaysFor(c.tb, identity)
}

// RelaysFor is Relays for a part of a test: they end with tb.
func (c *Cluster) RelaysFor(tb TB, identity *Identity) []*Relay {
	tb.Helper()
	relays := make([]*Relay, len(c.nodes))
	addresses := make(map[string]string)
	for i, node := range c.nodes {
		relays[i] = NewTLSRelay(tb, node.Addr(), identity)
		_, port, _ := net.SplitHostPort(relays[i].Addr())
		from, to := ":"+strconv.Itoa(node.port), ":"+port
		if len(from) != len(to) {
			tb.Fatalf("redistest: a relay at port %s cannot stand for port %d: the numbers are not as long", port, node.port)
		}
		addresses[from] = to
	}
	for _, r := range relays {
		r.mu.Lock()
		r.addresses = addresses
		r.mu.Unlock()
	}
	return relays
}

// Client returns a cluster client with go-redis's default options, as changed by opts. It is closed with the test.
func (c *Cluster) Client(opts ...func(*redis.ClusterOptions)) *redis.ClusterClient {
	options := &redis.ClusterOptions{Addrs: c.Addrs()}
	for _, opt := range opts {
		opt(options)
	}
	rdb := redis.NewClusterClient(options)
	c.tb.Cleanup(func() { rdb.Close() })
	return rdb
}

// NodeFor returns the running primary of a slot. If there is none, because it has just been killed, it waits up to 20 s for the one
// that takes over.
func (c *Cluster) NodeFor(slot int) *Server {
	c.tb.Helper()
	var owner *Server
	c.check(c.nodes.explain(await(fmt.Sprintf("a primary of slot %d", slot), promotedWithin, func() (err error) {
		owner, err = c.owner(slot)
		return err
	})))
	return owner
}

// owner asks every running node about itself, so that no gossip is waited for. If two claim the slot, one of them has slept
// through its succession: the later epoch wins, as it will among the nodes.
func (c *Cluster) owner(slot int) (*Server, error) {
	var owner *Server
	var epoch int64
	for _, node := range c.nodes.running() {
		sees, err := view(node)
		if err != nil {
			return nil, err
		}
		if self := sees.self(); self.primary() && self.owns(slot) && (owner == nil || self.epoch > epoch) {
			owner, epoch = node, self.epoch
		}
	}
	if owner == nil {
		return nil, errors.New("no running node owns it")
	}
	return owner, nil
}

// KillMaster kills the primary of a slot and returns it. It does not wait for another.
func (c *Cluster) KillMaster(slot int) *Server {
	c.tb.Helper()
	primary := c.NodeFor(slot)
	primary.Kill()
	return primary
}

// StopMaster stops the primary of a slot, as SIGSTOP does, and returns it. It does not wait for another.
func (c *Cluster) StopMaster(slot int) *Server {
	c.tb.Helper()
	primary := c.NodeFor(slot)
	primary.Stop()
	return primary
}

// AwaitPromotion waits up to 20 s until another node than old is the primary of a slot, every running node knows it, and every one
// calls the cluster usable again. It usually takes less than two.
func (c *Cluster) AwaitPromotion(slot int, old *Server) *Server {
	c.tb.Helper()
	var owner *Server
	c.check(c.nodes.explain(await(fmt.Sprintf("another primary of slot %d than %s", slot, old.Addr()), promotedWithin, func() (err error) {
		if owner, err = c.owner(slot); err != nil {
			return err
		}
		if owner == old {
			return errors.New("it still is the primary")
		}
		return c.agreed(slot, owner)
	})))
	return owner
}

// agreed returns nil if every running node calls the cluster usable and the server the owner of the slot, with the epoch that the
// server itself gives. Without the epoch the matter is not settled: a node that moves the slot on, or takes over from a dead owner,
// before it knows the latest epoch claims the slot with too low a one, and is not believed, ever.
func (c *Cluster) agreed(slot int, owner *Server) error {
	sees, err := view(owner)
	if err != nil {
		return err
	}
	epoch := sees.self().epoch
	return c.nodes.running().each(func(node *Server) error {
		if err := sound(node); err != nil {
			return err
		}
		sees, err := view(node)
		if err != nil {
			return err
		}
		if taken := sees.owner(slot); taken.addr != owner.Addr() || taken.epoch != epoch {
			return fmt.Errorf("it takes %q, epoch %d, for the owner of slot %d, not %s, epoch %d",
				taken.addr, taken.epoch, slot, owner.Addr(), epoch)
		}
		return nil
	})
}

// Heal brings back every node that was killed, without its data, lets those go on that were stopped, and waits up to 40 s until all
// are as at the start, though perhaps with other primaries.
func (c *Cluster) Heal() {
	c.tb.Helper()
	c.check(c.nodes.revive())
	c.check(c.form())
}

func (c *Cluster) check(err error) {
	c.tb.Helper()
	if err != nil {
		c.tb.Fatalf("redistest: cluster: %v", err)
	}
}
