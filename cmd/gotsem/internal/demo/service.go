package demo

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/ashfaqjani916/gotsem"
)

// service is what is limited: each request is a piece of work for a project. Each project
// has so many at once, and all together have.
type service struct {
	sem   *gotsem.Semaphore
	tag   string
	count counter
}

// counter is told that work begins, and answers with what to call when it ends.
type counter func(project string) (end func(), err error)

// ServeHTTP works if there is room for it, else it answers 429 at once, and closes
// the connection: behind a load balancer the next try meets another server.
func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p, ok := projectOf(r.PathValue("project"))
	if !ok {
		http.NotFound(w, r)
		return
	}
	id := s.tag + "/" + p.id()
	if r.URL.Query().Has("crash") {
		s.crash(r.Context(), id)
	}
	lease, err := s.sem.Try(r.Context(), id, gotsem.Also(s.tag+"/"+everything), gotsem.As(p.class))
	var full *gotsem.FullError
	switch {
	case errors.As(err, &full):
		w.Header().Set("Connection", "close")
		w.Header().Set("Retry-After", strconv.Itoa(max(1, int(full.RetryAfter.Seconds()))))
		http.Error(w, "too many at once", http.StatusTooManyRequests)
		return
	case err != nil:
		http.Error(w, "try again later", http.StatusServiceUnavailable)
		return
	}
	defer lease.Release(r.Context())
	end, err := s.count(p.name)
	if err != nil { // the referee has gone: the demo is over
		http.Error(w, "over", http.StatusServiceUnavailable)
		return
	}
	defer end() // before the slot is released
	work, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(lease.Context(), cancel)()
	if sleep(work, 50*time.Millisecond+rand.N(100*time.Millisecond)) {
		_, _ = w.Write([]byte("done\n"))
	}
}

func projectOf(name string) (p project, ok bool) {
	i := slices.IndexFunc(projects, func(p project) bool { return p.name == name })
	if i < 0 {
		return project{}, false
	}
	return projects[i], true
}

// crash takes a slot as a process that was killed leaves it behind: it is neither
// renewed nor released.
func (s *service) crash(ctx context.Context, id string) {
	s.sem.TryAcquire(ctx, id)
	panic(http.ErrAbortHandler)
}

// serve has h listen on a loopback port until stop is called.
func serve(h http.Handler) (addr string, stop func(), err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("POST /work/{project}", h)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener) // it ends with stop
	}()
	return listener.Addr().String(), func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if server.Shutdown(ctx) != nil {
			_ = server.Close()
		}
		<-served
	}, nil
}
