package choose_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/choose"
)

// aged is a slice of ready endpoints that became ready so many seconds before now; -1: it is
// not known when.
func aged(now time.Time, ages ...int) *proxy.Slice {
	s := &proxy.Slice{Ports: []proxy.SlicePort{{Name: "http", Port: 8080, Protocol: proxy.TCP}}}
	for i, age := range ages {
		s.Endpoints = append(s.Endpoints, proxy.SliceEndpoint{Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), Ready: true, Serving: true})
		if age >= 0 {
			s.SetReadySince(i, now.Add(-time.Duration(age)*time.Second).Unix(), len(ages))
		}
	}
	return s
}

func weightsOf(from []*proxy.Slice) string {
	var out []string
	for _, s := range from {
		for _, e := range s.Endpoints {
			out = append(out, fmt.Sprint(e.Weight))
		}
	}
	return strings.Join(out, " ")
}

func TestWarm(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	svc := &proxy.Service{WarmUp: 30 * time.Second}
	for name, tc := range map[string]struct {
		ages []int
		want string // weights in tenths; empty: the slices as they are
		next time.Duration
	}{
		"all are warm":                        {ages: []int{100, 30, -1}},
		"one is new":                          {ages: []int{100, 0}, want: "10 1", next: 3 * time.Second},
		"one is half way":                     {ages: []int{100, 16}, want: "10 6", next: 2 * time.Second},
		"one is in its last step":             {ages: []int{100, 28}},
		"an unknown age is old":               {ages: []int{-1, 4}, want: "10 2", next: 2 * time.Second},
		"all became ready together":           {ages: []int{0, 0, 0}},
		"all restarted within a step":         {ages: []int{5, 4, 3}},
		"the oldest is warm before it is old": {ages: []int{20, 0}, want: "10 4", next: 12 * time.Second},
		"one alone":                           {ages: []int{0}},
		"none":                                {},
	} {
		from := []*proxy.Slice{aged(now, tc.ages...)}
		got, next := choose.Warm(svc, from, now)
		if tc.want == "" {
			if len(got) != 1 || got[0] != from[0] || !next.IsZero() {
				t.Errorf("%s: %s, next %s", name, weightsOf(got), next)
			}
			continue
		}
		if weightsOf(got) != tc.want || next.Sub(now) != tc.next {
			t.Errorf("%s: %s, next in %s; want %s in %s", name, weightsOf(got), next.Sub(now), tc.want, tc.next)
		}
		if from[0].Endpoints[0].Weight != 0 {
			t.Errorf("%s: the argument was changed", name)
		}
	}
	if got, _ := choose.Warm(&proxy.Service{}, []*proxy.Slice{aged(now, 100, 0)}, now); weightsOf(got) != "0 0" {
		t.Errorf("a Service without warm-up: %s", weightsOf(got))
	}
}

// TestWarmUpEnds: whatever the ages, weights only rise, each change comes when it was
// foretold, there are few, and in the end all endpoints have their full weight.
func TestWarmUpEnds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		begin := time.Unix(1_800_000_000, 0)
		svc := &proxy.Service{WarmUp: time.Duration(rapid.IntRange(1, 3600).Draw(t, "seconds")) * time.Second}
		from := []*proxy.Slice{aged(begin, rapid.SliceOfN(rapid.IntRange(-1, 4000), 1, 6).Draw(t, "ages")...)}
		now, changes := begin, 0
		share := func(s []*proxy.Slice, i int) float64 {
			top := uint32(1)
			for _, e := range s[0].Endpoints {
				top = max(top, e.Weight)
			}
			return float64(max(s[0].Endpoints[i].Weight, 1)) / float64(top)
		}
		last, next := choose.Warm(svc, from, now)
		for ; !next.IsZero(); changes++ {
			if !next.After(now) {
				t.Fatalf("the next change is %s ago", now.Sub(next))
			}
			if early, _ := choose.Warm(svc, from, next.Add(-1)); weightsOf(early) != weightsOf(last) {
				t.Fatalf("weights changed before they were to: %s, %s", weightsOf(last), weightsOf(early))
			}
			now = next
			is, following := choose.Warm(svc, from, now)
			for i := range from[0].Endpoints {
				if share(is, i) < share(last, i) {
					t.Fatalf("weights fell: %s, %s", weightsOf(last), weightsOf(is))
				}
			}
			last, next = is, following
		}
		if last[0] != from[0] || now.Sub(begin) > svc.WarmUp || changes > choose.WarmSteps*len(from[0].Endpoints) {
			t.Fatalf("after %s and %d changes: %s", now.Sub(begin), changes, weightsOf(last))
		}
	})
}

// TestPlotOfTheRamp compares the plot in the documentation with what the code does.
// PROXIMA_UPDATE=1 writes it. The dots are connections that TestWeights of internal/lab counted:
// PROXIMA_SOAK=1 PROXIMA_PLOT=FILE writes what is in testdata/warmup.json.
func TestPlotOfTheRamp(t *testing.T) {
	const file = "../../../docs/concepts/img/warmup.svg"
	var measured []struct{ Second, Share float64 }
	if data, err := os.ReadFile("testdata/warmup.json"); err != nil {
		t.Fatal(err)
	} else if err := json.Unmarshal(data, &measured); err != nil {
		t.Fatal(err)
	}
	const width, height, left, bottom, seconds, most = 720., 260., 52., 36., 33, 0.4
	x := func(second float64) float64 { return left + second/seconds*(width-left-12) }
	y := func(share float64) float64 { return height - bottom - share/most*(height-bottom-28) }
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" font-family="sans-serif" font-size="12">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="%g" height="%g" fill="#fff"/>`+"\n", width, height)
	fmt.Fprintf(&b, `<text x="%g" y="16" fill="#888">what agents do</text><text x="%g" y="16" fill="#0a58ca">connections counted in a lab</text>`+"\n", left, left+100)
	for share := 0.; share <= most; share += .1 {
		fmt.Fprintf(&b, `<line x1="%g" y1="%.1f" x2="%g" y2="%.1f" stroke="#ddd"/><text x="%g" y="%.1f" text-anchor="end">%.0f %%</text>`+"\n",
			left, y(share), width-12, y(share), left-6, y(share)+4, 100*share)
	}
	for second := 0.; second <= seconds; second += 3 {
		fmt.Fprintf(&b, `<text x="%.1f" y="%g" text-anchor="middle">%g s</text>`+"\n", x(second), height-bottom+18, second)
	}
	b.WriteString(`<polyline fill="none" stroke="#888" stroke-width="2" points="`)
	for second := range seconds {
		share := shareOfThird(time.Duration(second) * time.Second)
		fmt.Fprintf(&b, "%.1f,%.1f %.1f,%.1f ", x(float64(second)), y(share), x(float64(second+1)), y(share))
	}
	b.WriteString(`"/>` + "\n")
	for _, m := range measured {
		if m.Second <= seconds {
			fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="2.5" fill="#0a58ca"/>`+"\n", x(m.Second), y(m.Share))
		}
	}
	b.WriteString("</svg>\n")
	if os.Getenv("PROXIMA_UPDATE") != "" {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil || string(want) != b.String() {
		t.Errorf("the plot is another one (%v): write it with PROXIMA_UPDATE=1", err)
	}
	if len(measured) < seconds {
		t.Errorf("%d samples, want one per second", len(measured))
	}
}

// shareOfThird endpoint that became ready such a time ago, beside two old ones, the Service's
// warm-up being 30s.
func shareOfThird(age time.Duration) float64 {
	begin := time.Unix(1_800_000_000, 0)
	svc, from := &proxy.Service{WarmUp: 30 * time.Second}, []*proxy.Slice{aged(begin, 100, 100, 0)}
	warmed, _ := choose.Warm(svc, from, begin.Add(age))
	state := choose.Slices(svc, proxy.Port{Name: "http", Port: 80, Protocol: proxy.TCP}, warmed, choose.Node{Name: "here"})
	var sum, third uint32
	for i, target := range state.IPv4.Cluster {
		sum += target.Weight
		if i == 2 {
			third = target.Weight
		}
	}
	return float64(third) / float64(sum)
}
