package gotsem

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/ashfaqjani916/gotsem/store"
)

// Class is how important a call is: when not all can be let in, the less important are
// refused first, and wait longer. It is the caller's word: whoever takes it from a header
// lets strangers choose.
type Class = store.Class

// The classes, from the least important on. A call without As is of the class Default.
const (
	Sheddable = store.Sheddable // work that nobody misses: prefetching, warming a cache
	Batch     = store.Batch     // work that nobody waits for
	Default   = store.Default   // what all is where nothing is said
	Critical  = store.Critical  // work without which the service is down
)

// As says of which class a call is. What that means Options.Classes says.
func As(c Class) Option { return Option{kind: optClass, class: c} }

// ClassRule is what a class may do. A share that is zero counts as 1, the whole.
type ClassRule struct {
	// Line is the share of the places in line (Queue, or what QueueFunc says) that may be
	// taken, in all, when a call of the class joins: from above 0 to 1. It is rounded up.
	// So those of a low class never fill the line for the rest.
	Line float64

	// HeadStart is how much earlier a call of the class stands in line than it came. A
	// lower class is overtaken by what comes within the difference after it, and by
	// nothing later: nobody waits for ever. A head start above all waits is strict order.
	// At most an hour.
	HeadStart time.Duration

	// Slots is the share of the limit that may be in use, in all, with the slots of a call
	// that does not wait (Try, and Acquire without a line): from above 0 to 1. It is
	// rounded down, to 1 at least. Who stands in line waits for the whole limit. It keeps
	// room for higher classes where there is no line, and costs use.
	Slots float64
}

// builtIn are the rules of calls with As where Options.Classes is nil: sheddable and batch
// work does not fill the line for the rest, and critical work goes before what came at
// most 2 s earlier.
var builtIn = map[Class]ClassRule{
	Sheddable: {Line: .5}, Batch: {Line: .75}, Default: {}, Critical: {HeadStart: 2 * time.Second},
}

// maxHeadStart bounds ClassRule.HeadStart.
const maxHeadStart = time.Hour

// classTerms are a rule as requests have it.
type classTerms struct {
	line  float64
	lead  time.Duration
	share int // in thousandths; 0: the whole
}

// classes are the terms of all classes.
type classes [store.Classes]classTerms

func newClasses(rules map[Class]ClassRule) (cs classes) {
	if rules == nil {
		rules = builtIn
	}
	for i := range cs {
		cs[i].line = 1
	}
	for c, r := range rules {
		t := classTerms{line: 1, lead: r.HeadStart}
		if r.Line > 0 {
			t.line = r.Line
		}
		if r.Slots > 0 && r.Slots < 1 {
			t.share = max(1, int(math.Round(r.Slots*store.WholeShare)))
		}
		cs[c.Index()] = t
	}
	return cs
}

// check reports what is wrong with rules: in the order of the classes nothing may fall,
// or a call would fare worse for being more important.
func checkClasses(rules map[Class]ClassRule) error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("gotsem: Options.Classes: "+format, args...))
	}
	for c, r := range rules {
		if !c.Known() {
			bad("class %d: there are Sheddable, Batch, Default and Critical", int(c))
			continue
		}
		if !(r.Line >= 0 && r.Line <= 1) || !(r.Slots >= 0 && r.Slots <= 1) {
			bad("%v: Line %v and Slots %v are shares: above 0, and at most 1", c, r.Line, r.Slots)
		}
		if r.HeadStart < 0 || r.HeadStart > maxHeadStart {
			bad("%v: HeadStart is %v: from 0 to %v", c, r.HeadStart, maxHeadStart)
		}
	}
	if errs != nil {
		return errors.Join(errs...)
	}
	cs := newClasses(rules)
	for c := Sheddable; c < Critical; c++ {
		low, high := cs[c.Index()], cs[(c+1).Index()]
		if low.line > high.line || low.lead > high.lead || wholly(low.share) > wholly(high.share) {
			bad("%v may do more than %v: Line, HeadStart and Slots must not fall from a class to the next (one that is left out has Line 1, HeadStart 0, Slots 1)", c, c+1)
		}
	}
	return errors.Join(errs...)
}

// classed reports whether a call goes by a rule: with nobody having said anything of
// classes it does not.
func (s *Semaphore) classed(c callOptions) bool { return c.classed || s.opt.Classes != nil }

// shareOf is the share of the limit that a call may take if it does not wait; 0: all.
func (s *Semaphore) shareOf(c callOptions) int {
	if !s.classed(c) {
		return 0
	}
	return s.classes[c.class.Index()].share
}

// classify has r asked as its call's class may: with so many places in line, if it waits.
func (s *Semaphore) classify(r *store.Request, c callOptions) {
	if !s.classed(c) {
		return
	}
	t := &s.classes[c.class.Index()]
	r.Class = c.class
	if r.Queue > 0 {
		r.Queue, r.Lead = int(math.Ceil(t.line*float64(r.Queue))), t.lead
	} else {
		r.Share = t.share
	}
}
