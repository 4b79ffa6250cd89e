// Package extest starts what the tests of the examples need.
package extest

import (
	"context"
	"os/exec"
	"testing"
	"time"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

// Patience is how long something is awaited.
const Patience = 20 * time.Second

// Semaphore makes one on a Redis of its own.
func Semaphore(t *testing.T, o gotsem.Options) (*gotsem.Semaphore, *redistest.Server) {
	t.Helper()
	srv := redistest.Start(t)
	return On(t, srv, o), srv
}

// On makes one more, as another process would, on a Redis that is there.
func On(t *testing.T, srv *redistest.Server, o gotsem.Options) *gotsem.Semaphore {
	t.Helper()
	o.Store = redisstore.New(srv.Client(), "example:")
	sem, err := gotsem.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sem.Close() })
	return sem
}

// Await waits until ok.
func Await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for began := time.Now(); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Since(began) > Patience {
			t.Fatalf("after %v still not: %s", Patience, what)
		}
	}
}

// Dead takes slots as a process does that then dies: they are not renewed, and not released.
func Dead(t *testing.T, srv *redistest.Server, id string, slots int, ttl time.Duration) {
	t.Helper()
	old := gotsem.NewGotsem(srv.Client(), "example:", ttl, slots, nil, nil)
	t.Cleanup(func() { _ = old.Close() })
	for range slots {
		if !old.TryAcquire(context.Background(), id).Acquired {
			t.Fatalf("%q has no %d slots", id, slots)
		}
	}
}

// Command builds gotsem, and returns the folder that it is in.
func Command(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	out, err := exec.Command("go", "build", "-o", dir, "github.com/ashfaqjani916/gotsem/cmd/gotsem").CombinedOutput()
	if err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return dir
}
