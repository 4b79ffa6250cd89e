// Package redistest gives tests and benchmarks real Redis servers, alone, under Sentinel or in a Cluster, and the means to break
// them: killed, stopped, restarted without their data, slots half moved, and a network in between that delays, freezes, loses,
// doubles, hangs at a chosen step and speaks TLS.
//
//	srv := redistest.Start(t)              // one server on a port of its own
//	rdb := srv.Client()                    // closed with the test
//	relay := redistest.NewRelay(t, srv.Addr())
//	relay.SetDelay(20 * time.Millisecond)  // real latency in each direction
//	srv.Kill()                             // kill -9
//
// A server that cannot be started fails the test; nothing is ever skipped because Redis is not there. Whatever was started ends
// with the test, and with the process even if that is killed (on Linux). Nothing else is touched: no server is looked for on a
// well-known port, none is ended that was not started here.
//
// # Failures
//
// Methods return no errors. What cannot be done is fatal to the test ([TB].Fatalf), with what was awaited, for how long, and the
// last lines of the servers' logs; so call them from the test's own goroutine. Programs that are not tests use [Launch], which
// returns an error instead.
//
// # Waiting
//
// Every method that changes something returns when the change is there to be seen: a killed server has been reaped, a stopped one
// has stopped, a restarted one answers, a migrated slot has one owner in the eyes of all. Waits poll, and each has an end.
//
// # Reading order
//
// server.go is one server, sentinel.go and cluster.go are several that know each other, relay.go is the network in between, hang.go
// where it can hang. directory.go and names.go stand in for sentinels and name servers that are asked and do nothing by themselves.
package redistest
