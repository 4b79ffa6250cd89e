package main

import (
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem"
)

// memoryTable asks Redis what slots take, ours and those of the baseline's form.
func memoryTable(l *lab) (*report, error) {
	rdb := redis.NewClient(&redis.Options{Addr: l.srv.Addr()})
	defer rdb.Close()
	hundredThousand := pick(l.quick, 10_000, 100_000)
	sizes := []struct{ slots, ids int }{{10, 100}, {100, 20}, {1_000, 4}, {hundredThousand, 1}}
	r := &report{head: []string{"slots of an id", "gotsem, bytes a slot", "the baseline's, bytes a slot", "of the baseline's"}}
	for _, size := range sizes {
		l.prefixes++
		mine, theirs := fmt.Sprintf("mem%d:", l.prefixes), fmt.Sprintf("mes%d:", l.prefixes)
		sem := gotsem.NewGotsem(rdb, mine, ttl*100, never, nil, nil)
		other := &baseline{rdb: rdb, prefix: theirs, limit: never}
		var bytes, baselineBytes float64
		for _, id := range ids(size.ids) {
			if err := fill(size.slots, func() bool { return sem.TryAcquire(background, id).Acquired }); err != nil {
				return nil, err
			}
			if err := fill(size.slots, func() bool { _, ok := other.tryAcquire(background, id); return ok }); err != nil {
				return nil, err
			}
			for prefix, sum := range map[string]*float64{mine: &bytes, theirs: &baselineBytes} {
				n, err := rdb.MemoryUsage(background, prefix+id, 0).Result()
				if err != nil {
					return nil, err
				}
				if got := rdb.ZCard(background, prefix+id).Val(); got != int64(size.slots) {
					return nil, fmt.Errorf("%s%s has %d slots, %d were taken", prefix, id, got, size.slots)
				}
				*sum += float64(n)
			}
			if err := rdb.Unlink(background, mine+id, theirs+id).Err(); err != nil {
				return nil, err
			}
		}
		n := float64(size.slots * size.ids)
		r.add(number(float64(size.slots)), number(bytes/n), number(baselineBytes/n), number(bytes/baselineBytes))
		switch size.slots {
		case 10:
			r.atMost(0.75, bytes/baselineBytes, "bytes a slot at 10 an id, of the baseline's")
		case hundredThousand:
			r.atMost(0.8, bytes/baselineBytes, "bytes a slot at "+number(float64(size.slots))+", of the baseline's")
		}
	}
	r.bound = "the length of the slot id and the form that Redis keeps the set in: to 128 members packed, about the bytes themselves and the key's share; above that a skip list and a table, about a hundred bytes a member beside the id, which the allocator rounds up (to 16 bytes for an id of at most 14, to 32 for at most 30, to 48 for the baseline's 37). MEMORY USAGE, the key included."
	return r, nil
}

// fill takes n slots over 64 goroutines.
func fill(n int, take func() bool) error {
	errs := make(chan error, 64)
	for w := range 64 {
		go func() {
			for i := w; i < n; i += 64 {
				if !take() {
					errs <- fmt.Errorf("slot %d of %d was refused below the limit", i, n)
					return
				}
			}
			errs <- nil
		}()
	}
	var first error
	for range 64 {
		if err := <-errs; err != nil && first == nil {
			first = err
		}
	}
	return first
}
