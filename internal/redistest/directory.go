//go:build unix

package redistest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
)

// Directory is one sentinel that is no process: it names a primary, and watches nobody, so that a primary may hang for as long as a
// test wants. Real ones, which promote another, are [Sentinel]'s.
type Directory struct {
	listener net.Listener
	busy     sync.WaitGroup

	mu      sync.Mutex
	primary string
	conns   map[net.Conn]struct{} // nil: ended
}

// NewDirectory starts a directory that names the primary at addr, under [MasterName]. It ends with the test.
func NewDirectory(tb TB, addr string) *Directory {
	tb.Helper()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("redistest: directory: %v", err)
	}
	d := &Directory{listener: listener, primary: addr, conns: make(map[net.Conn]struct{})}
	d.busy.Go(d.accept)
	tb.Cleanup(d.end)
	return d
}

// Addr returns the directory's host:port.
func (d *Directory) Addr() string { return d.listener.Addr().String() }

func (d *Directory) end() {
	d.listener.Close()
	d.mu.Lock()
	for conn := range d.conns {
		conn.Close()
	}
	d.conns = nil
	d.mu.Unlock()
	d.busy.Wait()
}

func (d *Directory) accept() {
	for {
		conn, err := d.listener.Accept()
		if err != nil {
			return
		}
		d.mu.Lock()
		if d.conns == nil {
			conn.Close()
		} else {
			d.conns[conn] = struct{}{}
			d.busy.Go(func() { d.serve(conn) })
		}
		d.mu.Unlock()
	}
}

func (d *Directory) serve(conn net.Conn) {
	defer func() {
		conn.Close()
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.conns, conn)
	}()
	for in := bufio.NewReader(conn); ; {
		command, err := readCommand(in)
		if err != nil {
			return
		}
		if _, err := io.WriteString(conn, d.answer(command)); err != nil {
			return
		}
	}
}

func (d *Directory) answer(command []string) string {
	word := func(i int) string {
		if i < len(command) {
			return strings.ToLower(command[i])
		}
		return ""
	}
	switch word(0) {
	case "ping":
		return "+PONG\r\n"
	case "client":
		return "+OK\r\n"
	case "subscribe":
		var out strings.Builder
		for i, channel := range command[1:] {
			out.WriteString("*3\r\n" + bulk("subscribe") + bulk(channel) + ":" + strconv.Itoa(i+1) + "\r\n")
		}
		return out.String()
	case "sentinel":
		switch word(1) {
		case "get-master-addr-by-name":
			host, port, _ := net.SplitHostPort(d.primary)
			return "*2\r\n" + bulk(host) + bulk(port)
		case "sentinels", "replicas", "slaves":
			return "*0\r\n"
		}
	}
	return fmt.Sprintf("-ERR unknown command '%s'\r\n", word(0)) // HELLO too: it speaks RESP2
}

func bulk(s string) string { return "$" + strconv.Itoa(len(s)) + "\r\n" + s + "\r\n" }

// readCommand reads an array of bulk strings.
func readCommand(in *bufio.Reader) ([]string, error) {
	count, err := readSize(in, '*')
	if err != nil {
		return nil, err
	}
	command := make([]string, count)
	for i := range command {
		size, err := readSize(in, '$')
		if err != nil {
			return nil, err
		}
		text := make([]byte, size+2)
		if _, err := io.ReadFull(in, text); err != nil {
			return nil, err
		}
		command[i] = string(text[:size])
	}
	return command, nil
}

func readSize(in *bufio.Reader, kind byte) (int, error) {
	line, err := in.ReadString('\n')
	if err != nil {
		return 0, err
	}
	line = strings.TrimSpace(line)
	if line == "" || line[0] != kind {
		return 0, fmt.Errorf("redistest: %q where %q begins", line, kind)
	}
	size, err := strconv.Atoi(line[1:])
	if err == nil && (size < 0 || size > 1<<20) {
		err = fmt.Errorf("redistest: a size of %d", size)
	}
	return size, err
}
