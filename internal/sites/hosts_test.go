package sites_test

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/sites"
)

// claim adds an ExternalService of a mesh, made so many seconds after the others.
func (w *world) claim(named, mesh, origin string, after int, hosts ...string) *world {
	key := catalog.Key{Namespace: "shop", Name: named}
	e := &meshv1alpha1.ExternalService{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: named, CreationTimestamp: metav1.NewTime(time.Unix(1000+int64(after), 0)),
			Labels: map[string]string{meshv1alpha1.LabelOrigin: origin},
		},
		Spec: meshv1alpha1.ExternalServiceSpec{Hosts: hosts, Ports: []meshv1alpha1.ExternalServicePort{{Port: 80}}},
	}
	w.ExternalServices = append(w.ExternalServices, catalog.Change[*meshv1alpha1.ExternalService]{Key: key, New: e})
	w.Services = append(w.Services, catalog.Change[*corev1.Service]{Key: key, New: &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: named, Labels: map[string]string{meshv1alpha1.LabelExternalService: named, meshv1alpha1.LabelMesh: mesh},
	}}})
	return w
}

// TestHosts: of those that name a host in one mesh, one has it, whatever the order in which
// they come; when it goes, the next one has.
func TestHosts(t *testing.T) {
	const global, zone = meshv1alpha1.OriginGlobal, meshv1alpha1.OriginZone
	all := func() []*world {
		return []*world{
			(&world{}).claim("old", "default", global, 1, "a.example", "b.example"),
			(&world{}).claim("young", "default", global, 2, "a.example", "c.example"),
			(&world{}).claim("own", "default", zone, 0, "a.example", "d.example"),
			(&world{}).claim("twin", "default", global, 2, "c.example"),
			(&world{}).claim("other", "retail", global, 3, "a.example"),
		}
	}
	table := sites.NewTable("z")
	check := func(when string, want map[string][]string) {
		t.Helper()
		for named, hosts := range want {
			r, err := table.Remote(proxy.ServiceName{Namespace: "shop", Name: named})
			if err != nil || r == nil || !slices.Equal(r.Hosts, hosts) {
				t.Errorf("%s: %s has %+v, %v; want %v", when, named, r, err, hosts)
			}
		}
	}
	want := map[string][]string{
		"old": {"a.example", "b.example"}, "young": nil, "own": {"d.example"}, "twin": {"c.example"}, "other": {"a.example"},
	}
	for _, order := range [][]int{{0, 1, 2, 3, 4}, {4, 3, 2, 1, 0}, {1, 2, 0, 4, 3}} {
		table = sites.NewTable("z")
		for _, i := range order {
			table.Apply(&all()[i].Delta)
		}
		check("in another order", want)
	}
	gone := all()[0]
	gone.ExternalServices[0].Old, gone.ExternalServices[0].New = gone.ExternalServices[0].New, nil
	changed := table.Apply(&gone.Delta)
	for _, named := range []string{"young", "own", "other"} {
		if !slices.Contains(changed, proxy.ServiceName{Namespace: "shop", Name: named}) {
			t.Errorf("that old is gone does not concern %s: %v", named, changed)
		}
	}
	check("without the old one", map[string][]string{"young": {"a.example"}, "own": {"d.example"}})
	unaddressed := (&world{})
	unaddressed.Services = []catalog.Change[*corev1.Service]{{Key: catalog.Key{Namespace: "shop", Name: "young"}}}
	table.Apply(&unaddressed.Delta)
	check("without an address of the young one", map[string][]string{"own": {"a.example", "d.example"}})
}
