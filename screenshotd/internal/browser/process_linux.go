package browser

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// harness puts the browser into a process group of its own, so that all its
// processes can be ended at once and the terminal's interrupt does not reach it,
// and has the kernel end it should this process die.
func harness(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}

// yield lowers the priority of the browser's process group below that of this
// process, so that a busy browser does not slow the service down. What it starts
// later inherits that.
func yield(group, by int) error {
	mine, err := syscall.Getpriority(syscall.PRIO_PROCESS, 0)
	if err != nil {
		return err
	}
	return syscall.Setpriority(syscall.PRIO_PGRP, group, 20-mine+by) // the system call answers 20 less the nice value
}

// bury takes the exit statuses of the browser's process group, which has been
// killed: where this process is pid 1 of a container, nobody else does. The
// leader's own was taken already.
func bury(group int) {
	for range buryTries {
		switch pid, err := syscall.Wait4(-group, nil, syscall.WNOHANG, nil); {
		case err == syscall.EINTR || pid > 0:
		case err != nil:
			return // ECHILD: no more of them are ours
		default:
			time.Sleep(buryPause) // killed, but not gone yet
		}
	}
}

const (
	buryTries = 200
	buryPause = 10 * time.Millisecond
)

// tryLock takes a file for this process, unless another has it. The kernel gives it
// back when the process ends, however it does.
func tryLock(f *os.File) (mine bool, err error) {
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == syscall.EWOULDBLOCK {
		return false, nil
	}
	return err == nil, err
}

// heavyRenderers returns the renderers of a browser, by its process group, that have
// more memory for themselves than most, and how much.
func heavyRenderers(group int, most int64) map[int]int64 {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer func() { _ = dir.Close() }()
	names, _ := dir.Readdirnames(-1)
	heavy := make(map[int]int64)
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		statm, err := os.ReadFile("/proc/" + name + "/statm")
		if err != nil {
			continue // it has ended meanwhile
		}
		var all, resident, shared int64
		if _, err := fmt.Sscan(string(statm), &all, &resident, &shared); err != nil {
			continue
		}
		size := (resident - shared) * int64(os.Getpagesize())
		if size <= most {
			continue
		}
		if of, err := syscall.Getpgid(pid); err != nil || of != group {
			continue
		}
		if line, err := os.ReadFile("/proc/" + name + "/cmdline"); err == nil && bytes.Contains(line, []byte("--type=renderer")) {
			heavy[pid] = size
		}
	}
	return heavy
}

func endRenderer(pid int) { _ = syscall.Kill(pid, syscall.SIGKILL) }

// ended reports whether a process has ended, and was waited for.
func ended(pid int) bool { return syscall.Kill(pid, 0) == syscall.ESRCH }

// endUsers kills the browser processes that use a profile.
func endUsers(dir string) {
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return
	}
	for _, name := range names {
		line, err := os.ReadFile(name)
		if err != nil || !bytes.Contains(line, []byte("--user-data-dir="+dir)) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name))); err == nil && pid != os.Getpid() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}
