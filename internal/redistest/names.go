package redistest

import (
	"context"
	"encoding/binary"
	"net"
	"strings"
	"sync"
)

// Names is a name server: every name of one word and ".test" stands for 127.0.0.1, until it hangs.
type Names struct {
	conn net.PacketConn
	busy sync.WaitGroup

	mu    sync.Mutex
	hangs map[string]bool
}

// NewNames starts a name server that ends with the test.
func NewNames(tb TB) *Names {
	tb.Helper()
	conn, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("redistest: names: %v", err)
	}
	n := &Names{conn: conn, hangs: make(map[string]bool)}
	n.busy.Go(n.serve)
	tb.Cleanup(func() {
		conn.Close()
		n.busy.Wait()
	})
	return n
}

// Resolver returns a resolver that asks nobody else.
func (n *Names) Resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp4", n.conn.LocalAddr().String())
	}}
}

// Hang has questions for a name go unanswered, or be answered again.
func (n *Names) Hang(name string, on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hangs[name] = on
}

func (n *Names) serve() {
	buffer := make([]byte, 512)
	for {
		size, from, err := n.conn.ReadFrom(buffer)
		if err != nil {
			return
		}
		if reply := n.answer(buffer[:size]); reply != nil {
			_, _ = n.conn.WriteTo(reply, from)
		}
	}
}

// answer reads a query of RFC 1035: 12 bytes of header, then the labels of the name, its type and class. IPv6 addresses are asked
// for too, and there are none.
func (n *Names) answer(query []byte) []byte {
	var labels []string
	at := 12
	for at < len(query) && query[at] != 0 {
		end := at + 1 + int(query[at])
		if end > len(query) {
			return nil
		}
		labels = append(labels, string(query[at+1:end]))
		at = end
	}
	at++
	if at+4 > len(query) {
		return nil
	}
	n.mu.Lock()
	hangs := n.hangs[strings.Join(labels, ".")]
	n.mu.Unlock()
	if hangs {
		return nil
	}
	known := len(labels) == 2 && labels[1] == "test"
	const typeA = 1
	reply := append([]byte(nil), query[:at+4]...)
	binary.BigEndian.PutUint16(reply[2:], 0x8580) // an answer, from who knows
	clear(reply[6:12])                            // no records yet; what the question brought along is left out
	switch {
	case !known:
		reply[3] |= 3 // no such name
	case binary.BigEndian.Uint16(query[at:]) == typeA:
		reply[7] = 1
		reply = append(reply, 0xc0, 12, 0, typeA, 0, 1, 0, 0, 0, 0, 0, 4, 127, 0, 0, 1)
	}
	return reply
}
