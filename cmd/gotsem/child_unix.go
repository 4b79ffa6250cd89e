//go:build unix

package main

import (
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// child is the command that runs.
type child struct {
	cmd     *exec.Cmd
	tty     bool           // in our process group, which a terminal may speak to
	over    bool           // it was waited for: its pid may be another's
	ended   chan int       // its exit code, once
	foreign map[int]uint64 // children of ours that it did not start, and when each began
}

// controlled reports whether this process has a controlling terminal.
func controlled() bool {
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return false
	}
	_ = tty.Close()
	return true
}

// foreground reports whether the terminal sends its signals to our process group.
func foreground() bool {
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return false
	}
	defer tty.Close()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// start starts the command: with a controlling terminal in our own process group,
// else in one of its own. Handing the terminal's foreground to a group of its own
// would be the other way. It breaks "gotsem run … | less", where less is in our
// group and would be in the background, and Ctrl-C in a script that calls gotsem,
// which the shell would not see.
func start(path string, argv, env []string, tty bool) (*child, error) {
	c := &child{tty: tty, ended: make(chan int, 1)}
	c.cmd = &exec.Cmd{
		Path: path, Args: argv, Env: env, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		SysProcAttr: attributes(&syscall.SysProcAttr{Setpgid: !tty}),
	}
	c.adopt()
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = c.cmd.Wait() // ProcessState has it all
		state := c.cmd.ProcessState.Sys().(syscall.WaitStatus)
		if state.Signaled() {
			c.ended <- exitSignal + int(state.Signal())
		} else {
			c.ended <- state.ExitStatus()
		}
	}()
	return c, nil
}

// passed lists the signals that are passed on: all but those that cannot be caught,
// that say something about this process itself, or that were ignored when it was
// started (nohup), which the child inherits.
func passed(tty bool) []os.Signal {
	own := []syscall.Signal{
		syscall.SIGKILL, syscall.SIGSTOP, // not ours to catch
		syscall.SIGCHLD, syscall.SIGURG, syscall.SIGTTIN, syscall.SIGTTOU, // about us
		syscall.SIGSEGV, syscall.SIGBUS, syscall.SIGFPE, syscall.SIGILL, syscall.SIGTRAP, // a fault of ours
		syscall.SIGPROF, 32, 33, // the Go runtime's and the C library's
	}
	if tty {
		own = append(own, syscall.SIGTSTP) // Ctrl-Z stops us with the child
	}
	var all []os.Signal
	for s := syscall.Signal(1); s <= lastSignal; s++ {
		if !slices.Contains(own, s) && !signal.Ignored(s) {
			all = append(all, s)
		}
	}
	return all
}

// fatal reports whether a signal ends a process that does not handle it.
func fatal(s os.Signal) bool {
	return !slices.Contains([]os.Signal{syscall.SIGWINCH, syscall.SIGCONT, syscall.SIGTSTP, syscall.SIGPIPE}, s)
}

// pass passes a signal on that this process was sent.
func (c *child) pass(s syscall.Signal) {
	switch s {
	case syscall.SIGPIPE: // our own, from a stderr that nobody reads
		return
	case syscall.SIGINT, syscall.SIGQUIT, syscall.SIGWINCH:
		if c.tty && foreground() { // the terminal has told the child too
			return
		}
	case syscall.SIGTSTP:
		c.signal(s)
		stopSelf()
		return
	}
	c.signal(s)
}

// signal sends a signal to the command and all that it started, in whatever group or
// session, and returns whom it told.
func (c *child) signal(s syscall.Signal) map[int]uint64 {
	left := c.left()
	if !c.tty { // at once, whatever the group starts meanwhile
		_ = syscall.Kill(-c.cmd.Process.Pid, s)
	}
	for pid := range left {
		if group, err := syscall.Getpgid(pid); c.tty || err != nil || group != c.cmd.Process.Pid {
			_ = syscall.Kill(pid, s)
		}
	}
	return left
}

// signalNew sends a signal to those that are not among told, and adds them to it.
func (c *child) signalNew(s syscall.Signal, told map[int]uint64) {
	for pid, began := range c.left() {
		if was, ok := told[pid]; !ok || was != began {
			_ = syscall.Kill(pid, s)
			told[pid] = began
		}
	}
}

// stopSelf stops this process until it is continued.
func stopSelf() { _ = syscall.Kill(os.Getpid(), syscall.SIGSTOP) }
