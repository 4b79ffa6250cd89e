//go:build unix && !linux

package main

import "syscall"

const lastSignal = syscall.Signal(31)

func attributes(a *syscall.SysProcAttr) *syscall.SysProcAttr { return a }

func (c *child) adopt() {}

// descendants returns the child if it lives; what it started cannot be found
// without a process table.
func descendants(child int) []int {
	if syscall.Kill(child, 0) != nil {
		return nil
	}
	return []int{child}
}

// groupLives reports whether a process group has a member.
func groupLives(group int) bool { return syscall.Kill(-group, 0) == nil }
