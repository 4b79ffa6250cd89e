//go:build unix

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/ashfaqjani916/gotsem/internal/redistest"
)

// In the scripts there are these programs: gotsem; await, which repeats a command
// until it succeeds and what it prints matches; code, which wants a certain exit
// code; fetch, which prints what is at a URL; and default, which undoes that a shell's background commands ignore INT.
func TestMain(m *testing.M) {
	programs := map[string]func(){"gotsem": main, "await": await, "code": code, "default": undoIgnore, "fetch": fetch}
	// Under nohup and in some CI systems these are ignored, and every child would
	// inherit that: a shell cannot even trap them. Caught by the test itself, exec makes
	// them the default again.
	if programs[filepath.Base(os.Args[0])] == nil {
		_ = os.Setenv("GOTSEM_FRESH", "true") // for the tests that are no scripts
		for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT} {
			if signal.Ignored(s) {
				signal.Notify(make(chan os.Signal, 1), s)
			}
		}
	}
	testscript.Main(m, programs)
}

// Each script has a Redis of its own at GOTSEM_REDIS_URL, and the command redis
// (kill, stop, continue, start, flush) to break it.
func TestScripts(t *testing.T) {
	scripts, err := filepath.Glob("testdata/script/*.txtar")
	if err != nil || len(scripts) == 0 {
		t.Fatal("no scripts: ", err)
	}
	for _, script := range scripts {
		t.Run(filepath.Base(script), func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			testscript.Run(t, testscript.Params{
				Files: []string{script},
				Setup: func(env *testscript.Env) error {
					env.Setenv("GOTSEM_REDIS_URL", "redis://"+server.Addr())
					env.Setenv("REDIS", server.Addr())
					env.Setenv("GOTSEM_FRESH", "true") // nobody holds anything
					return nil
				},
				Cmds: map[string]func(*testscript.TestScript, bool, []string){
					"redis": func(ts *testscript.TestScript, _ bool, args []string) {
						switch fmt.Sprint(args) {
						case "[start]":
							server.Restart(false)
						case "[kill]":
							server.Kill()
						case "[flush]":
							if _, err := server.Do("FLUSHALL"); err != nil {
								ts.Fatalf("FLUSHALL: %v", err)
							}
						case "[stop]":
							server.Stop()
						case "[continue]":
							server.Cont()
						default:
							ts.Fatalf("redis: what is %q?", args)
						}
					},
				},
			})
		})
	}
}

const patience = 20 * time.Second

// await PATTERN COMMAND… runs the command again and again until it succeeds with output
// that matches.
func await() {
	pattern := regexp.MustCompile("(?m)" + os.Args[1])
	var out []byte
	for began := time.Now(); time.Since(began) < patience; time.Sleep(20 * time.Millisecond) {
		var err error
		out, err = exec.Command(os.Args[2], os.Args[3:]...).CombinedOutput()
		if err == nil && pattern.Match(out) {
			os.Stdout.Write(out)
			return
		}
	}
	fmt.Fprintf(os.Stderr, "await: no %s in %v; last:\n%s", pattern, patience, bytes.TrimSpace(out))
	os.Exit(1)
}

// fetch URL prints what is there.
func fetch() {
	resp, err := (&http.Client{Timeout: patience}).Get(os.Args[1])
	if err == nil {
		defer resp.Body.Close()
		_, err = io.Copy(os.Stdout, resp.Body)
	}
	if err != nil || resp.StatusCode != http.StatusOK {
		fmt.Fprintln(os.Stderr, "fetch:", err, resp)
		os.Exit(1)
	}
}

// code N COMMAND… runs the command, and fails if its exit code is another.
func code() {
	cmd := exec.Command(os.Args[2], os.Args[3:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		fmt.Fprintln(os.Stderr, "code:", err)
		os.Exit(1)
	}
	if got := strconv.Itoa(cmd.ProcessState.ExitCode()); got != os.Args[1] {
		fmt.Fprintf(os.Stderr, "code: exit code %s, want %s\n", got, os.Args[1])
		os.Exit(1)
	}
}

// default COMMAND… becomes the command, with INT and QUIT as a process has them
// that a person starts. A shell has its background commands ignore them.
func undoIgnore() {
	signals := []os.Signal{syscall.SIGINT, syscall.SIGQUIT}
	signal.Notify(make(chan os.Signal, 1), signals...) // caught: exec makes that the default
	path, err := exec.LookPath(os.Args[1])
	if err == nil {
		err = syscall.Exec(path, os.Args[1:], os.Environ())
	}
	fmt.Fprintln(os.Stderr, "default:", err)
	os.Exit(1)
}
