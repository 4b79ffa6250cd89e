package redistest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"syscall"
)

// dieWithParent makes a child end when the thread that started it does.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

// halted returns nil if the process is stopped.
func halted(pid int) error {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return fmt.Errorf("%w: %w", errHopeless, err)
	}
	// The state follows the name, which is in parentheses and may contain some itself.
	if after := bytes.LastIndexByte(stat, ')'); after < 0 || !bytes.HasPrefix(stat[after+1:], []byte(" T")) {
		return errors.New("it is still running")
	}
	return nil
}

// reservePort finds a free port of the loopback address and keeps it until release is called. It is held by a socket that is
// bound but does not listen: a server that sets SO_REUSEADDR, as Redis and Go do, may listen there, again and again, while the
// kernel gives the port to nobody else, not even as the source of a connection. So a server comes back on its own port, dialling
// a dead one is refused, and two test programs never meet.
func reservePort() (port int, release func(), err error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, nil, os.NewSyscallError("socket", err)
	}
	release = func() { syscall.Close(fd) }
	defer func() {
		if err != nil {
			release()
		}
	}()
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		return 0, nil, os.NewSyscallError("setsockopt", err)
	}
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return 0, nil, os.NewSyscallError("bind", err)
	}
	bound, err := syscall.Getsockname(fd)
	if err != nil {
		return 0, nil, os.NewSyscallError("getsockname", err)
	}
	return bound.(*syscall.SockaddrInet4).Port, release, nil
}
