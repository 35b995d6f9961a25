package view

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/dns/records"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// loopbackSlice has an endpoint at 127.0.0.1 that stands for Dataplane ns/here,
// and one elsewhere.
func loopbackSlice(service string) *discoveryv1.EndpointSlice {
	port := int32(8080)
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "ns", Name: service + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Port: &port}},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"not an address"}},
			{Addresses: []string{"10.0.0.2"}, TargetRef: &corev1.ObjectReference{Kind: "Dataplane", Name: "there"}},
			{Addresses: []string{"127.0.0.1"}, TargetRef: &corev1.ObjectReference{Kind: "Dataplane", Name: "here"}},
		},
	}
}

func onMachine(machine string) map[catalog.Key]string {
	return map[catalog.Key]string{{Namespace: "ns", Name: "here"}: machine, {Namespace: "ns", Name: "there"}: "m9"}
}

// heldMachines is what a zone's view says of the machines of a slice.
func heldMachines(t *testing.T, b *Builder, zone, name string) []string {
	t.Helper()
	s, err := decodeSlice(name, b.body(zone, change{SliceType, name}))
	if err != nil {
		t.Fatal(err)
	}
	return s.Machines
}

// The machine of a loopback address goes to the agents with the endpoint, with a
// plan and without, and again when it is another.
func TestMachinesOfLoopbackAddresses(t *testing.T) {
	weights := func(zone string, s *discoveryv1.EndpointSlice) []uint32 {
		if zone == "planned" {
			return []uint32{0, 1, 2}
		}
		return nil
	}
	b := NewBuilder(BuilderConfig{Weights: weights})
	d := reset(deltaOf(1, service("web", "10.96.0.1"), loopbackSlice("web")))
	d.Machines = onMachine("m1")
	apply(t, b, d)
	for _, zone := range []string{"a", "planned"} {
		if got := heldMachines(t, b, zone, "ns/web-1"); !slices.Equal(got, []string{"", "m1"}) {
			t.Errorf("zone %s: machines are %q", zone, got)
		}
	}
	s := session(t, b, "a")
	contents(t, s)
	d = deltaOf(2)
	d.Machines = onMachine("m2")
	apply(t, b, d)
	if got := heldMachines(t, b, "a", "ns/web-1"); !slices.Equal(got, []string{"", "m2"}) {
		t.Errorf("after a change: machines are %q", got)
	}
	if got := contents(t, s); !slices.Contains(got, "ns/web-1 10.0.0.2*0 127.0.0.1*0") {
		t.Errorf("a change of the machine was not sent: %q", got)
	}
	d = deltaOf(3)
	d.Machines = onMachine("")
	apply(t, b, d)
	if got := heldMachines(t, b, "a", "ns/web-1"); got != nil {
		t.Errorf("without a machine: machines are %q", got)
	}
}

// Names of headless Services lead to loopback addresses on their machine alone.
func TestNamesOfLoopbackAddresses(t *testing.T) {
	b := NewBuilder(BuilderConfig{})
	headless := service("db", corev1.ClusterIPNone)
	d := reset(deltaOf(1, headless, loopbackSlice("db")))
	d.Machines = onMachine("m1")
	apply(t, b, d)
	s, err := decodeNameSlice("ns/db-1", b.body("a", change{NameSliceType, "ns/db-1"}))
	if err != nil {
		t.Fatal(err)
	}
	for machine, want := range map[string][]string{"m1": {"10.0.0.2", "127.0.0.1"}, "m2": {"10.0.0.2"}} {
		u := Update{NameSlices: map[proxy.SliceName]*records.Slice{s.Name: s, {Namespace: "ns", Name: "gone"}: nil}}
		u.KeepLoopback(machine)
		var got []string
		for _, target := range u.NameSlices[s.Name].Targets {
			got = append(got, target.Addr.String())
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("on machine %s (-want +got):\n%s", machine, diff)
		}
	}
	if len(s.Targets) != 2 {
		t.Error("the slice of the feed was changed")
	}
}

func TestMachinesFromCatalog(t *testing.T) {
	at := func(machine string) *meshv1alpha1.Dataplane {
		return &meshv1alpha1.Dataplane{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{meshv1alpha1.AnnotationMachineID: machine}}}
	}
	key := func(name string) catalog.Key { return catalog.Key{Namespace: "ns", Name: name} }
	got := fromCatalog(catalog.Delta{After: &catalog.Snapshot{}, Dataplanes: []catalog.Change[*meshv1alpha1.Dataplane]{
		{Key: key("new"), New: at("m1")}, {Key: key("moved"), Old: at("m1"), New: at("m2")}, {Key: key("gone"), Old: at("m1")},
		{Key: key("same"), Old: at("m1"), New: at("m1")}, {Key: key("elsewhere"), New: at("")},
	}}, false).Machines
	want := map[catalog.Key]string{key("new"): "m1", key("moved"): "m2", key("gone"): ""}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// A machine that the message does not name is refused, as other names are.
func TestMachineIndexOutOfRange(t *testing.T) {
	body, err := encodeSlice(&proxy.Slice{
		Name: proxy.SliceName{Namespace: "ns", Name: "a"}, Service: proxy.ServiceName{Namespace: "ns", Name: "web"},
		Endpoints: []proxy.SliceEndpoint{{Addr: netip.MustParseAddr("127.0.0.1"), Ready: true, Serving: true}}, Machines: []string{"m1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if i := slices.Index(body, 0x50); i < 0 || body[i+1] != 1 { // field 10, varint
		t.Fatalf("no machine in %x", body)
	} else {
		body[i+1] = 2
	}
	if _, err := decodeSlice("ns/a", body); err == nil {
		t.Error("it was accepted")
	}
}
