package semui

import (
	"encoding/json"
	"errors"
	"net/http"
	"sync/atomic"
	"time"
)

// A tab has one stream, of the view that it shows, and closes it while it is hidden. Where
// there can be none (too many, a server that cannot flush) the page polls.

const (
	streamsMost = 32
	writeWithin = 30 * time.Second // for each frame; http.Server.WriteTimeout would end the stream
	streamFor   = 10 * time.Minute // then the tab asks anew, and Authorize is asked
)

type streams struct {
	open   atomic.Int64
	closed chan struct{}
}

// serveEvents sends the view each interval, until the client goes or the page is closed.
func (h *Handler) serveEvents(w http.ResponseWriter, r *http.Request, access Access) {
	look, err := h.viewOf(r, r.URL.Query().Get("view"), access)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if h.streams.open.Add(1) > streamsMost {
		h.streams.open.Add(-1)
		http.Error(w, "more than 32 streams: ask for the view itself", http.StatusServiceUnavailable)
		return
	}
	defer h.streams.open.Add(-1)
	head := w.Header()
	head.Set("Content-Type", "text/event-stream")
	head.Set("Cache-Control", "no-store, no-transform")
	head.Set("X-Accel-Buffering", "no") // nginx would hold it back
	out := http.NewResponseController(w)
	for ends := time.Now().Add(streamFor); time.Now().Before(ends); {
		answer, err := look(r.Context())
		if errors.Is(err, errClosed) || r.Context().Err() != nil {
			return
		}
		if err == nil {
			var text []byte
			if text, err = json.Marshal(answer); err == nil {
				_ = out.SetWriteDeadline(time.Now().Add(writeWithin)) // where there is none, none is in the way
				_, err = w.Write(append(append([]byte("data: "), text...), "\n\n"...))
			}
			if err == nil {
				err = out.Flush()
			}
			if err != nil {
				return
			}
		}
		select {
		case <-r.Context().Done():
			return
		case <-h.streams.closed:
			return
		case <-time.After(h.opt.Interval):
		}
	}
}
