package main

import (
	"errors"
	"flag"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/ashfaqjani916/gotsem/verify/faults"
	"github.com/ashfaqjani916/gotsem/verify/mutants"
	"github.com/ashfaqjani916/gotsem/verify/skew"
)

// runChecks runs the named checks, or all, a few at a time: they mostly wait.
func runChecks(only string, side int) error {
	clocks, err := skew.Install()
	if err != nil {
		return err
	}
	defer clocks.Close()
	var mu sync.Mutex
	var failed []string
	ran := 0
	slots := make(chan struct{}, side)
	var all sync.WaitGroup
	for _, c := range faults.Checks() {
		if only != "" && c.Name != only {
			continue
		}
		ran++
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			began := time.Now()
			notes, err := c.Run(clocks)
			mu.Lock()
			defer mu.Unlock()
			verdict := "ok  "
			var impossible *faults.Impossible
			switch {
			case errors.As(err, &impossible):
				verdict, notes, err = "n/a ", impossible.Error(), nil
			case err != nil:
				verdict = "FAIL"
				failed = append(failed, c.Name)
			}
			fmt.Printf("%s %-42s %5.1f s  %s\n", verdict, c.Name, time.Since(began).Seconds(), notes)
			if err != nil {
				fmt.Printf("     %v\n", err)
			}
		})
	}
	all.Wait()
	switch {
	case ran == 0:
		return fmt.Errorf("no check is called %q", only)
	case len(failed) > 0:
		return fmt.Errorf("%d of %d checks failed: %s", len(failed), ran, strings.Join(failed, "; "))
	}
	return nil
}

func runCheck(args []string) error {
	f := flag.NewFlagSet("check", flag.ExitOnError)
	only := f.String("only", "", "only this check")
	side := f.Int("side", 7, "checks that run at the same time")
	withMutants := f.Bool("mutants", true, "then break the rules one by one, and see that a check notices")
	_ = f.Parse(args)
	if *only != "" {
		return runChecks(*only, *side)
	}
	err := errors.Join(runXSync([]string{"-runs", "100"}), runChecks("", *side))
	if *withMutants {
		err = errors.Join(err, runAllMutants("", *side))
	}
	return err
}

func runMutants(args []string) error {
	f := flag.NewFlagSet("mutants", flag.ExitOnError)
	only := f.String("only", "", "only those with this in their names")
	side := f.Int("side", 5, "mutants that are tried at the same time")
	_ = f.Parse(args)
	return runAllMutants(*only, *side)
}

func runAllMutants(only string, side int) error {
	const module = "github.com/ashfaqjani916/gotsem"
	root, err := moduleDir(module)
	if err != nil {
		return err
	}
	verify, err := moduleDir(module + "/verify")
	if err != nil {
		return err
	}
	return mutants.Run(root, verify, only, side, func(line string) { fmt.Println(line) })
}

// moduleDir returns where a module of the build lies.
func moduleDir(path string) (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", path).Output()
	if err != nil {
		return "", fmt.Errorf("where is %s? run this in the verify directory: %w", path, err)
	}
	return strings.TrimSpace(string(out)), nil
}
