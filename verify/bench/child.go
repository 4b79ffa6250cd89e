package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

// Some things are between processes. A child is this program again; it is told what
// to do by arguments and, line by line, on its standard input, answers on its
// standard output, and ends when its input does.

const childArg = "child"

// childMost is the longest that a child lives, whatever happens.
const childMost = 5 * time.Minute

// kid is a child, seen by its parent.
type kid struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	stop func()
}

// spawn starts a child. Its end must be called.
func spawn(env []string, args ...string) (*kid, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(background, childMost)
	cmd := exec.CommandContext(ctx, self, append([]string{childArg}, args...)...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = os.Stderr
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2); err != nil {
		cancel()
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		cancel()
		return nil, err
	}
	return &kid{cmd, in, bufio.NewReader(out), cancel}, nil
}

// say tells it a word.
func (k *kid) say(word string) error {
	_, err := fmt.Fprintln(k.in, word)
	return err
}

// hear reads a line of numbers. A child that is silent for long is killed.
func (k *kid) hear(to ...any) error {
	silent := time.AfterFunc(2*time.Minute, k.stop)
	defer silent.Stop()
	line, err := k.out.ReadString('\n')
	if err != nil {
		return fmt.Errorf("a child process said nothing: %w", err)
	}
	if _, err := fmt.Sscan(line, to...); err != nil {
		return fmt.Errorf("a child process said %q: %w", line, err)
	}
	return nil
}

// end ends it, and waits until it is gone.
func (k *kid) end() {
	_ = k.in.Close()
	slow := time.AfterFunc(10*time.Second, k.stop)
	defer slow.Stop()
	_, _ = io.Copy(io.Discard, k.out)
	_ = k.cmd.Wait()
	k.stop()
}

// child is the child's main.
func child(args []string) error {
	f := flag.NewFlagSet(childArg, flag.ContinueOnError)
	kind := f.String("kind", "", "")
	addr := f.String("addr", "", "")
	prefix := f.String("prefix", "", "")
	n := f.Int("n", 0, "")
	limit := f.Int("limit", 1, "")
	life := f.Duration("ttl", ttl, "")
	span := f.Duration("span", 0, "")
	at := f.Int64("at", 0, "")
	if err := f.Parse(args); err != nil {
		return err
	}
	time.AfterFunc(childMost, func() { os.Exit(3) })
	in := bufio.NewReader(os.Stdin)
	word := func() bool { _, err := in.ReadString('\n'); return err == nil }
	e := entry{addr: *addr, prefix: *prefix, limit: *limit}
	switch *kind {
	case "fair-" + nameOurs:
		rdb := e.client()
		sem := gotsem.NewGotsem(rdb, e.prefix, ttl, e.limit, nil, nil)
		return holders(*n, *at, *span, func() func() {
			r := sem.TryAcquire(background, "id")
			if !r.Acquired {
				return nil
			}
			return func() { sem.Release(background, "id", r.SlotID) }
		})
	case "fair-" + nameBaseline:
		s := &baseline{rdb: e.client(), prefix: e.prefix, limit: e.limit}
		return holders(*n, *at, *span, func() func() {
			slotID, ok := s.tryAcquire(background, "id")
			if !ok {
				return nil
			}
			return func() { s.release(background, "id", slotID) }
		})
	}
	if *kind == "subscriber" {
		return subscriber(e)
	}
	sem, err := gotsem.New(gotsem.Options{Store: redisstore.New(redis.NewClient(&redis.Options{Addr: *addr}), *prefix), Limit: *limit, Queue: 1 << 20, TTL: *life, StoreTimeout: min(*life, 5*time.Second)})
	if err != nil {
		return err
	}
	defer sem.Close()
	switch *kind {
	case "fair-" + nameLeases:
		return holders(*n, *at, *span, func() func() {
			lease, err := sem.Try(background, "id")
			if err != nil {
				return nil
			}
			return func() { _ = lease.Release(background) }
		})
	case "handoff":
		for word() {
			lease, err := sem.Acquire(background, "id")
			if err != nil {
				return err
			}
			fmt.Println(time.Now().UnixNano())
			if err := lease.Release(background); err != nil {
				return err
			}
			fmt.Println(1)
		}
	case "waiters":
		if !word() {
			return nil
		}
		before := memoryInUse()
		var all sync.WaitGroup
		ctx, cancel := context.WithCancel(background)
		for range *n {
			all.Go(func() {
				if _, err := sem.Acquire(ctx, "id"); err == nil {
					fmt.Fprintln(os.Stderr, "bench: a waiter was granted what somebody held")
				}
			})
		}
		for deadline := time.Now().Add(time.Minute); sem.Stats().Queued < uint64(*n); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				cancel()
				return fmt.Errorf("%d of %d waiters stand in line after a minute", sem.Stats().Queued, *n)
			}
		}
		fmt.Println(float64(memoryInUse()-before) / float64(*n))
		word()
		cancel()
		all.Wait()
	case "leases":
		held := make(chan *gotsem.Lease, *n)
		if err := fill(*n, func() bool { return takeLease(sem, held, *n) }); err != nil {
			return err
		}
		fmt.Println(len(held))
		if !word() {
			return nil
		}
		// The busy loop that leases must live beside.
		stop := time.Now().Add(*span)
		turns := 0
		for time.Now().Before(stop) {
			for range 1_000_000 {
				turns++
			}
		}
		s := sem.Stats()
		fmt.Println(s.Lost, s.Renewals, s.Held)
		word()
	default:
		return fmt.Errorf("no child %q", *kind)
	}
	return nil
}

// subscriber says when it hears each message on the channel that is called as the
// prefix.
func subscriber(e entry) error {
	rdb := e.client()
	defer rdb.Close()
	messages := rdb.Subscribe(background, e.prefix)
	defer messages.Close()
	if _, err := messages.Receive(background); err != nil {
		return err
	}
	fmt.Println(1)
	for {
		if _, err := messages.ReceiveMessage(background); err != nil {
			return err
		}
		fmt.Println(time.Now().UnixNano())
	}
}

var leaseNumber atomic.Int64

func takeLease(sem *gotsem.Semaphore, held chan<- *gotsem.Lease, n int) bool {
	lease, err := sem.Try(background, fmt.Sprint("project:", leaseNumber.Add(1)%int64(n)))
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		return false
	}
	held <- lease
	return true
}

// holders has n workers take a slot, hold it for 1 ms and give it back, from at on,
// and says how many they took. What try returns gives back; nil is a refusal, after
// which they try again at once.
func holders(n int, at int64, span time.Duration, try func() (release func())) error {
	var grants, tries atomic.Int64
	var all sync.WaitGroup
	start := time.UnixMilli(at)
	if release := try(); release != nil { // warm
		release()
	}
	time.Sleep(time.Until(start))
	for range n {
		all.Go(func() {
			for time.Since(start) < span {
				tries.Add(1)
				release := try()
				if release == nil {
					continue
				}
				grants.Add(1)
				time.Sleep(time.Millisecond) // the work
				release()
			}
		})
	}
	all.Wait()
	fmt.Println(grants.Load(), tries.Load())
	return nil
}

// memoryInUse is what the heap and the stacks take.
func memoryInUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}
