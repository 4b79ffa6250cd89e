package faults

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

// WorkerVariable holds, in a process of its own, what it is to do.
const WorkerVariable = "GOTSEM_VERIFY_WORKER"

// workerConfig is what a worker process is told.
type workerConfig struct {
	Who     string
	Space   string `json:"-"` // the network namespace that it runs in; "": this one
	Kind    Kind
	Addrs   []string
	Routes  map[string]string // an address -> where its connections go
	Master  string
	Prefix  string
	Limit   int
	TTL     time.Duration
	Grace   time.Duration
	Outage  gotsem.Outage
	Load    Load
	TLS     bool // connections are TLS
	Wrapped bool // the client is of a type of its own
	Seed    uint64
}

// workerLine is what it says.
type workerLine struct {
	Begin *Span `json:",omitempty"`
	End   *Span `json:",omitempty"` // Slot, End and Told
	Ask   *Ask  `json:",omitempty"`
	Calls *Calls
}

// RunWorker is the whole of a worker process: it loads until its standard input ends.
func RunWorker() error {
	var c workerConfig
	if err := json.Unmarshal([]byte(os.Getenv(WorkerVariable)), &c); err != nil {
		return err
	}
	var rdb redis.UniversalClient
	switch c.Kind {
	case Single:
		rdb = redis.NewClient(&redis.Options{Addr: c.Addrs[0], Dialer: c.dial})
	case Sentinel:
		rdb = redis.NewFailoverClient(&redis.FailoverOptions{MasterName: c.Master, SentinelAddrs: c.Addrs, Dialer: c.dial})
	case Cluster:
		rdb = redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs, Dialer: c.dial})
	}
	defer func() { _ = rdb.Close() }()
	if c.Wrapped {
		rdb = struct{ redis.UniversalClient }{rdb}
	}
	st := redisstore.New(rdb, c.Prefix, redisstore.StrictStart()) // killed workers are replaced by ones without a past
	defer func() { _ = st.Close() }()
	out := &lineSink{out: json.NewEncoder(os.Stdout)}
	line := watch(st, c.Who, func(a Ask) { out.say(workerLine{Ask: &a}) })
	sem, err := gotsem.New(gotsem.Options{Store: line, Limit: c.Limit, Queue: 1000, TTL: c.TTL, Grace: c.Grace, Outage: c.Outage})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	calls := new(Calls)
	c.Load.Run(ctx, sem, c.Who, c.Seed, out, calls)
	calls.mu.Lock()
	out.say(workerLine{Calls: calls})
	calls.mu.Unlock()
	return sem.Close()
}

// dial leads a connection to where it is to go.
func (c *workerConfig) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	to, routed := c.Routes[addr]
	if routed {
		addr = to
	}
	d := net.Dialer{Timeout: 5 * time.Second} // go-redis's own
	if c.TLS && routed {                      // the sentinels themselves are asked without
		// As go-redis's own does, deaf to ctx. Whom it speaks to is not what is tested.
		return tls.DialWithDialer(&d, network, addr, &tls.Config{InsecureSkipVerify: true})
	}
	return d.DialContext(ctx, network, addr)
}

type lineSink struct {
	mu  sync.Mutex
	out *json.Encoder
}

func (l *lineSink) say(line workerLine) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.out.Encode(line) // nobody listens any more: the parent is gone, and so are we soon
}

func (l *lineSink) Begin(s Span) { l.say(workerLine{Begin: &s}) }

func (l *lineSink) End(who, slot string, end time.Duration, told bool) {
	l.say(workerLine{End: &Span{Who: who, Slot: slot, End: end, Told: told}})
}

// worker is a worker process, seen from outside.
type worker struct {
	who   string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	heard chan struct{} // closed when all it said was heard
	ended chan struct{} // closed when it is gone
	calls Calls
}

// startWorker starts one; what it holds is told to the referee.
func startWorker(c workerConfig, referee *Referee) (*worker, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	config, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	if c.Space != "" {
		cmd = exec.Command("ip", "netns", "exec", c.Space, self) // which it becomes: the pid stays
	}
	w := &worker{who: c.Who, cmd: cmd, heard: make(chan struct{}), ended: make(chan struct{})}
	w.cmd.Env = append(os.Environ(), WorkerVariable+"="+string(config))
	w.cmd.Stderr = os.Stderr
	if w.stdin, err = w.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	began := make(chan error)
	go func() {
		runtime.LockOSThread() // it dies with the thread that started it
		defer runtime.UnlockOSThread()
		err := w.cmd.Start()
		began <- err
		if err == nil {
			<-w.heard
			_ = w.cmd.Wait()
			close(w.ended)
		}
	}()
	if err := <-began; err != nil {
		return nil, err
	}
	go func() {
		defer close(w.heard)
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			var line workerLine
			if json.Unmarshal(lines.Bytes(), &line) != nil {
				continue // cut off by its death
			}
			switch {
			case line.Begin != nil:
				referee.Begin(*line.Begin)
			case line.End != nil:
				referee.End(line.End.Who, line.End.Slot, line.End.End, line.End.Told)
			case line.Ask != nil:
				referee.Asked(*line.Ask)
			case line.Calls != nil:
				w.calls.Errors, w.calls.Slowest = line.Calls.Errors, line.Calls.Slowest
			}
		}
	}()
	return w, nil
}

func (w *worker) signal(s syscall.Signal) { _ = w.cmd.Process.Signal(s) }

// kill ends it as kill -9 does: what it held, it believes in no more.
func (w *worker) kill(referee *Referee) {
	at := now()
	w.signal(syscall.SIGKILL)
	<-w.ended
	referee.Killed(w.who, at)
}

// stop has it give back what it holds, and waits for that.
func (w *worker) stop(referee *Referee) error {
	_ = w.stdin.Close()
	select {
	case <-w.ended:
		if !w.cmd.ProcessState.Success() {
			return fmt.Errorf("worker %s: %v", w.who, w.cmd.ProcessState)
		}
		return nil
	case <-time.After(20 * time.Second):
		w.kill(referee)
		return errors.New("worker " + w.who + " did not end within 20 s")
	}
}
