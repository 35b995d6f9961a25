package access

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

var dataplaneKind = schema.GroupKind{Group: meshGroup, Kind: "Dataplane"}

// nodeList is a Cluster of some Nodes.
type nodeList []*corev1.Node

func (l nodeList) Node(_ context.Context, name string) (*corev1.Node, error) {
	for _, n := range l {
		if n.Name == name {
			return n, nil
		}
	}
	return nil, nil
}

func (l nodeList) Holder(a netip.Addr, other string) (string, error) {
	for _, n := range l {
		if n.Name != other && HoldsAddress(n, a) {
			return n.Name, nil
		}
	}
	return "", nil
}

func nodeAt(name string, podCIDRs []string, addresses ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDRs: podCIDRs}}
	for _, a := range addresses {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	return n
}

func dataplaneAt(node, namespace, labels string, addresses ...string) *meshv1alpha1.Dataplane {
	d := &meshv1alpha1.Dataplane{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "w", Labels: map[string]string{}},
		Spec:       meshv1alpha1.DataplaneSpec{NodeName: node, Addresses: addresses},
	}
	for l := range strings.SplitSeq(labels, ",") {
		if key, value, ok := strings.Cut(l, "="); ok {
			d.Labels[key] = value
		}
	}
	return d
}

func withAccount(d *meshv1alpha1.Dataplane, account string) *meshv1alpha1.Dataplane {
	d.Spec.ServiceAccount = account
	return d
}

func ofAccount(d *meshv1alpha1.Dataplane, account string) *meshv1alpha1.Dataplane {
	d.Annotations = map[string]string{meshv1alpha1.AnnotationServiceAccount: account}
	return d
}

func bounded(t testing.TB, kind identity.Kind, name string, b identity.Bounds) user.Info {
	t.Helper()
	if err := identity.CheckBounds(kind, b); err != nil {
		t.Fatal(err)
	}
	s, err := identity.SubjectFor(kind, name)
	if err != nil {
		t.Fatal(err)
	}
	s.Bounds = b
	return respond(s).User
}

func parsedLabels(t testing.TB, texts ...string) map[string][]string {
	t.Helper()
	out, err := identity.ParseLabels(texts)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// What a node or a workload may register: in both directions, by the bounds of
// its credential and the addresses of its machine.
func TestDataplanesWithinBounds(t *testing.T) {
	policy := &WritePolicy{
		Cluster: nodeList{
			nodeAt("n1", []string{"10.244.1.0/24"}, "10.0.0.1", "fd00::1"),
			nodeAt("n2", []string{"10.244.2.0/24"}, "10.0.0.2", "10.9.9.9"),
			nodeAt("liar", nil, "10.0.0.2", "10.244.2.7", "10.0.0.66"),
		},
		MachineID: "m0", Local: func(a netip.Addr) bool { return a == netip.MustParseAddr("10.0.0.100") },
	}
	plain := bounded(t, identity.Node, "n1", identity.Bounds{})
	some := bounded(t, identity.Node, "n1",
		identity.Bounds{Namespaces: []string{"a", "b"}, Labels: parsedLabels(t, "app=web", "app=api", "tier=front")})
	all := bounded(t, identity.Node, "n1", identity.Bounds{Namespaces: []string{"*"}})
	ranged := bounded(t, identity.Node, "n1", identity.Bounds{Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.3.0/24")}})
	liar := bounded(t, identity.Node, "liar", identity.Bounds{})
	app := bounded(t, identity.Workload, "shop/web", identity.Bounds{Labels: parsedLabels(t, "app=web")})
	admin := bounded(t, identity.Admin, "ada", identity.Bounds{})
	const here, local = "10.0.0.1", "127.0.0.1"
	at := dataplaneAt
	for name, tc := range map[string]struct {
		who      user.Info
		from     string
		obj, old *meshv1alpha1.Dataplane
		sub      string
		refused  string // part of the reason; empty: allowed
	}{
		"default namespace":          {plain, here, at("n1", "default", "app=x", here), nil, "", ""},
		"another namespace":          {plain, here, at("n1", "prod", "app=payments", here), nil, "", "in namespace default only"},
		"named namespace and labels": {some, here, at("n1", "b", "app=api,tier=front", here), nil, "", ""},
		"labels that are not named":  {some, here, at("n1", "b", "app=api,tier=front,x=y", here), nil, "", ""},
		"default is not named":       {some, here, at("n1", "default", "app=api,tier=front", here), nil, "", "namespaces a, b only"},
		"wrong value":                {some, here, at("n1", "a", "app=payments,tier=front", here), nil, "", "label app must be api or web"},
		"missing key":                {some, here, at("n1", "a", "app=web", here), nil, "", "label tier must be front"},
		"update out of the bounds": {some, here, at("n1", "a", "app=payments,tier=front", here), at("n1", "a", "app=web,tier=front", here),
			"", "label app"},
		"update into the bounds": {some, here, at("n1", "a", "app=web,tier=front", here), at("n1", "a", "app=payments,tier=front", here),
			"", "label app"},
		"status out of the bounds": {plain, here, at("n1", "prod", "", here), at("n1", "prod", "", here), "status",
			"in namespace default only"},
		"deletion out of the bounds":   {plain, here, nil, at("n1", "prod", "", here), "", "in namespace default only"},
		"everywhere":                   {all, here, at("n1", "prod", "app=payments", here), nil, "", ""},
		"its pod range":                {plain, here, at("n1", "default", "", "10.244.1.7"), nil, "", ""},
		"its other family":             {plain, here, at("n1", "default", "", here, "fd00::1"), nil, "", ""},
		"the pod range of another":     {plain, here, at("n1", "default", "", "10.244.2.7"), nil, "", "not of this machine"},
		"the address of another":       {plain, here, at("n1", "default", "", "10.9.9.9"), nil, "", "not of this machine"},
		"an address without an owner":  {plain, here, at("n1", "default", "", "192.0.2.1"), nil, "", "not of this machine"},
		"claimed, but of another":      {liar, "203.0.113.9", at("liar", "default", "", "10.0.0.2"), nil, "", "is of node n2, too"},
		"claimed, of another's range":  {liar, "203.0.113.9", at("liar", "default", "", "10.244.2.7"), nil, "", "is of node n2, too"},
		"claimed, and free":            {liar, "203.0.113.9", at("liar", "default", "", "10.0.0.66"), nil, "", ""},
		"where it comes from":          {liar, "203.0.113.9", at("liar", "default", "", "203.0.113.9"), nil, "", ""},
		"behind a proxy, own address":  {plain, "", at("n1", "default", "", here), nil, "", ""},
		"behind a proxy, another":      {plain, "", at("n1", "default", "", "10.0.0.2"), nil, "", "an unknown address"},
		"in the token's range":         {ranged, here, at("n1", "default", "", "10.0.3.8"), nil, "", ""},
		"out of the token's range":     {ranged, here, at("n1", "default", "", here), nil, "", "not in the ranges"},
		"an address that it had":       {plain, here, at("n1", "default", "x=y", "192.0.2.1"), at("n1", "default", "", "192.0.2.1"), "", ""},
		"loopback from elsewhere":      {plain, here, at("n1", "default", "", "127.0.0.1"), nil, "", "loopback address"},
		"loopback6 from elsewhere":     {plain, here, at("n1", "default", "", "::1"), nil, "", "loopback address"},
		"loopback behind a proxy":      {plain, "", at("n1", "default", "", "127.0.0.1"), nil, "", "loopback address"},
		"loopback from this machine":   {plain, local, at("n1", "default", "", "127.0.0.1"), nil, "", ""},
		"loopback by own interface":    {plain, "10.0.0.100", at("n1", "default", "", "127.0.0.1"), nil, "", ""},
		"own interface from loopback":  {plain, local, at("n1", "default", "", "10.0.0.100"), nil, "", ""},
		"loopback of an administrator": {admin, here, at("", "default", "", "127.0.0.1"), nil, "", "loopback address"},
		"an account":                   {plain, here, ofAccount(at("n1", "default", "", here), "web"), nil, "", "may not set spec.serviceAccount"},
		"an account in the spec":       {plain, here, withAccount(at("n1", "default", "", here), "web"), nil, "", "may not set spec.serviceAccount"},
		"another account in the spec": {app, "10.0.0.9", withAccount(at("n1", "shop", "app=web", "10.0.0.9"), "other"), nil, "",
			"of its own service account only"},
		"an account that it has": {plain, here, ofAccount(at("n1", "default", "", here), "web"),
			ofAccount(at("n1", "default", "", here), "web"), "", ""},

		"a workload":                      {app, "10.0.0.9", at("n1", "shop", "app=web", "10.0.0.9"), nil, "", ""},
		"a workload in a pod of its node": {app, here, at("n1", "shop", "app=web", "10.244.1.7"), nil, "", ""},
		"a workload of another's node":    {app, here, at("n2", "shop", "app=web", "10.244.2.7"), nil, "", "not of this machine"},
		"a workload in another namespace": {app, "10.0.0.9", at("", "prod", "app=web", "10.0.0.9"), nil, "", "of namespace shop only"},
		"a workload with another label":   {app, "10.0.0.9", at("", "shop", "app=pay", "10.0.0.9"), nil, "", "label app must be web"},
		"a workload of another account": {app, "10.0.0.9", at("", "shop", "app=web", "10.0.0.9"),
			ofAccount(at("", "shop", "app=web", "10.0.0.9"), "pay"), "", "own service account only"},
		"deletion of another account": {app, "10.0.0.9", nil, ofAccount(at("", "shop", "app=web", "10.0.0.9"), "pay"), "",
			"own service account only"},
		"deletion of its own": {app, "10.0.0.9", nil, ofAccount(at("", "shop", "app=web", "10.0.0.9"), "web"), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := Write{User: tc.who, Kind: dataplaneKind, Subresource: tc.sub}
			if tc.obj != nil {
				w.Object = tc.obj.DeepCopy()
			}
			if tc.old != nil {
				w.Old = tc.old.DeepCopy()
			}
			if tc.from != "" {
				w.From = netip.MustParseAddr(tc.from)
			}
			policy.Prepare(w)
			err := policy.Allow(t.Context(), w)
			if (err == nil) != (tc.refused == "") || err != nil && !strings.Contains(err.Error(), tc.refused) {
				t.Errorf("got %v, want %q", err, tc.refused)
			}
		})
	}
}

// A workload writes nothing but Dataplanes.
func TestWorkloadWritesDataplanesOnly(t *testing.T) {
	app := bounded(t, identity.Workload, "shop/web", identity.Bounds{})
	for _, gk := range []schema.GroupKind{{Kind: "Node"}, {Kind: "Service"}, {Group: coordinationGroup, Kind: "Lease"}} {
		err := new(WritePolicy).Allow(t.Context(), Write{User: app, Kind: gk, Object: &corev1.Node{}})
		if err == nil || !strings.Contains(err.Error(), "writes its own Dataplanes") {
			t.Errorf("%s: %v", gk, err)
		}
	}
}

// What a node may write to its own Node: a stolen credential cannot claim an address
// of another Node.
func TestNodeClaims(t *testing.T) {
	policy := &WritePolicy{Cluster: nodeList{
		nodeAt("n1", nil), nodeAt("n2", []string{"10.244.2.0/24"}, "10.0.0.2"),
	}}
	plain := bounded(t, identity.Node, "n1", identity.Bounds{})
	ranged := bounded(t, identity.Node, "n1", identity.Bounds{Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.3.0/24")}})
	low := bounded(t, identity.Node, "n1", identity.Bounds{Addresses: []netip.Prefix{netip.MustParsePrefix("10.4.0.0/24")}})
	for name, tc := range map[string]struct {
		who      user.Info
		from     string
		obj, old *corev1.Node
		refused  string
	}{
		"free":                   {plain, "10.0.0.1", nodeAt("n1", nil, "10.0.0.1", "fd00::1"), nil, ""},
		"of another":             {plain, "10.0.0.1", nodeAt("n1", nil, "10.0.0.2"), nil, "node n2 has it"},
		"in another's pod range": {plain, "10.0.0.1", nodeAt("n1", nil, "10.244.2.3"), nodeAt("n1", nil), "node n2 has it"},
		"of another, but proven": {plain, "10.0.0.2", nodeAt("n1", nil, "10.0.0.2"), nil, ""},
		"as before":              {plain, "10.0.0.1", nodeAt("n1", nil, "10.0.0.2"), nodeAt("n1", nil, "10.0.0.2"), ""},
		"in the token's range":   {ranged, "10.0.0.1", nodeAt("n1", nil, "10.0.3.1"), nil, ""},
		"out of it":              {ranged, "10.0.0.1", nodeAt("n1", nil, "10.0.0.1"), nil, "not in the ranges"},
		"a pod range":            {plain, "10.0.0.1", nodeAt("n1", []string{"10.244.1.0/24"}), nil, "may not set spec.podCIDRs"},
		"a pod range of the token": {
			ranged, "10.0.0.1", nodeAt("n1", []string{"10.0.3.0/25"}), nil, "",
		},
		"a pod range wider than the token's": {
			ranged, "10.0.0.1", nodeAt("n1", []string{"10.0.0.0/16"}), nil, "may not set spec.podCIDRs",
		},
		"a pod range that begins like the token's": {
			low, "10.0.0.1", nodeAt("n1", []string{"10.4.0.0/16"}), nil, "may not set spec.podCIDRs",
		},
		"a pod range as before": {plain, "10.0.0.1", nodeAt("n1", []string{"10.244.1.0/24"}), nodeAt("n1", []string{"10.244.1.0/24"}), ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := Write{User: tc.who, Kind: schema.GroupKind{Kind: "Node"}, Object: tc.obj, From: netip.MustParseAddr(tc.from)}
			if tc.old != nil {
				w.Old = tc.old
			}
			err := policy.Allow(t.Context(), w)
			if (err == nil) != (tc.refused == "") || err != nil && !strings.Contains(err.Error(), tc.refused) {
				t.Errorf("got %v, want %q", err, tc.refused)
			}
		})
	}
}

// TestNodeDoesNotUndrainItself: whether a node is in use is not the node's to decide.
func TestNodeDoesNotUndrainItself(t *testing.T) {
	policy := &WritePolicy{}
	node := bounded(t, identity.Node, "n1", identity.Bounds{})
	drained := nodeAt("n1", nil)
	kind.StartDrain(drained, "admin", false, time.Now())
	undrained, uncordoned, forged := drained.DeepCopy(), drained.DeepCopy(), drained.DeepCopy()
	kind.EndDrain(undrained)
	uncordoned.Spec.Unschedulable = false
	kind.SetDrainRecord(forged, kind.DrainRecord{By: "another"})
	labelled := drained.DeepCopy()
	labelled.Labels = map[string]string{"a": "b"}
	for name, tc := range map[string]struct {
		obj     *corev1.Node
		refused string
	}{
		"its label":      {labelled, ""},
		"its taint":      {undrained, "may not change spec.taints"},
		"its cordon":     {uncordoned, "may not change spec.unschedulable"},
		"who drained it": {forged, "may not change the annotation"},
	} {
		err := policy.Allow(t.Context(), Write{User: node, Kind: schema.GroupKind{Kind: "Node"}, Object: tc.obj, Old: drained})
		if (err == nil) != (tc.refused == "") || err != nil && !strings.Contains(err.Error(), tc.refused) {
			t.Errorf("%s: got %v, want %q", name, err, tc.refused)
		}
	}
}

// Only the server sets the machine of a loopback address, and the account.
func TestPrepareSetsAnnotations(t *testing.T) {
	policy := &WritePolicy{MachineID: "m0"}
	app := bounded(t, identity.Workload, "shop/web", identity.Bounds{})
	admin := bounded(t, identity.Admin, "ada", identity.Bounds{})
	local, remote := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("10.0.0.1")
	of := func(machine, account string, addresses ...string) *meshv1alpha1.Dataplane {
		d := dataplaneAt("n1", "shop", "", addresses...)
		d.Annotations = map[string]string{"other": "kept"}
		annotate(d, meshv1alpha1.AnnotationMachineID, machine)
		annotate(d, meshv1alpha1.AnnotationServiceAccount, account)
		return d
	}
	for name, tc := range map[string]struct {
		who              user.Info
		from             netip.Addr
		obj, old         *meshv1alpha1.Dataplane
		machine, account string
	}{
		"loopback":               {admin, local, of("", "", "127.0.0.1"), nil, "m0", ""},
		"loopback with a claim":  {admin, local, of("m9", "", "127.0.0.1"), nil, "m0", ""},
		"a claim alone":          {admin, local, of("m9", "", "10.0.0.1"), nil, "", ""},
		"kept from elsewhere":    {admin, remote, of("m9", "", "127.0.0.1"), of("m0", "", "127.0.0.1"), "m0", ""},
		"kept, of another":       {admin, remote, of("", "", "127.0.0.1"), of("m8", "", "127.0.0.1"), "m8", ""},
		"taken over by a write":  {admin, local, of("m9", "", "127.0.0.1"), of("m9", "", "127.0.0.1"), "m0", ""},
		"no more loopback":       {admin, remote, of("m0", "", "10.0.0.1"), of("m0", "", "127.0.0.1"), "", ""},
		"account":                {app, remote, of("", "pay", "10.0.0.1"), nil, "", "web"},
		"account of an operator": {admin, remote, of("", "pay", "10.0.0.1"), nil, "", "pay"},
	} {
		t.Run(name, func(t *testing.T) {
			w := Write{User: tc.who, Kind: dataplaneKind, Object: tc.obj, From: tc.from}
			if tc.old != nil {
				w.Old = tc.old
			}
			policy.Prepare(w)
			got := tc.obj.Annotations
			if got[meshv1alpha1.AnnotationMachineID] != tc.machine || got[meshv1alpha1.AnnotationServiceAccount] != tc.account ||
				got["other"] != "kept" {
				t.Errorf("annotations are %v, want machine %q and account %q", got, tc.machine, tc.account)
			}
		})
	}
	var none resource.Object
	policy.Prepare(Write{User: admin, Kind: dataplaneKind, Object: none}) // a deletion
}
