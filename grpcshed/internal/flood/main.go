// Command flood sends far more large gRPC calls than a server behind a Shedder takes, from a
// process of its own, and looks whether the server's memory stays level and whether every
// call was answered as it should be.
//
//	go run ./internal/flood                 # 2 minutes: 200 calls of 3 MiB a second, 4 at once
//	go run ./internal/flood -interceptor    # the same, refused after the message was read
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/grpcshed"
)

const (
	limit = 4
	work  = 200 * time.Millisecond
	size  = 3 << 20
	role  = "GOTSEM_FLOOD_ROLE" // of a child: "server", "interceptor"
	most  = "256MiB"            // GOMEMLIMIT of the server
)

func main() {
	if as := os.Getenv(role); as != "" {
		exit(serve(as == "interceptor"))
	}
	seconds := flag.Int("seconds", 120, "how long")
	rate := flag.Int("rate", 200, "calls a second")
	interceptor := flag.Bool("interceptor", false, "refuse by interceptors, which is after the message was read")
	flag.Parse()
	exit(run(time.Duration(*seconds)*time.Second, *rate, *interceptor))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "flood:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

type service struct {
	testpb.UnimplementedTestServiceServer
}

func (service) UnaryCall(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	time.Sleep(work)
	return &testpb.SimpleResponse{}, nil
}

// serve prints where it serves, and then each second how large its heap is, until its input
// ends.
func serve(interceptor bool) error {
	sem, err := gotsem.New(gotsem.Options{Limit: limit})
	if err != nil {
		return err
	}
	defer sem.Close()
	shed, err := grpcshed.New(grpcshed.Options{Semaphore: sem, Key: grpcshed.Fixed("flood")})
	if err != nil {
		return err
	}
	opts := []grpc.ServerOption{grpc.StaticStreamWindowSize(65535)}
	if interceptor {
		opts = append(opts, grpc.UnaryInterceptor(shed.Unary()))
	}
	srv := grpc.NewServer(opts...)
	at := shed.Registrar(srv)
	if interceptor {
		at = srv
	}
	testpb.RegisterTestServiceServer(at, service{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	go func() {
		for range time.Tick(time.Second) {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			fmt.Println(m.HeapInuse)
		}
	}()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		srv.Stop()
	}()
	return srv.Serve(l)
}

// tally counts how calls ended.
type tally struct {
	ok, refused atomic.Int64
	mu          sync.Mutex
	other       map[string]int
}

func (t *tally) count(err error) {
	st := status.Convert(err)
	switch {
	case err == nil:
		t.ok.Add(1)
		return
	case st.Code() == codes.ResourceExhausted:
		for _, d := range st.Details() {
			if info, ok := d.(*errdetails.ErrorInfo); ok && info.Domain == grpcshed.Domain && info.Reason == grpcshed.Reason {
				t.refused.Add(1)
				return
			}
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.other[st.String()]++
}

func run(length time.Duration, rate int, interceptor bool) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	as := "server"
	if interceptor {
		as = "interceptor"
	}
	child := exec.Command(self)
	child.Env = append(os.Environ(), role+"="+as, "GOMEMLIMIT="+most)
	child.Stderr = os.Stderr
	in, err := child.StdinPipe()
	if err != nil {
		return err
	}
	out, err := child.StdoutPipe()
	if err != nil {
		return err
	}
	if err := child.Start(); err != nil {
		return err
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		return fmt.Errorf("the server says nothing: %w", child.Wait())
	}
	addr := lines.Text()
	var heap []int
	heard := make(chan struct{})
	go func() {
		defer close(heard)
		for lines.Scan() {
			if n, err := strconv.Atoi(lines.Text()); err == nil {
				heap = append(heap, n)
			}
		}
	}()

	var clients []testpb.TestServiceClient
	for range 8 {
		conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return err
		}
		defer conn.Close()
		clients = append(clients, testpb.NewTestServiceClient(conn))
	}
	body := &testpb.SimpleRequest{Payload: &testpb.Payload{Body: make([]byte, size)}}
	t := tally{other: make(map[string]int)}
	var calls sync.WaitGroup
	began := time.Now()
	n := 0
	for ; time.Since(began) < length; n++ { // by the clock: who is late does not lessen the load
		time.Sleep(time.Until(began.Add(time.Duration(n) * time.Second / time.Duration(rate))))
		calls.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			_, err := clients[n%len(clients)].UnaryCall(ctx, body)
			t.count(err)
		})
	}
	calls.Wait()
	took := time.Since(began)
	_ = in.Close()
	<-heard
	_ = child.Wait()

	early, late := 0, 0
	for i, h := range heap {
		if i < len(heap)/2 {
			early = max(early, h)
		} else {
			late = max(late, h)
		}
	}
	fmt.Printf("%d calls of %d MiB in %.0f s: %d OK, %d refused as they should be, others: %v\nheap in use at most: %.1f MiB in the first half, %.1f MiB in the second\n",
		n, size>>20, took.Seconds(), t.ok.Load(), t.refused.Load(), t.other, float64(early)/(1<<20), float64(late)/(1<<20))
	var wrong []string
	if len(t.other) > 0 {
		wrong = append(wrong, "some calls were answered otherwise")
	}
	if t.ok.Load() == 0 || t.refused.Load() == 0 {
		wrong = append(wrong, "nothing was let in, or nothing refused: that was no flood")
	}
	if float64(late) > 1.25*float64(early) {
		wrong = append(wrong, "the heap grows")
	}
	if len(wrong) > 0 {
		return fmt.Errorf("%s", strings.Join(wrong, "; "))
	}
	return nil
}
