//go:build unix

package redistest

import (
	"bytes"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"
)

// Step is a step on the way to an answer, at which a relay can hang.
type Step int

const (
	Nowhere     Step = iota
	AtConnect        // dialling: neither accepted nor refused, as by a host that is gone
	AtHandshake      // accepted, and nothing said: TLS, or without it the first command, is not answered
	AtHello          // TLS is shaken hands over, and no command answered: HELLO or AUTH is the first
	AtReply          // HELLO, AUTH and questions about the server are answered; what else is asked is done, and not answered
	MidReply         // the same, but half of the first reply comes
)

func (s Step) String() string {
	return [...]string{"nowhere", "connect", "handshake", "hello", "reply", "half a reply"}[s]
}

// HangAt makes every way through the relay hang at a step. Connections that are up hang at that step or at the first after it that
// they come to: up to AtHello they say nothing more, as if the host were gone. CutAll ends them, so that clients must dial. Nowhere
// ends it, and cuts the connections that hung.
func (r *Relay) HangAt(step Step) {
	r.tb.Helper()
	r.mu.Lock()
	was := r.hang
	r.hang = step
	if step == Nowhere {
		for l := range r.links {
			if l.mute || was <= AtHello {
				l.cut()
				delete(r.links, l)
			}
		}
	}
	r.mu.Unlock()
	switch {
	case was == step:
	case step == AtConnect:
		r.Refuse(true)
		r.hole = digHole(r.tb, r.addr)
	case was == AtConnect:
		r.hole.fill()
		r.Refuse(false)
	}
}

func (r *Relay) hangsAt(step Step) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.hang == step
}

// introductions are the commands that a client sends before it asks for anything.
var introductions = []string{"HELLO", "AUTH", "SELECT", "CLIENT", "READONLY", "CLUSTER", "COMMAND", "INFO", "SENTINEL"}

// introduces reports whether a chunk begins with one of them.
func introduces(request []byte) bool {
	// *2\r\n$5\r\nhello\r\n
	parts := bytes.SplitN(request, []byte("\r\n"), 4)
	if len(parts) < 4 {
		return false
	}
	for _, name := range introductions {
		if bytes.EqualFold(parts[2], []byte(name)) {
			return true
		}
	}
	return false
}

// hole is an address whose SYNs the kernel drops, since a queue is full that nobody accepts from. To a client it is a host that
// has gone without a word.
type hole struct {
	fd      int
	fillers []net.Conn
}

// digHole makes an address that reservePort keeps a hole.
func digHole(tb TB, addr string) *hole {
	tb.Helper()
	_, port, _ := net.SplitHostPort(addr)
	number, _ := strconv.Atoi(port)
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		tb.Fatalf("redistest: hole: %v", os.NewSyscallError("socket", err))
	}
	syscall.CloseOnExec(fd)
	h := &hole{fd: fd}
	err = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
	if err == nil {
		err = syscall.Bind(fd, &syscall.SockaddrInet4{Port: number, Addr: [4]byte{127, 0, 0, 1}})
	}
	if err == nil {
		err = syscall.Listen(fd, 0)
	}
	if err != nil {
		h.fill()
		tb.Fatalf("redistest: hole at %s: %v", addr, err)
	}
	for range 64 {
		conn, err := net.DialTimeout("tcp4", addr, 200*time.Millisecond)
		if err != nil {
			return h
		}
		h.fillers = append(h.fillers, conn)
	}
	h.fill()
	tb.Fatalf("redistest: hole at %s: the kernel accepts everything", addr)
	return nil
}

// fill makes the hole an address where nobody listens.
func (h *hole) fill() {
	syscall.Close(h.fd)
	for _, conn := range h.fillers {
		conn.Close()
	}
}
