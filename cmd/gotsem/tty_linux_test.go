package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ashfaqjani916/gotsem/internal/redistest"
)

// terminal is a pseudo-terminal with a shell command on it.
type terminal struct {
	t    *testing.T
	main *os.File
	cmd  *exec.Cmd

	mu  sync.Mutex
	out bytes.Buffer
}

func onTerminal(t *testing.T, url, script string) *terminal {
	t.Helper()
	main, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(main.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(main.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(int(main.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 200})
	}
	if err != nil {
		t.Fatal(err)
	}
	other, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	term := &terminal{t: t, main: main, cmd: exec.Command("sh", "-c", script)}
	term.cmd.Stdin, term.cmd.Stdout, term.cmd.Stderr = other, other, other
	term.cmd.Env = append(os.Environ(), "GOTSEM_REDIS_URL="+url)
	term.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := term.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		b := make([]byte, 4096)
		for {
			n, err := main.Read(b)
			term.mu.Lock()
			term.out.Write(b[:n])
			term.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-term.cmd.Process.Pid, syscall.SIGKILL)
		_ = term.cmd.Wait()
		main.Close()
	})
	return term
}

func (term *terminal) shown() string {
	term.mu.Lock()
	defer term.mu.Unlock()
	return term.out.String()
}

func (term *terminal) await(pattern string) {
	term.t.Helper()
	re := regexp.MustCompile(pattern)
	for began := time.Now(); !re.MatchString(term.shown()); time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > patience {
			term.t.Fatalf("no %s on the terminal:\n%q", pattern, term.shown())
		}
	}
}

func (term *terminal) press(key string) {
	term.t.Helper()
	if _, err := term.main.WriteString(key); err != nil {
		term.t.Fatal(err)
	}
}

// Ctrl-C reaches the command once, not a second time by way of gotsem.
func TestCtrlCReachesTheCommandOnce(t *testing.T) {
	url := "redis://" + redistest.Start(t).Addr()
	term := onTerminal(t, url, `trap : INT; gotsem run job -- sh -c 'n=0; trap "n=\$((n+1)); echo got \$n" INT; trap "exit 7" TERM; echo ready $PPID; while :; do sleep 0.02; done'; echo rc=$?`)
	term.await(`ready \d+\r`)
	term.press("\x03")
	term.await(`got 1`)
	var pid int
	m := regexp.MustCompile(`ready (\d+)`).FindStringSubmatch(term.shown())
	fmt.Sscan(m[1], &pid)
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil { // sent by a person: passed on
		t.Fatal(err)
	}
	term.await(`rc=7`)
	if strings.Contains(term.shown(), "got 2") {
		t.Errorf("twice:\n%s", term.shown())
	}
}

// The command reads the terminal: it is in the foreground.
func TestCommandReadsTheTerminal(t *testing.T) {
	url := "redis://" + redistest.Start(t).Addr()
	term := onTerminal(t, url, `gotsem run job -- sh -c 'echo ready; read line; echo "I read $line"'; echo rc=$?`)
	term.await(`ready`)
	term.press("hello\n")
	term.await(`I read hello`)
	term.await(`rc=0`)
}

// Waiting shows the place in line and who holds the slots, and Ctrl-C ends it.
func TestWaitingIsShown(t *testing.T) {
	url := "redis://" + redistest.Start(t).Addr()
	term := onTerminal(t, url, `
		gotsem run job --label first -- sh -c 'echo holding; while :; do sleep 0.02; done' </dev/null 2>/dev/null &
		holder=$!
		await '1 held' gotsem usage job >/dev/null
		trap : INT
		gotsem run job --label second --wait 600s -- echo never
		echo rc=$?
		await '0 waiting' gotsem usage job >/dev/null
		kill -TERM $holder; wait $holder; echo holder=$?`)
	term.await(`gotsem: waiting for job, \ds of 10m0s: place 1 of 1 in line, 1 of 1 held by \S+:\d+ first \(\ds\)`)
	term.press("\x03")
	term.await(`rc=130`)
	term.await(`holder=143`)
	if strings.Contains(term.shown(), "never") {
		t.Errorf("it ran:\n%s", term.shown())
	}
}

// On a terminal too a lost lease ends what the command started.
func TestLostOnATerminal(t *testing.T) {
	url := "redis://" + redistest.Start(t).Addr()
	term := onTerminal(t, url, `gotsem run job --kill-after 200ms -- sh -c 'sh -c "trap \"\" TERM; echo grandchild \$\$ end; while :; do sleep 0.02; done" & wait'; echo rc=$?`)
	term.await(`grandchild \d+ end`)
	var pid int
	fmt.Sscan(regexp.MustCompile(`grandchild (\d+) end`).FindStringSubmatch(term.shown())[1], &pid)
	clear := exec.Command("gotsem", "clear", "job", "--redis", url)
	if out, err := clear.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	term.await(`rc=124`)
	if p, ok := processes()[pid]; ok && !p.zombie {
		t.Error("the command's child lives on without a slot")
	}
}

// top is drawn over itself, no wider than the terminal, and leaves that as it was, by q and by Ctrl-C.
func TestTopLeavesTheTerminalAsItWas(t *testing.T) {
	url := "redis://" + redistest.Start(t).Addr()
	for name, key := range map[string]string{"q": "q", "Ctrl-C": "\x03"} {
		t.Run(name, func(t *testing.T) {
			term := onTerminal(t, url, `
				id=job$(printf '%0300d' 7)
				gotsem limit "$id" 3 >/dev/null
				cd "$(mktemp -d)"; stty -a >before; gotsem top --interval 100ms; echo rc=$?; stty -a >after; cmp before after && echo same`)
			term.await(`Idle +0 +3 +0 +-  job0+…\x1b\[K`)
			term.await(`1 ids in the last walk(?s:.*)1 ids in the last walk`) // twice: it goes on
			term.press(key)
			term.await(`\x1b\[\?25h\x1b\[\?1049lrc=0`)
			term.await(`same`)
		})
	}
}
