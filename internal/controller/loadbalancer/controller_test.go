package loadbalancer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/loop"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is the controller at work on a client, inside a bubble of fake time.
type rig struct {
	*testing.T
	client *resourcetest.Client
	config Config
	stop   func()
}

func newRig(t *testing.T, objects ...resource.Object) *rig {
	r := &rig{T: t, client: resourcetest.New(kind.All()...)}
	r.config = Config{Client: r.client, Classless: true, InServiceRange: netip.MustParsePrefix("192.0.2.0/30").Contains}
	r.client.Seed(objects...)
	r.lead()
	return r
}

// lead begins the term of a leader; the one before has ended.
func (r *rig) lead() {
	config := r.config
	config.Catalog = catalog.New(catalog.Config{Client: r.client, Descriptors: kind.All()})
	ctx, cancel := context.WithCancel(r.Context())
	done := make(chan struct{}, 2)
	for _, run := range []func(context.Context) error{config.Catalog.Run, New(config).Run} {
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

func (r *rig) get(name string) *corev1.Service {
	r.Helper()
	o, err := r.client.Get(r.Context(), kind.Service, resource.Key{Namespace: "shop", Name: name})
	if err != nil {
		r.Fatal(err)
	}
	return o.(*corev1.Service)
}

func (r *rig) delete(d *resource.Descriptor, key resource.Key) {
	r.Helper()
	if err := r.client.Delete(r.Context(), d, key, resource.Preconditions{}); err != nil {
		r.Fatal(err)
	}
	r.settle()
}

// want the addresses of a Service, and the reason and a part of the message of its condition.
func (r *rig) want(what, name, addresses, reason, message string) {
	r.Helper()
	s := r.get(name)
	var got []string
	for _, in := range s.Status.LoadBalancer.Ingress {
		got = append(got, in.IP)
		if in.IPMode == nil || *in.IPMode != corev1.LoadBalancerIPModeVIP {
			r.Errorf("%s: %s has no mode VIP", what, in.IP)
		}
	}
	cond := meta.FindStatusCondition(s.Status.Conditions, ConditionAddresses)
	if cond == nil {
		cond = &metav1.Condition{}
	}
	if strings.Join(got, " ") != addresses || cond.Reason != reason || !strings.Contains(cond.Message, message) {
		r.Errorf("%s: %s has %q, %s: %s\nwant %q, %s: … %s …", what, name, strings.Join(got, " "), cond.Reason, cond.Message, addresses, reason, message)
	}
}

func (r *rig) events() int {
	r.Helper()
	list, _, err := r.client.List(r.Context(), kind.Event, resource.ListOptions{})
	if err != nil {
		r.Fatal(err)
	}
	return len(list)
}

// balancer is a Service of a class; empty: of none.
func balancer(name, class string, age int, edits ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: name, CreationTimestamp: metav1.NewTime(time.Date(2026, 1, 1, 0, 0, age, 0, time.UTC)),
			Annotations: map[string]string{},
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}
	if class != "" {
		s.Spec.LoadBalancerClass = &class
	}
	for _, edit := range edits {
		edit(s)
	}
	return s
}

func port(n int32) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.Ports[0].Port = n }
}

func dual(s *corev1.Service) {
	s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
}

func local(s *corev1.Service) {
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
}

func machine(name string, ready bool, addresses ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
	for _, a := range addresses {
		typ := corev1.NodeInternalIP
		if rest, ok := strings.CutPrefix(a, "external:"); ok {
			typ, a = corev1.NodeExternalIP, rest
		}
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: typ, Address: a})
	}
	return n
}

func endpointsOn(service string, nodes ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: service + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for i, n := range nodes {
		ready := !strings.HasSuffix(n, "!")
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("10.0.0.%d", i+1)}, NodeName: new(strings.TrimSuffix(n, "!")),
			Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		})
	}
	return s
}

func addressPool(name string, edit func(*meshv1alpha1.IPAddressPoolSpec), addresses ...string) *meshv1alpha1.IPAddressPool {
	p := &meshv1alpha1.IPAddressPool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: meshv1alpha1.IPAddressPoolSpec{Addresses: addresses}}
	if edit != nil {
		edit(&p.Spec)
	}
	return p
}

const (
	ofNode = meshv1alpha1.LoadBalancerClassNode
	ofPool = meshv1alpha1.LoadBalancerClassPool
)

func bubble(t *testing.T, f func(t *testing.T)) { t.Helper(); synctest.Test(t, f) }

func TestAddressesOfNodes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		excluded := machine("c", true, "10.1.0.3")
		excluded.Labels[corev1.LabelNodeExcludeBalancers] = ""
		drained := machine("d", true, "10.1.0.4")
		drained.Spec.Taints = []corev1.Taint{{Key: "maintenance", Effect: corev1.TaintEffectNoExecute}}
		r := newRig(t, machine("a", true, "10.1.0.1", "fd00::1"), machine("b", true, "external:203.0.113.2", "10.1.0.2"),
			excluded, drained, machine("e", false, "10.1.0.5"),
			balancer("web", ofNode, 1), balancer("both", ofNode, 2, port(81), dual), balancer("near", ofNode, 3, port(82), local),
			balancer("other", "example.com/cloud", 4))
		defer func() { r.stop() }()
		r.want("ready nodes", "web", "10.1.0.1 203.0.113.2", ReasonAssigned, "2 ready nodes")
		r.want("two families", "both", "10.1.0.1 fd00::1 203.0.113.2", ReasonAssigned, "2 ready nodes")
		r.want("no endpoint", "near", "", ReasonNoNode, "no ready node with an address of the Service's IP families has a ready endpoint")
		r.want("another provider's", "other", "", "", "")
		if n := r.events(); n != 1 {
			t.Errorf("%d events, want that of the one without an address", n)
		}

		r.seed(endpointsOn("near", "b", "a!", "e"))
		r.want("an endpoint on b", "near", "203.0.113.2", ReasonAssigned, "1 ready nodes")
		r.seed(machine("b", false, "external:203.0.113.2", "10.1.0.2"))
		r.want("b is not ready", "web", "10.1.0.1", ReasonAssigned, "1 ready nodes")
		r.want("b is not ready", "near", "", ReasonNoNode, "Local")
		r.delete(kind.Node, resource.Key{Name: "a"})
		r.want("no node is left", "web", "", ReasonNoNode, "no node is ready")
	})
}

func TestPortsOfNodesAreTakenOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, machine("a", true, "10.1.0.1"), balancer("first", ofNode, 1), balancer("second", ofNode, 2), balancer("ssh", ofNode, 3, port(22)),
			balancer("udp", ofNode, 4, func(s *corev1.Service) { s.Spec.Ports[0].Protocol = corev1.ProtocolUDP }))
		defer func() { r.stop() }()
		r.want("the older one", "first", "10.1.0.1", ReasonAssigned, "")
		r.want("the younger one", "second", "", ReasonPortInUse, "port 80/tcp of nodes is that of service shop/first")
		r.want("another protocol", "udp", "10.1.0.1", ReasonAssigned, "")
		r.want("a port of the node", "ssh", "", ReasonPortInUse, "port 22 of nodes is for SSH")
		r.delete(kind.Service, resource.Key{Namespace: "shop", Name: "first"})
		r.want("the older one has gone", "second", "10.1.0.1", ReasonAssigned, "")
	})
}

// TestInKubernetes: Services without a class are another provider's there, and nodes need more
// ports.
func TestInKubernetes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, machine("a", true, "10.1.0.1"))
		r.stop()
		r.config.Classless, r.config.Reserved = false, map[int32]string{10250: "the kubelet"}
		r.lead()
		defer func() { r.stop() }()
		none := balancer("none", ofNode, 1)
		none.Spec.LoadBalancerClass = nil
		r.seed(none, balancer("ours", ofNode, 2), balancer("kubelet", ofNode, 3, port(10250)))
		r.want("no class", "none", "", "", "")
		r.want("our class", "ours", "10.1.0.1", ReasonAssigned, "")
		r.want("a port of the kubelet", "kubelet", "", ReasonPortInUse, "port 10250 of nodes is for the kubelet")
	})
}

// TestOlderServiceTakesItsPort: a Service that comes to have addresses of nodes takes its ports
// from younger ones, which lose them.
func TestOlderServiceTakesItsPort(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, machine("a", true, "10.1.0.1"), balancer("old", "example.com/cloud", 1), balancer("young", ofNode, 2), balancer("apart", ofNode, 3, port(81)))
		defer func() { r.stop() }()
		r.want("alone", "young", "10.1.0.1", ReasonAssigned, "")
		r.seed(balancer("old", ofNode, 1))
		r.want("the older one", "old", "10.1.0.1", ReasonAssigned, "")
		r.want("the younger one", "young", "", ReasonPortInUse, "port 80/tcp of nodes is that of service shop/old")
		r.want("another port", "apart", "10.1.0.1", ReasonAssigned, "")
	})
}

// TestConcerned: a change makes work for the Services that it concerns, not for all.
func TestConcerned(t *testing.T) {
	bubble(t, func(t *testing.T) {
		pool := addressPool("main", nil, "192.0.2.0/24")
		client := resourcetest.New(kind.All()...)
		client.Seed(machine("a", true, "10.1.0.1"), pool, balancer("n1", ofNode, 1), balancer("n2", ofNode, 2, port(81)), balancer("p1", ofPool, 3), balancer("p2", ofPool, 4))
		tables := catalog.New(catalog.Config{Client: client, Descriptors: kind.All()})
		ctx, cancel := context.WithCancel(t.Context())
		sub := tables.Subscribe(catalog.AddressPools, catalog.Services, catalog.Nodes, catalog.Slices)
		defer sub.Close()
		done := make(chan struct{})
		go func() { defer close(done); _ = tables.Run(ctx) }()
		defer func() { cancel(); <-done }()
		check := func(what, want string, objects ...resource.Object) {
			t.Helper()
			client.Seed(objects...)
			d, err := sub.Next(ctx)
			if err != nil {
				t.Fatal(err)
			}
			set := map[string]bool{}
			concerned(&d, func(key resource.Key) { set[key.Name] = true })
			if got := strings.Join(slices.Sorted(maps.Keys(set)), " "); got != want {
				t.Errorf("%s: %q are concerned, want %q", what, got, want)
			}
		}
		check("the first delta", "n1 n2 p1 p2")
		pool.Status.Assigned = 77
		check("the status of a pool", "", pool)
		pool = addressPool("main", nil, "192.0.2.0/25")
		check("a pool", "p1 p2", pool)
		check("a Service with an address of a pool", "p1", balancer("p1", ofPool, 3, port(82)))
		check("a port", "n1 n2", balancer("n1", ofNode, 1, port(81)))
		check("a Service with another port", "n3", balancer("n3", ofNode, 5, port(83)))
		check("a node", "n1 n2 n3", machine("b", true, "10.1.0.2"))
	})
}

// TestAddressThatTheTablesDoNotShow: a new leader knows what the one before wrote last, and
// gives it to nobody else, though its tables do not show it yet.
func TestAddressThatTheTablesDoNotShow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		client := resourcetest.New(kind.All()...)
		client.Seed(addressPool("main", nil, "192.0.2.4/30"), balancer("web", ofPool, 1))
		tables := catalog.New(catalog.Config{Client: client, Descriptors: kind.All()})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = tables.Run(ctx) }()
		synctest.Wait()
		cancel() // the tables stay as they are
		<-done
		written, had := balancer("web", ofPool, 1), netip.MustParseAddr("192.0.2.6")
		setIngress(written, []netip.Addr{had})
		client.Seed(written)
		c := New(Config{Client: client, Catalog: tables, InServiceRange: func(netip.Addr) bool { return false }})
		if err := c.start(t.Context()); err != nil {
			t.Fatal(err)
		}
		key := resource.KeyOf(written)
		if err := c.syncService(t.Context(), key); !errors.Is(err, loop.ErrStale) {
			t.Fatalf("the tables are old, and the outcome is %v", err)
		}
		if c.owners.take(had, resource.Key{Namespace: "shop", Name: "other"}) {
			t.Error("its address is free")
		}
	})
}

func TestAddressesOfPools(t *testing.T) {
	bubble(t, func(t *testing.T) {
		named := func(pool string) func(*corev1.Service) {
			return func(s *corev1.Service) { s.Annotations[meshv1alpha1.AnnotationAddressPool] = pool }
		}
		wanting := func(a string) func(*corev1.Service) {
			return func(s *corev1.Service) { s.Spec.LoadBalancerIP = a }
		}
		r := newRig(t, balancer("web", ofPool, 1), balancer("classless", "", 2))
		defer func() { r.stop() }()
		r.want("no pool", "web", "", ReasonNoPool, "no IPAddressPool gives addresses to namespace shop: create one")
		r.want("no class", "classless", "", ReasonNoClass, "create the Service again with proxima.dev/node")

		// Of 192.0.2.0 to 192.0.2.5 the first four are in a service range.
		r.seed(addressPool("main", nil, "192.0.2.0-192.0.2.4", "192.0.2.5"))
		first := r.get("web").Status.LoadBalancer.Ingress[0].IP
		if first != "192.0.2.4" && first != "192.0.2.5" {
			t.Fatalf("address %s", first)
		}
		r.seed(balancer("second", ofPool, 2))
		r.seed(balancer("third", ofPool, 3))
		second := r.get("second").Status.LoadBalancer.Ingress
		if len(second) != 1 || second[0].IP == first {
			t.Fatalf("%v beside %s", second, first)
		}
		r.want("the pool is empty", "third", "", ReasonNoAddress, "no IPv4 address of the IPAddressPools is free")
		if p, err := r.client.Get(t.Context(), kind.IPAddressPool, resource.Key{Name: "main"}); err != nil || p.(*meshv1alpha1.IPAddressPool).Status.Assigned != 2 {
			t.Errorf("pool %+v, %v", p, err)
		}

		r.stop() // another leader keeps what there is
		r.lead()
		r.want("after a change of leaders", "web", first, ReasonAssigned, "routes to them are made by others")

		r.delete(kind.Service, resource.Key{Namespace: "shop", Name: "web"})
		r.want("an address is free again", "third", first, ReasonAssigned, "")

		r.seed(addressPool("apart", func(s *meshv1alpha1.IPAddressPoolSpec) { s.AutoAssign = new(false) }, "198.51.100.0/31", "2001:db8::/120"),
			addressPool("others", func(s *meshv1alpha1.IPAddressPoolSpec) { s.Namespaces = []string{"bank"} }, "198.51.100.9"),
			balancer("named", ofPool, 5, named("apart"), dual), balancer("unknown", ofPool, 6, named("nothing")),
			balancer("foreign", ofPool, 7, named("others")), balancer("precise", ofPool, 8, named("apart"), wanting("198.51.100.1")),
			balancer("outside", ofPool, 9, named("apart"), wanting("198.51.100.7")))
		if s := r.get("named"); len(s.Status.LoadBalancer.Ingress) != 2 {
			t.Errorf("both families: %v", s.Status.LoadBalancer.Ingress)
		}
		r.want("no such pool", "unknown", "", ReasonNoPool, `there is no IPAddressPool "nothing"`)
		r.want("a pool for others", "foreign", "", ReasonNoPool, `IPAddressPool "others" is not for namespace shop`)
		r.want("an address of no pool", "outside", "", ReasonNoAddress, "spec.loadBalancerIP 198.51.100.7 is in no IPAddressPool of the Service")
		if a := r.get("named").Status.LoadBalancer.Ingress[0].IP; a == "198.51.100.1" {
			r.want("an address that another has", "precise", "", ReasonNoAddress, "is that of another Service")
		} else {
			r.want("an address by name", "precise", "198.51.100.1", ReasonAssigned, "")
		}

		moved := r.get("second")
		had := moved.Status.LoadBalancer.Ingress[0].IP
		r.seed(balancer("fourth", ofPool, 10))
		r.want("the pool is empty again", "fourth", "", ReasonNoAddress, "no IPv4 address of the IPAddressPools is free")
		r.delete(kind.Service, resource.Key{Namespace: "shop", Name: "named"})
		r.delete(kind.Service, resource.Key{Namespace: "shop", Name: "precise"})
		moved.Annotations[meshv1alpha1.AnnotationAddressPool], moved.Spec.LoadBalancerIP = "apart", "198.51.100.1"
		r.seed(moved)
		r.want("it has moved", "second", "198.51.100.1", ReasonAssigned, "")
		r.want("which makes room", "fourth", had, ReasonAssigned, "")
		r.seed(balancer("inside", ofPool, 11, wanting("192.0.2.1")))
		r.want("an address of a service range", "inside", "", ReasonNoAddress, "is in a range of virtual IPs")

		r.delete(kind.IPAddressPool, resource.Key{Name: "main"})
		r.want("its pool has gone", "third", first, ReasonAssigned, "stays as long as the Service does")
	})
}

func TestForeignAddressesStay(t *testing.T) {
	bubble(t, func(t *testing.T) {
		filled := balancer("web", "", 1)
		filled.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.7", IPMode: new(corev1.LoadBalancerIPModeVIP)}}
		r := newRig(t, filled, addressPool("main", nil, "198.51.100.0/24"))
		defer func() { r.stop() }()
		r.want("filled by another", "web", "203.0.113.7", "", "")
		writes := 0
		r.client.Intercept(func(call resourcetest.Call) error {
			if call.Verb != resourcetest.List && call.Verb != resourcetest.Watch && call.Verb != resourcetest.Get {
				writes++
			}
			return nil
		})
		r.stop()
		r.lead()
		if writes != 0 {
			t.Errorf("%d writes, though nothing is to be changed", writes)
		}
	})
}

// TestDocumentedExamples: the objects of docs/how-to/load-balancers.md get addresses.
func TestDocumentedExamples(t *testing.T) {
	page, err := os.ReadFile("../../../docs/how-to/load-balancers.md")
	if err != nil {
		t.Fatal(err)
	}
	bubble(t, func(t *testing.T) {
		objects := []resource.Object{machine("a", true, "10.1.0.1")}
		for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(page, -1) {
			var object resource.Object = &corev1.Service{}
			if strings.Contains(string(block[1]), "kind: IPAddressPool") {
				object = &meshv1alpha1.IPAddressPool{}
			}
			if err := yaml.UnmarshalStrict(block[1], object); err != nil {
				t.Fatal(err)
			}
			if s, ok := object.(*corev1.Service); ok {
				s.Namespace, s.Spec.IPFamilies = "shop", []corev1.IPFamily{corev1.IPv4Protocol}
			} else if errs := kind.IPAddressPool.Validate(object, nil); errs != nil {
				t.Error(errs)
			}
			objects = append(objects, object)
		}
		r := newRig(t, objects...)
		defer func() { r.stop() }()
		r.want("of nodes", "web", "10.1.0.1", ReasonAssigned, "")
		if got := r.get("shop").Status.LoadBalancer.Ingress; len(got) != 1 {
			t.Errorf("of a pool: %v", got)
		}
	})
}
