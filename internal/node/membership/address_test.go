package membership

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

func addressTexts(n *corev1.Node) []string {
	var out []string
	for _, a := range n.Status.Addresses {
		out = append(out, string(a.Type)+" "+a.Address)
	}
	return out
}

// The Node says where its machine is reached; what others say besides is kept.
func TestNodeHasAddresses(t *testing.T) {
	client := resourcetest.New(kind.All()...)
	client.Seed(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: "10.0.0.9"}, {Type: corev1.NodeExternalIP, Address: "192.0.2.9"},
	}}})
	own := []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")}
	m := newMember(client, func(c *Config) { c.MachineID = "m1"; c.Addresses = func() []netip.Addr { return own } })
	if err := m.beat(t.Context()); err != nil {
		t.Fatal(err)
	}
	n := getNode(t, client)
	if got := addressTexts(n); !slices.Equal(got, []string{"InternalIP 10.0.0.1", "InternalIP fd00::1", "ExternalIP 192.0.2.9"}) {
		t.Errorf("addresses are %q", got)
	}
	if n.Status.NodeInfo.MachineID != "m1" {
		t.Errorf("machine ID is %q", n.Status.NodeInfo.MachineID)
	}
	own = nil // the network is down
	if err := m.beat(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := addressTexts(getNode(t, client)); len(got) != 3 {
		t.Errorf("addresses are %q after a moment without a network", got)
	}
}

// A node whose addresses are refused is ready all the same, and asks no more.
func TestRefusedAddresses(t *testing.T) {
	client := resourcetest.New(kind.All()...)
	refusals := 0
	client.Intercept(func(c resourcetest.Call) error {
		if n, ok := c.Object.(*corev1.Node); ok && len(n.Status.Addresses) > 0 {
			refusals++
			return apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "n1", nil)
		}
		return nil
	})
	m := newMember(client, func(c *Config) {
		c.Addresses = func() []netip.Addr { return []netip.Addr{netip.MustParseAddr("10.0.0.1")} }
	})
	for range 3 {
		if err := m.beat(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if c := getNode(t, client).Status.Conditions; len(c) != 1 || c[0].Status != corev1.ConditionTrue {
		t.Errorf("conditions are %+v, want Ready", c)
	}
	if refusals != 1 {
		t.Errorf("asked %d times, want once", refusals)
	}
	// What an administrator wrote stays while the machine has no network.
	n := getNode(t, client)
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.9"}}
	if got := m.addresses(n.Status.Addresses); !slices.Equal(got, n.Status.Addresses) {
		t.Errorf("addresses are %v after a refusal", got)
	}
	m.cfg.Addresses = func() []netip.Addr { return nil }
	if got := m.addresses(n.Status.Addresses); !slices.Equal(got, n.Status.Addresses) {
		t.Errorf("addresses are %v after a refusal, without a network", got)
	}
}
