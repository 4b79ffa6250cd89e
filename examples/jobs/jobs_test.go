//go:build unix

package jobs

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"sync"
	"testing"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/examples/internal/extest"
)

// Of five pods that start at once two work, as the command of job.yaml says.
func TestTheCommandOfTheManifest(t *testing.T) {
	manifest, err := os.ReadFile("job.yaml")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^ +command: (\[.*\])$`).FindSubmatch(manifest)
	if line == nil {
		t.Fatal("job.yaml has no command")
	}
	var command []string
	if err := json.Unmarshal(line[1], &command); err != nil {
		t.Fatal(err)
	}
	_, srv := extest.Semaphore(t, gotsem.Options{Limit: 1})
	bin, at := extest.Command(t), t.TempDir()
	app := at + "/export"
	// It counts who works: a third one finds no name free.
	if err := os.WriteFile(app, []byte("#!/bin/sh\nmkdir "+at+"/1 2>/dev/null && mine=1 || { mkdir "+at+"/2 && mine=2; } || exit 1\nsleep 0.2\nrmdir "+at+"/$mine\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 5 {
		all.Go(func() {
			args := append([]string{}, command[1:len(command)-1]...)
			cmd := exec.Command(bin+"/"+command[0], append(args, app)...)
			cmd.Env = append(os.Environ(), "GOTSEM_REDIS_URL=redis://"+srv.Addr(), "GOTSEM_FRESH=true")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	all.Wait()
}
