package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"math"
	"strings"
)

// seen is a sample of traffic, as TestTopologySettles of test/e2e writes them.
type seen struct {
	Second    float64 `json:"second"`
	InZone    float64 `json:"inZone"`
	Best      float64 `json:"best"`
	Worst     float64 `json:"worst"`
	BestWorst float64 `json:"bestWorst"`
	Event     string  `json:"event"`
}

// panel is one of the plot's diagrams.
type panel struct {
	title         string
	high          float64
	ticks         []float64
	measured, top func(seen) float64 // top: the best plan's
}

// Sizes in pixels.
const (
	plotWidth, panelHeight = 720., 190.
	plotLeft, plotRight    = 48., 12.
	plotTop                = 64.
	panelGap               = 44.
)

// plot draws samples, read as JSON, as an SVG of two diagrams above each other.
func plot(out io.Writer, in io.Reader) error {
	var samples []seen
	if err := json.NewDecoder(in).Decode(&samples); err != nil {
		return fmt.Errorf("read samples: %w", err)
	}
	if len(samples) == 0 || samples[len(samples)-1].Second <= 0 {
		return errors.New("no samples: write them with PROXIMA_SOAK=1 PROXIMA_PLOT=FILE go test ./test/e2e -run TestTopologySettles")
	}
	panels := []panel{
		{"in-zone share", 1, []float64{0, 0.5, 1}, func(s seen) float64 { return s.InZone }, func(s seen) float64 { return s.Best }},
		{
			"load of the busiest zone's endpoints, × the mean",
			2.4,
			[]float64{0, 1, 1.2, 2},
			func(s seen) float64 { return s.Worst },
			func(s seen) float64 { return s.BestWorst },
		},
	}
	height := plotTop + float64(len(panels))*(panelHeight+panelGap)
	var b strings.Builder
	fmt.Fprintf(
		&b,
		`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" font-family="sans-serif" font-size="12">`+"\n",
		plotWidth,
		height,
	)
	fmt.Fprintf(&b, `<rect width="%g" height="%g" fill="#fff"/>`+"\n", plotWidth, height)
	fmt.Fprintf(&b,
		`<text x="%g" y="16" fill="#0a58ca">measured</text><text x="%g" y="16" fill="#888">best plan for the demand as sent</text>`+"\n",
		plotLeft, plotLeft+80)
	for i, p := range panels {
		p.draw(&b, samples, plotTop+float64(i)*(panelHeight+panelGap), i == 0)
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(out, b.String())
	return err
}

func (p panel) draw(b *strings.Builder, samples []seen, top float64, events bool) {
	last := samples[len(samples)-1].Second
	x := func(second float64) float64 { return plotLeft + second/last*(plotWidth-plotLeft-plotRight) }
	y := func(v float64) float64 { return top + panelHeight*(1-min(v, p.high)/p.high) }
	fmt.Fprintf(b, `<text x="%g" y="%g" font-weight="bold">%s</text>`+"\n", plotLeft, top-8, html.EscapeString(p.title))
	for _, t := range p.ticks {
		fmt.Fprintf(b, `<path d="M%g %.1fH%g" stroke="#ddd"/><text x="%g" y="%.1f" text-anchor="end">%g</text>`+"\n",
			plotLeft, y(t), plotWidth-plotRight, plotLeft-6, y(t)+4, t)
	}
	step := 60 * math.Ceil(last/(60*12)) // whole minutes, and at most a dozen
	for second := 0.; second <= last; second += step {
		fmt.Fprintf(b, `<text x="%.1f" y="%g" text-anchor="middle" fill="#555">%g s</text>`+"\n", x(second), top+panelHeight+16, second)
	}
	level := 0
	for i, s := range samples {
		if s.Event == "" {
			continue
		}
		at := 0. // the sample is of what came before it
		if i > 0 {
			at = samples[i-1].Second
		}
		fmt.Fprintf(b, `<path d="M%.1f %gV%g" stroke="#c60" stroke-dasharray="3 3"/>`+"\n", x(at), top, top+panelHeight)
		if events {
			fmt.Fprintf(b, `<text x="%.1f" y="%d" fill="#c60">%s</text>`+"\n", x(at)+3, 30+12*(level%2), html.EscapeString(s.Event))
			level++
		}
	}
	line := func(color string, of func(seen) float64) {
		var points []string
		for _, s := range samples {
			points = append(points, fmt.Sprintf("%.1f,%.1f", x(s.Second), y(of(s))))
		}
		fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="1.8"/>`+"\n", strings.Join(points, " "), color)
	}
	line("#888", p.top)
	line("#0a58ca", p.measured)
}
