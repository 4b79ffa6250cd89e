//go:build unix

package redistest

import (
	"bufio"
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// impatient is a client that finds out quickly and tries once.
func impatient(o *redis.Options) {
	o.DialTimeout, o.ReadTimeout, o.MaxRetries = time.Second, 100*time.Millisecond, -1
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestServerAnswers(t *testing.T) {
	t.Parallel()
	srv := Start(t, WithArgs("--maxmemory", "7mb"))
	rdb := srv.Client()
	must(t, rdb.Set(t.Context(), "k", "v", 0).Err())

	if got, err := srv.Do("GET", "k"); got != "v" || err != nil {
		t.Errorf("GET k: %v, %v", got, err)
	}
	if _, err := srv.Do("GET", "absent"); !errors.Is(err, redis.Nil) {
		t.Errorf("GET absent: %v, want redis.Nil", err)
	}
	if got := srv.Info("memory")["maxmemory"]; got != "7340032" {
		t.Errorf("maxmemory is %s: the option did not reach the server", got)
	}
	if _, err := srv.Do("DEBUG", "SLEEP", "0"); err != nil {
		t.Errorf("DEBUG is not allowed: %v", err)
	}
}

func TestKilledServerRefusesAndComesBackEmpty(t *testing.T) {
	t.Parallel()
	srv := Start(t)
	addr, pid := srv.Addr(), srv.Pid()
	_, err := srv.Do("SET", "k", "v")
	must(t, err)

	srv.Kill()
	srv.Kill() // twice is safe
	if _, err := net.Dial("tcp", addr); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dialling a dead server: %v, want a refusal", err)
	}
	srv.Restart(false)
	if srv.Addr() != addr || srv.Pid() == pid {
		t.Errorf("was %s pid %d, is %s pid %d: want the same address and another process", addr, pid, srv.Addr(), srv.Pid())
	}
	if _, err := srv.Do("GET", "k"); !errors.Is(err, redis.Nil) {
		t.Errorf("GET k after a restart without data: %v, want redis.Nil", err)
	}
}

func TestRestartKeepsDataIfAsked(t *testing.T) {
	t.Parallel()
	srv := Start(t)
	_, err := srv.Do("SET", "k", "v")
	must(t, err)
	srv.Stop() // no obstacle
	srv.Restart(true)
	if got, err := srv.Do("GET", "k"); got != "v" {
		t.Errorf("GET k after a restart with data: %v, %v", got, err)
	}
	srv.Restart(false)
	if _, err := srv.Do("GET", "k"); !errors.Is(err, redis.Nil) {
		t.Errorf("GET k after a restart without data: %v, want redis.Nil", err)
	}
}

func TestStoppedServerGoesOn(t *testing.T) {
	t.Parallel()
	srv := Start(t)
	rdb := srv.Client(impatient)
	must(t, rdb.Ping(t.Context()).Err())
	srv.Stop()
	if err := rdb.Ping(t.Context()).Err(); err == nil {
		t.Error("a stopped server answered")
	}
	srv.Cont()
	if _, err := srv.Do("PING"); err != nil {
		t.Errorf("PING after Cont: %v", err)
	}
}

func TestNoServerProgramIsAnErrorThatSaysSo(t *testing.T) {
	t.Setenv(binaryVariable, "/nonexistent/redis-server")
	_, _, err := Launch("test", func(tb TB) *Server { return Start(tb) })
	if err == nil || !strings.Contains(err.Error(), binaryVariable) {
		t.Errorf("%v, want one that names %s", err, binaryVariable)
	}
	t.Setenv(binaryVariable, "")
	t.Setenv("PATH", "/nonexistent")
	_, _, err = Launch("test", func(tb TB) *Server { return Start(tb) })
	if err == nil || !strings.Contains(err.Error(), "apt-get install redis-server") {
		t.Errorf("%v, want one that says what to install", err)
	}
}

func TestServerThatCannotStartShowsItsLogAtOnce(t *testing.T) {
	t.Parallel()
	began := time.Now()
	_, _, err := Launch("test", func(tb TB) *Server { return Start(tb, WithArgs("--no-such-directive", "1")) })
	if err == nil || !strings.Contains(err.Error(), "no-such-directive") {
		t.Errorf("%v, want the server's complaint", err)
	}
	if took := time.Since(began); took > answerWithin/2 {
		t.Errorf("it took %v", took)
	}
}

func TestNothingSavedCannotBeKept(t *testing.T) {
	t.Parallel()
	_, _, err := Launch("test", func(tb TB) *Server {
		srv := Start(tb)
		srv.Kill()
		srv.Restart(true)
		return srv
	})
	if err == nil || !strings.Contains(err.Error(), "before it wrote anything") {
		t.Errorf("%v, want an error: an empty server would pass for one that kept its data", err)
	}
}

func TestLaunchEndsWhatItStarted(t *testing.T) {
	t.Parallel()
	srv, stop, err := Launch("test", func(tb TB) *Server { return Start(tb) })
	must(t, err)
	must(t, srv.Client().Ping(context.Background()).Err())
	stop()
	stop() // twice is safe
	if ping(srv.Addr()) == nil {
		t.Error("the server outlived stop")
	}
	if _, err := os.Stat(srv.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its directory is still there: %v", err)
	}
}

// The process that starts the servers is this test binary again, and is killed before it can clean up.
func TestServersDieWithTheProcess(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux offers it")
	}
	const role = "REDISTEST_STARTS_A_SERVER"
	if os.Getenv(role) != "" {
		srv, _, err := Launch("test", func(tb TB) *Server { return Start(tb) })
		must(t, err)
		os.Stdout.WriteString(srv.Addr() + "\n")
		time.Sleep(time.Minute) // to be killed; not for ever, in case nobody does
		return
	}
	t.Parallel()
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), role+"=1", "TMPDIR="+t.TempDir())
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	addr, err := bufio.NewReader(out).ReadString('\n')
	addr = strings.TrimSpace(addr)
	if err == nil {
		err = ping(addr)
	}
	cmd.Process.Kill()
	cmd.Wait()
	must(t, err)
	must(t, await("the orphan to end", 5*time.Second, func() error {
		if ping(addr) == nil {
			return errors.New("it still answers")
		}
		return nil
	}))
}
