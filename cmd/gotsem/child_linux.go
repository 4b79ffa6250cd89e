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

// adopt makes this process the parent of what its descendants leave behind, so
// that descendants finds that too.
func (c *child) adopt() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// process is a line of the process table.
type process struct {
	parent, group int
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
		if len(fields) < 3 {
			continue
		}
		parent, _ := strconv.Atoi(string(fields[1]))
		group, _ := strconv.Atoi(string(fields[2]))
		all[pid] = process{parent, group, fields[0][0] == 'Z' || fields[0][0] == 'X'}
	}
	return all
}

// descendants returns the child, if it lives, and all that it started: children of
// this process are the child and what was adopted.
func descendants(int) (pids []int) {
	all := processes()
	for pid, p := range all {
		if p.zombie {
			continue
		}
		for up, steps := p.parent, 0; up > 1 && steps < len(all); up, steps = all[up].parent, steps+1 {
			if up == os.Getpid() {
				pids = append(pids, pid)
				break
			}
		}
	}
	return pids
}

// groupLives reports whether a process group has a living member.
func groupLives(group int) bool {
	for _, p := range processes() {
		if p.group == group && !p.zombie {
			return true
		}
	}
	return false
}
