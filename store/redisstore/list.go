package redisstore

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem/store"
)

// Holders implements store.Lister. Of a lease of weight 1 no fence is kept, and its age is
// since it was asked for.
func (s *Store) Holders(ctx context.Context, id, after string, n int) (page []store.Holder, next string, err error) {
	var owners map[string]string
	next, err = s.list(ctx, id, "held", after, n, func(l listed) error {
		h := store.Holder{SlotID: l.slot, Weight: 1, Left: ms(l.score - l.now)}
		if f := strings.SplitN(l.record, " ", 6); len(f) == 6 && (f[0] == "h" || f[0] == "g") {
			h.Weight, _ = strconv.Atoi(f[1])
			h.Fence, _ = strconv.ParseUint(f[2], 10, 64)
			since, _ := strconv.ParseInt(f[3], 10, 64)
			h.Age, h.Owner = ms(l.now-since), f[5]
		} else if token, since, ok := readStamp(l.slot); ok {
			if owners == nil {
				if owners, err = s.owners(ctx); err != nil {
					return err
				}
			}
			h.Age, h.Owner = ms(max(l.now-since, 1)), owners[token]
		}
		page = append(page, h)
		return nil
	})
	return page, next, err
}

// Waiters implements store.Lister.
func (s *Store) Waiters(ctx context.Context, id string, n int) (line []store.Waiter, err error) {
	_, err = s.list(ctx, id, "line", "", n, func(l listed) error {
		w := store.Waiter{SlotID: l.slot, Weight: 1}
		if f := strings.SplitN(l.record, " ", 6); len(f) == 6 && f[0] == "w" {
			until, _ := strconv.ParseInt(f[1], 10, 64)
			w.Weight, _ = strconv.Atoi(f[2])
			w.Left, w.Owner = ms(max(until-l.now, 0)), f[5]
			if _, class, ok := strings.Cut(f[4], "/"); ok {
				at, _ := strconv.Atoi(class)
				w.Class = store.ClassAt(at - 1)
			}
		}
		if _, since, ok := readStamp(l.slot); ok {
			w.Age = ms(max(l.now-since, 1))
		}
		line = append(line, w)
		return nil
	})
	return line, err
}

// listed is one slot id of a page: score is when it lapses, or its ticket.
type listed struct {
	slot, record string
	score, now   int64
}

// list yields a page of the holders ("held"), or of those in line ("line").
func (s *Store) list(ctx context.Context, id, what, after string, n int, yield func(listed) error) (next string, err error) {
	if err := store.CheckPage(n); err != nil {
		return "", err
	}
	score, slot, ok := strings.Cut(after, " ")
	if _, err := strconv.ParseInt(score, 10, 64); after != "" && (err != nil || !ok) {
		return "", fmt.Errorf("%w: %q is not what a page ended with", store.ErrConfig, after)
	}
	reply, err := s.run(ctx, listScript, id, 0, what, n, score, slot)
	if err != nil {
		return "", err
	}
	now, last := replyTime(reply), ""
	for at := 2; at+2 < len(reply); at += 3 {
		l := listed{now: now}
		score, _ := reply[at+1].(string)
		l.score, _ = strconv.ParseInt(score, 10, 64)
		l.slot, _ = reply[at].(string)
		l.record, _ = reply[at+2].(string)
		if err := yield(l); err != nil {
			return "", err
		}
		last = fmt.Sprintf("%d %s", l.score, l.slot)
	}
	if integer(reply, 1) == 0 {
		last = ""
	}
	return last, nil
}

// replyTime is the server's time in ms with which a reply begins.
func replyTime(reply []any) int64 {
	return int64(max(integer(reply, 0), -integer(reply, 0)) / callNumbers)
}

// IDs implements store.Lister. It scans the whole keyspace of each master twice, a
// thousand keys at a time: for what is held, and for what is not held but waited for or
// limited by hand.
func (s *Store) IDs(ctx context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		if s.bad != nil {
			yield("", s.bad)
			return
		}
		nodes, err := page(ctx, s.client, s.masters)
		for at := 0; err == nil && at < 2*len(nodes); at++ {
			scan := s.scanHeld
			if at%2 == 1 {
				scan = s.scanRest
			}
			more := true
			if more, err = s.scan(ctx, nodes[at/2], scan, yield); !more {
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
func (s *Store) scan(ctx context.Context, node redis.Cmdable, next scanPage, yield func(string, error) bool) (more bool, err error) {
	cursor := uint64(0)
	for {
		ids, err := page(ctx, s.client, func(ctx context.Context) ([]string, error) {
			ids, at, err := next(ctx, node, cursor)
			if err == nil { // what was left behind does not come here
				cursor = at
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

// scanPage returns the ids of a page of the keyspace, and the cursor of the next.
type scanPage func(ctx context.Context, node redis.Cmdable, cursor uint64) (ids []string, next uint64, err error)

// scanHeld looks for holders.
func (s *Store) scanHeld(ctx context.Context, node redis.Cmdable, cursor uint64) (ids []string, next uint64, err error) {
	keys, next, err := node.ScanType(ctx, cursor, globEscape(s.prefix)+"*", 1000, "zset").Result()
	if err != nil {
		return nil, 0, err
	}
	for _, key := range keys {
		if len(key) > len(s.prefix) && !strings.HasPrefix(key, "gotsem:") {
			ids = append(ids, key[len(s.prefix):])
		}
	}
	ids, err = s.held(ctx, node, ids, true)
	return ids, next, err
}

// scanRest looks for lines and limits set by hand, of ids that nobody holds.
func (s *Store) scanRest(ctx context.Context, node redis.Cmdable, cursor uint64) (ids []string, next uint64, err error) {
	keys, next, err := node.Scan(ctx, cursor, "gotsem:{*", 1000).Result()
	if err != nil {
		return nil, 0, err
	}
	for _, key := range keys {
		base, kind := baseOf(key)
		id, ours := strings.CutPrefix(base, s.prefix)
		if ours && id != "" && (kind == 'q' || kind == 'l') && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	ids, err = s.held(ctx, node, ids, false)
	return ids, next, err
}

// held returns those of ids that somebody holds at the moment, or those that nobody does:
// a key outlives its last slot a little.
func (s *Store) held(ctx context.Context, node redis.Cmdable, ids []string, want bool) ([]string, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	now, err := node.Time(ctx).Result()
	if err != nil {
		return nil, err
	}
	pipe := node.Pipeline()
	counts := make([]*redis.IntCmd, len(ids))
	for i, id := range ids {
		counts[i] = pipe.ZCount(ctx, s.prefix+id, fmt.Sprintf("(%d", now.UnixMilli()), "+inf")
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, err
	}
	some := ids[:0]
	for i, id := range ids {
		if (counts[i].Val() > 0) == want {
			some = append(some, id)
		}
	}
	return some, nil
}

// globEscape has SCAN take a prefix as it is.
func globEscape(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(s)
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
	owners := make(map[string]string)
	return owners, s.registered(ctx, func(token, owner string, _ int64) { owners[token] = owner })
}

// registered yields the first MaxPage that are registered at P with an owner, and when each
// is given up, in ms.
func (s *Store) registered(ctx context.Context, yield func(token, owner string, ends int64)) error {
	members, err := page(ctx, s.client, func(ctx context.Context) ([]redis.Z, error) {
		return s.client.ZRangeArgsWithScores(ctx, redis.ZRangeArgs{Key: peersKey(s.prefix), Start: 0, Stop: store.MaxPage - 1, Rev: true}).Result()
	})
	for _, z := range members { // token share owner
		text, _ := z.Member.(string)
		if f := strings.SplitN(text, " ", 3); len(f) == 3 && f[2] != "" {
			yield(f[0], f[2], int64(z.Score))
		}
	}
	return classify(err)
}

// State implements store.Stater.
func (s *Store) State(ctx context.Context, id string) (st store.State, err error) {
	reply, err := s.run(ctx, stateScript, id, 0)
	if err != nil {
		return st, err
	}
	now := replyTime(reply)
	st.Losses, st.LossAge, st.Grace = integer(reply, 1), ms(int64(integer(reply, 2))), ms(int64(integer(reply, 3)))
	err = s.registered(ctx, func(_, owner string, ends int64) {
		if ends > now {
			st.Processes = append(st.Processes, store.Process{Owner: owner, Left: ms(ends - now)})
		}
	})
	return st, err
}

var (
	_ store.Stamper = (*Store)(nil)
	_ store.Stater  = (*Store)(nil)
)
