package faults

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
)

// Impossible says that this machine does not allow a check, and why.
type Impossible struct{ Cause error }

func (i *Impossible) Error() string { return "not possible on this machine: " + i.Cause.Error() }

// wires are network namespaces of their own for processes, each with a wire to a bridge
// in one more namespace, from where another leads to the servers. A wire is cut on the
// bridge's side: both ends still think that they have a network, and what they send is
// gone without a word. No relay can do that, since a relay answers for TCP.
type wires struct {
	tag    string
	subnet string
	netem  bool // the kernel can lose single packets
}

// wireTag begins the name of everything that is made; the pid of who made it follows.
const wireTag = "gotsem"

// layWires makes n namespaces. They go with tb, and what a run that was killed has left
// goes now.
func layWires(tb redistest.TB, n int) (*wires, error) {
	w := &wires{tag: fmt.Sprint(wireTag, os.Getpid()), subnet: fmt.Sprintf("198.18.%d", os.Getpid()%256)} // a range for tests of networks
	if len(w.tag) > 13 {
		return nil, fmt.Errorf("the pid %d is too long for the name of an interface", os.Getpid())
	}
	sweepWires()
	tb.Cleanup(w.remove)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	tb.Cleanup(func() { signal.Stop(stop); close(stop) })
	go func() {
		if s, ok := <-stop; ok {
			w.remove()
			signal.Reset(s)
			_ = syscall.Kill(os.Getpid(), s.(syscall.Signal))
		}
	}()
	hub := w.tag + "-hub"
	steps := []string{
		"netns add " + hub,
		"-n " + hub + " link add hub type bridge",
		"-n " + hub + " link set hub up",
		"link add " + w.tag + "h type veth peer name host netns " + hub,
		"addr add " + w.subnet + ".1/24 dev " + w.tag + "h",
		"link set " + w.tag + "h up",
		"-n " + hub + " link set host master hub",
		"-n " + hub + " link set host up",
	}
	for i := range n {
		space := w.space(i)
		steps = append(steps,
			"netns add "+space,
			fmt.Sprintf("-n %s link add wire%d type veth peer name eth0 netns %s", hub, i, space),
			fmt.Sprintf("-n %s addr add %s.%d/24 dev eth0", space, w.subnet, i+2),
			"-n "+space+" link set eth0 up",
			"-n "+space+" link set lo up",
			fmt.Sprintf("-n %s link set wire%d master hub", hub, i),
			fmt.Sprintf("-n %s link set wire%d up", hub, i),
		)
	}
	for _, step := range steps {
		if err := ip(step); err != nil {
			return nil, err
		}
	}
	w.netem = w.lose(0, 1) == nil && w.lose(0, 0) == nil
	return w, nil
}

// space is the name of a namespace.
func (w *wires) space(i int) string { return fmt.Sprint(w.tag, "-", i) }

// addr is where a server that listens on all of bind is reached from the namespaces.
func (w *wires) addr(srv *redistest.Server) string {
	_, port, _ := net.SplitHostPort(srv.Addr())
	return net.JoinHostPort(w.subnet+".1", port)
}

// bind has a server listen there too.
func (w *wires) bind() redistest.Option {
	return redistest.WithArgs("--bind", "127.0.0.1", w.subnet+".1", "--protected-mode", "no")
}

// cut cuts a wire, or mends it.
func (w *wires) cut(i int, on bool) error {
	state := "up"
	if on {
		state = "down"
	}
	return ip(fmt.Sprintf("-n %s-hub link set wire%d %s", w.tag, i, state))
}

// lose has a wire lose so many of a hundred packets, in the direction of the namespace;
// not every kernel can.
func (w *wires) lose(i, percent int) error {
	command := fmt.Sprintf("-n %s-hub qdisc replace dev wire%d root netem loss %d%%", w.tag, i, percent)
	if percent == 0 {
		command = fmt.Sprintf("-n %s-hub qdisc del dev wire%d root", w.tag, i)
	}
	return tool("tc", command)
}

func (w *wires) remove() { removeWires(w.tag) }

func removeWires(tag string) {
	for _, space := range namespaces() {
		if strings.HasPrefix(space, tag+"-") {
			_ = ip("netns del " + space) // its wires go with it
		}
	}
	if _, err := net.InterfaceByName(tag + "h"); err == nil {
		_ = ip("link del " + tag + "h")
	}
}

// sweepWires removes what processes have left that are no more.
func sweepWires() {
	seen := make(map[string]bool)
	for _, space := range namespaces() {
		tag, _, _ := strings.Cut(space, "-")
		pid, err := strconv.Atoi(strings.TrimPrefix(tag, wireTag))
		if err != nil || !strings.HasPrefix(tag, wireTag) || seen[tag] {
			continue
		}
		seen[tag] = true
		if syscall.Kill(pid, 0) == syscall.ESRCH {
			removeWires(tag)
		}
	}
}

// namespaces are the names of all.
func namespaces() (names []string) {
	out, _ := exec.Command("ip", "netns", "list").Output()
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) > 0 {
			names = append(names, f[0])
		}
	}
	return names
}

func ip(args string) error { return tool("ip", args) }

func tool(name, args string) error {
	if out, err := exec.Command(name, strings.Fields(args)...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, args, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// PacketsResult is what lost packets did.
type PacketsResult struct {
	Took         time.Duration
	Cuts, Flaps  int
	Netem        bool
	Leases, Told int
	Order        int
	Wrong        []string
}

// Packets has processes in network namespaces load a server, and their packets vanish:
// for stretches of up to two TTLs, and in spells of single ones.
func Packets(tb redistest.TB, length time.Duration, seed uint64) (result PacketsResult, err error) {
	const limit, processes, ttl = 5, 3, 1200 * time.Millisecond
	const grace = ttl + 300*time.Millisecond
	w, err := layWires(tb, processes)
	if err != nil {
		return result, &Impossible{err}
	}
	result.Netem = w.netem
	srv := redistest.Start(tb, w.bind())
	referee := NewReferee()
	r := rand.New(rand.NewPCG(seed, 7))
	ids := []string{"a", "b"}
	var workers []*worker
	for i := range processes {
		worker, err := startWorker(workerConfig{
			Who: fmt.Sprint("w", i), Space: w.space(i), Kind: Single, Addrs: []string{w.addr(srv)}, Prefix: "packets:", Limit: limit, TTL: ttl, Grace: grace,
			Outage: gotsem.Closed, Seed: r.Uint64(),
			Load: Load{IDs: ids, Workers: 8, TryShare: 30, Patience: 3 * time.Second, HoldLeast: 10 * time.Millisecond, HoldMost: ttl, Pause: 20 * time.Millisecond},
		}, referee)
		if err != nil {
			return result, err
		}
		tb.Cleanup(func() { worker.kill(referee) })
		workers = append(workers, worker)
	}
	served := func(from time.Duration) error {
		for _, w := range workers {
			if FirstAfter(referee.Spans(), from, func(s Span) bool { return s.Who == w.who }) < 0 {
				return fmt.Errorf("%s was granted nothing", w.who)
			}
		}
		return nil
	}
	if err := await("everybody to be served", 10*time.Second, func() error { return served(0) }); err != nil {
		return result, err
	}
	pause := func(least, most time.Duration) { time.Sleep(least + time.Duration(r.Int64N(int64(most-least)))) }
	began := time.Now()
	for time.Since(began) < length {
		i := r.IntN(processes)
		if r.IntN(3) == 0 {
			result.Cuts++
			if err := w.cut(i, true); err != nil {
				return result, err
			}
			pause(50*time.Millisecond, min(length/2, 2*ttl))
			if err := w.cut(i, false); err != nil {
				return result, err
			}
		} else {
			for n := 5 + r.IntN(20); n > 0; n-- {
				result.Flaps++
				err := w.cut(i, true)
				if w.netem && n%2 == 0 {
					err = w.lose(i, 30)
				}
				pause(time.Millisecond, 20*time.Millisecond)
				if err = errors.Join(err, w.cut(i, false)); err != nil {
					return result, err
				}
				pause(time.Millisecond, 40*time.Millisecond)
			}
			if w.netem {
				_ = w.lose(i, 0)
			}
		}
		pause(10*time.Millisecond, 300*time.Millisecond)
	}
	calm := now()
	if err := await("everybody to be served again", 15*time.Second, func() error { return served(calm) }); err != nil {
		result.Wrong = append(result.Wrong, err.Error())
	}
	for _, w := range workers {
		if err := w.stop(referee); err != nil {
			result.Wrong = append(result.Wrong, err.Error())
		}
	}
	if err := await("nothing to be left behind", 2*ttl+5*time.Second, func() error { return nothingLeft(srv.Client(), "packets:", limit, ids) }); err != nil {
		result.Wrong = append(result.Wrong, err.Error())
	}
	spans := referee.Spans()
	result.Took, result.Leases, result.Told = time.Since(began), len(spans), Told(spans)
	result.Wrong = append(result.Wrong, Judge(spans, limit)...)
	var overtaken []string
	result.Order, overtaken = Overtaken(referee.Asks(), nil)
	result.Wrong = append(result.Wrong, overtaken...)
	if result.Told > 0 {
		result.Wrong = append(result.Wrong, fmt.Sprintf("%d were told lost", result.Told))
	}
	return result, nil
}

func (r PacketsResult) String() string {
	also := ""
	if r.Netem {
		also = ", half of them with 30 % loss by netem"
	}
	return fmt.Sprintf("%v: wires cut %d times for up to 2 TTLs, and %d times for up to 20 ms%s; %d leases, %d pairs in order, %d told lost",
		r.Took.Round(100*time.Millisecond), r.Cuts, r.Flaps, also, r.Leases, r.Order, r.Told)
}

// packetsVanish is a short one.
func packetsVanish(c *checker) error {
	r, err := Packets(c, 2*time.Second, 2)
	if err != nil {
		return err
	}
	c.note("%v", r)
	if len(r.Wrong) > 0 {
		return errors.New(strings.Join(r.Wrong, "; "))
	}
	return nil
}
