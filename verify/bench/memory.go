package main

import (
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

// memoryTable asks Redis what slots and leases take, and slots of the baseline's form.
func memoryTable(l *lab) (*report, error) {
	rdb := redis.NewClient(&redis.Options{Addr: l.srv.Addr()})
	defer rdb.Close()
	hundredThousand := pick(l.quick, 10_000, 100_000)
	sizes := []struct {
		slots, ids int
		lease      float64 // the most bytes that a lease is to take; 0: leases are not asked
	}{{1, 1000, 110}, {10, 100, 55}, {100, 20, 45}, {1_000, 4, 125}, {hundredThousand, 1, 0}}
	r := &report{head: []string{"slots of an id", "TryAcquire, bytes a slot", "leases, bytes a slot", "the baseline's, bytes a slot", "TryAcquire's, of the baseline's"}}
	for _, size := range sizes {
		l.prefixes++
		sem := gotsem.NewGotsem(rdb, fmt.Sprintf("mem%d:", l.prefixes), ttl*100, never, nil, nil)
		mine, err := l.bytesASlot(rdb, fmt.Sprintf("mem%d:", l.prefixes), size.slots, size.ids, func(id string) bool { return sem.TryAcquire(background, id).Acquired })
		_ = sem.Close()
		if err != nil {
			return nil, err
		}
		other := &baseline{rdb: rdb, prefix: fmt.Sprintf("mes%d:", l.prefixes), limit: never}
		theirs, err := l.bytesASlot(rdb, other.prefix, size.slots, size.ids, func(id string) bool { _, ok := other.tryAcquire(background, id); return ok })
		if err != nil {
			return nil, err
		}
		leases := ""
		if size.lease > 0 {
			prefix := fmt.Sprintf("mel%d:", l.prefixes)
			sem, err := gotsem.New(gotsem.Options{Store: redisstore.New(rdb, prefix), Limit: never, TTL: ttl * 100})
			if err != nil {
				return nil, err
			}
			bytes, err := l.bytesASlot(rdb, prefix, size.slots, size.ids, func(id string) bool { _, err := sem.Try(background, id); return err == nil })
			_ = sem.Close()
			if err != nil {
				return nil, err
			}
			leases = number(bytes)
			r.atMost(size.lease, bytes, fmt.Sprintf("bytes a lease at %d an id", size.slots))
		}
		r.add(number(float64(size.slots)), number(mine), leases, number(theirs), number(mine/theirs))
		switch size.slots {
		case 10:
			r.atMost(0.75, mine/theirs, "bytes a slot at 10 an id, of the baseline's")
		case hundredThousand:
			r.atMost(0.8, mine/theirs, "bytes a slot at "+number(float64(size.slots))+", of the baseline's")
		}
	}
	r.bound = "the length of the slot id and the form that Redis keeps the set in: to 128 members packed, about the bytes themselves and the key's share; above that a skip list and a table, about a hundred bytes a member beside the id, which the allocator rounds up (to 16 bytes for an id of at most 14, to 32 for at most 30, to 48 for the baseline's 37). MEMORY USAGE of all keys under the prefix."
	return r, nil
}

// bytesASlot fills so many ids with so many slots each, and asks what all keys under the
// prefix take, divided by the slots.
func (l *lab) bytesASlot(rdb *redis.Client, prefix string, slots, nIDs int, take func(id string) bool) (float64, error) {
	for _, id := range ids(nIDs) {
		if err := fill(slots, func() bool { return take(id) }); err != nil {
			return 0, err
		}
		if got := rdb.ZCard(background, prefix+id).Val(); got != int64(slots) {
			return 0, fmt.Errorf("%s%s has %d slots, %d were taken", prefix, id, got, slots)
		}
	}
	var bytes int64
	all := rdb.Scan(background, 0, "*"+prefix+"*", 1000).Iterator()
	var keys []string
	for all.Next(background) {
		n, err := rdb.MemoryUsage(background, all.Val(), 0).Result()
		if err != nil {
			return 0, err
		}
		bytes += n
		keys = append(keys, all.Val())
	}
	if err := all.Err(); err != nil {
		return 0, err
	}
	return float64(bytes) / float64(slots*nIDs), rdb.Unlink(background, keys...).Err()
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
