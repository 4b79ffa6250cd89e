// Command bench measures gotsem beside a lower bound and beside others that do the
// same, and writes what it found into the documents:
//
//	go run . -out ../../docs              # everything: what `make bench` does
//	go run . -only hot,alone              # some tables, on standard output
//	go run . -quick                       # a smoke run, under a minute
//	go run . -check                       # exits 1 if a target is missed
//	go run . scale                        # the tables of docs/scale.md alone
//
// All contenders of a table run on one redis-server, started for the purpose, in turn
// (A B C A B C ...), in at least five rounds. A table shows medians, and from the
// lowest to the highest round where that fits; a ratio is one of medians. What the
// rivals are, and how they were set up, is in contenders.go; what is measured of each in
// contest.go. Every table says what bounds it.
//
// Nothing imports this module, so that the rivals are in nobody's go.mod but its own.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"time"

	"github.com/ashfaqjani916/gotsem/internal/redistest"
)

// tables in the order in which they run.
var tables = []table{
	{name: "hot", doc: performance, run: hotTable},
	{name: "full", doc: performance, run: fullTable},
	{name: "many", doc: performance, run: manyTable},
	{name: "sixteen", doc: performance, run: sixteenTable},
	{name: "alone", doc: performance, run: aloneTable},
	{name: "far", doc: performance, run: farTable},
	{name: "locks", doc: performance, run: locksTable},
	{name: "allocs", doc: performance, run: allocsTable},
	{name: "server", doc: performance, run: serverTable},
	{name: "memory", doc: performance, run: memoryTable},
	{name: "known", doc: performance, run: knownTable},
	{name: "overload", doc: performance, run: overloadTable},
	{name: "memstore", doc: performance, run: memstoreTable},
	{name: "http", doc: performance, run: httpTable},
	{name: "fair", doc: performance, run: fairTable},
	{name: "line", doc: performance, run: lineTable},
	{name: "leases", doc: performance, run: leasesTable},
	{name: "grace", doc: performance, run: graceTable},
	{name: "outage", doc: performance, run: outageTable},
	{name: "scale-ids", doc: scaling, run: scaleIDsTable},
	{name: "scale-holders", doc: scaling, run: scaleHoldersTable},
	{name: "scale-waiters", doc: scaling, run: scaleWaitersTable},
	{name: "scale-processes", doc: scaling, run: scaleProcessesTable},
	{name: "scale-cluster", doc: scaling, run: scaleClusterTable},
}

// The documents, seen from docs. Targets are ours and not the user's, so they stand beside
// the bench.
const (
	performance = "performance.md"
	scaling     = "scale.md"
	targetsDoc  = "../verify/bench/TARGETS.md"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == childArg {
		if err := child(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	var o options
	flag.StringVar(&o.out, "out", "", "write the tables into the documents of this folder")
	flag.StringVar(&o.only, "only", "", "names of tables, with commas; a name stands for those that begin so")
	flag.BoolVar(&o.quick, "quick", false, "few and short rounds: to see that it works, not how fast it is")
	flag.BoolVar(&o.check, "check", false, "exit 1 if a target is missed")
	flag.StringVar(&o.profile, "profile", "", "write a CPU profile of this process to this file; samples are labelled with their contender (go tool pprof -tagfocus)")
	flag.IntVar(&o.rounds, "rounds", 0, "rounds per contender (default 5; with -quick 2)")
	flag.DurationVar(&o.span, "span", 0, "length of a round (default 1s; with -quick 60ms)")
	flag.Parse()
	if flag.Arg(0) == "scale" {
		o.only = "scale"
	}
	missed, err := measure(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	if o.check && len(missed) > 0 {
		fmt.Fprintln(os.Stderr, "\ntargets missed:")
		for _, m := range missed {
			fmt.Fprintln(os.Stderr, " ", m)
		}
		os.Exit(1)
	}
}

type options struct {
	out, only    string
	profile      string
	quick, check bool
	rounds       int
	span         time.Duration
}

// measure runs the tables asked for, and returns the targets that were missed.
func measure(o options) (missed []string, err error) {
	if o.rounds == 0 {
		o.rounds = pick(o.quick, 2, 5)
	}
	if o.span == 0 {
		o.span = pick(o.quick, 60*time.Millisecond, time.Second)
	}
	if o.span < 10*time.Millisecond || o.span > time.Minute || o.rounds < 1 || o.rounds > 100 {
		return nil, fmt.Errorf("-rounds %d, -span %v: 1 to 100 rounds of 10ms to 1m", o.rounds, o.span)
	}
	chosen, err := choose(o.only)
	if err != nil {
		return nil, err
	}
	type network struct {
		srv   *redistest.Server
		relay *redistest.Relay
	}
	net, stop, err := redistest.Launch("bench", func(tb redistest.TB) network {
		srv := redistest.Start(tb)
		return network{srv, redistest.NewRelay(tb, srv.Addr())}
	})
	if err != nil {
		return nil, err
	}
	defer stop()
	net.relay.SetDelay(farDelay)
	l := &lab{srv: net.srv, relay: net.relay, options: o, contests: make(map[string]*contest)}
	machine := l.machine()
	if o.profile != "" {
		f, err := os.Create(o.profile)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return nil, err
		}
		defer pprof.StopCPUProfile()
	}
	texts := make(map[string]map[string]string) // by document, by table
	began := time.Now()
	for _, t := range chosen {
		fmt.Fprintf(os.Stderr, "%6s  %s\n", time.Since(began).Round(time.Second), t.name)
		r, err := t.run(l)
		if err != nil {
			return nil, fmt.Errorf("table %s: %w", t.name, err)
		}
		text, wanted := r.markdown(machine, o.quick), r.wanted(machine, o.quick)
		fmt.Printf("## %s\n\n%s\n%s\n", t.name, text, wanted)
		for doc, text := range map[string]string{t.doc: text, targetsDoc: wanted} {
			if text == "" {
				continue
			}
			if texts[doc] == nil {
				texts[doc] = make(map[string]string)
			}
			texts[doc][t.name] = text
		}
		for _, f := range r.targets {
			if !f.held() {
				missed = append(missed, t.name+": "+f.String())
			}
		}
	}
	if o.out == "" {
		return missed, nil
	}
	for doc, byName := range texts {
		if err := rewrite(filepath.Join(o.out, doc), byName); err != nil {
			return missed, err
		}
	}
	return missed, nil
}

// choose finds the tables that -only asks for.
func choose(only string) (chosen []table, err error) {
	if only == "" {
		return tables, nil
	}
	names := strings.Split(only, ",")
	for _, name := range names {
		if !slices.ContainsFunc(tables, func(t table) bool { return strings.HasPrefix(t.name, name) }) {
			all := make([]string, len(tables))
			for i, t := range tables {
				all[i] = t.name
			}
			return nil, fmt.Errorf("-only %s: no table is named so; there are %s", name, strings.Join(all, ", "))
		}
	}
	for _, t := range tables {
		if slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(t.name, name) }) {
			chosen = append(chosen, t)
		}
	}
	return chosen, nil
}

// machine says what a run is measured on.
func (l *lab) machine() string {
	info := l.srv.Info("server")
	return fmt.Sprintf("%d cores, shared by clients and Redis %s; Go %s on %s/%s; -rounds %d -span %v",
		runtime.NumCPU(), info["redis_version"], strings.TrimPrefix(runtime.Version(), "go"), runtime.GOOS, runtime.GOARCH, l.rounds, l.span)
}

// rewrite puts texts between their markers in a document, and leaves the rest of it.
func rewrite(path string, texts map[string]string) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	text := string(old)
	for name, with := range texts {
		if open := openMarker(name); filepath.Base(path) == filepath.Base(targetsDoc) && !strings.Contains(text, open) {
			text += fmt.Sprintf("\n## %s\n\n%s%s\n", name, open, endMarker)
		}
		if text, err = splice(text, name, with); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return os.WriteFile(path, []byte(text), 0o644)
}

var errNoMarker = errors.New("no marker")

const endMarker = "<!-- /bench -->"

func openMarker(name string) string { return "<!-- bench:" + name + " -->\n" }

// splice puts with between <!-- bench:name --> and the next <!-- /bench -->.
func splice(text, name, with string) (string, error) {
	open, end := openMarker(name), endMarker
	from := strings.Index(text, open)
	if from < 0 {
		return "", fmt.Errorf("%w %q", errNoMarker, strings.TrimSpace(open))
	}
	from += len(open)
	to := strings.Index(text[from:], end)
	if to < 0 {
		return "", fmt.Errorf("%w %q after %q", errNoMarker, end, strings.TrimSpace(open))
	}
	return text[:from] + with + text[from+to:], nil
}

func pick[T any](first bool, a, b T) T {
	if first {
		return a
	}
	return b
}
