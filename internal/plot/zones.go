package plot

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/proxima-mesh/proxima/internal/summary"
	"github.com/proxima-mesh/proxima/internal/topology"
)

const (
	// maxMapped zones are drawn with ribbons; more as a matrix.
	maxMapped = 12
	// maxRibbons are drawn; the smallest of more are summed up.
	maxRibbons = 40

	width    = 960.0
	margin   = 16.0
	header   = 62.0
	footer   = 50.0
	sideRoom = 210.0 // of the labels beside an area
	areaWide = 14.0
	rowTall  = 64.0
	rowFull  = 48.0 // of it, the ribbons of the busiest zone
	rowGap   = 10.0
	frameTop = 24.0 // in a frame, for its name
	frameGap = 12.0
	thinnest = 1.0
)

// place is a zone in a drawing.
type place struct {
	name, region string
	left, right  string // what is said of its clients and its endpoints
}

// Zones draws the traffic between all zones.
func Zones(z *summary.Zones) *Drawing {
	places := make([]place, 0, len(z.Zones))
	for i := range z.Zones {
		zone := &z.Zones[i]
		demand := "no demand"
		switch {
		case zone.Demand > 0:
			demand = number(zone.Demand) + "/s, " + percent(zone.InZone) + " stays"
		case zone.Guess > 0:
			demand = percent(zone.InZone) + " stays, as estimated"
		}
		endpoints := counted(zone.Endpoints, "endpoint")
		if zone.Worst > 0 {
			endpoints += ", busiest × " + number(zone.Worst)
		}
		places = append(places, place{string(zone.Name), string(zone.Region), demand, endpoints})
	}
	t := &z.Total
	facts := []string{counted(int64(t.Services), "Service"), percent(t.InZone) + " stays in its zone, with the best plans " + percent(t.Ways.Best.InZone)}
	if t.Demand > 0 {
		facts = append(facts, number(t.Demand)+" connections/s")
	}
	if t.Cost != nil {
		facts = append(facts, fmt.Sprintf("%s %s a month", number(*t.Cost), t.Currency))
	}
	return draw("Traffic between zones", strings.Join(facts, "; "), places, z.Flows)
}

// Service draws one Service: where connections to it start, and its endpoints by zone. regions are those of zones, as far as they
// are known.
func Service(d *summary.Detail, regions map[string]string) *Drawing {
	of := map[string]*place{}
	var places []*place
	at := func(zone string) *place {
		if of[zone] == nil {
			of[zone] = &place{name: zone, region: regions[zone], left: "no clients", right: "no endpoints"}
			places = append(places, of[zone])
		}
		return of[zone]
	}
	for _, z := range d.ByZone {
		p := at(string(z.Zone))
		p.right = counted(z.Endpoints, "endpoint")
		if z.Load > 0 {
			p.right += ", each × " + number(z.Load)
		}
	}
	sums := map[string]float64{}
	for _, f := range d.Flows {
		from := at(string(f.From))
		at(string(f.To))
		sums[string(f.From)] += f.Planned
		if from.left = number(sums[string(f.From)]) + "/s"; sums[string(f.From)] == 0 {
			from.left = "demand is estimated"
		}
	}
	facts := []string{d.Code, percent(d.InZone) + " stays in its zone, with the best plan " + percent(d.Ways.Best.InZone)}
	if d.Mode != "" {
		facts = append([]string{"mode " + d.Mode}, facts...)
	}
	if d.Cost != nil {
		facts = append(facts, fmt.Sprintf("%s %s a month", number(*d.Cost), d.Currency))
	}
	all := make([]place, len(places))
	for i, p := range places {
		all[i] = *p
	}
	return draw("Service "+d.Namespace+"/"+d.Name, strings.Join(facts, "; "), all, d.Flows)
}

// draw flows between places.
func draw(title, facts string, places []place, flows []topology.Flow) *Drawing {
	slices.SortFunc(places, func(a, b place) int { return cmp.Or(cmp.Compare(a.region, b.region), cmp.Compare(a.name, b.name)) })
	d := &Drawing{Title: clean(title, maxText), Width: width}
	d.label(margin, margin+titleSize, width-2*margin, "title", "", title)
	d.label(margin, margin+titleSize+20, width-2*margin, "", "", facts)
	index := map[string]int{}
	for i, p := range places {
		index[p.name] = i
	}
	shown, mixed := flowsOf(flows, index)
	switch {
	case len(places) == 0:
		d.label(margin, header+nameSize, width-2*margin, "name", "", "No zone is known yet: there is no node, and no endpoint.")
		d.Height = header + footer
	case len(places) <= maxMapped:
		d.bands(places, index, shown)
	default:
		d.matrix(places, index, shown)
	}
	d.legend(shown, mixed)
	return d
}

// flowsOf topology, in the order of places. Estimates are drawn where no demand is measured at all: they have another unit. mixed says
// that some are left out for that.
func flowsOf(flows []topology.Flow, index map[string]int) (out []Flow, mixed bool) {
	guessed := !slices.ContainsFunc(flows, func(f topology.Flow) bool { return f.Planned > 0 || f.Measured > 0 })
	for _, f := range flows {
		shown := Flow{From: string(f.From), To: string(f.To), Planned: f.Planned, Measured: f.Measured, Guessed: guessed}
		if guessed {
			shown.Planned = f.Guess
		}
		mixed = mixed || !guessed && f.Guess > 0
		_, from := index[shown.From]
		_, to := index[shown.To]
		if v := shown.value(); !from || !to || v <= 0 || math.IsNaN(v) || math.IsInf(v, 0) {
			continue
		}
		shown.Text = clean(fmt.Sprintf("%s → %s: %s", shown.From, shown.To, textOf(&shown, &f)), maxText)
		out = append(out, shown)
	}
	slices.SortFunc(out, func(a, b Flow) int { return cmp.Or(index[a.From]-index[b.From], index[a.To]-index[b.To]) })
	return out, mixed
}

func textOf(shown *Flow, f *topology.Flow) string {
	if shown.Guessed {
		return "estimated, as much as the demand of " + number(shown.Planned) + " Services"
	}
	parts := []string{number(shown.Planned) + "/s planned"}
	if f.Measured > 0 {
		parts = append(parts, number(f.Measured)+"/s measured")
	}
	if f.Bytes > 0 {
		parts = append(parts, number(f.Bytes)+" B/s")
	}
	if f.Cost > 0 {
		parts = append(parts, "costs "+number(f.Cost)+" a month")
	}
	return strings.Join(parts, ", ")
}

// largest flows, in their order, and what the others sum up to.
func largest(flows []Flow) ([]Flow, *Rest) {
	if len(flows) <= maxRibbons {
		return flows, nil
	}
	by := make([]int, len(flows))
	for i := range by {
		by[i] = i
	}
	slices.SortStableFunc(by, func(a, b int) int { return cmp.Compare(flows[b].value(), flows[a].value()) })
	rest := &Rest{Flows: len(flows) - maxRibbons}
	for _, i := range by[maxRibbons:] {
		rest.Sum += flows[i].value()
	}
	keep := slices.Sorted(slices.Values(by[:maxRibbons]))
	out := make([]Flow, 0, maxRibbons)
	for _, i := range keep {
		out = append(out, flows[i])
	}
	return out, rest
}

// bands places clients on the left, endpoints on the right, and ribbons between.
func (d *Drawing) bands(places []place, index map[string]int, flows []Flow) {
	flows, d.Rest = largest(flows)
	tops := d.frames(places)
	out, in := make([]float64, len(places)), make([]float64, len(places))
	for i := range flows {
		out[index[flows[i].From]] += flows[i].value()
		in[index[flows[i].To]] += flows[i].value()
	}
	scale := rowFull / math.Max(slices.Max(out), math.Max(slices.Max(in), math.SmallestNonzeroFloat32))
	leftX, rightX := 2*margin+sideRoom, width-2*margin-sideRoom-areaWide
	fromY, toY := make([]float64, len(places)), make([]float64, len(places))
	for i := range places {
		p := &places[i]
		middle := tops[i] + rowTall/2
		for _, side := range []struct {
			name   string
			x, sum float64
			next   *float64
			labelX float64
			anchor string
			text   string
		}{
			{"left", leftX, out[i], &fromY[i], leftX - 8, "end", p.left},
			{"right", rightX, in[i], &toY[i], rightX + areaWide + 8, "", p.right},
		} {
			tall := math.Max(side.sum*scale, 4)
			*side.next = middle - side.sum*scale/2
			d.Areas = append(d.Areas, Area{
				Box: Box{side.x, middle - tall/2, areaWide, tall}, Zone: p.name, Side: side.name, Text: clean(p.name+": "+side.text, maxText),
			})
			d.label(side.labelX, middle-2, sideRoom-8, "name", side.anchor, p.name)
			d.label(side.labelX, middle+13, sideRoom-8, "", side.anchor, side.text)
		}
	}
	for i := range flows {
		f := &flows[i]
		wide := f.value() * scale
		r := Ribbon{
			Flow: *f, X1: leftX + areaWide, X2: rightX, Y1: fromY[index[f.From]] + wide/2, Y2: toY[index[f.To]] + wide/2,
			Width: math.Max(f.Planned*scale, thinnest),
		}
		if f.Measured > 0 {
			r.Filled = math.Max(f.Measured*scale, thinnest)
		}
		fromY[index[f.From]], toY[index[f.To]] = fromY[index[f.From]]+wide, toY[index[f.To]]+wide
		d.Ribbons = append(d.Ribbons, r)
	}
}

// frames of regions, and the upper ends of the rows of places, which are ordered by region.
func (d *Drawing) frames(places []place) []float64 {
	y := header
	tops := make([]float64, len(places))
	for i := 0; i < len(places); {
		n := i
		for n < len(places) && places[n].region == places[i].region {
			n++
		}
		named := places[i].region != ""
		top := y
		if named {
			y += frameTop
		}
		y += rowGap / 2
		for ; i < n; i++ {
			tops[i] = y
			y += rowTall + rowGap
		}
		y -= rowGap / 2
		if named {
			name := places[n-1].region
			d.Frames = append(d.Frames, Frame{Box{margin, top, width - 2*margin, y - top}, clean(name, maxText)})
			d.label(margin+10, top+16, sideRoom, "", "", name)
		}
		y += frameGap
	}
	d.Height = y + footer
	return tops
}

// matrix of zones: a row for the clients of each, a column for its endpoints.
func (d *Drawing) matrix(places []place, index map[string]int, flows []Flow) {
	n := float64(len(places))
	const rowRoom = 190.0
	left := margin + rowRoom
	cell := math.Min(40, math.Floor((width-left-margin)/n))
	top := header + 22
	highest := math.SmallestNonzeroFloat32
	for i := range flows {
		highest = math.Max(highest, flows[i].value())
	}
	step := max(1, int(math.Ceil((smallSize+2)/cell)))
	for i, p := range places {
		if i%step != 0 {
			continue
		}
		y := top + float64(i)*cell
		d.label(left-6, y+math.Min(cell, smallSize+2)/2+4, rowRoom-6, "", "end", fmt.Sprintf("%s  %d", p.name, i+1))
	}
	wide := max(step, int(math.Ceil(3*0.66*smallSize/cell)))
	for i := range places {
		if i%wide == 0 {
			d.label(left+(float64(i)+0.5)*cell, top-5, math.Max(cell*float64(wide), 2*smallSize), "", "middle", fmt.Sprint(i+1))
		}
	}
	d.Frames = append(d.Frames, Frame{Box{left, top, n * cell, n * cell}, ""})
	for i := 0; i < len(places); {
		from := i
		for i < len(places) && places[i].region == places[from].region {
			i++
		}
		if from == 0 && i == len(places) {
			break
		}
		at := float64(from) * cell
		d.Frames = append(d.Frames, Frame{Box{left + at, top + at, float64(i-from) * cell, float64(i-from) * cell}, clean(places[from].region, maxText)})
	}
	for i := range flows {
		f := &flows[i]
		d.Cells = append(d.Cells, Cell{
			Box:  Box{left + float64(index[f.To])*cell, top + float64(index[f.From])*cell, cell, cell},
			Flow: *f, Shade: math.Sqrt(f.value() / highest),
		})
	}
	d.Height = top + n*cell + 10 + footer
}

// legend at the foot.
func (d *Drawing) legend(flows []Flow, mixed bool) {
	text := "Planned flows are outlined, measured ones filled. From the clients of a zone, left, to endpoints, right."
	switch {
	case len(d.Cells) > 0:
		text = "Rows are the zones of clients, columns those of endpoints, by the numbers of the rows. The darker, the more connections."
	case len(flows) == 0:
		text = "There is no traffic, and no Service with endpoints that some could be estimated for."
	case flows[0].Guessed:
		text = "Hatched: no demand is measured; it is estimated by the CPU of nodes. From the clients of a zone, left, to endpoints, right."
	}
	var left []string
	if d.Rest != nil {
		unit := "/s"
		if flows[0].Guessed {
			unit = " Services"
		}
		left = append(left, fmt.Sprintf("%d more flows, of together %s%s, are not drawn.", d.Rest.Flows, number(d.Rest.Sum), unit))
	}
	if mixed {
		left = append(left, "Services without measured demand are left out.")
	}
	d.label(margin, d.Height-30, width-2*margin, "", "", text)
	if len(left) > 0 {
		d.label(margin, d.Height-14, width-2*margin, "", "", strings.Join(left, " "))
	}
}
