package registry

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	plannerv1alpha1 "github.com/proxima-mesh/proxima/api/planner/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// shown is a listing as text: ADDRESS:PORT=WEIGHT of each instance, with a mark of those that are
// not healthy.
func shown(l *Listing) string {
	var out []string
	for i, in := range l.Instances {
		text := fmt.Sprintf("%s=%.2f", netip.AddrPortFrom(in.Address, in.Port), l.Weights[i])
		if !in.Healthy {
			text += "!"
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}

func (r *rig) shows(zone, want string) {
	r.t.Helper()
	if got := shown(r.index.Listing(Service{Namespace: "shop", Name: "orders"}, locality.Zone(zone))); got != want {
		r.t.Errorf("clients in zone %q see\n%s\nwant\n%s", zone, got, want)
	}
}

func service() *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "orders"},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.9", Ports: []corev1.ServicePort{{Name: "metrics", Port: 9090}, {Name: "http", Port: 80}}},
	}
}

func slice(zones ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: "orders-1", Labels: map[string]string{discoveryv1.LabelServiceName: "orders"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080))}, {Name: new("metrics"), Port: new(int32(9999))}},
	}
	for i, zone := range zones {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("10.2.0.%d", i+1)}, Zone: new(zone), Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
		})
	}
	return s
}

func TestIndex(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer r.stop()
		r.shows("a", "")
		s := r.open(Nacos, User{}, 0)
		r.register(s, orders(8080))
		in := orders(8081)
		in.Weight, in.Healthy = 50, false
		r.register(s, in)
		r.shows("a", "10.1.0.7:8080=1.00 10.1.0.7:8081=0.50!")
		if names := r.index.Names("shop"); len(names) != 1 || names[0].Name != "orders" {
			t.Errorf("names %v", names)
		}

		// Endpoints of Kubernetes are instances, at the port that the Service names for it.
		object := service()
		object.Annotations = map[string]string{AnnotationPort: "http"}
		r.client.Seed(object, slice("a", "b"))
		synctest.Wait()
		r.shows("a", "10.1.0.7:8080=1.00 10.1.0.7:8081=0.50! 10.2.0.1:8080=1.00 10.2.0.2:8080=1.00")

		if err := s.Deregister(t.Context(), in.Key()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		r.shows("a", "10.1.0.7:8080=1.00 10.2.0.1:8080=1.00 10.2.0.2:8080=1.00")
	})
}

// TestStatusOfEntries: what a controller writes in the status of an entry is no change for clients.
func TestStatusOfEntries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer r.stop()
		r.register(r.open(Nacos, User{}, 0), orders(8080))
		entry := &meshv1alpha1.RegistryConfig{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "e"},
			Spec:       meshv1alpha1.RegistryConfigSpec{Group: "1", DataID: "orders", Content: "{}"},
		}
		r.client.Seed(entry)
		synctest.Wait()
		told := 0
		f := r.index.Follow(Service{Namespace: "shop", Name: "orders"}, "", func() { told++ })
		defer f.Close()
		written, err := r.client.Get(t.Context(), kind.RegistryConfig, resource.KeyOf(entry))
		if err != nil {
			t.Fatal(err)
		}
		next := written.DeepCopyObject().(*meshv1alpha1.RegistryConfig)
		next.Status.MD5 = "another"
		if _, err := r.client.UpdateStatus(t.Context(), kind.RegistryConfig, next); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if told != 0 {
			t.Errorf("a status is told %d times", told)
		}
		changed := entry.DeepCopy()
		changed.Spec.Content = "{ }"
		r.client.Seed(changed)
		synctest.Wait()
		if told != 1 {
			t.Errorf("a content is told %d times", told)
		}
	})
}

// TestLocate: an address is that of the node that has it, as nodes come, change and go.
func TestLocate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer r.stop()
		core := &Core{Index: r.index}
		put := func(name, zone string, addresses ...string) {
			t.Helper()
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelTopologyZone: zone}}}
			n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "10.0.0.9"}}
			for _, a := range addresses {
				n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
			}
			r.client.Seed(n)
			synctest.Wait()
		}
		want := func(address, node, zone string) {
			t.Helper()
			if n, z := core.Locate(netip.MustParseAddr(address)); n != node || string(z) != zone {
				t.Errorf("%s is of node %q, zone %q, want %q, %q", address, n, z, node, zone)
			}
		}
		put("n2", "b", "10.0.0.1", "fd00::1")
		want("10.0.0.1", "n2", "b")
		want("::ffff:10.0.0.1", "n2", "b")
		want("fd00::1", "n2", "b")
		want("10.0.0.9", "", "") // a name is no address
		put("n1", "a", "10.0.0.1", "nonsense")
		want("10.0.0.1", "n1", "a")
		put("n1", "a", "10.0.0.2")
		want("10.0.0.1", "n2", "b")
		put("n2", "c", "10.0.0.1")
		want("10.0.0.1", "n2", "c")
		want("fd00::1", "", "")
		if err := r.client.Delete(t.Context(), kind.Node, resource.Key{Name: "n2"}, resource.Preconditions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		want("10.0.0.1", "", "")
		want("10.0.0.2", "n1", "a")
		if len(r.index.nodes) != 1 {
			t.Errorf("%v is left", r.index.nodes)
		}
	})
}

// Clients of a zone see the shares of its plan; an instance that the plan does not know yet gets
// what the others have on average.
func TestIndexPlanned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer r.stop()
		sl := slice("a", "b")
		sl.Ports = sl.Ports[:1]
		sl.Endpoints = append(sl.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{"10.1.0.7"}, Zone: new("b"), Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
			TargetRef: &corev1.ObjectReference{Kind: "Dataplane", Namespace: "shop", Name: orders(8080).Key().Name},
		})
		object := service()
		object.Annotations = map[string]string{AnnotationPort: "80"}
		r.client.Seed(object, sl, &plannerv1alpha1.TrafficPlan{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "orders"},
			Spec: plannerv1alpha1.TrafficPlanSpec{Service: "orders", Version: 1, Groups: []plannerv1alpha1.PortGroup{{
				AddressType: "IPv4", Ports: []string{"http"}, Outcome: plannerv1alpha1.OutcomePlanned, Zones: []plannerv1alpha1.SourceZone{{
					Name: "a", Reason: plannerv1alpha1.ZoneRegion,
					To: []plannerv1alpha1.ZoneShare{{Zone: "a", Share: .8}, {Zone: "b", Share: .2}},
				}, {
					Name: "b", Reason: plannerv1alpha1.ZoneRegion, To: []plannerv1alpha1.ZoneShare{{Zone: "b", Share: 1}},
				}},
			}}},
		})
		s := r.open(Nacos, User{}, 0)
		r.register(s, orders(8080))
		r.register(s, orders(8081))
		r.shows("a", "10.1.0.7:8080=0.30 10.1.0.7:8081=1.00 10.2.0.1:8080=2.40 10.2.0.2:8080=0.30")
		r.shows("c", "10.1.0.7:8080=1.00 10.1.0.7:8081=1.00 10.2.0.1:8080=1.00 10.2.0.2:8080=1.00")
	})
}

func TestPositions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer r.stop()
		name := Service{Namespace: "shop", Name: "orders"}
		changed := make(chan struct{}, 100)
		f := r.index.Follow(name, "", func() { changed <- struct{}{} })
		defer f.Close()
		all := r.index.FollowAll()
		defer all.Close()
		<-all.Ready()
		all.Take()
		var last Position
		s := r.open(Nacos, User{}, 0)
		for port := range uint16(20) {
			r.register(s, orders(8000+port))
			<-changed
			l := f.Listing()
			if l.Position <= last || len(l.Instances) != int(port)+1 {
				t.Fatalf("position %d after %d, %d instances", l.Position, last, len(l.Instances))
			}
			last = l.Position
		}
		<-all.Ready()
		if those, at := all.Take(); len(those) != 1 || those[0] != name || at != last {
			t.Errorf("changed %v at %d, want orders at %d", those, at, last)
		}
		r.client.Seed(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other"}})
		synctest.Wait()
		select {
		case <-changed:
			t.Error("told of a change that does not concern the service")
		default:
		}
	})
}

func TestNames(t *testing.T) {
	for _, c := range []struct {
		in   Service
		want string
	}{
		{Service{Name: "orders"}, "orders"},
		{Service{Name: "Orders"}, "orders-c1f0f12d"},
		{Service{Group: "g", Name: "orders"}, "orders-66e63f32"},
		{Service{Name: "com.example.Orders"}, "com-example-orders-0e55e2d4"},
		{Service{Name: "7"}, "s-7-"},
		{Service{Name: "日本"}, "s-"},
		{Service{Name: strings.Repeat("long.", 40)}, "long-long-long-"},
	} {
		got := c.in.ServiceName()
		if bad := validation.IsDNS1035Label(got); len(bad) > 0 || !strings.HasPrefix(got, strings.TrimRight(c.want, "0123456789abcdef")[:2]) {
			t.Errorf("%v: %q, want like %q: %v", c.in, got, c.want, bad)
		}
		c.in.Namespace = "shop"
		in := &Instance{Service: c.in, Address: netip.MustParseAddr("::1"), Port: 1}
		if bad := validation.IsDNS1123Label(in.Key().Name); len(bad) > 0 {
			t.Errorf("%v: dataplane %q: %v", c.in, in.Key().Name, bad)
		}
		if back := ParseGrouped("shop", c.in.Grouped()); back != c.in {
			t.Errorf("%v is read as %v", c.in, back)
		}
	}
}

// Whatever an annotation contains: it is read, or refused, and what was read is written alike.
func FuzzParse(f *testing.F) {
	in := orders(8080)
	in.ID, in.Cluster, in.Detail = "orders:1", "DEFAULT", []byte(`{"hostName":"h"}`)
	d, err := in.dataplane("cp-1", "u", metav1.Now().Time)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(d.Annotations[AnnotationInstance], "10.0.0.1")
	f.Add(`{"service":"g@@a","metadata":{"a":null}}`, "::1")
	f.Fuzz(func(t *testing.T, text, address string) {
		d := d.DeepCopy()
		d.Annotations[AnnotationInstance] = text
		d.Spec.Addresses = []string{address}
		in, err := Parse(d)
		if err != nil {
			return
		}
		again, err := in.dataplane("cp-1", "u", metav1.Now().Time)
		if err != nil {
			return
		}
		back, err := Parse(again)
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		if back.Service != in.Service || back.Key() != in.Key() || back.Weight != in.Weight {
			t.Errorf("%+v is read as %+v", in, back)
		}
	})
}

// What is kept with a listing is bounded, whatever clients ask for.
func TestMemo(t *testing.T) {
	l := &Listing{}
	made := 0
	for range 2 {
		for key := range 2 * maxMemos {
			got, err := l.Memo(key, func() (any, error) { made++; return key, nil })
			if err != nil || got != key {
				t.Fatalf("memo %d: %v, %v", key, got, err)
			}
		}
	}
	if made != 3*maxMemos || len(l.memos) != maxMemos {
		t.Errorf("made %d, kept %d, want %d and %d", made, len(l.memos), 3*maxMemos, maxMemos)
	}
}
