package redisstore

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem/store"
)

// Holders implements store.Lister. Of a lease of weight 1 no fence is kept, and its age is
// since it was asked for.
func (s *Store) Holders(ctx context.Context, id string) ([]store.Holder, error) {
	reply, err := s.run(ctx, usageScript, id, 0, 0, yes)
	if err != nil {
		return nil, err
	}
	now := int64(max(integer(reply, 0), -integer(reply, 0)) / callNumbers)
	var owners map[string]string
	var out []store.Holder
	for at := 7; at+2 < len(reply); at += 3 {
		slotID, _ := reply[at].(string)
		record, _ := reply[at+2].(string)
		h := store.Holder{SlotID: slotID, Weight: 1, Left: ms(int64(integer(reply, at+1)))}
		if f := strings.SplitN(record, " ", 6); len(f) == 6 && (f[0] == "h" || f[0] == "g") {
			var since int64
			_, _ = fmt.Sscan(f[1], &h.Weight)
			_, _ = fmt.Sscan(f[2], &h.Fence)
			_, _ = fmt.Sscan(f[3], &since)
			h.Age, h.Owner = ms(now-since), f[5]
		} else if token, since, ok := readStamp(slotID); ok {
			if owners == nil {
				if owners, err = s.owners(ctx); err != nil {
					return nil, err
				}
			}
			h.Age, h.Owner = ms(max(now-since, 1)), owners[token]
		}
		out = append(out, h)
	}
	sortHolders(out)
	return out, nil
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

// globEscape has SCAN take a prefix as it is.
func globEscape(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(s)
}

// sortHolders puts the oldest first; slots of which nothing is known come last.
func sortHolders(hs []store.Holder) {
	slices.SortStableFunc(hs, func(a, b store.Holder) int { return cmp.Compare(b.Age, a.Age) })
}

// The slot id of a lease begins with a stamp: the token of the store that asked, and when
// that was, in ms by its estimate of the server's clock. So nothing else need be kept of
// a plain lease. Who that store's process is says P, where it registers its owner.

const (
	tokenLen = 6
	timeLen  = 7
	leaseLen = tokenLen + timeLen + 14 // of a stamped slot id
)

// sortedDigits are six bits each, in the order of their bytes.
const sortedDigits = "-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"

// Stamp implements store.Stamper.
func (s *Store) Stamp() string {
	now := time.Now()
	_, server, ago := s.codec.clocks.header(0, now)
	at := server + ago
	if server == 0 { // it has not been asked yet
		at = now.UnixMilli()
	}
	var b [tokenLen + timeLen]byte
	copy(b[:], s.token)
	for i := len(b) - 1; i >= tokenLen; i-- {
		b[i] = sortedDigits[at&63]
		at >>= 6
	}
	return string(b[:])
}

// readStamp returns what the stamp of a slot id says, if it has one.
func readStamp(slotID string) (token string, since int64, ok bool) {
	if len(slotID) != leaseLen {
		return "", 0, false
	}
	for i := tokenLen; i < tokenLen+timeLen; i++ {
		digit := strings.IndexByte(sortedDigits, slotID[i])
		if digit < 0 {
			return "", 0, false
		}
		since = since<<6 | int64(digit)
	}
	return slotID[:tokenLen], since, true
}

// owners returns the owner of each token that is registered.
func (s *Store) owners(ctx context.Context) (map[string]string, error) {
	members, err := page(ctx, s.client, func(ctx context.Context) ([]string, error) {
		return s.client.ZRange(ctx, peersKey(s.prefix), 0, -1).Result()
	})
	if err != nil {
		return nil, classify(err)
	}
	owners := make(map[string]string, len(members))
	for _, m := range members { // token share owner
		if f := strings.SplitN(m, " ", 3); len(f) == 3 && f[2] != "" {
			owners[f[0]] = f[2]
		}
	}
	return owners, nil
}

var _ store.Stamper = (*Store)(nil)
