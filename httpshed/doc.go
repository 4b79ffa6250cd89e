// Package httpshed is the quick no over HTTP: middleware for net/http that lets a
// request in when a gotsem semaphore has a slot for it, and otherwise refuses it
// at once, before its body is read, in a way that lets its client try elsewhere.
//
//	shed, err := httpshed.New(httpshed.Options{
//		Semaphore: sem,                          // shared by a fleet, or of this process
//		Key:       httpshed.ByPathValue("project"), // what is limited
//	})
//	mux.Handle("/projects/{project}/capture", shed.Handler(capture))
//
// # A request that is let in
//
// It holds its slot until its handler returns, panics or calls runtime.Goexit; a
// connection that the handler takes over (a WebSocket) holds it until it is
// closed. Work that goes on after the handler has returned, or that is done long
// before the answer is written, says so with [Keep]. The request's context ends
// also when the slot is lost. The handler gets the ResponseWriter that the server
// made, not a wrapper (but for requests that ask for an upgrade, see [Keep]).
//
// # A request that is refused
//
// It gets its status (429), a Retry-After that comes from how fast the slots of
// its id come free, and no word about its id. On HTTP/1.x the connection is closed
// with it, since a kept one leads the client's retry back to the same full server:
// what balances connections (kube-proxy, an L4 balancer) chose once. That has a
// budget per second. HTTP/2 connections are spared: closing one would turn away
// the other requests on it.
//
// The answer does not wait for the request's body. What is left of that is read after
// it and thrown away, within bounds (Options.Linger, LingerBytes, MaxLingering): most
// clients and proxies send all of a body before they read, and would meet a reset.
// Where that cannot be promised, the answer announces that the connection is closed.
//
// # A request that waits
//
// With Options.Wait it first stands in line, and its place ends with its client:
// net/http notices that a client hung up only when the body was read, so the body
// of a request that is to wait is read first, up to Options.QueueBody. A request
// whose body is larger, or does not arrive, is refused instead.
//
// # Reading order
//
// options.go (what can be set), shedder.go (the door: who asks, is there room),
// held.go (what a request holds), refuse.go (the answer no, closing, lingering),
// drain.go (Retry-After), key.go (what is limited), transport.go (the client's
// side).
package httpshed
