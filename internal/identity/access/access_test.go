package access

import (
	"context"
	"strings"
	"testing"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	plannerv1alpha1 "github.com/proxima-mesh/proxima/api/planner/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/resource"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

func userOf(t testing.TB, kind identity.Kind, name string) user.Info {
	t.Helper()
	s, err := identity.SubjectFor(kind, name)
	if err != nil {
		t.Fatal(err)
	}
	return respond(s).User
}

var anonymous = &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}

func TestAuthorize(t *testing.T) {
	admin, reader := userOf(t, identity.Admin, "ada"), userOf(t, identity.ReadOnly, "rob")
	node, zone := userOf(t, identity.Node, "n1"), userOf(t, identity.Zone, "east")
	workload := userOf(t, identity.Workload, "shop/web")
	impostor := &user.DefaultInfo{Name: "mallory", Groups: []string{identity.GroupNodes, user.AllAuthenticated}}
	res := func(verb, group, resource, namespace, name string) authorizer.AttributesRecord {
		resource, sub, _ := strings.Cut(resource, "/")
		return authorizer.AttributesRecord{
			Verb:            verb,
			APIGroup:        group,
			Resource:        resource,
			Subresource:     sub,
			Namespace:       namespace,
			Name:            name,
			ResourceRequest: true,
		}
	}
	path := func(verb, path string) authorizer.AttributesRecord {
		return authorizer.AttributesRecord{Verb: verb, Path: path}
	}
	const no = "no"
	for _, tc := range []struct {
		who  user.Info
		what authorizer.AttributesRecord
		deny string // part of the reason; empty: allowed
	}{
		{admin, res("delete", "", "secrets", "a", "b"), ""},
		{admin, res("update", "apps", "deployments/scale", "a", "b"), ""},
		{admin, path("post", TokensPath), ""},
		{admin, path("delete", TokensPath+"/x"), ""},

		{reader, res("list", "", "services", "", ""), ""},
		{reader, res("get", "", "pods/status", "a", "b"), ""},
		{reader, res("get", "", "secrets", "a", "b"), "does not see secrets"},
		{reader, res("watch", "", "secrets", "", ""), "does not see secrets"},
		{reader, res("get", meshGroup, "globalsecrets", "", "a"), "does not see secrets"},
		{reader, res("get", meshGroup, "meshes", "", "a"), ""},
		{reader, res("create", "authentication.k8s.io", "tokenreviews", "", ""), "reads only"},
		{reader, res("create", "authorization.k8s.io", "subjectaccessreviews", "", ""), "reads only"},
		{reader, res("create", "", "services", "a", ""), "reads only"},
		{reader, res("create", "authorization.k8s.io", "selfsubjectaccessreviews", "", ""), ""},
		{reader, path("get", TokensPath), "reads only"},
		{reader, path("get", "/metrics"), ""},
		{reader, path("get", "/proxima/v1/status"), ""},
		{reader, path("get", "/proxima/v1/demand"), ""},
		{reader, path("get", "/proxima/v1/zones/shift"), ""},
		{reader, path("get", "/proxima/v1/backup"), "reads only"},
		{reader, path("post", "/proxima/v1/nodes/drain"), "reads only"},
		{reader, path("get", "/apis/discovery.k8s.io/v1"), ""},
		{reader, path("get", "/apis/../proxima/v1/tokens"), "reads only"},

		{node, res("watch", "discovery.k8s.io", "endpointslices", "", ""), ""},
		{node, res("get", "", "nodes", "", "n2"), ""},
		{node, res("get", "", "secrets", "a", "b"), "reads what it needs"},
		{node, res("get", "", "configmaps", "a", "b"), "reads what it needs"},
		{node, res("get", meshGroup, "globalsecrets", "", "a"), "reads what it needs"},
		{node, res("get", meshGroup, "meshes", "", "a"), ""},
		{node, res("create", "", "nodes", "", ""), ""},
		{node, res("patch", "", "nodes", "", "n1"), ""},
		{node, res("patch", "", "nodes", "", "n2"), `the nodes of its own name only, not "n2"`},
		{node, res("update", "", "nodes/status", "", "n1"), ""},
		{node, res("update", "", "nodes/status", "", "n2"), "of its own name only"},
		{node, res("update", "", "nodes", "", ""), "of its own name only"},
		{node, res("update", coordinationGroup, "leases", LeaseNamespace, "n1"), ""},
		{node, res("update", coordinationGroup, "leases", LeaseNamespace, "n2"), "of its own name only"},
		{node, res("update", coordinationGroup, "leases", "kube-system", "n1"), "in namespace kube-node-lease only"},
		{node, res("update", meshGroup, "dataplanes", "shop", "web"), ""},
		{node, res("update", meshGroup, "dataplanes/status", "shop", "web"), ""},
		{node, res("deletecollection", meshGroup, "dataplanes", "shop", ""), no},
		{node, res("update", meshGroup, "meshes", "", "default"), no},
		{node, res("create", "", "events", "shop", ""), ""},
		{node, res("create", "", "services", "shop", ""), no},
		{node, res("impersonate", "", "users", "", "x"), no},
		{node, path("post", identity.CertificatesPath), ""},
		{node, path("post", TokensPath), no},

		{workload, res("create", meshGroup, "dataplanes", "shop", ""), ""},
		{workload, res("update", meshGroup, "dataplanes/status", "shop", "web-1"), ""},
		{workload, res("create", meshGroup, "dataplanes", "prod", ""), "of namespace shop"},
		{workload, res("list", "", "services", "shop", ""), ""},
		{workload, res("list", "", "services", "", ""), "of namespace shop"},
		{workload, res("get", "", "nodes", "", "n1"), ""},
		{workload, res("list", "", "nodes", "", ""), "of namespace shop"},
		{workload, res("get", "", "secrets", "shop", "b"), no},
		{workload, path("post", TokensPath), no},

		{zone, path("post", identity.CertificatesPath), ""},
		{zone, res("get", "", "services", "a", "b"), "federation"},

		{impostor, res("get", "", "services", "a", "b"), no},
		{impostor, res("create", "", "nodes", "", ""), no},
		{&user.DefaultInfo{Name: "eve", Groups: []string{user.AllAuthenticated}}, res("get", "", "pods", "a", "b"), "no rule is for eve"},

		{anonymous, path("get", "/healthz"), ""},
		{anonymous, path("get", "/readyz/store"), ""},
		{anonymous, path("get", "/version"), ""},
		{anonymous, path("get", "/api"), "no token or certificate was sent"},
		{anonymous, path("post", "/healthz"), no},
		{anonymous, path("get", "/healthzz"), no},
		{anonymous, path("post", identity.CertificatesPath), no},
		{anonymous, res("list", "", "namespaces", "", ""), "no token or certificate was sent"},
	} {
		tc.what.User = tc.who
		a := NewAuthorizer()
		got, reason, err := a.Authorize(context.Background(), tc.what)
		name := tc.who.GetName() + " " + tc.what.Verb + " " + tc.what.Resource + "/" + tc.what.Subresource + " " + tc.what.Namespace + "/" +
			tc.what.Name + tc.what.Path
		if err != nil || (got == authorizer.DecisionAllow) != (tc.deny == "") {
			t.Errorf("%s: %v %q %v", name, got, reason, err)
		}
		if tc.deny != "" && tc.deny != no && !strings.Contains(reason, tc.deny) {
			t.Errorf("%s: reason %q, want %q in it", name, reason, tc.deny)
		}
		if tc.deny != "" && !strings.Contains(reason, "proxima token create") {
			t.Errorf("%s: reason %q names no fix", name, reason)
		}
		if d := a.ConditionsAwareAuthorize(context.Background(), tc.what); d.IsAllow() != (tc.deny == "") {
			t.Errorf("%s: the two ways to ask differ", name)
		}
	}
	if d, _, _ := NewAuthorizer().Authorize(context.Background(),
		authorizer.AttributesRecord{Verb: "get", Path: "/healthz"}); d == authorizer.DecisionAllow {
		t.Error("a request without a user was allowed")
	}
}

func TestAllow(t *testing.T) {
	node := userOf(t, identity.Node, "n1")
	nodeKind := schema.GroupKind{Kind: "Node"}
	leaseKind := schema.GroupKind{Group: coordinationGroup, Kind: "Lease"}
	dpKind := schema.GroupKind{Group: meshGroup, Kind: "Dataplane"}
	planKind, plan := plannerv1alpha1.Kind("TrafficPlan"), &plannerv1alpha1.TrafficPlan{}
	n := func(name string) resource.Object { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }
	lease := func(ns, name string) resource.Object {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
	}
	dp := func(node string) resource.Object {
		return &meshv1alpha1.Dataplane{ObjectMeta: metav1.ObjectMeta{Namespace: "default"}, Spec: meshv1alpha1.DataplaneSpec{NodeName: node}}
	}
	for _, tc := range []struct {
		who      user.Info
		kind     schema.GroupKind
		obj, old resource.Object
		ok       bool
	}{
		{node, nodeKind, n("n1"), nil, true},
		{node, nodeKind, n("n1"), n("n1"), true},
		{node, nodeKind, n("n2"), nil, false},
		{node, nodeKind, n(""), nil, false},
		{node, nodeKind, nil, n("n2"), false},
		{node, nodeKind, nil, n("n1"), true},
		{node, leaseKind, lease(LeaseNamespace, "n1"), nil, true},
		{node, leaseKind, lease(LeaseNamespace, "n2"), nil, false},
		{node, leaseKind, lease("kube-system", "n1"), nil, false},
		{node, dpKind, dp("n1"), nil, true},
		{node, dpKind, dp("n2"), nil, false},
		{node, dpKind, dp(""), nil, false},
		{node, dpKind, dp("n1"), dp("n2"), false}, // steal
		{node, dpKind, dp("n2"), dp("n1"), false}, // foist
		{node, dpKind, nil, dp("n2"), false},
		{node, dpKind, n("n1"), nil, false},
		{node, schema.GroupKind{Kind: "Event"}, &corev1.Event{}, nil, true},
		{node, schema.GroupKind{Kind: "Service"}, &corev1.Service{}, nil, false},
		{node, schema.GroupKind{Group: "other", Kind: "Node"}, n("n1"), nil, false},
		{userOf(t, identity.Admin, "ada"), nodeKind, n("n2"), nil, true},
		{&user.DefaultInfo{Name: "mallory", Groups: []string{identity.GroupNodes}}, nodeKind, n("mallory"), nil, false},
		{nil, nodeKind, n("n1"), nil, false},
		{userOf(t, identity.Admin, "ada"), planKind, plan, nil, false},
		{userOf(t, identity.Admin, "ada"), planKind, plan, plan, false},
		{userOf(t, identity.Admin, "ada"), planKind, nil, plan, false},
		{node, planKind, plan, nil, false},
	} {
		w := Write{User: tc.who, Kind: tc.kind, Object: tc.obj, Old: tc.old}
		if err := new(WritePolicy).Allow(t.Context(), w); (err == nil) != tc.ok {
			t.Errorf("%v %v %v <- %v: %v", tc.who, tc.kind, tc.obj, tc.old, err)
		}
	}
}

func TestRulesFor(t *testing.T) {
	resources, paths, incomplete, err := NewAuthorizer().RulesFor(context.Background(), userOf(t, identity.Node, "n1"), LeaseNamespace)
	if err != nil || !incomplete || len(paths) == 0 { // the exception of global secrets is not listed
		t.Fatalf("%v %v %v", paths, incomplete, err)
	}
	found := false
	for _, r := range resources {
		if r.GetResources()[0] == "leases" {
			found = len(r.GetResourceNames()) == 1 && r.GetResourceNames()[0] == "n1"
		}
	}
	if !found {
		t.Error("the rule for its own Lease is missing")
	}
	if _, _, incomplete, _ := NewAuthorizer().RulesFor(context.Background(), userOf(t, identity.ReadOnly, "rob"), ""); !incomplete {
		t.Error("the exception of secrets is not listed")
	}
}

func TestDocument(t *testing.T) {
	doc := Document()
	if got, want := strings.Count(doc, "\n"), len(Rules())+2; got != want {
		t.Errorf("%d lines, want %d", got, want)
	}
	for _, want := range []string{"`*` except `secrets`", "`leases (coordination.k8s.io)` in namespace `kube-node-lease`, its own only"} {
		if !strings.Contains(doc, want) {
			t.Errorf("%q is missing in\n%s", want, doc)
		}
	}
}
