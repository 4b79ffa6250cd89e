//go:build race

package httpshed_test

const raceEnabled = true
