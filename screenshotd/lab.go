package main

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/ashfaqjani916/gotsem/screenshotd/internal/lab"
)

type labCmd struct {
	Seconds  int      `default:"60" help:"Time of each measurement."`
	Out      string   `default:"docs" type:"path" help:"Folder for the charts and lab.md."`
	Only     []string `enum:"modes,balancer,soak" default:"modes,balancer,soak" help:"What to measure: ${enum}."`
	Memory   int      `default:"700" help:"MB that the browser may take."`
	Page     int      `default:"20" help:"MB that a page takes in the browser."`
	Load     float64  `default:"2.5" help:"Arrivals, as a multiple of what the service can do."`
	SoakLoad float64  `default:"10" help:"The same of the soak."`
}

// Run measures, draws, and writes.
func (c *labCmd) Run(ctx context.Context, log *slog.Logger) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	_, err = lab.Run(ctx, lab.Plan{
		Seconds: c.Seconds, Out: c.Out, Only: c.Only, SoakLoad: c.SoakLoad,
		Options: lab.Options{
			Modes: lab.Modes, Time: time.Duration(c.Seconds) * time.Second, Load: c.Load, Max: 6,
			Memory: int64(c.Memory) << 20, Pids: 2000, PageSize: c.Page << 20, Patience: 4 * time.Second, Attempts: 3,
			Command: func(child lab.Child) *exec.Cmd { return labServer(self, child) },
			Log:     log,
		},
	})
	return err
}

// labServer is the command that makes this program a server under test.
func labServer(self string, child lab.Child) *exec.Cmd {
	args := []string{"lab-server", "--mode", string(child.Mode), "--target", child.Target, "--max", strconv.Itoa(child.Max)}
	for _, f := range child.Cells {
		args = append(args, "--cell", f)
	}
	cmd := exec.Command(self, args...)
	cmd.Stderr = os.Stderr
	return cmd
}

// labServerCmd is a server under test in the lab. It ends with its standard input.
type labServerCmd struct {
	Mode   string
	Target string
	Max    int
	Cell   []string
}

// Run serves.
func (c *labServerCmd) Run(ctx context.Context) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	return lab.Child{Mode: lab.Mode(c.Mode), Target: c.Target, Max: c.Max, Cells: c.Cell}.Serve(ctx, os.Stdin, os.Stdout, log)
}
