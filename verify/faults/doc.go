// Package faults breaks real Redis servers under real load, and counts outside of
// Redis.
//
// What is checked, by the numbers of docs/faults.md: of one id, the weights that
// holders believe in never sum to more than the limit; a lease that was asked
// for after another had ended has the higher fence; nobody is told "lost" of a lease that was
// not taken from it; nobody is granted past somebody who stood in line before; when all
// is over nothing is left behind, and what waits is served.
//
// A holder believes from the moment in which Acquire returned until it gave the lease
// back, saw its Context end, or Expires had passed, whatever came first, by a clock that
// all processes of the machine share. That is less than what the semaphore owes it,
// never more: what is counted as too many is too many.
//
// Reading order: referee.go (counting), order.go (who came first), load.go (who
// acquires), process.go (load in processes of its own, to be killed and stopped),
// pair.go (a primary and a replica, with a network in between), then what is done with
// them: table.go, checks.go, soak.go, history.go, doubled.go, split.go, packets.go,
// local.go, away.go, latency.go, cost.go.
package faults
