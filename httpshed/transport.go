package httpshed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/door"
)

// Defaults of Transport.
const (
	DefaultAttempts      = 3
	DefaultMaxRetryAfter = 10 * time.Second
)

// Transport is the client's side: an http.RoundTripper that holds a slot for as
// long as a request is under way, which is until its response's body is read to
// the end or closed; and that retries, politely, what an upstream refused.
//
// A request is retried if the answer is 429 or 503 with a Retry-After of at
// most MaxRetryAfter, and its body can be sent again (it has none, or GetBody).
// Such an answer says that nothing was done, so that the method does not matter.
// Nothing else is retried. Before that it waits as long as it was told, with
// up to a tenth more, and holds no slot meanwhile. It gives up after Attempts, when
// the request's context would end first, and when the upstream's retry budget is
// used up: a tenth of the requests, and ten. So an upstream that refuses everything
// sees at most 10 % more requests, not three times as many. The caller of a request
// that is given up gets the upstream's answer.
//
// The fields must not be changed once it is in use. It is safe for concurrent use.
type Transport struct {
	// Semaphore has the slots. It is needed.
	Semaphore *gotsem.Semaphore

	// Key names the upstream. Nil: the host and port of the URL.
	Key func(*http.Request) (string, error)

	// Also, if not nil, names further ids of which a request holds a slot, as
	// Options.Also does: of the tenant on whose behalf it is sent, of a model.
	Also func(*http.Request) []string

	// Wait is the most that a request waits in line for its slot. 0: it does not
	// wait. A request that gets none fails with the semaphore's error, such as
	// gotsem.ErrFull.
	Wait time.Duration

	// Base does the work. Nil: http.DefaultTransport.
	Base http.RoundTripper

	// Attempts is how often a request is sent at most. 0: 3. 1: never again.
	Attempts int

	// MaxRetryAfter is the longest Retry-After that is waited for. 0: 10 s.
	MaxRetryAfter time.Duration

	mu      sync.Mutex
	budgets map[string]*retryBudget
}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	id, err := t.id(r)
	if err != nil {
		closeBody(r)
		return nil, err
	}
	t.spend(id, -retryShare)
	try := r
	for attempt := 1; ; attempt++ {
		resp, err := t.once(try, id)
		if err != nil {
			return nil, err
		}
		resp.Request = r
		wait, again := t.again(r, resp, attempt)
		if !again || !t.spend(id, 1) {
			return resp, nil
		}
		if try, err = resend(r); err != nil {
			return resp, nil
		}
		discard(resp)
		if err := sleep(r.Context(), wait); err != nil {
			closeBody(try)
			return nil, err
		}
	}
}

// CloseIdleConnections is for (*http.Client).CloseIdleConnections.
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.base().(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

func (t *Transport) base() http.RoundTripper {
	if t.Base != nil {
		return t.Base
	}
	return http.DefaultTransport
}

func (t *Transport) id(r *http.Request) (string, error) {
	switch {
	case t.Semaphore == nil:
		return "", errors.New("httpshed: Transport.Semaphore is nil: give the semaphore whose slots requests take")
	case t.Key != nil:
		return t.Key(r)
	case r.URL == nil:
		return "", errors.New("httpshed: the request has no URL")
	}
	return r.URL.Host, nil
}

// closeBody does what a RoundTripper owes also to a request that it does not send.
func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
}

// once sends r once, with a slot that its response holds.
func (t *Transport) once(r *http.Request, id string) (_ *http.Response, err error) {
	asker := door.Asker{ID: id, Weight: 1}
	if t.Also != nil {
		asker.Also = t.Also(r)
	}
	lease, err := door.Acquire(r.Context(), t.Semaphore, asker, t.Wait)
	if err != nil {
		closeBody(r)
		return nil, fmt.Errorf("httpshed: not sent: %w", err)
	}
	// The request ends also when the slot is lost.
	ctx, cancel := context.WithCancelCause(r.Context())
	stop := context.AfterFunc(lease.Context(), func() { cancel(context.Cause(lease.Context())) })
	end := sync.OnceFunc(func() {
		stop()
		_ = lease.Release(ctx) // what the store does not take now, gotsem releases in the background
		cancel(nil)
	})
	answered := false
	defer func() {
		if !answered { // a panic of Base, too
			end()
		}
	}()
	resp, err := t.base().RoundTrip(r.WithContext(ctx))
	if err != nil {
		if cause := door.Loss(lease); cause != nil {
			err = fmt.Errorf("httpshed: %w: %w", cause, err)
		}
		return nil, err
	}
	answered = true
	switch body := resp.Body.(type) {
	case nil: // no RoundTripper should, some do
		resp.Body = http.NoBody
		end()
	case io.ReadWriteCloser: // 101 Switching Protocols
		resp.Body = &slotConn{slotBody{body, end}, body}
	default:
		if resp.Body == http.NoBody {
			end()
			break
		}
		resp.Body = &slotBody{body, end}
	}
	return resp, nil
}

// slotBody gives the slot back when the body has ended or is closed.
type slotBody struct {
	io.ReadCloser
	end func()
}

func (b *slotBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.end()
	}
	return n, err
}

func (b *slotBody) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}

// slotConn is the body of a connection that changed its protocol. It holds the slot
// until it is closed: an end of what is read is not the end of what is written.
type slotConn struct {
	slotBody
	io.Writer
}

func (c *slotConn) Read(p []byte) (int, error) { return c.ReadCloser.Read(p) }

// again decides whether an answer is a refusal to come back from, and when.
func (t *Transport) again(r *http.Request, resp *http.Response, attempt int) (time.Duration, bool) {
	if resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode != http.StatusServiceUnavailable {
		return 0, false
	}
	if attempt >= cmp.Or(t.Attempts, DefaultAttempts) || r.Body != nil && r.Body != http.NoBody && r.GetBody == nil {
		return 0, false
	}
	wait, ok := parseRetryAfter(resp.Header)
	if !ok || wait > cmp.Or(t.MaxRetryAfter, DefaultMaxRetryAfter) {
		return 0, false
	}
	wait += rand.N(wait/10 + 1)
	if ends, ok := r.Context().Deadline(); ok && time.Until(ends) <= wait {
		return 0, false
	}
	return wait, true
}

// parseRetryAfter reads seconds or an HTTP-date. RFC 9110 §10.2.3. A date is the
// upstream's: it counts from the answer's own Date, since the clocks of two machines
// differ by more than what is waited here. Without a Date it goes by this one's.
func parseRetryAfter(h http.Header) (time.Duration, bool) {
	v := strings.TrimSpace(h.Get("Retry-After"))
	if n, err := strconv.ParseUint(v, 10, 31); err == nil {
		return time.Duration(n) * time.Second, true
	}
	at, err := http.ParseTime(v)
	if err != nil {
		return 0, false
	}
	now, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		now = time.Now()
	}
	return max(0, at.Sub(now)), true
}

// resend makes the request to send once more.
func resend(r *http.Request) (*http.Request, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return r, nil
	}
	body, err := r.GetBody()
	if err != nil {
		return nil, err
	}
	again := r.WithContext(r.Context())
	again.Body = body
	return again, nil
}

// discard reads what little a refusal says, so that its connection can be used
// again, and gives its slot back.
func discard(resp *http.Response) {
	_, _ = io.CopyN(io.Discard, resp.Body, 4<<10)
	_ = resp.Body.Close()
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// A retry budget is what gRPC calls retry throttling: each request pays in a
// share of a retry, each retry takes a whole one.
const (
	retryShare   = 0.1
	retryReserve = 10.0
	budgetsKept  = 1000 // upstreams
)

type retryBudget struct{ left float64 }

// spend takes n retries out of the budget of id, if there are as many. A negative
// n pays in.
func (t *Transport) spend(id string, n float64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.budgets[id]
	if b == nil {
		if t.budgets == nil {
			t.budgets = make(map[string]*retryBudget)
		}
		if len(t.budgets) >= budgetsKept {
			for other := range t.budgets { // any: it begins anew
				delete(t.budgets, other)
				break
			}
		}
		b = &retryBudget{left: retryReserve}
		t.budgets[id] = b
	}
	if b.left < n {
		return false
	}
	b.left = min(retryReserve, b.left-n)
	return true
}
