package sites_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcsv1beta1 "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/sites"
)

var derived, web = proxy.ServiceName{Namespace: "shop", Name: "derived-web"}, proxy.ServiceName{Namespace: "shop", Name: "web"}

// world is what a site a knows: Service shop/web, exported here and in others.
type world struct{ catalog.Delta }

func (w *world) service(name string, labels, annotations map[string]string, ports ...int32) *world {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: labels, Annotations: annotations}}
	for i, p := range ports {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: []string{"http", "admin"}[i], Port: p, Protocol: corev1.ProtocolTCP})
	}
	s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP})
	w.Services = append(w.Services, catalog.Change[*corev1.Service]{Key: catalog.Key{Namespace: "shop", Name: name}, New: s})
	return w
}

func copied(zone, name string) map[string]string {
	if zone == "" {
		return nil
	}
	return map[string]string{
		meshv1alpha1.LabelOrigin: meshv1alpha1.OriginZone, meshv1alpha1.LabelZone: zone, meshv1alpha1.LabelDisplayName: name,
	}
}

func (w *world) export(zone string, edit func(*mcsv1beta1.AvailableService)) *world {
	name := "web"
	if zone != "" {
		name += "-of-" + zone
	}
	a := &mcsv1beta1.AvailableService{
		Mesh: "default", Type: mcsv1beta1.ClusterSetIP, Instances: 2, ExportTime: metav1.NewTime(time.Unix(100, 0)),
		Ports: []mcsv1beta1.ServicePort{{Port: 80}, {Port: 53, Protocol: corev1.ProtocolUDP}},
	}
	if edit != nil {
		edit(a)
	}
	e := &mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: copied(zone, "web")}}
	e.Status.Available = a
	w.ServiceExports = append(w.ServiceExports, catalog.Change[*mcsv1beta1.ServiceExport]{Key: catalog.Key{Namespace: "shop", Name: name}, New: e})
	return w
}

func (w *world) ingress(zone, name string, spec meshv1alpha1.ZoneGatewaySpec) *world {
	i := &meshv1alpha1.ZoneIngress{ObjectMeta: metav1.ObjectMeta{Name: name + zone, Labels: copied(zone, name)}, Spec: spec}
	w.ZoneIngresses = append(w.ZoneIngresses, catalog.Change[*meshv1alpha1.ZoneIngress]{Key: catalog.Key{Name: name + zone}, New: i})
	return w
}

func (w *world) mesh(routing meshv1alpha1.MeshRouting) *world {
	m := &meshv1alpha1.Mesh{ObjectMeta: metav1.ObjectMeta{Name: "default"}, Spec: meshv1alpha1.MeshSpec{Routing: &routing}}
	w.Meshes = append(w.Meshes, catalog.Change[*meshv1alpha1.Mesh]{Key: catalog.Key{Name: "default"}, New: m})
	return w
}

func imported() *world {
	return (&world{}).service("derived-web", map[string]string{mcsv1beta1.LabelServiceName: "web"}, nil, 80, 81).
		ingress("b", "i1", meshv1alpha1.ZoneGatewaySpec{Address: "10.0.0.1", Port: 10001})
}

func sni(t *testing.T, port string) string {
	t.Helper()
	s, err := mesh.SNI(mesh.Service{Mesh: "default", Namespace: "shop", Name: "web", Port: port})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestRemote(t *testing.T) {
	ingress := []sites.Gateway{{Name: "i1", Host: "10.0.0.1", Port: 10001}}
	http := sites.RemotePort{Name: "http", Number: 80, SNI: sni(t, "80")}
	want := func(edit func(*sites.Remote)) *sites.Remote {
		r := &sites.Remote{Service: derived, Mesh: "default", Ports: []sites.RemotePort{http},
			Sites: []sites.Site{{Name: "b", Instances: 2, Ports: []uint16{80}, Ingresses: ingress}}}
		if edit != nil {
			edit(r)
		}
		return r
	}
	for name, tc := range map[string]struct {
		world *world
		want  *sites.Remote
	}{
		"another site":           {imported().export("b", nil), want(nil)},
		"also here":              {imported().export("", nil).export("b", nil), want(nil)},
		"only here":              {imported().export("", nil), nil},
		"no derived Service":     {(&world{}).service("web", nil, nil, 80).export("b", nil), nil},
		"a site without ingress": {imported().export("c", nil), nil},
		"no instance":            {imported().export("b", func(a *mcsv1beta1.AvailableService) { a.Instances = 0 }), nil},
		"for others":             {imported().export("b", func(a *mcsv1beta1.AvailableService) { a.ToZones = []string{"c"} }), nil},
		"for this site":          {imported().export("b", func(a *mcsv1beta1.AvailableService) { a.ToZones = []string{"c", "a"} }), want(nil)},
		"headless":               {imported().export("b", func(a *mcsv1beta1.AvailableService) { a.Type = mcsv1beta1.Headless }), nil},
		"nothing available":      {imported().export("b", func(a *mcsv1beta1.AvailableService) { a.Ports = nil }), nil},
		"the oldest decides about the mesh": {imported().export("b", nil).export("", func(a *mcsv1beta1.AvailableService) {
			a.Mesh, a.ExportTime = "other", metav1.NewTime(time.Unix(50, 0))
		}), nil},
		"a younger one does not": {imported().export("b", nil).export("", func(a *mcsv1beta1.AvailableService) {
			a.Mesh, a.ExportTime = "other", metav1.NewTime(time.Unix(150, 0))
		}), want(nil)},
		"another port in each site": {
			imported().export("b", nil).ingress("c", "i2", meshv1alpha1.ZoneGatewaySpec{Address: "10.0.0.2", Port: 1}).
				export("c", func(a *mcsv1beta1.AvailableService) { a.Ports, a.Instances = []mcsv1beta1.ServicePort{{Port: 81}}, 5 }),
			want(func(r *sites.Remote) {
				r.Ports = append(r.Ports, sites.RemotePort{Name: "admin", Number: 81, SNI: sni(t, "81")})
				r.Sites = append(r.Sites, sites.Site{Name: "c", Instances: 5, Ports: []uint16{81},
					Ingresses: []sites.Gateway{{Name: "i2", Host: "10.0.0.2", Port: 1}}})
			}),
		},
		"ingresses behind one address": {
			(&world{}).service("derived-web", map[string]string{mcsv1beta1.LabelServiceName: "web"}, nil, 80, 81).export("b", nil).
				ingress("b", "i1", meshv1alpha1.ZoneGatewaySpec{Address: "10.0.0.1", Port: 10001, AdvertisedAddress: "b.example", AdvertisedPort: 443}).
				ingress("b", "i2", meshv1alpha1.ZoneGatewaySpec{Address: "10.0.0.2", Port: 10001, AdvertisedAddress: "b.example", AdvertisedPort: 443}).
				ingress("b", "i3", meshv1alpha1.ZoneGatewaySpec{Address: "10.0.0.3", Port: 10001}).
				ingress("", "own", meshv1alpha1.ZoneGatewaySpec{Address: "10.0.0.4", Port: 10001}),
			want(func(r *sites.Remote) {
				r.Sites[0].Ingresses = []sites.Gateway{{Name: "i1", Host: "b.example", Port: 443}, {Name: "i3", Host: "10.0.0.3", Port: 10001}}
			}),
		},
		"locality off": {imported().export("b", nil).mesh(meshv1alpha1.MeshRouting{LocalityAware: new(bool)}),
			want(func(r *sites.Remote) { r.Spread = true })},
		"egress only": {imported().export("b", nil).mesh(meshv1alpha1.MeshRouting{ZoneEgress: new(true)}),
			want(func(r *sites.Remote) { r.EgressOnly = true })},
	} {
		table := sites.NewTable("a")
		table.Apply(&tc.world.Delta)
		got, err := table.Remote(derived)
		if diff := cmp.Diff(tc.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v %s", name, err, diff)
		}
	}
}

func TestOffer(t *testing.T) {
	offered := func(w *world, annotations map[string]string) *world {
		return w.service("web", nil, annotations, 80, 81)
	}
	want := &sites.Offer{Service: web, Mesh: "default", Ports: []sites.OfferedPort{{Name: "http", SNI: sni(t, "80")}}}
	limited := *want
	limited.ToSites = []string{"b", "c"}
	proxied := *want
	proxied.Ports = []sites.OfferedPort{{Name: "http", SNI: sni(t, "80"), ProxyProtocol: true}}
	for name, tc := range map[string]struct {
		world *world
		want  *sites.Offer
	}{
		"exported":      {offered(&world{}, nil).export("", nil), want},
		"elsewhere":     {offered(&world{}, nil).export("b", nil), nil},
		"no Service":    {(&world{}).export("", nil), nil},
		"to some sites": {offered(&world{}, nil).export("", func(a *mcsv1beta1.AvailableService) { a.ToZones = []string{"c", "b"} }), &limited},
		"PROXY":         {offered(&world{}, map[string]string{meshv1alpha1.AnnotationProxyProtocol: "v2"}).export("", nil), &proxied},
	} {
		table := sites.NewTable("a")
		table.Apply(&tc.world.Delta)
		got, err := table.Offer(web)
		if diff := cmp.Diff(tc.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v %s", name, err, diff)
		}
	}
}

// TestApplyNamesWhatChanged: every change of an object names the Services it concerns.
func TestApplyNamesWhatChanged(t *testing.T) {
	table := sites.NewTable("a")
	table.Apply(&imported().service("web", nil, nil, 80).export("b", nil).Delta)
	gone := func(d *world) *world {
		for i := range d.ServiceExports {
			d.ServiceExports[i].New = nil
		}
		for i := range d.Services {
			d.Services[i].New = nil
		}
		return d
	}
	for name, tc := range map[string]struct {
		world *world
		want  []proxy.ServiceName
	}{
		"an ingress":     {(&world{}).ingress("c", "i", meshv1alpha1.ZoneGatewaySpec{Address: "10.0.0.9", Port: 1}), []proxy.ServiceName{derived}},
		"a mesh":         {(&world{}).mesh(meshv1alpha1.MeshRouting{}), []proxy.ServiceName{derived}},
		"its Service":    {(&world{}).service("web", nil, nil, 80, 81), []proxy.ServiceName{web}},
		"an export gone": {gone((&world{}).export("b", nil)), []proxy.ServiceName{derived, web}},
		"nothing of it":  {(&world{}).service("other", nil, nil, 80), nil},
	} {
		if diff := cmp.Diff(tc.want, table.Apply(&tc.world.Delta)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		table = sites.NewTable("a")
		table.Apply(&imported().service("web", nil, nil, 80).export("b", nil).Delta)
	}
	table.Apply(&gone((&world{}).service("derived-web", nil, nil)).Delta)
	if r, err := table.Remote(derived); r != nil || err != nil {
		t.Errorf("the Service is gone: %v %v", r, err)
	}
}

// TestLeaving: connections that leave go by the plan, and by instances where the plan sends
// none to the sites that there are.
func TestLeaving(t *testing.T) {
	port := sites.RemotePort{Name: "http", Number: 80}
	r := &sites.Remote{Ports: []sites.RemotePort{port}, Sites: []sites.Site{
		{Name: "b", Instances: 2, Ports: []uint16{80}}, {Name: "c", Instances: 5, Ports: []uint16{80}}, {Name: "d", Instances: 9, Ports: []uint16{81}},
	}}
	for what, c := range map[string]struct {
		split *sites.Split
		want  []uint32
		away  map[string]proxy.Split
	}{
		"no plan":        {nil, []uint32{2, 5}, nil},
		"a plan":         {&sites.Split{Here: 6, Sites: map[string]uint32{"c": 4, "x": 7}}, []uint32{0, 4}, map[string]proxy.Split{"http": {Here: 6, Away: 4}}},
		"of other sites": {&sites.Split{Here: 6, Sites: map[string]uint32{"x": 7}}, []uint32{2, 5}, nil},
	} {
		planned := r.WithSplits(func(string) *sites.Split { return c.split })
		if (planned == r) != (c.split == nil) {
			t.Errorf("%s: a copy: %v", what, planned != r)
		}
		var got []uint32
		for _, s := range planned.Leaving(planned.Ports[0]) {
			got = append(got, s.Weight)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
		if diff := cmp.Diff(c.away, planned.Elsewhere().Splits); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
	}
}
