//go:build unix && !linux

package redistest

import (
	"net"
	"syscall"
)

// dieWithParent does nothing here: only Linux offers it. A test that is killed leaves its servers behind.
func dieWithParent() *syscall.SysProcAttr { return nil }

// halted trusts the signal here: there is no portable way to ask.
func halted(int) error { return nil }

// reservePort finds a free port of the loopback address. It cannot be kept here, so that another program may take it first; the
// server's log says so then.
func reservePort() (port int, release func(), err error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, nil, err
	}
	return l.Addr().(*net.TCPAddr).Port, func() {}, l.Close()
}
