// Package gotsem is a distributed semaphore and load shedder: at most N at once
// per id, across all processes, first come first served, and a quick no when there
// is no room.
//
// # Words
//
// An id is what is limited: a project, an API key, a browser. A slot is one unit of
// it, the limit how many slots an id has. A lease is slots held for a time, under
// one slot id; its weight is how many. Those who wait stand in line. Full is no
// room; lost is no longer yours; refused is told no.
//
// # What it promises
//
//   - At every instant of the store's clock the weights of the leases of an id sum
//     to at most the limit in force at the last grant.
//   - The slots of a crashed process are free at most one TTL after its last
//     renewal, its place in line after 3 s.
//   - Grants to those who wait follow the order in which they joined. Nobody
//     overtakes, and Try takes nothing that a waiter is due.
//   - No wake-up is lost: a push comes at once, a poll within a second if it does
//     not. What gives up, fails or is repeated leaves nothing behind.
//   - No call waits on the store longer than StoreTimeout, or its ctx if that is
//     shorter.
//   - An idle id takes no room, in Redis or here.
//
// It does not promise mutual exclusion at the resource: a holder that was suspended
// may act after its lease is over, before it looks at Lease.Context. Where that
// matters, hand Lease.Fence to the resource. docs/guarantees.md has the exceptions,
// with their numbers.
//
// # Reading order
//
// options.go (what can be set), gotsem.go (what a semaphore is made of), acquire.go
// (the front door), line.go and wait.go (waiting), lease.go and renewer.go (what you
// hold), gate.go and breaker.go (the way to the store, and its outages), outage.go and
// local.go (who is admitted meanwhile), backlog.go (what the store has not taken back
// yet), limit.go, known.go and drain.go (what is remembered of an id), usage.go and
// stats.go (looking in), compat.go (the compatibility API: NewGotsem and its five
// methods). Package store is the contract with the place that keeps the slots,
// store/memstore its shortest full statement.
package gotsem
