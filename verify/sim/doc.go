// Package sim plays gotsem's protocol against faults, in one goroutine and in made-up
// time: what a seed shows, it shows every time. It is a model, written from
// docs/guarantees.md and the scripts of store/redisstore, not the code itself; the
// code is tried in package faults. What it is for:
//
//   - many thousand schedules a minute, with faults that meet in ways nobody thought of;
//   - the two inequalities that the defaults rest on, G >= TTL + S and
//     TTL > S + renewal + RTT, are found again when they are broken;
//   - a rule left out (a Mutation) is found within a bounded number of seeds, so
//     that each rule of the protocol is known to be needed.
//
// S is for how long a deposed primary goes on taking writes, G the grace.
//
// What is checked at every instant: of one id, the weights of the leases that their
// holders believe in sum to at most the limit. A holder believes until its trust is
// over, by its own clock, stopped or not.
//
// Reading order: world.go (time, network, faults), server.go (what the scripts do),
// client.go (what the library does), sim.go (seeds and verdicts).
package sim
