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
// wrong on the way), batcher.go and detached.go (who carries it, and when), client.go
// (over which client), wake.go (hearing of grants), clock.go (noticing a jump of the
// server's clock).
package redisstore

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"reflect"
	"runtime"
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

	codec      *codec
	exec       executor
	subscriber subscriber
	batcher    *batcher
	nodes      nodeBatchers // on a Cluster, instead of batcher
	inDoubt    inDoubt
	ops        sync.Pool // of *op
	bad        error     // why New's arguments cannot work

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
	_ store.Joint       = (*Store)(nil)
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
	var random [6]byte
	_, _ = rand.Read(random[:]) // crypto/rand.Read never fails
	missing := isNil(rdb)
	if missing { // something to ask for its options; every call is refused before it
		rdb = redis.NewClient(&redis.Options{ContextTimeoutEnabled: true, MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}, Dialer: func(context.Context, string, string) (net.Conn, error) { return nil, errNoClient }})
	}
	s := &Store{prefix: prefix, client: newClient(rdb), token: base64.RawURLEncoding.EncodeToString(random[:])[:tokenLen]}
	s.codec = newCodec(prefix, s.token, s.client)
	s.exec.codec, s.exec.client, s.exec.wake = s.codec, s.client, s.subscriber.deliver
	s.exec.token = s.token
	s.exec.unsure.Store(s.client.told)
	s.exec.frames.New = func() any { return new(frame) }
	s.subscriber.client, s.subscriber.token, s.subscriber.shards.all = s.client, s.token, &s.subscriber
	s.batcher = s.newBatcher()
	for _, opt := range opts {
		opt(s)
	}
	s.subscriber.confirmGrants = s.exec.durable.replicas > 0
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

// CloseIdleConnections closes those of the connections that the store made for itself
// which wait for no answer; it makes new ones when it needs them. It does so by itself
// with those that were not used for 30 s, within a minute, so that nothing stays of a
// store that is not used any more. A Semaphore calls it in its Close; while another one
// listens on the store it does nothing.
func (s *Store) CloseIdleConnections() {
	if s.client.open != nil && !s.subscriber.listened() {
		s.client.open.closeIdle(0)
	}
}

// Close closes the connections that the store made for itself, of which the caller's
// client and its hooks know nothing; that client is left open. It is not needed where
// the store lives as long as the program, nor after the Close of the last Semaphore on
// it, which leaves no connection.
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
