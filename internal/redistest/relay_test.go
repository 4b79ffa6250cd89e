//go:build unix

package redistest

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// caller is a bare connection, so that a test knows which connection it is about.
type caller struct {
	net.Conn
	t     *testing.T
	lines *bufio.Reader
}

func dial(t *testing.T, addr string) *caller {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	return &caller{conn, t, bufio.NewReader(conn)}
}

func (c *caller) say(what string) {
	c.t.Helper()
	_, err := io.WriteString(c, what+"\r\n")
	must(c.t, err)
}

// hear returns the next line, or how it failed to come within d.
func (c *caller) hear(d time.Duration) (string, error) {
	c.t.Helper()
	must(c.t, c.SetReadDeadline(time.Now().Add(d)))
	line, err := c.lines.ReadString('\n')
	return string(bytes.TrimSpace([]byte(line))), err
}

func (c *caller) wantPong() {
	c.t.Helper()
	if line, err := c.hear(5 * time.Second); line != "+PONG" {
		c.t.Errorf("heard %q, %v, want +PONG", line, err)
	}
}

func (c *caller) wantSilence() {
	c.t.Helper()
	if line, err := c.hear(100 * time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		c.t.Errorf("heard %q, %v, want silence", line, err)
	}
}

func (c *caller) wantEnd() {
	c.t.Helper()
	line, err := c.hear(5 * time.Second)
	if !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		c.t.Errorf("heard %q, %v, want the end of the connection", line, err)
	}
}

func TestRelayCarriesAndCounts(t *testing.T) {
	t.Parallel()
	relay := NewRelay(t, Start(t).Addr())
	c := dial(t, relay.Addr())
	c.say("PING")
	c.wantPong()
	want := RelayStats{Accepted: 1, Open: 1, ToServer: 6, ToClient: 7}
	if got := relay.Stats(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	c.Close()
	must(t, await("the connection to be gone", 5*time.Second, func() error {
		if relay.Stats().Open != 0 {
			return errors.New("it is open")
		}
		return nil
	}))
}

func TestRelayDelaysWithoutQueueing(t *testing.T) {
	t.Parallel()
	const delay, pings = 100 * time.Millisecond, 10
	relay := NewRelay(t, Start(t).Addr())
	relay.SetDelay(delay)
	c := dial(t, relay.Addr())
	began := time.Now()
	for range pings {
		c.say("PING")
		time.Sleep(time.Millisecond) // not to wait for anything: it parts the pings into chunks
	}
	for range pings {
		c.wantPong()
	}
	took := time.Since(began)
	if took < 2*delay {
		t.Errorf("%d pings took %v, want at least %v", pings, took, 2*delay)
	}
	if serial := 2 * delay * pings; took >= serial {
		t.Errorf("%d pings took %v: as long as if each had waited for the one before", pings, took)
	}
}

func TestLostReplyToAScriptThatRan(t *testing.T) {
	t.Parallel()
	srv := Start(t)
	relay := NewRelay(t, srv.Addr())
	rdb := srv.Client(func(o *redis.Options) { o.Addr, o.MaxRetries = relay.Addr(), -1 })
	count := redis.NewScript(`return redis.call("INCR", KEYS[1])`)
	must(t, count.Load(t.Context(), rdb).Err())

	relay.DropReplyWhen(func(request []byte) bool { return bytes.Contains(bytes.ToUpper(request), []byte("EVALSHA")) })
	must(t, rdb.Ping(t.Context()).Err()) // is not what it waits for
	if err := count.EvalSha(t.Context(), rdb, []string{"n"}).Err(); err == nil {
		t.Error("the reply arrived")
	}
	if n, err := srv.Do("GET", "n"); n != "1" {
		t.Errorf("the script ran %v times, %v, want once", n, err)
	}
	if n, err := count.EvalSha(t.Context(), rdb, []string{"n"}).Int(); n != 2 || err != nil {
		t.Errorf("the next call: %d, %v, want 2: one reply is lost, not more", n, err)
	}
	if got := relay.Stats().Lost; got != 1 {
		t.Errorf("%d replies lost, want 1", got)
	}
}

func TestRelayDropsTheNextReplies(t *testing.T) {
	t.Parallel()
	srv := Start(t)
	relay := NewRelay(t, srv.Addr())
	a, b, c := dial(t, relay.Addr()), dial(t, relay.Addr()), dial(t, relay.Addr())
	relay.DropReplies(2)
	for _, caller := range []*caller{a, b} {
		caller.say("INCR n")
		caller.wantEnd()
	}
	c.say("PING")
	c.wantPong()
	if n, err := srv.Do("GET", "n"); n != "2" {
		t.Errorf("n is %v, %v: the requests were to be served", n, err)
	}
}

func TestFrozenConnectionsAndNewOnes(t *testing.T) {
	t.Parallel()
	srv := Start(t)
	relay := NewRelay(t, srv.Addr())
	old := dial(t, relay.Addr())
	old.say("SUBSCRIBE news")
	for range 6 { // lines of the reply: an array of the word, the channel and a number
		_, err := old.hear(5 * time.Second)
		must(t, err)
	}
	relay.FreezeExisting()
	young := dial(t, relay.Addr())
	young.say("PING")
	young.wantPong()

	if n, err := srv.Do("PUBLISH", "news", "x"); n != int64(1) {
		t.Errorf("%v subscribers, %v: the server should not know", n, err)
	}
	old.wantSilence()
	old.Close()
	young.say("PING")
	young.wantPong()
	if n, err := srv.Do("PUBLISH", "news", "x"); n != int64(1) {
		t.Errorf("%v subscribers, %v, after the client closed: nor should it hear of that", n, err)
	}

	relay.CutAll()
	young.wantEnd()
	must(t, await("the server to lose its subscriber", 5*time.Second, func() error {
		if n, err := srv.Do("PUBLISH", "news", "x"); n != int64(0) {
			return errors.Join(err, errors.New("it still has it"))
		}
		return nil
	}))
}

func TestBlackholeSwallowsAndGivesBack(t *testing.T) {
	t.Parallel()
	relay := NewRelay(t, Start(t).Addr())
	old := dial(t, relay.Addr())
	old.say("PING")
	old.wantPong()
	relay.Blackhole(true)
	relay.Blackhole(true)
	young := dial(t, relay.Addr())
	for _, c := range []*caller{old, young} {
		c.say("PING")
		c.wantSilence()
	}
	relay.Blackhole(false)
	relay.Blackhole(false)
	old.wantPong()
	young.wantPong()
}

func TestBlackholeThatLeadsNowhere(t *testing.T) {
	t.Parallel()
	hole := Blackhole(t)
	c := dial(t, hole.Addr())
	c.say("PING")
	c.wantSilence()
	if got := hole.Stats(); got != (RelayStats{Accepted: 1, Open: 1}) {
		t.Errorf("%+v, want one connection and no bytes", got)
	}
}

func TestRelayRefusesAndListensAgain(t *testing.T) {
	t.Parallel()
	relay := NewRelay(t, Start(t).Addr())
	c := dial(t, relay.Addr())
	c.say("PING")
	c.wantPong()
	for range 3 {
		relay.Refuse(true)
		relay.Refuse(true)
		if _, err := net.Dial("tcp", relay.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dialling: %v, want a refusal", err)
		}
		relay.Refuse(false)
		relay.Refuse(false)
		again := dial(t, relay.Addr())
		again.say("PING")
		again.wantPong()
	}
	c.say("PING")
	c.wantPong() // untouched
	relay.CutAll()
	c.wantEnd()
}

func TestRelayToADeadServerHangsUp(t *testing.T) {
	t.Parallel()
	srv := Start(t)
	relay := NewRelay(t, srv.Addr())
	srv.Kill()
	dial(t, relay.Addr()).wantEnd()
	srv.Restart(false)
	c := dial(t, relay.Addr())
	c.say("PING")
	c.wantPong()
}

func (c *caller) want(line string) {
	c.t.Helper()
	if got, err := c.hear(5 * time.Second); got != line {
		c.t.Errorf("heard %q, %v, want %q", got, err, line)
	}
}

func TestRelayDoublesRepliesAtOnce(t *testing.T) {
	t.Parallel()
	relay := NewRelay(t, Start(t).Addr())
	c := dial(t, relay.Addr())
	relay.DoubleReplies(2, AtOnce)
	c.say("ECHO a\r\nECHO b\r\nECHO c") // a pipeline, answered in one chunk or in several
	for _, line := range []string{"$1", "a", "$1", "a", "$1", "b", "$1", "b", "$1", "c"} {
		c.want(line)
	}
	c.wantSilence()
	if got := relay.Stats(); got.Doubled != 2 || got.ToClient != 5*7 {
		t.Errorf("%+v, want 2 doubled and 35 bytes", got)
	}
}

func TestCopyOfAReplyComesBeforeTheNext(t *testing.T) {
	t.Parallel()
	relay := NewRelay(t, Start(t).Addr())
	c := dial(t, relay.Addr())
	relay.DoubleReplies(1, BeforeNext)
	c.say("ECHO a")
	c.want("$1")
	c.want("a")
	c.wantSilence()
	c.say("ECHO b")
	for _, line := range []string{"$1", "a", "$1", "b"} {
		c.want(line)
	}
	c.wantSilence()
}

func TestFramerFindsTheEndsOfReplies(t *testing.T) {
	t.Parallel()
	replies := []string{
		"+OK\r\n", "-ERR no\r\n", ":1\r\n", "$5\r\na\r\nbc\r\n", "$-1\r\n", "$0\r\n\r\n", "*-1\r\n", "*0\r\n", "_\r\n", "#t\r\n", ",1.5\r\n",
		"*3\r\n:1\r\n*2\r\n$1\r\nx\r\n*0\r\n:2\r\n", "%2\r\n+a\r\n:1\r\n+b\r\n*1\r\n:2\r\n", ">3\r\n+message\r\n+c\r\n$1\r\n*\r\n",
		"|1\r\n+ttl\r\n:3\r\n$1\r\nx\r\n", "~1\r\n=5\r\ntxt:a\r\n", "*1\r\n%0\r\n",
	}
	for _, piece := range []int{1, 2, 3, 1000} {
		var f framer
		var got []string
		var begun []byte
		for data := []byte(strings.Join(replies, "")); len(data) > 0; {
			chunk := data[:min(piece, len(data))]
			data = data[len(chunk):]
			for len(chunk) > 0 {
				n, whole := f.next(chunk)
				begun = append(begun, chunk[:n]...)
				if chunk = chunk[n:]; whole {
					got, begun = append(got, string(begun)), nil
				}
			}
		}
		if !slices.Equal(got, replies) {
			t.Errorf("in pieces of %d: %q, want %q", piece, got, replies)
		}
	}
}
