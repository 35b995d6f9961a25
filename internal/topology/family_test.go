package topology

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	plannerv1alpha1 "github.com/proxima-mesh/proxima/api/planner/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/demand"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// dualRig plans a Service with both families by what agents report to an aggregator.
type dualRig struct {
	*rig
	demand   *demand.Aggregator
	sequence uint64
}

func (r *dualRig) configure(c *Config) {
	r.demand = demand.NewAggregator(demand.Config{World: demand.FromCatalog(c.Catalog)})
	c.Demand, c.Warm = r.demand, r.demand.Warm
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan error, 1)
	go func() { done <- r.demand.Run(ctx) }()
	r.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
	})
}

func newDualRig(t *testing.T, families ...corev1.IPFamily) *dualRig {
	service := adaptive()
	service.Spec.IPFamilies = families
	objects := workloads("aabbcc")
	for i, o := range objects {
		w := o.(*meshv1alpha1.Dataplane)
		w.Spec.Addresses = append(w.Spec.Addresses, "fd00::"+string(rune('1'+i)))
	}
	r := &dualRig{rig: &rig{t: t}}
	made := newRig(t, r.configure, all(equalNodes("abc"), objects, one(service))...)
	*r.rig = *made
	return r
}

// counted by the agents of zones in a minute, reported every 10 s; in connections a report.
func (r *dualRig) counted(family proxy.Family, byZone map[string]uint64, more ...demand.Traffic) {
	r.t.Helper()
	for range 6 {
		r.sequence++
		for _, zone := range []string{"a", "b", "c"} {
			report := &demand.Report{Node: "node-" + zone, Zone: locality.Zone(zone), Run: "r", Sequence: r.sequence, Elapsed: demand.Interval}
			port := proxy.PortName{ServiceName: proxy.ServiceName{Namespace: "shop", Name: "web"}, Port: "http"}
			if n := byZone[zone]; n > 0 {
				report.Traffic = append(report.Traffic, demand.Traffic{Port: port, Family: family, Connections: n})
			}
			for _, t := range more {
				if t.Port = port; zone == "b" {
					report.Traffic = append(report.Traffic, t)
				}
			}
			if _, err := r.demand.Receive(report); err != nil {
				r.t.Fatal(err)
			}
		}
		time.Sleep(demand.Interval)
	}
	r.settle()
}

// planned says where connections of a family that start in a zone go.
func (r *dualRig) planned(family, from string) (demand float64, to []plannerv1alpha1.ZoneShare) {
	for _, plan := range list[*plannerv1alpha1.TrafficPlan](r.rig, "TrafficPlan") {
		for _, g := range plan.Spec.Groups {
			for _, z := range g.Zones {
				if g.AddressType == family && z.Name == from {
					return z.Demand, z.To
				}
			}
		}
	}
	r.t.Fatalf("no plan of %s for zone %s", family, from)
	return 0, nil
}

// hintsOf the slices of a family.
func (r *dualRig) hintsOf(family discoveryv1.AddressType) string {
	var out []string
	for _, s := range list[*discoveryv1.EndpointSlice](r.rig, "EndpointSlice") {
		for _, e := range s.Endpoints {
			if s.AddressType != family || e.Hints == nil {
				continue
			}
			line := e.TargetRef.Name + ":"
			for _, z := range e.Hints.ForZones {
				line += z.Name
			}
			out = append(out, line)
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// TestFamiliesArePlannedApart: IPv6 clients, a twentieth of all, are in another zone than those
// of IPv4. Each family is planned, hinted and explained by its own demand, and still is after a
// restart of the control plane.
func TestFamiliesArePlannedApart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newDualRig(t, corev1.IPv4Protocol, corev1.IPv6Protocol)
		r.counted(proxy.IPv4, map[string]uint64{"a": 950}, demand.Traffic{Family: proxy.IPv6, Connections: 50})
		check := func(what string) {
			t.Helper()
			for family, busy := range map[string]string{"IPv4": "a", "IPv6": "b"} {
				share, to := r.planned(family, busy)
				if share < 0.9 || len(to) != 3 {
					t.Errorf("%s: %s is planned with %.3f of its demand in zone %s, which goes to %v", what, family, share, busy, to)
				}
			}
			v4, v6 := r.hintsOf(discoveryv1.AddressTypeIPv4), r.hintsOf(discoveryv1.AddressTypeIPv6)
			if v4 == "" || v6 == "" || v4 == v6 {
				t.Errorf("%s: hints of IPv4 %q, of IPv6 %q", what, v4, v6)
			}
		}
		check("measured")
		report, _ := r.c.Explain(webKey)
		if len(report.Plans) != 2 || report.Plans[0].Rate < 94 || report.Plans[0].Rate > 96 || report.Plans[1].Rate > 5.1 {
			t.Errorf("explained as %+v", report.Plans)
		}
		writes := func() (versions string) {
			for _, plan := range list[*plannerv1alpha1.TrafficPlan](r.rig, "TrafficPlan") {
				versions += plan.ResourceVersion + " "
			}
			return versions
		}
		before := writes()
		r.stop()
		r.start(r.configure)
		check("restarted")
		r.counted(proxy.IPv4, map[string]uint64{"a": 950}, demand.Traffic{Family: proxy.IPv6, Connections: 50})
		check("reported again")
		if after := writes(); after != before {
			t.Errorf("plans were written again: %s, then %s", before, after)
		}
	})
}

// TestFamilyWithoutConnections is planned as the other one, which it says.
func TestFamilyWithoutConnections(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newDualRig(t, corev1.IPv4Protocol, corev1.IPv6Protocol)
		r.counted(proxy.IPv4, map[string]uint64{"a": 800, "b": 200})
		v4, _ := r.planned("IPv4", "a")
		if v6, _ := r.planned("IPv6", "a"); v6 < v4-0.02 || v6 > v4+0.02 {
			t.Errorf("demand in zone a: IPv4 %.3f, IPv6 %.3f", v4, v6)
		}
		report, _ := r.c.Explain(webKey)
		if text := report.Text(""); !strings.Contains(text, "demand is that of the other address family") {
			t.Error(text)
		}
	})
}

// TestMixedVersions: an agent that does not tell families apart, beside one that does, and for a
// Service of one family.
func TestMixedVersions(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newDualRig(t, corev1.IPv4Protocol, corev1.IPv6Protocol)
		for range 5 { // what came before anybody told them apart was divided in halves
			r.counted(proxy.AnyFamily, map[string]uint64{"a": 100},
				demand.Traffic{Family: proxy.IPv4, Connections: 270}, demand.Traffic{Family: proxy.IPv6, Connections: 30})
		}
		for _, family := range []string{"IPv4", "IPv6"} {
			if share, _ := r.planned(family, "a"); share < 0.22 || share > 0.28 {
				t.Errorf("%s: %.3f of the demand in zone a, want a quarter", family, share)
			}
		}
	})
	for _, protocol := range []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol} {
		bubble(t, func(t *testing.T) {
			r := newDualRig(t, protocol)
			r.counted(proxy.AnyFamily, map[string]uint64{"a": 100, "b": 300})
			if share, _ := r.planned(string(protocol), "a"); share < 0.24 || share > 0.26 {
				t.Errorf("%s alone: %.3f of the demand in zone a, want a quarter", protocol, share)
			}
			if report, _ := r.c.Explain(resource.Key{Namespace: "shop", Name: "web"}); len(report.Plans) != 1 || report.Plans[0].Rate < 39 {
				t.Errorf("%s alone: %+v", protocol, report.Plans)
			}
		})
	}
}
