package redisstore_test

import (
	"context"
	"fmt"
	"sort"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
	"github.com/ashfaqjani916/gotsem/store/storetest"
)

// place is a Redis, and the prefix that one subtest has there for itself.
type place struct {
	*redisstore.Store
	prefix string
}

// conformance runs the suite on a Redis that connect reaches.
func conformance(t *testing.T, connect func(t *testing.T) redis.UniversalClient, opts ...redisstore.Option) {
	admin, noIDs, apart := connect(t), "", false
	if f, ok := admin.(foreign); ok { // what looks in must reach every node
		admin, apart = f.UniversalClient, true
		if _, cluster := admin.(*redis.ClusterClient); cluster {
			noIDs = "the nodes of the cluster are behind the wrapper"
		}
	}
	var n atomic.Int64
	open := func(t *testing.T, prefix string) store.Store {
		s := redisstore.New(connect(t), prefix, opts...)
		t.Cleanup(func() { _ = s.Close() })
		return place{s, prefix}
	}
	storetest.Run(t, storetest.Harness{
		New: func(t *testing.T) store.Store {
			return open(t, fmt.Sprintf("t%d:", n.Add(1)))
		},
		Peer:     func(t *testing.T, st store.Store) store.Store { return open(t, st.(place).prefix) },
		Unit:     300 * time.Millisecond,
		NoIDs:    noIDs,
		Apart:    apart,
		Parallel: true,
		Snapshot: func(t *testing.T, st store.Store) map[string]string {
			return snapshot(t, admin, st.(place).prefix)
		},
		Forget: func(t *testing.T, st store.Store) {
			ctx := context.Background()
			for key := range snapshot(t, admin, st.(place).prefix) {
				admin.Del(ctx, key)
			}
			for key := range markers(t, admin, st.(place).prefix) {
				admin.Del(ctx, key)
			}
		},
	})
}

// snapshot returns what lies in Redis for the ids of a prefix, without the marker.
func snapshot(t *testing.T, rdb redis.UniversalClient, prefix string) map[string]string {
	t.Helper()
	return dump(t, rdb, func(key string) bool {
		return strings.HasPrefix(key, prefix) || strings.HasPrefix(key, "gotsem:{") && strings.Contains(key, prefix) && !strings.Contains(key, "}:e:")
	})
}

func markers(t *testing.T, rdb redis.UniversalClient, prefix string) map[string]string {
	t.Helper()
	return dump(t, rdb, func(key string) bool {
		return key == "gotsem:e:"+prefix || strings.HasPrefix(key, "gotsem:{") && strings.HasSuffix(key, "}:e:"+prefix)
	})
}

func dump(t *testing.T, rdb redis.UniversalClient, want func(key string) bool) map[string]string {
	t.Helper()
	ctx := context.Background()
	out := make(map[string]string)
	scan := func(ctx context.Context, node redis.Cmdable) error {
		it := node.Scan(ctx, 0, "*", 1000).Iterator()
		for it.Next(ctx) {
			key := it.Val()
			if !want(key) {
				continue
			}
			switch kind := node.Type(ctx, key).Val(); kind {
			case "zset":
				var members []string
				for _, z := range node.ZRangeWithScores(ctx, key, 0, -1).Val() {
					members = append(members, fmt.Sprintf("%v=%.0f", z.Member, z.Score))
				}
				out[key] = strings.Join(members, " ")
			case "hash":
				var fields []string
				for f, v := range node.HGetAll(ctx, key).Val() {
					fields = append(fields, f+"="+v)
				}
				sort.Strings(fields)
				out[key] = strings.Join(fields, " ")
			case "none": // it has just expired
			default:
				out[key] = kind
			}
		}
		return it.Err()
	}
	var err error
	if c, ok := rdb.(*redis.ClusterClient); ok {
		err = c.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
			dumpMu <- struct{}{}
			defer func() { <-dumpMu }()
			return scan(ctx, node)
		})
	} else {
		err = scan(ctx, rdb)
	}
	if err != nil {
		t.Fatalf("reading all keys: %v", err)
	}
	return out
}

var dumpMu = make(chan struct{}, 1)

func TestConformanceSingle(t *testing.T) {
	srv := redistest.Start(t)
	conformance(t, func(t *testing.T) redis.UniversalClient {
		return closed(t, redis.NewClient(&redis.Options{Addr: srv.Addr()}))
	})
}

func TestConformanceGeneralScripts(t *testing.T) {
	srv := redistest.Start(t)
	conformance(t, func(t *testing.T) redis.UniversalClient {
		return closed(t, redis.NewClient(&redis.Options{Addr: srv.Addr()}))
	}, redisstore.WithoutPlainPath())
}

func TestConformanceContextTimeoutEnabled(t *testing.T) {
	srv := redistest.Start(t)
	conformance(t, func(t *testing.T) redis.UniversalClient {
		return closed(t, redis.NewClient(&redis.Options{Addr: srv.Addr(), ContextTimeoutEnabled: true}))
	})
}

func TestConformanceWrapped(t *testing.T) {
	srv := redistest.Start(t)
	conformance(t, func(t *testing.T) redis.UniversalClient {
		return foreign{closed(t, redis.NewClient(&redis.Options{Addr: srv.Addr()}))}
	})
}

func TestConformanceWrappedCluster(t *testing.T) {
	c := redistest.StartCluster(t, 3, 0)
	conformance(t, func(t *testing.T) redis.UniversalClient {
		return foreign{closed(t, redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs()}))}
	})
}

// A managed Redis of one shard in cluster mode is often spoken to by a plain client.
func TestConformancePlainClientOfACluster(t *testing.T) {
	c := redistest.StartCluster(t, 1, 0)
	conformance(t, func(t *testing.T) redis.UniversalClient {
		return closed(t, redis.NewClient(&redis.Options{Addr: c.Addrs()[0]}))
	})
}

func TestConformanceSentinel(t *testing.T) {
	sn := redistest.StartSentinel(t)
	conformance(t, func(t *testing.T) redis.UniversalClient {
		return sn.Client()
	})
}

func TestConformanceCluster(t *testing.T) {
	cl := redistest.StartCluster(t, 3, 0)
	conformance(t, func(t *testing.T) redis.UniversalClient {
		return cl.Client()
	})
}

func closed[C redis.UniversalClient](t *testing.T, c C) redis.UniversalClient {
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// foreign is a client of which nothing is known: a type of the application's own.
type foreign struct{ redis.UniversalClient }
