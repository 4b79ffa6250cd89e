// Command verify tries to break what gotsem promises. See docs/faults.md.
//
//	go run . check                 a short run with fixed seeds; what make verify does
//	go run . soak -seconds 600     random faults on a single server, Sentinel and Cluster
//	go run . table -rounds 20      holders, with and without the grace, by fault
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/redis/go-redis/v9"

	"github.com/ashfaqjani916/gotsem/verify/faults"
)

// silence is go-redis's log: servers that do not answer are what this is about.
type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

var commands = map[string]struct {
	run  func(args []string) error
	what string
}{
	"check":     {runCheck, "a short run with fixed seeds"},
	"soak":      {runSoak, "random faults for a given time"},
	"table":     {runTable, "count holders in each fault, with the grace and without"},
	"split":     {runSplit, "a split brain whose deposed primary goes on"},
	"packets":   {runPackets, "packets that vanish between network namespaces"},
	"away":      {runAway, "a server that is killed, and comes back empty"},
	"local":     {runLocal, "an outage under the policy Local, from three processes"},
	"impatient": {runImpatient, "patient callers beside ones that give up at once"},
	"starved":   {runStarved, "leases of a process that is starved of its processor"},
	"levels":    {runLevels, "several limits at once: fair shares, and limits that cross"},
	"looks":     {runLooks, "what it costs Redis that somebody looks at the operators' page"},
	"xsync":     {runXSync, "the tests of golang.org/x/sync/semaphore, on both stores"},
	"mutants":   {runMutants, "break the rules one by one, and see that a check notices"},
}

func main() {
	redis.SetLogger(silence{})
	if os.Getenv(faults.WorkerVariable) != "" {
		if err := faults.RunWorker(); err != nil {
			fmt.Fprintln(os.Stderr, "verify: worker:", err)
			os.Exit(1)
		}
		return
	}
	if len(os.Args) > 1 {
		if c, ok := commands[os.Args[1]]; ok {
			if err := c.run(os.Args[2:]); err != nil {
				fmt.Fprintln(os.Stderr, "verify:", err)
				os.Exit(1)
			}
			return
		}
	}
	fmt.Fprintln(os.Stderr, "usage: go run . COMMAND [flags]")
	for _, name := range []string{"check", "soak", "table", "split", "packets", "away", "local", "impatient", "starved", "levels", "looks", "xsync", "mutants"} {
		if c, ok := commands[name]; ok {
			fmt.Fprintf(os.Stderr, "  %-9s %s\n", name, c.what)
		}
	}
	os.Exit(2)
}
