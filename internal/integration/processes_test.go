//go:build unix

package integration

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

// Tests of several processes: this binary, started again. A child does what it is
// told on standard input, says on standard output what came of it, and ends with its
// input.

const childEnv = "GOTSEM_TEST_CHILD"

func init() {
	text := os.Getenv(childEnv)
	if text == "" {
		return
	}
	var c childConfig
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		panic(err)
	}
	c.run()
	os.Exit(0)
}

// childConfig is what a child is started with.
type childConfig struct {
	Addr, User, Password string
	Limit, Queue         int
	TTL                  time.Duration
	DropWakes            float64 // the share of wake-ups that are lost
	Cap                  string  // the socket of a referee: take part in the cap test
	Workers              int
}

func (c childConfig) run() {
	rdb := redis.NewClient(&redis.Options{Addr: c.Addr, Username: c.User, Password: c.Password})
	st := &earedStore{Store: redisstore.New(rdb, prefix), drop: c.DropWakes}
	sem, err := gotsem.New(gotsem.Options{
		Store: st, Limit: c.Limit, Queue: c.Queue, TTL: c.TTL, Outage: gotsem.Closed, StoreTimeout: min(c.TTL, 2*time.Second),
	})
	if err != nil {
		panic(err)
	}
	if c.Cap != "" {
		c.takePart(sem)
		return
	}
	var out sync.Mutex
	say := func(format string, args ...any) {
		out.Lock()
		defer out.Unlock()
		fmt.Printf(format+"\n", args...)
	}
	ctx := context.Background()
	var held sync.Map // slot id -> lease
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		switch f := strings.Fields(in.Text()); f[0] {
		case "acquire": // id, how many waiters, how long each holds (-1: until it is told)
			n, _ := strconv.Atoi(f[2])
			hold, _ := time.ParseDuration(f[3])
			for range n {
				go func() {
					lease, err := sem.Acquire(ctx, f[1])
					if err != nil {
						say("error %v", err)
						return
					}
					at := time.Now()
					held.Store(lease.SlotID(), lease)
					if hold < 0 {
						say("grant %s %d %d", lease.SlotID(), lease.Fence(), at.UnixNano())
						return
					}
					time.Sleep(hold)
					err = lease.Release(ctx)
					say("grant %s %d %d", lease.SlotID(), lease.Fence(), at.UnixNano())
					if err != nil {
						say("error %v", err)
					}
				}()
			}
		case "release": // slot id
			if l, ok := held.Load(f[1]); ok {
				if err := l.(*gotsem.Lease).Release(ctx); err != nil {
					say("error %v", err)
				}
			}
			say("released %s", f[1])
		case "wakes":
			say("wakes %d", st.woken.Load())
		}
	}
}

// earedStore counts whom it is told to wake, and may lose some of it.
type earedStore struct {
	*redisstore.Store
	drop  float64
	woken atomic.Int64
}

func (s *earedStore) OnWake(wake func(store.Wakeup)) (stop func()) {
	return s.Store.OnWake(func(w store.Wakeup) {
		if s.drop > 0 && rand.Float64() < s.drop {
			return
		}
		if w.SlotID != "" {
			s.woken.Add(1)
		}
		wake(w)
	})
}

// child is a process of its own.
type child struct {
	t     testing.TB
	cmd   *exec.Cmd
	in    io.WriteCloser
	said  chan string
	ended chan struct{}
}

func startChild(t testing.TB, c childConfig) *child {
	t.Helper()
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	p := &child{t: t, said: make(chan string, 4096), ended: make(chan struct{})}
	p.cmd = exec.Command(os.Args[0])
	p.cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			p.said <- lines.Text()
		}
		_ = p.cmd.Wait() // killed, as a rule
	}()
	t.Cleanup(p.kill)
	return p
}

// kill is kill -9; it returns when the process is gone.
func (p *child) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

func (p *child) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// stall stops the process, and returns when it has stopped.
func (p *child) stall() {
	p.t.Helper()
	p.signal(syscall.SIGSTOP)
	soon(p.t, patience, "a process to stop", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
		if os.IsNotExist(err) { // no such file system: the signal is believed
			return true
		}
		_, state, _ := strings.Cut(string(stat), ") ")
		return strings.HasPrefix(state, "T")
	})
}

func (p *child) tell(format string, args ...any) {
	p.t.Helper()
	if _, err := fmt.Fprintf(p.in, format+"\n", args...); err != nil {
		p.t.Fatal(err)
	}
}

// hear returns the words of the next line, which must begin with verb.
func (p *child) hear(verb string) []string {
	p.t.Helper()
	f := strings.Fields(received(p.t, p.said, 2*patience, verb+" from a child"))
	if len(f) == 0 || f[0] != verb {
		p.t.Fatalf("a child says %q, want %s", strings.Join(f, " "), verb)
	}
	return f
}

// granted is a grant that a child was given.
type granted struct {
	slot  string
	fence uint64
	at    time.Time
	by    *child
}

func (p *child) hearGrant() granted {
	p.t.Helper()
	f := p.hear("grant")
	fence, _ := strconv.ParseUint(f[2], 10, 64)
	ns, _ := strconv.ParseInt(f[3], 10, 64)
	return granted{f[1], fence, time.Unix(0, ns), p}
}

func number(t testing.TB, env string, otherwise int) int {
	t.Helper()
	s := os.Getenv(env)
	if s == "" {
		return otherwise
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		t.Fatalf("%s=%q is not a number above 0", env, s)
	}
	return n
}

// relayRace has waiters of several processes take a slot in turns, and returns their
// grants in order. The slot is held while they join, so that the order in which they
// joined can be read from Redis: who was granted must be the same, in the same order.
func relayRace(t *testing.T, srv *redistest.Server, children []*child, each int, start *gotsem.Semaphore, during func()) []granted {
	t.Helper()
	blocker, err := start.Acquire(t.Context(), "race")
	if err != nil {
		t.Fatal(err)
	}
	var line []string
	for i := range each { // so that neighbours in line are of different processes
		for _, c := range children {
			c.tell("acquire race 1 0s")
		}
		soon(t, 2*patience, "everybody to stand in line", func() bool {
			line = waiting(t, srv, "race")
			return len(line) == (i+1)*len(children)
		})
	}
	if during != nil {
		during()
	}
	released := time.Now()
	if err := blocker.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	var all []granted
	for _, c := range children {
		for range each {
			all = append(all, c.hearGrant())
		}
	}
	slices.SortFunc(all, func(a, b granted) int { return cmp.Compare(a.fence, b.fence) })
	for i, g := range all {
		if g.slot != line[i] {
			t.Fatalf("grant %d went to %s, the line was %v", i, g.slot, line)
		}
	}
	return append([]granted{{slot: blocker.SlotID(), at: released}}, all...)
}

// gaps are the times from a grant to the next: holders hold for no time.
func gaps(all []granted) (median, most time.Duration) {
	var d []time.Duration
	for i := range all[1:] {
		d = append(d, all[i+1].at.Sub(all[i].at))
	}
	slices.Sort(d)
	return d[len(d)/2], d[len(d)-1]
}

// handOverMax is how long a hand-off may take when its push is lost: a poll, and a
// fifth; five times that on a busy machine.
const handOverMax = 5 * 1200 * time.Millisecond

// Waiters of four processes are granted in the order in which they joined, each by
// one wake-up. GOTSEM_FIFO_ROUNDS=5 makes it a thousand hand-offs (one round is 200).
func TestProcessesAreServedInOrder(t *testing.T) {
	srv := redistest.Start(t)
	const each = 50
	config := childConfig{Addr: srv.Addr(), Limit: 1, Queue: 500, TTL: 30 * time.Second}
	var children []*child
	for range 4 {
		children = append(children, startChild(t, config))
	}
	start := fullSem(t, srv.Client(), 1, func(o *gotsem.Options) { o.Queue = 500 })
	wakes := func() (n int) {
		for _, c := range children {
			c.tell("wakes")
			w, _ := strconv.Atoi(c.hear("wakes")[1])
			n += w
		}
		return n
	}
	for range number(t, "GOTSEM_FIFO_ROUNDS", 1) {
		var published, woken int
		all := relayRace(t, srv, children, each, start, func() {
			published, woken = calls(t, srv, "publish"), wakes()
		})
		across := 0
		for i := range all[1:] {
			if all[i].by != all[i+1].by {
				across++
			}
		}
		published, woken = calls(t, srv, "publish")-published, wakes()-woken
		median, most := gaps(all)
		t.Logf("%d hand-offs, %d of them to another process: %d wake-ups, %d of them pushed; %v each, at most %v",
			len(all)-1, across, woken, published, median, most)
		if woken != len(all)-1 {
			t.Errorf("%d wake-ups for %d hand-offs", woken, len(all)-1)
		}
		if published != across {
			t.Errorf("%d pushes for %d hand-offs to another process", published, across)
		}
		if most > handOverMax {
			t.Errorf("a hand-off took %v", most)
		}
	}
}

// Subscriptions are killed at random, and a fifth of what they bring is lost on the
// way: everybody is served, in order, and no gap is longer than a poll.
func TestALostWakeUpCostsOnePoll(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	each := number(t, "GOTSEM_LOSSY_WAITERS", 12)
	config := childConfig{Addr: srv.Addr(), Limit: 1, Queue: 500, TTL: 30 * time.Second, DropWakes: 0.2}
	var children []*child
	for range 4 {
		children = append(children, startChild(t, config))
	}
	start := fullSem(t, srv.Client(), 1, func(o *gotsem.Options) { o.Queue = 500 })
	stop := make(chan struct{})
	killed := 0
	var killer sync.WaitGroup
	finish := sync.OnceFunc(func() { close(stop); killer.Wait() })
	defer finish()
	all := relayRace(t, srv, children, each, start, func() {
		killer.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(rand.N(100 * time.Millisecond)):
				}
				if n, err := srv.Do("CLIENT", "KILL", "TYPE", "pubsub"); err != nil {
					t.Error(err)
				} else {
					killed += int(n.(int64))
				}
			}
		})
	})
	finish()
	median, most := gaps(all)
	t.Logf("%d hand-offs, %d subscriptions killed; %v each, at most %v", len(all)-1, killed, median, most)
	if killed == 0 {
		t.Error("no subscription was killed")
	}
	if most > handOverMax {
		t.Errorf("a hand-off took %v", most)
	}
}

// Nobody may publish at all: releases work as ever, and polls hand on. A waiter in the
// releasing process needs no push.
func TestPollsHandOnWithoutPush(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	do(t, srv, "ACL", "SETUSER", "mute", "on", ">pw", "~*", "&*", "+@all", "-publish", "-spublish")
	config := childConfig{Addr: srv.Addr(), User: "mute", Password: "pw", Limit: 1, Queue: 100, TTL: 30 * time.Second}
	children := []*child{startChild(t, config), startChild(t, config)}
	rdb := redis.NewClient(&redis.Options{Addr: srv.Addr(), Username: "mute", Password: "pw"})
	t.Cleanup(func() { _ = rdb.Close() })
	start := fullSem(t, rdb, 1, func(o *gotsem.Options) { o.Queue = 100 })
	all := relayRace(t, srv, children, number(t, "GOTSEM_MUTE_WAITERS", 8)/2, start, nil)
	median, most := gaps(all)
	var same []granted
	for i := range all[1:] {
		if all[i].by == all[i+1].by {
			same = append(same, all[i], all[i+1])
		}
	}
	t.Logf("%d hand-offs without a push, %d of them within a process: %v each, at most %v", len(all)-1, len(same)/2, median, most)
	if most > handOverMax {
		t.Errorf("a hand-off took %v", most)
	}
	for i := 0; i < len(same); i += 2 {
		if d := same[i+1].at.Sub(same[i].at); d > slack {
			t.Errorf("a hand-off within a process took %v", d)
		}
	}
	if n := calls(t, srv, "publish"); n != 0 {
		t.Errorf("%d pushes by a user who may not push", n)
	}
}

// The holders are killed, and one waits alone: it holds as soon as their slots have
// lapsed, though nobody calls anything on that id.
func TestSlotsOfKilledHoldersGoToWaiters(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	const ttl = 2 * time.Second
	b := fullSem(t, srv.Client(), 2, func(o *gotsem.Options) { o.TTL = ttl })
	holder := startChild(t, childConfig{Addr: srv.Addr(), Limit: 2, TTL: ttl})
	holder.tell("acquire killed 2 -1ns")
	holder.hearGrant()
	holder.hearGrant()
	got := make(chan granted, 1)
	go func() {
		l, err := b.Acquire(t.Context(), "killed")
		if err != nil {
			if t.Context().Err() == nil {
				t.Error(err)
			}
			return
		}
		got <- granted{slot: l.SlotID(), at: time.Now()}
	}()
	soon(t, patience, "B to wait", func() bool { return len(waiting(t, srv, "killed")) == 1 })
	holder.kill()
	killed := time.Now()
	first := int64(0)
	for _, lapses := range members(t, srv, "killed") {
		if first == 0 || lapses < first {
			first = lapses
		}
	}
	g := received(t, got, patience, "B to hold")
	t.Logf("B held %v after the kill, %v after the first slot lapsed", g.at.Sub(killed).Round(time.Millisecond), g.at.Sub(time.UnixMilli(first)).Round(time.Millisecond))
	if g.at.Before(time.UnixMilli(first)) {
		t.Errorf("B held %v before the slot had lapsed", time.UnixMilli(first).Sub(g.at))
	}
	if took := g.at.Sub(killed); took > ttl+slack {
		t.Errorf("B held %v after the kill, TTL %v", took, ttl)
	}
}

// Five at the head of the line are killed: who waits behind them is held up once, and
// not once for each.
func TestDeadWaitersHoldUpTheLineOnce(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	f := fullSem(t, srv.Client(), 1, func(o *gotsem.Options) { o.Queue = 20 })
	lease, err := f.Acquire(t.Context(), "dead")
	if err != nil {
		t.Fatal(err)
	}
	var five []*child
	for i := range 5 {
		five = append(five, startChild(t, childConfig{Addr: srv.Addr(), Limit: 1, Queue: 20, TTL: 30 * time.Second}))
		five[i].tell("acquire dead 1 -1ns")
	}
	soon(t, patience, "five to wait", func() bool { return len(waiting(t, srv, "dead")) == 5 })
	got := make(chan error, 1)
	go func() {
		l, err := f.Acquire(t.Context(), "dead")
		if err == nil {
			err = l.Release(t.Context())
		}
		got <- err
	}()
	soon(t, patience, "F to wait", func() bool { return len(waiting(t, srv, "dead")) == 6 })
	for _, c := range five {
		c.kill()
	}
	killed := time.Now()
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := received(t, got, patience, "F to be granted"); err != nil {
		t.Fatal(err)
	}
	took := time.Since(killed)
	t.Logf("F was granted %v after five before it were killed", took.Round(time.Millisecond))
	// A place lives 3 s, and F asks each second. One after the other would be ten
	// seconds at the least: a claim of 2 s each.
	if most := 3*time.Second + time.Second; took > most+5*slack {
		t.Errorf("it took %v, want about %v", took, most)
	}
}

// A process stands still for a while: it keeps its place, or its turn goes to the next
// and it stands by its old ticket; nobody waits outside the line for ever.
func TestAStalledWaiterKeepsItsTicket(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	sem := fullSem(t, srv.Client(), 1, func(o *gotsem.Options) { o.Queue = 20 })
	x := startChild(t, childConfig{Addr: srv.Addr(), Limit: 1, Queue: 20, TTL: 30 * time.Second})
	type result struct {
		lease *gotsem.Lease
		err   error
	}
	join := func(length int) chan result {
		t.Helper()
		c := make(chan result, 1)
		go func() {
			l, err := sem.Acquire(t.Context(), "stall")
			c <- result{l, err}
		}()
		soon(t, patience, "one more to wait", func() bool { return len(waiting(t, srv, "stall")) == length })
		return c
	}
	take := func(c chan result, what string) *gotsem.Lease {
		t.Helper()
		r := received(t, c, patience, what)
		if r.err != nil {
			t.Fatalf("%s: %v", what, r.err)
		}
		return r.lease
	}
	give := func(l *gotsem.Lease) {
		t.Helper()
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	idle := func(c chan result, what string) {
		t.Helper()
		select {
		case r := <-c:
			t.Fatalf("%s was served: %v", what, r.err)
		default:
		}
	}

	// Short: the place is kept.
	held, err := sem.Acquire(t.Context(), "stall")
	if err != nil {
		t.Fatal(err)
	}
	x.tell("acquire stall 1 -1ns")
	soon(t, patience, "X to wait", func() bool { return len(waiting(t, srv, "stall")) == 1 })
	y := join(2)
	x.stall()
	time.Sleep(time.Second) // of the three that a place lives
	x.signal(syscall.SIGCONT)
	give(held)
	slot := x.hearGrant().slot
	idle(y, "Y")
	x.tell("release %s", slot)
	x.hear("released")
	held = take(y, "Y")

	// Its turn comes while it stands still: the grant goes to the next, and X, when it
	// is back, stands before Z, who came after it.
	x.tell("acquire stall 1 -1ns")
	soon(t, patience, "X to wait", func() bool { return len(waiting(t, srv, "stall")) == 1 })
	y = join(2)
	x.stall()
	began := time.Now()
	give(held)
	held = take(y, "Y, because X did not claim its grant")
	t.Logf("an unclaimed grant went on after %v", time.Since(began).Round(time.Millisecond))
	if took := time.Since(began); took > 3*time.Second+5*slack {
		t.Errorf("an unclaimed grant went on after %v, want 2 s and a poll", took)
	}
	z := join(1)
	x.signal(syscall.SIGCONT)
	soon(t, patience, "X to stand in line again", func() bool { return len(waiting(t, srv, "stall")) == 2 })
	give(held)
	slot = x.hearGrant().slot
	idle(z, "Z")
	x.tell("release %s", slot)
	x.hear("released")
	held = take(z, "Z")

	// Longer than a place lives: it joins again.
	x.tell("acquire stall 1 -1ns")
	soon(t, patience, "X to wait", func() bool { return len(waiting(t, srv, "stall")) == 1 })
	x.stall()
	y = join(2)
	soon(t, patience, "X's place to be given up", func() bool {
		if len(waiting(t, srv, "stall")) == 1 {
			return true
		}
		give(held) // the dead head is dropped when somebody looks at it
		held = take(y, "Y")
		y = join(1)
		return true
	})
	x.signal(syscall.SIGCONT)
	soon(t, patience, "X to join again", func() bool { return len(waiting(t, srv, "stall")) == 2 })

	// The line is deleted by hand: everybody stands where he stood.
	before := waiting(t, srv, "stall")
	do(t, srv, "DEL", "gotsem:{"+prefix+"stall}:q")
	soon(t, patience, "the line to be there again", func() bool { return slices.Equal(waiting(t, srv, "stall"), before) })
	give(held)
	slot = x.hearGrant().slot
	x.tell("release %s", slot)
	x.hear("released")
	give(take(y, "Y"))
}

// The cap test. Holders of many processes, some of which are killed at any moment and
// started again, are counted by a referee outside Redis.
//
// A holder tells the referee after it was granted, and again before it releases, and
// waits each time until the referee has taken note. So whom the referee counts does
// hold: more than the limit is proof of a breach, whatever the order in which words
// arrive. A holder counts until it says that it is over, or until the end of the time
// for which its lease could be believed: also one whose process was killed, since its
// slots must not be given to others before they lapse. Holders hold for much less than
// the TTL, so that no renewal is needed to know that time.
type referee struct {
	mu     sync.Mutex
	limit  int
	holds  map[string]time.Time // slot id -> until when it counts
	most   int
	passed int
	bad    []string
}

func (r *referee) begin(slot string, until time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for other, ends := range r.holds {
		if !now.Before(ends) {
			delete(r.holds, other)
		}
	}
	if !now.Before(until) { // it stood still for as long as its lease was good, and would find that out
		return
	}
	r.holds[slot] = until
	r.passed++
	if r.most = max(r.most, len(r.holds)); len(r.holds) > r.limit && len(r.bad) < 5 {
		r.bad = append(r.bad, fmt.Sprintf("%d hold at once: %v", len(r.holds), r.holds))
	}
}

func (r *referee) end(slot string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.holds, slot)
}

func (r *referee) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.passed
}

// serve hears one worker of one process.
func (r *referee) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	for in := bufio.NewScanner(conn); in.Scan(); {
		f := strings.Fields(in.Text())
		if f[0] == "begin" {
			ns, _ := strconv.ParseInt(f[2], 10, 64)
			r.begin(f[1], time.Unix(0, ns))
		} else {
			r.end(f[1])
		}
		if _, err := conn.Write([]byte("\n")); err != nil {
			return
		}
	}
}

// takePart is the child's side: workers that take, hold for a moment and give back,
// until the process is killed or its input ends.
func (c childConfig) takePart(sem *gotsem.Semaphore) {
	for range c.Workers {
		go func() {
			conn, err := net.Dial("unix", c.Cap)
			if err != nil {
				return // the test is over
			}
			in := bufio.NewReader(conn)
			tell := func(format string, args ...any) {
				if _, err := fmt.Fprintf(conn, format+"\n", args...); err != nil {
					os.Exit(0)
				}
				if _, err := in.ReadString('\n'); err != nil {
					os.Exit(0)
				}
			}
			for n := 0; ; n++ {
				ctx := context.Background()
				var slot string
				var until time.Time
				var release func()
				switch {
				case rand.N(8) == 0: // never waits
					asked := time.Now()
					r := sem.TryAcquire(ctx, "cap")
					if !r.Acquired || r.FailedOpen() {
						time.Sleep(rand.N(50 * time.Millisecond))
						continue
					}
					slot, until = r.SlotID, asked.Add(c.TTL)
					release = func() { sem.Release(ctx, "cap", r.SlotID) }
				default: // waits; some give up
					lease, err := sem.Acquire(ctx, "cap", gotsem.MaxWait(rand.N(4*time.Second)))
					if err != nil {
						if !errors.Is(err, gotsem.ErrFull) && !errors.Is(err, gotsem.ErrQueueFull) {
							time.Sleep(rand.N(50 * time.Millisecond)) // recovering, unavailable
						}
						continue
					}
					slot, until = lease.SlotID(), lease.Expires()
					release = func() { _ = lease.Release(ctx) }
				}
				tell("begin %s %d", slot, until.UnixNano())
				time.Sleep(rand.N(10 * time.Millisecond)) // what a holder does
				tell("end %s", slot)
				release()
			}
		}()
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// GOTSEM_CAP_SECONDS says for how long (10).
func TestProcessesKeepTheLimit(t *testing.T) {
	srv := redistest.Start(t)
	const processes, workers, limit, ttl = 8, 64, 10, 2 * time.Second
	ref := &referee{limit: limit, holds: make(map[string]time.Time)}
	socket := filepath.Join(t.TempDir(), "referee")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var heard sync.WaitGroup
	heard.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			heard.Go(func() { ref.serve(conn) })
		}
	})
	config := childConfig{
		Addr: srv.Addr(), Limit: limit, Queue: processes * workers, TTL: ttl, Cap: socket, Workers: workers,
	}
	var children [processes]*child
	for i := range children {
		children[i] = startChild(t, config)
	}
	soon(t, patience, "the first holders", func() bool { return ref.count() > limit })
	ends := time.Now().Add(time.Duration(number(t, "GOTSEM_CAP_SECONDS", 10)) * time.Second)
	kills, late := 0, 0
	for time.Now().Before(ends) {
		late = ref.count()
		time.Sleep(700*time.Millisecond + rand.N(700*time.Millisecond)) // load
		i := rand.N(processes)
		children[i].kill()
		children[i] = startChild(t, config)
		kills++
	}
	soon(t, patience, "grants to go on after the last kill", func() bool { return ref.count() > late })
	for _, c := range children {
		c.kill()
	}
	if err := listener.Close(); err != nil {
		t.Error(err)
	}
	heard.Wait()
	ref.mu.Lock()
	t.Logf("%d holders passed, at most %d at once; %d kills", ref.passed, ref.most, kills)
	if ref.most > limit || len(ref.bad) > 0 {
		t.Errorf("limit %d: %s", limit, strings.Join(ref.bad, "\n"))
	}
	if ref.most < limit {
		t.Errorf("at most %d held at once: the limit of %d was never reached", ref.most, limit)
	}
	ref.mu.Unlock()
	// Everything that was held when the last were killed lapses: all of it is free.
	last := fullSem(t, srv.Client(), limit, func(o *gotsem.Options) { o.TTL = ttl; o.Queue = 1000 })
	began := time.Now()
	lease, err := last.Acquire(t.Context(), "cap", gotsem.Weight(limit), gotsem.MaxWait(patience))
	if err != nil {
		t.Fatalf("when all were killed, not all is free: %v", err)
	}
	t.Logf("all was free %v after the last kill", time.Since(began).Round(time.Millisecond))
	if took := time.Since(began); took > 3*time.Second+ttl+2*time.Second+5*slack {
		t.Errorf("all was free only %v after the last kill", took)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
}
