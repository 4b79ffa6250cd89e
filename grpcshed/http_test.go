package grpcshed_test

import (
	"context"
	"net"
	"net/http"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/httpshed"
)

// A client of grpc-go reads what httpshed answers in front of it, however large its message:
// the code, the details, and when to come back.
func TestHTTPShedIsReadByGRPC(t *testing.T) {
	sem, err := gotsem.New(gotsem.Options{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sem.Close() }()
	shed, err := httpshed.New(httpshed.Options{Semaphore: sem, Key: httpshed.Fixed("id")})
	if err != nil {
		t.Fatal(err)
	}
	inner := grpc.NewServer()
	testpb.RegisterTestServiceServer(inner, &service{})
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	srv := &http.Server{Handler: shed.Handler(inner), Protocols: p}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(l) }()
	defer func() { _ = srv.Close(); <-done }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	client := testpb.NewTestServiceClient(conn)
	call := func(size int, opts ...grpc.CallOption) error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, err := client.UnaryCall(ctx, &testpb.SimpleRequest{Payload: &testpb.Payload{Body: make([]byte, size)}}, opts...)
		return err
	}
	if err := call(10); err != nil {
		t.Fatal(err)
	}
	for shed.Stats().Held > 0 {
		time.Sleep(time.Millisecond)
	}
	lease, err := sem.Try(t.Context(), "id")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lease.Release(context.Background()) }()
	for _, size := range []int{10, 3 << 20} {
		var trailer metadata.MD
		err := call(size, grpc.Trailer(&trailer))
		st := status.Convert(err)
		var info *errdetails.ErrorInfo
		var retry *errdetails.RetryInfo
		for _, d := range st.Details() {
			switch d := d.(type) {
			case *errdetails.ErrorInfo:
				info = d
			case *errdetails.RetryInfo:
				retry = d
			}
		}
		if st.Code() != codes.ResourceExhausted || info == nil || info.Metadata["verdict"] != "full" || retry == nil {
			t.Fatalf("%d bytes: %v with %v", size, err, st.Details())
		}
		if ms := pushbackOf(t, trailer); int64(ms) != retry.RetryDelay.AsDuration().Milliseconds() || ms <= 0 {
			t.Errorf("%d bytes: pushback %d ms, RetryInfo %v", size, ms, retry.RetryDelay.AsDuration())
		}
	}
}
