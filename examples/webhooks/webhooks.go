// Package webhooks delivers webhooks, so many at once to an endpoint and in all.
package webhooks

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/url"
	"time"

	"github.com/ashfaqjani916/gotsem"
)

// ErrLater says that the delivery was not tried: put it back into the queue.
var ErrLater = errors.New("webhooks: the endpoint has as many deliveries under way as it may")

// Deliver posts an event. It does not wait for a slot of the endpoint: one that hangs must
// not hold up the workers for all others.
func Deliver(ctx context.Context, sem *gotsem.Semaphore, endpoint string, event []byte) (retryIn time.Duration, err error) {
	at, err := url.Parse(endpoint)
	if err != nil {
		return 0, err
	}
	lease, err := sem.Try(ctx, "endpoint:"+at.Host, gotsem.Also("all"))
	var full *gotsem.FullError
	if errors.As(err, &full) {
		return max(full.RetryAfter, time.Second), ErrLater
	} else if err != nil {
		return time.Second, err
	}
	defer func() { _ = lease.Release(ctx) }()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint, bytes.NewReader(event))
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return time.Second, err
	}
	return 0, resp.Body.Close()
}
