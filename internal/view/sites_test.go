package view

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcsv1beta1 "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/delta"
	"github.com/proxima-mesh/proxima/internal/view/viewtest"
	"github.com/proxima-mesh/proxima/internal/view/wire"
)

// TestOtherSitesAreInViews: what another site exports is in every view while its ingress
// is known, and goes with it.
func TestOtherSitesAreInViews(t *testing.T) {
	service := viewtest.Service("derived", "10.0.0.1")
	service.Labels = map[string]string{mcsv1beta1.LabelServiceName: "web"}
	labels := map[string]string{meshv1alpha1.LabelZone: "b", meshv1alpha1.LabelDisplayName: "web"}
	export := &mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web-x", Labels: labels}}
	export.Status.Available = &mcsv1beta1.AvailableService{
		Mesh: "default", Type: mcsv1beta1.ClusterSetIP, Instances: 1, Ports: []mcsv1beta1.ServicePort{{Port: 80}},
	}
	ingress := &meshv1alpha1.ZoneIngress{
		ObjectMeta: metav1.ObjectMeta{Name: "i-x", Labels: map[string]string{meshv1alpha1.LabelZone: "b"}},
		Spec:       meshv1alpha1.ZoneGatewaySpec{Address: "10.1.0.1", Port: 10001},
	}
	b := NewBuilder(BuilderConfig{Site: "a"})
	d := viewtest.Delta(1, service)
	d.ServiceExports = []catalog.Change[*mcsv1beta1.ServiceExport]{{Key: catalog.Key{Namespace: "ns", Name: "web-x"}, New: export}}
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
