package virtualip

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/addresspool"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/dns/meshname"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
	"github.com/proxima-mesh/proxima/internal/servicetag"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var ranges = []netip.Prefix{netip.MustParsePrefix("240.0.0.0/4"), netip.MustParsePrefix("fd00:240::/64")}

// rig is the controller at work on a client, inside a bubble of fake time.
type rig struct {
	t      *testing.T
	client *resourcetest.Client
	stop   func()
}

func newRig(t *testing.T, objects ...resource.Object) *rig {
	r := &rig{t: t, client: resourcetest.New(kind.All()...)}
	r.client.Seed(objects...)
	r.lead()
	return r
}

// lead begins the term of a leader; the one before has ended.
func (r *rig) lead() {
	tables := catalog.New(catalog.Config{Client: r.client, Descriptors: kind.All()})
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan struct{}, 2)
	for _, run := range []func(context.Context) error{
		tables.Run, New(Config{Client: r.client, Catalog: tables, Ranges: ranges}).Run,
	} {
		go func() { _ = run(ctx); done <- struct{}{} }()
	}
	r.stop = func() { cancel(); <-done; <-done }
	r.settle()
}

func (r *rig) settle() { time.Sleep(2 * time.Second); synctest.Wait() }

func (r *rig) seed(objects ...resource.Object) {
	r.client.Seed(objects...)
	r.settle()
}

func (r *rig) remove(d *resource.Descriptor, key resource.Key) {
	r.t.Helper()
	if err := r.client.Delete(r.t.Context(), d, key, resource.Preconditions{}); err != nil {
		r.t.Fatal(err)
	}
	r.settle()
}

func (r *rig) vip(mesh, hostname string) *meshv1alpha1.VirtualIP {
	r.t.Helper()
	o, err := r.client.Get(r.t.Context(), kind.VirtualIP, resource.Key{Name: meshname.ObjectName(mesh, hostname)})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return o.(*meshv1alpha1.VirtualIP)
}

func namespace(name, mesh string) *corev1.Namespace {
	n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if mesh != "" {
		n.Labels = map[string]string{meshv1alpha1.LabelMesh: mesh}
	}
	return n
}

func service(name string, ips []string, ports ...int32) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: corev1.ServiceSpec{ClusterIPs: ips}}
	for _, p := range ports {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", p), Port: p})
	}
	return s
}

var web = resource.Key{Namespace: "shop", Name: "web"}

// derived is the Service with the virtual IP of the import of shop/web.
func derived(ports ...int32) *corev1.Service {
	s := service(mcs.DerivedServiceName("shop", "web"), []string{"10.96.0.9"}, ports...)
	s.Labels = map[string]string{mcs.LabelServiceName: "web"}
	return s
}

// TestClaimsOfTags: the Service of a tag has one name for all its ports, which leads to the
// workloads of all zones where others export it. The port of a Service of the same name goes
// first.
func TestClaimsOfTags(t *testing.T) {
	in := servicetag.Namespace("default")
	key := resource.Key{Namespace: in, Name: "backend"}
	tag := service("backend", []string{"10.96.0.3"}, 80, 8080)
	tag.Namespace, tag.Labels = in, map[string]string{meshv1alpha1.LabelService: "backend"}
	imported := tag.DeepCopy()
	imported.Name = mcs.DerivedServiceName(in, "backend")
	for name, tc := range map[string]struct{ service, derived *corev1.Service }{
		"here": {tag, nil}, "everywhere": {tag, imported}, "elsewhere": {nil, imported},
	} {
		want := tag
		if tc.derived != nil {
			want = imported
		}
		got := Claims(key, tc.service, tc.derived, namespace(in, ""))
		if diff := cmp.Diff([]Claim{{Mesh: "default", Hostname: "backend", Service: resource.KeyOf(want), V4: true}}, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	of := &Claim{Service: key}
	port := &Claim{Service: resource.Key{Namespace: "shop", Name: "web"}, Port: 80}
	if of.before(port) || !port.before(of) {
		t.Error("a tag goes before the port of a Service")
	}
}

func TestClaims(t *testing.T) {
	claim := func(hostname, service string, port int32, v6 bool) Claim {
		return Claim{Mesh: "default", Hostname: hostname, Service: resource.Key{Namespace: "shop", Name: service}, Port: port, V4: true, V6: v6}
	}
	other := service("web", []string{"10.96.0.7"}, 80)
	other.Labels = map[string]string{labelProxyName: "another"}
	imported := derived().Name
	for name, tc := range map[string]struct {
		service, derived *corev1.Service
		namespace        *corev1.Namespace
		want             []Claim
	}{
		"nothing":            {nil, nil, namespace("shop", ""), nil},
		"no namespace":       {service("web", []string{"10.96.0.7"}, 80), nil, nil, nil},
		"two ports":          {service("web", []string{"10.96.0.7", "fd00::7"}, 80, 8080), nil, namespace("shop", ""), []Claim{claim("web_shop_svc_80", "web", 80, true), claim("web_shop_svc_8080", "web", 8080, true)}},
		"headless":           {service("web", []string{"None"}, 80), nil, namespace("shop", ""), nil},
		"another proxy's":    {other, nil, namespace("shop", ""), nil},
		"imported alone":     {nil, derived(80), namespace("shop", ""), []Claim{claim("web_shop_svc_80", imported, 80, false)}},
		"exported from here": {service("web", []string{"10.96.0.7"}, 80), derived(80), namespace("shop", ""), []Claim{claim("web_shop_svc_80", imported, 80, false)}},
		"one port of it":     {service("web", []string{"10.96.0.7"}, 80, 81), derived(80), namespace("shop", ""), []Claim{claim("web_shop_svc_80", imported, 80, false), claim("web_shop_svc_81", "web", 81, false)}},
	} {
		if diff := cmp.Diff(tc.want, Claims(web, tc.service, tc.derived, tc.namespace)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// TestNamesHaveAddresses: every port of a Service has a name with addresses of its own, of
// the Service's families, that stay when the leader or the export of the Service changes.
func TestNamesHaveAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, namespace("shop", ""), service("web", []string{"10.96.0.7", "fd00::7"}, 80, 8080), service("db", []string{"10.96.0.8"}, 5432))
		defer func() { r.stop() }()
		v := r.vip("default", "web_shop_svc_80")
		if v == nil || len(v.Spec.Addresses) != 2 || v.Spec.Service != "web" || v.Spec.Port != 80 {
			t.Fatalf("name of web: %+v", v)
		}
		for i, p := range ranges {
			if !p.Contains(netip.MustParseAddr(v.Spec.Addresses[i])) {
				t.Errorf("address %s is not in %s", v.Spec.Addresses[i], p)
			}
		}
		if db := r.vip("default", "db_shop_svc_5432"); db == nil || len(db.Spec.Addresses) != 1 {
			t.Errorf("name of db: %+v", db)
		}
		cidr, err := r.client.Get(t.Context(), kind.ServiceCIDR, resource.Key{Name: RangeName})
		if err != nil || cidr.(*networkingv1.ServiceCIDR).Labels[meshv1alpha1.LabelVirtualIPs] == "" {
			t.Errorf("range: %v %v", cidr, err)
		}
		r.stop()
		r.lead()
		r.seed(derived(80))
		after := r.vip("default", "web_shop_svc_80")
		if !slices.Equal(after.Spec.Addresses, v.Spec.Addresses) || after.Spec.Service != derived().Name {
			t.Errorf("exported: %+v, was %+v", after.Spec, v.Spec)
		}
		r.remove(kind.Service, resource.KeyOf(derived()))
		if again := r.vip("default", "web_shop_svc_80"); !cmp.Equal(again.Spec, v.Spec) {
			t.Errorf("no longer exported: %+v, was %+v", again.Spec, v.Spec)
		}
		// Another mesh of the namespace.
		r.seed(namespace("shop", "blue"))
		if blue := r.vip("blue", "web_shop_svc_80"); blue == nil {
			t.Error("no name in the mesh that the namespace is moved to")
		}
		if gone := r.vip("default", "web_shop_svc_80"); gone == nil || gone.Spec.UnusedSince == nil {
			t.Errorf("name in the mesh before: %+v", gone)
		}
	})
}

// TestAddressesAreKept: for an hour after the service has gone, over a change of leader; a
// service that comes back has them again.
func TestAddressesAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, namespace("shop", ""), service("web", []string{"10.96.0.7"}, 80))
		defer func() { r.stop() }()
		was := r.vip("default", "web_shop_svc_80").Spec.Addresses
		r.remove(kind.Service, web)
		if v := r.vip("default", "web_shop_svc_80"); v == nil || v.Spec.UnusedSince == nil {
			t.Fatalf("without a service: %+v", v)
		}
		time.Sleep(Keep / 2)
		r.stop()
		r.lead()
		r.seed(service("web", []string{"10.96.0.9"}, 80))
		if v := r.vip("default", "web_shop_svc_80"); v.Spec.UnusedSince != nil || !slices.Equal(v.Spec.Addresses, was) {
			t.Errorf("the service is back: %+v, had %v", v.Spec, was)
		}
		r.remove(kind.Service, web)
		time.Sleep(Keep - time.Minute)
		if r.vip("default", "web_shop_svc_80") == nil {
			t.Error("gone before the hour is over")
		}
		time.Sleep(2 * time.Minute)
		if v := r.vip("default", "web_shop_svc_80"); v != nil {
			t.Errorf("kept: %+v", v)
		}
	})
}

// TestAddressesAreUnique: of two objects with one address the older keeps it, and a write
// whose outcome is not known gives no address to another name.
func TestAddressesAreUnique(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		object := func(name string, at int64) *meshv1alpha1.VirtualIP {
			host := meshname.OfService("shop", name, 80)
			return &meshv1alpha1.VirtualIP{
				ObjectMeta: metav1.ObjectMeta{Name: meshname.ObjectName("default", host), CreationTimestamp: metav1.NewTime(time.Unix(at, 0))},
				Spec: meshv1alpha1.VirtualIPSpec{
					Mesh: "default", Hostname: host, Addresses: []string{"240.0.0.1"}, Namespace: "shop", Service: name, Port: 80,
				},
			}
		}
		r := newRig(t, namespace("shop", ""), object("a", 20), object("b", 10),
			service("a", []string{"10.96.0.1"}, 80), service("b", []string{"10.96.0.2"}, 80))
		defer func() { r.stop() }()
		a, b := r.vip("default", "a_shop_svc_80").Spec.Addresses, r.vip("default", "b_shop_svc_80").Spec.Addresses
		if slices.Equal(a, b) || b[0] != "240.0.0.1" {
			t.Errorf("addresses %v and %v", a, b)
		}
	})
}

func TestPool(t *testing.T) {
	small := newPool([]netip.Prefix{netip.MustParsePrefix("192.0.2.0/28")})
	seen := map[netip.Addr]bool{}
	for i := range 14 {
		a, err := small.Allocate(true, fmt.Sprint(i))
		if err != nil || seen[a] || a == netip.MustParseAddr("192.0.2.0") || a == netip.MustParseAddr("192.0.2.15") {
			t.Fatalf("address %d: %s %v", i, a, err)
		}
		seen[a] = true
	}
	if _, err := small.Allocate(true, "one more"); !errors.Is(err, addresspool.ErrFull) {
		t.Errorf("a full range: %v", err)
	}
	if _, err := small.Allocate(false, "0"); !errors.Is(err, addresspool.ErrFull) {
		t.Errorf("no range of the family: %v", err)
	}
	for text, ok := range map[string]bool{"240.0.0.0/4": true, "fd00:240::/64": true, "10.0.0.1/8": false, "10.0.0.0/30": false, "fd00::/48": false} {
		if err := CheckRange(netip.MustParsePrefix(text)); (err == nil) != ok {
			t.Errorf("%s: %v", text, err)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		p := newPool(ranges)
		owners := map[netip.Addr]string{}
		for _, name := range rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z]{1,4}`), 1, 40, rapid.ID).Draw(t, "names") {
			v4 := !strings.HasPrefix(name, "a")
			a, err := p.Allocate(v4, name)
			if err != nil || a.Is4() != v4 || owners[a] != "" {
				t.Fatalf("%s: %s %v", name, a, err)
			}
			if again, _ := p.Allocate(v4, name); again != a {
				t.Fatalf("%s: %s, then %s", name, a, again)
			}
			owners[a] = name
		}
	})
}
