//go:build unix

package redistest

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// One way to a server, without TLS and with: at each step it hangs where it says, also for who has been there before, and goes on
// when it is told to.
func TestRelayHangsAtEachStep(t *testing.T) {
	t.Parallel()
	srv := Start(t)
	identity := NewIdentity(t)
	for _, secure := range []bool{false, true} {
		for step := AtConnect; step <= MidReply; step++ {
			name := step.String()
			if secure {
				name += " over TLS"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				relay := NewRelay(t, srv.Addr())
				options := func(o *redis.Options) {
					o.Addr, o.MaxRetries, o.DialerRetries = relay.Addr(), -1, 1
					o.DialTimeout, o.ReadTimeout, o.ContextTimeoutEnabled = 10*time.Second, 10*time.Second, true
				}
				if secure {
					relay = NewTLSRelay(t, srv.Addr(), identity)
					plain := options
					options = func(o *redis.Options) { plain(o); o.TLSConfig = identity.Client() }
				}
				rdb := srv.Client(options)
				must(t, rdb.Set(t.Context(), name, 0, 0).Err())
				relay.HangAt(step)
				for range 2 { // over the connection that is up, and over another
					ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
					err := rdb.Incr(ctx, name).Err()
					cancel()
					var timeout net.Error
					if !errors.Is(err, context.DeadlineExceeded) && !(errors.As(err, &timeout) && timeout.Timeout()) {
						t.Errorf("%v, want nothing until the time is over", err)
					}
				}
				done, err := srv.Do("GET", name)
				must(t, err)
				if want := map[bool]string{false: "0", true: "2"}[step >= AtReply]; done != want {
					t.Errorf("done %s times, want %s", done, want)
				}
				relay.HangAt(Nowhere)
				must(t, await("an answer", 5*time.Second, func() error { return rdb.Ping(t.Context()).Err() }))
			})
		}
	}
}

func TestRelayAnswersInTheServersStead(t *testing.T) {
	t.Parallel()
	srv := Start(t)
	relay := NewRelay(t, srv.Addr())
	rdb := srv.Client(func(o *redis.Options) { o.Addr = relay.Addr() })
	must(t, rdb.Ping(t.Context()).Err())
	relay.Answer("ERR upstream failure", func(request []byte) bool { return !introduces(request) })
	pipe := rdb.Pipeline()
	first, second := pipe.Set(t.Context(), "k", "v", 0), pipe.Get(t.Context(), "k")
	_, _ = pipe.Exec(t.Context())
	for _, err := range []error{first.Err(), second.Err()} {
		if err == nil || err.Error() != "ERR upstream failure" {
			t.Errorf("%v", err)
		}
	}
	relay.Answer("", nil)
	if err := rdb.Get(t.Context(), "k").Err(); !errors.Is(err, redis.Nil) {
		t.Errorf("%v: the server has heard of it", err)
	}
}

// Clients that know nothing but the relays reach every node through them.
func TestClusterBehindRelays(t *testing.T) {
	t.Parallel()
	c := StartCluster(t, 2, 0)
	identity := NewIdentity(t)
	relays := c.Relays(identity)
	rdb := c.Client(func(o *redis.ClusterOptions) { o.Addrs, o.TLSConfig = []string{relays[0].Addr()}, identity.Client() })
	for _, key := range []string{"a", "b", "c", "d", "e", "f"} {
		must(t, rdb.Set(t.Context(), key, "v", 0).Err())
	}
	for i, relay := range relays {
		if relay.Stats().Accepted == 0 {
			t.Errorf("nothing came to node %d through its relay", i)
		}
	}
}

func TestDirectoryNamesThePrimary(t *testing.T) {
	t.Parallel()
	srv := Start(t)
	directory := NewDirectory(t, srv.Addr())
	rdb := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: MasterName, SentinelAddrs: []string{directory.Addr()}})
	defer rdb.Close()
	must(t, rdb.Set(t.Context(), "k", "v", 0).Err())
	if got, err := srv.Do("GET", "k"); got != "v" {
		t.Errorf("%v, %v", got, err)
	}
}

func TestNamesHang(t *testing.T) {
	t.Parallel()
	names := NewNames(t)
	addrs, err := names.Resolver().LookupHost(t.Context(), "redis.test")
	if err != nil || len(addrs) != 1 || addrs[0] != "127.0.0.1" {
		t.Errorf("%v, %v", addrs, err)
	}
	if _, err := names.Resolver().LookupHost(t.Context(), "other.example"); err == nil {
		t.Error("a name that it does not know was found")
	}
	names.Hang("redis.test", true)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err = names.Resolver().LookupHost(ctx, "redis.test")
	if <-ctx.Done(); err == nil { // the resolver's own timer may be a moment quicker
		t.Error("a server that hangs answered")
	}
}
