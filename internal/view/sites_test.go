package view

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcsv1beta1 "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/delta"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/sites"
	"github.com/proxima-mesh/proxima/internal/view/viewtest"
	"github.com/proxima-mesh/proxima/internal/view/wire"
)

// offeredElsewhere is a Service that is imported from site b, with what b exports; and an
// ingress of b.
func offeredElsewhere() (*catalog.Delta, *meshv1alpha1.ZoneIngress) {
	service := viewtest.Service("derived", "10.0.0.1")
	service.Labels = map[string]string{mcsv1beta1.LabelServiceName: "web"}
	labels := map[string]string{meshv1alpha1.LabelZone: "b", meshv1alpha1.LabelDisplayName: "web"}
	export := &mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web-x", Labels: labels}}
	export.Status.Available = &mcsv1beta1.AvailableService{
		Mesh: "default", Type: mcsv1beta1.ClusterSetIP, Instances: 1, Ports: []mcsv1beta1.ServicePort{{Port: 80}},
	}
	d := viewtest.Delta(1, service)
	d.ServiceExports = []catalog.Change[*mcsv1beta1.ServiceExport]{{Key: catalog.Key{Namespace: "ns", Name: "web-x"}, New: export}}
	return d, &meshv1alpha1.ZoneIngress{
		ObjectMeta: metav1.ObjectMeta{Name: "i-x", Labels: map[string]string{meshv1alpha1.LabelZone: "b"}},
		Spec:       meshv1alpha1.ZoneGatewaySpec{Address: "10.1.0.1", Port: 10001},
	}
}

// TestOtherSitesAreInViews: what another site exports is in every view while its ingress
// is known, and goes with it.
func TestOtherSitesAreInViews(t *testing.T) {
	d, ingress := offeredElsewhere()
	b := NewBuilder(BuilderConfig{Site: "a"})
	replace(t, b, d)
	scope, err := b.Scope("")
	if err != nil {
		t.Fatal(err)
	}
	s := delta.NewSession(scope)
	if err := s.Step(delta.Request{Type: wire.RemoteType}); err != nil {
		t.Fatal(err)
	}
	expect(t, s) // without an ingress: nothing
	d = viewtest.Delta(2)
	d.ZoneIngresses = []catalog.Change[*meshv1alpha1.ZoneIngress]{{Key: catalog.Key{Name: "i-x"}, New: ingress}}
	apply(t, b, d)
	expect(t, s, "ns/derived")
	d = viewtest.Delta(3)
	d.ZoneIngresses = []catalog.Change[*meshv1alpha1.ZoneIngress]{{Key: catalog.Key{Name: "i-x"}}}
	apply(t, b, d)
	expect(t, s, "-ns/derived")
}

// TestPlansOfOtherSites: each zone's view has its own plan for other sites, and changes with
// it.
func TestPlansOfOtherSites(t *testing.T) {
	d, ingress := offeredElsewhere()
	away := map[locality.Zone]uint32{"a1": 2}
	b := NewBuilder(BuilderConfig{Site: "a", Split: func(zone locality.Zone, of catalog.Key, _ string) *sites.Split {
		if away[zone] == 0 || of.Name != "derived" {
			return nil
		}
		return &sites.Split{Here: 1, Sites: map[string]uint32{"b": away[zone]}}
	}})
	d.ZoneIngresses = []catalog.Change[*meshv1alpha1.ZoneIngress]{{Key: catalog.Key{Name: "i-x"}, New: ingress}}
	replace(t, b, d)
	part := func(zone locality.Zone) uint32 {
		t.Helper()
		b.mu.Lock()
		defer b.mu.Unlock()
		r, err := wire.DecodeRemote("ns/derived", b.body(zone, change{wire.RemoteType, "ns/derived"}))
		if err != nil {
			t.Fatal(err)
		}
		if r.Ports[0].Split == nil {
			return 0
		}
		return r.Ports[0].Split.Sites["b"]
	}
	if a1, a2 := part("a1"), part("a2"); a1 != 2 || a2 != 0 {
		t.Errorf("parts of site b: %d in the view of a1, %d in that of a2", a1, a2)
	}
	scope, err := b.Scope("a1")
	if err != nil {
		t.Fatal(err)
	}
	s := delta.NewSession(scope)
	if err := s.Step(delta.Request{Type: wire.RemoteType}); err != nil {
		t.Fatal(err)
	}
	expect(t, s, "ns/derived")
	away["a1"] = 3
	if err := b.Apply(viewtest.Delta(1), map[catalog.Key]struct{}{{Namespace: "ns", Name: "derived"}: {}}); err != nil {
		t.Fatal(err)
	}
	expect(t, s, "ns/derived")
	if got := part("a1"); got != 3 {
		t.Errorf("part of site b under another plan: %d", got)
	}
}
