package leaktest

import (
	"fmt"
	"strings"
	"testing"
)

// noted is a test that remembers what it was told.
type noted struct{ said []string }

func (n *noted) Helper() {}

func (n *noted) Errorf(format string, args ...any) {
	n.said = append(n.said, fmt.Sprintf(format, args...))
}

func TestMain(m *testing.M) { Main(m) }

func TestGoroutineThatStaysFailsTheTest(t *testing.T) {
	earlier, end := make(chan struct{}), make(chan struct{})
	go func() { <-earlier }()
	defer close(earlier)
	var tb noted
	check := Begin(&tb)
	go func() { <-end }()
	check()
	if len(tb.said) != 1 || !strings.HasPrefix(tb.said[0], "1 goroutines are left") || !strings.Contains(tb.said[0], "leaktest_test.go") {
		t.Errorf("it said %q, want one goroutine of this file", tb.said)
	}
	close(end)
	tb.said = nil
	if check(); len(tb.said) > 0 {
		t.Errorf("it said %q after the goroutine had ended", tb.said)
	}
}
