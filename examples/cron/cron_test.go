//go:build unix

package cron

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/examples/internal/extest"
)

// Of two schedulers one runs the job, and the other is told at once.
func TestOneHostRunsTheJob(t *testing.T) {
	first, srv := extest.Semaphore(t, gotsem.Options{Limit: 1})
	second := extest.On(t, srv, gotsem.Options{Limit: 1})
	ctx := context.Background()
	lock, err := Locker{first}.Lock(ctx, "nightly")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (Locker{second}).Lock(ctx, "nightly"); !errors.Is(err, gotsem.ErrFull) {
		t.Errorf("the second host: %v", err)
	}
	if err := lock.Unlock(ctx); err != nil {
		t.Error(err)
	}
	if lock, err = (Locker{second}).Lock(ctx, "nightly"); err != nil {
		t.Fatal(err)
	}
	_ = lock.Unlock(ctx)
}

// The lines of crontab.txt do what README.md says: a run that finds another one skips (75),
// or waits.
func TestTheCrontabLines(t *testing.T) {
	_, srv := extest.Semaphore(t, gotsem.Options{Limit: 1})
	gotsemIn := extest.Command(t)
	lines, err := os.ReadFile("crontab.txt")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(lines)) {
		fields := strings.Fields(line)
		if len(fields) < 6 || fields[0] == "#" {
			continue
		}
		n++
		run := func(job string) error {
			cmd := exec.Command("sh", "-c", strings.ReplaceAll(strings.Join(fields[5:], " "), "/usr/local/bin/report", job))
			cmd.Env = append(os.Environ(), "PATH="+gotsemIn+":"+os.Getenv("PATH"), "GOTSEM_REDIS_URL=redis://"+srv.Addr(), "GOTSEM_FRESH=true")
			out, err := cmd.CombinedOutput()
			t.Logf("%s: %s %v", line, out, err)
			return err
		}
		if err := run("true"); err != nil {
			t.Errorf("%s: %v", line, err)
		}
		ready := t.TempDir() + "/ready"
		long := make(chan error, 1)
		go func() { long <- run("touch " + ready + "; sleep 1") }()
		extest.Await(t, "the first runs", func() bool { _, err := os.Stat(ready); return err == nil })
		began := time.Now()
		var exit *exec.ExitError
		switch err := run("true"); {
		case strings.Contains(line, "--wait 0"):
			if !errors.As(err, &exit) || exit.ExitCode() != 75 {
				t.Errorf("%s: beside another: %v, want exit code 75", line, err)
			}
		case err != nil || time.Since(began) < 100*time.Millisecond:
			t.Errorf("%s: %v, after %v: it should have waited", line, err, time.Since(began))
		}
		if err := <-long; err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
	if n != 2 {
		t.Errorf("%d lines were tried, want 2", n)
	}
}
