package apiserver_test

import (
	"net/http"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/audit"

	"github.com/proxima-mesh/proxima/internal/apiserver"
	"github.com/proxima-mesh/proxima/internal/store/memory"
)

func TestAccess(t *testing.T) {
	for _, tc := range []struct {
		name, method, path, token string
		want                      int
	}{
		{"anonymous version", "GET", "/version", "", 200},
		{"anonymous health", "GET", "/healthz", "", 200},
		{"anonymous liveness", "GET", "/livez", "", 200},
		{"anonymous readiness", "GET", "/readyz", "", 200},
		{"anonymous check", "GET", "/readyz/store", "", 200},
		{"anonymous console", "GET", "/console/", "", 404}, // it is not served here, and not refused
		{"anonymous beside the console", "GET", "/consoles", "", 401},
		{"anonymous write to the console", "POST", "/console/", "", 403},
		{"anonymous post to health", "POST", "/healthz", "", 403},
		{"anonymous list", "GET", "/api/v1/namespaces", "", 401},
		{"anonymous discovery", "GET", "/apis", "", 401},
		{"anonymous metrics", "GET", "/metrics", "", 401},
		{"anonymous extra", "GET", "/extra", "", 401},
		{"wrong token", "GET", "/api/v1/namespaces", "wrong", 401},
		{"wrong token where none is needed", "GET", "/version", "wrong", 401},
		{"reader lists", "GET", "/api/v1/namespaces", "reader", 200},
		{"reader writes", "DELETE", "/api/v1/namespaces/x", "reader", 403},
		{"admin metrics", "GET", "/metrics", "admin", 200},
		{"admin extra", "GET", "/extra", "admin", 200},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, body := shared.do(t, tc.method, tc.path, tc.token, nil, "")
			if code != tc.want {
				t.Errorf("%s %s: %d, want %d: %s", tc.method, tc.path, code, tc.want, body)
			}
		})
	}
}

func TestAudit(t *testing.T) {
	path := "/api/v1/namespaces/default/configmaps"
	code, body := shared.do(t, "POST", path, "reader", http.Header{"Content-Type": {"application/json"}}, `{"metadata":{"name":"audited"}}`)
	if code != http.StatusForbidden {
		t.Fatalf("create: %d: %s", code, body)
	}
	e, ok := shared.audits.find(func(e apiserver.AuditEvent) bool { return e.User == "rob" && e.Verb == "create" })
	if !ok {
		t.Fatal("the refused write was not audited")
	}
	if e.Resource != "configmaps" || e.Namespace != "default" || e.Code != 403 || len(e.Source) == 0 || e.Time.IsZero() {
		t.Errorf("audit event %+v", e)
	}
	if !e.Refused {
		t.Error("the refusal is not recorded")
	}
}

// TestAuditedRequests: writes and refusals are recorded, and little else.
func TestAuditedRequests(t *testing.T) {
	s := memory.New(memory.Options{})
	srv, err := start(s, func(c *apiserver.Config) {
		c.AuditReads = []string{"/extra"}
		c.ExtraHandlers["/other"] = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			audit.AddAuditAnnotation(r.Context(), "mesh.proxima.dev/token-kind", "admin")
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := srv.stop(); err != nil {
			t.Error(err)
		}
		s.Close()
	}()
	const maps, leases = "/api/v1/namespaces/default/configmaps", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
	const review = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
	as := http.Header{"Content-Type": {"application/json"}, "Impersonate-User": {"rob"}, "Impersonate-Group": {"readers"}}
	for _, tc := range []struct {
		name, method, path, token string
		header                    http.Header
		body                      string
		// want: empty, written or refused
		want  string
		check func(apiserver.AuditEvent) bool
	}{
		{"create", "POST", maps, "writer", jsonType, `{"metadata":{"name":"a"}}`, "written", nil},
		{"create twice", "POST", maps, "writer", jsonType, `{"metadata":{"name":"a"}}`, "written",
			func(e apiserver.AuditEvent) bool { return e.Code == 409 }},
		{"read", "GET", maps, "reader", nil, "", "", nil},
		{"read that is recorded", "GET", "/extra?x=y", "reader", nil, "", "written", nil},
		{"read without credentials", "GET", maps, "", nil, "", "refused", func(e apiserver.AuditEvent) bool { return e.Code == 401 }},
		{"read with a wrong token", "GET", maps, "wrong", nil, "", "refused", nil},
		{"write that is not allowed", "POST", maps, "reader", jsonType, `{}`, "refused",
			func(e apiserver.AuditEvent) bool { return e.User == "rob" }},
		{"too large", "POST", maps, "writer", jsonType, strings.Repeat("[", 200), "refused",
			func(e apiserver.AuditEvent) bool { return e.Code == 413 }},
		{"in another's name", "POST", maps, "admin", as, `{"metadata":{"name":"b"}}`, "refused",
			func(e apiserver.AuditEvent) bool { return e.User == "rob" && e.Actor == "ann" }},
		{"review", "POST", review, "reader", jsonType, `{"spec":{"nonResourceAttributes":{"path":"/","verb":"get"}}}`, "", nil},
		{"first lease", "POST", leases, "node", jsonType, `{"metadata":{"name":"n1"}}`, "written", nil},
		{"renewal", "PATCH", leases + "/n1", "node", http.Header{"Content-Type": {"application/merge-patch+json"}},
			`{"spec":{"leaseTransitions":1}}`, "", nil},
		{"renewal by another", "PATCH", leases + "/n1", "writer", http.Header{"Content-Type": {"application/merge-patch+json"}},
			`{"spec":{"leaseTransitions":2}}`, "written", nil},
		{"detail", "POST", "/other", "writer", jsonType, `{}`, "written",
			func(e apiserver.AuditEvent) bool { return e.Details["token-kind"] == "admin" }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			srv.audits.reset()
			code, out := srv.do(t, tc.method, tc.path, tc.token, tc.header, tc.body)
			any := func(apiserver.AuditEvent) bool { return true }
			if tc.want == "" {
				if e, ok := srv.audits.find(any); ok || code >= 400 {
					t.Errorf("recorded: %+v; answer %d %s", e, code, out)
				}
				return
			}
			var e apiserver.AuditEvent
			eventually(t, "it is recorded", func() (ok bool) {
				e, ok = srv.audits.find(any)
				return ok
			})
			if e.Refused != (tc.want == "refused") || int(e.Code) != code || tc.check != nil && !tc.check(e) {
				t.Errorf("recorded %+v; answer %d %s", e, code, out)
			}
		})
	}
}

func TestAllowWriteJudgesWhatIsWritten(t *testing.T) {
	path := "/api/v1/namespaces/default/configmaps"
	header := http.Header{"Content-Type": {"application/json"}}
	code, body := shared.do(t, "POST", path, "admin", header, `{"metadata":{"name":"forbidden"}}`)
	if code != http.StatusForbidden || !strings.Contains(body, "this may not be written") {
		t.Errorf("create: %d: %s", code, body)
	}
	code, body = shared.do(t, "POST", path, "admin", header, `{"metadata":{"name":"keep"}}`)
	if code != http.StatusCreated {
		t.Fatalf("create: %d: %s", code, body)
	}
	code, body = shared.do(t, "DELETE", path+"/keep", "admin", nil, "")
	if code != http.StatusForbidden || !strings.Contains(body, "this may not be deleted") {
		t.Errorf("delete: %d: %s", code, body)
	}
}

// TestCredentialsOfAnotherKind: what the authenticator does not understand is
// refused, not overlooked.
func TestCredentialsOfAnotherKind(t *testing.T) {
	code, body := shared.do(t, "GET", "/version", "", http.Header{"Authorization": {"Basic dTpw"}}, "")
	if code != http.StatusUnauthorized {
		t.Errorf("%d: %s", code, body)
	}
}
