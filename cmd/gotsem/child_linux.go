package main

import (
	"bytes"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

const lastSignal = syscall.Signal(64)

// attributes has the child be told (TERM) when this process is killed: its slots
// last no longer than a TTL then.
func attributes(a *syscall.SysProcAttr) *syscall.SysProcAttr {
	a.Pdeathsig = syscall.SIGTERM
	return a
}

// adopt makes this process the parent of what its descendants leave behind, from
// before the command starts: a daemon that has left its group, and whose parent has
// ended, is still found.
func (c *child) adopt() {
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	all := processes()
	c.foreign = make(map[int]uint64)
	for pid, p := range all { // of the shell that became this process
		if p.parent == os.Getpid() {
			c.foreign[pid] = p.began
		}
	}
}

// process is a line of the process table.
type process struct {
	parent, group int
	began         uint64 // in ticks since the system's start: tells two with one pid apart
	zombie        bool
}

// processes reads the process table: proc(5).
func processes() map[int]process {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	all := make(map[int]process)
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + name + "/stat")
		if err != nil {
			continue // it has ended meanwhile
		}
		// pid (name) state ppid pgrp …, and the name may hold anything.
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if len(fields) < 20 {
			continue
		}
		parent, _ := strconv.Atoi(string(fields[1]))
		group, _ := strconv.Atoi(string(fields[2]))
		began, _ := strconv.ParseUint(string(fields[19]), 10, 64)
		all[pid] = process{parent, group, began, fields[0][0] == 'Z' || fields[0][0] == 'X'}
	}
	return all
}

// left returns what lives of the command and of all that it started: who is in its
// process group, and every descendant, in whatever group or session. What was
// adopted and has ended is reaped.
func (c *child) left() map[int]uint64 {
	all := processes()
	own, main := os.Getpid(), c.cmd.Process.Pid
	left := make(map[int]uint64)
	for pid, p := range all {
		if p.zombie {
			if p.parent == own && pid != main && !c.isForeign(pid, p) { // Wait waits for main
				_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
			}
			continue
		}
		if pid == own {
			continue
		}
		if !c.tty && p.group == main {
			left[pid] = p.began
			continue
		}
		at, up := pid, p
		for steps := 0; steps < len(all) && up.parent > 0; steps++ {
			if up.parent == own {
				if !c.isForeign(at, up) {
					left[pid] = p.began
				}
				break
			}
			at, up = up.parent, all[up.parent]
		}
	}
	return left
}

func (c *child) isForeign(pid int, p process) bool {
	began, ok := c.foreign[pid]
	return ok && began == p.began
}
