package redisstore_test

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

// connected is how many clients the servers have, whoever asks included.
func connected(t *testing.T, servers []*redistest.Server) (n int) {
	t.Helper()
	for _, srv := range servers {
		list, err := srv.Do("CLIENT", "LIST")
		if err != nil {
			t.Fatal(err)
		}
		n += strings.Count(list.(string), "\n")
	}
	return n
}

// left waits until there are no more than that.
func left(t *testing.T, servers []*redistest.Server, want int) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); connected(t, servers) > want; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d connections are left, %d were there before", connected(t, servers), want)
		}
	}
}

func TestConnectionsThatNobodyUsesEnd(t *testing.T) {
	identity := redistest.NewIdentity(t)
	for _, name := range []string{"plain", "TLS", "cluster"} {
		t.Run(name, func(t *testing.T) {
			var rdb redis.UniversalClient
			var servers []*redistest.Server
			switch name {
			case "cluster":
				c := redistest.StartCluster(t, 3, 0)
				servers, rdb = c.Nodes(), redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs()})
			default:
				srv := redistest.Start(t)
				servers = []*redistest.Server{srv}
				o := &redis.Options{Addr: srv.Addr()}
				if name == "TLS" {
					o.Addr, o.TLSConfig = redistest.NewTLSRelay(t, srv.Addr(), identity).Addr(), identity.Client()
				}
				rdb = redis.NewClient(o)
			}
			st := redisstore.New(rdb, "idle:", redisstore.IdleAfter(100*time.Millisecond))
			defer func() { _ = st.Close() }()
			sem, err := gotsem.New(gotsem.Options{Store: st, Limit: 1, Outage: gotsem.Closed, StoreTimeout: 5 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			_ = rdb.Close() // the application is done with its own
			before := connected(t, servers)
			for range 3 { // what was closed is not taken for a connection that works
				lease, err := sem.Try(t.Context(), "id")
				if err != nil {
					t.Fatal(err)
				}
				if err := lease.Release(t.Context()); err != nil {
					t.Fatal(err)
				}
				if now := connected(t, servers); now <= before {
					t.Fatalf("%d connections, %d before: this test watches the wrong ones", now, before)
				}
				left(t, servers, before)
			}
		})
	}
}

// A NewGotsem is seldom closed; if it is, nothing stays.
func TestCloseEndsTheConnectionsOfItsOwn(t *testing.T) {
	srv := redistest.Start(t)
	servers := []*redistest.Server{srv}
	before := connected(t, servers)
	rdb := redis.NewClient(&redis.Options{Addr: srv.Addr()})
	sem := gotsem.NewGotsem(rdb, "idle:", time.Minute, 1, nil, nil)
	got := sem.TryAcquire(t.Context(), "id")
	if !got.Acquired || got.FailedOpen() {
		t.Fatalf("%+v", got)
	}
	sem.Release(t.Context(), "id", got.SlotID)
	_ = rdb.Close()
	if connected(t, servers) <= before {
		t.Fatal("no connection to watch")
	}
	if err := sem.Close(); err != nil {
		t.Fatal(err)
	}
	left(t, servers, before)
}
