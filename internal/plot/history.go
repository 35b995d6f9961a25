package plot

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/proxima-mesh/proxima/internal/summary"
)

const (
	panelTall = 150.0
	panelTop  = 30.0
	panelGap  = 26.0
	axisRoom  = 64.0
	nameRoom  = 190.0 // of the legend of lines
)

// History draws how zones were, or a Service of that name.
func History(s *summary.Series, name string) *Drawing {
	title := "Zones in the last hours"
	if name != "" {
		title = "Service " + name + " in the last hours"
	}
	d := &Drawing{Title: clean(title, maxText), Width: width}
	d.label(margin, margin+titleSize, width-2*margin, "title", "", title)
	facts := "measured since " + s.Since.UTC().Format("2006-01-02 15:04 MST")
	shown := busiest(s.Zones)
	if more := len(s.Zones) - len(shown); more > 0 {
		facts += fmt.Sprintf("; the %d zones with most demand, %d more are not drawn", len(shown), more)
	}
	d.label(margin, margin+titleSize+20, width-2*margin, "", "", facts)
	y := header
	points := 0
	for i := range shown {
		points = max(points, len(shown[i].InZone), len(shown[i].Demand))
	}
	if points == 0 {
		d.label(margin, y+nameSize, width-2*margin, "name", "", "No value was taken yet: the first one comes after some seconds, with demand.")
		d.Height = y + footer
		return d
	}
	for _, panel := range []struct {
		name string
		unit func(float64) string
		full float64 // the upper end; 0: the highest value
		of   func(*summary.ZoneSeries) []float32
	}{
		{"share that stays in its zone", percent, 1, func(z *summary.ZoneSeries) []float32 { return z.InZone }},
		{"connections per second", number, 0, func(z *summary.ZoneSeries) []float32 { return z.Demand }},
		{"cost in a month", number, 0, func(z *summary.ZoneSeries) []float32 { return z.Cost }},
	} {
		highest := panel.full
		some := false
		for i := range shown {
			for _, v := range panel.of(&shown[i]) {
				some = some || v != 0
				if panel.full == 0 {
					highest = math.Max(highest, float64(v))
				}
			}
		}
		if !some && panel.full == 0 {
			continue
		}
		if highest == 0 {
			highest = 1
		}
		box := Box{margin + axisRoom, y + panelTop, width - 2*margin - axisRoom - nameRoom, panelTall}
		d.Frames = append(d.Frames, Frame{box, panel.name})
		d.label(box.X, y+panelTop-8, box.Width, "name", "", panel.name)
		d.label(box.X-6, box.Y+smallSize-1, axisRoom-6, "", "end", panel.unit(highest))
		d.label(box.X-6, box.Y+box.Height, axisRoom-6, "", "end", panel.unit(0))
		for i := range shown {
			if line := lineOf(panel.of(&shown[i]), box, points, highest); len(line) > 0 {
				d.Lines = append(d.Lines, Line{Name: clean(string(shown[i].Zone), maxText), Color: i, Points: line})
			}
		}
		y = box.Y + box.Height
		d.times(s, box, points)
		y += panelGap
	}
	if len(shown) > 1 || shown[0].Zone != "" {
		for i := range shown {
			d.label(width-margin-nameRoom+22, header+panelTop+12+float64(i)*16, nameRoom-22, "", "", string(shown[i].Zone)).Color = i + 1
		}
	}
	d.Height = math.Max(y, header+panelTop+12+float64(len(shown))*16) + 10
	return d
}

// times below a panel.
func (d *Drawing) times(s *summary.Series, box Box, points int) {
	first := s.Last.Add(-time.Duration(float64(points-1) * s.Step * float64(time.Second)))
	y := box.Y + box.Height + smallSize + 4
	d.label(box.X, y, box.Width/2, "", "", first.UTC().Format("15:04"))
	d.label(box.X+box.Width, y, box.Width/2, "", "end", s.Last.UTC().Format("15:04 MST"))
}

// lineOf values, the last of them at the right.
func lineOf(values []float32, box Box, points int, highest float64) []float64 {
	var out []float64
	for i, v := range values {
		at := float64(points - len(values) + i)
		x := box.X + box.Width*at/math.Max(1, float64(points-1))
		share := math.Min(1, math.Max(0, float64(v)/highest))
		if math.IsNaN(share) {
			share = 0
		}
		out = append(out, x, box.Y+box.Height*(1-share))
	}
	return out
}

// busiest zones, by name.
func busiest(all []summary.ZoneSeries) []summary.ZoneSeries {
	out := slices.Clone(all)
	if len(out) <= Colors {
		return out
	}
	sum := func(z *summary.ZoneSeries) (s float64) {
		for _, v := range z.Demand {
			s += float64(v)
		}
		return s
	}
	slices.SortStableFunc(out, func(a, b summary.ZoneSeries) int { return cmp.Compare(sum(&b), sum(&a)) })
	out = out[:Colors]
	slices.SortFunc(out, func(a, b summary.ZoneSeries) int { return cmp.Compare(a.Zone, b.Zone) })
	return out
}
