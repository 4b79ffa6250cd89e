package redisstore_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

// check returns what is found, by what it is about.
func check(t *testing.T, rdb redis.UniversalClient, ttl time.Duration) map[string]store.Finding {
	t.Helper()
	s := redisstore.New(rdb, "sem:")
	t.Cleanup(func() { _ = s.Close() })
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	list, err := s.Check(ctx, ttl)
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string]store.Finding)
	for _, f := range list {
		t.Logf("%v %s: %s", f.OK, f.What, f.Text)
		if old, twice := found[f.What]; !twice || old.OK {
			found[f.What] = f
		}
	}
	return found
}

func wantBad(t *testing.T, found map[string]store.Finding, what, text string) {
	t.Helper()
	if f := found[what]; f.OK || !strings.Contains(f.Text, text) {
		t.Errorf("%s: %+v, want a complaint that contains %q", what, f, text)
	}
}

func TestCheckFindsNothingWrong(t *testing.T) {
	srv := redistest.Start(t)
	for what, f := range check(t, srv.Client(), 30*time.Second) {
		if !f.OK {
			t.Errorf("%s: %s", what, f.Text)
		}
	}
}

func TestCheckNamesWhatIsWrong(t *testing.T) {
	srv := redistest.Start(t, redistest.WithArgs("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"))
	for _, args := range [][]any{
		{"ACL", "SETUSER", "poor", "on", ">pw", "~sem:*", "~gotsem:*", "&gotsem:*", "+@all", "-zadd", "-publish"},
	} {
		if _, err := srv.Do(args...); err != nil {
			t.Fatal(err)
		}
	}
	found := check(t, srv.Client(func(o *redis.Options) { o.Username, o.Password = "poor", "pw" }), 30*time.Second)
	wantBad(t, found, "eviction", "allkeys-lru")
	wantBad(t, found, "rights", "+zadd +publish")
	wantBad(t, found, "push", "publishing failed")
}

func TestCheckOfASentinelSetUp(t *testing.T) {
	sn := redistest.StartSentinel(t)
	wantBad(t, check(t, sn.Client(), 30*time.Second), "replication", "min-replicas-to-write is 0")
	for _, srv := range sn.Servers() {
		if srv != sn.Primary() {
			wantBad(t, check(t, srv.Client(), 30*time.Second), "role", "slave")
			return
		}
	}
}

func TestCheckOfACluster(t *testing.T) {
	cl := redistest.StartCluster(t, 3, 1)
	found := check(t, cl.Client(), 400*time.Millisecond)
	wantBad(t, found, "ttl", "cluster-node-timeout")
	if !found["cluster"].OK || !found["push"].OK || !found["rights"].OK {
		t.Errorf("%+v", found)
	}
}

func TestGrantsThatReplicasMustAcknowledge(t *testing.T) {
	sn := redistest.StartSentinel(t)
	s := redisstore.New(sn.Client(), "sem:", redisstore.Replicas(2, time.Second))
	t.Cleanup(func() { _ = s.Close() })
	ctx := context.Background()
	ask := func(slot string) (store.Decision, error) {
		return s.Acquire(ctx, &store.Request{ID: "x", SlotID: slot, Weight: 1, Limit: 1, TTL: time.Minute})
	}
	if d, err := ask("a"); err != nil || d.Outcome != store.Granted {
		t.Fatalf("%+v, %v", d, err)
	}
	if d, err := ask("b"); err != nil || d.Outcome != store.Full {
		t.Fatalf("a refusal needs nobody's word: %+v, %v", d, err)
	}
	if _, err := s.Release(ctx, &store.Release{ID: "x", SlotID: "a"}); err != nil {
		t.Fatal(err)
	}
	for _, srv := range sn.Servers() {
		if srv != sn.Primary() {
			srv.Stop()
			t.Cleanup(srv.Cont)
			break
		}
	}
	if d, err := ask("c"); !errors.Is(err, store.ErrNotReplicated) {
		t.Fatalf("%+v, %v: one of two replicas is stopped", d, err)
	}
}

// wireUser makes the ACL user that docs/wire.md asks for, but for what is taken off,
// and returns a client of it.
func wireUser(t *testing.T, srv *redistest.Server, off ...string) *redis.Client {
	t.Helper()
	text, err := os.ReadFile("../../docs/wire.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), "An ACL user needs the keys")
	rule, _, ends := strings.Cut(rest, "and from Redis 7.2")
	if !ok || !ends {
		t.Fatal("docs/wire.md has no rule for an ACL user")
	}
	args := []any{"ACL", "SETUSER", "app", "reset", "on", ">pw", "~sem:*", "~gotsem:*", "&gotsem:*"}
	for _, word := range strings.Fields(rule) {
		if strings.HasPrefix(word, "+") {
			args = append(args, word)
		}
	}
	for _, command := range off {
		args = append(args, "-"+command)
	}
	if _, err := srv.Do(args...); err != nil {
		t.Fatal(err)
	}
	return srv.Client(func(o *redis.Options) { o.Username, o.Password = "app", "pw" })
}

// A user that may not look up rights is told what it lacks, and nothing but that.
func TestCheckTriesWhatCannotBeLookedUp(t *testing.T) {
	srv := redistest.Start(t)
	for what, f := range check(t, wireUser(t, srv), 30*time.Second) {
		if !f.OK {
			t.Errorf("the user of docs/wire.md: %s: %s", what, f.Text)
		}
	}
	for _, command := range redisstore.Commands {
		switch command {
		case "evalsha", "eval", "hello", "client|setinfo", "ping", "unsubscribe", "time":
			continue // without these there is no connection, or no answer at all; EVALSHA's is made up for by EVAL
		}
		t.Run(command, func(t *testing.T) {
			bad := ""
			for what, f := range check(t, wireUser(t, srv, command), 30*time.Second) {
				if !f.OK {
					bad += what + ": " + f.Text + "\n"
				}
			}
			if !strings.Contains(bad, command) {
				t.Errorf("without it this is all that is found: %s", bad)
			}
		})
	}
}

// Each call is really made, and nothing is left of that.
func TestCheckMakesEachCallAndLeavesNothing(t *testing.T) {
	srv := redistest.Start(t)
	found := check(t, srv.Client(), 30*time.Second)
	if f := found["call"]; !f.OK || !strings.Contains(f.Text, "acquire, wait, renew, release") {
		t.Errorf("%+v", f)
	}
	if n, err := srv.Client().DBSize(t.Context()).Result(); err != nil || n != 0 {
		t.Errorf("%d keys are left, %v: %v", n, err, srv.Client().Keys(t.Context(), "*").Val())
	}
	// A user whose keys are others: no command is missing, and no call works.
	if _, err := srv.Do("ACL", "SETUSER", "other", "on", ">pw", "~sem:*", "&gotsem:*", "+@all"); err != nil {
		t.Fatal(err)
	}
	wantBad(t, check(t, srv.Client(func(o *redis.Options) { o.Username, o.Password = "other", "pw" }), 30*time.Second), "call", "acquire: ")
}

func TestCheckOfEachShardLeavesNothing(t *testing.T) {
	cl := redistest.StartCluster(t, 3, 0)
	found := check(t, cl.Client(), 30*time.Second)
	if f := found["call"]; !f.OK {
		t.Errorf("%+v", f)
	}
	err := cl.Client().ForEachMaster(t.Context(), func(ctx context.Context, node *redis.Client) error {
		if n, err := node.DBSize(ctx).Result(); err != nil || n != 0 {
			t.Errorf("%s: %d keys are left, %v", node.Options().Addr, n, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
