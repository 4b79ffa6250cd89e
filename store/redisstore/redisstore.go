// Package redisstore keeps slots in Redis: the store that processes share. It takes
// any go-redis v9 client, for Redis 7 or later, or Valkey; a single server, Sentinel
// or a Cluster.
//
// Every decision is one Lua script, by the server's clock (scripts/*.lua: a file per
// verb, each with what it takes and returns at its head). What lies in Redis is
// described in docs/wire.md.
//
// Reading order: keys.go (every key name), op.go and calls.go (what is asked, and how
// it goes together), encode.go and decode.go (as a script sees it), exec.go (what may go
// wrong on the way), batch.go and detached.go (who carries it, and when), client.go (over which client),
// wake.go (hearing of grants), clock.go (noticing a jump of the server's clock).
package redisstore

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"iter"
	"net"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/ashfaqjani916/gotsem/store"
)

// Store is a store.Store in Redis, and all of its capabilities.
type Store struct {
	prefix string
	client *client
	token  string // of this store, among all that share the Redis

	codec   *codec
	exec    executor
	ears    ears
	batcher *batcher
	nodes   nodeBatchers // on a Cluster, instead of batcher
	inDoubt inDoubt
	ops     sync.Pool // of *op
	bad     error     // why New's arguments cannot work

	// reserved is what no id may begin with, where prefix is the beginning of ownKeys.
	reserved string
}

var (
	_ store.Store       = (*Store)(nil)
	_ store.Waker       = (*Store)(nil)
	_ store.Lister      = (*Store)(nil)
	_ store.LimitSetter = (*Store)(nil)
	_ store.PeerCounter = (*Store)(nil)
	_ store.Checker     = (*Store)(nil)
	_ store.Prober      = (*Store)(nil)
)

// Option changes what New makes.
type Option func(*Store)

// Replicas has every grant of a lease acknowledged by n replicas before it counts,
// and given back with store.ErrNotReplicated if that takes longer than wait. A grant
// that the replica which is promoted has acknowledged is not forgotten by a fail-over.
//
// It costs a replication round trip per batch, which other operations of the batch wait
// for too, and it refuses while too few replicas are connected. wait must be shorter
// than Options.StoreTimeout. It needs the right to WAIT.
func Replicas(n int, wait time.Duration) Option {
	return func(s *Store) { s.exec.durable = durable{n, wait} }
}

// StrictStart has a Redis without a marker taken for one that has lost its memory, also
// by a process that has never met one: the first start of a fleet, and of every new
// prefix, is then a grace long. Without it such a process is granted at once.
func StrictStart() Option { return func(s *Store) { s.codec.clocks.strict = true } }

// durable is how many replicas must acknowledge a grant, and within what time.
type durable struct {
	replicas int
	wait     time.Duration
}

// defaultBudget bounds a call that says nothing of its own, and whose ctx has no
// deadline: every call has an end.
const defaultBudget = 5 * time.Second

// New returns a store whose ids lie at prefix+id. rdb stays the caller's and is
// never closed; unless it has ContextTimeoutEnabled, the store speaks to Redis over
// connections of its own with rdb's options, or, with Sentinel, over rdb's pool. Hooks
// that were added to rdb, as for tracing and metrics, see no command that goes over
// connections of the store's own.
//
// A Ring is refused by every call (see Err): when one of its shards dies it moves ids to
// another, where nothing is known of who holds them, so that no limit would hold.
//
// A prefix that begins with "gotsem:" is refused by every call: the store's own
// keys begin so. Prefixes of one Redis should not nest ("app:" and "app:shots:"); see
// docs/wire.md.
func New(rdb redis.UniversalClient, prefix string, opts ...Option) *Store {
	var random [12]byte
	_, _ = rand.Read(random[:]) // crypto/rand.Read never fails
	missing := isNil(rdb)
	if missing { // something to ask for its options; every call is refused before it
		rdb = redis.NewClient(&redis.Options{ContextTimeoutEnabled: true, MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}, Dialer: func(context.Context, string, string) (net.Conn, error) { return nil, errNoClient }})
	}
	s := &Store{prefix: prefix, client: newClient(rdb), token: base64.RawURLEncoding.EncodeToString(random[:])}
	s.codec = newCodec(prefix, s.token, s.client)
	s.exec.codec, s.exec.client, s.exec.wake = s.codec, s.client, s.ears.hears
	s.exec.unsure.Store(s.client.told)
	s.exec.frames.New = func() any { return new(frame) }
	s.ears.client, s.ears.token, s.ears.shards.ears = s.client, s.token, &s.ears
	s.batcher = s.newBatcher()
	for _, opt := range opts {
		opt(s)
	}
	s.ears.doubting = s.exec.durable.replicas > 0
	s.ops.New = func() any { return new(op) }
	s.guardKeys()
	switch {
	case missing:
		s.bad = errNoClient
	case isRing(rdb):
		s.bad = errRing
	}
	if twin := s.client.twin; twin != nil {
		// A semaphore from NewGotsem is never closed.
		runtime.AddCleanup(s, func(c interface{ Close() error }) { _ = c.Close() }, twin)
	}
	return s
}

// Err says why the arguments of New cannot work, or is nil. It is what every call
// answers then, a store.ErrConfig.
func (s *Store) Err() error { return s.bad }

var errNoClient = fmt.Errorf("%w: the client is nil: make one with redis.NewClient", store.ErrConfig)

// isNil also knows a nil *redis.Client in an interface.
func isNil(rdb redis.UniversalClient) bool {
	v := reflect.ValueOf(rdb)
	return rdb == nil || v.Kind() == reflect.Pointer && v.IsNil()
}

var errRing = fmt.Errorf("%w: a redis.Ring cannot keep slots: when a shard dies it moves ids to another, which knows nothing of their holders. "+
	"Use a single server, Sentinel or a Cluster; or one store per server, and choose among them by id", store.ErrConfig)

// isRing also knows a type that embeds one.
func isRing(rdb redis.UniversalClient) bool {
	type each = func(ctx context.Context, client *redis.Client) error
	_, shards := rdb.(interface {
		ForEachShard(ctx context.Context, fn each) error
	})
	_, masters := rdb.(interface {
		ForEachMaster(ctx context.Context, fn each) error
	})
	return shards && !masters
}

// guardKeys keeps the keys of ids apart from the store's own.
func (s *Store) guardKeys() {
	if rest, ok := strings.CutPrefix(ownKeys, s.prefix); ok {
		s.reserved = rest
	}
	if strings.HasPrefix(s.prefix, ownKeys) {
		s.bad = fmt.Errorf("%w: the prefix %q begins with \"gotsem:\", as the store's own keys do: choose another", store.ErrConfig, s.prefix)
	}
}

// Close closes the connections that the store made for itself, of which the caller's
// client and its hooks know nothing; that client is left open. It is not needed where
// the store lives as long as the program.
func (s *Store) Close() error {
	if s.client.twin != nil {
		return s.client.twin.Close()
	}
	return nil
}

func (s *Store) check(ctx context.Context, id, slotID string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if id == "" || slotID == "" {
		return errNoID
	}
	if s.reserved != "" && strings.HasPrefix(id, s.reserved) {
		return fmt.Errorf("%w: the key of %q would begin with %q, as the store's own keys do: choose a prefix that is not the beginning of that", store.ErrConfig, id, ownKeys)
	}
	return s.bad
}

// ownKeys is what the store's own keys begin with, and no key of an id may.
const ownKeys = "gotsem:"

var errNoID = errors.New("redisstore: the id and the slot id must not be empty")

// op returns an operation from the pool.
func (s *Store) op(v verb, id, slotID string, budget time.Duration) *op {
	o := s.ops.Get().(*op)
	o.verb, o.id, o.slot, o.budget = v, id, slotID, budget
	if budget <= 0 {
		o.budget = defaultBudget
	}
	return o
}

// do has o carried to its server, and waits for it: see batcher.do.
func (s *Store) do(ctx context.Context, o *op) (left bool, err error) {
	b, err := s.batcherOf(ctx, o)
	if err != nil {
		return false, err
	}
	return b.do(ctx, o)
}

// free gives an operation back to the pool, which is not under way any more.
func (s *Store) free(o *op) {
	o.reset()
	s.ops.Put(o)
}

const yes, no = "1", "0"

// Acquire implements store.Store.
func (s *Store) Acquire(ctx context.Context, r *store.Request) (store.Decision, error) {
	if err := s.check(ctx, r.ID, r.SlotID); err != nil {
		return store.Decision{}, err
	}
	if err := r.Check(); err != nil {
		return store.Decision{}, err
	}
	o := s.op(acquire, r.ID, r.SlotID, r.Budget)
	o.weight, o.limit, o.queue, o.ticket = int64(r.Weight), int64(r.Limit), int64(r.Queue), int64(r.Ticket)
	o.ttl = r.TTL.Milliseconds()
	o.plain, o.firstAttempt, o.owner, o.grace = r.Plain, r.FirstAttempt, r.Owner, s.exec.graces.of(r.Grace)
	o.outage = r.OutageFor.Milliseconds()
	if r.Plain && r.Weight == 1 && r.Queue <= 0 && o.grace == 0 && !s.codec.general {
		o.verb = plainAcquire
	}
	s.exec.graces.note(r.Grace)
	shard := r.Queue > 0 && s.codec.sharded()
	if shard {
		s.ears.shards.join(r.SlotID, o.names(s.prefix).shardChannel(s.token))
	}
	left, err := s.do(ctx, o)
	var d store.Decision
	if !left {
		d = o.decision
	}
	if err != nil && isHalfway(err) { // what it has done so far is undone
		again := s.op(release, r.ID, r.SlotID, r.Budget)
		again.grace, again.async = r.Grace.Milliseconds(), func(_, _ string, _ error) {}
		s.batcherNow(again).submit(again)
	}
	if !left {
		s.free(o)
	}
	// Who was not answered asks again, or gives back; who is misconfigured does neither.
	if shard && (err == nil && d.Outcome != store.Waiting && d.Outcome != store.Recovering || errors.Is(err, store.ErrConfig)) {
		s.ears.shards.leave(r.SlotID)
	}
	return d, err
}

// Release implements store.Store.
func (s *Store) Release(ctx context.Context, r *store.Release) (bool, error) {
	if err := s.check(ctx, r.ID, r.SlotID); err != nil {
		if r.Async != nil {
			r.Async(r.ID, r.SlotID, err)
			return false, nil
		}
		return false, err
	}
	if s.codec.sharded() {
		s.ears.shards.leave(r.SlotID)
	}
	o := s.op(release, r.ID, r.SlotID, r.Budget)
	o.grace = s.exec.graces.of(r.Grace)
	if r.Plain && o.grace == 0 && !s.codec.general {
		o.verb = plainRelease
	}
	s.giveBackTwice(o)
	if o.async = r.Async; o.async != nil {
		s.batcherNow(o).submit(o)
		return false, nil
	}
	left, err := s.do(ctx, o)
	freed := !left && o.freed
	if !left {
		s.free(o)
	}
	return freed, err
}

// giveBackTwice gives back once more what was asked for by two sendings, when the first
// is too late.
func (s *Store) giveBackTwice(o *op) {
	if s.exec.resent.n.Load() == 0 {
		return
	}
	again := question{verb: o.verb, id: o.id, slot: o.slot, grace: o.grace, budget: o.budget}
	s.exec.resent.released(o.slot, func() {
		o := s.op(again.verb, again.id, again.slot, again.budget)
		o.grace, o.async = again.grace, func(_, _ string, _ error) {}
		s.batcherNow(o).submit(o)
	})
}

// Renew implements store.Store.
func (s *Store) Renew(ctx context.Context, rs []store.Renewal) []store.RenewResult {
	out := make([]store.RenewResult, len(rs))
	var wait sync.WaitGroup
	began, budget := time.Now(), defaultBudget
	if d, ok := ctx.Deadline(); ok {
		budget = time.Until(d)
	}
	for i := range rs {
		r := &rs[i]
		if err := cmp.Or(s.check(ctx, r.ID, r.SlotID), r.Check()); err != nil {
			out[i].Err = err
			continue
		}
		o := s.op(renew, r.ID, r.SlotID, budget)
		o.ttl, o.weight, o.limit, o.fence = r.TTL.Milliseconds(), int64(r.Weight), int64(r.Limit), int64(r.Fence)
		o.trust, o.grace, o.owner, o.register = r.Trust.Milliseconds(), s.exec.graces.of(r.Grace), r.Owner, r.Register
		o.outage = r.OutageFor.Milliseconds()
		wait.Add(1)
		o.async = func(_, _ string, err error) {
			if out[i].Err = err; err == nil { // else it may be under way still
				out[i].Outcome = o.outcome
				if !o.sentAt.IsZero() {
					out[i].Waited = o.sentAt.Sub(began)
				}
			}
			wait.Done()
		}
		s.batcherNow(o).submit(o)
	}
	wait.Wait() // every batch ends with its budget
	return out
}

// Usage implements store.Store.
func (s *Store) Usage(ctx context.Context, id string, limit int) (store.Usage, error) {
	reply, err := s.run(ctx, usageScript, id, 0, limit, no)
	if err != nil {
		return store.Usage{}, err
	}
	return store.Usage{Active: integer(reply, 1), Limit: integer(reply, 2), LimitSet: integer(reply, 3) == 1, Waiting: integer(reply, 4), NextIn: ms(int64(integer(reply, 5)))}, nil
}

// Holders implements store.Lister.
func (s *Store) Holders(ctx context.Context, id string) ([]store.Holder, error) {
	reply, err := s.run(ctx, usageScript, id, 0, 0, yes)
	if err != nil {
		return nil, err
	}
	now := max(integer(reply, 0), -integer(reply, 0)) / callNumbers
	var out []store.Holder
	for at := 6; at+2 < len(reply); at += 3 {
		slotID, _ := reply[at].(string)
		record, _ := reply[at+2].(string)
		h := store.Holder{SlotID: slotID, Weight: 1, Left: ms(int64(integer(reply, at+1)))}
		if f := strings.SplitN(record, " ", 6); len(f) == 6 && (f[0] == "h" || f[0] == "g") {
			var since int64
			_, _ = fmt.Sscan(f[1], &h.Weight)
			_, _ = fmt.Sscan(f[2], &h.Fence)
			_, _ = fmt.Sscan(f[3], &since)
			h.Age, h.Owner = ms(int64(now)-since), f[5]
		}
		out = append(out, h)
	}
	sortHolders(out)
	return out, nil
}

// Clear implements store.Store. It takes a page at a time, until none is left: what is
// granted or renewed between two pages is taken too, but not for ever.
func (s *Store) Clear(ctx context.Context, c store.Clear) (taken int, err error) {
	grace := s.exec.graces.any()
	ttl := min(max(c.TTL, time.Millisecond), store.MaxTTL).Milliseconds()
	for pages, last := 1, no; pages > 0; pages-- {
		if pages == 1 && taken > 0 {
			last = yes
		}
		reply, err := s.run(ctx, clearScript, c.ID, grace, c.SlotID, ttl, last)
		if err != nil {
			return taken, err
		}
		s.exec.wakeAll(reply[min(3, len(reply)):])
		left := integer(reply, 2)
		switch {
		case left == 0:
			pages = 1
		case taken == 0:
			pages += 2 * (left/clearPage + 1)
		}
		taken += integer(reply, 1)
	}
	return taken, nil
}

// clearPage is how many slots a call of clear.lua takes at most.
const clearPage = 1000

// SetLimit implements store.LimitSetter.
func (s *Store) SetLimit(ctx context.Context, id string, limit int) error {
	if limit < 0 {
		return fmt.Errorf("redisstore: limit %d of %q is negative: 0 pauses, ResetLimit takes a set limit off", limit, id)
	}
	if err := store.CheckLimit(limit); err != nil {
		return err
	}
	return s.limit(ctx, id, limit)
}

// ResetLimit implements store.LimitSetter.
func (s *Store) ResetLimit(ctx context.Context, id string) error { return s.limit(ctx, id, "") }

func (s *Store) limit(ctx context.Context, id string, limit any) error {
	reply, err := s.run(ctx, limitScript, id, s.exec.graces.any(), limit)
	if err != nil {
		return err
	}
	s.exec.wakeAll(reply[min(2, len(reply)):])
	return nil
}

// Peers implements store.PeerCounter.
func (s *Store) Peers(ctx context.Context, ttl time.Duration) (int, error) {
	if s.bad != nil {
		return 0, s.bad
	}
	n, err := s.exec.eval(ctx, peersScript, []string{peersKey(s.prefix)}, s.token, ttl.Milliseconds()).Int()
	return n, classify(err)
}

// Probe implements store.Prober.
func (s *Store) Probe(ctx context.Context, id string) error {
	if err := s.check(ctx, id, "-"); err != nil {
		return err
	}
	return classify(s.exec.eval(ctx, probeScript, []string{keysOf(s.prefix, id).probe()}).Err())
}

// OnWake implements store.Waker. The subscription lives as long as somebody wants
// to be woken.
func (s *Store) OnWake(wake func(store.Wakeup)) (stop func()) {
	if s.bad != nil { // nothing will ever be granted
		return func() {}
	}
	return s.ears.add(wake)
}

// IDs implements store.Lister. It scans the whole keyspace of each master, a
// thousand keys at a time.
func (s *Store) IDs(ctx context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		if s.bad != nil {
			yield("", s.bad)
			return
		}
		nodes, err := page(ctx, s.client, s.masters)
		for at := 0; err == nil && at < len(nodes); at++ {
			more := true
			if more, err = s.scan(ctx, nodes[at], yield); !more {
				return
			}
		}
		if err != nil {
			yield("", classify(err))
		}
	}
}

// page asks for one page of a list, for as long as ctx allows for one.
func page[T any](ctx context.Context, c *client, ask func(context.Context) (T, error)) (T, error) {
	bounded, cancel := context.WithTimeout(ctx, store.PageTimeout(ctx, defaultBudget))
	defer cancel()
	return aside(bounded, &c.left, ask, nil)
}

var errNodesHidden = fmt.Errorf("%w: the client is of a type of its own, over a Cluster: it does not show the nodes, so that a list would be of one of them. "+
	"List over a store on the *redis.ClusterClient itself", store.ErrConfig)

// masters returns the nodes that keep keys. It also knows a type that embeds a Cluster
// client.
func (s *Store) masters(ctx context.Context) (nodes []redis.Cmdable, err error) {
	cluster, ok := s.client.UniversalClient.(interface {
		ForEachMaster(ctx context.Context, fn func(ctx context.Context, node *redis.Client) error) error
	})
	if !ok {
		if err := s.exec.learn(ctx); err != nil {
			return nil, err
		}
		if s.client.perID && s.codec.slotted() {
			return nil, errNodesHidden
		}
		return []redis.Cmdable{s.client}, nil
	}
	var one sync.Mutex
	err = cluster.ForEachMaster(ctx, func(_ context.Context, node *redis.Client) error {
		one.Lock()
		defer one.Unlock()
		nodes = append(nodes, node)
		return nil
	})
	return nodes, err
}

// scan yields the ids that node keeps; more is false if yield wants no more.
func (s *Store) scan(ctx context.Context, node redis.Cmdable, yield func(string, error) bool) (more bool, err error) {
	cursor := uint64(0)
	for {
		ids, err := page(ctx, s.client, func(ctx context.Context) ([]string, error) {
			keys, next, err := node.ScanType(ctx, cursor, globEscape(s.prefix)+"*", 1000, "zset").Result()
			if err != nil {
				return nil, err
			}
			ids, err := s.held(ctx, node, keys)
			if err == nil { // what was left behind does not come here
				cursor = next
			}
			return ids, err
		})
		if err != nil {
			return true, err
		}
		for _, id := range ids {
			if !yield(id, nil) {
				return false, nil
			}
		}
		if cursor == 0 {
			return true, nil
		}
	}
}

// held returns the ids of those keys that somebody holds at the moment: a key
// outlives its last slot a little.
func (s *Store) held(ctx context.Context, node redis.Cmdable, page []string) (ids []string, err error) {
	keys := slices.DeleteFunc(page, func(key string) bool {
		return len(key) == len(s.prefix) || strings.HasPrefix(key, "gotsem:")
	})
	if len(keys) == 0 {
		return nil, nil
	}
	now, err := node.Time(ctx).Result()
	if err != nil {
		return nil, err
	}
	pipe := node.Pipeline()
	counts := make([]*redis.IntCmd, len(keys))
	for i, key := range keys {
		counts[i] = pipe.ZCount(ctx, key, fmt.Sprintf("(%d", now.UnixMilli()), "+inf")
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, err
	}
	for i, key := range keys {
		if counts[i].Val() > 0 {
			ids = append(ids, key[len(s.prefix):])
		}
	}
	return ids, nil
}

// run runs a script on one id, alone: for what is asked seldom.
func (s *Store) run(ctx context.Context, sc *script, id string, grace int64, args ...any) ([]any, error) {
	if err := s.check(ctx, id, "-"); err != nil {
		return nil, err
	}
	return s.exec.run(ctx, sc, id, grace, args...)
}

// integer returns the number at reply[at]. A score comes as text.
func integer(reply []any, at int) int {
	if at < len(reply) {
		if n, ok := reply[at].(int64); ok {
			return int(n)
		}
	}
	return 0
}

// globEscape has SCAN take a prefix as it is.
func globEscape(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(s)
}

// sortHolders puts the oldest first; slots of which nothing is known come last.
func sortHolders(hs []store.Holder) {
	slices.SortStableFunc(hs, func(a, b store.Holder) int {
		if (a.Fence == 0) != (b.Fence == 0) {
			return cmp.Compare(b.Fence, a.Fence)
		}
		return cmp.Compare(a.Fence, b.Fence)
	})
}
