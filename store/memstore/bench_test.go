package memstore

import (
	"context"
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

// What a take and a give cost, beside what a sharded mutex and map do:
//
//	go test -run - -bench . -cpu 1,2 ./store/memstore

// takeGive is one round of what is measured.
type takeGive func(id, slotID string)

func ofStore() takeGive {
	s, ctx := New(), context.Background()
	reqs := sync.Pool{New: func() any { return new(store.Request) }}
	return func(id, slotID string) {
		r := reqs.Get().(*store.Request)
		*r = store.Request{ID: id, SlotID: slotID, Weight: 1, Limit: 1 << 20, TTL: time.Minute}
		if d, err := s.Acquire(ctx, r); err != nil || d.Outcome != store.Granted {
			panic("not granted")
		}
		reqs.Put(r)
		if freed, err := s.Release(ctx, &store.Release{ID: id, SlotID: slotID}); err != nil || !freed {
			panic("not released")
		}
	}
}

// ofMaps is the least that counts slots by id and slot id: it knows no time, no
// line, no fence and no ctx.
func ofMaps() takeGive {
	type shard struct {
		mu  sync.Mutex
		ids map[string]map[string]struct{}
		_   [48]byte
	}
	all, seed := new([shards]shard), maphash.MakeSeed()
	for i := range all {
		all[i].ids = make(map[string]map[string]struct{})
	}
	lock := func(id string) *shard {
		sh := &all[maphash.String(seed, id)%shards]
		sh.mu.Lock()
		return sh
	}
	return func(id, slotID string) {
		sh := lock(id)
		held := sh.ids[id]
		if held == nil {
			held = make(map[string]struct{})
			sh.ids[id] = held
		}
		if len(held) >= 1<<20 {
			panic("not granted")
		}
		held[slotID] = struct{}{}
		sh.mu.Unlock()

		sh = lock(id)
		if _, ok := held[slotID]; !ok {
			panic("not released")
		}
		if delete(held, slotID); len(held) == 0 {
			delete(sh.ids, id)
		}
		sh.mu.Unlock()
	}
}

func BenchmarkTakeGive(b *testing.B) {
	kinds := []struct {
		name string
		make func() takeGive
	}{{"memstore", ofStore}, {"maps", ofMaps}}
	ids, slots := make([]string, 10_000), make([]string, 10_000)
	for i := range ids {
		ids[i], slots[i] = fmt.Sprint("project:", i), fmt.Sprintf("f2Vz8fIhlSMu3Q4J%d", i)
	}
	for _, n := range []int{1, len(ids)} {
		for _, kind := range kinds {
			b.Run(fmt.Sprintf("ids=%d/%s", n, kind.name), func(b *testing.B) {
				do := kind.make()
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					do(ids[i%n], slots[i%len(slots)])
				}
			})
			b.Run(fmt.Sprintf("ids=%d/%s/parallel", n, kind.name), func(b *testing.B) {
				do := kind.make()
				b.ReportAllocs()
				var worker atomic.Int64
				b.RunParallel(func(pb *testing.PB) {
					// Workers do not share slot ids.
					at := int(worker.Add(1)-1) * 1000
					for i := 0; pb.Next(); i++ {
						slot := at + i%1000
						do(ids[slot%n], slots[slot])
					}
				})
			})
		}
	}
}

// A refusal is what overload is made of.
func BenchmarkFull(b *testing.B) {
	s, ctx := New(), context.Background()
	r := store.Request{ID: "id", SlotID: "a", Weight: 1, Limit: 1, TTL: time.Hour}
	if _, err := s.Acquire(ctx, &r); err != nil {
		b.Fatal(err)
	}
	r.SlotID = "b"
	b.ReportAllocs()
	for b.Loop() {
		if d, _ := s.Acquire(ctx, &r); d.Outcome != store.Full {
			b.Fatal(d)
		}
	}
}

// Beside many who hold and wait, nothing costs more than a logarithm.
func BenchmarkBesideMany(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		b.Run(fmt.Sprint("held=", n), func(b *testing.B) {
			s, ctx := New(), context.Background()
			for i := range n {
				if _, err := s.Acquire(ctx, &store.Request{ID: "id", SlotID: fmt.Sprint("h", i), Weight: 1, Limit: n + 1, TTL: time.Hour}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				if d, err := s.Acquire(ctx, &store.Request{ID: "id", SlotID: "a", Weight: 1, Limit: n + 1, TTL: time.Minute}); err != nil || d.Outcome != store.Granted {
					b.Fatal(d, err)
				}
				if _, err := s.Release(ctx, &store.Release{ID: "id", SlotID: "a"}); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprint("waiting=", n), func(b *testing.B) {
			s, ctx := New(), context.Background()
			slots := make([]string, n+1)
			for i := range slots {
				slots[i] = fmt.Sprint("w", i)
			}
			ask := func(slot string) store.Decision {
				d, err := s.Acquire(ctx, &store.Request{ID: "id", SlotID: slot, Weight: 1, Limit: 1, TTL: time.Hour, Queue: n})
				if err != nil {
					b.Fatal(err)
				}
				return d
			}
			for _, slot := range slots {
				ask(slot)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ { // who holds gives back and joins again; the head holds
				if _, err := s.Release(ctx, &store.Release{ID: "id", SlotID: slots[i%len(slots)]}); err != nil {
					b.Fatal(err)
				}
				if d := ask(slots[(i+1)%len(slots)]); d.Outcome != store.Granted {
					b.Fatal(d)
				}
				if d := ask(slots[i%len(slots)]); d.Outcome != store.Waiting || d.Place != n {
					b.Fatal(d)
				}
			}
		})
	}
}
