package watch

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ashfaqjani916/gotsem"
)

// All ids are seen, the worst first; and those that nobody holds any more are gone after the
// next walk, also those that hurt too little to be looked at each interval.
func TestWhatIsOverIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sem, err := gotsem.New(gotsem.Options{Limit: 5})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = sem.Close() }()
		var leases []*gotsem.Lease
		for i := range 3 * hotMost {
			for range 1 + i%3 {
				l, err := sem.Try(context.Background(), fmt.Sprint("id", i))
				if err != nil {
					t.Fatal(err)
				}
				leases = append(leases, l)
			}
		}
		w := New(Options{Semaphore: sem, Interval: time.Second, Budget: 1000})
		defer w.Close()
		see := func() (n int, worst gotsem.Usage) {
			for range 60 { // somebody looks for a minute
				w.Look("")
				time.Sleep(time.Second)
			}
			w.View(func(rows []*Row, st State) {
				if n = len(rows); n > 0 {
					worst = rows[0].Usage
				}
				if st.Err != nil || st.Whole != n {
					t.Errorf("%+v, and %d rows", st, n)
				}
			})
			return n, worst
		}
		if n, worst := see(); n != 3*hotMost || worst.Active != 3 {
			t.Errorf("%d ids, the worst %+v; want %d, and 3 held", n, worst, 3*hotMost)
		}
		for _, l := range leases {
			_ = l.Release(context.Background())
		}
		if n, worst := see(); n != 0 {
			t.Errorf("nobody holds anything, and %d ids are shown, the worst %+v", n, worst)
		}
	})
}
