//go:build unix

package integration

import (
	"context"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem/internal/redistest"
)

// patience is how long an event is awaited that must come: long enough for a busy machine, and never slept through.
const patience = 20 * time.Second

// soon waits until ready, and fails the test if that does not come within d.
func soon(t testing.TB, d time.Duration, what string, ready func() bool) {
	t.Helper()
	began := time.Now()
	for tick := time.Millisecond; !ready(); tick = min(2*tick, 20*time.Millisecond) {
		if time.Since(began) > d {
			t.Errorf("waited %v for %s", d, what)
			return
		}
		time.Sleep(tick)
	}
}

// go-redis logs every connection that fails, which here is what is tested.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

func TestMain(m *testing.M) {
	redis.SetLogger(quiet{})
	var stop func()
	var err error
	names, stop, err = redistest.Launch("integration", func(tb redistest.TB) *redistest.Names {
		identity = redistest.NewIdentity(tb, "*.test")
		return redistest.NewNames(tb)
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	net.DefaultResolver = names.Resolver() // go-redis asks this one
	code := m.Run()
	stop()
	os.Exit(code)
}
