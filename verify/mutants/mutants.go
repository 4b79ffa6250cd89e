// Package mutants breaks gotsem on purpose, one rule at a time, and has the check that
// should notice run against it.
//
// All of them are built into one program, of a copy of the sources that only the compiler
// sees (go build -overlay); an environment variable says which rule is broken.
package mutants

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Mutant is one rule broken. In a Lua file Old becomes New. In a Go file it does so in
// all programs built here, and New is mutated(name, broken, right) where it matters.
type Mutant struct {
	Name     string
	File     string // in the root module
	Old, New string // Old stands there exactly once
	Check    string // the check that must fail
}

// All returns the mutants.
func All() []Mutant { return all }

var all = []Mutant{
	{"no stamp: a new primary is taken for the old one", "store/redisstore/scripts/prelude.lua",
		"		loss = not (first and (madeRun == run or started < seen))\n", "		loss = false\n",
		"promoted-try"},
	{"no stamp: a missing marker is no loss", "store/redisstore/scripts/prelude.lua",
		"		loss, stamp = SEEN ~= NEW or lossProven, true\n", "		loss, stamp = false, true\n",
		"flush-try"},
	{"no grace", "store/redisstore/scripts/prelude.lua",
		"if loss then recovered, lost = GRACE, now end", "if loss then recovered, lost = 0, now end",
		"flush-try"},
	{"no poll", "wait.go",
		"const pollEvery = time.Second\n", "var pollEvery = mutated(\"no poll\", time.Hour, time.Second)\n",
		"poll"},
	{"trust from the answer on: grants", "lease.go",
		"l.trust.Store(int64(sent + ttl - margin(ttl)))", "l.trust.Store(int64(mutated(\"trust from the answer on: grants\", s.now(), sent) + ttl - margin(ttl)))",
		"send-time"},
	{"trust from the answer on: renewals", "renewal.go",
		"trust := sent + a.Waited + s.opt.TTL - margin(s.opt.TTL)", "trust := mutated(\"trust from the answer on: renewals\", s.now(), sent+a.Waited) + s.opt.TTL - margin(s.opt.TTL)",
		"send-time"},
	{"grace sweeps what looks lapsed", "store/redisstore/scripts/prelude.lua",
		"	elseif recovering() == 0 then\n		call('ZREM', S, unpack(dead))", "	else\n		call('ZREM', S, unpack(dead))",
		"purge"},
	{"limit + 1: leases", "store/redisstore/scripts/plain.lua",
		"		local give = limit - active\n", "		local give = limit - active + 1\n",
		"limit"},
	{"limit + 1: who waits", "store/redisstore/scripts/prelude.lua",
		"	if active + weight <= limit then return true end\n", "	if active + weight <= limit + 1 then return true end\n",
		"order"},
	{"limit <= instead of <: one slot", "store/redisstore/scripts/plain.lua",
		"	if active < A[3] + 0 then\n", "	if active <= A[3] + 0 then\n",
		"limit"},
	{"limit off by one, as a history shows it", "store/redisstore/scripts/plain.lua",
		"		local give = limit - active\n", "		local give = limit - active + 1\n",
		"history"},
	{"the line is served from its end", "store/redisstore/scripts/prelude.lua",
		"local head = call('ZRANGE', Q, '0', '0')[1]", "local head = call('ZRANGE', Q, '-1', '-1')[1]",
		"order"},
	{"no clock echo", "store/redisstore/scripts/prelude.lua",
		"	if left == 0 and not loss then\n", "	if false then\n",
		"step-try"},
	{"who gives up hands on room in the grace", "acquire.go",
		"SlotID: slotID, Grace: s.opt.Grace}", "SlotID: slotID, Grace: mutated(\"who gives up hands on room in the grace\", 0, s.opt.Grace)}",
		"give-up"},
	{"a run's uptime is rounded the wrong way", "store/redisstore/scripts/prelude.lua",
		"'uptime_in_seconds:(%d+)') or 0) - 2)", "'uptime_in_seconds:(%d+)') or 0) + 1)",
		"restore"},
	{"who was only refused has met the marker", "store/redisstore/scripts/plain.lua",
		"	if A[2] == '-1' or not e[1] then", "	if A[2] == '-1' then",
		"refused-first"},
	{"no pause after an outage", "store/redisstore/scripts/prelude.lua",
		"then recovered, stamp, paused = PAUSE, true, now end", "then paused = now end",
		"local"},
	{"every process starts its own grace", "store/redisstore/scripts/prelude.lua",
		"if lost - ECHO < 0 then loss, stamp = true, true end", "loss, stamp = true, true",
		"quiet-jump"},
}

// variable names the mutant to the program.
const variable = "GOTSEM_MUTANT"

// What is added to the root package.
const rootAddition = `package gotsem

import "os"

func mutated[T any](name string, broken, right T) T {
	if os.Getenv("` + variable + `") == name {
		return broken
	}
	return right
}
`

// What is added to the store, and where it is called from.
const (
	storeAddition = `package redisstore

import (
	"os"
	"strings"
)

func mutated(text string) string {
	return strings.Replace(text, os.Getenv("` + variable + `_OLD"), os.Getenv("` + variable + `_NEW"), 1)
}
`
	scriptsFile = "store/redisstore/scripts.go"
	scriptsOld  = "	sum := sha1.Sum([]byte(text))"
	scriptsNew  = "	text = mutated(text)\n	sum := sha1.Sum([]byte(text))"
)

// tries is how often a check may fail to notice: under a random load most runs meet what
// is broken, and not all.
const tries = 5

// Run builds and tries the mutants, and returns which survived. root is the root module's
// directory, verify the one of this module.
func Run(root, verify string, only string, side int, tell func(string)) error {
	tmp, err := os.MkdirTemp("", "gotsem-mutants-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	binary, err := build(root, verify, tmp)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var survived []string
	trials := make(chan struct{}, side)
	var tried sync.WaitGroup
	ran := 0
	for _, m := range all {
		if only != "" && !strings.Contains(m.Name, only) {
			continue
		}
		ran++
		trials <- struct{}{}
		tried.Go(func() {
			defer func() { <-trials }()
			began := time.Now()
			var found bool
			var out string
			n := 0
			for !found && n < tries {
				n++
				found, out = m.try(binary)
			}
			mu.Lock()
			defer mu.Unlock()
			if !found {
				survived = append(survived, m.Name)
				tell(fmt.Sprintf("FAIL %-52s %s did not notice in %d tries\n%s", m.Name, m.Check, n, out))
				return
			}
			tell(fmt.Sprintf("ok   %-52s %s noticed in try %d, %.1f s", m.Name, m.Check, n, time.Since(began).Seconds()))
		})
	}
	tried.Wait()
	switch {
	case ran == 0:
		return fmt.Errorf("no mutant is called %q", only)
	case len(survived) > 0:
		return fmt.Errorf("%d of %d mutants survived: %s", len(survived), ran, strings.Join(survived, "; "))
	}
	return nil
}

// build builds the one program.
func build(root, verify, tmp string) (binary string, err error) {
	changed := make(map[string]string) // file in root -> text
	change := func(file, old, new string) error {
		text, ok := changed[file]
		if !ok {
			read, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(file)))
			if err != nil {
				return err
			}
			text = string(read)
		}
		if n := strings.Count(text, old); n != 1 {
			return fmt.Errorf("%s has %d times what is to be broken, want once: mend the list of mutants:\n%s", file, n, old)
		}
		if new != old {
			changed[file] = strings.Replace(text, old, new, 1)
		}
		return nil
	}
	if err := change(scriptsFile, scriptsOld, scriptsNew); err != nil {
		return "", err
	}
	for _, m := range all {
		new := m.New
		if m.lua() {
			new = m.Old // only looked for: the program does it
		}
		if err := change(m.File, m.Old, new); err != nil {
			return "", fmt.Errorf("%s: %w", m.Name, err)
		}
	}
	changed["mutated.go"], changed["store/redisstore/mutated.go"] = rootAddition, storeAddition
	replace := make(map[string]string)
	for file, text := range changed {
		at := filepath.Join(tmp, strings.ReplaceAll(file, "/", "_"))
		if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
			return "", err
		}
		replace[filepath.Join(root, filepath.FromSlash(file))] = at
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	list := filepath.Join(tmp, "overlay.json")
	if err := os.WriteFile(list, overlay, 0o600); err != nil {
		return "", err
	}
	binary = filepath.Join(tmp, "mutants")
	cmd := exec.Command("go", "build", "-ldflags=-s -w", "-overlay", list, "-o", binary, ".")
	cmd.Dir = verify
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the mutants: %w\n%s", err, out)
	}
	return binary, nil
}

func (m Mutant) lua() bool { return strings.HasSuffix(m.File, ".lua") }

// try runs the check. It has noticed if it failed by itself.
func (m Mutant) try(binary string) (found bool, out string) {
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "check", "-only", m.Check)
	cmd.Env = append(os.Environ(), variable+"="+m.Name)
	if m.lua() {
		cmd.Env = append(cmd.Env, variable+"_OLD="+m.Old, variable+"_NEW="+m.New)
	}
	text, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	return errors.As(err, &exit) && ctx.Err() == nil && exit.ExitCode() == 1 && bytes.Contains(text, []byte("FAIL "+m.Check)), string(text)
}
