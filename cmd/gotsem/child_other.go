//go:build unix && !linux

package main

import "syscall"

const lastSignal = syscall.Signal(31)

func attributes(a *syscall.SysProcAttr) *syscall.SysProcAttr { return a }

func (c *child) adopt() {}

// left returns the command, or its group's leader if the group has a member. What has
// left the group cannot be found without a process table.
func (c *child) left() map[int]uint64 {
	main := c.cmd.Process.Pid
	if c.tty && !c.over && syscall.Kill(main, 0) == nil || !c.tty && syscall.Kill(-main, 0) == nil {
		return map[int]uint64{main: 0}
	}
	return nil
}
