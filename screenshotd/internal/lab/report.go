package lab

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"text/template"
	"time"
)

// Plan is a whole lab: what is measured, and where it is written to.
type Plan struct {
	Options
	Seconds  int
	Out      string
	Only     []string // modes, balancer, soak
	SoakLoad float64
}

// Report is what lab.md tells.
type Report struct {
	Plan     Plan
	Command  string
	Date     string
	Machine  string
	Modes    *ModesResult
	Balancer []BalancerResult
	Soak     *SoakResult
}

//go:embed report.md
var reportText string

// Run measures what the plan says, and writes charts and lab.md.
func Run(ctx context.Context, p Plan) (*Report, error) {
	if err := os.MkdirAll(p.Out, 0o755); err != nil {
		return nil, err
	}
	r := &Report{
		Plan: p, Command: p.command(), Date: time.Now().UTC().Format(time.DateOnly),
		Machine: fmt.Sprintf("%d cores, %s/%s, %s", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version()),
	}
	var err error
	if slices.Contains(p.Only, "modes") {
		if r.Modes, err = RunModes(ctx, p.Options); err != nil {
			return nil, err
		}
		if err := r.Modes.Draw(p.Out); err != nil {
			return nil, err
		}
	}
	if slices.Contains(p.Only, "balancer") {
		if r.Balancer, err = Balancer(ctx, min(p.Time, 10*time.Second)); err != nil {
			return nil, err
		}
		if err := DrawBalancer(r.Balancer, p.Out); err != nil {
			return nil, err
		}
	}
	if slices.Contains(p.Only, "soak") {
		o := p.Options
		o.Load = p.SoakLoad
		if r.Soak, err = Soak(ctx, o); err != nil {
			return nil, err
		}
	}
	return r, r.write(filepath.Join(p.Out, "lab.md"))
}

func (p Plan) command() string {
	c := fmt.Sprintf("go run ./screenshotd lab --seconds %d --out docs", p.Seconds)
	if len(p.Only) < 3 {
		c += " --only " + strings.Join(p.Only, ",")
	}
	return c
}

func (r *Report) write(file string) error {
	t, err := template.New("lab.md").Funcs(template.FuncMap{
		"mb":      func(n int64) int64 { return n >> 20 },
		"mb64":    func(n int) int { return n >> 20 },
		"of":      func(a, b float64) string { return fmt.Sprintf("%.0f %%", 100*a/b) },
		"percent": func(f float64) string { return fmt.Sprintf("%.1f %%", 100*f) },
		"share":   func(a, b int) string { return fmt.Sprintf("%.1f %%", 100*float64(a)/float64(max(1, b))) },
		"two":     func(f float64) string { return fmt.Sprintf("%.2f", f) },
		"ms":      func(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond)) },
	}).Parse(reportText)
	if err != nil {
		return err
	}
	var b strings.Builder
	if err := t.Execute(&b, r); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(b.String()), 0o644)
}
