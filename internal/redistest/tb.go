package redistest

import (
	"fmt"
	"os"
	"sync"
)

// TB is what this package asks of a test; every testing.TB is one. It is spelled out here so that programs which use this package
// do not link the testing package with its flags.
type TB interface {
	Helper()
	Fatalf(format string, args ...any) // must not return
	Logf(format string, args ...any)
	Cleanup(func())
	TempDir() string
	Name() string
}

// Launch starts something for a program that is not a test, and returns an error where a test would fail:
//
//	srv, stop, err := redistest.Launch("bench", func(tb redistest.TB) *redistest.Server { return redistest.Start(tb) })
//	if err != nil {
//		return err
//	}
//	defer stop()
//
// T may be anything that start builds, several servers at once included. If err is not nil, everything that had been started was
// ended again. Stop ends it otherwise, and waits; a second call is a no-op. Between the two, a method that cannot do its work
// panics with an error: whoever breaks servers on purpose has nothing sensible to go on with. Logf writes to standard error.
func Launch[T any](name string, start func(TB) T) (started T, stop func(), err error) {
	p := &program{name: name}
	defer func() {
		switch failed := recover().(type) {
		case nil:
		case failure:
			p.end()
			stop, err = func() {}, failed
		default:
			p.end()
			panic(failed)
		}
	}()
	return start(p), p.end, nil
}

// program is the TB of a program that is not a test.
type program struct {
	name     string
	mu       sync.Mutex
	cleanups []func()
}

// failure is what Fatalf panics with, so that Launch can tell it from a panic of somebody else's.
type failure struct{ error }

func (p *program) Helper()      {}
func (p *program) Name() string { return p.name }

func (p *program) Fatalf(format string, args ...any) {
	panic(failure{fmt.Errorf(format, args...)})
}

func (p *program) Logf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, p.name+": "+format+"\n", args...)
}

func (p *program) Cleanup(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cleanups = append(p.cleanups, f)
}

func (p *program) TempDir() string {
	dir, err := os.MkdirTemp("", "redistest-")
	if err != nil {
		p.Fatalf("redistest: no directory for a server: %v", err)
	}
	p.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// end runs the cleanups, the last one first, as testing does.
func (p *program) end() {
	for {
		p.mu.Lock()
		last := len(p.cleanups) - 1
		if last < 0 {
			p.mu.Unlock()
			return
		}
		cleanup := p.cleanups[last]
		p.cleanups = p.cleanups[:last]
		p.mu.Unlock()
		cleanup()
	}
}
