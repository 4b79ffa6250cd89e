//go:build unix

package redistest

import (
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Relay is a stretch of network that can be made bad: it listens on a port of its own and carries every connection to an upstream
// address. Its faults can be switched at any time, from any goroutine, and go together.
//
// What is read at once from one side, at most 32 KiB, is a chunk. A request or a reply of ordinary size is one chunk, and so is a
// pipeline of them.
type Relay struct {
	tb       TB
	upstream string
	addr     string
	busy     sync.WaitGroup // every goroutine of the relay

	delay atomic.Int64 // nanoseconds, each way

	mu         sync.Mutex
	listener   net.Listener // nil while refusing
	links      map[*link]struct{}
	generation int                       // of connections; FreezeExisting begins the next
	open       chan struct{}             // closed, unless the relay is a black hole
	loseNext   int                       // replies to lose, whosesoever
	loseWhen   func(request []byte) bool // picks the request whose reply to lose
	muteWhen   func(request []byte) bool // picks the requests whose connections hear nothing more
	double     int                       // replies to double, whosesoever
	doubleHow  Copy
	hang       Step
	hole       *hole                     // while it hangs at connecting
	refusal    string                    // what is answered in the server's stead
	refuses    func(request []byte) bool // to whom; nil: nobody
	identity   *Identity                 // nil: no TLS
	addresses  map[string]string         // ports that replies name, and what clients are told instead

	accepted, lost     int
	doubled            int
	toServer, toClient int64
}

// RelayStats is what a relay has carried since it was made.
type RelayStats struct {
	Accepted int   // connections accepted
	Open     int   // of these, how many are open now, frozen ones included
	ToServer int64 // bytes delivered upstream
	ToClient int64 // bytes delivered to clients
	Lost     int   // replies lost by DropReplies and DropReplyWhen
	Doubled  int   // replies of which a copy was delivered, or waits for the next reply
}

// Copy is when the copy of a reply that is doubled arrives.
type Copy int

const (
	AtOnce     Copy = iota // with the reply
	BeforeNext             // in front of the next reply on the connection: whoever asked for that one reads the copy first
)

// NewRelay starts a relay to an upstream host:port. It ends with the test, connections and all. If upstream refuses, the relay's
// clients see their connection close; use Refuse for a refusal.
func NewRelay(tb TB, upstream string) *Relay {
	tb.Helper()
	port, release, err := reservePort()
	if err != nil {
		tb.Fatalf("redistest: no port for a relay: %v", err)
	}
	tb.Cleanup(release)
	r := &Relay{
		tb: tb, upstream: upstream, addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)),
		links: make(map[*link]struct{}), open: make(chan struct{}),
	}
	close(r.open)
	r.Refuse(false)
	tb.Cleanup(r.end)
	return r
}

// Blackhole starts a relay that leads nowhere: connections are accepted, and nothing is ever read or answered.
func Blackhole(tb TB) *Relay {
	tb.Helper()
	r := NewRelay(tb, "")
	r.Blackhole(true)
	return r
}

// NewTLSRelay starts a relay that clients speak TLS to. What is behind it speaks none: so every server, sentinel or cluster can be
// had with TLS, whatever its program was built with, and every fault at every step.
func NewTLSRelay(tb TB, upstream string, identity *Identity) *Relay {
	tb.Helper()
	r := NewRelay(tb, upstream)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.identity = identity
	return r
}

// Answer makes the relay answer in the server's stead: to each request that match accepts it says -text, and the server does not
// hear of it. Match is given chunks, and a whole pipeline is answered alike. It must be quick and must not use the relay; nil ends
// it.
func (r *Relay) Answer(text string, match func(request []byte) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refusal, r.refuses = text, match
}

// Addr returns the relay's host:port, for clients.
func (r *Relay) Addr() string { return r.addr }

// Stats returns the counts of this moment.
func (r *Relay) Stats() RelayStats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return RelayStats{
		Accepted: r.accepted, Open: len(r.links), ToServer: r.toServer, ToClient: r.toClient, Lost: r.lost, Doubled: r.doubled,
	}
}

// SetDelay makes every chunk that is read from now on arrive d later, in each direction, so that a round trip takes 2d longer. It
// is latency, not a bottleneck: chunks that follow each other closely arrive as closely.
func (r *Relay) SetDelay(d time.Duration) { r.delay.Store(int64(d)) }

// DropReplies loses the next n replies, whichever connections they belong to: a chunk from the server is thrown away, and its
// connection is closed at once, so that the client knows that nothing more will come and not whether its request was served. Every
// chunk counts, the answer to a new connection's HELLO and messages of a subscription too; DropReplyWhen is choosier. It takes the
// place of an earlier n; 0 ends it.
func (r *Relay) DropReplies(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.loseNext = n
}

// DropReplyWhen loses one reply, to the first request that match accepts: the request goes to the server and is served, but the next
// chunk that comes back on that connection is thrown away and the connection is closed. Match is given chunks, so a request may
// be in a pipeline with others, whose replies are lost as well. It must be quick and must not use the relay. It takes the place
// of an earlier match that has not accepted anything yet; nil ends it.
func (r *Relay) DropReplyWhen(match func(request []byte) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.loseWhen = match
}

// MuteWhen has the connection of every request that match accepts stay up and carry nothing more: the request is served, and its
// reply never comes. As with DropReplyWhen match is given chunks, must be quick and must not use the relay; nil ends it, for
// connections that are not mute yet.
func (r *Relay) MuteWhen(match func(request []byte) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.muteWhen = match
}

// DoubleReplies delivers each of the next n replies twice, whichever connections they belong to, so that whoever does not notice is
// one reply behind from then on. A reply is a whole one of the protocol, also within a pipeline's chunk; a subscription's messages
// and the answer to a new connection's HELLO count too. Bytes that began before the call are not doubled. It takes the place of an
// earlier n; 0 ends it.
func (r *Relay) DoubleReplies(n int, how Copy) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.double, r.doubleHow = n, how
}

// FreezeExisting makes the connections of this moment half-open for good: they stay up for both sides and carry nothing more in
// either direction, not even the news that the other side has closed. What was under way is lost. New connections work.
func (r *Relay) FreezeExisting() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.generation++
}

// Blackhole makes the relay still, as a stopped server is: connections are accepted and stay up, but nothing is read and nothing
// delivered. When it is switched off, everything goes on where it stood.
func (r *Relay) Blackhole(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.open:
		if on {
			r.open = make(chan struct{})
		}
	default:
		if !on {
			close(r.open)
		}
	}
}

// Refuse makes the relay stop listening, so that dialling it is refused, or listen again, on the same port. Connections that are
// up are not touched: CutAll after Refuse(true) is what the death of a server looks like.
func (r *Relay) Refuse(on bool) {
	r.tb.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case on && r.listener != nil:
		r.listener.Close()
		r.listener = nil
	case !on && r.listener == nil:
		l, err := net.Listen("tcp4", r.addr)
		if err != nil {
			r.tb.Fatalf("redistest: relay: %v", err)
		}
		r.listener = l
		r.busy.Go(func() { r.accept(l) })
	}
}

// CutAll closes the connections of this moment, at both ends, frozen ones too.
func (r *Relay) CutAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for l := range r.links {
		l.cut()
	}
	clear(r.links)
}

// end closes everything and waits for the relay's goroutines.
func (r *Relay) end() {
	r.HangAt(Nowhere)
	r.Refuse(true)
	r.CutAll()
	r.busy.Wait()
}

func (r *Relay) accept(listener net.Listener) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		if l := r.enter(client, listener); l != nil {
			r.busy.Go(l.run)
		} else {
			client.Close()
		}
	}
}

// enter makes a link for a new client, unless the listener was closed meanwhile: what Refuse and CutAll did must hold for it too.
func (r *Relay) enter(client net.Conn, listener net.Listener) *link {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.listener != listener {
		return nil
	}
	r.accepted++
	l := &link{relay: r, generation: r.generation, client: client, over: make(chan struct{})}
	r.links[l] = struct{}{}
	return l
}

func (r *Relay) leave(l *link) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.links, l)
}

// gate returns a channel that is closed as soon as the relay is not a black hole.
func (r *Relay) gate() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.open
}

// fate is what becomes of a chunk that is due.
type fate int

const (
	deliver fate = iota
	forget       // as if it were still under way, for ever
	hangUp       // close the connection instead
	refuse       // answer it in the server's stead
	halve        // deliver the first half, and then nothing more
)

// judge decides about a chunk, in one place, so that each fault hits as many chunks as it should.
func (r *Relay) judge(l *link, c chunk, toServer bool) fate {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case l.generation != r.generation:
		return forget
	case l.mute:
		return forget
	case r.hang != Nowhere && r.hang <= AtHello:
		l.mute = true
		return forget
	case c.data == nil:
		return hangUp
	case toServer && r.refuses != nil && r.refuses(c.data):
		return refuse
	case toServer:
		l.asked = l.asked || r.hang >= AtReply && !introduces(c.data)
		// Before the request goes out, so that the reply cannot be quicker than the mark.
		if r.loseWhen != nil && r.loseWhen(c.data) {
			r.loseWhen, l.loseReply = nil, true
		}
		l.mute = r.muteWhen != nil && r.muteWhen(c.data)
		r.toServer += int64(len(c.data))
		return deliver
	case l.asked && r.hang >= AtReply:
		l.mute = true
		if r.hang == MidReply {
			return halve
		}
		return forget
	case l.loseReply:
		r.lost++
		return hangUp
	case r.loseNext > 0:
		r.loseNext--
		r.lost++
		return hangUp
	default:
		r.toClient += int64(len(c.data))
		return deliver
	}
}

// doubles decides whether the reply that has just ended is to be delivered twice.
func (r *Relay) doubles() (yes bool, how Copy) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.double == 0 {
		return false, AtOnce
	}
	r.double--
	r.doubled++
	return true, r.doubleHow
}

// delivered counts bytes that are delivered on top.
func (r *Relay) delivered(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.toClient += int64(n)
}

// doubling reports whether replies are to be doubled.
func (r *Relay) doubling() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.double > 0
}
