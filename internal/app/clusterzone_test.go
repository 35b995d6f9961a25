package app

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/dns/records"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/node"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	sitetable "github.com/proxima-mesh/proxima/internal/sites"
	"github.com/proxima-mesh/proxima/internal/store/memory"
)

// TestReplicasOfAZone: of two replicas in the cluster of a zone one connects to global, the other one
// goes on where it ended, and both sign by the same authority.
func TestReplicasOfAZone(t *testing.T) {
	global := startPlane(t, planeConfig(t, RoleGlobal), memory.New(memory.Options{}))
	global.create(kind.Zone, &meshv1alpha1.Zone{ObjectMeta: metav1.ObjectMeta{Name: "east"}})
	global.create(kind.Mesh, meshWithMTLS("shop"))
	token, _, err := global.global.storage.tokens.Create(t.Context(), identity.Zone, "east", 0, "test")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token.Reveal()), 0o600); err != nil {
		t.Fatal(err)
	}
	c := startCluster(t)
	start := func(name string) *replica {
		return c.startReplicaOf(name, ControlPlaneConfig{
			Preset: PresetZone, Role: RoleZone, Zone: "east", Global: global.global.api.address.String(), ZoneTokenFile: file,
		})
	}
	a, b := start("a"), start("b")
	connected := func(r *replica) bool {
		s, err := r.p.zone.link.State(t.Context())
		return err == nil && s.Connected && !s.Elsewhere
	}
	has := func(mesh string) bool {
		_, err := c.client.Get(t.Context(), kind.Mesh, resource.Key{Name: mesh})
		return err == nil
	}
	eventually(t, "one of them is connected", func() bool { return connected(a) != connected(b) })
	eventually(t, "the Mesh of global", func() bool { return has("shop") })

	issuer := func(r *replica) string {
		i, ok := r.p.meshes.identities.authorities.Issuer("shop")
		if !ok {
			return ""
		}
		return i.ID
	}
	eventually(t, "both sign by the same authority", func() bool { return issuer(a) != "" && issuer(a) == issuer(b) })

	leader, other := a, b
	if connected(b) {
		leader, other = b, a
	}
	leader.stop()
	eventually(t, "the other one is connected", func() bool { return connected(other) })
	global.create(kind.Mesh, namedMesh("late"))
	eventually(t, "a Mesh of after", func() bool { return has("late") })
	if !has("shop") || issuer(other) == "" {
		t.Error("the other replica has lost what there was")
	}
}

// TestWithSites: an agent that follows the API of its cluster keeps what the control plane alone
// knows, and takes all else from the API.
func TestWithSites(t *testing.T) {
	of := func(from string) node.Update {
		name := proxy.ServiceName{Namespace: "shop", Name: from}
		return node.Update{
			Update: proxy.Update{
				Reset: true, Services: map[proxy.ServiceName]*proxy.Service{name: {}}, Slices: map[proxy.SliceName]*proxy.Slice{},
				Elsewhere: map[proxy.ServiceName]*proxy.Elsewhere{name: {}}, VirtualIPs: map[proxy.ServiceName]*proxy.VirtualIP{name: {}},
				Meshes: map[string]*proxy.Mesh{from: {}}, Workloads: map[proxy.ServiceName]*proxy.Workload{name: {}},
				Suspects: map[string]bool{from: true},
			},
			Names: map[proxy.ServiceName]*records.Name{name: {}}, Remotes: map[proxy.ServiceName]*sitetable.Remote{name: {}},
		}
	}
	want, known := of("api"), of("plane")
	want.Remotes, want.Elsewhere, want.VirtualIPs, want.Meshes, want.Workloads = known.Remotes, known.Elsewhere, known.VirtualIPs, known.Meshes, known.Workloads
	if got := withSites(of("api"), of("plane")); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	// A change has what has changed alone.
	change := of("api")
	change.Reset, change.Remotes, change.Elsewhere, change.VirtualIPs, change.Meshes, change.Workloads = false, nil, nil, nil, nil, nil
	if got := withSites(change, of("plane")); !reflect.DeepEqual(got, change) {
		t.Errorf("a change became %+v", got)
	}
}

// TestLastRoutings: without a control plane Services keep the routes and policies that were known last, also when
// they change.
func TestLastRoutings(t *testing.T) {
	name := func(n string) proxy.ServiceName { return proxy.ServiceName{Namespace: "shop", Name: n} }
	routing := map[string]*proxy.Routing{"http": {Route: "shop/split", Backends: []proxy.RouteBackend{{Service: name("v2"), Port: 80, Weight: 1}}}}
	last := routingsOf(node.Update{Update: proxy.Update{Services: map[proxy.ServiceName]*proxy.Service{
		name("web"): {Name: name("web"), Routing: routing}, name("gone"): {Name: name("gone"), Routing: routing}, name("plain"): {Name: name("plain")},
	}}})
	of := func() map[proxy.ServiceName]*proxy.Service {
		return map[proxy.ServiceName]*proxy.Service{name("web"): {Name: name("web"), InternalLocal: true}, name("gone"): nil, name("plain"): {Name: name("plain")}}
	}
	u := node.Update{Update: proxy.Update{Services: of()}}
	sent := u.Services[name("web")]
	last.addTo(&u)
	want := of()
	want[name("web")].Routing = routing
	if !reflect.DeepEqual(u.Services, want) {
		t.Errorf("%+v, want %+v", u.Services, want)
	}
	if sent.Routing != nil {
		t.Error("an object of the feed was changed")
	}
}
