package server

import (
	"fmt"
	"net/http"
	"strconv"
	"time"
)

const (
	viewersMost = 32               // event streams at once; who comes then asks now and then instead
	beatEvery   = 15 * time.Second // so that a viewer can tell a stream that stands still from one that broke
	streamTime  = 30 * time.Second // for one event to be taken by its reader
)

// board answers what the page shows, once.
func (s *Server) live(w http.ResponseWriter, r *http.Request) {
	s.board.refresh(r.Context())
	body, _ := s.board.draw(s.shed.Stats())
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(body)
}

// events sends the same as it changes, ten times a second at most. A reader that is slow
// misses what was between, and is never behind. Nothing is sent twice: after a break the
// page gets how it stands now.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	if s.closing.Load() || !s.board.join(viewersMost) {
		w.Header().Set("Retry-After", "10")
		http.Error(w, "too many look at this page, or the server is stopping: ask /live instead", http.StatusServiceUnavailable)
		return
	}
	defer s.board.part()
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store, no-transform")
	h.Set("X-Accel-Buffering", "no") // nginx would keep it back
	h.Set("X-Content-Type-Options", "nosniff")
	c := http.NewResponseController(w)
	send := func(format string, args ...any) bool {
		_ = c.SetWriteDeadline(time.Now().Add(streamTime))
		_, err := fmt.Fprintf(w, format, args...)
		return err == nil && c.Flush() == nil
	}
	look, beat, pause := time.NewTicker(asked), time.NewTicker(beatEvery), time.NewTicker(fresh)
	defer look.Stop()
	defer beat.Stop()
	defer pause.Stop()
	s.board.refresh(r.Context())
	ok := send("retry: 3000\n\n")
	for ok {
		body, changed := s.board.draw(s.shed.Stats())
		if ok = send("data: %s\n\n", body); !ok {
			return
		}
		select {
		case <-pause.C:
		case <-r.Context().Done():
			return
		}
		for waiting := true; waiting && ok; {
			select {
			case <-changed:
				waiting = false
			case <-look.C:
				s.board.refresh(r.Context())
			case <-beat.C:
				ok = send("event: beat\ndata: 0\n\n")
			case <-s.stopping:
				send("event: bye\ndata: 0\n\n")
				return
			case <-r.Context().Done():
				return
			}
		}
	}
}

// picture answers the picture of a sample that was captured lately.
func (s *Server) picture(w http.ResponseWriter, r *http.Request) {
	no, err := strconv.ParseUint(r.PathValue("no"), 10, 64)
	data, kind := s.board.picture(no)
	if err != nil || data == nil {
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	h.Set("Content-Type", kind)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "default-src 'none'; sandbox")
	_, _ = w.Write(data)
}
