package grpcshed_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/grpcshed"
	"github.com/ashfaqjani916/gotsem/httpshed"
	"github.com/ashfaqjani916/gotsem/internal/leaktest"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/store/redisstore"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const patience = 20 * time.Second

// service does what its fields say.
type service struct {
	testpb.UnimplementedTestServiceServer
	unary  func(context.Context) error
	stream func(grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error
}

func (s *service) UnaryCall(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	if s.unary != nil {
		if err := s.unary(ctx); err != nil {
			return nil, err
		}
	}
	return &testpb.SimpleResponse{}, nil
}

func (s *service) FullDuplexCall(stream grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
	return s.stream(stream)
}

// world is a server behind a Shedder, and a client of it.
type world struct {
	t      *testing.T
	sem    *gotsem.Semaphore
	shed   *grpcshed.Shedder
	client testpb.TestServiceClient
	conn   *grpc.ClientConn
	srv    *grpc.Server
	read   atomic.Int64 // bytes that the server read
	seen   []grpcshed.Refusal
	mu     sync.Mutex
}

type setup struct {
	sem         gotsem.Options
	shed        grpcshed.Options
	interceptor bool
	service     service
	server      []grpc.ServerOption
	dial        []grpc.DialOption
}

func newWorld(t *testing.T, s setup) *world {
	t.Helper()
	w := &world{t: t}
	var err error
	if w.sem, err = gotsem.New(s.sem); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.sem.Close() })
	s.shed.Semaphore = w.sem
	if s.shed.Key == nil {
		s.shed.Key = grpcshed.Fixed("id")
	}
	s.shed.OnRefuse = func(_ context.Context, _ string, no grpcshed.Refusal) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.seen = append(w.seen, no)
	}
	if w.shed, err = grpcshed.New(s.shed); err != nil {
		t.Fatal(err)
	}
	if s.interceptor {
		s.server = append(s.server, grpc.UnaryInterceptor(w.shed.Unary()), grpc.StreamInterceptor(w.shed.Stream()))
	}
	w.srv = grpc.NewServer(s.server...)
	at := w.shed.Registrar(w.srv)
	if s.interceptor {
		at = w.srv
	}
	testpb.RegisterTestServiceServer(at, &s.service)
	healthpb.RegisterHealthServer(at, health.NewServer())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = w.srv.Serve(&counting{l, &w.read}) }()
	t.Cleanup(func() { w.srv.Stop(); <-done })
	w.conn, err = grpc.NewClient(l.Addr().String(), append(s.dial, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.conn.Close() })
	w.client = testpb.NewTestServiceClient(w.conn)
	return w
}

// counting counts what is read of its connections.
type counting struct {
	net.Listener
	n *atomic.Int64
}

func (l *counting) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &countedConn{c, l.n}, nil
}

type countedConn struct {
	net.Conn
	n *atomic.Int64
}

func (c *countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.n.Add(int64(n))
	return n, err
}

func (w *world) hold(id string) *gotsem.Lease {
	w.t.Helper()
	l, err := w.sem.Try(context.Background(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	return l
}

func (w *world) call(opts ...grpc.CallOption) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := w.client.UnaryCall(ctx, &testpb.SimpleRequest{}, opts...)
	return err
}

// frees awaits that nobody holds a slot.
func (w *world) frees() {
	w.t.Helper()
	for began := time.Now(); w.sem.Stats().Held > 0 || w.shed.Stats().Held > 0; time.Sleep(time.Millisecond) {
		if time.Since(began) > patience {
			w.t.Fatalf("%d are held still", w.sem.Stats().Held)
		}
	}
}

func pushbackOf(t *testing.T, trailer metadata.MD) int {
	t.Helper()
	all := trailer.Get("grpc-retry-pushback-ms")
	if len(all) != 1 {
		t.Fatalf("pushback %q, want one", all)
	}
	ms, err := strconv.Atoi(all[0])
	if err != nil {
		t.Fatal(err)
	}
	return ms
}

// A refusal says why, when to come back, and what is full, to programs and to people.
func TestARefusalSaysWhenToComeBack(t *testing.T) {
	for name, interceptor := range map[string]bool{"registrar": false, "interceptor": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, setup{sem: gotsem.Options{Limit: 2}, interceptor: interceptor, shed: grpcshed.Options{Key: grpcshed.ByMetadata("project")}})
			w.hold("p7")
			w.hold("p7")
			ctx := metadata.AppendToOutgoingContext(t.Context(), "project", "p7")
			var trailer metadata.MD
			_, err := w.client.UnaryCall(ctx, &testpb.SimpleRequest{}, grpc.Trailer(&trailer))
			st := status.Convert(err)
			var info *errdetails.ErrorInfo
			var retry *errdetails.RetryInfo
			var quota *errdetails.QuotaFailure
			for _, d := range st.Details() {
				switch d := d.(type) {
				case *errdetails.ErrorInfo:
					info = d
				case *errdetails.RetryInfo:
					retry = d
				case *errdetails.QuotaFailure:
					quota = d
				}
			}
			if st.Code() != codes.ResourceExhausted || info == nil || retry == nil || quota == nil {
				t.Fatalf("%v with %v", err, st.Details())
			}
			if info.Reason != grpcshed.Reason || info.Domain != grpcshed.Domain || info.Metadata["verdict"] != "full" || !strings.Contains(st.Message(), "2 of 2 held") {
				t.Errorf("%v, %v", info, st.Message())
			}
			if ms := pushbackOf(t, trailer); ms <= 0 || int64(ms) != retry.RetryDelay.AsDuration().Milliseconds() {
				t.Errorf("pushback %d ms, RetryInfo %v", ms, retry.RetryDelay.AsDuration())
			}
			if quota.Violations[0].Subject != "p7" {
				t.Errorf("%v", quota)
			}
			if s := w.shed.Stats(); s.Full != 1 || s.Admitted != 0 || len(w.seen) != 1 || w.seen[0].ID != "p7" || w.seen[0].Reason != httpshed.Full {
				t.Errorf("%+v, %+v", s, w.seen)
			}
		})
	}
}

// What each kind of no is called.
func TestEachNoHasItsCode(t *testing.T) {
	heavy := 1
	local, err := gotsem.New(gotsem.Options{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = local.Close() }()
	w := newWorld(t, setup{sem: gotsem.Options{Limit: 2}, shed: grpcshed.Options{
		Local:  local,
		Key:    grpcshed.ByMetadata("project"),
		Weight: func(context.Context, string) (int, error) { return heavy, nil },
	}})
	call := func(project string) (codes.Code, metadata.MD) {
		ctx := t.Context()
		if project != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "project", project)
		}
		var trailer metadata.MD
		_, err := w.client.UnaryCall(ctx, &testpb.SimpleRequest{}, grpc.Trailer(&trailer))
		return status.Code(err), trailer
	}
	if code, _ := call("a"); code != codes.OK {
		t.Errorf("with room: %v", code)
	}
	if code, _ := call(""); code != codes.InvalidArgument {
		t.Errorf("without a project: %v", code)
	}
	full, err := local.Try(t.Context(), httpshed.LocalID)
	if err != nil {
		t.Fatal(err)
	}
	if code, trailer := call("a"); code != codes.Unavailable || pushbackOf(t, trailer) > 100 {
		t.Errorf("this server is full: %v, %v", code, trailer)
	}
	_ = full.Release(t.Context())
	heavy = 5
	if code, trailer := call("a"); code != codes.FailedPrecondition || pushbackOf(t, trailer) != -1 {
		t.Errorf("too heavy: %v, %v", code, trailer)
	}
	if s := w.shed.Stats(); s.ServerFull != 1 || s.TooHeavy != 1 || s.BadRequest != 1 || s.Admitted != 1 {
		t.Errorf("%+v", s)
	}
}

// A client with a retry policy comes back when it was told to, and is let in.
func TestPushbackIsObeyed(t *testing.T) {
	policy := `{"methodConfig":[{"name":[{}],"retryPolicy":{"maxAttempts":5,"initialBackoff":"0.001s","maxBackoff":"0.001s","backoffMultiplier":1,"retryableStatusCodes":["RESOURCE_EXHAUSTED"]}}]}`
	w := newWorld(t, setup{sem: gotsem.Options{Limit: 1, TTL: 300 * time.Millisecond, StoreTimeout: 50 * time.Millisecond}, dial: []grpc.DialOption{grpc.WithDefaultServiceConfig(policy)}})
	lease := w.hold("id")
	began := time.Now()
	answered := make(chan error, 1)
	go func() { answered <- w.call() }()
	for w.shed.Stats().Full == 0 {
		time.Sleep(time.Millisecond)
	}
	_ = lease.Release(t.Context())
	if err := <-answered; err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := len(w.seen); n != 1 { // by its own back-off it would have come back within 1 ms, five times
		t.Errorf("it was refused %d times within %v", n, time.Since(began))
	}
}

// A refused message is not read: only what its sender had on the way.
func TestARefusedMessageIsNotRead(t *testing.T) {
	w := newWorld(t, setup{sem: gotsem.Options{Limit: 1, Queue: 10}, shed: grpcshed.Options{Wait: 50 * time.Millisecond},
		server: []grpc.ServerOption{grpc.StaticStreamWindowSize(65535)}})
	if err := w.call(); err != nil { // the connection is there
		t.Fatal(err)
	}
	w.frees()
	w.hold("id")
	before := w.read.Load()
	body := &testpb.SimpleRequest{Payload: &testpb.Payload{Body: make([]byte, 3<<20)}}
	_, err := w.client.UnaryCall(t.Context(), body)
	if status.Code(err) != codes.ResourceExhausted {
		t.Fatal(err)
	}
	if n := w.read.Load() - before; n > 70_000 {
		t.Errorf("of a refused message of 3 MiB %d bytes were read, want 70,000 at most", n)
	}
	if s := w.shed.Stats(); s.WaitedTooLong != 1 {
		t.Errorf("%+v", s)
	}
}

// The method is called after the slot is there and before the message: what the door is for,
// and grpc-go does since 1.84.
func TestTheSlotComesBeforeTheMessage(t *testing.T) {
	decoded := false
	desc := testpb.TestService_ServiceDesc
	for _, m := range desc.Methods {
		if m.MethodName != "UnaryCall" {
			continue
		}
		sem, err := gotsem.New(gotsem.Options{Limit: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = sem.Close() }()
		shed, err := grpcshed.New(grpcshed.Options{Semaphore: sem, Key: grpcshed.Fixed("id")})
		if err != nil {
			t.Fatal(err)
		}
		lease, err := sem.Try(t.Context(), "id")
		if err != nil {
			t.Fatal(err)
		}
		at := new(recorder)
		shed.Registrar(at).RegisterService(&desc, &service{})
		for i, wrapped := range at.desc.Methods {
			if wrapped.MethodName != "UnaryCall" {
				continue
			}
			call := func() error {
				_, err := at.desc.Methods[i].Handler(&service{}, t.Context(), func(any) error { decoded = true; return nil }, nil)
				return err
			}
			if err := call(); status.Code(err) != codes.ResourceExhausted || decoded {
				t.Errorf("refused: %v; decoded: %v", err, decoded)
			}
			_ = lease.Release(t.Context())
			if err := call(); err != nil || !decoded {
				t.Errorf("admitted: %v; decoded: %v", err, decoded)
			}
		}
	}
	if desc.Methods[0].Handler == nil {
		t.Error("the description that was given is changed")
	}
}

type recorder struct{ desc *grpc.ServiceDesc }

func (r *recorder) RegisterService(desc *grpc.ServiceDesc, _ any) { r.desc = desc }

// Whatever ends a call, its slot is free.
func TestTheSlotIsFreeWhateverEndsACall(t *testing.T) {
	began := make(chan struct{}, 10)
	w := newWorld(t, setup{sem: gotsem.Options{Limit: 1, Queue: 5}, shed: grpcshed.Options{Wait: patience},
		server: []grpc.ServerOption{grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (_ any, err error) {
			defer func() {
				if p := recover(); p != nil {
					err = status.Error(codes.Internal, "panic")
				}
			}()
			return next(ctx, req)
		})},
		service: service{
			unary: func(ctx context.Context) error {
				md, _ := metadata.FromIncomingContext(ctx)
				began <- struct{}{}
				switch strings.Join(md.Get("do"), "") {
				case "panic":
					panic("on purpose")
				case "wait":
					<-ctx.Done()
					return ctx.Err()
				}
				return nil
			},
			stream: func(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
				began <- struct{}{}
				_, err := s.Recv()
				return err
			},
		}})
	doing := func(what string) context.Context { return metadata.AppendToOutgoingContext(t.Context(), "do", what) }
	if _, err := w.client.UnaryCall(doing("panic"), &testpb.SimpleRequest{}); status.Code(err) != codes.Internal {
		t.Errorf("a panic: %v", err)
	}
	<-began
	w.frees()
	// A call that is cancelled while it works, and one while it waits.
	ctx, cancel := context.WithCancel(doing("wait"))
	ended := make(chan error, 2)
	go func() { _, err := w.client.UnaryCall(ctx, &testpb.SimpleRequest{}); ended <- err }()
	<-began
	waiting, give := context.WithCancel(t.Context())
	go func() { _, err := w.client.UnaryCall(waiting, &testpb.SimpleRequest{}); ended <- err }()
	for w.sem.Stats().Waiting == 0 {
		time.Sleep(time.Millisecond)
	}
	give()
	if err := <-ended; status.Code(err) != codes.Canceled {
		t.Errorf("cancelled in line: %v", err)
	}
	for w.shed.Stats().ClientGone == 0 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	<-ended
	w.frees()
	// A stream that its client resets, and one that is there when the connection breaks.
	for _, end := range []func(cancel func()){func(cancel func()) { cancel() }, func(func()) { _ = w.conn.Close() }} {
		ctx, cancel := context.WithCancel(t.Context())
		if _, err := w.client.FullDuplexCall(ctx); err != nil {
			t.Fatal(err)
		}
		<-began
		if n := w.sem.Stats().Held; n != 1 {
			t.Errorf("an open stream holds %d slots", n)
		}
		end(cancel)
		w.frees()
		cancel()
	}
}

// A call whose lease is lost is told, and says so.
func TestALostLeaseEndsTheCall(t *testing.T) {
	began := make(chan struct{}, 1)
	w := newWorld(t, setup{sem: gotsem.Options{Limit: 1}, service: service{
		stream: func(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
			if grpcshed.Lease(s.Context()) == nil {
				return errors.New("no lease")
			}
			began <- struct{}{}
			<-s.Context().Done()
			return s.Context().Err()
		}}})
	stream, err := w.client.FullDuplexCall(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	<-began
	if _, err := w.sem.Clear(t.Context(), "id"); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.Aborted || status.Convert(err).Message() != "lease lost" {
		t.Errorf("%v", err)
	}
}

// Probes are let through, and hold nothing, streams of theirs either.
func TestHealthChecksNeedNoSlot(t *testing.T) {
	w := newWorld(t, setup{sem: gotsem.Options{Limit: 1}})
	w.hold("id")
	if err := w.call(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("%v", err)
	}
	probe := healthpb.NewHealthClient(w.conn)
	if _, err := probe.Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	watch, err := probe.Watch(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Recv(); err != nil {
		t.Error(err)
	}
	if s := w.shed.Stats(); s.Skipped != 2 || s.Held != 0 {
		t.Errorf("%+v", s)
	}
}

// A store that cannot be asked is UNAVAILABLE, within its budget.
func TestWithoutAStoreItIsUnavailable(t *testing.T) {
	srv := redistest.Start(t)
	rdb := srv.Client()
	w := newWorld(t, setup{sem: gotsem.Options{Store: redisstore.New(rdb, "p:"), Limit: 1, Outage: gotsem.Closed}})
	if err := w.call(); err != nil {
		t.Fatal(err)
	}
	w.frees()
	srv.Stop()
	t.Cleanup(srv.Cont)
	var trailer metadata.MD
	if err := w.call(grpc.Trailer(&trailer)); status.Code(err) != codes.Unavailable || pushbackOf(t, trailer) < 1000 {
		t.Errorf("%v, %v", err, trailer)
	}
	if s := w.shed.Stats(); s.Unavailable != 1 {
		t.Errorf("%+v", s)
	}
}

// Interceptors of a client hold a slot for a call, and for a stream until that has ended.
func TestAClientHoldsSlotsToo(t *testing.T) {
	own, err := gotsem.New(gotsem.Options{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = own.Close() }()
	o := grpcshed.ClientOptions{Semaphore: own, Key: func(context.Context, string) string { return "upstream" },
		Options: func(context.Context, string) []gotsem.Option { return []gotsem.Option{gotsem.MaxWait(0)} }}
	w := newWorld(t, setup{sem: gotsem.Options{Limit: 9},
		dial: []grpc.DialOption{grpc.WithUnaryInterceptor(grpcshed.UnaryClient(o)), grpc.WithStreamInterceptor(grpcshed.StreamClient(o))},
		service: service{
			unary: func(context.Context) error {
				if n := own.Stats().Held; n != 1 {
					return status.Errorf(codes.Internal, "%d held", n)
				}
				return nil
			},
			stream: func(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
				_, err := s.Recv()
				if err == io.EOF {
					return nil
				}
				return err
			}}})
	free := func() {
		t.Helper()
		for began := time.Now(); own.Stats().Held > 0; time.Sleep(time.Millisecond) {
			if time.Since(began) > patience {
				t.Fatal("the slot is held still")
			}
		}
	}
	if err := w.call(); err != nil {
		t.Fatal(err)
	}
	free()
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := w.client.FullDuplexCall(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.call(); status.Code(err) != codes.ResourceExhausted || !grpcshed.IsLocal(err) || !errors.Is(err, gotsem.ErrFull) {
		t.Errorf("beside a stream: %v", err)
	}
	if _, err := w.client.FullDuplexCall(t.Context()); status.Code(err) != codes.ResourceExhausted || !grpcshed.IsLocal(err) {
		t.Errorf("a second stream: %v", err)
	}
	_ = stream.CloseSend()
	if _, err := stream.Recv(); err != io.EOF {
		t.Error(err)
	}
	free()
	if _, err = w.client.FullDuplexCall(ctx); err != nil {
		t.Fatal(err)
	}
	cancel() // and is never read
	free()
}

func TestOptionsSayWhatIsMissing(t *testing.T) {
	sem, err := gotsem.New(gotsem.Options{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sem.Close() }()
	for want, o := range map[string]grpcshed.Options{
		"Semaphore is nil": {Key: grpcshed.Fixed("a")},
		"Key is nil":       {Semaphore: sem},
		"Wait is -1s":      {Semaphore: sem, Key: grpcshed.Fixed("a"), Wait: -time.Second},
		"cap of its own":   {Semaphore: sem, Local: sem, Key: grpcshed.Fixed("a")},
	} {
		if _, err := grpcshed.New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}
