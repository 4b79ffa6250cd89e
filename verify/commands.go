package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/verify/faults"
	"github.com/ashfaqjani916/gotsem/verify/skew"
	"github.com/ashfaqjani916/gotsem/verify/xsync"
)

func runTable(args []string) error {
	f := flag.NewFlagSet("table", flag.ExitOnError)
	rounds := f.Int("rounds", 20, "of each fault, with the grace and without")
	side := f.Int("side", 3, "rounds that run at the same time")
	only := f.String("fault", "", "only this row")
	verbose := f.Bool("v", false, "tell each round")
	_ = f.Parse(args)
	clocks, err := skew.Install()
	if err != nil {
		return err
	}
	defer clocks.Close()
	progress := os.Stderr
	if !*verbose {
		if progress, err = os.OpenFile(os.DevNull, os.O_WRONLY, 0); err != nil {
			return err
		}
	}
	rows, err := faults.Table(clocks, *rounds, *side, *only, progress)
	faults.WriteTable(os.Stdout, rows)
	return err
}

func runSoak(args []string) error {
	f := flag.NewFlagSet("soak", flag.ExitOnError)
	seconds := f.Int("seconds", 600, "for how long, in all; divided among the kinds")
	kinds := f.String("kind", "single,sentinel,cluster", "which deployments")
	seed := f.Uint64("seed", 0, "the seed; 0: one of this moment")
	client := f.String("client", "plain", "plain: go-redis's own; wrapped: inside a type of the application's")
	_ = f.Parse(args)
	if *client != "plain" && *client != "wrapped" {
		return fmt.Errorf("-client %s: plain or wrapped", *client)
	}
	if *seed == 0 {
		*seed = uint64(time.Now().Unix())
	}
	clocks, err := skew.Install()
	if err != nil {
		return err
	}
	defer clocks.Close()
	all := strings.Split(*kinds, ",")
	bad := 0
	for _, kind := range all {
		r, err := faults.Soak(faults.Kind(kind), *seed, time.Duration(*seconds)*time.Second/time.Duration(len(all)), *client == "wrapped", clocks, os.Stderr)
		if err != nil {
			return err
		}
		fmt.Println(r)
		for name, n := range r.Counts {
			fmt.Printf("     %3d × %s\n", n, name)
		}
		if len(r.Wrong) > 0 {
			bad++
		}
	}
	if bad > 0 {
		return fmt.Errorf("%d of %d runs broke a promise; the same seed plays the same faults again", bad, len(all))
	}
	return nil
}

func runLocal(args []string) error {
	f := flag.NewFlagSet("local", flag.ExitOnError)
	away := f.Duration("away", 20*time.Second, "for how long the server is away")
	rounds := f.Int("rounds", 1, "how often")
	killed := f.Bool("killed", false, "the server is killed and comes back empty, instead of being stopped")
	_ = f.Parse(args)
	bad := 0
	for round := range *rounds {
		r, err := faults.Within("local", func(tb redistest.TB) faults.LocalResult { return faults.Local(tb, *away, *killed, uint64(round)) })
		if err != nil {
			return err
		}
		fmt.Println(r)
		if wrong := r.Bad(); len(wrong) > 0 {
			bad++
			fmt.Println("FAIL", strings.Join(wrong, "; "))
		}
	}
	if bad > 0 {
		return fmt.Errorf("%d of %d rounds broke a promise", bad, *rounds)
	}
	return nil
}

func runSplit(args []string) error {
	f := flag.NewFlagSet("split", flag.ExitOnError)
	rounds := f.Int("rounds", 20, "of each row")
	side := f.Int("side", 3, "rounds that run at the same time")
	apart := f.Duration("apart", 6*time.Second, "for how long the deposed primary takes writes")
	verbose := f.Bool("v", false, "tell each round")
	_ = f.Parse(args)
	clocks, err := skew.Install()
	if err != nil {
		return err
	}
	defer clocks.Close()
	const ttl = 1500 * time.Millisecond
	fmt.Println("| new primary | most holders | slot-seconds above the limit, mean and worst | above it after the demotion, worst | most from one TTL after it | told lost | fences that fall: between the sides, after |\n|---|---|---|---|---|---|---|")
	bad := 0
	for _, row := range []struct {
		what  string
		grace time.Duration
		skew  time.Duration
	}{
		{"without grace", -1, 0}, {"with grace", ttl + time.Second, 0},
		{"with grace, its clock +60 s", ttl + time.Second, time.Minute}, {"with grace, its clock −60 s", ttl + time.Second, -time.Minute},
	} {
		got, err := faults.Splits(faults.Split{Limit: 10, TTL: ttl, Grace: row.grace, Apart: *apart, Skew: row.skew}, clocks, *rounds, *side)
		if err != nil {
			return err
		}
		faults.WriteSplit(os.Stdout, row.what, got)
		for _, r := range got {
			if *verbose {
				fmt.Println(r)
			}
			if wrong := r.Bad(); len(wrong) > 0 && row.skew == 0 {
				bad++
				fmt.Println("FAIL", strings.Join(wrong, "; "))
			}
		}
	}
	if bad > 0 {
		return fmt.Errorf("%d rounds broke what holds even then", bad)
	}
	return nil
}

func runPackets(args []string) error {
	f := flag.NewFlagSet("packets", flag.ExitOnError)
	seconds := f.Int("seconds", 60, "for how long")
	seed := f.Uint64("seed", 1, "the seed")
	_ = f.Parse(args)
	type answer struct {
		faults.PacketsResult
		err error
	}
	got, err := faults.Within("packets", func(tb redistest.TB) answer {
		r, err := faults.Packets(tb, time.Duration(*seconds)*time.Second, *seed)
		return answer{r, err}
	})
	if err := errors.Join(err, got.err); err != nil {
		return err
	}
	fmt.Println(got.PacketsResult)
	if len(got.Wrong) > 0 {
		return errors.New(strings.Join(got.Wrong, "; "))
	}
	return nil
}

func runAway(args []string) error {
	f := flag.NewFlagSet("away", flag.ExitOnError)
	away := f.Duration("away", 20*time.Second, "for how long the server is dead")
	rounds := f.Int("rounds", 1, "how often")
	_ = f.Parse(args)
	bad := 0
	for range *rounds {
		r, err := faults.Within("away", func(tb redistest.TB) faults.AwayResult { return faults.Away(tb, *away, 2*time.Second, 0) })
		if err != nil {
			return err
		}
		fmt.Println(r)
		if len(r.Wrong) > 0 {
			bad++
			fmt.Println("FAIL", strings.Join(r.Wrong, "; "))
		}
	}
	if bad > 0 {
		return fmt.Errorf("%d of %d rounds broke a promise", bad, *rounds)
	}
	return nil
}

func runXSync(args []string) error {
	f := flag.NewFlagSet("xsync", flag.ExitOnError)
	runs := f.Int("runs", 1000, "how often the test about cancelling runs, on each store")
	only := f.String("store", "", "memory or redis; empty: both")
	_ = f.Parse(args)
	root, err := moduleDir("github.com/ashfaqjani916/gotsem")
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "gotsem-xsync-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	suite, err := xsync.Build(dir, root)
	if err != nil {
		return err
	}
	var failed []error
	for _, on := range []struct {
		name string
		run  func(redistest.TB) error
	}{
		{"memory", func(redistest.TB) error { return suite.Run("", *runs) }},
		{"redis", func(tb redistest.TB) error { return suite.OnRedis(tb, *runs) }},
	} {
		if *only != "" && *only != on.name {
			continue
		}
		began := time.Now()
		said, err := faults.Within("xsync", on.run)
		if err := errors.Join(err, said); err != nil {
			failed = append(failed, fmt.Errorf("on %s: %w", on.name, err))
			continue
		}
		fmt.Printf("ok   %s: semaphore's own tests, and %s %d times, on %s, %.1f s\n", xsync.Version, xsync.Cancel, *runs, on.name, time.Since(began).Seconds())
	}
	return errors.Join(failed...)
}

func runImpatient(args []string) error {
	f := flag.NewFlagSet("impatient", flag.ExitOnError)
	rounds := f.Int("rounds", 5, "with the impatient and without, in turn")
	length := f.Duration("length", 2*time.Second, "of a round")
	least := f.Float64("least", 0.9, "the least that patient callers must be left of what they get alone")
	_ = f.Parse(args)
	var failed []error
	for _, onRedis := range []bool{false, true} {
		r, err := faults.Within("impatient", func(tb redistest.TB) faults.ImpatientResult { return faults.Impatient(tb, onRedis, *rounds, *length) })
		if err != nil {
			return err
		}
		fmt.Println(r)
		if got := r.Ratio(); got < *least {
			failed = append(failed, fmt.Errorf("%s: patient callers are left %.2f of what they get alone, want %.2f", r.Store, got, *least))
		}
	}
	return errors.Join(failed...)
}

func runLevels(args []string) error {
	f := flag.NewFlagSet("levels", flag.ExitOnError)
	length := f.Duration("length", 30*time.Second, "of each load")
	out := f.String("out", "", "a folder for the charts; with it, ids are also listed in the wrong order, and classes under more and more load")
	_ = f.Parse(args)
	inOrder := 0
	var wrong []string
	var last faults.LevelsResult
	for _, onRedis := range []bool{false, true} {
		r, err := faults.Within("levels", func(tb redistest.TB) faults.LevelsResult { return faults.Levels(tb, onRedis, *length) })
		if err != nil {
			return err
		}
		fmt.Println(r)
		if !onRedis {
			inOrder = r.Both
		}
		wrong = append(wrong, r.Bad(inOrder)...)
		last = r
	}
	if *out != "" {
		wide, err := faults.Within("wide first", func(tb redistest.TB) faults.LevelsResult { return faults.WideFirst(tb, true, *length) })
		if err != nil {
			return err
		}
		fmt.Printf("redis  nested, the widest first: %d grants, %.2f of the ideal\n", wide.Total, float64(wide.Total)/wide.Ideal)
		if err := errors.Join(drawOrder(*out, last, wide), drawClasses(*out, *length)); err != nil {
			return err
		}
	}
	if len(wrong) > 0 {
		return errors.New(strings.Join(wrong, "; "))
	}
	return nil
}

func runLooks(args []string) error {
	f := flag.NewFlagSet("looks", flag.ExitOnError)
	length := f.Duration("length", 15*time.Second, "of each measurement")
	ids := f.Int("ids", 100_000, "that are held")
	holders := f.Int("holders", 100_000, "of one id")
	waiters := f.Int("waiters", 1_000, "in all, a hundred an id")
	_ = f.Parse(args)
	r, err := faults.Within("looks", func(tb redistest.TB) faults.LooksResult {
		return faults.Looks(tb, *ids, *holders, *waiters, *length)
	})
	if err != nil {
		return err
	}
	fmt.Println(r)
	if bad := r.Bad(); len(bad) > 0 {
		return errors.New(strings.Join(bad, "; "))
	}
	return nil
}

func runStarved(args []string) error {
	f := flag.NewFlagSet("starved", flag.ExitOnError)
	length := f.Duration("length", time.Minute, "how long")
	most := f.Uint64("most", 0, "how many leases may be lost")
	_ = f.Parse(args)
	r, err := faults.Within("starved", func(tb redistest.TB) faults.StarvedResult { return faults.Starved(tb, *length) })
	if err != nil {
		return err
	}
	fmt.Println(r)
	switch {
	case r.PingMax > faults.StarvedJudged:
		fmt.Println("n/a: so busy a machine says nothing about the leases; run it alone")
	case r.Stats.Lost > *most:
		return fmt.Errorf("%d leases were lost, though their store answered", r.Stats.Lost)
	}
	return nil
}
