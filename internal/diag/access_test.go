package diag

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/policy"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// TestExplainAccess: who refuses is named, with what would let the client in.
func TestExplainAccess(t *testing.T) {
	workload := func(name, address string) *mesh.Dataplane {
		return &mesh.Dataplane{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{"app": name}},
			Spec: mesh.DataplaneSpec{
				Addresses: []string{address}, ServiceAccount: name,
				Ports: []mesh.DataplanePort{{Name: "http", Port: 8080, AppProtocol: new("http")}, {Port: 25, AppProtocol: new("smtp")}, {Port: 53, Protocol: "UDP"}},
			},
		}
	}
	peer := func(d *mesh.Dataplane, proxied bool) *Peer {
		return &Peer{
			Ref: policy.Ref{Kind: "Dataplane", Key: resource.KeyOf(d)}, Mesh: "default", Dataplane: d, Proxied: proxied,
			Identity: "spiffe://default.mesh/ns/shop/sa/" + d.Name,
		}
	}
	permission := func(name string, spec mesh.TrafficPermissionSpec) resource.Object {
		spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "api"}}
		return &mesh.TrafficPermission{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: spec}
	}
	web := []mesh.PermissionRule{{From: []mesh.PolicySource{{ServiceAccounts: []string{"shop/web"}}}}}
	get := []mesh.PermissionRule{{To: []mesh.PermissionRequest{{Methods: []string{"GET"}}}}}
	strict := &mesh.WorkloadPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "tls"}, Spec: mesh.WorkloadPolicySpec{TLS: &mesh.WorkloadTLS{Mode: mesh.MTLSStrict}}}
	for name, test := range map[string]struct {
		objects        []resource.Object
		client, target bool // proxied
		access, mode   string
		allowed        bool
		// why and fix begin, or end, with these.
		why, fix string
		policies string
	}{
		"nothing is said":     {nil, true, true, "", mesh.MTLSPermissive, true, "no TrafficPermission is for the port", "", ""},
		"the target is bare":  {[]resource.Object{permission("no", mesh.TrafficPermissionSpec{Deny: []mesh.PermissionRule{{}}})}, true, false, "", "", true, "the target has no proxy, and its node (not known) does not enforce", "", ""},
		"strict":              {nil, false, true, "", mesh.MTLSStrict, false, "the port is in mode Strict, by Mesh default, and the client shows no certificate, as it has no proxy", "give shop/web a proxy", "Mesh default"},
		"strict by a policy":  {[]resource.Object{strict}, false, true, "", mesh.MTLSPermissive, false, "the port is in mode Strict, by WorkloadPolicy shop/tls", "give shop/web a proxy", "WorkloadPolicy shop/tls"},
		"strict with a proxy": {nil, true, true, "", mesh.MTLSStrict, true, "no TrafficPermission is for the port", "", ""},
		"denied": {
			[]resource.Object{permission("no", mesh.TrafficPermissionSpec{Deny: web})}, true, true, "", mesh.MTLSStrict,
			false, "a rule of deny of TrafficPermission shop/no describes the client (its proxy shows spiffe://default.mesh/ns/shop/sa/web)", "take the client out", "TrafficPermission shop/no",
		},
		"allowed": {[]resource.Object{permission("yes", mesh.TrafficPermissionSpec{Allow: web})}, true, true, "", mesh.MTLSStrict, true, "a rule of allow of TrafficPermission shop/yes", "", "TrafficPermission shop/yes"},
		"not allowed without a certificate": {
			[]resource.Object{permission("yes", mesh.TrafficPermissionSpec{Allow: web})}, false, true, "", mesh.MTLSPermissive,
			false, "no rule of allow of TrafficPermission shop/yes describes the client (the client shows no certificate", "rules with namespaces", "TrafficPermission shop/yes",
		},
		"the mesh denies": {nil, true, true, mesh.AccessDeny, mesh.MTLSStrict, false, "no TrafficPermission is for the port, and Mesh default has defaultAccess: Deny", "write a TrafficPermission", "Mesh default"},
		"some requests": {
			[]resource.Object{permission("read", mesh.TrafficPermissionSpec{Deny: get})}, true, true, "", mesh.MTLSStrict,
			true, "some requests are refused, by TrafficPermission shop/read", "", "TrafficPermission shop/read",
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := policy.NewIndex()
			m := &mesh.Mesh{ObjectMeta: metav1.ObjectMeta{Name: "default"}, Spec: mesh.MeshSpec{DefaultAccess: test.access}}
			if test.mode != "" {
				m.Spec.MTLS = &mesh.MeshMTLS{EnabledBackend: "b", Backends: []mesh.MeshCertificateBackend{{Name: "b", Mode: test.mode}}}
			}
			client, target := workload("web", "10.0.0.1"), workload("api", "10.0.0.2")
			for _, obj := range append(test.objects, m, client, target) {
				x.Set(obj)
			}
			got := ExplainAccess(x, m, peer(client, test.client), peer(target, test.target), 8080)
			if len(got.Ports) != 1 {
				t.Fatalf("%+v", got)
			}
			p := got.Ports[0]
			if p.Allowed != test.allowed || !strings.Contains(p.Why, test.why) || !strings.HasPrefix(p.Fix, test.fix) || (test.fix == "") != (p.Fix == "") ||
				strings.Join(p.Policies, ", ") != test.policies {
				t.Errorf("%+v", p)
			}
			if all := ExplainAccess(x, m, peer(client, test.client), peer(target, test.target), 0); len(all.Ports) != 2 {
				t.Errorf("all TCP ports: %+v", all.Ports)
			}
		})
	}
}

// TestAccessWithoutProxy: of a workload without a proxy its node decides, by the address of the client.
func TestAccessWithoutProxy(t *testing.T) {
	workload := func(namespace, name, address string) *mesh.Dataplane {
		return &mesh.Dataplane{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": name}},
			Spec:       mesh.DataplaneSpec{Addresses: []string{address}, Ports: []mesh.DataplanePort{{Port: 80}}},
		}
	}
	permission := func(name string, allow bool, from mesh.PolicySource) resource.Object {
		p := &mesh.TrafficPermission{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}
		p.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "api"}}
		rules := []mesh.PermissionRule{{From: []mesh.PolicySource{from}}}
		if p.Spec.Deny = rules; allow {
			p.Spec.Deny, p.Spec.Allow = nil, rules
		}
		return p
	}
	front, shop := mesh.PolicySource{Namespaces: []string{"front"}}, mesh.PolicySource{Namespaces: []string{"shop"}}
	account := mesh.PolicySource{ServiceAccounts: []string{"front/web"}}
	kernel := PeerNode{Name: "n1", Mode: "nftables", ByAddress: true, Addresses: []string{"10.0.0.9"}}
	for name, tc := range map[string]struct {
		objects []resource.Object
		access  string
		node    PeerNode
		address string
		allowed bool
		why     string
		fix     bool
		by      string
	}{
		"nothing is said":  {nil, "", kernel, "10.0.0.1", true, "no TrafficPermission is for the port", false, ""},
		"allowed":          {[]resource.Object{permission("p", true, front)}, "", kernel, "10.0.0.1", true, "at its node n1 (mode nftables) a rule of allow of TrafficPermission shop/p describes the client, from 10.0.0.1", false, "TrafficPermission shop/p"},
		"not allowed":      {[]resource.Object{permission("p", true, shop)}, "", kernel, "10.0.0.1", false, "no rule of allow of TrafficPermission shop/p describes the client", true, "TrafficPermission shop/p"},
		"denied":           {[]resource.Object{permission("p", false, front)}, "", kernel, "10.0.0.1", false, "a rule of deny of TrafficPermission shop/p", true, "TrafficPermission shop/p"},
		"not denied":       {[]resource.Object{permission("p", false, shop)}, "", kernel, "10.0.0.1", true, "no rule refuses the client", false, ""},
		"the mesh denies":  {nil, mesh.AccessDeny, kernel, "10.0.0.1", false, "Mesh default has defaultAccess: Deny, which its node n1", true, "Mesh default"},
		"the node itself":  {nil, mesh.AccessDeny, kernel, "10.0.0.9", true, "connections from the node itself are let through", false, ""},
		"userspace":        {nil, mesh.AccessDeny, PeerNode{Name: "n1", Mode: "userspace"}, "10.0.0.1", true, "its node n1 (mode userspace) does not enforce permissions by address", false, ""},
		"accounts are not": {[]resource.Object{permission("p", true, account), permission("q", false, front)}, "", kernel, "10.0.0.1", false, "TrafficPermission shop/p has no effect, as nodes do not know spec.allow[0].from[0].serviceAccounts of a client", true, "TrafficPermission shop/q"},
	} {
		x := policy.NewIndex()
		m := &mesh.Mesh{ObjectMeta: metav1.ObjectMeta{Name: "default"}, Spec: mesh.MeshSpec{DefaultAccess: tc.access}}
		client, target := workload("front", "web", tc.address), workload("shop", "api", "10.0.0.2")
		for _, obj := range append(tc.objects, m, client, target) {
			x.Set(obj)
		}
		peer := func(d *mesh.Dataplane) *Peer {
			return &Peer{Ref: policy.Ref{Kind: "Dataplane", Key: resource.KeyOf(d)}, Mesh: "default", Dataplane: d, Node: tc.node}
		}
		p := ExplainAccess(x, m, peer(client), peer(target), 80).Ports[0]
		if p.Allowed != tc.allowed || !strings.Contains(p.Why, tc.why) || (p.Fix != "") != tc.fix || strings.Join(p.Policies, ", ") != tc.by {
			t.Errorf("%s: %+v", name, p)
		}
	}
}
