package grpcshed_test

import (
	"context"
	"fmt"
	"log"
	"net"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/grpcshed"
)

// The second call of a project is refused while the first is at work, before its message
// is read.
func Example() {
	sem, err := gotsem.New(gotsem.Options{Limit: 1}) // with redisstore: across all servers
	if err != nil {
		log.Fatal(err)
	}
	defer sem.Close()
	shed, err := grpcshed.New(grpcshed.Options{Semaphore: sem, Key: grpcshed.ByMetadata("project")})
	if err != nil {
		log.Fatal(err)
	}
	srv := grpc.NewServer(grpc.StaticStreamWindowSize(65535)) // so much of a refused message is read
	began, goOn := make(chan bool), make(chan bool)
	testpb.RegisterTestServiceServer(shed.Registrar(srv), &service{unary: func(context.Context) error {
		began <- true
		<-goOn
		return nil
	}})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go func() { _ = srv.Serve(l) }()
	defer srv.Stop()

	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	client := testpb.NewTestServiceClient(conn)
	ctx := metadata.AppendToOutgoingContext(context.Background(), "project", "7")
	first := make(chan error)
	go func() {
		_, err := client.UnaryCall(ctx, &testpb.SimpleRequest{})
		first <- err
	}()
	<-began
	_, err = client.UnaryCall(ctx, &testpb.SimpleRequest{})
	st := status.Convert(err)
	fmt.Println(st.Code(), st.Message())
	for _, d := range st.Details() {
		if retry, ok := d.(*errdetails.RetryInfo); ok {
			fmt.Println("says when to come back:", retry.RetryDelay.AsDuration() > 0)
		}
	}
	goOn <- true
	fmt.Println(<-first)
	// Output:
	// ResourceExhausted the limit is reached: 1 of 1 held, 0 waiting
	// says when to come back: true
	// <nil>
}
