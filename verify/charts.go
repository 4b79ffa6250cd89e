package main

import (
	"bytes"
	"fmt"
	"image/color"
	"os"
	"path/filepath"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/ashfaqjani916/gotsem"
	"github.com/ashfaqjani916/gotsem/internal/redistest"
	"github.com/ashfaqjani916/gotsem/verify/faults"
)

// The palette is Okabe and Ito's, which the colour-blind can tell apart.
var (
	vermilion = color.RGBA{R: 0xD5, G: 0x5E, A: 0xFF}
	blue      = color.RGBA{G: 0x72, B: 0xB2, A: 0xFF}
	green     = color.RGBA{G: 0x9E, B: 0x73, A: 0xFF}
)

func init() {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	plotter.DefaultFont = plot.DefaultFont
}

func newChart(title, x, y string) *plot.Plot {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.Title.Padding = vg.Points(6)
	p.Y.Min = 0
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.XOffs, p.Legend.Padding = vg.Centimeter, vg.Points(2)
	grid := plotter.NewGrid()
	grid.Vertical.Color = nil
	grid.Horizontal.Color = color.Gray{Y: 0xDD}
	p.Add(grid)
	return p
}

func saveChart(p *plot.Plot, dir, name string) error {
	file := filepath.Join(dir, name+".svg")
	if err := p.Save(18*vg.Centimeter, 9*vg.Centimeter, file); err != nil {
		return err
	}
	// Who has not the font shall see one like it.
	svg, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	svg = bytes.ReplaceAll(svg, []byte("font-family:Liberation Sans;"), []byte("font-family:Liberation Sans,Arial,sans-serif;"))
	return os.WriteFile(file, svg, 0o644)
}

// drawOrder draws what each tenant gets, by the order in which the ids are listed.
func drawOrder(dir string, narrowFirst, wideFirst faults.LevelsResult) error {
	p := newChart(fmt.Sprintf("One tenant with 200 clients, twenty with 5 (room for %.0f)", narrowFirst.Ideal), "tenant (the first is the one with 200 clients)", "grants")
	width := vg.Points(9)
	for i, run := range []struct {
		r    faults.LevelsResult
		name string
		of   color.Color
	}{{narrowFirst, "key, tenant, all", blue}, {wideFirst, "all, tenant, key", vermilion}} {
		values := make(plotter.Values, len(run.r.Tenants))
		for n, grants := range run.r.Tenants {
			values[n] = float64(grants)
		}
		bars, err := plotter.NewBarChart(values, width)
		if err != nil {
			return err
		}
		bars.Color, bars.LineStyle.Width = run.of, 0
		bars.Offset = width * vg.Length(i) // beside each other
		p.Add(bars)
		p.Legend.Add(fmt.Sprintf("%s: %d grants", run.name, run.r.Total), bars)
	}
	p.Y.Max *= 1.25 // for the legend
	return saveChart(p, dir, "limits-order")
}

// drawClasses draws what each class is refused, by load.
func drawClasses(dir string, length time.Duration) error {
	p := newChart("What is refused, by class", "load, as a multiple of what there is room for", "% refused")
	colours := map[gotsem.Class]color.Color{gotsem.Sheddable: vermilion, gotsem.Default: blue, gotsem.Critical: green}
	names := map[gotsem.Class]string{gotsem.Sheddable: "sheddable", gotsem.Default: "default", gotsem.Critical: "critical"}
	lines := make(map[gotsem.Class]plotter.XYs)
	for _, load := range []float64{.7, .9, 1, 1.1, 1.3, 1.5, 1.75, 2} {
		loads, err := faults.Within("classes", func(tb redistest.TB) []faults.ClassLoad { return faults.Classes(tb, load, length, faults.ClassesRules) })
		if err != nil {
			return err
		}
		fmt.Printf("redis  classes at %.2f:", load)
		for _, l := range loads {
			fmt.Printf(" %v %.1f %% of %d refused;", l.Class, 100*l.Lost(), l.Asked)
			lines[l.Class] = append(lines[l.Class], plotter.XY{X: load, Y: 100 * l.Lost()})
		}
		fmt.Println()
	}
	for _, c := range []gotsem.Class{gotsem.Sheddable, gotsem.Default, gotsem.Critical} {
		line, points, err := plotter.NewLinePoints(lines[c])
		if err != nil {
			return err
		}
		line.Color, points.Color, line.Width = colours[c], colours[c], vg.Points(1.6)
		p.Add(line, points)
		p.Legend.Add(names[c], line, points)
	}
	return saveChart(p, dir, "limits-classes")
}
