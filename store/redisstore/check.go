package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem/store"
)

// Commands are what an ACL user of the store needs; on a Cluster ClusterCommands too.
// A script's commands are checked like a client's own. Beside them the user needs the
// keys prefix* and gotsem:*, and the channels gotsem:*.
var (
	Commands = []string{
		"evalsha", "eval", "time", "exists", "info", "ping", "client|setinfo", "hello",
		"zadd", "zrem", "zcount", "zcard", "zscore", "zmscore", "zrange", "zrank", "zremrangebyscore",
		"hget", "hset", "hmget", "hdel", "hlen", "hgetall",
		"del", "pexpireat", "pexpiretime", "publish", "subscribe", "unsubscribe", "scan",
	}
	ClusterCommands = []string{"cluster|slots", "cluster|shards", "command", "ssubscribe", "sunsubscribe", "spublish", "readonly"}
)

// checker looks at one Redis, node by node.
type checker struct {
	s     *Store
	ttl   time.Duration
	found []store.Finding
}

func (c *checker) say(what string, ok bool, format string, args ...any) {
	c.found = append(c.found, store.Finding{What: what, OK: ok, Text: fmt.Sprintf(format, args...)})
}

// Check implements store.Checker. It makes each call once, on ids of its own that are
// gone afterwards, and sends itself a message; nothing else is changed.
func (s *Store) Check(ctx context.Context, ttl time.Duration) ([]store.Finding, error) {
	if s.bad != nil {
		return nil, s.bad
	}
	c := &checker{s: s, ttl: ttl}
	if err := c.latency(ctx); err != nil {
		return nil, classify(err)
	}
	c.mode(ctx)
	if cluster, ok := s.client.UniversalClient.(*redis.ClusterClient); ok {
		c.cluster(ctx, cluster)
		one := make(chan struct{}, 1)
		err := cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
			one <- struct{}{}
			defer func() { <-one }()
			return c.node(ctx, node, node.Options().Addr+": ")
		})
		if err != nil {
			return c.found, classify(err)
		}
	} else if err := c.node(ctx, s.client, ""); err != nil {
		return c.found, classify(err)
	}
	return c.found, classify(c.push(ctx))
}

// latency measures round trips, and how far the server's clock is from ours.
func (c *checker) latency(ctx context.Context) error {
	best := time.Hour
	var apart time.Duration
	for range 5 {
		sent := time.Now()
		at, err := c.s.client.Time(ctx).Result()
		if err != nil {
			return err
		}
		if took := time.Since(sent); took < best {
			best, apart = took, at.Sub(sent.Add(took/2))
		}
	}
	c.say("latency", best < 50*time.Millisecond, "the best of five round trips took %v; a call may take StoreTimeout (250ms by default)", best.Round(time.Microsecond))
	if apart.Abs() > time.Second {
		c.say("clock", false, "Redis is %v ahead of this process. Slots go by Redis's clock, so that is harmless here; processes of the original gotsem go by their own", apart.Round(time.Millisecond))
	} else {
		c.say("clock", true, "Redis's clock and ours agree within %v", max(apart.Abs(), best).Round(time.Microsecond))
	}
	return nil
}

func (c *checker) cluster(ctx context.Context, cluster *redis.ClusterClient) {
	info, err := cluster.ClusterInfo(ctx).Result()
	if err != nil {
		c.say("cluster", false, "its state could not be asked: %v", err)
		return
	}
	f := fields(info)
	c.say("cluster", f["cluster_state"] == "ok", "state %s, %s of %d slots served", f["cluster_state"], f["cluster_slots_ok"], clusterSlots)
	if every := cluster.Options().ClusterStateReloadInterval; c.s.client.twin == nil && every > c.ttl/3 {
		c.say("cluster reload", false, "the client looks every %v who serves what, leases are renewed every %v: set ClusterStateReloadInterval to 2s", every, c.ttl/3)
	}
}

func (c *checker) node(ctx context.Context, node redis.UniversalClient, at string) error {
	text, err := node.Info(ctx).Result()
	if err != nil {
		if isConfig(err) {
			c.say("info", false, "%sINFO may not be asked: a loss of memory is then noticed only by the holders (grant +info): %v", at, err)
			return c.calls(ctx, node, at)
		}
		return err
	}
	f := fields(text)
	c.version(f, at)
	role := f["role"]
	c.say("role", role == "master", "%s%s", at, map[bool]string{true: "a primary", false: "a " + role + ": it takes no writes; connect to the primary"}[role == "master"])
	policy := f["maxmemory_policy"]
	switch {
	case f["maxmemory"] == "0":
		c.say("eviction", true, "%sno memory limit", at)
	case policy == "noeviction":
		c.say("eviction", true, "%snoeviction", at)
	default:
		c.say("eviction", false, "%smaxmemory-policy %s may evict slots that are held: set noeviction, or use a Redis of its own", at, policy)
	}
	c.replication(ctx, node, f, at)
	return c.calls(ctx, node, at)
}

// calls says what the user may do, and what works.
func (c *checker) calls(ctx context.Context, node redis.UniversalClient, at string) error {
	id := c.trialID(ctx, node)
	if err := c.rights(ctx, node, id, at); err != nil {
		return err
	}
	c.trial(ctx, id, at)
	return ctx.Err()
}

// mode says whether client and server agree on what a Cluster is.
func (c *checker) mode(ctx context.Context) {
	text, err := c.s.client.Info(ctx, "cluster").Result()
	_, speaks := c.s.client.UniversalClient.(*redis.ClusterClient)
	if err != nil || fields(text)["cluster_enabled"] != "1" || speaks {
		return
	}
	c.say("cluster", c.s.client.cluster, "the server is in cluster mode, and the client is one of a single server: it serves the ids of this node alone; give every node's address to a cluster client (redis+cluster://)")
}

func (c *checker) version(f map[string]string, at string) {
	name, version := "Redis", f["redis_version"]
	if v := f["valkey_version"]; v != "" {
		name, version = "Valkey", v
	}
	major, _ := strconv.Atoi(strings.SplitN(version, ".", 2)[0])
	c.say("version", major >= 7, "%s%s %s%s", at, name, version, map[bool]string{true: "", false: ": 7 or later is needed"}[major >= 7])
}

// replication says what a fail-over can forget.
func (c *checker) replication(ctx context.Context, node redis.UniversalClient, f map[string]string, at string) {
	if f["connected_slaves"] == "0" || f["connected_slaves"] == "" {
		c.say("replication", true, "%sno replicas: no fail-over, and a restart without data forgets all slots (grace covers that)", at)
		return
	}
	conf, err := node.ConfigGet(ctx, "min-replicas-*").Result()
	if err != nil {
		c.say("replication", false, "%s%s replicas; min-replicas-to-write could not be read (no right to CONFIG GET): see that it is 1 or more", at, f["connected_slaves"])
		return
	}
	lag, _ := strconv.Atoi(conf["min-replicas-max-lag"])
	switch {
	case c.s.client.cluster:
		if conf, err := node.ConfigGet(ctx, "cluster-node-timeout").Result(); err == nil {
			ms, _ := strconv.Atoi(conf["cluster-node-timeout"])
			timeout := time.Duration(ms) * time.Millisecond
			c.say("ttl", c.ttl > timeout+c.ttl/3, "%scluster-node-timeout %v, TTL %v: a lease must outlive the time-out and a renewal interval, else a deposed primary may grant its slot again", at, timeout, c.ttl)
		}
	case conf["min-replicas-to-write"] == "0":
		c.say("replication", false, "%smin-replicas-to-write is 0: a primary that was cut off goes on granting (twice the limit, for as long as it lasts); set it to 1, and min-replicas-max-lag to a few seconds", at)
	default:
		s := time.Duration(lag+1) * time.Second
		c.say("replication", c.ttl > s+c.ttl/3, "%smin-replicas-to-write %s, max-lag %ds, TTL %v: a deposed primary grants for up to %v; set Options.Grace to TTL + %v", at, conf["min-replicas-to-write"], lag, c.ttl, s, s)
	}
}

// rights names each command that the user may not use. Where that may not be looked
// up, as by a user with the rights of docs/wire.md, each is tried.
func (c *checker) rights(ctx context.Context, node redis.UniversalClient, id, at string) error {
	need := Commands
	if c.s.client.cluster {
		need = append(need[:len(need):len(need)], ClusterCommands...)
	}
	who, err := node.Do(ctx, "acl", "whoami").Text()
	var missing []string
	known := err == nil
	for _, name := range need {
		if !known {
			break
		}
		args := append([]any{"acl", "dryrun", who}, dryRun(name, c.s.prefix)...)
		answer, err := node.Do(ctx, args...).Text()
		switch {
		case err != nil && strings.Contains(err.Error(), "DRYRUN"), err != nil && isRight(err):
			known = false
		case err == nil && answer != "OK" && strings.Contains(answer, "permission"):
			missing = append(missing, "+"+name)
		}
	}
	if !known {
		if who == "" {
			who = "of this connection"
		} else {
			who = strconv.Quote(who)
		}
		missing, err = c.tried(ctx, node, need, id)
		if err != nil {
			return err
		}
	} else {
		who = strconv.Quote(who)
	}
	if len(missing) > 0 {
		c.say("rights", false, "%suser %s lacks %s", at, who, strings.Join(missing, " "))
		return nil
	}
	c.say("rights", true, "%suser %s may do all that is needed", at, who)
	return nil
}

// dryRun returns a command with arguments that are well-formed enough for ACL DRYRUN.
func dryRun(name, prefix string) []any {
	var args []any
	for _, word := range strings.Split(name, "|") {
		args = append(args, word)
	}
	key := prefix + "x"
	more := map[string][]any{
		"eval": {"return 1", 1, key}, "evalsha": {"0", 1, key}, "time": {}, "info": {}, "ping": {}, "hello": {}, "command": {}, "readonly": {},
		"client|setinfo": {"lib-name", "x"}, "scan": {0}, "publish": {"gotsem:wake:x", "x"}, "spublish": {"gotsem:{x}:wake:x", "x"},
		"subscribe": {"gotsem:wake:x"}, "unsubscribe": {"gotsem:wake:x"}, "ssubscribe": {"gotsem:{x}:wake:x"}, "sunsubscribe": {"gotsem:{x}:wake:x"},
		"zadd": {key, 1, "x"}, "zrem": {key, "x"}, "zcount": {key, 1, 2}, "zscore": {key, "x"}, "zmscore": {key, "x"}, "zrange": {key, 0, 1},
		"zrank": {key, "x"}, "zremrangebyscore": {key, 1, 2}, "hget": {key, "x"}, "hset": {key, "x", 1}, "hmget": {key, "x"}, "hdel": {key, "x"},
		"pexpireat": {key, 1}, "cluster|slots": {}, "cluster|shards": {},
	}
	if a, ok := more[name]; ok {
		return append(args, a...)
	}
	return append(args, key)
}

// push sends a word to the store's own channel and waits for it. An error means that
// Redis could not be asked, which says nothing about how it is set up.
func (c *checker) push(ctx context.Context) error {
	channel := wakeChannel(c.s.token + ":check")
	ps, err := c.s.client.subscribe(ctx, channel)
	if err != nil {
		return err
	}
	defer func() { _ = ps.Close() }()
	began := time.Now()
	for time.Since(began) < 2*time.Second {
		msg, err := ps.ReceiveTimeout(ctx, time.Second)
		switch m := msg.(type) {
		case *redis.Subscription:
			if err := c.s.client.Publish(ctx, channel, "x").Err(); isConfig(err) {
				c.say("push", false, "publishing failed, so that waiters are woken by their polls only, within a second: %v", err)
				return nil
			} else if err != nil {
				return err
			}
		case *redis.Message:
			if m.Payload == "x" {
				c.say("push", true, "a wake-up arrives")
				return nil
			}
		}
		switch {
		case isConfig(err):
			c.say("push", false, "subscribing to %s failed, so that waiters are woken by their polls only, within a second (the user needs +subscribe and the channels &gotsem:*): %v", channel, err)
			return nil
		case err != nil && !isTimeout(err):
			return err
		}
	}
	if err := c.s.client.Ping(ctx).Err(); err != nil {
		return err
	}
	c.say("push", false, "no wake-up arrived within 2s: waiters are woken by their polls only, within a second")
	return nil
}

// fields parses what INFO answers.
func fields(info string) map[string]string {
	f := make(map[string]string)
	for line := range strings.SplitSeq(info, "\n") {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			f[k] = v
		}
	}
	return f
}
