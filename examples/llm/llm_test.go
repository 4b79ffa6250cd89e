package llm

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/examples/internal/extest"
)

// upstream is a provider that counts the streams it has under way. Each sends a token, and
// then ends when it is told to.
type upstream struct {
	*httptest.Server
	now, most atomic.Int64
	end       chan struct{}
}

func newUpstream(t *testing.T) *upstream {
	u := &upstream{end: make(chan struct{})}
	u.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := u.now.Add(1)
		defer u.now.Add(-1)
		for most := u.most.Load(); n > most && !u.most.CompareAndSwap(most, n); most = u.most.Load() {
		}
		fmt.Fprintln(w, "token")
		_ = http.NewResponseController(w).Flush()
		select {
		case <-u.end:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(u.Close)
	return u
}

// Of ten streams of one key four are under way, as the provider counts them, from two
// processes; and the slot goes with the last token, not with the first.
func TestStreamsHoldTheirSlotToTheEnd(t *testing.T) {
	one, srv := extest.Semaphore(t, gotsem.Options{LimitFunc: Limit, Queue: 50})
	two := extest.On(t, srv, gotsem.Options{LimitFunc: Limit, Queue: 50})
	u := newUpstream(t)
	var all sync.WaitGroup
	var firsts atomic.Int64
	for i := range 10 {
		client := Client([]*gotsem.Semaphore{one, two}[i%2], "k1", "acme", "large")
		all.Go(func() {
			resp, err := client.Get(u.URL)
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			body := bufio.NewReader(resp.Body)
			if _, err := body.ReadString('\n'); err == nil {
				firsts.Add(1)
			}
			_, _ = io.Copy(io.Discard, body)
		})
	}
	extest.Await(t, "four have their first token", func() bool { return firsts.Load() == 4 })
	extest.Await(t, "six wait", func() bool { return one.Stats().Waiting+two.Stats().Waiting == 6 })
	if n := u.now.Load(); n != 4 {
		t.Errorf("%d streams are under way after the first tokens, want 4", n)
	}
	close(u.end)
	all.Wait()
	if n := u.most.Load(); n != 4 {
		t.Errorf("%d at once, want 4", n)
	}
}

// When the tenant is at its limit another key of it waits, and a key of another tenant does not.
func TestTenantsAndModelsHaveLimitsOfTheirOwn(t *testing.T) {
	sem, _ := extest.Semaphore(t, gotsem.Options{LimitFunc: Limit, Queue: 50})
	u := newUpstream(t)
	defer close(u.end)
	open := func(ctx context.Context, key, tenant string) error {
		r, err := http.NewRequestWithContext(ctx, "GET", u.URL, nil)
		if err != nil {
			return err
		}
		resp, err := Client(sem, key, tenant, "large").Do(r)
		if err == nil {
			t.Cleanup(func() { _ = resp.Body.Close() })
		}
		return err
	}
	for i := range 8 {
		if err := open(t.Context(), fmt.Sprint("k", i/4), "acme"); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := open(ctx, "k9", "acme"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a ninth of the tenant: %v", err)
	}
	if err := open(t.Context(), "k9", "other"); err != nil {
		t.Errorf("another tenant: %v", err)
	}
}

// The slots of a process that died are free within one TTL.
func TestADeadProcessHoldsNothingForLong(t *testing.T) {
	sem, srv := extest.Semaphore(t, gotsem.Options{LimitFunc: Limit, Queue: 50})
	extest.Dead(t, srv, "key:k1", 4, time.Second)
	u := newUpstream(t)
	close(u.end)
	resp, err := Client(sem, "k1", "acme", "large").Get(u.URL) // waits until they lapse
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
}
