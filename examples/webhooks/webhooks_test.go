package webhooks

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/examples/internal/extest"
)

func limit(_ context.Context, id string) (int, error) {
	if strings.HasPrefix(id, "endpoint:") {
		return 2, nil
	}
	return 20, nil
}

// While one endpoint hangs, the others get all of their events, by as many workers as they
// would without it but two.
func TestAnEndpointThatHangsHoldsUpNobody(t *testing.T) {
	sem, _ := extest.Semaphore(t, gotsem.Options{LimitFunc: limit})
	end := make(chan struct{})
	hangs := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-end }))
	defer hangs.Close()
	defer close(end)
	var got atomic.Int64
	well := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { got.Add(1) }))
	defer well.Close()
	hanging := strings.Replace(hangs.URL, "127.0.0.1", "localhost", 1) // another host

	events := make(chan string, 200)
	for range 50 {
		events <- hanging
		events <- well.URL
	}
	ctx, cancel := context.WithCancel(t.Context())
	var workers sync.WaitGroup
	var later atomic.Int64
	for range 4 {
		workers.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case to := <-events:
					if _, err := Deliver(ctx, sem, to, []byte("{}")); errors.Is(err, ErrLater) {
						if to == well.URL {
							events <- to // at once, here; after retryIn, in a queue
						}
						later.Add(1)
					}
				}
			}
		})
	}
	extest.Await(t, "all events of the one that is well", func() bool { return got.Load() == 50 })
	if later.Load() == 0 {
		t.Error("nothing was put off")
	}
	cancel()
	workers.Wait()
}
