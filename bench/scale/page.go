package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// The deployment that is computed from what was measured.
const (
	modelZones     = 100
	modelAgents    = 1000 // of each zone
	modelEndpoints = 1_000_000
	// boundBack and boundGlobal are goals.
	boundBack   = 30 * time.Second
	boundGlobal = 6e9
)

// line is y = base + slope × x.
type line struct{ base, slope float64 }

func (l line) at(x int) float64 { return l.base + l.slope*float64(x) }

// fit is the line of least squares through points; through one point, a constant.
func fit(x []int, y []float64) line {
	n := float64(len(x))
	if n == 0 {
		return line{}
	}
	var sx, sy, sxx, sxy float64
	for i := range x {
		v := float64(x[i])
		sx, sy, sxx, sxy = sx+v, sy+y[i], sxx+v*v, sxy+v*y[i]
	}
	d := n*sxx - sx*sx
	if d == 0 {
		return line{base: sy / n}
	}
	slope := (n*sxy - sx*sy) / d
	return line{base: (sy - slope*sx) / n, slope: slope}
}

func (f figures) fleetMemory() (x []int, y []float64) {
	for _, one := range f.Fleets {
		x, y = append(x, one.Agents), append(y, one.Memory)
	}
	return x, y
}

func (f figures) globalMemory() (x []int, y []float64) {
	for _, one := range f.Global {
		x, y = append(x, one.Endpoints), append(y, one.Memory)
	}
	return x, y
}

// table of what was measured, and of what follows, in Markdown.
func (f figures) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Measured on %d processors, which the simulated agents shared. The load average was %s at the beginning and %s at the end.\n\n",
		runtime.NumCPU(), f.LoadBefore, f.LoadAfter)
	if len(f.Fleets) > 0 {
		fmt.Fprintf(&b, "A zone with %d Services of %d endpoints each, on SQLite:\n\n", f.Plan.services, endpointsPerSlice)
		b.WriteString("| agents | memory of the control plane | CPU per agent when nothing changes | one change reaches all: p50, longest " +
			"| CPU per change and agent | all are back after the control plane was killed | of that, start | CPU per agent until then, control plane and agent " +
			"| objects written until then, per agent |\n")
		b.WriteString("|---|---|---|---|---|---|---|---|---|\n")
		for _, one := range f.Fleets {
			fmt.Fprintf(&b, "| %d | %.0f MB | %.2f ms/s | %s, %s | %d µs | %.1f s | %.1f s | %.1f, %.1f ms | %.2f |\n", one.Agents, one.Memory/1e6,
				milliseconds(one.IdleCPU), one.Change.Round(time.Millisecond), one.Slowest.Round(time.Millisecond), one.ChangeCPU.Microseconds(),
				one.Back.Seconds(), one.Start.Seconds(), milliseconds(one.BackCPU),
				milliseconds(one.AgentCPU), one.Writes)
		}
		b.WriteString("\n")
	}
	if len(f.Global) > 0 {
		b.WriteString("A global control plane with the Dataplanes of all zones, on SQLite:\n\n| Dataplanes | memory | start until it serves |\n|---|---|---|\n")
		for _, one := range f.Global {
			fmt.Fprintf(&b, "| %d | %.0f MB | %.1f s |\n", one.Endpoints, one.Memory/1e6, one.Start.Seconds())
		}
		b.WriteString("\n")
	}
	f.model(&b)
	return b.String()
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// model computes the deployment.
func (f figures) model(b *strings.Builder) {
	fmt.Fprintf(b, "Computed from that, for %d zones of %d agents and %d endpoints:\n\n", modelZones, modelAgents, modelEndpoints)
	b.WriteString("| quantity | value | how | bound |\n|---|---|---|---|\n")
	if len(f.Fleets) > 0 {
		l := fit(f.fleetMemory())
		last := f.Fleets[len(f.Fleets)-1]
		fmt.Fprintf(b, "| memory per agent | %.0f kB | slope of the line through the measured points | |\n", l.slope/1e3)
		fmt.Fprintf(b, "| control plane of a zone | %.0f MB | the line at %d agents | |\n", l.at(modelAgents)/1e6, modelAgents)
		fmt.Fprintf(b, "| control planes of all zones | %.1f GB | %d times that | |\n", l.at(modelAgents)*modelZones/1e9, modelZones)
		fmt.Fprintf(b, "| CPU of a zone's control plane when nothing changes | %.2f cores | that per agent, as measured with %d, × %d | |\n",
			last.IdleCPU.Seconds()*modelAgents, last.Agents, modelAgents)
		fmt.Fprintf(b, "| one change reaches all agents of its zone | %.2f s of CPU | that per agent, as measured with %d, × %d | |\n",
			last.ChangeCPU.Seconds()*modelAgents, last.Agents, modelAgents)
		fmt.Fprintf(b, "| CPU of a zone's control plane until all its agents are back after a restart | %.1f s | that per agent, as measured with %d, × %d | |\n",
			last.BackCPU.Seconds()*modelAgents, last.Agents, modelAgents)
		for _, one := range f.Fleets {
			if one.Agents == modelAgents {
				fmt.Fprintf(b, "| all agents of a zone are back after a restart | %.1f s | measured | ≤ %.0f s: %s |\n",
					one.Back.Seconds(), boundBack.Seconds(), verdict(one.Back <= boundBack))
			}
		}
	}
	if len(f.Global) > 0 {
		l := fit(f.globalMemory())
		fmt.Fprintf(b, "| global: memory per Dataplane | %.2f kB | slope of the line through the measured points | |\n", l.slope/1e3)
		how, memory := "the line", l.at(modelEndpoints)
		for _, one := range f.Global {
			if one.Endpoints == modelEndpoints {
				how, memory = "measured", one.Memory
			}
		}
		fmt.Fprintf(b, "| global: memory with %d endpoints, without streams | %.2f GB | %s | ≤ %.0f GB: %s |\n",
			modelEndpoints, memory/1e9, how, boundGlobal/1e9, verdict(memory <= boundGlobal))
	}
}

func verdict(good bool) string {
	if good {
		return "met"
	}
	return "missed"
}

// Marks between which the page has the table.
const (
	tableBegin = "<!-- begin of what bench/scale writes -->\n"
	tableEnd   = "<!-- end of what bench/scale writes -->\n"
)

// write the page's table and plot.
func (f figures) write(dir, table string) error {
	path := filepath.Join(dir, "scale.md")
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(text), tableBegin)
	_, after, closed := strings.Cut(rest, tableEnd)
	if !ok || !closed {
		return errors.New(path + " lacks the marks of the table")
	}
	if err := os.WriteFile(path, []byte(before+tableBegin+table+tableEnd+after), 0o644); err != nil { //nolint:gosec // a page of the docs
		return err
	}
	return os.WriteFile(filepath.Join(dir, "img", "scale.svg"), []byte(f.plot()), 0o644) //nolint:gosec // a picture of the docs
}

// Sizes of the plot in pixels.
const (
	plotWidth, plotHeight = 340., 220.
	plotLeft, plotTop     = 56., 40.
	plotGap, plotBottom   = 90., 40.
)

// plot draws memory over agents, and over Dataplanes, as SVG.
func (f figures) plot() string {
	var b strings.Builder
	width, height := 2*plotLeft+2*plotWidth+plotGap, plotTop+plotHeight+plotBottom
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" font-family="sans-serif" font-size="12">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="%g" height="%g" fill="#fff"/>`+"\n", width, height)
	x, y := f.fleetMemory()
	panel(&b, plotLeft, "control plane of a zone: memory (MB)", "agents", 1e6, modelAgents, 0, x, y)
	x, y = f.globalMemory()
	panel(&b, plotLeft+plotWidth+plotGap, "global control plane: memory (GB)", "Dataplanes", 1e9, modelEndpoints, boundGlobal, x, y)
	b.WriteString("</svg>\n")
	return b.String()
}

// panel draws the measured points, the line through them up to at least reach, and a bound if it is not 0.
func panel(b *strings.Builder, left float64, title, label string, unit float64, reach int, bound float64, xs []int, ys []float64) {
	l := fit(xs, ys)
	right, top := float64(reach), max(bound, l.at(reach))
	for i := range xs {
		right, top = max(right, float64(xs[i])), max(top, ys[i])
	}
	top *= 1.1
	px := func(x float64) float64 { return left + x/right*plotWidth }
	py := func(y float64) float64 { return plotTop + plotHeight - y/top*plotHeight }
	fmt.Fprintf(b, `<text x="%g" y="%g" font-weight="bold">%s</text>`+"\n", left, plotTop-14, title)
	for i := range 5 {
		share := float64(i) / 4
		fmt.Fprintf(b, `<path d="M%g %gh%g" stroke="#ddd"/><text x="%g" y="%.1f" text-anchor="end">%.3g</text>`+"\n",
			left, py(top*share), plotWidth, left-6, py(top*share)+4, top*share/unit)
		fmt.Fprintf(b, `<text x="%.1f" y="%g" text-anchor="middle">%.0f</text>`+"\n", px(right*share), plotTop+plotHeight+16, right*share)
	}
	fmt.Fprintf(b, `<text x="%g" y="%g" text-anchor="middle" fill="#555">%s</text>`+"\n", left+plotWidth/2, plotTop+plotHeight+32, label)
	if bound > 0 {
		fmt.Fprintf(b, `<path d="M%g %.1fh%g" stroke="#b02a37" stroke-dasharray="5 4"/>`+"\n", left, py(bound), plotWidth)
		fmt.Fprintf(b, `<text x="%g" y="%.1f" fill="#b02a37">bound</text>`+"\n", left+4, py(bound)-4)
	}
	if len(xs) == 0 {
		return
	}
	fmt.Fprintf(b, `<path d="M%.1f %.1fL%.1f %.1f" stroke="#0a58ca" stroke-width="1.5"/>`+"\n", px(0), py(max(l.base, 0)), px(right), py(l.base+l.slope*right))
	for i := range xs {
		fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="4" fill="#0a58ca"/>`+"\n", px(float64(xs[i])), py(ys[i]))
	}
}
