package health

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/resource"
)

func workloadKey(machine string) Key {
	return Key{Kind: dataplaneKind, Key: resource.Key{Namespace: "shop", Name: "web-" + machine}}
}

// TestWave: three zones of two nodes, each with a workload; those of one zone, or some
// other set, stop together. What becomes of them depends on what witnesses say.
func TestWave(t *testing.T) {
	const (
		lease   = DefaultDuration
		silent  = "silent"
		answers = "answers"
		before  = "before" // silent, before it was late
	)
	type fate struct {
		at time.Duration // since the last renewal
		by string
	}
	zoneB := []string{"b-1", "b-2"}
	everything := []string{"a-1", "a-2", "b-1", "b-2", "c-1", "c-2"}
	for _, tc := range []struct {
		name string
		stop []string // machines, or workloads alone ("web-b-1")
		// saw is what witnesses find out about machines that they are asked about.
		saw  map[string]string
		want map[string]fate // by name of node or workload
		held string          // a part of the reason why something was held
	}{
		{
			"witnesses confirm", zoneB, map[string]string{"b-1": silent, "b-2": silent},
			map[string]fate{"b-1": {lease, "no answer to w"}, "b-2": {lease, "no answer to w"}, "web-b-1": {lease, "no answer to w"}, "web-b-2": {lease, "no answer to w"}}, "",
		},
		{
			"no witnesses", zoneB, nil,
			map[string]fate{"b-1": {2 * lease, "twice"}, "b-2": {2 * lease, "twice"}, "web-b-1": {2 * lease, "twice"}, "web-b-2": {2 * lease, "twice"}},
			"no agent of another machine has been able to probe it",
		},
		{
			"evidence is old", zoneB, map[string]string{"b-1": before, "b-2": before},
			map[string]fate{"b-1": {2 * lease, "twice"}, "b-2": {2 * lease, "twice"}, "web-b-1": {2 * lease, "twice"}, "web-b-2": {2 * lease, "twice"}},
			"no agent of another machine has been able to probe it",
		},
		{
			"witnesses reach them", zoneB, map[string]string{"b-1": answers, "b-2": answers},
			map[string]fate{"b-1": {2 * lease, "twice"}, "b-2": {2 * lease, "twice"}, "web-b-1": {2 * lease, "twice"}, "web-b-2": {2 * lease, "twice"}},
			"its agent answers other agents",
		},
		{
			"witnesses reach one of them", zoneB, map[string]string{"b-1": answers, "b-2": silent},
			map[string]fate{"b-1": {2 * lease, "twice"}, "b-2": {lease, "no answer"}, "web-b-1": {2 * lease, "twice"}, "web-b-2": {lease, "no answer"}},
			"its agent answers other agents",
		},
		{
			"one of each zone", []string{"a-1", "b-1", "c-1"}, map[string]string{"a-1": silent, "b-1": answers},
			map[string]fate{
				"a-1": {lease, "no answer"}, "web-a-1": {lease, "no answer"}, "b-1": {2 * lease, "twice"}, "web-b-1": {2 * lease, "twice"},
				"c-1": {2 * lease, "twice"}, "web-c-1": {2 * lease, "twice"},
			}, "its agent answers other agents",
		},
		{
			"all of them", everything, nil,
			map[string]fate{
				"a-1": {2 * lease, "twice"}, "a-2": {2 * lease, "twice"}, "b-1": {2 * lease, "twice"}, "b-2": {2 * lease, "twice"}, "c-1": {2 * lease, "twice"}, "c-2": {2 * lease, "twice"},
				"web-a-1": {2 * lease, "twice"}, "web-a-2": {2 * lease, "twice"}, "web-b-1": {2 * lease, "twice"}, "web-b-2": {2 * lease, "twice"}, "web-c-1": {2 * lease, "twice"}, "web-c-2": {2 * lease, "twice"},
			}, "no lease is renewed at all",
		},
		{
			"workloads alone", []string{"web-a-1", "web-b-1", "web-b-2"}, map[string]string{"a-1": answers, "b-1": answers, "b-2": answers},
			map[string]fate{"web-a-1": {lease, "its machine renews"}, "web-b-1": {lease, "its machine renews"}, "web-b-2": {lease, "its machine renews"}}, "",
		},
		{"one machine", []string{"b-1"}, nil, map[string]fate{"b-1": {lease, ""}, "web-b-1": {lease, ""}}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var tr Tracker
			w := around{zones: map[string]locality.Zone{}, evidence: map[string]Evidence{}}
			renewed, down := map[Key]time.Time{}, map[Key]bool{}
			got, held := map[string]fate{}, ""
			for at := time.Duration(0); at < 5*time.Minute; at += time.Second {
				now := start.Add(at)
				for i, name := range everything {
					w.zones[name] = locality.Zone(name[:1])
					for _, key := range []Key{nodeKey(name), workloadKey(name)} {
						stopped := at >= time.Minute && (slices.Contains(tc.stop, name) || slices.Contains(tc.stop, key.Name))
						if at == 0 || !stopped && at%(10*time.Second) == time.Duration(i)*time.Second {
							renewed[key] = now
						}
						tr.Observe(key, Lease{Renewed: renewed[key], Machine: name, Down: down[key]}, now)
					}
				}
				v := tr.Advance(now, w)
				for _, name := range v.Probe {
					if !slices.Contains(tc.stop, name) { // it renews, though a workload may not
						t.Errorf("%s: %s is to be probed", at, name)
					}
					if what := tc.saw[name]; what != "" {
						w.evidence[name] = Evidence{At: now, Alive: what == answers, Witnesses: []string{"w"}}
					}
					if tc.saw[name] == before {
						w.evidence[name] = Evidence{At: start.Add(time.Minute), Witnesses: []string{"w"}}
					}
				}
				for _, h := range v.Held {
					if held == "" || tc.held != "" && strings.Contains(h.Reason, tc.held) {
						held = h.Reason
					}
					if limit := renewed[h.Key].Add(2 * lease); h.Until != limit {
						t.Errorf("%s is held until %s, want %s", h.Key, h.Until, limit)
					}
				}
				for _, d := range v.Dead {
					down[d.Key] = true
					got[d.Name] = fate{now.Sub(renewed[d.Key]), d.By}
				}
			}
			if !slices.Equal(slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(tc.want))) {
				t.Fatalf("marked are %v, want %v", got, tc.want)
			}
			for name, want := range tc.want {
				if g := got[name]; g.at < want.at || g.at > want.at+2*time.Second || !strings.Contains(g.by, want.by) {
					t.Errorf("%s marked after %s by %q, want %s by %q", name, g.at, g.by, want.at, want.by)
				}
			}
			if !strings.Contains(held, tc.held) || (held != "") != (tc.held != "") {
				t.Errorf("held: %q, want %q", held, tc.held)
			}
		})
	}
}

// TestWaveSample: of a large zone three machines are probed. Their silence is that of the
// zone, unless one answers: then each machine is judged by what is found out about itself.
func TestWaveSample(t *testing.T) {
	const (
		stopped = 29 * time.Second // the last renewal
		own     = "no answer to a-00"
		zones   = "no answer of b-01, b-03, b-05 to a-00"
		nothing = "not renewed for twice its duration"
	)
	for _, tc := range []struct {
		name string
		// saw is what witnesses find out about a machine: "silent", "answers" or nothing.
		saw func(name string) string
		// by confirms each expiry.
		by func(name string) string
		// probed is how many machines are probed.
		probed int
	}{
		{"all silent", func(string) string { return "silent" }, func(string) string { return own }, 20},
		{
			"one answers", func(name string) string {
				if name == "b-01" {
					return "answers"
				}
				return "silent"
			},
			func(name string) string {
				if name == "b-01" {
					return nothing
				}
				return own
			}, 20,
		},
		{
			"three silent", func(name string) string {
				if name <= "b-05" {
					return "silent"
				}
				return ""
			},
			func(name string) string {
				if name <= "b-05" {
					return own
				}
				return zones
			}, 6,
		},
		{
			"three silent, one answers", func(name string) string {
				switch {
				case name <= "b-05":
					return "silent"
				case name == "b-07":
					return "answers"
				}
				return ""
			},
			func(name string) string {
				if name <= "b-05" {
					return own
				}
				return nothing
			}, 7,
		},
		{
			"two silent", func(name string) string {
				if name <= "b-03" {
					return "silent"
				}
				return ""
			},
			func(name string) string {
				if name <= "b-03" {
					return own
				}
				return nothing
			}, 5,
		},
		{"no witness", func(string) string { return "" }, func(string) string { return nothing }, 3},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var tr Tracker
			w := around{zones: map[string]locality.Zone{}, evidence: map[string]Evidence{}}
			asked := map[string]bool{}
			dead := map[string]string{}
			for at := time.Duration(0); at < stopped+2*DefaultDuration+2*time.Second; at += time.Second {
				now := start.Add(at)
				for i := range 40 {
					name := fmt.Sprintf("%c-%02d", "ab"[i%2], i)
					w.zones[name] = locality.Zone(name[:1])
					renewed := now
					if name[0] == 'b' {
						renewed = start.Add(min(at, stopped))
					}
					tr.Observe(nodeKey(name), Lease{Renewed: renewed, Machine: name, Down: dead[name] != ""}, now)
				}
				v := tr.Advance(now, w)
				if len(v.Probe) > sampleSize {
					t.Fatalf("%d machines are to be probed", len(v.Probe))
				}
				for _, name := range v.Probe {
					asked[name] = true
					if saw := tc.saw(name); saw != "" {
						w.evidence[name] = Evidence{At: now, Alive: saw == "answers", Witnesses: []string{"a-00"}}
					}
				}
				for _, d := range v.Dead {
					dead[d.Name] = d.By
					due := stopped + DefaultDuration
					if d.By == nothing {
						due += DefaultDuration
					}
					if want := tc.by(d.Name); d.By != want || at < due || at > due+2*time.Second {
						t.Errorf("%s is marked at %s by %q, want %s by %q", d.Name, at, d.By, due, want)
					}
				}
			}
			if len(asked) != tc.probed || len(dead) != 20 {
				t.Errorf("%d machines probed, want %d; %d marked: %v", len(asked), tc.probed, len(dead), dead)
			}
		})
	}
}
