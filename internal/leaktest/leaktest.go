// Package leaktest fails tests that leave goroutines behind. It is a page long, so that
// the module that everybody links need not name a package for its own tests alone.
package leaktest

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"
)

// patience is how long goroutines that are on their way out are waited for. A leak
// costs a failing test that much; a busy machine gets it for nothing.
const patience = 5 * time.Second

// TB is what is needed of a *testing.T.
type TB interface {
	Helper()
	Errorf(format string, args ...any)
}

// Begin notes the goroutines of this moment. The check that it returns fails the test if
// others are left 5 s after it is called, and shows where they stand.
func Begin(tb TB) (check func()) {
	before := goroutines()
	return func() {
		tb.Helper()
		if left := others(before); len(left) > 0 {
			tb.Errorf("%d goroutines are left:\n\n%s", len(left), strings.Join(left, "\n\n"))
		}
	}
}

// Main runs the tests of a package, and fails if any goroutine is left after the last. It
// does not return.
func Main(m interface{ Run() int }) {
	code := m.Run()
	if code == 0 {
		if left := others(nil); len(left) > 0 {
			fmt.Fprintf(os.Stderr, "%d goroutines are left:\n\n%s\n", len(left), strings.Join(left, "\n\n"))
			code = 1
		}
	}
	os.Exit(code)
}

// others returns the stacks of the goroutines that are neither among before nor were
// started by those, once none is left or patience is over: what an earlier test's client
// still does is not this test's.
func others(before map[string]string) (left []string) {
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		left = nil
		now := goroutines()
		for id, stack := range now {
			if !from(id, now, before) {
				left = append(left, stack)
			}
		}
		if len(left) == 0 || time.Since(began) > patience {
			return left
		}
	}
}

// from reports whether a goroutine, or one that it descends from, is among before.
func from(id string, now, before map[string]string) bool {
	for id != "" {
		if _, was := before[id]; was {
			return true
		}
		_, id, _ = strings.Cut(now[id], " in goroutine ") // created by f in goroutine 12
		if id != "" {
			id, _, _ = strings.Cut("goroutine "+id, "\n")
		}
	}
	return false
}

// goroutines returns the stacks of all goroutines but the caller's and those of package
// testing and os/signal, by id ("goroutine 12"). An id is never used twice.
func goroutines() map[string]string {
	buf := make([]byte, 64<<10)
	n := runtime.Stack(buf, true)
	for n == len(buf) {
		buf = make([]byte, 2*len(buf))
		n = runtime.Stack(buf, true)
	}
	all := make(map[string]string)
	stacks := strings.Split(strings.TrimSpace(string(buf[:n])), "\n\n")
	for _, stack := range stacks[1:] { // the first is the caller's
		top := strings.SplitN(stack, "\n", 3)
		if len(top) > 1 && (strings.HasPrefix(top[1], "testing.") || strings.HasPrefix(top[1], "os/signal.")) {
			continue
		}
		id, _, _ := strings.Cut(stack, " [")
		all[id] = stack
	}
	return all
}
