package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// SampleHost is the name under which the guard answers SamplePage itself, without dialling
// anybody: there is something slow to capture where no network is, and an overload loads
// nobody else. Nothing under .invalid exists (RFC 6761).
const SampleHost = "sample.invalid"

// sampleTime is how long a sample takes to answer, and so about how long it holds its slot.
const sampleTime = 2 * time.Second

// SamplePage is a page that is slow. Each query has its own colour.
func SamplePage() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.ParseUint(r.URL.Query().Get("n"), 10, 16)
		if r.URL.Path != "/" || err != nil {
			http.NotFound(w, r)
			return
		}
		slow := time.NewTimer(sampleTime)
		defer slow.Stop()
		select {
		case <-slow.C:
		case <-r.Context().Done():
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = fmt.Fprintf(w, `<!doctype html><html lang="en"><title>Sample %[1]d</title><style>
html { height: 100%%; background: hsl(%[2]d 45%% 32%%); color: #fff; font: 1rem/1.3 "DejaVu Sans", sans-serif }
body { margin: 0; padding: 2.2rem } b { display: block; font-size: 8rem; line-height: 1 } p { margin: 1rem 0 0; font-size: 1.5rem }
</style><b>%[1]d</b><p>A page that takes %[3]v</p></html>`, n, n*47%360, sampleTime)
	})
}

// Bounds of an overload, beside the caps of every capture.
const (
	overloadMost  = 120              // captures
	overloadTime  = 20 * time.Second // of it all
	overloadTimes = 2                // what the slots can take
)

// overloadAnswer is what an overload came to.
type overloadAnswer struct {
	Sent      int     `json:"sent"`
	Captured  int     `json:"captured"`
	Refused   int     `json:"refused"`
	Failed    int     `json:"failed"`
	RefusalMS float64 `json:"refusal_ms"` // the median
	CaptureMS float64 `json:"capture_ms"` // the median
}

// overload sends this server more captures of its own sample than it can take. They come
// in by the same door as all others, and it goes on while its client listens. One at a time.
func (s *Server) overload(w http.ResponseWriter, r *http.Request) {
	refuse := func(status int, text string) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(map[string]string{"error": text})
	}
	if err := http.NewCrossOriginProtection().Check(r); err != nil {
		refuse(http.StatusForbidden, "An overload is taken from the page itself only.")
		return
	}
	// No form can send this, so that no other page can, in browsers that tell no origin too.
	if kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";"); strings.TrimSpace(kind) != "application/json" {
		refuse(http.StatusUnsupportedMediaType, "Send application/json.")
		return
	}
	if s.closing.Load() {
		refuse(http.StatusServiceUnavailable, "The server is stopping.")
		return
	}
	if !s.overloading.TryLock() {
		refuse(http.StatusConflict, "An overload is under way: one at a time.")
		return
	}
	defer s.overloading.Unlock()
	ctx, cancel := context.WithTimeout(r.Context(), overloadTime)
	defer cancel()
	limit := s.Pressure(ctx).MaxConcurrent
	if limit < 1 {
		refuse(http.StatusServiceUnavailable, "There is no slot to fill, or the semaphore cannot be asked.")
		return
	}
	n, every := floodOf(limit)
	a := s.flood(ctx, n, every)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(a)
}

// floodOf is how many captures overload so many slots, and how far apart they come.
func floodOf(limit int) (n int, every time.Duration) {
	return min(5*limit, overloadMost), sampleTime / time.Duration(overloadTimes*limit)
}

// flood sends n captures, one each interval, and waits for their answers.
func (s *Server) flood(ctx context.Context, n int, every time.Duration) (a overloadAnswer) {
	defer s.board.overloads(nil)
	var all sync.WaitGroup
	var mu sync.Mutex
	var captures, refusals []time.Duration
	next := time.NewTicker(every)
	defer next.Stop()
send:
	for i := range n {
		s.board.overloads(&overloadState{Sent: i + 1, Of: n})
		a.Sent++
		all.Go(func() {
			status, took := s.sample(ctx, i+1)
			mu.Lock()
			defer mu.Unlock()
			switch status {
			case http.StatusOK:
				captures = append(captures, took)
			case s.opt.refusal():
				refusals = append(refusals, took)
			default:
				a.Failed++
			}
		})
		select {
		case <-next.C:
		case <-ctx.Done():
			break send
		case <-s.stopping:
			break send
		}
	}
	all.Wait()
	a.Captured, a.Refused = len(captures), len(refusals)
	a.CaptureMS, a.RefusalMS = median(captures), median(refusals)
	return a
}

// sample asks this server for one capture of the sample.
func (s *Server) sample(ctx context.Context, n int) (status int, took time.Duration) {
	q := url.Values{"url": {fmt.Sprintf("http://%s/?n=%d", SampleHost, n)}, "width": {"480"}, "height": {"300"}, "format": {"webp"}}
	r := (&http.Request{
		Method: http.MethodGet, URL: &url.URL{Path: "/capture", RawQuery: q.Encode()}, Host: "overload", Header: http.Header{},
		Proto: "HTTP/2.0", ProtoMajor: 2, // there is no connection that a refusal could close
		Body: http.NoBody,
	}).WithContext(context.WithValue(ctx, sampleKey{}, struct{}{}))
	w := answerOf{header: http.Header{}}
	began := time.Now()
	s.ServeHTTP(&w, r)
	return w.status, time.Since(began)
}

// answerOf takes an answer of which only the status counts.
type answerOf struct {
	header http.Header
	status int
}

func (a *answerOf) Header() http.Header { return a.header }

func (a *answerOf) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
}

func (a *answerOf) Write(p []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return len(p), nil
}

// median is in milliseconds; 0 of none.
func median(all []time.Duration) float64 {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return float64(all[len(all)/2].Microseconds()) / 1000
}
