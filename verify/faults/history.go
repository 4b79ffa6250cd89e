package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
)

// What a history is made of: tries and releases. A try that was not answered may have
// taken a slot at any time from then on, and its release, which the library sends in the
// background, may come at any later time.
type historyInput struct {
	id, slot string
	release  bool
}

type historyOutput uint8

const (
	outGranted historyOutput = iota
	outFull
	outUnknown
)

// historyModel is a set of slots with a limit. Its state is their names, sorted.
func historyModel(limit int) porcupine.Model {
	return porcupine.Model{
		Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
			byID := make(map[string][]porcupine.Operation)
			for _, op := range history {
				id := op.Input.(historyInput).id
				byID[id] = append(byID[id], op)
			}
			var parts [][]porcupine.Operation
			for _, part := range byID {
				parts = append(parts, part)
			}
			return parts
		},
		Init: func() any { return "" },
		Step: func(state, input, output any) (bool, any) {
			var held []string
			if s := state.(string); s != "" {
				held = strings.Split(s, " ")
			}
			in := input.(historyInput)
			at, there := slices.BinarySearch(held, in.slot)
			switch {
			case in.release && there:
				return true, strings.Join(slices.Delete(held, at, at+1), " ")
			case in.release:
				return true, state
			case output == outFull:
				return len(held) >= limit, state
			case len(held) >= limit:
				return output == outUnknown, state
			}
			return true, strings.Join(slices.Insert(held, at, in.slot), " ")
		},
		Equal: func(a, b any) bool { return a == b },
		DescribeOperation: func(input, output any) string {
			in := input.(historyInput)
			if in.release {
				return "release " + in.slot
			}
			return fmt.Sprintf("try %s: %s", in.slot, [...]string{"granted", "full", "?"}[output.(historyOutput)])
		},
	}
}

// historyIsLinear has eight clients try and release while replies are lost, connections
// cut and scripts forgotten, and looks for an order that explains all they were told.
func historyIsLinear(c *checker) error {
	const limit, clients, each = 3, 8, 60
	srv := redistest.Start(c)
	relay := redistest.NewRelay(c, srv.Addr())
	var mu sync.Mutex
	var history []porcupine.Operation
	record := func(client int, in historyInput, call, ret time.Duration, out historyOutput) {
		mu.Lock()
		defer mu.Unlock()
		history = append(history, porcupine.Operation{ClientId: client, Input: in, Call: int64(call), Return: int64(ret), Output: out})
	}
	end := now() + time.Hour
	var all sync.WaitGroup
	unknown := 0
	for i := range clients {
		rdb := redis.NewClient(&redis.Options{Addr: relay.Addr(), MaxRetries: i%3 - 1})
		c.Cleanup(func() { _ = rdb.Close() })
		// No lease lapses within the history.
		sem := c.semaphore(rdb, gotsem.Options{Limit: limit, TTL: 2 * time.Minute, Outage: gotsem.Closed, StoreTimeout: 2 * time.Second})
		r := rand.New(rand.NewPCG(uint64(i), 5))
		all.Go(func() {
			for n := range each {
				in := historyInput{id: fmt.Sprint("id", r.IntN(3)), slot: fmt.Sprintf("%d/%d", i, n)}
				call := now()
				lease, err := sem.Try(c.ctx, in.id)
				back := now()
				switch {
				case err == nil:
					record(i, in, call, back, outGranted)
					time.Sleep(time.Duration(r.IntN(8)) * time.Millisecond)
					in.release = true
					call = now()
					err := lease.Release(context.Background())
					if back = now(); err != nil {
						back = end // it is tried again in the background
					}
					record(i, in, call, back, outGranted)
				case errors.Is(err, gotsem.ErrFull):
					record(i, in, call, back, outFull)
				case errors.Is(err, gotsem.ErrUnavailable):
					mu.Lock()
					unknown++
					mu.Unlock()
					// Open ends: nobody knows when, or whether, either was done. They are no
					// client's: a client does one thing at a time.
					record(clients+2*(i*each+n), in, call, end, outUnknown)
					in.release = true
					record(clients+2*(i*each+n)+1, in, back, end, outUnknown)
				default:
					record(i, in, call, back, outUnknown)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	for n := 0; ; n++ {
		select {
		case <-done:
			if n < 3 {
				return fmt.Errorf("the history was over before anything happened to it")
			}
			switch result := porcupine.CheckOperationsTimeout(historyModel(limit), history, 20*time.Second); result {
			case porcupine.Illegal:
				return fmt.Errorf("no order explains %d operations, %d of them unanswered", len(history), unknown)
			case porcupine.Unknown:
				return fmt.Errorf("no verdict on %d operations, %d of them unanswered, within 20 s", len(history), unknown)
			}
			return nil
		case <-time.After(15 * time.Millisecond):
		}
		switch n % 4 {
		case 0:
			_, _ = srv.Do("SCRIPT", "FLUSH")
		case 1:
			relay.DropReplies(1)
		case 2:
			relay.SetDelay(time.Duration(n%3) * time.Millisecond)
		case 3:
			if n%8 == 3 {
				relay.CutAll()
			}
		}
	}
}
