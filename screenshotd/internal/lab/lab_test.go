package lab_test

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ashfaqjani916/gotsem/screenshotd/internal/lab"
)

// TestMain is the server under test too, where the lab starts one.
func TestMain(m *testing.M) {
	if os.Getenv("LAB_MODE") != "" {
		c := lab.Child{
			Mode: lab.Mode(os.Getenv("LAB_MODE")), Max: 6, Target: os.Getenv("LAB_TARGET"),
			Cells: strings.Fields(os.Getenv("LAB_CELLS")),
		}
		if err := c.Serve(context.Background(), os.Stdin, os.Stdout, slog.New(slog.DiscardHandler)); err != nil {
			panic(err)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

func options(t *testing.T) lab.Options {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return lab.Options{
		Modes: []lab.Mode{lab.Acquire, lab.Try}, Time: 6 * time.Second, Load: 6, Max: 6,
		Memory: 700 << 20, Pids: 2000, PageSize: 1 << 20, Delay: 500 * time.Millisecond, Attempts: 3, // patience by the machine's speed
		Command: func(c lab.Child) *exec.Cmd {
			cmd := exec.Command(self)
			cmd.Env = append(os.Environ(), "LAB_MODE="+string(c.Mode), "LAB_TARGET="+c.Target, "LAB_CELLS="+strings.Join(c.Cells, " "))
			cmd.Stderr = os.Stderr
			return cmd
		},
		Log: slog.New(slog.DiscardHandler),
	}
}

// A short lab, with bounds that hold on a busy machine. The long one is the command
// screenshotd lab.
func TestSheddingBeatsQueueing(t *testing.T) {
	m, err := lab.RunModes(t.Context(), options(t))
	if err != nil {
		t.Fatal(err)
	}
	acquire, try := m.Results[0], m.Results[1]
	t.Logf("capacity %.2f\nacquire %+v\ntry %+v", m.Capacity, summary(acquire), summary(try))
	if try.OK == 0 || try.Refused < 10 || try.MostOpen > 12 || try.Told.MostTabs > 6 {
		t.Errorf("try + 429 made %d pictures, refused %d, had %d open and %d tabs", try.OK, try.Refused, try.MostOpen, try.Told.MostTabs)
	}
	if acquire.TimedOut == 0 || acquire.Refused != 0 || acquire.MostOpen <= try.MostOpen || acquire.Told.MostTabs > 6 {
		t.Errorf("acquire: %d gave up, %d refused, %d open, %d tabs: not what a line without bound does", acquire.TimedOut, acquire.Refused, acquire.MostOpen, acquire.Told.MostTabs)
	}
	if acquire.Waste <= try.Waste {
		t.Errorf("acquire wasted %.0f %%, try + 429 %.0f %%", 100*acquire.Waste, 100*try.Waste)
	}

	dir := t.TempDir()
	if err := m.Draw(dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"lab-goodput.svg", "lab-goodput.png", "lab-open.svg", "lab-memory.svg", "lab-server.svg", "lab-waste.svg"} {
		if fi, err := os.Stat(filepath.Join(dir, name)); err != nil || fi.Size() < 1000 {
			t.Errorf("%s: %v, or next to empty", name, err)
		}
	}
}

func summary(r lab.Result) lab.Result { r.Samples = nil; return r }

func TestBalancer(t *testing.T) {
	rs, err := lab.Balancer(t.Context(), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	keep, closes := rs[0], rs[1]
	if keep.Stuck != 10 || closes.Stuck != 0 || closes.Refused*5 > keep.Refused {
		t.Errorf("keeping: %+v\nclosing: %+v\nwant 10 clients stuck, and none, with a fifth of the refusals", keep, closes)
	}
}

func TestSoak(t *testing.T) {
	o := options(t)
	o.Time = 3 * time.Second
	dir := t.TempDir()
	r, err := lab.Run(t.Context(), lab.Plan{Options: o, Out: dir, Only: []string{"soak"}, SoakLoad: 10})
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "lab.md"))
	if err != nil || !strings.Contains(string(text), "| refused with 429 |") {
		t.Errorf("lab.md: %v\n%s", err, text)
	}
	soak(t, r.Soak)
}

func soak(t *testing.T, r *lab.SoakResult) {
	t.Helper()
	t.Logf("%+v", r)
	if r.MostTabs > 6 || r.Wrong != 0 || r.Failed != 0 || r.Left != 0 || r.Refused < 2*r.Captured || r.P50 > 250*time.Millisecond {
		t.Errorf("soak: %+v", r)
	}
}
