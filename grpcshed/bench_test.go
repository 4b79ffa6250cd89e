package grpcshed_test

import (
	"context"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/grpcshed"
)

// BenchmarkCall is a call by eight clients over one connection of this machine: bare, let in,
// and refused with all details, or with a bare status, which is what a refusal costs at
// least. Compare what ran in one go:
//
//	go test -bench Call -count 6 . | tee /tmp/new; benchstat -col /door /tmp/new
func BenchmarkCall(b *testing.B) {
	serve := func(b *testing.B, register func(*grpc.Server)) testpb.TestServiceClient {
		b.Helper()
		srv := grpc.NewServer()
		register(srv)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		done := make(chan struct{})
		go func() { defer close(done); _ = srv.Serve(l) }()
		b.Cleanup(func() { srv.Stop(); <-done })
		conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = conn.Close() })
		return testpb.NewTestServiceClient(conn)
	}
	run := func(b *testing.B, client testpb.TestServiceClient, want codes.Code) {
		b.Helper()
		b.SetParallelism(4)
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if _, err := client.UnaryCall(context.Background(), &testpb.SimpleRequest{}); status.Code(err) != want {
					b.Error(err)
					return
				}
			}
		})
	}
	shed := func(b *testing.B, limit int) *grpcshed.Shedder {
		b.Helper()
		sem, err := gotsem.New(gotsem.Options{Limit: limit})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = sem.Close() })
		s, err := grpcshed.New(grpcshed.Options{Semaphore: sem, Key: grpcshed.Fixed("id")})
		if err != nil {
			b.Fatal(err)
		}
		if limit == 1 {
			if _, err := sem.Try(context.Background(), "id"); err != nil {
				b.Fatal(err)
			}
		}
		return s
	}
	b.Run("door=bare", func(b *testing.B) {
		run(b, serve(b, func(srv *grpc.Server) { testpb.RegisterTestServiceServer(srv, &service{}) }), codes.OK)
	})
	b.Run("door=admitted", func(b *testing.B) {
		run(b, serve(b, func(srv *grpc.Server) { testpb.RegisterTestServiceServer(shed(b, 1000).Registrar(srv), &service{}) }), codes.OK)
	})
	b.Run("door=refused", func(b *testing.B) {
		run(b, serve(b, func(srv *grpc.Server) { testpb.RegisterTestServiceServer(shed(b, 1).Registrar(srv), &service{}) }), codes.ResourceExhausted)
	})
	b.Run("door=error", func(b *testing.B) {
		run(b, serve(b, func(srv *grpc.Server) {
			testpb.RegisterTestServiceServer(srv, &service{unary: func(context.Context) error { return status.Error(codes.ResourceExhausted, "no") }})
		}), codes.ResourceExhausted)
	})
}
