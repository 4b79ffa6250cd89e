// Package bytes limits the bytes that are in flight, over all processes.
package bytes

import (
	"context"
	"io"

	"github.com/ashfaqjani916/gotsem"
)

// Limit is how many MiB of uploads are in memory at once, over all processes.
const Limit = 512

// Upload holds as many slots as data has MiB while put sends it. A part that is larger than
// the whole limit fails at once (gotsem.ErrTooHeavy), and needs smaller parts.
func Upload(ctx context.Context, sem *gotsem.Semaphore, bucket string, size int64, data io.Reader, put func(context.Context, io.Reader) error) error {
	mib := int((size + 1<<20 - 1) >> 20)
	return sem.Do(ctx, "upload:"+bucket, func(ctx context.Context) error {
		return put(ctx, data)
	}, gotsem.Weight(max(mib, 1)))
}
