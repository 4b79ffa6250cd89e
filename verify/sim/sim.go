package sim

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// Mutation is a rule of the protocol that is left out.
type Mutation uint16

// The rules, and what is done in their stead.
const (
	NoStamp        Mutation = 1 << iota // nobody looks whose memory the server has
	NoGrace                             // a loss is noticed, and grants go on
	TrustReceipt                        // trust counts from the answer, not from the question
	PurgeInGrace                        // what looks lapsed is forgotten during grace
	LimitOff                            // < limit becomes <= limit
	NoEcho                              // a jump of the server's clock is not noticed
	YoungestUptime                      // a run's start is judged by the earliest moment it can have been
	DropProof                           // any answer ends the proof that the clock jumped
	PutBackInDoubt                      // what lies about on its way is put back when it arrives
)

var mutationNames = map[string]Mutation{
	"no-stamp": NoStamp, "no-grace": NoGrace, "trust-from-receipt": TrustReceipt, "purge-in-grace": PurgeInGrace,
	"limit-off-by-one": LimitOff, "no-clock-echo": NoEcho, "uptime-rounded-up": YoungestUptime, "put-back-in-doubt": PutBackInDoubt, "proof-dropped": DropProof,
}

// Mutations returns them all by name.
func Mutations() map[string]Mutation { return mutationNames }

// Fault is what happens to the server in a run.
type Fault uint8

// The faults. Cut-off clients, lost, late and repeated messages, crashed and stopped
// clients come on top of each.
const (
	None     Fault = iota
	Flush          // FLUSHALL
	Restart        // restart without data
	Restore        // restart with what was saved a moment before
	FailOver       // the primary is gone; its replica was a little behind
	Split          // the primary is deposed, and takes writes for S more
	Clock          // the running server's clock steps
	faults
)

// Faults returns them all.
func Faults() (all []Fault) {
	for f := range faults {
		all = append(all, f)
	}
	return all
}

func (f Fault) String() string {
	return [...]string{"none", "flush", "restart", "restore", "fail-over", "split", "clock"}[f]
}

// Params of a run. Zero fields are filled in: TTL 3 s, grace TTL + S, limit 5.
type Params struct {
	TTL, Grace, S time.Duration
	Limit         int
	Fault         Fault // None with Any: drawn from the seed
	Any           bool
	Calm          bool // no cut-off clients, no late messages
	Mutation      Mutation
}

func (p Params) withDefaults(r *rand.Rand) Params {
	if p.TTL == 0 {
		p.TTL = 3 * time.Second
	}
	if p.Grace == 0 {
		p.Grace = p.TTL + p.S
	}
	if p.Limit == 0 {
		p.Limit = 5
	}
	if p.Any {
		p.Fault = Fault(r.IntN(int(faults)))
	}
	return p
}

// Result is what a run showed.
type Result struct {
	Seed     uint64
	Fault    Fault
	Most     int // holders at once
	Limit    int
	At       time.Duration // when they were first too many
	Granted  int
	PutBack  int
	ToldLost int           // a server said "lost" of a lease that was believed, and that nobody had released
	Refused  time.Duration // from the fault to the next new grant
	Forgot   int           // slots that the primary swept although their holders believed in them
	Ghosts   int           // slots that it took back, outside of any grace, although nobody believed in them
	Story    []string      // what happened, if asked for
}

// Bad reports a broken promise.
func (r Result) Bad() bool { return r.Most > r.Limit || r.Forgot > 0 || r.Ghosts > 0 }

func (r Result) String() string {
	return fmt.Sprintf("seed %d: %v: %d of %d held at most, %d granted, %d put back, %d told lost, no new grant for %v, %d forgotten, %d ghosts",
		r.Seed, r.Fault, r.Most, r.Limit, r.Granted, r.PutBack, r.ToldLost, r.Refused, r.Forgot, r.Ghosts)
}

// Run plays one seed. With story it keeps what happened, line by line.
func Run(seed uint64, p Params, story bool) Result {
	r := rand.New(rand.NewPCG(seed, 0x9E3779B97F4A7C15))
	p = p.withDefaults(r)
	w := newWorld(r, p, story)
	w.play()
	w.result.Seed = seed
	return w.result
}

// Search plays seeds from first on, and returns how many were bad and the first of
// those.
func Search(first uint64, n int, p Params) (bad int, found Result) {
	for seed := first; seed < first+uint64(n); seed++ {
		if r := Run(seed, p, false); r.Bad() {
			if bad++; bad == 1 {
				found = r
			}
		}
	}
	return bad, found
}

// First plays seeds from first on until one is bad; it gives up after n.
func First(first uint64, n int, p Params) (found Result, tried int, ok bool) {
	for tried = 1; tried <= n; tried++ {
		if r := Run(first+uint64(tried-1), p, false); r.Bad() {
			return r, tried, true
		}
	}
	return Result{}, n, false
}
