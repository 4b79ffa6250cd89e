//go:build unix

package integration

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

// outageReplies are answers of servers and proxies that cannot serve for now. TRYAGAIN, about one cluster slot that is being moved, is
// not of them: the server is well.
var outageReplies = []string{
	// Redis, Valkey, KeyDB
	"LOADING Redis is loading the dataset in memory",
	"LOADING Valkey is loading the dataset in memory",
	"LOADING KeyDB is loading the dataset in memory",
	"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
	"UNKILLABLE Sorry the script already executed write commands against the dataset. You can either wait the script termination or kill the server in a hard way using the SHUTDOWN NOSAVE command.",
	"READONLY You can't write against a read only replica.",
	"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
	"CLUSTERDOWN The cluster is down",
	"CLUSTERDOWN Hash slot not served",
	"OOM command not allowed when used memory > 'maxmemory'.",
	"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk. Commands that may modify the data set are disabled.",
	"MISCONF Errors writing to the AOF file: No space left on device",
	"NOREPLICAS Not enough good replicas to write.",
	"UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
	"EXECABORT Transaction discarded because of previous errors.",
	"ERR max number of clients reached",
	"ERR max number of clients + cluster connections reached",
	// Envoy
	"no upstream host",
	"upstream failure",
	"upstream protocol error",
	// twemproxy, predixy
	"ERR Connection refused",
	"ERR Connection timed out",
	"ERR Connection reset by peer",
	"ERR Host is down",
	"ERR Proxy error",
	"ERR server connection close",
	// hosted
	"ERR max daily request limit exceeded. Limit: 10000, Usage: 10001.",
	"ERR max requests limit exceeded. Limit: 500000, Usage: 500000.",
	"ERR max concurrent connections exceeded",
	"THROTTLED command rate exceeded",
	"ERR internal server error",
	"ERR timeout",
}

// configReplies are answers that asking again will not mend.
var configReplies = []string{
	"WRONGTYPE Operation against a key holding the wrong kind of value",
	"NOAUTH Authentication required.",
	"WRONGPASS invalid username-password pair or user is disabled.",
	"NOPERM this user has no permissions to run the 'evalsha' command",
	"NOPERM User app has no permissions to run the 'evalsha' command",
	"NOPERM No permissions to access a key",
	"CROSSSLOT Keys in request don't hash to the same slot",
	"ERR unknown command 'EVALSHA', with args beginning with: 'hush' ",
	"ERR wrong number of arguments for 'evalsha' command",
	"ERR Error running script (call to f_6b1bf486c81ceb7edf3c093f4c48582e38c0e791): @user_script:12: user_script:12: attempt to index a nil value",
	"ERR Error compiling script (new function): user_script:1: '=' expected near 'local'",
	"ERR user_script:3: Script attempted to access nonexistent global variable 'x' script: 3c093f, on @user_script:3.",
	"NOPROTO unsupported protocol version",
}

// scripts accepts what runs a script.
func scripts(request []byte) bool {
	return bytes.Contains(bytes.ToLower(request[:min(len(request), 64)]), []byte("\neval"))
}

// Whatever a server or a proxy answers instead of serving is an outage, but for what asking again will not mend: on every way on
// which Redis is asked.
func TestErrorRepliesAreOutagesButForMisconfiguration(t *testing.T) {
	srv := redistest.Start(t)
	var all sync.WaitGroup // all at once: each waits for a second, and most of it for nothing
	defer all.Wait()
	for _, kind := range []struct {
		name    string
		replies []string
		outage  bool
	}{{"outage", outageReplies, true}, {"misconfiguration", configReplies, false}} {
		for _, text := range kind.replies {
			all.Go(func() {
				t.Run(kind.name+"/"+text, func(t *testing.T) { answers(t, srv, text, kind.outage) })
			})
		}
	}
}

func answers(t *testing.T, srv *redistest.Server, text string, outage bool) {
	ctx := t.Context()
	relay := redistest.NewRelay(t, srv.Addr())
	rdb := redis.NewClient(&redis.Options{Addr: relay.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	st := redisstore.New(rdb, t.Name()+":")
	t.Cleanup(func() { _ = st.Close() })
	open := func(ttl time.Duration) *gotsem.Semaphore {
		sem, err := gotsem.New(gotsem.Options{Store: st, Limit: 2, TTL: ttl, StoreTimeout: ttl / 2, Outage: gotsem.Closed})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = sem.Close() })
		return sem
	}
	// Each way has a breaker of its own.
	sem, trying, renewing := open(30*time.Second), open(30*time.Second), open(3*time.Second)
	lease, err := sem.Acquire(ctx, "held")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := renewing.Acquire(ctx, "renewed"); err != nil {
		t.Fatal(err)
	}
	waited := make(chan error, 1)
	go func() {
		_, err := sem.Acquire(ctx, "held", gotsem.Weight(2))
		waited <- err
	}()
	soon(t, patience, "a waiter", func() bool { return sem.Stats().Queued == 1 })
	is := func(what string, err error) {
		t.Helper()
		if errors.Is(err, gotsem.ErrUnavailable) != outage || errors.Is(err, store.ErrConfig) == outage {
			t.Errorf("%s: %v", what, err)
		}
		said, _, _ := strings.Cut(text, ", with args")
		if err == nil || !strings.Contains(err.Error(), said) {
			t.Errorf("%s: %v: it does not say what Redis said", what, err)
		}
		if err != nil && strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: %v: it tells secrets", what, err)
		}
	}

	relay.Answer(text, scripts)
	before := renewing.Stats()
	_, err = trying.Try(ctx, "other")
	is("acquire", err)
	select {
	case err := <-waited:
		is("in line", err)
	case <-time.After(patience):
		t.Error("who waits in line hears nothing")
	}
	is("release", lease.Release(ctx))
	soon(t, patience, "a renewal", func() bool { return renewing.Stats().Renewals > before.Renewals })
	if failed := renewing.Stats().StoreErrors > before.StoreErrors; failed != outage {
		t.Errorf("renewal: counted as a failure of the store: %v", failed)
	}
	for range 10 {
		_, err := trying.Try(ctx, "other")
		if errors.Is(err, gotsem.ErrUnavailable) != outage {
			t.Errorf("acquire again: %v", err)
		}
	}
	if trying.Stats().Outages > 0 != outage {
		t.Errorf("given up %d times", trying.Stats().Outages)
	}
	if outage { // it ends when the answers are right again
		relay.Answer("", nil)
		soon(t, patience, "a lease", func() bool { _, err := trying.Try(ctx, "other"); return err == nil })
	}
}
