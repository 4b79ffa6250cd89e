package memstore

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

// What a take and a give cost beside a sharded mutex and map is measured in verify/bench.

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
