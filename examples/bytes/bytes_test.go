package bytes

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/examples/internal/extest"
)

// However the sizes come, the MiB in flight are within the limit; none is larger than that.
func TestTheBytesInFlightAreBounded(t *testing.T) {
	sem, _ := extest.Semaphore(t, gotsem.Options{Limit: Limit, Queue: 100})
	var now, most atomic.Int64
	var all sync.WaitGroup
	for i := range 40 {
		mib := int64(1 + i*7%200)
		all.Go(func() {
			err := Upload(t.Context(), sem, "b", mib<<20, strings.NewReader(""), func(context.Context, io.Reader) error {
				n := now.Add(mib)
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
				time.Sleep(5 * time.Millisecond)
				now.Add(-mib)
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := most.Load(); n > Limit || n < Limit/2 {
		t.Errorf("%d MiB at once, want up to %d", n, Limit)
	}
	err := Upload(t.Context(), sem, "b", (Limit+1)<<20, nil, nil)
	if !errors.Is(err, gotsem.ErrTooHeavy) {
		t.Errorf("more than the whole limit: %v", err)
	}
}
