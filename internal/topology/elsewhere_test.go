package topology

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcsv1beta1 "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// imported is the Service of an import, which is offered here, too.
func imported() *corev1.Service {
	s := adaptive()
	s.Name = mcsv1beta1.DerivedServiceName("shop", "web")
	s.Labels = map[string]string{mcsv1beta1.LabelServiceName: "web"}
	return s
}

// offer of another site; a negative rate: it does not say what its demand is.
func offer(site string, instances int32, rate float64, edits ...func(*mcsv1beta1.AvailableService)) *mcsv1beta1.ServiceExport {
	e := &mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-" + site, Labels: map[string]string{
		meshv1alpha1.LabelZone: site, meshv1alpha1.LabelDisplayName: "web",
	}}}
	a := &mcsv1beta1.AvailableService{
		Mesh: "default", Type: mcsv1beta1.ClusterSetIP, Instances: instances, Ports: []mcsv1beta1.ServicePort{{Name: "http", Port: 80}},
	}
	if rate >= 0 {
		a.Demand = []mcsv1beta1.PortDemand{{Port: 80, ConnectionsPerSecond: rate}}
	}
	for _, edit := range edits {
		edit(a)
	}
	e.Status.Available = a
	return e
}

func ingress(site string) *meshv1alpha1.ZoneIngress {
	return &meshv1alpha1.ZoneIngress{
		ObjectMeta: metav1.ObjectMeta{Name: "ingress-" + site, Labels: map[string]string{meshv1alpha1.LabelZone: site}},
		Spec:       meshv1alpha1.ZoneGatewaySpec{Address: "10.1.0.1", Port: 10001},
	}
}

// planned is where the connections of a zone go, and why: "a 75.0 site:east 25.0 (Site)".
func (r *rig) planned(zone string) string {
	r.t.Helper()
	for _, z := range r.plan().Spec.Groups[0].Zones {
		if z.Name != zone {
			continue
		}
		var out []string
		for _, to := range z.To {
			out = append(out, fmt.Sprintf("%s %.1f", to.Zone, 100*to.Share))
		}
		return fmt.Sprintf("%s (%s)", strings.Join(out, " "), z.Reason)
	}
	return "no such zone"
}

func (r *rig) wantPlanned(what, zone, want string) {
	r.t.Helper()
	if got := r.planned(zone); got != want {
		r.t.Errorf("%s: from %s: %s, want %s", what, zone, got, want)
	}
}

func ofSite(c *Config) { c.Site = "west" }

// TestOtherSitesArePlanned: another site is the farthest level of a plan. It takes what this
// one has no capacity for, as far as its own demand leaves some.
func TestOtherSitesArePlanned(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, ofSite, all(equalNodes("ab"), workloads("aabb"), one(imported(), offer("east", 4, 20), ingress("east")))...)
		r.report(map[string]float64{"a": 10, "b": 10})
		r.wantPlanned("all sites are loaded alike", "a", "a 100.0 (Home)")
		r.report(map[string]float64{"a": 30, "b": 10})
		// 60 connections/s on 8 endpoints: 17.55 at most in each zone here.
		r.wantPlanned("a is overloaded", "a", "a 58.5 b 25.2 site:east 16.3 (Site)")

		r.seed(offer("east", 4, 4)) // 44 on 8: 12.87 at most
		r.wantPlanned("the other site has less to do", "a", "a 42.9 b 9.6 site:east 47.5 (Site)")
		r.seed(offer("east", 4, 400)) // it has nothing to spare
		r.wantPlanned("the other site is overloaded", "a", "a 100.0 (Home)")
		r.seed(offer("east", 4, -1)) // 80 on 8: 23.4 at most
		r.wantPlanned("it does not say what it has to do", "a", "a 78.0 b 22.0 (Region)")

		r.seed(offer("east", 4, 4))
		text := r.condition(ConditionPlan)
		if !strings.Contains(text, "8 endpoints in 2 zones and 1 other site") {
			t.Errorf("condition: %s", text)
		}
		report, ok := r.c.Explain(resource.Key{Namespace: "shop", Name: imported().Name})
		if want := "a: 68.2 % of demand"; !ok || !strings.Contains(report.Text("a"), want) ||
			!strings.Contains(report.Text("a"), "47.5 % to site:east: the site has no capacity left") {
			t.Errorf("explained without %q: %s", want, report.Text("a"))
		}
		r.delete("ZoneIngress", "", "ingress-east")
		r.wantPlanned("nothing leads there", "a", "a 78.0 b 22.0 (Region)") // 40 on 4
	})
}

// TestSitesThatAreNotPlanned: a site is part of a plan only where it can be chosen for all
// ports of the group.
func TestSitesThatAreNotPlanned(t *testing.T) {
	spread := &meshv1alpha1.Mesh{ObjectMeta: metav1.ObjectMeta{Name: "default"}, Spec: meshv1alpha1.MeshSpec{
		Routing: &meshv1alpha1.MeshRouting{LocalityAware: new(false)},
	}}
	egress := &meshv1alpha1.Mesh{ObjectMeta: metav1.ObjectMeta{Name: "default"}, Spec: meshv1alpha1.MeshSpec{
		Routing: &meshv1alpha1.MeshRouting{ZoneEgress: new(true)},
	}}
	for what, objects := range map[string][]resource.Object{
		"shares by instances":   {imported(), offer("east", 4, 0), ingress("east"), spread},
		"no egress":             {imported(), offer("east", 4, 0), ingress("east"), egress},
		"no instance":           {imported(), offer("east", 0, 0), ingress("east")},
		"no import":             {adaptive(), offer("east", 4, 0), ingress("east")},
		"kept from this site":   {imported(), offer("east", 4, 0, func(a *mcsv1beta1.AvailableService) { a.ToZones = []string{"north"} }), ingress("east")},
		"another port":          {imported(), offer("east", 4, 0, func(a *mcsv1beta1.AvailableService) { a.Ports[0].Port = 81 }), ingress("east")},
		"nothing is exported":   {imported()},
		"an ingress of another": {imported(), offer("east", 4, 0), ingress("north")},
	} {
		bubble(t, func(t *testing.T) {
			r := newRig(t, ofSite, all(equalNodes("ab"), workloads("aabb"), objects)...)
			r.report(map[string]float64{"a": 30, "b": 10})
			r.wantPlanned(what, "a", "a 78.0 b 22.0 (Region)")
		})
	}
}

// TestCostsOfSites: ZoneCosts say how far another site is, by its name. Names that are zones
// elsewhere are no mistake where there are other sites.
func TestCostsOfSites(t *testing.T) {
	bubble(t, func(t *testing.T) {
		costs := &meshv1alpha1.ZoneCosts{ObjectMeta: metav1.ObjectMeta{Name: DefaultCosts}, Spec: meshv1alpha1.ZoneCostsSpec{
			Pairs: []meshv1alpha1.ZoneCostsPair{{From: "a", To: "east", Cost: 0.5}, {From: "far-1", To: "far-2", Cost: 3}},
		}}
		r := newRig(t, ofSite, all(equalNodes("ab"), workloads("aabb"), one(imported(), offer("east", 4, 4), ingress("east"), costs))...)
		r.report(map[string]float64{"a": 30, "b": 10})
		r.wantPlanned("east is nearer than b", "a", "a 42.9 site:east 57.1 (Cost)")
		r.wantCondition("unknown zones", ConditionParameters, "")
	})
}
