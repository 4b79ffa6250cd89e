package redisstore

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem/store"
)

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
	slices.SortStableFunc(hs, func(a, b store.Holder) int {
		if (a.Fence == 0) != (b.Fence == 0) {
			return cmp.Compare(b.Fence, a.Fence)
		}
		return cmp.Compare(a.Fence, b.Fence)
	})
}
