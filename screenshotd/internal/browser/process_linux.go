package browser

import (
	"os/exec"
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
