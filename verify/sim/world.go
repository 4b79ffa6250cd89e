package sim

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// world is time, the network, the servers, the clients, and what befalls them.
type world struct {
	r      *rand.Rand
	p      Params
	result Result
	story  bool

	now    int64   // ms
	events []event // a heap
	seq    int

	ttl, hb   int64
	ends      int64 // nobody acquires from then on
	fault     int64 // when it strikes
	perClient int
	slots     int

	primary, replica *server
	lag              int64
	snapshots        []snapshot // of the primary, the oldest first
	early            data       // before the first of them
	clients          []*client
	all              map[int]*lease
}

type snapshot struct {
	at   int64
	data data
}

func newWorld(r *rand.Rand, p Params, story bool) *world {
	w := &world{r: r, p: p, story: story, all: map[int]*lease{}, ttl: p.TTL.Milliseconds()}
	w.hb = w.ttl / 3
	w.result.Limit, w.result.Fault = p.Limit, p.Fault
	w.now = 1_000_000_000 + r.Int64N(1000)
	w.fault = w.now + 3*w.ttl + r.Int64N(w.ttl)
	w.ends = w.fault + 4*w.ttl + p.Grace.Milliseconds()
	w.perClient = 1 + r.IntN(3)
	w.lag = []int64{0, 5, 50, 300, w.ttl / 2, w.ttl, w.ttl + w.ttl/2}[r.IntN(7)]
	w.primary = &server{w: w, name: "primary", up: true, writes: true, began: w.now - 100_000, rid: "r1", run: "p1", data: newData()}
	w.replica = &server{w: w, name: "replica", up: true, rid: "r1", run: "p2", began: w.now - 100_000, data: newData()}
	if r.IntN(2) == 0 {
		w.replica.offset = r.Int64N(4*w.ttl+1) - 2*w.ttl
	}
	n := 2*p.Limit/w.perClient + 2
	for i := range n {
		w.clients = append(w.clients, &client{w: w, name: i, server: w.primary, leases: map[int]*lease{}})
	}
	return w
}

// play runs the world to its end.
func (w *world) play() {
	rising := w.r.IntN(2) == 0 // occupancy rises shortly before the fault: the worst that lag can lose
	for i, c := range w.clients {
		// Everybody has met the marker and read the clock before anything happens: a
		// process without a past is a stated exception.
		c.met, c.echo, c.sent, c.received = true, w.primary.now(), w.now, w.now
		from := w.now + w.r.Int64N(w.ttl)
		if rising && i > 0 {
			from = w.fault - w.r.Int64N(max(w.lag, 100)+200)
		}
		c.when(from, c.want)
	}
	w.primary.data.marker = &marker{rid: "r1", run: "p1", seen: w.primary.now()}
	w.at(w.fault-w.lag-2000, func() { w.early = w.primary.data.clone() })
	w.at(w.fault, w.strike)
	if !w.p.Calm {
		w.misfortunes()
	}
	stop := w.ends + 2*w.ttl
	for len(w.events) > 0 {
		e := w.next()
		if e.at > stop {
			return
		}
		w.now = e.at
		e.do()
	}
}

// misfortunes befall clients.
func (w *world) misfortunes() {
	for _, c := range w.clients {
		at := w.fault - w.ttl + w.r.Int64N(3*w.ttl)
		long := w.r.Int64N(2 * w.ttl)
		switch w.r.IntN(8) {
		case 0, 1:
			w.at(at, func() { c.cut = true; w.tell("client %d is cut off for %d ms", c.name, long) })
			w.at(at+long, func() { c.cut = false })
		case 2:
			w.at(at, func() { c.dead = true; w.tell("client %d is killed", c.name) })
		case 3:
			w.at(at, func() { c.halted = true; w.tell("client %d is halted for %d ms", c.name, long) })
			w.at(at+long, c.resume)
		}
	}
}

// strike is the fault.
func (w *world) strike() {
	p, ms := w.primary, w.p.S.Milliseconds()
	w.tell("%v", w.p.Fault)
	switch w.p.Fault {
	case Flush:
		p.data = newData()
	case Restart:
		down := w.r.Int64N(800)
		p.up = false
		w.at(w.now+down, func() {
			p.up, p.rid, p.run, p.began, p.data = true, "r2", "p3", p.now(), newData()
		})
	case Restore:
		saved := w.at0(w.now - w.r.Int64N(1500))
		down := 20 + w.r.Int64N(800)
		p.up = false
		w.at(w.now+down, func() {
			p.up, p.rid, p.run, p.began, p.data = true, "r2", "p3", p.now(), saved
		})
	case FailOver:
		p.up = false
		w.promote(w.at0(w.now-w.lag), w.r.Int64N(w.ttl))
	case Split:
		w.promote(w.at0(w.now-w.lag), 0)
		w.at(w.now+ms, func() { p.writes = false; w.tell("the deposed primary takes no more writes") })
	case Clock:
		step := 2*w.ttl + w.r.Int64N(18*w.ttl)
		if w.r.IntN(2) == 0 {
			step = -step
		}
		p.offset += step
	}
}

// promote makes the replica the primary after a while; clients find it one by one.
func (w *world) promote(d data, after int64) {
	w.at(w.now+after, func() {
		n := w.replica
		n.data, n.rid, n.replaced, n.writes = d, "r2", true, true
		w.tell("the replica takes over with %d slots, its clock at %+d ms", len(d.slots), n.offset)
		for _, c := range w.clients {
			patience := w.p.S.Milliseconds() + 500
			if w.r.IntN(4) == 0 {
				patience += 2 * w.ttl // it is on the deposed one's side of the cut
			}
			w.at(w.now+w.r.Int64N(patience), func() { c.server = n })
		}
	})
}

// at0 returns what the primary kept at a time.
func (w *world) at0(at int64) data {
	for i := len(w.snapshots) - 1; i >= 0; i-- {
		if w.snapshots[i].at <= at {
			return w.snapshots[i].data.clone()
		}
	}
	return w.early.clone()
}

// wrote notes what a call to the primary has left.
func (w *world) wrote(s *server) {
	if s != w.primary || w.now > w.fault || w.now < w.fault-w.lag-2000 {
		return // nobody will ask for it
	}
	w.snapshots = append(w.snapshots, snapshot{w.now, s.data.clone()})
}

// network says how long a request and its answer are under way.
func (w *world) network() (there, back int64, arrives bool) {
	there, back = 1+w.r.Int64N(20), 1+w.r.Int64N(20)
	if w.p.Calm {
		return there, back, true
	}
	switch w.r.IntN(60) {
	case 0:
		return 0, 0, false
	case 1:
		there = 100 + w.r.Int64N(2*w.ttl/3)
	case 2:
		back = 100 + w.r.Int64N(140)
	}
	return there, back, true
}

func (w *world) holdFor() int64 {
	if w.r.IntN(3) == 0 {
		return 10 * w.ttl // longer than the rest of the run
	}
	return 100 + w.r.Int64N(w.ttl)
}

func (w *world) nextSlot() int {
	w.slots++
	return w.slots
}

func (w *world) grantedAt(slot int) {
	w.tell("slot %d granted", slot)
	if w.now > w.fault && w.result.Refused == 0 {
		w.result.Refused = time.Duration(w.now-w.fault) * time.Millisecond
	}
}

// check counts who believes to hold something.
func (w *world) check() {
	n := 0
	for slot, l := range w.all {
		if l.over || l.client.dead {
			delete(w.all, slot)
		} else if l.believed(w.now) {
			n++
		}
	}
	if n > w.result.Most {
		w.result.Most = n
	}
	if n > w.p.Limit && w.result.At == 0 {
		w.result.At = time.Duration(w.now-w.fault) * time.Millisecond
		w.tell("%d holders of %d", n, w.p.Limit)
	}
}

func (w *world) tell(format string, args ...any) {
	if w.story {
		w.result.Story = append(w.result.Story, fmt.Sprintf("%+7d ms  ", w.now-w.fault)+fmt.Sprintf(format, args...))
	}
}

// at has something done at a time; what is due together, in the order in which it
// was asked for.
func (w *world) at(at int64, do func()) {
	w.seq++
	e := append(w.events, event{at, w.seq, do})
	i := len(e) - 1
	for i > 0 && e[i].before(e[(i-1)/2]) {
		e[i], e[(i-1)/2] = e[(i-1)/2], e[i]
		i = (i - 1) / 2
	}
	w.events = e
}

// next takes the next event off the heap.
func (w *world) next() event {
	e := w.events
	first, last := e[0], len(e)-1
	e[0] = e[last]
	e[last] = event{}
	e = e[:last]
	for i := 0; ; {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < last; c++ {
			if e[c].before(e[least]) {
				least = c
			}
		}
		if least == i {
			break
		}
		e[i], e[least] = e[least], e[i]
		i = least
	}
	w.events = e
	return first
}

type event struct {
	at  int64
	seq int
	do  func()
}

func (e event) before(o event) bool { return e.at < o.at || e.at == o.at && e.seq < o.seq }
