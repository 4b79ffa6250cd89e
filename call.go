package gotsem

import (
	"math"
	"time"
)

// Option is an option of one call of Try, Acquire or Do.
type Option struct {
	id      string // of Also
	class   Class
	weight  int
	maxWait time.Duration
	kind    uint8
}

const (
	optWeight uint8 = iota
	optMaxWait
	optClass
	optAlso
	optAlsoBad // with what it does not take
)

// Weight asks for n slots at once, as one lease. Without it a lease has weight 1.
func Weight(n int) Option { return Option{kind: optWeight, weight: n} }

// MaxWait is the most that Acquire waits in line. When it is over, Acquire
// answers a *FullError that is ErrFull and ErrWaitTooLong. Try never waits. Zero
// or less: not at all.
func MaxWait(d time.Duration) Option { return Option{kind: optMaxWait, maxWait: d} }

// callOptions are the options of one call, put together.
type callOptions struct {
	weight  int
	maxWait time.Duration // math.MaxInt64: as long as ctx allows
	also    []Option      // the further ids
	class   Class
	classed bool // by As
}

func callOptionsOf(opts []Option) callOptions {
	c := callOptions{weight: 1, maxWait: math.MaxInt64}
	for _, o := range opts {
		switch o.kind {
		case optWeight:
			c.weight = o.weight
		case optMaxWait:
			c.maxWait = max(0, o.maxWait)
		case optClass:
			c.class, c.classed = o.class, true
		case optAlso, optAlsoBad:
			c.also = append(c.also, o)
		}
	}
	return c
}
