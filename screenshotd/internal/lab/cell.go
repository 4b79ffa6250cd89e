package lab

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// cell is a pair of cgroups, or with version 2 one, whose memory and number of
// tasks are bounded, and in which the browser runs. The zero cell bounds nothing;
// memory is then the sum of the proportional set sizes of the browser's processes.
type cell struct {
	kind   string // what it is, for the report
	memory string // directory
	pids   string // directory
}

const cgroupRoot = "/sys/fs/cgroup"

// newCell makes a cell below this process's own cgroup. If that cannot be done it
// returns the zero cell, and says why in its kind.
func newCell(name string, memory int64, pids int) cell {
	if c, err := newCellV1(name, memory, pids); err == nil {
		return c
	} else if c, err2 := newCellV2(name, memory, pids); err2 == nil {
		return c
	} else {
		return cell{kind: fmt.Sprintf("no cgroup could be made (%v; %v): memory is the PSS of the browser's processes, and is not bounded", err, err2)}
	}
}

func newCellV1(name string, memory int64, pids int) (c cell, err error) {
	c.kind = "cgroup v1, nested below the lab's own"
	if c.memory, err = newGroup(filepath.Join(cgroupRoot, "memory"), ownGroup("memory"), name, map[string]int64{"memory.limit_in_bytes": memory}); err != nil {
		return cell{}, err
	}
	if c.pids, err = newGroup(filepath.Join(cgroupRoot, "pids"), ownGroup("pids"), name, map[string]int64{"pids.max": int64(pids)}); err != nil {
		_ = os.Remove(c.memory)
		return cell{}, err
	}
	return c, nil
}

func newCellV2(name string, memory int64, pids int) (cell, error) {
	dir, err := newGroup(cgroupRoot, ownGroup(""), name, map[string]int64{"memory.max": memory, "pids.max": int64(pids)})
	return cell{kind: "cgroup v2, nested below the lab's own", memory: dir, pids: dir}, err
}

// newGroup makes a group and sets its limits.
func newGroup(root, own, name string, limits map[string]int64) (string, error) {
	dir := filepath.Join(root, own, name)
	if _, err := os.Stat(filepath.Dir(dir)); err != nil {
		dir = filepath.Join(root, name) // a container that sees its own group as the root
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	for file, n := range limits {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(strconv.FormatInt(n, 10)), 0o644); err != nil {
			_ = os.Remove(dir)
			return "", err
		}
	}
	return dir, nil
}

// ownGroup is this process's own group, by controller; "" is version 2.
func ownGroup(controller string) string {
	raw, _ := os.ReadFile("/proc/self/cgroup")
	for line := range strings.Lines(string(raw)) {
		if f := strings.SplitN(strings.TrimSpace(line), ":", 3); len(f) == 3 && f[1] == controller {
			return f[2]
		}
	}
	return "/"
}

// procs are the files by which a process enters the cell.
func (c cell) procs() (files []string) {
	for _, dir := range []string{c.memory, c.pids} {
		if dir != "" && (len(files) == 0 || dir != c.memory) {
			files = append(files, filepath.Join(dir, "cgroup.procs"))
		}
	}
	return files
}

// usage is how much memory the cell has taken, less the cache that can be dropped;
// without a cell the PSS of the process group of pid.
func (c cell) usage(pid int) int64 {
	if c.memory == "" {
		return groupPSS(pid)
	}
	used, err := number(filepath.Join(c.memory, "memory.usage_in_bytes"))
	if err != nil {
		used, _ = number(filepath.Join(c.memory, "memory.current"))
	}
	stat, _ := os.ReadFile(filepath.Join(c.memory, "memory.stat"))
	return max(0, used-max(field(stat, "total_inactive_file"), field(stat, "inactive_file")))
}

// kills is how many processes the kernel ended for want of memory.
func (c cell) kills() int64 {
	if c.memory == "" {
		return 0
	}
	for _, name := range []string{"memory.oom_control", "memory.events"} {
		if raw, err := os.ReadFile(filepath.Join(c.memory, name)); err == nil {
			return field(raw, "oom_kill")
		}
	}
	return 0
}

// remove removes the cell, which must be empty. Just after the last process has
// ended the kernel still calls it busy.
func (c cell) remove() error {
	for _, dir := range []string{c.memory, c.pids} {
		if dir == "" {
			continue
		}
		var err error
		for range 100 {
			if err = os.Remove(dir); err == nil || errors.Is(err, os.ErrNotExist) {
				err = nil
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func number(file string) (int64, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
}

// field is the number behind a name in a file of names and numbers.
func field(raw []byte, name string) int64 {
	for line := range bytes.Lines(raw) {
		if k, v, ok := bytes.Cut(bytes.TrimSpace(line), []byte(" ")); ok && string(k) == name {
			n, _ := strconv.ParseInt(string(bytes.TrimSpace(v)), 10, 64)
			return n
		}
	}
	return 0
}

// processPSS is the proportional set size of one process, in bytes. The sum of
// resident sizes would count what processes share once for each.
func processPSS(pid int) int64 {
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	for line := range bytes.Lines(raw) {
		if rest, ok := bytes.CutPrefix(line, []byte("Pss:")); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(string(rest)), "kB")), 10, 64)
			return n << 10
		}
	}
	return 0
}

// groupPSS sums the processes of a process group.
func groupPSS(group int) (sum int64) {
	if group == 0 {
		return 0
	}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		_, rest, ok := bytes.Cut(stat, []byte(") "))
		if f := bytes.Fields(rest); ok && len(f) > 2 && string(f[2]) == strconv.Itoa(group) {
			sum += processPSS(pid)
		}
	}
	return sum
}
