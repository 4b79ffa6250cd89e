//go:build unix

package redisstore

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store"
)

const patience = 20 * time.Second

// go-redis logs what here is provoked.
func init() { redis.SetLogger(quiet{}) }

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// soon waits until ready.
func soon(t testing.TB, what string, ready func() bool) {
	t.Helper()
	for began := time.Now(); !ready(); time.Sleep(2 * time.Millisecond) {
		if time.Since(began) > patience {
			t.Fatalf("waited %v for %s", patience, what)
		}
	}
}

func opened(t testing.TB, rdb redis.UniversalClient, prefix string) *Store {
	t.Helper()
	s := New(rdb, prefix)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func command(t testing.TB, srv *redistest.Server, args ...any) any {
	t.Helper()
	reply, err := srv.Do(args...)
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return reply
}

// What a script runs is written in it: the name of every command is a constant, but
// for the two that publish, and nothing is compiled from text.
func TestScriptsRunConstantCommands(t *testing.T) {
	called := regexp.MustCompile(`(?:redis\.p?call|\bcall)\(\s*([^,)]*)`)
	constant := regexp.MustCompile(`^'[A-Z]+'$`)
	for _, sc := range []*script{
		acquireScript, jointScript, plainScript, renewScript, releaseScript, usageScript, listScript, stateScript, clearScript,
		limitScript, peersScript, probeScript, aloneScript, lookScript, graceScript,
	} {
		var code strings.Builder
		for line := range strings.Lines(sc.text) {
			line, _, _ = strings.Cut(line, "--")
			code.WriteString(line + "\n")
		}
		n := 0
		for _, m := range called.FindAllStringSubmatch(code.String(), -1) {
			n++
			if !constant.MatchString(m[1]) && m[1] != "unpack(p" {
				t.Errorf("%s calls %s", sc.name, m[1])
			}
		}
		if n == 0 {
			t.Errorf("%s calls nothing that this test finds", sc.name)
		}
		for _, word := range []string{"loadstring", "load(", "dofile", "setfenv", "EVAL"} {
			if strings.Contains(code.String(), word) {
				t.Errorf("%s has %q", sc.name, word)
			}
		}
	}
}

// exercise does everything that the store can do, and returns what went wrong.
func exercise(ctx context.Context, one, two *Store, id string) (err error) {
	ask := func(s *Store, slot string, set func(*store.Request)) store.Outcome {
		r := &store.Request{ID: id, SlotID: slot, Weight: 1, Limit: 2, TTL: time.Minute, Grace: time.Second, Owner: "host:1 " + id, Budget: 5 * time.Second}
		if set != nil {
			set(r)
		}
		d, e := s.Acquire(ctx, r)
		err = errors.Join(err, e)
		return d.Outcome
	}
	want := func(what string, got, want any) {
		if got != want {
			err = errors.Join(err, fmt.Errorf("%s of %q: %v, want %v", what, id, got, want))
		}
	}
	give := func(s *Store, slot string) bool {
		freed, e := s.Release(ctx, &store.Release{ID: id, SlotID: slot, Grace: time.Second, Budget: 5 * time.Second})
		err = errors.Join(err, e)
		return freed
	}
	bare := func(r *store.Request) { r.Plain, r.Grace = true, 0 }
	line := func(r *store.Request) { r.Queue = 5 }

	// The plain case, several at once too, so that they share a batch.
	var all sync.WaitGroup
	var mu sync.Mutex
	for i := range 8 {
		all.Go(func() {
			slot := fmt.Sprint("bare", i)
			_, e := one.Acquire(ctx, &store.Request{ID: id, SlotID: slot, Weight: 1, Limit: 8, TTL: time.Minute, Plain: true})
			_, e2 := one.Release(ctx, &store.Release{ID: id, SlotID: slot})
			mu.Lock()
			defer mu.Unlock()
			err = errors.Join(err, e, e2)
		})
	}
	all.Wait()
	want("a bare slot", ask(one, "bare", bare), store.Granted)
	want("its release", give(one, "bare"), true)

	// Leases, the line, the push to another process.
	woken := make(chan string, 100)
	stop := two.OnWake(func(w store.Wakeup) {
		select {
		case woken <- w.SlotID:
		default:
		}
	})
	defer stop()
	want("a lease", ask(one, "a", func(r *store.Request) { r.Weight = 2 }), store.Granted)
	want("a second one", ask(one, "b", nil), store.Full)
	w := two.Stamp() + "--------------" // says whom to wake when it is taken away
	want("a waiter", ask(two, w, line), store.Waiting)
	waited, cancel := context.WithTimeout(ctx, pushWithin(ctx))
	defer cancel()
	select {
	case <-woken: // it listens
	case <-waited.Done():
		err = errors.Join(err, errors.New("no subscription"))
	}
	if two.client.cluster {
		// Its shard channel is subscribed to in the background, and then too all are woken.
		select {
		case <-woken:
		case <-waited.Done():
			err = errors.Join(err, errors.New("no subscription to a shard channel"))
		}
	}
	want("its release", give(one, "a"), true)
	pushed := func(what string) {
		for {
			select {
			case slot := <-woken:
				if slot == w {
					return
				}
			case <-waited.Done():
				err = errors.Join(err, fmt.Errorf("no push: %s", what))
				return
			}
		}
	}
	pushed("granted")
	want("the waiter", ask(two, w, line), store.Granted)
	kept := one.Renew(ctx, []store.Renewal{
		{ID: id, SlotID: w, TTL: time.Minute, Weight: 1, Grace: time.Second, Trust: time.Second, Limit: 2},
		{ID: id, SlotID: "nobody", TTL: time.Minute, Weight: 1, Limit: 2},
	})
	err = errors.Join(err, kept[0].Err, kept[1].Err)
	want("a renewal", kept[0].Outcome, store.Renewed)
	want("a renewal of nothing", kept[1].Outcome, store.Lost)
	kept = one.Renew(ctx, []store.Renewal{{ID: id, SlotID: "registered", TTL: time.Minute, Weight: 1, Grace: time.Second, Register: true}})
	err = errors.Join(err, kept[0].Err)
	want("a registration", kept[0].Outcome, store.Restored)

	// Looking in, limits, taking away.
	u, e := one.Usage(ctx, id, 2)
	err = errors.Join(err, e)
	want("usage", u.Active, 2)
	hs, _, e := one.Holders(ctx, id, "", store.MaxPage)
	err = errors.Join(err, e)
	want("holders", len(hs), 2)
	err = errors.Join(err, changed(one.ChangeLimit(ctx, store.LimitChange{ID: id, Limit: 3})))
	want("one more", ask(one, "c", nil), store.Granted)
	err = errors.Join(err, changed(one.ChangeLimit(ctx, store.LimitChange{ID: id, Reset: true})))
	stand, e := one.Waiters(ctx, id, 10)
	err = errors.Join(err, e)
	want("waiters", len(stand), 0)
	_, e = one.State(ctx, id)
	err = errors.Join(err, e)
	found := false
	for st, e := range one.Walk(ctx, 2, 0) {
		err = errors.Join(err, e)
		found = found || st.ID == id
	}
	want("listed", found, true)
	n, e := one.Clear(ctx, store.Clear{ID: id, SlotID: "c", TTL: time.Second})
	err = errors.Join(err, e)
	want("revoked", n, 1)
	n, e = one.Clear(ctx, store.Clear{ID: id, TTL: time.Second})
	err = errors.Join(err, e)
	want("cleared", n, 2)
	pushed("taken away")
	_, e = one.Peers(ctx, time.Second)
	return errors.Join(err, e)
}

// pushWithin is how long a push may take: a third of what is left.
func pushWithin(ctx context.Context) time.Duration {
	ends, _ := ctx.Deadline()
	return time.Until(ends) / 3
}

// Ids, slot ids and owners are data, whatever is in them.
func TestHostileText(t *testing.T) {
	srv := redistest.Start(t)
	command(t, srv, "SET", "canary", "alive")
	one, two := opened(t, srv.Client(), "sem:"), opened(t, srv.Client(), "sem:")
	for _, id := range []string{
		`'); redis.call('FLUSHALL') --`, `"]] .. redis.call("flushall") .. [["`, "1 EVAL x", "a b c", "\r\n*1\r\n$8\r\nFLUSHALL\r\n", "%s%d%n", "\x00", "w 1 1 1 x y", "0 0 0 0",
	} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		if err := exercise(ctx, one, two, id); err != nil {
			t.Errorf("%q: %v", id, err)
		}
		cancel()
		d, err := one.Acquire(t.Context(), &store.Request{ID: "id", SlotID: id, Weight: 2, Limit: 100, TTL: time.Minute, Owner: id})
		if err != nil || d.Outcome != store.Granted {
			t.Errorf("slot id %q: %v, %v", id, d, err)
		}
	}
	hs, _, err := one.Holders(t.Context(), "id", "", store.MaxPage)
	if err != nil || len(hs) != 9 {
		t.Errorf("%d holders, %v, want 9", len(hs), err)
	}
	for _, h := range hs {
		// Lua's string.format ends a text at a NUL.
		if owner, _, _ := strings.Cut(h.SlotID, "\x00"); h.Owner != owner {
			t.Errorf("owner %q of slot id %q", h.Owner, h.SlotID)
		}
	}
	if got := command(t, srv, "GET", "canary"); got != "alive" {
		t.Errorf("the canary is %v", got)
	}
}

// An id that is asked for twice in one call, which looks at eight ids at once and finds
// that nobody holds any of them, is counted all the same.
func TestAnIDTwiceInACallWasTakenForFree(t *testing.T) {
	s := opened(t, redistest.Start(t).Client(), "sem:")
	for _, v := range []verb{plainAcquire, acquire} {
		all := new(batch)
		for i, id := range []string{"twice", "other", "another", "twice"} {
			all.ops = append(all.ops, &op{question: question{
				verb: v, plain: v.plain(), firstAttempt: true, id: fmt.Sprint(id, v), slot: fmt.Sprint("slot", i), owner: "me",
				weight: 1, limit: int64(4 - i), ttl: 60_000, budget: time.Minute,
			}})
		}
		for range 2 { // the second time with the text of the script known
			s.exec.exec(t.Context(), all.ops)
		}
		for i, o := range all.ops {
			if want := i < 3; o.err != nil || (o.decision.Outcome == store.Granted) != want {
				t.Errorf("%s, limit %d: %v %v, want granted: %v", o.id, o.limit, o.decision, o.err, want)
			}
		}
	}
}

// Whoever takes bare slots does not look for meta until there is a marker; from then on a
// lease of any weight, a line and a limit set by hand count.
func TestBareSlotsLearnOfMeta(t *testing.T) {
	srv := redistest.Start(t)
	ctx := t.Context()
	leases := opened(t, srv.Client(), "sem:")
	n := 0
	ask := func(s *Store, id string, r store.Request) (*store.Request, store.Decision) {
		t.Helper()
		n++
		r.ID, r.SlotID, r.TTL, r.Weight, r.Limit, r.FirstAttempt = id, fmt.Sprint("slot", n), time.Minute, max(r.Weight, 1), 3, true
		d, err := s.Acquire(ctx, &r)
		if err != nil {
			t.Fatal(err)
		}
		return &r, d
	}
	marker := func() bool { return command(t, srv, "EXISTS", leases.codec.oneMarker).(int64) == 1 }
	special := map[string]func(id string){
		"a weighted lease": func(id string) {
			if _, d := ask(leases, id, store.Request{Weight: 2}); d.Outcome != store.Granted {
				t.Fatal(d)
			}
		},
		"a weighted lease with grace": func(id string) {
			if _, d := ask(leases, id, store.Request{Weight: 2, Grace: time.Second}); d.Outcome != store.Granted {
				t.Fatal(d)
			}
		},
		"a registered lease": func(id string) {
			got := leases.Renew(ctx, []store.Renewal{{ID: id, SlotID: "back", TTL: time.Minute, Weight: 2, Trust: time.Second, Register: true}})
			if got[0].Err != nil || got[0].Outcome != store.Restored {
				t.Fatal(got)
			}
		},
		"a waiter": func(id string) {
			if _, d := ask(leases, id, store.Request{Weight: 3, Queue: 1}); d.Outcome != store.Waiting {
				t.Fatal(d)
			}
		},
		"a limit set by hand": func(id string) {
			if _, err := leases.ChangeLimit(ctx, store.LimitChange{ID: id, Limit: 1}); err != nil {
				t.Fatal(err)
			}
		},
	}
	for what, makes := range special {
		for _, company := range []int{0, 1, 5} { // other ids in the same call
			command(t, srv, "FLUSHALL")
			s := opened(t, srv.Client(), "sem:")
			leases = opened(t, srv.Client(), "sem:")
			first, d := ask(s, "id", store.Request{Plain: true})
			if d.Outcome != store.Granted || marker() {
				t.Fatalf("%s: before it %v, marker %v", what, d, marker())
			}
			makes("id")
			if !marker() {
				t.Fatalf("%s: no marker", what)
			}
			for _, again := range []string{"told", "known"} {
				all := new(batch)
				for i := range company + 1 {
					n++
					all.ops = append(all.ops, &op{question: question{
						verb: plainAcquire, plain: true, firstAttempt: true, id: fmt.Sprint("id", i)[:2] + strings.Repeat("x", i), slot: fmt.Sprint("slot", n),
						weight: 1, limit: 3, ttl: 60_000, budget: time.Minute,
					}})
				}
				s.exec.exec(ctx, all.ops)
				for i, o := range all.ops {
					if granted := o.decision.Outcome == store.Granted; o.err != nil || granted != (i > 0) {
						t.Errorf("%s, %s, with %d others: %q: %v %v", what, again, company, o.id, o.decision, o.err)
					}
				}
			}
			// What was taken before can be given back.
			if freed, err := s.Release(ctx, &store.Release{ID: "id", SlotID: first.SlotID, Plain: true}); !freed || err != nil {
				t.Errorf("%s: the release: %v %v", what, freed, err)
			}
		}
	}
}

// An end is set for a key that had none, also if one slot id is asked for twice at once; and a
// lapsed slot that is asked for again does not bring it forward.
func TestAKeyLivesAsLongAsItsSlots(t *testing.T) {
	srv := redistest.Start(t)
	s := opened(t, srv.Client(), "sem:")
	fly := func(ttl int64, slots ...string) {
		t.Helper()
		all := new(batch)
		for _, slot := range slots {
			all.ops = append(all.ops, &op{question: question{
				verb: plainAcquire, plain: true, id: "id", slot: slot, weight: 1, limit: 5, ttl: ttl, budget: time.Minute,
			}})
		}
		s.exec.exec(t.Context(), all.ops)
		for _, o := range all.ops {
			if o.err != nil {
				t.Fatal(o.err)
			}
		}
	}
	for _, slots := range [][]string{{"a"}, {"a", "a"}, {"a", "b", "a"}} {
		command(t, srv, "FLUSHALL")
		fly(60_000, slots...)
		if left := command(t, srv, "PTTL", "sem:id").(int64); left < 50_000 || left > 60_000 {
			t.Errorf("after %v the key lives %d ms", slots, left)
		}
	}
	for _, slots := range [][]string{{"lapsed"}, {"lapsed", "new"}} {
		command(t, srv, "FLUSHALL")
		now := time.Now().UnixMilli()
		command(t, srv, "ZADD", "sem:id", now+3_600_000, "long", now-10, "lapsed")
		command(t, srv, "PEXPIREAT", "sem:id", now+3_600_000)
		s.codec.swept.Store(time.Now().UnixNano())
		fly(60_000, slots...)
		if left := command(t, srv, "PTTL", "sem:id").(int64); left < 3_500_000 {
			t.Errorf("after %v the key lives %d ms, its longest slot an hour", slots, left)
		}
	}
}

// With Replicas, every call of a batch goes to its node by itself, also one that only gives
// back.
func TestABareReleaseWithReplicasPanicked(t *testing.T) {
	s := New(redistest.StartCluster(t, 3, 0).Client(), "sem:", Replicas(1, 50*time.Millisecond))
	t.Cleanup(func() { _ = s.Close() })
	if _, err := s.Acquire(t.Context(), &store.Request{ID: "id", SlotID: "slot", Weight: 1, Limit: 1, TTL: time.Minute, Plain: true}); err != nil {
		t.Fatal(err)
	}
	if freed, err := s.Release(t.Context(), &store.Release{ID: "id", SlotID: "slot", Plain: true}); !freed || err != nil {
		t.Error(freed, err)
	}
}

// A key of another type fails its own id, in a batch with others too.
func TestWrongTypeFailsAlone(t *testing.T) {
	srv := redistest.Start(t)
	command(t, srv, "SET", "sem:bad", "a string")
	command(t, srv, "SET", "gotsem:{sem:bad2}:m", "a string")
	for _, client := range []redis.UniversalClient{srv.Client(), srv.Client(func(o *redis.Options) { o.ContextTimeoutEnabled = true })} {
		s := opened(t, client, "sem:")
		ctx := t.Context()
		const n = 200
		for round, bare := range []bool{true, true, false} {
			other := "bad2"
			if round == 0 { // where there is no marker, nobody looks for meta
				command(t, srv, "DEL", s.codec.oneMarker)
				other = "bad"
			} else {
				command(t, srv, "HSET", s.codec.oneMarker, "m", 1<<53-1)
				s.codec.special.Store(0)
			}
			verbs := []func(id, slot string) error{
				func(id, slot string) error {
					d, err := s.Acquire(ctx, &store.Request{ID: id, SlotID: slot, Weight: 1, Limit: n, TTL: time.Minute, Plain: bare})
					if err == nil && d.Outcome != store.Granted {
						err = fmt.Errorf("%v", d)
					}
					return err
				},
				func(id, slot string) error {
					return s.Renew(ctx, []store.Renewal{{ID: id, SlotID: slot, TTL: time.Minute, Weight: 1, Trust: time.Second}})[0].Err
				},
				func(id, slot string) error {
					// Whether there was something to give back is not known where a batch was
					// made a second time for those it did not fail on.
					_, err := s.Release(ctx, &store.Release{ID: id, SlotID: slot, Plain: bare})
					return err
				},
			}
			for v, do := range verbs {
				if round == 0 && v == 1 {
					continue // there is nothing to renew of a bare slot, but looking for it makes a marker
				}
				var all sync.WaitGroup
				for i := range n {
					all.Go(func() {
						id := fmt.Sprint("good", i%5)
						bad := i%10 == 3
						if bad {
							id = "bad"
						} else if i%10 == 7 {
							id, bad = other, true
						}
						err := do(id, fmt.Sprintf("slot-%d-%d", round, i))
						if bad && !errors.Is(err, store.ErrConfig) {
							t.Errorf("verb %d on %s: %v, want ErrConfig", v, id, err)
						}
						if !bad && err != nil {
							t.Errorf("verb %d on %s: %v", v, id, err)
						}
					})
				}
				all.Wait()
			}
			for i := range 5 {
				if u, err := s.Usage(ctx, fmt.Sprint("good", i), n); err != nil || u.Active != 0 {
					t.Errorf("good%d: %+v, %v, want nothing held", i, u, err)
				}
			}
		}
	}
}

// An ACL user with the commands of the list, and no others, can do everything; and of
// the list nothing is there for show.
func TestACL(t *testing.T) {
	run := func(t *testing.T, servers []*redistest.Server, list []string, spare []string, connect func(user string) redis.UniversalClient) {
		user := func(name string, commands []string) {
			args := []any{"ACL", "SETUSER", name, "reset", "on", ">pw", "~sem:*", "~gotsem:*", "&gotsem:*"}
			for _, c := range commands {
				args = append(args, "+"+c)
			}
			for _, srv := range servers {
				command(t, srv, args...)
			}
		}
		try := func(name, id string, within time.Duration) error {
			ctx, cancel := context.WithTimeout(context.Background(), within)
			defer cancel()
			for _, srv := range servers {
				command(t, srv, "SCRIPT", "FLUSH") // EVAL is needed for a script that is not known
			}
			return exercise(ctx, opened(t, connect(name), "sem:"), opened(t, connect(name), "sem:"), id)
		}
		list = slices.DeleteFunc(slices.Clone(list), func(c string) bool { // such as client|setinfo, before 7.2
			_, err := servers[0].Do("ACL", "SETUSER", "probe", "+"+c)
			return err != nil && strings.Contains(err.Error(), "Unknown command")
		})
		user("listed", list)
		if err := try("listed", "x", patience); err != nil {
			t.Fatalf("with all of the list: %v", err)
		}
		for _, without := range list {
			name := "no-" + strings.ReplaceAll(without, "|", "-")
			user(name, slices.DeleteFunc(slices.Clone(list), func(c string) bool { return c == without }))
			unneeded := slices.Contains(spare, without)
			within := 1500 * time.Millisecond // it fails at once, as a rule
			if unneeded {
				within = patience
			}
			err := try(name, name, within)
			if unneeded && err != nil {
				t.Errorf("without %s, which is said to be of use but not needed: %v", without, err)
			} else if !unneeded && err == nil {
				t.Errorf("%s is in the list, and all goes well without it", without)
			}
		}
	}
	t.Run("single", func(t *testing.T) {
		t.Parallel()
		srv := redistest.Start(t)
		run(t, []*redistest.Server{srv}, Commands, spareCommands, func(user string) redis.UniversalClient {
			return srv.Client(func(o *redis.Options) { o.Username, o.Password = user, "pw" })
		})
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		cl := redistest.StartCluster(t, 3, 0)
		list := slices.Concat(Commands, ClusterCommands)
		run(t, cl.Nodes(), list, slices.Concat(spareCommands, spareClusterCommands), func(user string) redis.UniversalClient {
			return cl.Client(func(o *redis.ClusterOptions) { o.Username, o.Password = user, "pw" })
		})
	})
}

// What the list has although all goes on without it: what is asked for a better
// answer, or by go-redis on its own account.
var (
	spareCommands        = []string{"info", "ping", "hello", "client|setinfo", "unsubscribe"}
	spareClusterCommands = []string{"cluster|shards", "command", "readonly", "sunsubscribe"}
)

// Without the right to publish a release is done all the same.
func TestReleaseWithoutPublish(t *testing.T) {
	srv := redistest.Start(t)
	command(t, srv, "ACL", "SETUSER", "mute", "on", ">pw", "~*", "&*", "+@all", "-publish", "-spublish")
	one := opened(t, srv.Client(func(o *redis.Options) { o.Username, o.Password = "mute", "pw" }), "sem:")
	two := opened(t, srv.Client(), "sem:")
	ctx := t.Context()
	held := &store.Request{ID: "id", SlotID: "held", Weight: 1, Limit: 1, TTL: time.Minute}
	waits := &store.Request{ID: "id", SlotID: "waits", Weight: 1, Limit: 1, TTL: time.Minute, Queue: 1}
	if d, err := one.Acquire(ctx, held); err != nil || d.Outcome != store.Granted {
		t.Fatal(d, err)
	}
	if d, err := two.Acquire(ctx, waits); err != nil || d.Outcome != store.Waiting {
		t.Fatal(d, err)
	}
	if freed, err := one.Release(ctx, &store.Release{ID: "id", SlotID: "held"}); err != nil || !freed {
		t.Fatal(freed, err)
	}
	if d, err := two.Acquire(ctx, waits); err != nil || d.Outcome != store.Granted {
		t.Fatal(d, err)
	}
}

// Tombstones are not looked for at each clear, and do not gather either.
func TestTombstonesAreSwept(t *testing.T) {
	srv := redistest.Start(t)
	rdb := srv.Client()
	s := opened(t, rdb, "sem:")
	take := func(slot string) {
		t.Helper()
		d, err := s.Acquire(t.Context(), &store.Request{ID: "id", SlotID: slot, Weight: 1, Limit: 9, TTL: time.Minute, FirstAttempt: true})
		if err != nil || d.Outcome != store.Granted {
			t.Fatal(d, err)
		}
	}
	take("goes")
	clear := func(slot string) {
		t.Helper()
		if n, err := s.Clear(t.Context(), store.Clear{ID: "id", SlotID: slot, TTL: time.Minute}); err != nil || n != 1 {
			t.Fatal(n, err)
		}
	}
	clear("goes")
	meta := keysOf("sem:", "id").m
	for i := range 300 {
		rdb.HSet(t.Context(), meta, fmt.Sprint("went", i), "d 1")
	}
	take("goes, too")
	clear("goes, too")
	if n := rdb.HLen(t.Context(), meta).Val(); n != 3 { // with that of ''
		t.Errorf("%d fields, want two tombstones", n)
	}
}

// changed is the error of a change whose outcome does not matter.
func changed(_ store.Override, err error) error { return err }
