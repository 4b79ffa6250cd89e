//go:build unix

package redistest

import (
	"bytes"
	"crypto/tls"
	"net"
	"sync"
	"time"
)

const (
	chunkSize  = 32 << 10
	underWay   = 1024 // chunks that may be read and not delivered, per direction; then the sender has to wait
	dialWithin = 5 * time.Second
)

// link is one connection through a relay: a client's, and the one upstream that belongs to it.
type link struct {
	relay      *Relay
	generation int
	client     net.Conn
	secure     *tls.Conn // around client, if the relay speaks TLS
	loseReply  bool      // guarded by relay.mu, as the next two
	mute       bool      // nothing more is carried
	asked      bool      // a request went through that is not to be answered

	requests framer // of the way to the server

	// Of the way to the client:
	replies framer
	begun   bool   // a reply has come in part
	keeps   bool   // it is to be doubled
	reply   []byte // then, what has come of it
	copy    []byte // of a reply, for in front of the next

	mu     sync.Mutex
	server net.Conn      // nil until dialled
	over   chan struct{} // closed by cut
}

// chunk is what was read at once, and when it is to arrive. No data: the sender has closed.
type chunk struct {
	data []byte
	due  time.Time
}

// run carries until the link is cut.
func (l *link) run() {
	defer l.relay.leave(l)
	defer l.cut()
	if !l.pass() {
		return
	}
	if l.relay.hangsAt(AtHandshake) {
		<-l.over
		return
	}
	if !l.shakeHands() {
		return
	}
	server, err := net.DialTimeout("tcp", l.relay.upstream, dialWithin)
	if err != nil || !l.meet(server) {
		return
	}
	var ways sync.WaitGroup
	for _, way := range []struct {
		from, to net.Conn
		toServer bool
	}{{l.far(), server, true}, {server, l.far(), false}} {
		chunks := make(chan chunk, underWay)
		ways.Go(func() { l.read(way.from, chunks) })
		ways.Go(func() { l.write(way.to, chunks, way.toServer) })
	}
	ways.Wait()
	<-l.over // a frozen link is still there when nobody is left to read from
}

// shakeHands begins TLS, if the relay speaks it.
func (l *link) shakeHands() bool {
	if l.relay.identity == nil {
		return true
	}
	conn := tls.Server(l.client, l.relay.identity.server)
	l.secure = conn
	return conn.Handshake() == nil
}

// far is the client's end.
func (l *link) far() net.Conn {
	if l.secure != nil {
		return l.secure
	}
	return l.client
}

// meet completes the link, unless it was cut while upstream was being dialled.
func (l *link) meet(server net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.over:
		server.Close()
		return false
	default:
		l.server = server
		return true
	}
}

// cut closes both ends. It may be called more than once.
func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.over:
		return
	default:
	}
	close(l.over)
	l.client.Close()
	if l.server != nil {
		l.server.Close()
	}
}

// pass waits while the relay is a black hole; false if the link is cut.
func (l *link) pass() bool {
	select {
	case <-l.relay.gate():
		return true
	case <-l.over:
		return false
	}
}

// read turns what one side sends into chunks. It is apart from write, so that a delay holds up nothing but what it delays.
func (l *link) read(from net.Conn, chunks chan<- chunk) {
	defer close(chunks)
	buffer := make([]byte, chunkSize)
	for l.pass() {
		n, err := from.Read(buffer)
		due := time.Now().Add(time.Duration(l.relay.delay.Load()))
		if n > 0 && !l.send(chunks, chunk{bytes.Clone(buffer[:n]), due}) {
			return
		}
		if err != nil {
			l.send(chunks, chunk{due: due})
			return
		}
	}
}

func (l *link) send(chunks chan<- chunk, c chunk) bool {
	select {
	case chunks <- c:
		return true
	case <-l.over:
		return false
	}
}

// write delivers chunks when they are due, or does with them what the relay has decided.
func (l *link) write(to net.Conn, chunks <-chan chunk, toServer bool) {
	for c := range chunks {
		if !l.until(c.due) || !l.pass() {
			return
		}
		switch l.relay.judge(l, c, toServer) {
		case deliver:
			if !toServer {
				whole := l.double(l.relay.readdress(c.data))
				l.relay.delivered(len(whole) - len(c.data))
				c.data = whole
			}
			if _, err := to.Write(c.data); err != nil {
				l.cut()
				return
			}
		case refuse:
			if _, err := l.far().Write(l.refusals(c.data)); err != nil {
				l.cut()
				return
			}
		case halve:
			to.Write(c.data[:len(c.data)/2])
		case hangUp:
			l.cut()
			return
		case forget:
		}
	}
}

// refusals answers every request that ends in data.
func (l *link) refusals(data []byte) (out []byte) {
	l.relay.mu.Lock()
	text := l.relay.refusal
	l.relay.mu.Unlock()
	for len(data) > 0 {
		n, whole := l.requests.next(data)
		if data = data[n:]; whole {
			out = append(out, "-"+text+"\r\n"...)
		}
	}
	return out
}

// double returns a chunk for the client, with copies in it where the relay wants any.
func (l *link) double(data []byte) []byte {
	out := make([]byte, 0, len(data))
	for len(data) > 0 {
		if !l.begun {
			out = append(out, l.copy...)
			l.begun, l.copy, l.keeps = true, nil, l.relay.doubling()
		}
		n, whole := l.replies.next(data)
		out = append(out, data[:n]...)
		if l.keeps {
			l.reply = append(l.reply, data[:n]...)
		}
		data = data[n:]
		if !whole {
			continue
		}
		if l.keeps {
			switch yes, how := l.relay.doubles(); {
			case yes && how == AtOnce:
				out = append(out, l.reply...)
			case yes:
				l.copy = bytes.Clone(l.reply)
			}
		}
		l.begun, l.reply = false, l.reply[:0]
	}
	return out
}

// until sleeps until then; false if the link is cut.
func (l *link) until(then time.Time) bool {
	wait := time.Until(then)
	if wait <= 0 {
		return true
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-l.over:
		return false
	}
}

// readdress has a reply name the relays of a cluster where it names the servers behind them.
func (r *Relay) readdress(reply []byte) []byte {
	for port, relay := range r.addresses {
		for at := 0; ; {
			i := bytes.Index(reply[at:], []byte(port))
			if i < 0 {
				break
			}
			at += i + len(port)
			if at < len(reply) && reply[at] >= '0' && reply[at] <= '9' {
				continue // the beginning of a longer number
			}
			copy(reply[at-len(port):], relay) // as long: see Cluster.Relays
		}
	}
	return reply
}
