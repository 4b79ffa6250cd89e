package semui

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/store"
)

// Bounds of what is shown and taken.
const (
	rowsShown    = 50
	holdersShown = 100
	holdersAsked = 10_000 // a longer list is not asked for
	bodyMost     = 64 << 10
	changesMost  = 10              // a second
	forMost      = 400 * 24 * 3600 // seconds
)

// standing is how an id stands, in JSON.
type standing struct {
	Key      string   `json:"key"` // the id in base64url, as it is in URLs
	ID       string   `json:"id"`  // as it is shown
	Held     int      `json:"held"`
	Limit    *int     `json:"limit"` // null: not known here
	LimitSet bool     `json:"limit_set"`
	Waiting  int      `json:"waiting"`
	Line     []int    `json:"line"` // critical, default, batch, sheddable
	NextInMS int64    `json:"next_in_ms"`
	AgeMS    int64    `json:"age_ms"` // of these numbers
	History  [][3]int `json:"history"`
}

func (h *Handler) standing(r *row) standing {
	u := r.usage
	st := standing{Key: base64.RawURLEncoding.EncodeToString([]byte(r.id)), ID: printable(r.id), Held: u.Active, LimitSet: u.LimitSet,
		Waiting: u.Waiting, NextInMS: u.NextIn.Milliseconds(), AgeMS: time.Since(r.at).Milliseconds(), History: make([][3]int, len(r.history))}
	if u.LimitSet || !h.opt.LimitUnknown {
		st.Limit = &u.Limit
	}
	for _, c := range []gotsem.Class{gotsem.Critical, gotsem.Default, gotsem.Batch, gotsem.Sheddable} {
		st.Line = append(st.Line, u.WaitingAs(c))
	}
	for i, p := range r.history {
		st.History[i] = [3]int{p.held, p.limit, p.line}
	}
	return st
}

// printable is an id as it is shown: what is no printable character is escaped.
func printable(id string) string {
	var b strings.Builder
	for rest := id; rest != ""; {
		r, n := utf8.DecodeRuneInString(rest)
		if r == utf8.RuneError && n == 1 {
			fmt.Fprintf(&b, `\x%02x`, rest[0])
		} else if r == '\\' || !unicode.IsPrint(r) {
			quoted := strconv.QuoteRune(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		} else {
			b.WriteRune(r)
		}
		rest = rest[n:]
	}
	return b.String()
}

// state is what every answer begins with.
type state struct {
	Operate    bool   `json:"operate"`
	IntervalMS int64  `json:"interval_ms"`
	Up         bool   `json:"up"`    // the last call to the store was answered
	Error      string `json:"error"` // else why not
	SilentMS   int64  `json:"silent_ms"`
	Seen       int    `json:"seen"`  // ids in this walk so far
	Whole      int    `json:"whole"` // ids of the last whole walk; -1: none yet
	Held       int    `json:"held"`
	Waiting    int    `json:"waiting"`
	IDs        int    `json:"ids"`
}

// state needs the sampler's mu.
func (h *Handler) state(access Access) state {
	s := h.sampler
	st := state{Operate: access >= Operate, IntervalMS: h.opt.Interval.Milliseconds(), Up: s.err == nil, Seen: s.seen, Whole: s.whole, IDs: len(s.rows)}
	if s.err != nil {
		st.Error = s.err.Error()
	}
	if !s.ok.IsZero() {
		st.SilentMS = time.Since(s.ok).Milliseconds()
	}
	for _, r := range s.rows {
		st.Held += r.usage.Active
		st.Waiting += r.usage.Waiting
	}
	return st
}

func (h *Handler) serveIDs(w http.ResponseWriter, r *http.Request, access Access) {
	if !h.sampler.look("") {
		http.Error(w, "the page is closed", http.StatusServiceUnavailable)
		return
	}
	q := r.URL.Query().Get("q")
	var out struct {
		state
		Rows []standing `json:"rows"`
		More int        `json:"more"`
	}
	out.Rows = []standing{}
	s := h.sampler
	s.mu.Lock()
	out.state = h.state(access)
	for _, r := range s.sorted() {
		switch {
		case q != "" && !strings.Contains(r.id, q):
		case len(out.Rows) == rowsShown:
			out.More++
		default:
			out.Rows = append(out.Rows, h.standing(r))
		}
	}
	s.mu.Unlock()
	writeJSON(w, http.StatusOK, out)
}

// holder is one who holds. Slot ids are what gives a slot back, so they are not shown,
// only a mark by which to tell them apart.
type holder struct {
	Mark    string `json:"mark"`
	Owner   string `json:"owner"`
	Weight  int    `json:"weight"`
	SinceMS *int64 `json:"since_ms"` // null: not known
	LeftMS  int64  `json:"left_ms"`
}

// details are the holders of ids that are open, asked for once an interval for all who look.
type details struct {
	mu   sync.Mutex
	last map[string]detail
}

type detail struct {
	at      time.Time
	set     gotsem.Override
	holders []holder
	more    int
	err     error
}

// override is a limit that was set by hand.
type override struct {
	Limit   int    `json:"limit"`
	Version string `json:"version"` // a number that JavaScript's need not hold
	By      string `json:"by"`
	AgeMS   int64  `json:"age_ms"`
	LeftMS  *int64 `json:"left_ms"` // null: it does not end by itself
}

func overrideOf(o gotsem.Override) *override {
	if o.Version == 0 {
		return nil
	}
	set := &override{Limit: o.Limit, Version: strconv.FormatUint(o.Version, 10), By: printable(o.By), AgeMS: time.Since(o.At).Milliseconds()}
	if !o.Until.IsZero() {
		left := time.Until(o.Until).Milliseconds()
		set.LeftMS = &left
	}
	return set
}

func (s *sampler) detail(ctx context.Context, id string, held int) detail {
	s.details.mu.Lock()
	defer s.details.mu.Unlock()
	if d, ok := s.details.last[id]; ok && time.Since(d.at) < s.opt.Interval {
		return d
	}
	if len(s.details.last) >= hotMost || s.details.last == nil {
		s.details.last = make(map[string]detail)
	}
	d := detail{holders: []holder{}}
	if d.err = s.spend(ctx); d.err == nil {
		d.set, d.err = s.opt.Semaphore.LimitOf(ctx, id)
	}
	if d.err != nil {
		// It is said why.
	} else if held > holdersAsked {
		d.err = fmt.Errorf("%d are held: more than %d are not listed here", held, holdersAsked)
	} else if d.err = s.spend(ctx); d.err == nil {
		var all []gotsem.Holder
		all, d.err = s.opt.Semaphore.Holders(ctx, id)
		d.more = max(len(all)-holdersShown, 0)
		now := time.Now()
		for _, a := range all[:min(len(all), holdersShown)] {
			sum := sha256.Sum256([]byte(a.SlotID))
			one := holder{Mark: hex.EncodeToString(sum[:3]), Owner: printable(a.Owner), Weight: a.Weight, LeftMS: a.Until.Sub(now).Milliseconds()}
			if !a.Since.IsZero() {
				since := now.Sub(a.Since).Milliseconds()
				one.SinceMS = &since
			}
			d.holders = append(d.holders, one)
		}
	}
	d.at = time.Now()
	if ctx.Err() == nil { // what one viewer broke off says nothing to the others
		s.details.last[id] = d
	}
	return d
}

func (h *Handler) serveID(w http.ResponseWriter, r *http.Request, access Access) {
	raw, err := base64.RawURLEncoding.DecodeString(r.URL.Query().Get("id"))
	id := string(raw)
	if err != nil || id == "" || len(id) > gotsem.MaxID {
		http.Error(w, "id: 1 to 4096 bytes in base64url", http.StatusBadRequest)
		return
	}
	if !h.sampler.look(id) {
		http.Error(w, "the page is closed", http.StatusServiceUnavailable)
		return
	}
	s := h.sampler
	known := func() (row, bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if r := s.rows[id]; r != nil {
			copied := *r
			copied.history = append([]point(nil), r.history...)
			return copied, time.Since(r.at) < 2*s.opt.Interval
		}
		return row{id: id}, false
	}
	now, fresh := known()
	if !fresh {
		_ = s.ask(r.Context(), id, true) // its error is in the state
		now, _ = known()
	}
	var out struct {
		state
		Now     *standing `json:"now"` // null: never answered
		Set     *override `json:"set"` // null: none is
		Holders []holder  `json:"holders"`
		More    int       `json:"more"`
		Trouble string    `json:"trouble"` // why holders are not listed
	}
	d := s.detail(r.Context(), id, now.usage.Active)
	out.Set, out.Holders, out.More = overrideOf(d.set), d.holders, d.more
	if d.err != nil {
		out.Trouble = d.err.Error()
	}
	if !now.at.IsZero() {
		st := h.standing(&now)
		out.Now = &st
	}
	s.mu.Lock()
	out.state = h.state(access)
	s.mu.Unlock()
	writeJSON(w, http.StatusOK, out)
}

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
	errTooOften = errors.New("more than 10 changes within a second: try again in a second")
)

// serveLimit sets a limit, or takes it off, if it is still what the operator saw.
func (h *Handler) serveLimit(w http.ResponseWriter, r *http.Request, who string, access Access) {
	if kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";"); strings.TrimSpace(kind) != "application/json" {
		http.Error(w, "send application/json", http.StatusUnsupportedMediaType)
		return
	}
	var c change
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, bodyMost))
	dec.DisallowUnknownFields()
	err := dec.Decode(&c)
	raw, bad := base64.RawURLEncoding.DecodeString(c.Key)
	if err = cmp.Or(err, bad); err != nil || len(raw) == 0 || len(raw) > gotsem.MaxID || c.Limit != nil && *c.Limit < 0 || c.ForS < 0 || c.ForS > forMost {
		http.Error(w, "the body: {key, limit, for_s, version, reason}; a key of 1 to 4096 bytes in base64url, a limit of 0 or more, or null, up to 400 days", http.StatusBadRequest)
		return
	}
	seen, err := uint64(0), error(nil)
	if c.Version != "" {
		if seen, err = strconv.ParseUint(c.Version, 10, 64); err != nil {
			http.Error(w, "version: as the page said it, or empty", http.StatusBadRequest)
			return
		}
	}
	id := string(raw)
	status := http.StatusForbidden
	err = errView
	if access >= Operate {
		status, err = h.setLimit(r.Context(), id, who, c, seen)
	}
	h.audit(r.Context(), Event{Who: who, Remote: r.RemoteAddr, ID: id, Seen: seen, New: c.Limit, For: time.Duration(c.ForS) * time.Second, Reason: c.Reason, Err: err})
	if err != nil {
		writeJSON(w, status, map[string]string{"error": err.Error()})
		return
	}
	writeJSON(w, status, map[string]bool{"done": true})
}

// setLimit changes the limit if it is still the one that the operator saw, whoever else
// changes it, and wherever: the store compares.
func (h *Handler) setLimit(ctx context.Context, id, who string, c change, seen uint64) (status int, err error) {
	h.changes.mu.Lock()
	defer h.changes.mu.Unlock()
	if !h.changes.take() {
		return http.StatusTooManyRequests, errTooOften
	}
	sem, opts := h.opt.Semaphore, []gotsem.LimitOption{gotsem.IfVersion(seen)}
	if c.Limit == nil {
		err = sem.ResetLimit(ctx, id, opts...)
	} else {
		by := strings.ToValidUTF8(strings.TrimSuffix(who+": "+c.Reason, ": "), "")
		opts = append(opts, gotsem.For(time.Duration(c.ForS)*time.Second), gotsem.By(by[:min(len(by), 200)]))
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
	h.sampler.forget(id)
	if h.sampler.look(id) {
		_ = h.sampler.ask(ctx, id, true) // so that the next answer shows it
	}
	return http.StatusOK, nil
}

// forget has who holds, and what is set, asked for anew.
func (s *sampler) forget(id string) {
	s.details.mu.Lock()
	defer s.details.mu.Unlock()
	delete(s.details.last, id)
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
	h.opt.Logger.InfoContext(ctx, "gotsem: an operator changes a limit", "who", e.Who, "remote", e.Remote, "id", e.ID,
		"version_seen", e.Seen, "new", text(e.New), "for", e.For, "reason", e.Reason, "error", e.Err)
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}
