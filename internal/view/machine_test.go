package view

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/dns/records"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/node"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/view/viewtest"
	"github.com/proxima-mesh/proxima/internal/view/wire"
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

// onMachine are the Dataplanes, with ns/here on a machine.
func onMachine(machine string) []catalog.Change[*meshv1alpha1.Dataplane] {
	at := func(name, machine string) catalog.Change[*meshv1alpha1.Dataplane] {
		d := &meshv1alpha1.Dataplane{}
		d.Annotations = map[string]string{meshv1alpha1.AnnotationMachineID: machine}
		return catalog.Change[*meshv1alpha1.Dataplane]{Key: catalog.Key{Namespace: "ns", Name: name}, New: d}
	}
	return []catalog.Change[*meshv1alpha1.Dataplane]{at("here", machine), at("there", "m9")}
}

// sentMachines are the machines of a slice in a zone's view.
func sentMachines(t *testing.T, b *Builder, zone locality.Zone, name string) []string {
	t.Helper()
	s, err := wire.DecodeSlice(name, b.body(zone, change{wire.SliceType, name}))
	if err != nil {
		t.Fatal(err)
	}
	return s.Machines
}

// The machine of a loopback address goes to the agents with the endpoint, with a
// plan and without, and again when it is another.
func TestMachinesOfLoopbackAddresses(t *testing.T) {
	weights := func(zone locality.Zone, s *discoveryv1.EndpointSlice) []uint32 {
		if zone == "planned" {
			return []uint32{0, 1, 2}
		}
		return nil
	}
	b := NewBuilder(BuilderConfig{Weights: weights})
	d := viewtest.Delta(1, viewtest.Service("web", "10.96.0.1"), loopbackSlice("web"))
	d.Dataplanes = onMachine("m1")
	replace(t, b, d)
	for _, zone := range []locality.Zone{"a", "planned"} {
		if got := sentMachines(t, b, zone, "ns/web-1"); !slices.Equal(got, []string{"", "m1"}) {
			t.Errorf("zone %s: machines are %q", zone, got)
		}
	}
	s := session(t, b, "a")
	contents(t, s)
	d = viewtest.Delta(2)
	d.Dataplanes = onMachine("m2")
	apply(t, b, d)
	if got := sentMachines(t, b, "a", "ns/web-1"); !slices.Equal(got, []string{"", "m2"}) {
		t.Errorf("after a change: machines are %q", got)
	}
	if got := contents(t, s); !slices.Contains(got, "ns/web-1 10.0.0.2*0 127.0.0.1*0") {
		t.Errorf("a change of the machine was not sent: %q", got)
	}
	d = viewtest.Delta(3)
	d.Dataplanes = []catalog.Change[*meshv1alpha1.Dataplane]{{Key: catalog.Key{Namespace: "ns", Name: "here"}}}
	apply(t, b, d)
	if got := sentMachines(t, b, "a", "ns/web-1"); got != nil {
		t.Errorf("without a machine: machines are %q", got)
	}
}

// Names of headless Services lead to loopback addresses on their machine alone.
func TestNamesOfLoopbackAddresses(t *testing.T) {
	b := NewBuilder(BuilderConfig{})
	headless := viewtest.Service("db", corev1.ClusterIPNone)
	d := viewtest.Delta(1, headless, loopbackSlice("db"))
	d.Dataplanes = onMachine("m1")
	replace(t, b, d)
	s, err := wire.DecodeNameSlice("ns/db-1", b.body("a", change{wire.NameSliceType, "ns/db-1"}))
	if err != nil {
		t.Fatal(err)
	}
	for machine, want := range map[string][]string{"m1": {"10.0.0.2", "127.0.0.1"}, "m2": {"10.0.0.2"}} {
		u := node.Update{NameSlices: map[proxy.SliceName]*records.Slice{s.Name: s, {Namespace: "ns", Name: "gone"}: nil}}
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
