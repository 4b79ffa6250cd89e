package lab

import (
	"bytes"
	"image/color"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// The palette is Okabe and Ito's, which the colour-blind can tell apart; the dashes
// are for print.
var (
	colours = map[Mode]color.Color{
		None:     color.RGBA{R: 0xD5, G: 0x5E, A: 0xFF},
		Detached: color.RGBA{R: 0xCC, G: 0x79, B: 0xA7, A: 0xFF},
		Acquire:  color.RGBA{R: 0xE6, G: 0x9F, A: 0xFF},
		Line:     color.RGBA{G: 0x72, B: 0xB2, A: 0xFF},
		Try:      color.RGBA{G: 0x9E, B: 0x73, A: 0xFF},
	}
	dashes = map[Mode][]vg.Length{
		None:     {vg.Points(2), vg.Points(2)},
		Detached: {vg.Points(6), vg.Points(2), vg.Points(1), vg.Points(2)},
		Acquire:  {vg.Points(6), vg.Points(3)},
		Line:     {vg.Points(10), vg.Points(3)},
	}
	grey = color.Gray{Y: 0x60}
)

const (
	chartWidth  = 18 * vg.Centimeter
	chartHeight = 9 * vg.Centimeter

	goodputWindow = 10 * time.Second
)

func init() {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	plotter.DefaultFont = plot.DefaultFont
}

// chart is a plot of one line per mode over the time of the run.
func chart(title, y string) *plot.Plot {
	p := plot.New()
	p.Title.Text = title
	p.X.Label.Text, p.Y.Label.Text = "seconds", y
	p.X.Min, p.Y.Min = 0, 0
	p.Title.Padding = vg.Points(6)
	p.X.Tick.Marker, p.Y.Tick.Marker = ticks{}, ticks{}
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.ThumbnailWidth, p.Legend.Padding = vg.Centimeter, vg.Points(2)
	grid := plotter.NewGrid()
	grid.Vertical.Color = nil
	grid.Horizontal.Color = color.Gray{Y: 0xDD}
	p.Add(grid)
	return p
}

// ticks are the usual ones, with no more digits than there is need for.
type ticks struct{ plot.DefaultTicks }

func (t ticks) Ticks(least, most float64) []plot.Tick {
	ts := t.DefaultTicks.Ticks(least, most)
	for i := range ts {
		if ts[i].Label != "" {
			ts[i].Label = strconv.FormatFloat(ts[i].Value, 'g', 6, 64)
		}
	}
	return ts
}

// save writes a chart as SVG and as PNG.
func save(p *plot.Plot, dir, name string) error {
	file := filepath.Join(dir, name)
	for _, ext := range []string{".svg", ".png"} {
		if err := p.Save(chartWidth, chartHeight, file+ext); err != nil {
			return err
		}
	}
	// Who has not the font shall see one like it.
	svg, err := os.ReadFile(file + ".svg")
	if err != nil {
		return err
	}
	svg = bytes.ReplaceAll(svg, []byte("font-family:Liberation Sans;"), []byte("font-family:Liberation Sans,Arial,sans-serif;"))
	return os.WriteFile(file+".svg", svg, 0o644)
}

func line(p *plot.Plot, name string, xys plotter.XYs, c color.Color, dash []vg.Length) error {
	if len(xys) == 0 {
		return nil
	}
	l, err := plotter.NewLine(xys)
	if err != nil {
		return err
	}
	l.Color, l.Dashes, l.Width = c, dash, vg.Points(1.6)
	p.Add(l)
	p.Legend.Add(name, l)
	return nil
}

// level is a line at one height.
func level(p *plot.Plot, name string, at, until float64) error {
	return line(p, name, plotter.XYs{{X: 0, Y: at}, {X: until, Y: at}}, grey, []vg.Length{vg.Points(1), vg.Points(3)})
}

// over draws one line per mode; y tells the height of a sample, and whether there
// is one.
func (m *ModesResult) over(p *plot.Plot, y func(r *Result, i int) (float64, bool)) error {
	for i := range m.Results {
		r := &m.Results[i]
		var xys plotter.XYs
		for k, x := range r.Samples {
			if v, ok := y(r, k); ok {
				xys = append(xys, plotter.XY{X: x.At.Seconds(), Y: v})
			}
		}
		if err := line(p, r.Title, xys, colours[r.Mode], dashes[r.Mode]); err != nil {
			return err
		}
	}
	return nil
}

// Draw draws the charts of the modes.
func (m *ModesResult) Draw(dir string) error {
	end := m.Options.Time.Seconds()

	p := chart("Pictures that reached their client", "a second, over the last 10 s")
	if err := m.over(p, func(r *Result, i int) (float64, bool) { return goodput(r.Samples, i), true }); err != nil {
		return err
	}
	if err := level(p, "capacity at first", m.Capacity, end); err != nil {
		return err
	}
	p.Y.Max = m.Capacity * 1.8 // room for the legend
	if err := save(p, dir, "lab-goodput"); err != nil {
		return err
	}

	p = chart("Requests at the server, waiting or running", "requests")
	if err := m.over(p, func(r *Result, i int) (float64, bool) { return float64(r.Samples[i].Open), r.Samples[i].Open >= 0 }); err != nil {
		return err
	}
	if err := save(p, dir, "lab-open"); err != nil {
		return err
	}

	p = chart("Memory of the browser", "MB")
	if err := m.over(p, func(r *Result, i int) (float64, bool) { return float64(r.Samples[i].Browser) / (1 << 20), true }); err != nil {
		return err
	}
	limit := float64(m.Options.Memory) / (1 << 20)
	if err := level(p, "its limit", limit, end); err != nil {
		return err
	}
	p.Y.Max = max(p.Y.Max, limit) * 1.6
	if err := save(p, dir, "lab-memory"); err != nil {
		return err
	}

	p = chart("Memory of the server", "MB")
	if err := m.over(p, func(r *Result, i int) (float64, bool) { return float64(r.Samples[i].Server) / (1 << 20), true }); err != nil {
		return err
	}
	if err := save(p, dir, "lab-server"); err != nil {
		return err
	}

	p = chart("Tab time that brought nobody a picture", "%")
	var names []string
	var values plotter.Values
	for i := range m.Results {
		names = append(names, m.Results[i].Title)
		values = append(values, 100*m.Results[i].Waste)
	}
	p.Y.Max = 100
	return bars(p, dir, "lab-waste", names, values)
}

// goodput is how many pictures a second came in the window before sample i.
func goodput(s []Sample, i int) float64 {
	k := i
	for k > 0 && s[i].At-s[k].At < goodputWindow {
		k--
	}
	if d := s[i].At - s[k].At; d > 0 {
		return float64(s[i].OK-s[k].OK) / d.Seconds()
	}
	return 0
}

func bars(p *plot.Plot, dir, name string, names []string, values plotter.Values) error {
	b, err := plotter.NewBarChart(values, vg.Points(40))
	if err != nil {
		return err
	}
	b.Color, b.LineStyle = color.RGBA{G: 0x72, B: 0xB2, A: 0xFF}, draw.LineStyle{}
	p.X.Label.Text = ""
	p.Add(b)
	p.NominalX(names...)
	return save(p, dir, name)
}

// DrawBalancer draws the chart of the balancer experiment.
func DrawBalancer(rs []BalancerResult, dir string) error {
	p := chart("Requests refused, with one of three servers full", "%")
	var names []string
	var values plotter.Values
	for _, r := range rs {
		name := "refusals keep the connection"
		if r.Close {
			name = "refusals close the connection"
		}
		names = append(names, name)
		values = append(values, 100*float64(r.Refused)/float64(max(1, r.Requests)))
	}
	p.Y.Max = 100
	return bars(p, dir, "lab-balancer", names, values)
}
