// Package gotsem is a distributed semaphore and load shedder: at most N at once
// per id, across all processes. First come, first served, and a quick no when there is
// no room.
//
// # Terms
//
//   - An id is what is limited: a project, an API key, a browser.
//   - A slot is one unit of an id. The limit says how many slots an id has.
//   - A lease is slots held for a time, under one slot id. Its weight says how many.
//     It may be of several ids (Also), and is then held at all of them or at none.
//   - A class says how important a call is (As), and so who is refused first.
//   - The line is the waiters of an id. A grant hands slots to the head of the line.
//   - Full: there is no room. Refused: the answer to a request was no.
//   - Lost: a lease that its holder does not have any more.
//
// # Guarantees
//
//   - At every instant of the store's clock the weights of the leases of an id sum
//     to at most the limit in force at the last grant.
//   - The slots of a crashed process are free at most one TTL after its last
//     renewal, its place in line after 3 s.
//   - Grants to waiters follow the order in which they joined. Nobody overtakes, and
//     Try never takes a slot owed to a waiter.
//   - No grant is missed: its wake-up comes at once, and if that is lost, a poll finds
//     it within a second. Cancelled, failed and retried calls leak nothing.
//   - No call waits on the store longer than StoreTimeout, or its ctx if that is
//     shorter.
//   - An idle id takes no room, in Redis or here.
//
// Mutual exclusion at the resource is not guaranteed: a suspended holder may still act
// after its lease has expired, until it next checks Lease.Context. Where that matters,
// pass Lease.Fence to the resource. docs/guarantees.md has the exceptions, with their
// numbers.
//
// # Closing
//
// Close of the Semaphore is all there is to close: it releases what is held and leaves no
// connection of the store's own. The client that the store was made of stays the caller's,
// and is closed after it. A semaphore of NewGotsem needs no Close.
//
// # Reading order
//
// options.go (what can be set), gotsem.go (what a semaphore is made of), call.go and
// acquire.go (the front door), several.go, levels.go, order.go and class.go (several
// ids, classes of importance), line.go and wait.go (waiting), lease.go, renewer.go,
// loss.go and release.go (what you hold), gate.go, gate_release.go and breaker.go (the
// way to the store, and its outages), outage.go and local.go (who is admitted
// meanwhile), backlog.go (what the store has not taken back yet), limit.go, known.go and
// drain.go (what is remembered of an id), usage.go, stats.go and observe.go (looking
// in), compat.go (the compatibility API: NewGotsem and its five methods). Package store
// is the contract with the place that keeps the slots, store/memstore its shortest full
// statement.
package gotsem
