//go:build !linux

package browser

import (
	"os"
	"os/exec"
	"time"
)

// harness, yield and bury do on Linux what cannot be done here: the browser is ended
// without its process group, has the priority of the service, and outlives this
// process should that be killed.
func harness(*exec.Cmd) {}

func yield(int, int) error { return nil }

func bury(int) {}

const buryPause = 10 * time.Millisecond

// tryLock has no locks here: a profile that is left stays.
func tryLock(*os.File) (bool, error) { return false, nil }

// heavyRenderers has no process table here.
func heavyRenderers(int, int64) map[int]int64 { return nil }

func endRenderer(int) {}

func ended(int) bool { return false }

func endUsers(string) {}
