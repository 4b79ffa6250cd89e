package httpshed_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/httpshed"
)

// onlyReader hides how long a body is, so that it is sent in chunks.
type onlyReader struct{ io.Reader }

// serveBoth starts a server that speaks HTTP/1.1 and, without TLS, HTTP/2.
func serveBoth(tb testing.TB, h http.Handler) *httptest.Server {
	tb.Helper()
	srv := httptest.NewUnstartedServer(h)
	srv.Config.Protocols = new(http.Protocols)
	srv.Config.Protocols.SetHTTP1(true)
	srv.Config.Protocols.SetUnencryptedHTTP2(true)
	srv.Start()
	tb.Cleanup(srv.Close)
	return srv
}

// A client that uploads 1 or 10 MB to a full server finds its 429, whether it reads while
// it sends (net/http's client, curl) or only then (raw, like many libraries and
// proxies); with a length or in chunks, on a connection that is closed or kept, over
// HTTP/1.1 and HTTP/2. `make uploads` asks more clients, and proxies.
func TestRefusedUploadIsAnswered(t *testing.T) {
	t.Parallel()
	const rounds = 3
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Log("no curl here: what it sees is not checked")
	}
	bodies := []uploaded{{make([]byte, 1<<20), false}, {make([]byte, 1<<20), true}, {make([]byte, 10<<20), false}, {make([]byte, 10<<20), true}}
	for policyName, policy := range map[string]httpshed.ClosePolicy{"closed": httpshed.CloseRefused, "kept": httpshed.CloseNever} {
		for name, client := range map[string]func(*httptest.Server, uploaded) (int, error){
			"raw": func(srv *httptest.Server, u uploaded) (int, error) {
				return sendThenRead(srv.Listener.Addr().String(), u)
			},
			"Go h1":   func(srv *httptest.Server, u uploaded) (int, error) { return viaGo(srv, u, false) },
			"Go h2":   func(srv *httptest.Server, u uploaded) (int, error) { return viaGo(srv, u, true) },
			"curl h1": func(srv *httptest.Server, u uploaded) (int, error) { return viaCurl(curl, "--http1.1", srv, u) },
			"curl h2": func(srv *httptest.Server, u uploaded) (int, error) {
				return viaCurl(curl, "--http2-prior-knowledge", srv, u)
			},
		} {
			if curl == "" && strings.HasPrefix(name, "curl") {
				continue
			}
			t.Run(policyName+"/"+name, func(t *testing.T) {
				t.Parallel()
				linger := patience
				if name == "Go h2" {
					linger = 400 * time.Millisecond // it stops sending, and waits for the answer's end
				}
				shed := shedder(t, httpshed.Options{Semaphore: full(t, gotsem.Options{}), Close: policy, ClosesPerSecond: -1, Linger: linger})
				srv := serveBoth(t, shed.Handler(http.HandlerFunc(picture)))
				for _, u := range bodies {
					for range rounds {
						if code, err := client(srv, u); err != nil || code != http.StatusTooManyRequests {
							t.Errorf("%v: %d, %v", u, code, err)
						}
					}
				}
				await(t, "nothing lingers", func() bool { return shed.Stats().Lingering == 0 })
				if st := shed.Stats(); st.Cut != 0 && name != "Go h2" {
					t.Errorf("%d were cut", st.Cut)
				}
			})
		}
	}
}

// uploaded is a body, and how it is sent.
type uploaded struct {
	body    []byte
	chunked bool
}

func (u uploaded) String() string {
	return fmt.Sprintf("%d MB, chunked %v", len(u.body)>>20, u.chunked)
}

func viaGo(srv *httptest.Server, u uploaded, h2 bool) (int, error) {
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	if h2 {
		tr.Protocols = new(http.Protocols)
		tr.Protocols.SetUnencryptedHTTP2(true)
	}
	var in io.Reader = bytes.NewReader(u.body)
	if u.chunked {
		in = onlyReader{in}
	}
	resp, err := (&http.Client{Transport: tr}).Post(srv.URL, "application/octet-stream", in)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

func viaCurl(curl, version string, srv *httptest.Server, u uploaded) (code int, err error) {
	cmd := exec.Command(curl, "-sS", "--max-time", "20", version, "-H", "Expect:", "-o", "/dev/null", "-w", "%{http_code}", "--data-binary", "@-")
	if u.chunked && version == "--http1.1" {
		cmd.Args = append(cmd.Args, "-H", "Transfer-Encoding: chunked")
	}
	cmd.Args = append(cmd.Args, srv.URL)
	cmd.Stdin = bytes.NewReader(u.body)
	out, err := cmd.Output()
	_, _ = fmt.Sscan(string(out), &code)
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, exit.Stderr)
	}
	return code, err
}

// sendThenRead sends all of a body before it reads. An error while it sends is an
// error: libraries report it, and do not look for an answer.
func sendThenRead(addr string, u uploaded) (int, error) {
	body := u.body
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	if u.chunked {
		_, err = fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
		for len(body) > 0 && err == nil {
			n := min(len(body), 64<<10)
			_, err = fmt.Fprintf(conn, "%x\r\n%s\r\n", n, body[:n])
			body = body[n:]
		}
		if err == nil {
			_, err = io.WriteString(conn, "0\r\n\r\n")
		}
	} else {
		_, err = fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", len(body))
		if err == nil {
			_, err = conn.Write(body)
		}
	}
	if err != nil {
		return 0, fmt.Errorf("sending: %w", err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, nil
}

// A slow uplink is waited for as long as something worth it arrives, and no longer
// than 30 Lingers. In virtual time.
func TestLingerGoesByPace(t *testing.T) {
	for _, c := range []struct {
		name   string
		length int
		chunk  int           // that arrives
		every  time.Duration // in this time
		whole  bool          // all of it gets there
		within time.Duration // and that is how long it may take
	}{
		{"1.6 Mbit/s", 4 << 20, 100 << 10, 500 * time.Millisecond, true, 25 * time.Second},
		{"too slow", 4 << 20, 10 << 10, 500 * time.Millisecond, false, 2 * time.Second},
		{"without end", 40 << 20, 100 << 10, 500 * time.Millisecond, false, 32 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sem := full(t, gotsem.Options{})
				defer sem.Close()
				shed := shedder(t, httpshed.Options{Semaphore: sem, Close: httpshed.CloseNever})
				client := pipe(t, shed.Handler(http.HandlerFunc(picture)))
				conn, err := client.Transport.(*http.Transport).DialContext(t.Context(), "tcp", "")
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				answer := make(chan answered, 1)
				var reading sync.WaitGroup
				reading.Go(func() { answer <- readAnswer(t, bufio.NewReader(conn)) })
				began := time.Now()
				send(t, conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", c.length)
				left := c.length
				for left > 0 {
					n, err := conn.Write(make([]byte, min(left, c.chunk)))
					left -= n
					if err != nil {
						break
					}
					time.Sleep(c.every)
				}
				if took := time.Since(began); (left == 0) != c.whole || took > c.within {
					t.Errorf("%d bytes were not taken after %v", left, took)
				}
				reading.Wait()
				wantStatus(t, <-answer, http.StatusTooManyRequests)
				if st := shed.Stats(); (st.Cut == 0) != c.whole {
					t.Errorf("%d were cut", st.Cut)
				}
			})
		})
	}
}

// A close is announced wherever the body may have to be cut: a client that keeps a
// connection which is cut takes that for a fault of its next request, or dies of it.
func TestCutIsAnnounced(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		fields  string
		o       httpshed.Options
		closing bool
	}{
		{"within the bounds", "Content-Length: 1000", httpshed.Options{}, false},
		{"above LingerBytes", "Content-Length: 1001", httpshed.Options{LingerBytes: 1000}, true},
		{"nothing is read", "Content-Length: 1000", httpshed.Options{LingerBytes: -1}, true},
		{"none lingers", "Content-Length: 1000", httpshed.Options{MaxLingering: -1}, true},
		{"unknown length", "Transfer-Encoding: chunked", httpshed.Options{}, true},
		{"not sent without a 100", "Content-Length: 1000\r\nExpect: 100-continue", httpshed.Options{}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var told httpshed.Refusal
			c.o.Semaphore, c.o.Close, c.o.Linger = full(t, gotsem.Options{}), httpshed.CloseNever, 50*time.Millisecond
			c.o.OnRefuse = func(_ *http.Request, no httpshed.Refusal) { told = no }
			srv := serve(t, shedder(t, c.o).Handler(http.HandlerFunc(picture)))
			conn, r := dial(t, srv)
			send(t, conn, "POST / HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n", c.fields)
			a := readAnswer(t, r)
			wantStatus(t, a, http.StatusTooManyRequests)
			if a.Close != c.closing || told.Close != c.closing {
				t.Errorf("announced %v, told %v, want %v", a.Close, told.Close, c.closing)
			}
			if _, err := r.ReadByte(); err != io.EOF { // half-closed: no reset
				t.Errorf("the end of the connection is %v", err)
			}
		})
	}
}

// A POST waits in line also where the server's ResponseWriter is hidden, as by
// http.TimeoutHandler: no deadline can be set for its body there.
func TestPostWaitsBehindTimeoutHandler(t *testing.T) {
	t.Parallel()
	const head = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n"
	for name, around := range map[string]func(http.Handler) http.Handler{
		"TimeoutHandler": func(h http.Handler) http.Handler { return http.TimeoutHandler(h, time.Minute, "too long") },
		"no Unwrap": func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.ServeHTTP(struct{ http.ResponseWriter }{w}, r) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sem := semaphore(t, gotsem.Options{Limit: 1, Queue: 2})
			held, err := sem.Try(context.Background(), "capture")
			if err != nil {
				t.Fatal(err)
			}
			shed := shedder(t, httpshed.Options{Semaphore: sem, Wait: time.Minute})
			srv := serve(t, around(shed.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(w, r.Body)
			}))))
			waiting := func(n int) func() bool {
				return func() bool { return usage(t, sem, "capture").Waiting == n }
			}
			gone, _ := dial(t, srv)
			send(t, gone, head+"gone")
			await(t, "it waits", waiting(1))
			_ = gone.Close()
			await(t, "its place ends with it", waiting(0))

			conn, r := dial(t, srv)
			send(t, conn, head)
			send(t, conn, "here")
			await(t, "it waits", waiting(1))
			if err := held.Release(context.Background()); err != nil {
				t.Fatal(err)
			}
			a := readAnswer(t, r)
			wantStatus(t, a, http.StatusOK)
			if a.body != "here" {
				t.Errorf("the handler read %q", a.body)
			}
		})
	}
}

// A body that does not arrive is waited for no longer there than elsewhere.
func TestPostWithoutBodyIsRefusedBehindTimeoutHandler(t *testing.T) {
	t.Parallel()
	shed := shedder(t, httpshed.Options{Semaphore: full(t, gotsem.Options{Queue: 2}), Wait: 50 * time.Millisecond})
	srv := serve(t, http.TimeoutHandler(shed.Handler(http.HandlerFunc(picture)), time.Minute, "too long"))
	conn, r := dial(t, srv)
	send(t, conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\na")
	wantStatus(t, readAnswer(t, r), http.StatusTooManyRequests)
	_ = conn.Close()
	if st := shed.Stats(); st.Full != 1 {
		t.Errorf("%+v", st)
	}
}
