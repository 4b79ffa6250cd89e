package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/httpshed"
	"github.com/ashfaqjani916/gotsem/store"
	"github.com/ashfaqjani916/gotsem/store/memstore"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

const connections = 64

// httpTable compares handlers behind a semaphore with the same handlers alone, over kept
// connections of a client that does as little as can be, in the same process.
func httpTable(l *lab) (*report, error) {
	rdb := redis.NewClient(&redis.Options{Addr: l.srv.Addr()})
	defer rdb.Close()
	l.prefixes++
	prefix := fmt.Sprintf("web%d:", l.prefixes)
	ok := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, "a picture\n")
	})
	no := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "1")
		w.Header().Set("Cache-Control", "no-store")
		http.Error(w, "Too many at once.", http.StatusTooManyRequests)
	})
	var closers []func()
	defer func() {
		for _, c := range closers {
			c()
		}
	}()
	shed := func(st store.Store, full bool, o gotsem.Options) (http.Handler, error) {
		o.Store, o.Limit, o.TTL = st, pick(full, 1, never), ttl
		sem, err := gotsem.New(o)
		if err != nil {
			return nil, err
		}
		closers = append(closers, func() { _ = sem.Close() })
		if full {
			if _, err := sem.Try(background, "id"); err != nil {
				return nil, err
			}
		}
		// What is compared is the deciding and not the closing of connections.
		s, err := httpshed.New(httpshed.Options{Semaphore: sem, Key: httpshed.Fixed("id"), Close: httpshed.CloseNever})
		if err != nil {
			return nil, err
		}
		return s.Handler(ok), nil
	}
	// behind has ok behind whatever takes a slot and says how to give it back, or nil.
	behind := func(try func(ctx context.Context) (release func())) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			release := try(r.Context())
			if release == nil {
				no(w, r)
				return
			}
			defer release()
			ok(w, r)
		})
	}
	baselined := func(limit int) http.Handler {
		s := &baseline{rdb: rdb, prefix: prefix + "baseline" + strconv.Itoa(limit) + ":", limit: limit}
		return behind(func(ctx context.Context) func() {
			slotID, granted := s.tryAcquire(ctx, "id")
			if !granted {
				return nil
			}
			return func() { s.release(ctx, "id", slotID) }
		})
	}
	small := func(limit int) http.Handler {
		sem := gotsem.NewGotsem(rdb, prefix+"small"+strconv.Itoa(limit)+":", ttl, limit, nil, nil)
		return behind(func(ctx context.Context) func() {
			got := sem.TryAcquire(ctx, "id")
			if !got.Acquired {
				return nil
			}
			return func() { sem.Release(ctx, "id", got.SlotID) }
		})
	}
	minimally := func(limit int) (http.Handler, error) {
		l, err := newMinimal(rdb, prefix+"minimal"+strconv.Itoa(limit)+":", limit)
		return behind(func(context.Context) func() {
			o, granted := l.tryAcquire("id")
			if !granted {
				l.ops.Put(o)
				return nil
			}
			return func() { l.release(o) }
		}), err
	}
	type kind struct {
		name    string
		handler http.Handler
		status  string
	}
	ours := []struct {
		name  string
		redis bool
		full  bool
		o     gotsem.Options
	}{
		{name: "httpshed over Redis, admitted", redis: true},
		{name: "httpshed over Redis, admitted, release asynchronous", redis: true, o: gotsem.Options{AsyncRelease: true}},
		{name: "httpshed over the memory store, admitted"},
		{name: "httpshed over Redis, refused", redis: true, full: true},
		{name: "httpshed over Redis, known full", redis: true, full: true, o: gotsem.Options{KnownFull: time.Hour}},
		{name: "httpshed over the memory store, refused", full: true},
	}
	var admitted, refused []kind
	for i, k := range ours {
		var st store.Store = memstore.New()
		if k.redis {
			st = redisstore.New(rdb, fmt.Sprint(prefix, i, ":"))
		}
		h, err := shed(st, k.full, k.o)
		if err != nil {
			return nil, err
		}
		if k.full {
			refused = append(refused, kind{k.name, h, "429"})
		} else {
			admitted = append(admitted, kind{k.name, h, "200"})
		}
	}
	minimalAdmitted, err := minimally(never)
	if err != nil {
		return nil, err
	}
	minimalRefused, err := minimally(0)
	if err != nil {
		return nil, err
	}
	kinds := slices.Concat(
		[]kind{{"handler alone, 200", ok, "200"}}, admitted,
		[]kind{{"NewGotsem's slots, admitted", small(never), "200"}, {"minimal batcher, admitted", minimalAdmitted, "200"}, {"baseline, admitted", baselined(never), "200"}},
		[]kind{{"handler alone, 429", no, "429"}}, refused,
		[]kind{{"NewGotsem's slots, refused", small(0), "429"}, {"minimal batcher, refused", minimalRefused, "429"}, {"baseline, refused", baselined(0), "429"}},
	)
	rates, slow := make(map[string][]float64), make(map[string][]float64)
	for range l.rounds {
		for _, k := range kinds {
			pprof.SetGoroutineLabels(pprof.WithLabels(background, pprof.Labels("contender", k.name)))
			rate, p99, err := serve(k.handler, k.status, l.span)
			pprof.SetGoroutineLabels(background)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", k.name, err)
			}
			rates[k.name], slow[k.name] = append(rates[k.name], rate), append(slow[k.name], p99)
		}
	}
	r := &report{head: []string{fmt.Sprintf("%d connections", connections), "requests/s", "of the handler alone", "p99 ms"}}
	minimalShare := func(status string) float64 {
		return spreadOf(rates["minimal batcher, "+pick(status == "200", "admitted", "refused")]).med / spreadOf(rates["handler alone, "+status]).med
	}
	for _, k := range kinds {
		base := spreadOf(rates[pick(k.status == "200", "handler alone, 200", "handler alone, 429")]).med
		share := spreadOf(rates[k.name]).med / base
		r.add(k.name, spreadOf(rates[k.name]).String(), number(share), number(spreadOf(slow[k.name]).med))
		switch k.name {
		case "httpshed over Redis, admitted":
			r.atLeast(0.55, share, "admitted, of the handler alone")
			r.minimalReached(minimalShare(k.status))
			r.atLeast(0.9, share*base/spreadOf(rates["NewGotsem's slots, admitted"]).med, "admitted, of a handler behind TryAcquire")
		case "httpshed over Redis, admitted, release asynchronous":
			r.atLeast(0.55, share, "admitted with the release asynchronous")
		case "httpshed over Redis, refused":
			r.atLeast(0.55, share, "refused, of the handler alone")
			r.minimalReached(minimalShare(k.status))
		}
	}
	r.bound = "net/http and the client, which share two cores with Redis: a request to the handler alone is two system calls and two wake-ups; one that asks Redis adds its share of a batch."
	return r, nil
}

// serve serves h on loopback for a while, and returns how many requests were
// answered a second, and how long the slowest hundredth took, in ms.
func serve(h http.Handler, status string, span time.Duration) (rate, p99 float64, err error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, 0, err
	}
	srv := &http.Server{Handler: h}
	served := make(chan struct{})
	go func() { defer close(served); _ = srv.Serve(ln) }()
	defer func() {
		ctx, cancel := context.WithTimeout(background, 5*time.Second)
		defer cancel()
		if srv.Shutdown(ctx) != nil {
			_ = srv.Close()
		}
		<-served
	}()
	var stop atomic.Bool
	var all sync.WaitGroup
	counts, times, errs := make([]int, connections), make([]histogram, connections), make([]error, connections)
	began := time.Now()
	for i := range connections {
		all.Go(func() {
			conn, err := net.Dial("tcp", ln.Addr().String())
			if err != nil {
				errs[i] = err
				return
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(span + 10*time.Second))
			in := bufio.NewReader(conn)
			at := time.Now()
			for !stop.Load() {
				if errs[i] = ask(conn, in, status); errs[i] != nil {
					return
				}
				now := time.Now()
				times[i].add(now.Sub(at))
				at = now
				counts[i]++
			}
		})
	}
	timer := time.AfterFunc(span, func() { stop.Store(true) })
	defer timer.Stop()
	all.Wait()
	took := time.Since(began).Seconds()
	n := 0
	for i := range counts {
		n += counts[i]
		if i > 0 {
			times[0].merge(&times[i])
		}
	}
	return float64(n) / took, times[0].quantile(0.99) / 1e6, errors.Join(errs...)
}

// ask sends a request and reads its answer to the end.
func ask(conn net.Conn, in *bufio.Reader, status string) error {
	if _, err := io.WriteString(conn, "GET /capture HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		return err
	}
	line, err := in.ReadString('\n')
	if err != nil {
		return err
	}
	if !strings.HasPrefix(line, "HTTP/1.1 "+status) {
		return fmt.Errorf("answered %q, wanted %s", strings.TrimSpace(line), status)
	}
	length := -1
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return err
		}
		if len(line) <= 2 {
			break
		}
		const field = "Content-Length: "
		if len(line) > len(field) && strings.EqualFold(string(line[:len(field)]), field) {
			if length, err = strconv.Atoi(strings.TrimSpace(string(line[len(field):]))); err != nil {
				return err
			}
		}
	}
	if length < 0 {
		return errors.New("an answer without Content-Length")
	}
	_, err = in.Discard(length)
	return err
}
