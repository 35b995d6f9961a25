package build

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcsv1beta1 "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/delta"
	"github.com/proxima-mesh/proxima/internal/sidecar/wire"
)

// nameSession is a supervisor that follows names, and what it was sent.
type nameSession struct {
	t *testing.T
	s *delta.Layered
	c *Connection
	// names that it has, and how many resources the last look has brought.
	has  map[string]wire.HostName
	news int
}

func newNameSession(t *testing.T, c *Connection) *nameSession {
	t.Helper()
	n := &nameSession{t: t, s: delta.NewLayered(c.Config), c: c, has: map[string]wire.HostName{}}
	if err := n.s.Step(delta.Request{Type: wire.Names, Subscribe: []string{wire.Wildcard, wire.NamesDomain}}); err != nil {
		t.Fatal(err)
	}
	return n
}

// look for what is new. It is late enough for removals.
func (n *nameSession) look() {
	n.t.Helper()
	n.news = 0
	now := time.Unix(1000, 0)
	for range 2 {
		for f, _ := n.s.Next(now); f != nil; f, _ = n.s.Next(now) {
			r, err := wire.ParseResponse(f.Data)
			if err != nil {
				n.t.Fatal(err)
			}
			for _, one := range r.Resources {
				body, err := one.Body()
				if err != nil {
					n.t.Fatal(err)
				}
				if n.has[one.Name], err = wire.ParseHostName(body); err != nil {
					n.t.Fatal(err)
				}
				n.news++
			}
			for _, name := range r.Removed {
				delete(n.has, name)
				n.news++
			}
			if err := n.s.Step(delta.Request{Type: wire.Names, Nonce: r.Nonce}); err != nil {
				n.t.Fatal(err)
			}
		}
		now = now.Add(drainTime + time.Second)
	}
}

// TestNames: those of a mesh are there while a supervisor follows them, and a change costs what it changes.
func TestNames(t *testing.T) {
	headless := testService("db", corev1.ClusterIPNone)
	imported := testService("derived-1", "10.96.0.3")
	imported.Labels = map[string]string{mcsv1beta1.LabelServiceName: "far"}
	alias := testService("alias", "")
	alias.Spec.Type, alias.Spec.ExternalName = corev1.ServiceTypeExternalName, "www.example.org"
	foreign := testService("hidden", "10.96.0.9")
	foreign.Namespace = "blue"
	w := newWorld(t,
		testService("web", "10.96.0.1"), headless, imported, alias, foreign, testSlice("db", "10.0.0.9"), testDataplane("a", "10.0.0.1", nil),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "blue", Labels: map[string]string{meshv1alpha1.LabelMesh: "blue"}}},
		&meshv1alpha1.VirtualIP{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: meshv1alpha1.VirtualIPSpec{
			Mesh: "default", Hostname: "web_shop_svc_80", Addresses: []string{"240.0.0.1"}, Namespace: "shop", Service: "web", Port: 80,
		}})
	c := w.connect("a", Sidecar)
	if n := len(w.builder.names["default"].layer.units); n > 0 {
		t.Errorf("%d names are kept before anybody follows them", n)
	}
	n := newNameSession(t, c)
	n.look()
	addr := func(all ...string) (out []netip.Addr) {
		for _, a := range all {
			out = append(out, netip.MustParseAddr(a))
		}
		return out
	}
	want := map[string]wire.HostName{
		wire.NamesDomain: {Names: []string{"cluster.local"}},
		"shop/web":       {Names: []string{"web.shop.svc"}, Addresses: addr("10.96.0.1"), Ports: []wire.PortBelow{{Label: "_http._tcp", Number: 80}}},
		"shop/db": {
			Names: []string{"db.shop.svc"}, Addresses: addr("10.0.0.9"), Headless: true, Hosts: []wire.HostBelow{{Name: "10-0-0-9", Addresses: addr("10.0.0.9")}},
			Ports: []wire.PortBelow{{Label: "_http._tcp", Number: 8080, Host: "10-0-0-9"}},
		},
		"shop/derived-1": {
			Names: []string{"derived-1.shop.svc", "far.shop.svc.clusterset.local."}, Addresses: addr("10.96.0.3"), Ports: []wire.PortBelow{{Label: "_http._tcp", Number: 80}},
		},
		"shop/alias":           {Names: []string{"alias.shop.svc"}, Alias: "www.example.org"},
		"web_shop_svc_80.mesh": {Names: []string{"web_shop_svc_80.mesh."}, Addresses: addr("240.0.0.1")},
	}
	same := cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
	check := func(what string, news int) {
		t.Helper()
		n.look()
		if diff := cmp.Diff(want, n.has, same); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
		if n.news != news {
			t.Errorf("%s: %d resources were sent, want %d", what, n.news, news)
		}
	}
	check("at the start", 0)

	w.seed(testService("new", "10.96.0.4"))
	want["shop/new"] = wire.HostName{Names: []string{"new.shop.svc"}, Addresses: addr("10.96.0.4"), Ports: []wire.PortBelow{{Label: "_http._tcp", Number: 80}}}
	check("another Service", 1)
	w.seed(testSlice("db", "10.0.0.10"))
	db := want["shop/db"]
	db.Addresses, db.Hosts = addr("10.0.0.10"), []wire.HostBelow{{Name: "10-0-0-10", Addresses: addr("10.0.0.10")}}
	db.Ports = []wire.PortBelow{{Label: "_http._tcp", Number: 8080, Host: "10-0-0-10"}}
	want["shop/db"] = db
	check("another endpoint of a headless Service", 1)
	w.seed(testSlice("web", "10.0.0.11"))
	check("another endpoint of a Service with an address", 0)

	n.s.Close()
	c.Close(nil)
	l := w.builder.names["default"].layer
	if kept := slices.Collect(func(yield func(string) bool) {
		for ref := range l.units {
			if !yield(ref.Name) {
				return
			}
		}
	}); len(kept) > 0 {
		t.Errorf("kept after nobody follows: %v", kept)
	}
}
