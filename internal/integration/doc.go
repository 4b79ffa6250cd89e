// Package integration holds tests of the whole against real Redis servers that hang, fail, fill up or move: what a caller may rely
// on, whichever client and whichever fault. It has no code of its own.
package integration
