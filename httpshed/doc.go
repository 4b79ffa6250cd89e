// Package httpshed sheds load over HTTP: middleware for net/http that admits a request
// when a gotsem semaphore has a slot for it, and otherwise refuses it at once, before
// its body is read, in a way that lets its client try elsewhere.
//
//	shed, err := httpshed.New(httpshed.Options{
//		Semaphore: sem,                          // shared by a fleet, or of this process
//		Key:       httpshed.ByPathValue("project"), // what is limited
//	})
//	mux.Handle("/projects/{project}/capture", shed.Handler(capture))
//
// # Admitted
//
// It holds its slot until its handler returns, panics or calls runtime.Goexit; a
// connection that the handler takes over (a WebSocket) holds it until it is
// closed. Work that goes on after the handler has returned, or that is done long
// before the answer is written, says so with [Keep]. The request's context ends
// also when the slot is lost. The handler gets the ResponseWriter that the server
// made, not a wrapper (but for requests that ask for an upgrade, see [Keep]).
//
// # Refused
//
// It gets its status (429), a Retry-After that comes from how fast the slots of
// its id come free, and nothing about its id. On HTTP/1.x the connection is closed
// with it, since a kept one leads the client's retry back to the same full server:
// a balancer of connections (kube-proxy, an L4 balancer) chooses once. That has a
// budget per second. HTTP/2 connections are spared: closing one would end
// the other requests on it.
//
// The answer does not wait for the request's body. What is left of that is read after
// it and discarded, within bounds (Options.Linger, LingerBytes, MaxLingering): most
// clients and proxies send all of a body before they read, and would meet a reset.
// Where that is not possible, the answer announces that the connection is closed.
//
// # Waiting
//
// With Options.Wait it first stands in line, and its place ends with its client:
// net/http notices that a client hung up only when the body was read, so the body
// of a request that is to wait is read first, up to Options.QueueBody. A request
// whose body is larger, or does not arrive, is refused instead.
//
// # Reading order
//
// options.go (what can be set), shedder.go (the entry: which id, is there room),
// held.go (what a request holds), refuse.go (the answer no, closing, lingering),
// key.go (what is limited), transport.go (the client's side). Taking the slots, and
// when to come back, are those of internal/door.
package httpshed
