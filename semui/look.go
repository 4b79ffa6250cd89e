package semui

import (
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
	"github.com/ashfaqjani916/gotsem/internal/watch"
)

// Bounds of what is shown and taken.
const (
	rowsShown    = 50
	holdersShown = 100 // a page
	waitersShown = 50
	detailsKept  = 100
	bodyMost     = 64 << 10
	changesMost  = 10              // a second
	forMost      = 400 * 24 * 3600 // seconds
)

var errClosed = errors.New("the page is closed")

// standing is how an id stands, in JSON.
type standing struct {
	Key      string   `json:"key"` // the id in base64url, as it is in URLs
	ID       string   `json:"id"`  // as it is shown
	Health   string   `json:"health"`
	Held     int      `json:"held"`
	Limit    *int     `json:"limit"` // null: not known here
	LimitSet bool     `json:"limit_set"`
	Waiting  int      `json:"waiting"`
	Line     []int    `json:"line"`    // critical, default, batch, sheddable
	HeadMS   int64    `json:"head_ms"` // for how long the first in line has waited
	NextInMS int64    `json:"next_in_ms"`
	AgeMS    int64    `json:"age_ms"` // of these numbers
	History  [][3]int `json:"history"`

	Refused   uint32            `json:"refused"` // by this process, within the last one to two minutes
	RefusedBy map[string]uint32 `json:"refused_by"`
}

func (h *Handler) standing(r *watch.Row) standing {
	u := r.Usage
	limited := u.LimitSet || !h.opt.LimitUnknown
	st := standing{Key: base64.RawURLEncoding.EncodeToString([]byte(r.ID)), ID: printable(r.ID), Health: watch.Word(u, limited), Held: u.Active, LimitSet: u.LimitSet,
		Waiting: u.Waiting, HeadMS: u.HeadAge.Milliseconds(), NextInMS: u.NextIn.Milliseconds(), AgeMS: time.Since(r.At).Milliseconds(), History: make([][3]int, len(r.History))}
	if limited {
		st.Limit = &u.Limit
	}
	st.RefusedBy, st.Refused = h.refusals.of(r.ID)
	for _, c := range []gotsem.Class{gotsem.Critical, gotsem.Default, gotsem.Batch, gotsem.Sheddable} {
		st.Line = append(st.Line, u.WaitingAs(c))
	}
	for i, p := range r.History {
		st.History[i] = [3]int{p.Held, p.Limit, p.Line}
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
	HeadMS     int64  `json:"head_ms"` // the longest that the first of a line has waited
	IDs        int    `json:"ids"`
}

// stateOf says how the store does, and what rows sum up to.
func (h *Handler) stateOf(rows []*watch.Row, now watch.State, access Access) state {
	st := state{Operate: access >= Operate, IntervalMS: h.opt.Interval.Milliseconds(), Up: now.Err == nil, Seen: now.Seen, Whole: now.Whole, IDs: len(rows)}
	if now.Err != nil {
		st.Error = now.Err.Error()
	}
	if !now.OK.IsZero() {
		st.SilentMS = time.Since(now.OK).Milliseconds()
	}
	for _, r := range rows {
		st.Held += r.Usage.Active
		st.Waiting += r.Usage.Waiting
		st.HeadMS = max(st.HeadMS, r.Usage.HeadAge.Milliseconds())
	}
	return st
}

// state is stateOf all that is known.
func (h *Handler) state(access Access) (st state) {
	h.watch.View(func(rows []*watch.Row, now watch.State) { st = h.stateOf(rows, now, access) })
	return st
}

// view is what a screen shows: the answer to a GET, and what a stream sends each interval.
type view func(ctx context.Context) (any, error)

// viewOf returns the view that a request asks for; its error is the request's fault.
func (h *Handler) viewOf(r *http.Request, name string, access Access) (view, error) {
	q := r.URL.Query()
	switch name {
	case "ids":
		return func(context.Context) (any, error) { return h.ids(q.Get("q"), access) }, nil
	case "store":
		return func(ctx context.Context) (any, error) { return h.store(ctx, access) }, nil
	case "id", "holders":
		id, ok := idOf(q.Get("id"))
		if !ok {
			return nil, errors.New("id: 1 to 4096 bytes in base64url")
		}
		if name == "id" {
			return func(ctx context.Context) (any, error) { return h.one(ctx, id, access) }, nil
		}
		after, err := h.seal.open(id, q.Get("after"))
		if err != nil {
			return nil, fmt.Errorf("after: %w", err)
		}
		return func(ctx context.Context) (any, error) { return h.further(ctx, id, after, access) }, nil
	}
	return nil, fmt.Errorf("view: ids, id or store, not %.20q", name)
}

func (h *Handler) serveView(w http.ResponseWriter, r *http.Request, name string, access Access) {
	look, err := h.viewOf(r, name, access)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	answer, err := look(r.Context())
	switch {
	case errors.Is(err, errClosed):
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	case err != nil:
		http.Error(w, err.Error(), http.StatusBadGateway)
	default:
		writeJSON(w, http.StatusOK, answer)
	}
}

// ids is the overview: what hurts most, of all or of the ids that contain q.
func (h *Handler) ids(q string, access Access) (any, error) {
	if !h.watch.Look("") {
		return nil, errClosed
	}
	var out struct {
		state
		Rows []standing `json:"rows"`
		More int        `json:"more"`
		Set  []standing `json:"set"` // those of a limit set by hand, of all ids
	}
	out.Rows, out.Set = []standing{}, []standing{}
	h.watch.View(func(rows []*watch.Row, now watch.State) {
		out.state = h.stateOf(rows, now, access)
		for _, r := range rows {
			if r.Usage.LimitSet && len(out.Set) < rowsShown {
				out.Set = append(out.Set, h.standing(r))
			}
			switch {
			case q != "" && !strings.Contains(r.ID, q):
			case len(out.Rows) == rowsShown:
				out.More++
			default:
				out.Rows = append(out.Rows, h.standing(r))
			}
		}
	})
	return out, nil
}

// holder is one who holds.
type holder struct {
	Mark    string `json:"mark"`   // by which to tell them apart
	Handle  string `json:"handle"` // the slot id, sealed; empty: for viewers
	Owner   string `json:"owner"`
	Weight  int    `json:"weight"`
	SinceMS *int64 `json:"since_ms"` // null: not known
	LeftMS  int64  `json:"left_ms"`
}

// waiter is one who waits.
type waiter struct {
	Owner    string `json:"owner"`
	Weight   int    `json:"weight"`
	Class    string `json:"class"`
	WaitedMS *int64 `json:"waited_ms"` // null: not known
}

// mark tells slots apart, and gives none back.
func mark(slotID string) string {
	sum := sha256.Sum256([]byte(slotID))
	return hex.EncodeToString(sum[:3])
}

func ago(now, then time.Time) *int64 {
	if then.IsZero() {
		return nil
	}
	ms := now.Sub(then).Milliseconds()
	return &ms
}

// details are what is asked of ids that are open, once an interval for all who look.
type details struct {
	mu   sync.Mutex
	last map[string]detail
}

type detail struct {
	at      time.Time
	set     gotsem.Override
	holders []gotsem.Holder // the first page
	next    string
	waiters []gotsem.Waiter
	state   gotsem.State
	err     error // of whichever was not answered
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

func (h *Handler) detail(ctx context.Context, id string) detail {
	all := &h.details
	all.mu.Lock()
	defer all.mu.Unlock()
	if d, ok := all.last[id]; ok && time.Since(d.at) < h.opt.Interval {
		return d
	}
	if len(all.last) >= detailsKept || all.last == nil {
		all.last = make(map[string]detail)
	}
	var d detail
	sem := h.opt.Semaphore
	for _, ask := range []func() error{
		func() (err error) { d.set, err = sem.LimitOf(ctx, id); return err },
		func() (err error) { d.holders, d.next, err = sem.HoldersPage(ctx, id, "", holdersShown); return err },
		func() (err error) { d.waiters, err = sem.Waiters(ctx, id, waitersShown); return err },
		func() (err error) { d.state, err = sem.State(ctx, id); return err },
	} {
		if d.err = h.watch.Spend(ctx); d.err == nil {
			d.err = ask()
		}
		if d.err != nil {
			break
		}
	}
	d.at = time.Now()
	if ctx.Err() == nil { // what one viewer broke off says nothing to the others
		all.last[id] = d
	}
	return d
}

func (h *Handler) holders(id string, hs []gotsem.Holder, access Access) []holder {
	out, now := make([]holder, len(hs)), time.Now()
	for i, a := range hs {
		out[i] = holder{Mark: mark(a.SlotID), Owner: printable(a.Owner), Weight: a.Weight, SinceMS: ago(now, a.Since), LeftMS: a.Until.Sub(now).Milliseconds()}
		if access >= Operate {
			out[i].Handle = h.seal.close(id, a.SlotID)
		}
	}
	return out
}

// page is a page of holders.
type page struct {
	Holders []holder `json:"holders"`
	Next    string   `json:"next"` // of the page after it; empty: there is none
}

func (h *Handler) pageOf(id string, hs []gotsem.Holder, next string, access Access) page {
	p := page{Holders: h.holders(id, hs, access)}
	if next != "" {
		p.Next = h.seal.close(id, next)
	}
	return p
}

// further is a page of holders behind the first.
func (h *Handler) further(ctx context.Context, id, after string, access Access) (any, error) {
	if !h.watch.Look(id) {
		return nil, errClosed
	}
	if err := h.watch.Spend(ctx); err != nil {
		return nil, err
	}
	hs, next, err := h.opt.Semaphore.HoldersPage(ctx, id, after, holdersShown)
	if err != nil {
		return nil, err
	}
	return h.pageOf(id, hs, next, access), nil
}

// one is the screen of an id.
func (h *Handler) one(ctx context.Context, id string, access Access) (any, error) {
	if !h.watch.Look(id) {
		return nil, errClosed
	}
	now, fresh := h.watch.Row(id)
	if !fresh {
		_ = h.watch.Ask(ctx, id) // its error is in the state
		now, _ = h.watch.Row(id)
	}
	var out struct {
		state
		page
		Now     *standing `json:"now"` // null: never answered
		Set     *override `json:"set"` // null: none is
		Waiters []waiter  `json:"waiters"`
		Losses  int       `json:"losses"`
		LossMS  *int64    `json:"loss_ms"` // since the last; null: there was none
		GraceMS int64     `json:"grace_ms"`
		Trouble string    `json:"trouble"` // why some of this is missing
	}
	d := h.detail(ctx, id)
	out.Set, out.page = overrideOf(d.set), h.pageOf(id, d.holders, d.next, access)
	at := time.Now()
	out.Waiters = make([]waiter, len(d.waiters))
	for i, w := range d.waiters {
		out.Waiters[i] = waiter{printable(w.Owner), w.Weight, w.Class.String(), ago(at, w.Since)}
	}
	out.Losses, out.LossMS, out.GraceMS = d.state.Losses, ago(at, d.state.LastLoss), d.state.Grace.Milliseconds()
	if d.err != nil {
		out.Trouble = d.err.Error()
	}
	if !now.At.IsZero() {
		st := h.standing(&now)
		out.Now = &st
	}
	out.state = h.state(access)
	return out, nil
}

// storeView is what is known of the store, asked for once in checkEvery for all who look.
type storeView struct {
	mu    sync.Mutex
	at    time.Time
	state gotsem.State
	found []gotsem.Finding
	err   error
}

// checkEvery: what gotsem doctor looks at costs a few dozen calls.
const checkEvery = 30 * time.Second

type process struct {
	Owner  string `json:"owner"`
	LeftMS *int64 `json:"left_ms"` // until it is given up, unless it is heard of; null: not known
}

type finding struct {
	What string `json:"what"`
	OK   bool   `json:"ok"`
	Text string `json:"text"`
}

// store is the screen of the store.
func (h *Handler) store(ctx context.Context, access Access) (any, error) {
	if !h.watch.Look("") {
		return nil, errClosed
	}
	v := &h.storeView
	v.mu.Lock()
	defer v.mu.Unlock()
	if time.Since(v.at) >= checkEvery {
		if v.state, v.err = h.opt.Semaphore.State(ctx, "semui"); v.err == nil {
			v.found, v.err = h.opt.Semaphore.Check(ctx)
		}
		if ctx.Err() == nil {
			v.at = time.Now()
		}
	}
	stats := h.opt.Semaphore.Stats()
	var out struct {
		state
		Processes []process      `json:"processes"`
		Findings  []finding      `json:"findings"`
		AgeMS     int64          `json:"age_ms"` // of both
		Here      map[string]any `json:"here"`   // this process's counters
		Trouble   string         `json:"trouble"`
	}
	out.Processes, out.Findings, out.AgeMS = []process{}, []finding{}, time.Since(v.at).Milliseconds()
	for _, p := range v.state.Processes {
		one := process{Owner: printable(p.Owner)}
		if !p.Until.IsZero() {
			left := time.Until(p.Until).Milliseconds()
			one.LeftMS = &left
		}
		out.Processes = append(out.Processes, one)
	}
	for _, f := range v.found {
		out.Findings = append(out.Findings, finding{f.What, f.OK, printable(f.Text)})
	}
	if v.err != nil {
		out.Trouble = v.err.Error()
	}
	out.Here = map[string]any{"granted": stats.Granted, "refused": stats.Refused, "lost": stats.Lost, "released": stats.Released, "held": stats.Held, "waiting": stats.Waiting,
		"outages": stats.Outages, "failed_open": stats.FailedOpen, "local": stats.Local, "store_errors": stats.StoreErrors, "pending": stats.Pending}
	out.state = h.state(access)
	return out, nil
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}
