package sites_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/sites"
)

var pay = proxy.ServiceName{Namespace: "shop", Name: "pay"}

func (w *world) external(edit func(*meshv1alpha1.ExternalServiceSpec)) *world {
	e := &meshv1alpha1.ExternalService{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "pay"}, Spec: meshv1alpha1.ExternalServiceSpec{
		Hosts: []string{"pay.example"},
		Ports: []meshv1alpha1.ExternalServicePort{{Name: "http", Port: 80, TargetPort: new(int32(443))}, {Port: 53, Protocol: "UDP"}},
	}}
	if edit != nil {
		edit(&e.Spec)
	}
	key := catalog.Key{Namespace: "shop", Name: "pay"}
	w.ExternalServices = append(w.ExternalServices, catalog.Change[*meshv1alpha1.ExternalService]{Key: key, New: e})
	w.Services = append(w.Services, catalog.Change[*corev1.Service]{Key: key, New: &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: "pay", Labels: map[string]string{meshv1alpha1.LabelExternalService: "pay", meshv1alpha1.LabelMesh: "default"},
	}}})
	return w
}

func TestExternal(t *testing.T) {
	sni, err := mesh.SNI(mesh.Service{Mesh: "default", Namespace: "shop", Name: "external:pay", Port: "80"})
	if err != nil {
		t.Fatal(err)
	}
	zones := func(zones ...string) func(*meshv1alpha1.ExternalServiceSpec) {
		return func(s *meshv1alpha1.ExternalServiceSpec) { s.Zones = zones }
	}
	places := &sites.External{Places: []sites.Place{{Host: "pay.example"}}}
	ports := []sites.RemotePort{{Name: "http", Number: 80, SNI: sni, Target: 443}}
	offered := &sites.Offer{Service: pay, Mesh: "default", Ports: []sites.OfferedPort{{Name: "http", SNI: sni, Target: 443}}, External: places}
	hosts := []string{"pay.example"}
	direct := &sites.Remote{Service: pay, Mesh: "default", Ports: ports, External: places, Hosts: hosts}
	egress := &sites.Remote{Service: pay, Mesh: "default", Ports: ports, External: places, EgressOnly: true, Hosts: hosts}
	byB := &sites.Remote{Service: pay, Mesh: "default", Ports: ports, Hosts: hosts, Sites: []sites.Site{{
		Name: "b", Instances: 1, Ports: []uint16{80}, Ingresses: []sites.Gateway{{Name: "i1", Host: "10.0.0.1", Port: 10001}},
	}}}
	full := &sites.Remote{Service: pay, Mesh: "default", Ports: ports, Hosts: hosts, External: &sites.External{
		Places: []sites.Place{{Host: "192.0.2.1", Port: 8443, Weight: 3, Near: true}, {Host: "192.0.2.2"}},
		TLS: &sites.ExternalTLS{
			ServerName: "pay.example", SkipAuthority: true, MinVersion: 0x304, Names: []sites.NameMatch{{Value: "pay.", Prefix: true}}, Roots: []byte("pem"),
		},
	}}
	for name, tc := range map[string]struct {
		world  *world
		remote *sites.Remote
		offer  *sites.Offer
	}{
		"every zone":         {(&world{}).external(nil), direct, nil},
		"this zone":          {(&world{}).external(zones("a")), direct, offered},
		"another zone":       {imported().external(zones("b", "c")), byB, nil},
		"no way":             {(&world{}).external(zones("b")), nil, nil},
		"an egress":          {(&world{}).external(nil).mesh(meshv1alpha1.MeshRouting{ZoneEgress: new(true)}), egress, nil},
		"locality is no use": {(&world{}).external(nil).mesh(meshv1alpha1.MeshRouting{LocalityAware: new(bool)}), direct, nil},
		"UDP alone":          {(&world{}).external(func(s *meshv1alpha1.ExternalServiceSpec) { s.Ports = s.Ports[1:] }), nil, nil},
		"addresses and TLS": {(&world{}).external(func(s *meshv1alpha1.ExternalServiceSpec) {
			s.Addresses = []meshv1alpha1.ExternalServiceAddress{
				{Address: "192.0.2.1", Port: new(int32(8443)), Weight: new(int32(3)), Zone: "a"}, {Address: "192.0.2.2", Zone: "b"},
			}
			s.TLS = &meshv1alpha1.ExternalServiceTLS{
				Verification: meshv1alpha1.VerifySkipCA, MinVersion: meshv1alpha1.TLS13, CACertificates: &meshv1alpha1.DataSource{Inline: []byte("pem")},
				SubjectAltNames: []meshv1alpha1.SubjectAltNameMatch{{Type: meshv1alpha1.MatchPrefix, Value: "pay."}},
			}
		}), full, nil},
	} {
		table := sites.NewTable("a")
		changed := table.Apply(&tc.world.Delta)
		if len(changed) == 0 || changed[len(changed)-1] != pay {
			t.Errorf("%s: changed %v", name, changed)
		}
		remote, err := table.Remote(pay)
		if diff := cmp.Diff(tc.remote, remote); err != nil || diff != "" {
			t.Errorf("%s: %v %s", name, err, diff)
		}
		offer, err := table.Offer(pay)
		if diff := cmp.Diff(tc.offer, offer); err != nil || diff != "" {
			t.Errorf("%s: %v %s", name, err, diff)
		}
		if remote != nil && remote.Elsewhere().Instances["http"] == 0 {
			t.Errorf("%s: nobody uses it", name)
		}
	}
}
