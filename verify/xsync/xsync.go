// Package xsync runs the tests of golang.org/x/sync/semaphore against gotsem: years of
// other people's questions about a semaphore, byte for byte as they stand in the module
// cache.
package xsync

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/verify/xsync/semaphore"
)

// Version is of which x/sync the tests are.
const Version = "golang.org/x/sync@v0.25.0"

// Cancel is the test that is about a cancelled ctx and a grant at the same moment.
const Cancel = "TestWeightedAcquireCanceled"

//go:embed semaphore/semaphore.go
var shim []byte

// Suite is a module called golang.org/x/sync whose semaphore is the shim, and all else
// the original's.
type Suite struct {
	dir string
}

// Build makes it in dir, for the gotsem in root.
func Build(dir, root string) (*Suite, error) {
	out, err := run(exec.Command("go", "mod", "download", "-json", Version))
	if err != nil {
		return nil, err
	}
	var original struct{ Dir string }
	if err := json.Unmarshal(out, &original); err != nil {
		return nil, fmt.Errorf("xsync: go mod download says %q: %w", out, err)
	}
	sum, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{"semaphore/semaphore.go": shim, "go.sum": sum, "go.mod": fmt.Appendf(nil,
		"module golang.org/x/sync\n\ngo 1.26.0\n\nreplace github.com/ashfaqjani916/gotsem => %s\n\nrequire github.com/ashfaqjani916/gotsem v0.0.0\n", root)}
	for _, pattern := range []string{"semaphore/*_test.go", "errgroup/errgroup.go"} {
		found, err := filepath.Glob(filepath.Join(original.Dir, pattern))
		if err != nil || len(found) == 0 {
			return nil, fmt.Errorf("xsync: no %s in %s: %w", pattern, original.Dir, err)
		}
		for _, from := range found {
			text, err := os.ReadFile(from)
			if err != nil {
				return nil, err
			}
			to, err := filepath.Rel(original.Dir, from)
			if err != nil {
				return nil, err
			}
			files[to] = text
		}
	}
	for name, text := range files {
		to := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(to, text, 0o644); err != nil {
			return nil, err
		}
	}
	s := &Suite{dir: dir}
	_, err = run(s.command("go", "test", "-mod=mod", "-c", "-o", "tests", "./semaphore"))
	return s, err
}

// Run runs all tests once, and then the one about cancelling runs times: in memory, or, if
// redis is not empty, on the Redis of that address.
func (s *Suite) Run(redis string, runs int) error {
	for _, args := range [][]string{
		{"-test.timeout=5m"},
		{"-test.timeout=9m", "-test.run=^" + Cancel + "$", fmt.Sprintf("-test.count=%d", runs)},
	} {
		cmd := s.command("./tests", args...)
		cmd.Env = append(cmd.Env, semaphore.RedisVariable+"="+redis)
		if out, err := run(cmd); err != nil {
			return fmt.Errorf("%w\n%s", err, summary(out))
		}
	}
	return nil
}

// OnRedis runs it on a Redis of its own.
func (s *Suite) OnRedis(tb redistest.TB, runs int) error {
	return s.Run(redistest.Start(tb).Addr(), runs)
}

func (s *Suite) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	return cmd
}

func run(cmd *exec.Cmd) ([]byte, error) {
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("xsync: %s: %w\n%s", strings.Join(cmd.Args, " "), err, summary(errs.Bytes()))
	}
	return out, err
}

// summary is the end of what was said, and before it how often each complaint came: one
// that comes a thousand times is one.
func summary(out []byte) string {
	count := make(map[string]int)
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	for _, line := range lines {
		if strings.Contains(line, "_test.go:") {
			count[strings.TrimSpace(line)]++
		}
	}
	var all []string
	for line, n := range count {
		all = append(all, fmt.Sprintf("%4d × %s", n, line))
	}
	slices.Sort(all)
	return strings.Join(append(all, lines[max(0, len(lines)-10):]...), "\n")
}
