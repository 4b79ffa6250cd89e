package redisstore

import (
	"cmp"
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

// Walk implements store.Lister. It scans the whole keyspace of each master twice, a
// thousand keys at a time: for what is held, and for what is not held but waited for or
// limited by hand. Of the ids that it finds, fifty are asked about in one call, and
// on a Cluster those of one slot.
func (s *Store) Walk(ctx context.Context, limit int, pause time.Duration) iter.Seq2[store.Standing, error] {
	return func(yield func(store.Standing, error) bool) {
		if s.bad != nil {
			yield(store.Standing{}, s.bad)
			return
		}
		nodes, err := page(ctx, s.client, s.masters)
		for at := 0; err == nil && at < 2*len(nodes); at++ {
			w := walker{s, limit, pause, at%2 == 0}
			more := true
			if more, err = w.scan(ctx, nodes[at/2], yield); !more {
				return
			}
		}
		if err != nil {
			yield(store.Standing{}, classify(err))
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

// walker walks over the keys of holders, or over those of lines and limits set by hand.
type walker struct {
	*Store
	limit int
	pause time.Duration
	held  bool
}

// scan yields what node keeps; more is false if yield wants no more.
func (w walker) scan(ctx context.Context, node redis.Cmdable, yield func(store.Standing, error) bool) (more bool, err error) {
	for cursor := uint64(0); ; {
		if err := store.Rest(ctx, w.pause); err != nil {
			return true, err
		}
		ids, err := page(ctx, w.client, func(ctx context.Context) ([]string, error) {
			keys, next, err := w.keys(ctx, node, cursor)
			if err == nil { // what was left behind does not come here
				cursor = next
			}
			return w.ids(keys), err
		})
		if err != nil {
			return true, err
		}
		for _, some := range w.together(ids) {
			if err := store.Rest(ctx, w.pause); err != nil {
				return true, err
			}
			all, err := page(ctx, w.client, func(ctx context.Context) ([]store.Standing, error) { return w.stand(ctx, some) })
			if err != nil {
				return true, err
			}
			for _, st := range all {
				if !yield(st, nil) {
					return false, nil
				}
			}
		}
		if cursor == 0 {
			return true, nil
		}
	}
}

const scanPage, askedAtOnce = 1000, 50

func (w walker) keys(ctx context.Context, node redis.Cmdable, cursor uint64) (keys []string, next uint64, err error) {
	if w.held {
		return node.ScanType(ctx, cursor, globEscape(w.prefix)+"*", scanPage, "zset").Result()
	}
	return node.Scan(ctx, cursor, "gotsem:{*", scanPage).Result()
}

// ids are those of the keys that are of the kind which is looked for.
func (w walker) ids(keys []string) (ids []string) {
	for _, key := range keys {
		base := key
		if !w.held {
			kind := byte(0)
			if base, kind = baseOf(key); kind != 'q' && kind != 'l' {
				continue
			}
		} else if strings.HasPrefix(key, "gotsem:") {
			continue
		}
		if id, ours := strings.CutPrefix(base, w.prefix); ours && id != "" && (w.held || !slices.Contains(ids, id)) {
			ids = append(ids, id)
		}
	}
	return ids
}

// together divides ids into those that one call asks about.
func (w walker) together(ids []string) (parts [][]string) {
	if w.codec.slotted() {
		slot := func(id string) uint16 { return keysOf(w.prefix, id).slot }
		slices.SortFunc(ids, func(a, b string) int { return cmp.Compare(slot(a), slot(b)) })
		for len(ids) > 0 {
			n := 1
			for n < min(len(ids), askedAtOnce) && slot(ids[n]) == slot(ids[0]) {
				n++
			}
			parts, ids = append(parts, ids[:n]), ids[n:]
		}
		return parts
	}
	return slices.Collect(slices.Chunk(ids, askedAtOnce))
}

// stand asks how ids stand, and leaves out those that are not what is looked for: a key
// outlives its last slot a little, and who is held comes by its holders.
func (w walker) stand(ctx context.Context, ids []string) (all []store.Standing, err error) {
	reply, err := w.exec.run(ctx, usageScript, ids, 0, w.limit)
	switch {
	case len(ids) > 1 && isCrossSlot(err): // it is known now that they lie apart
		for _, some := range w.together(ids) {
			part, err := w.stand(ctx, some)
			if err != nil {
				return nil, err
			}
			all = append(all, part...)
		}
		return all, nil
	case err != nil:
		return nil, err
	}
	for i, id := range ids {
		if u := usageOf(reply, i); (u.Active > 0) == w.held && (w.held || u.Waiting > 0 || u.LimitSet) {
			all = append(all, store.Standing{ID: id, Usage: u})
		}
	}
	return all, nil
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
