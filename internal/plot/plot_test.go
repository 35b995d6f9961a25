package plot

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/summary"
	"github.com/proxima-mesh/proxima/internal/topology"
)

var update = flag.Bool("update", false, "write the golden files again")

// sumsOf n zones in regions of four, of which every pair has a flow.
func sumsOf(n int, guessed bool) *summary.Zones {
	random := rand.New(rand.NewPCG(uint64(n), 7))
	z := &summary.Zones{Since: time.Unix(0, 0).UTC()}
	name := func(i int) locality.Zone { return locality.Zone(fmt.Sprintf("zone-%c%d", 'a'+i%26, i/26)) }
	for i := range n {
		z.Zones = append(z.Zones, summary.Zone{
			Name: name(i), Region: locality.Region(fmt.Sprintf("region-%d", i/4)), Nodes: 3, Ready: 3, Endpoints: int64(random.IntN(90)),
			Demand: random.Float64() * 900, InZone: random.Float64(), Worst: 1 + random.Float64(),
		})
		if guessed {
			z.Zones[i].Demand, z.Zones[i].Guess = 0, 2
		}
		for k := range n {
			f := topology.Flow{From: name(i), To: name(k), Planned: random.Float64() * 100}
			if i == k {
				f.Planned *= 8
			}
			f.Measured = f.Planned * (0.5 + random.Float64())
			if guessed {
				f.Guess, f.Planned, f.Measured = f.Planned/100, 0, 0
			}
			z.Flows = append(z.Flows, f)
		}
	}
	z.Total = summary.Totals{Services: 120, Demand: 4321, Currency: "USD", Cost: new(812.5), Saving: new(100.0)}
	z.Total.InZone, z.Total.Ways.Best.InZone = 0.71, 0.9
	return z
}

// hostile names, which are to be text.
var hostile = []string{
	`"><script>alert(1)</script>`, "</text></svg>", "<![CDATA[x", "a&b;&lt;", "javascript:alert(1)", "\u202eeman", "tab\tnew\nline\x00\x1b[31m", "\xff\xfe bad utf8",
	strings.Repeat("W", 5000), strings.Repeat("漢", 300), strings.Repeat("é", 500), "", "--><!--",
}

func hostileSums() *summary.Zones {
	z := &summary.Zones{}
	for _, name := range hostile {
		z.Zones = append(z.Zones, summary.Zone{Name: locality.Zone(name), Region: locality.Region(name), Demand: 5})
		z.Flows = append(z.Flows, topology.Flow{From: locality.Zone(name), To: locality.Zone(hostile[0]), Planned: 5})
	}
	z.Zones, z.Total.Currency = z.Zones[:12], hostile[0]
	return z
}

func detail() *summary.Detail {
	return &summary.Detail{
		Line:   topology.Line{Namespace: "shop", Name: "web", Mode: "proxima.dev/Adaptive", Code: "Planned", Routed: topology.Routed{InZone: 0.8}},
		ByZone: []topology.ZoneLoad{{Zone: "a", Endpoints: 3, Load: 0.9}, {Zone: "b", Endpoints: 1, Load: 1.3}},
		Flows:  []topology.Flow{{From: "a", To: "a", Planned: 30, Measured: 28}, {From: "b", To: "a", Planned: 8}, {From: "b", To: "b", Planned: 12, Measured: 15}, {From: "c", To: "b", Planned: 2}},
	}
}

func series(zones, points int) *summary.Series {
	s := &summary.Series{Since: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC), Last: time.Date(2030, 1, 1, 6, 0, 0, 0, time.UTC), Step: 10, Zones: []summary.ZoneSeries{}}
	random := rand.New(rand.NewPCG(uint64(zones), 3))
	for i := range zones {
		z := summary.ZoneSeries{Zone: locality.Zone(fmt.Sprintf("zone-%02d", i))}
		share, demand := 0.5, 100.0
		for range points - i {
			share, demand = min(1, max(0, share+random.Float64()*0.1-0.05)), max(0, demand+random.Float64()*20-10)
			z.InZone, z.Demand, z.Cost = append(z.InZone, float32(share)), append(z.Demand, float32(demand)), append(z.Cost, float32(demand/3))
		}
		s.Zones = append(s.Zones, z)
	}
	return s
}

func drawings() map[string]*Drawing {
	out := map[string]*Drawing{
		"empty": Zones(&summary.Zones{}), "hostile": Zones(hostileSums()), "guessed": Zones(sumsOf(3, true)),
		"service":       Service(detail(), map[string]string{"a": "north", "b": "north", "c": "south"}),
		"service-empty": Service(&summary.Detail{Line: topology.Line{Namespace: "shop", Name: "none", Code: "NoEndpoints"}}, nil),
		"history":       History(series(3, 60), ""), "history-20": History(series(20, 60), ""), "history-empty": History(series(0, 0), ""),
		"history-one": History(&summary.Series{Zones: []summary.ZoneSeries{{InZone: []float32{1}, Demand: []float32{0}}}}, "shop/web"),
	}
	for _, n := range []int{1, 3, 12, 13, 100} {
		out[fmt.Sprintf("zones-%d", n)] = Zones(sumsOf(n, false))
	}
	return out
}

// TestGolden: the bytes are those of the golden files, each time.
func TestGolden(t *testing.T) {
	again := drawings()
	for name, d := range drawings() {
		got := d.SVG()
		if !bytes.Equal(got, again[name].SVG()) {
			t.Errorf("%s: the same input has other bytes", name)
		}
		if name == "zones-100" {
			continue // large; TestFrames looks at it
		}
		path := filepath.Join("testdata", name+".svg")
		if *update {
			if err := os.WriteFile(path, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is another picture; look at it, and write it again with -update", name)
		}
	}
}

// TestText: whatever names are, an SVG has the elements that this package writes alone, and refers to nothing.
func TestText(t *testing.T) {
	for name, d := range drawings() {
		for _, f := range foreign(d.SVG()) {
			t.Errorf("%s %s", name, f)
		}
	}
}

// foreign is what an SVG has that this package does not write.
func foreign(svg []byte) (found []string) {
	elements := []string{"svg", "title", "style", "defs", "pattern", "path", "rect", "g", "polyline", "text"}
	decoder := xml.NewDecoder(bytes.NewReader(svg))
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			return append(found, err.Error())
		}
		e, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		if !slices.Contains(elements, e.Name.Local) {
			found = append(found, "has an element "+e.Name.Local)
		}
		for _, a := range e.Attr {
			if strings.HasPrefix(a.Name.Local, "on") || a.Name.Local == "href" || strings.Contains(a.Value, "url(") && a.Value != "url(#hatch)" {
				found = append(found, fmt.Sprintf("%s has %s=%q", e.Name.Local, a.Name.Local, a.Value))
			}
		}
	}
}

// TestFrames: nothing is outside of the drawing; ribbons stay between the areas that they join, and labels within their room.
func TestFrames(t *testing.T) {
	for name, d := range drawings() {
		for _, o := range outside(d) {
			t.Errorf("%s: %s", name, o)
		}
	}
}

// outside is what a drawing has outside of its place.
func outside(d *Drawing) (found []string) {
	all := Box{0, 0, d.Width, d.Height}
	within := func(what string, b, in Box) {
		const slack = 0.01
		if b.X < in.X-slack || b.Y < in.Y-slack || b.X+b.Width > in.X+in.Width+slack || b.Y+b.Height > in.Y+in.Height+slack {
			found = append(found, fmt.Sprintf("%s %+v is outside of %+v", what, b, in))
		}
	}
	areas := map[string]Box{}
	for _, f := range d.Frames {
		within("frame "+f.Name, f.Box, all)
	}
	for _, a := range d.Areas {
		within("area "+a.Zone, a.Box, all)
		areas[a.Side+a.Zone] = a.Box
	}
	for _, c := range d.Cells {
		within("cell", c.Box, d.Frames[0].Box)
	}
	for _, r := range d.Ribbons {
		wide := max(r.Width, r.Filled)
		if wide > thinnest {
			within("start of "+r.Text, Box{areas["left"+r.From].X, r.Y1 - wide/2, 0, wide}, areas["left"+r.From])
			within("end of "+r.Text, Box{areas["right"+r.To].X, r.Y2 - wide/2, 0, wide}, areas["right"+r.To])
		}
		within("ribbon "+r.Text, Box{r.X1, min(r.Y1, r.Y2) - wide/2, r.X2 - r.X1, max(r.Y1, r.Y2) - min(r.Y1, r.Y2) + wide}, all)
	}
	for _, l := range d.Lines {
		for i := 0; i+1 < len(l.Points); i += 2 {
			within("point", Box{l.Points[i], l.Points[i+1], 0, 0}, all)
		}
	}
	for _, l := range d.Labels {
		size := sizeOf(l.Style)
		wide := widthOf(l.Text, size)
		if wide > l.Room+0.01 {
			found = append(found, fmt.Sprintf("label %q takes %.0f of %.0f", l.Text, wide, l.Room))
		}
		x := l.X
		switch l.Anchor {
		case "end":
			x -= wide
		case "middle":
			x -= wide / 2
		}
		within("label "+l.Text, Box{x, l.Y - size, wide, size}, all)
	}
	if len(d.Ribbons) > maxRibbons {
		found = append(found, fmt.Sprintf("there are %d ribbons", len(d.Ribbons)))
	}
	return found
}

// TestGuardsBite: what TestText and TestFrames look for is found where it is.
func TestGuardsBite(t *testing.T) {
	for want, damage := range map[string]func(*Drawing){
		"ribbon ":   func(d *Drawing) { d.Ribbons[0].X1 = -5 },
		"start of ": func(d *Drawing) { d.Ribbons[0].Y1 -= d.Height / 2 },
		"end of ":   func(d *Drawing) { d.Ribbons[0].Y2 += d.Height / 2 },
		"label ":    func(d *Drawing) { d.Labels[0].Text = strings.Repeat("W", 500) },
		"area ":     func(d *Drawing) { d.Areas[0].Box.Width = d.Width + 1 },
		"frame ":    func(d *Drawing) { d.Frames[0].Box.Y = -1 },
		"there are": func(d *Drawing) { d.Ribbons = append(d.Ribbons, make([]Ribbon, maxRibbons)...) },
	} {
		d := Zones(sumsOf(3, false))
		damage(d)
		if found := outside(d); !slices.ContainsFunc(found, func(f string) bool { return strings.HasPrefix(f, want) }) {
			t.Errorf("%q is not found: %v", want, found)
		}
	}
	for want, svg := range map[string]string{
		"has an element script": "<svg><script>x</script></svg>",
		"has onload":            `<svg onload="x"></svg>`,
		"has href":              `<svg><text href="https://example.com">x</text></svg>`,
		`has fill="url(`:        `<svg><rect fill="url(https://example.com)"/></svg>`,
		"XML syntax error":      "<svg></text></svg>",
	} {
		if found := foreign([]byte(svg)); len(found) == 0 || !strings.Contains(strings.Join(found, "\n"), want) {
			t.Errorf("%s: found %q, want %q", svg, found, want)
		}
	}
}

// TestRest: with more than 40 flows the largest are drawn, and the sum of the others is said; above 12 zones it is a matrix with all.
func TestRest(t *testing.T) {
	sums := sumsOf(12, false)
	d := Zones(sums)
	var drawn, all float64
	for _, r := range d.Ribbons {
		drawn += r.value()
	}
	for _, f := range sums.Flows {
		all += max(f.Planned, f.Measured)
	}
	if d.Rest == nil || len(d.Ribbons) != maxRibbons || d.Rest.Flows != 144-maxRibbons || d.Rest.Sum+drawn < all-0.01 || d.Rest.Sum+drawn > all+0.01 {
		t.Errorf("%d ribbons of %.1f, rest %+v, of %.1f", len(d.Ribbons), drawn, d.Rest, all)
	}
	if d := Zones(sumsOf(13, false)); len(d.Ribbons) != 0 || len(d.Cells) != 169 {
		t.Errorf("13 zones: %d ribbons, %d cells", len(d.Ribbons), len(d.Cells))
	}
	if d := Zones(sumsOf(3, true)); len(d.Ribbons) != 9 || !d.Ribbons[0].Guessed || !bytes.Contains(d.SVG(), []byte("url(#hatch)")) {
		t.Error("estimates are not hatched")
	}
	if d := Service(detail(), nil); len(d.Ribbons) != 4 || d.Ribbons[1].Filled != 0 || d.Ribbons[0].Filled == 0 {
		t.Errorf("measured flows are not those that are filled: %+v", d.Ribbons)
	}
}
