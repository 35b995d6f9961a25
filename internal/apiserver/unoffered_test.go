package apiserver_test

import (
	"net/http"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	"github.com/proxima-mesh/proxima/internal/apiserver"
	"github.com/proxima-mesh/proxima/internal/store/memory"
)

// TestUnofferedKinds: discovery lists them without verbs, and every request is refused
// with what to use instead.
func TestUnofferedKinds(t *testing.T) {
	gv := schema.GroupVersion{Group: "rbac.authorization.k8s.io", Version: "v1"}
	st := memory.New(memory.Options{})
	t.Cleanup(func() { st.Close() })
	h, err := start(st, func(c *apiserver.Config) {
		c.Unoffered = []apiserver.Unoffered{
			{GVK: gv.WithKind("Role"), Resource: "roles", Singular: "role", Namespaced: true, Instead: "use a token"},
			{GVK: gv.WithKind("ClusterRole"), Resource: "clusterroles", Singular: "clusterrole", Instead: "use a token"},
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.stop(); err != nil {
			t.Error(err)
		}
	})
	const root = "/apis/rbac.authorization.k8s.io"
	for _, tc := range []struct {
		method, path string
		code         int
		text         string
	}{
		{http.MethodGet, "", 200, `"preferredVersion":{"groupVersion":"rbac.authorization.k8s.io/v1"`},
		{http.MethodGet, "/v1", 200, `"name":"roles","singularName":"role","namespaced":true,"kind":"Role","verbs":[]`},
		{http.MethodGet, "/v1/roles", 405, "Role.rbac.authorization.k8s.io is not offered by this version: use a token"},
		{http.MethodGet, "/v1/namespaces/default/roles/x", 405, `"reason":"MethodNotAllowed"`},
		{http.MethodPost, "/v1/clusterroles", 405, "ClusterRole.rbac.authorization.k8s.io"},
		{http.MethodDelete, "/v1/clusterroles/x", 405, "ClusterRole.rbac.authorization.k8s.io"},
		{http.MethodGet, "/v1/others", 404, ""},
	} {
		code, body := h.do(t, tc.method, root+tc.path, "admin", nil, "")
		if code != tc.code || !strings.Contains(body, tc.text) {
			t.Errorf("%s %s: %d %s", tc.method, tc.path, code, body)
		}
	}
	lists, err := discovery.NewDiscoveryClientForConfigOrDie(h.config("admin")).ServerPreferredResources()
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, list := range lists {
		for _, r := range list.APIResources {
			if list.GroupVersion == gv.String() {
				if found++; len(r.Verbs) > 0 {
					t.Errorf("%s has verbs %v", r.Name, r.Verbs)
				}
			}
		}
	}
	if found != 2 {
		t.Errorf("discovery lists %d of the kinds", found)
	}
}
