//go:build unix

package redistest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

const (
	answerWithin = 10 * time.Second // a server that was started answers PING
	replyWithin  = 5 * time.Second  // a command sent by Do is answered
	logTail      = 20               // lines of a server's log that are shown
)

// An Option changes how servers are started.
type Option func(*Server)

// WithArgs adds arguments to the server's command line, as in WithArgs("--maxmemory", "2mb"). They come last, so they win.
func WithArgs(args ...string) Option {
	return func(s *Server) { s.extra = append(s.extra, args...) }
}

// Server is one server process on a loopback port that stays its own from Start until the end of the test, whether it lives or
// not. Safe for concurrent use.
type Server struct {
	tb    TB
	port  int
	dir   string   // of its log and of what must outlive its data
	args  []string // of the command line
	extra []string // from options, after args

	mu      sync.Mutex
	proc    *process // the latest; nil before the first
	stopped bool
	shown   bool // the log, in an error
}

// Start starts a server without persistence and with DEBUG allowed, and returns when it answers. It ends with the test; the end
// of its log is shown if the test has failed.
func Start(tb TB, opts ...Option) *Server {
	tb.Helper()
	s := newServer(tb, opts)
	s.args = s.redisArgs()
	s.check(s.boot())
	return s
}

// newServer gives a server its place, a port and a directory, and sees to its end. The caller sets args, then calls boot.
func newServer(tb TB, opts []Option) *Server {
	tb.Helper()
	port, release, err := reservePort()
	if err != nil {
		tb.Fatalf("redistest: no port for a server: %v", err)
	}
	tb.Cleanup(release)
	s := &Server{tb: tb, port: port, dir: tb.TempDir()} // asked for before the Cleanup below, so that it outlives the server
	for _, opt := range opts {
		opt(s)
	}
	tb.Cleanup(func() {
		if err := s.end(); err != nil {
			tb.Logf("redistest: %s: %v", s.Addr(), err)
		}
		if test, ok := tb.(interface{ Failed() bool }); ok && test.Failed() && !s.shown {
			tb.Logf("redistest: %s", s.tail())
		}
	})
	return s
}

// redisArgs is the command line of a Redis server, as opposed to a Sentinel.
func (s *Server) redisArgs() []string {
	return []string{
		"--bind", "127.0.0.1", "--port", strconv.Itoa(s.port), "--dir", s.data(),
		"--save", "", "--appendonly", "no",
		"--enable-debug-command", "local",
		"--repl-diskless-sync-delay", "0", // else a replica waits 5 s for others to join in
		"--repl-ping-replica-period", "1",
	}
}

// data is the server's working directory, which goes when the data is to go.
func (s *Server) data() string { return filepath.Join(s.dir, "data") }

// boot starts the process and waits until it answers.
func (s *Server) boot() error {
	binary, err := Binary()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.data(), 0o700); err != nil {
		return err
	}
	proc, err := startProcess(exec.Command(binary, append(s.args, s.extra...)...), s.log())
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.proc, s.stopped = proc, false
	s.mu.Unlock()
	return s.explain(await(s.Addr()+" to answer PING", answerWithin, func() error {
		if !proc.alive() {
			return fmt.Errorf("%w: the process ended (%v)", errHopeless, proc.err)
		}
		return ping(s.Addr())
	}))
}

// ping asks with a connection of its own and a deadline, since what may not be working yet is what it is to find out.
func ping(addr string) error {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if _, err := io.WriteString(conn, "PING\r\n"); err != nil {
		return err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return err
	}
	// A server that wants a password is up.
	if line = strings.TrimSpace(line); line != "+PONG" && !strings.HasPrefix(line, "-NOAUTH") {
		return fmt.Errorf("it answers %q", line)
	}
	return nil
}

// Addr returns the server's host:port.
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// Pid returns the process id of the latest process; it is of no use once the server is dead.
func (s *Server) Pid() int { return s.process().pid() }

// process returns the latest process, which after boot is never nil.
func (s *Server) process() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc
}

// running reports whether the server lives and is not stopped, so that it can be asked.
func (s *Server) running() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc != nil && s.proc.alive() && !s.stopped
}

// Kill ends the server as kill -9 does, its data lost, and returns when the process is gone. Killing a dead server is a no-op.
func (s *Server) Kill() {
	s.tb.Helper()
	s.check(s.end())
}

func (s *Server) end() error {
	if proc := s.process(); proc != nil {
		return proc.kill()
	}
	return nil
}

// Stop halts the process (SIGSTOP) and returns when it has halted: connections stay open, the kernel accepts new ones, and nothing
// is answered until Cont.
func (s *Server) Stop() {
	s.tb.Helper()
	s.setStopped(true)
	s.check(s.process().stop())
}

// Cont lets a stopped server go on (SIGCONT). It then works off what it was sent meanwhile.
func (s *Server) Cont() {
	s.tb.Helper()
	s.check(s.process().cont())
	s.setStopped(false)
}

func (s *Server) setStopped(stopped bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = stopped
}

// Restart kills the server if it lives, starts it anew on the same port, and returns when it answers. With keepData it saves to
// disk first (a stopped server goes on for that), or, if it is dead, comes back with what it last wrote there; a server that wrote
// nothing cannot keep anything, which is fatal. Without keepData it comes back empty.
func (s *Server) Restart(keepData bool) {
	s.tb.Helper()
	s.check(s.restart(keepData))
}

func (s *Server) restart(keepData bool) error {
	if keepData {
		if err := s.save(); err != nil {
			return err
		}
	}
	if err := s.end(); err != nil {
		return err
	}
	if !keepData {
		if err := os.RemoveAll(s.data()); err != nil {
			return err
		}
	}
	return s.boot()
}

// save has the data written to disk, or makes sure that a dead server has left some there.
func (s *Server) save() error {
	if !s.process().alive() {
		files, err := os.ReadDir(s.data())
		if err == nil && len(files) == 0 {
			err = errors.New("it was killed before it wrote anything to disk")
		}
		return err
	}
	if err := s.process().cont(); err != nil {
		return err
	}
	s.setStopped(false)
	// It refuses while it is saving for a replica.
	return s.explain(await(s.Addr()+" to SAVE", replyWithin, func() error {
		_, err := s.Do("SAVE")
		return err
	}))
}

// Client returns a client of this server with go-redis's default options, as changed by opts. It is closed with the test.
func (s *Server) Client(opts ...func(*redis.Options)) *redis.Client {
	options := &redis.Options{Addr: s.Addr()}
	for _, opt := range opts {
		opt(options)
	}
	rdb := redis.NewClient(options)
	s.tb.Cleanup(func() { rdb.Close() })
	return rdb
}

// Do sends one command over a connection of its own, in RESP2 and without retries, and returns the reply: string, int64, []any. A
// nil reply is redis.Nil, an error reply is an error as in go-redis, no answer within 5 s is one too. It is for looking in and for
// admin commands; nothing is fatal.
func (s *Server) Do(args ...any) (any, error) {
	rdb := redis.NewClient(&redis.Options{
		Addr: s.Addr(), Protocol: 2, PoolSize: 1, MaxRetries: -1, DisableIdentity: true,
		DialTimeout: replyWithin, DialerRetries: 1, ReadTimeout: replyWithin, WriteTimeout: replyWithin,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	defer rdb.Close()
	return rdb.Do(context.Background(), args...).Result()
}

// Info returns a section of INFO as a map from field to value, such as Info("replication")["role"].
func (s *Server) Info(section string) map[string]string {
	s.tb.Helper()
	fields, err := s.info(section)
	s.check(err)
	return fields
}

func (s *Server) info(section string) (map[string]string, error) {
	return s.fields("INFO", section)
}

// fields asks a command that replies with lines of field:value.
func (s *Server) fields(args ...any) (map[string]string, error) {
	reply, err := s.Do(args...)
	if err != nil {
		return nil, err
	}
	fields := make(map[string]string)
	for line := range strings.Lines(fmt.Sprint(reply)) {
		if field, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[field] = value
		}
	}
	return fields, nil
}

func (s *Server) log() string { return filepath.Join(s.dir, "log") }

// check is where an error of one server becomes fatal to the test.
func (s *Server) check(err error) {
	s.tb.Helper()
	if err != nil {
		s.tb.Fatalf("redistest: server %s: %v", s.Addr(), err)
	}
}

// explain adds the end of the log to an error.
func (s *Server) explain(err error) error {
	if err == nil {
		return nil
	}
	s.mu.Lock()
	s.shown = true
	s.mu.Unlock()
	return fmt.Errorf("%w\n%s", err, s.tail())
}

// tail returns the end of the server's log under a heading.
func (s *Server) tail() string {
	content, err := os.ReadFile(s.log())
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(content)), "\n")
	if len(lines) > logTail {
		lines = lines[len(lines)-logTail:]
	}
	return fmt.Sprintf("the end of the log of %s:\n\t%s", s.Addr(), strings.Join(lines, "\n\t"))
}
