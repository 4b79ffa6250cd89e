package semui

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/store"
)

// changes are made one at a time, and so many a second.
type changes struct {
	mu     sync.Mutex
	second time.Time
	n      int
}

// take reports whether there may be a further change now. It needs mu.
func (c *changes) take() bool {
	if now := time.Now(); now.Sub(c.second) >= time.Second {
		c.second, c.n = now, 0
	}
	c.n++
	return c.n <= changesMost
}

// change is what an operator asks for.
type change struct {
	Key     string `json:"key"`
	Limit   *int   `json:"limit"`   // null: take off what was set
	ForS    int64  `json:"for_s"`   // it ends by itself then; 0: it does not
	Version string `json:"version"` // of what was set when the operator looked; empty: nothing was
	Reason  string `json:"reason"`
}

var (
	errView     = errors.New("you may look, and change nothing")
	errGone     = errors.New("nobody holds that slot any more: nothing was changed")
	errTooOften = errors.New("more than 10 changes within a second: try again in a second")
)

// posted decodes what a POST of the page sends.
func posted(w http.ResponseWriter, r *http.Request, into any, means string) bool {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		http.Error(w, "send application/json", http.StatusUnsupportedMediaType)
		return false
	}
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, bodyMost))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		http.Error(w, "the body: "+means, http.StatusBadRequest)
		return false
	}
	return true
}

// idOf reads an id as it is in URLs and bodies.
func idOf(key string) (string, bool) {
	raw, err := base64.RawURLEncoding.DecodeString(key)
	return string(raw), err == nil && len(raw) > 0 && len(raw) <= gotsem.MaxID
}

func (h *Handler) serveLimit(w http.ResponseWriter, r *http.Request, who string, access Access) {
	const means = "{key, limit, for_s, version, reason}; a key of 1 to 4096 bytes in base64url, a limit of 0 or more, or null, up to 400 days, and the version as the page said it, or empty"
	var c change
	if !posted(w, r, &c, means) {
		return
	}
	id, ok := idOf(c.Key)
	seen, err := uint64(0), error(nil)
	if c.Version != "" {
		seen, err = strconv.ParseUint(c.Version, 10, 64)
	}
	if !ok || err != nil || c.Limit != nil && *c.Limit < 0 || c.ForS < 0 || c.ForS > forMost {
		http.Error(w, "the body: "+means, http.StatusBadRequest)
		return
	}
	e := Event{Who: who, Remote: r.RemoteAddr, Action: "limit", ID: id, Seen: seen, New: c.Limit, For: time.Duration(c.ForS) * time.Second, Reason: c.Reason}
	h.act(w, r, access, e, func(ctx context.Context) (int, error) { return h.setLimit(ctx, id, who, c, seen) })
}

// revocation is the slot that an operator takes away.
type revocation struct {
	Key    string `json:"key"`
	Handle string `json:"handle"` // as the page said it
	Reason string `json:"reason"`
}

func (h *Handler) serveRevoke(w http.ResponseWriter, r *http.Request, who string, access Access) {
	const means = "{key, handle, reason}; key and handle as the page said them"
	var c revocation
	if !posted(w, r, &c, means) {
		return
	}
	id, ok := idOf(c.Key)
	slot, err := h.seal.open(id, c.Handle)
	if !ok || err != nil {
		http.Error(w, "the body: "+means, http.StatusBadRequest)
		return
	}
	e := Event{Who: who, Remote: r.RemoteAddr, Action: "revoke", ID: id, Mark: mark(slot), Reason: c.Reason}
	h.act(w, r, access, e, func(ctx context.Context) (int, error) {
		there, err := h.opt.Semaphore.Revoke(ctx, id, slot)
		switch {
		case err != nil:
			return http.StatusBadGateway, fmt.Errorf("it is not known whether the slot was taken away: %w", err)
		case !there:
			return http.StatusConflict, errGone
		}
		h.changed(ctx, id)
		return http.StatusOK, nil
	})
}

// act does what an operator asks for, if that is allowed, one thing at a time; and has it
// in the audit either way.
func (h *Handler) act(w http.ResponseWriter, r *http.Request, access Access, e Event, do func(context.Context) (int, error)) {
	status, err := func() (int, error) {
		if access < Operate {
			return http.StatusForbidden, errView
		}
		h.changes.mu.Lock()
		defer h.changes.mu.Unlock()
		if !h.changes.take() {
			return http.StatusTooManyRequests, errTooOften
		}
		return do(r.Context())
	}()
	e.Err = err
	h.audit(r.Context(), e)
	if err != nil {
		writeJSON(w, status, map[string]string{"error": err.Error()})
		return
	}
	writeJSON(w, status, map[string]bool{"done": true})
}

// setLimit changes the limit if it is still the one that the operator saw, whoever else
// changes it, and wherever: the store compares.
func (h *Handler) setLimit(ctx context.Context, id, who string, c change, seen uint64) (status int, err error) {
	sem, opts := h.opt.Semaphore, []gotsem.LimitOption{gotsem.IfVersion(seen)}
	if c.Limit == nil {
		err = sem.ResetLimit(ctx, id, opts...)
	} else {
		by := strings.TrimSuffix(who+": "+c.Reason, ": ")
		by = strings.ToValidUTF8(by[:min(len(by), store.MaxBy)], "")
		opts = append(opts, gotsem.For(time.Duration(c.ForS)*time.Second), gotsem.By(by))
		err = sem.SetLimit(ctx, id, *c.Limit, opts...)
	}
	var conflict *gotsem.LimitConflict
	switch {
	case errors.As(err, &conflict):
		return http.StatusConflict, err
	case errors.Is(err, store.ErrConfig):
		return http.StatusBadRequest, err
	case err != nil:
		return http.StatusBadGateway, fmt.Errorf("it is not known whether the limit was changed: %w", err)
	}
	h.changed(ctx, id)
	return http.StatusOK, nil
}

// changed has the next answer show what was changed.
func (h *Handler) changed(ctx context.Context, id string) {
	h.details.mu.Lock()
	delete(h.details.last, id)
	h.details.mu.Unlock()
	if h.watch.Look(id) {
		_ = h.watch.Ask(ctx, id)
	}
}

func (h *Handler) audit(ctx context.Context, e Event) {
	if h.opt.Audit != nil {
		h.opt.Audit(ctx, e)
		return
	}
	text := func(n *int) string {
		if n == nil {
			return "none"
		}
		return strconv.Itoa(*n)
	}
	h.opt.Logger.InfoContext(ctx, "gotsem: an operator acts", "action", e.Action, "who", e.Who, "remote", e.Remote, "id", e.ID,
		"version_seen", e.Seen, "new", text(e.New), "for", e.For, "mark", e.Mark, "reason", e.Reason, "error", e.Err)
}
