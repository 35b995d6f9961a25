package apiserver_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/proxima-mesh/proxima/internal/apiserver"
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
	if e, ok := shared.audits.find(func(e apiserver.AuditEvent) bool { return e.Verb == "list" || strings.HasPrefix(e.Verb, "get") }); ok {
		t.Errorf("a read was audited: %+v", e)
	}
}

func TestAllowWriteJudgesWhatIsWritten(t *testing.T) {
	path := "/api/v1/namespaces/default/configmaps"
	header := http.Header{"Content-Type": {"application/json"}}
	code, body := shared.do(t, "POST", path, "admin", header, `{"metadata":{"name":"forbidden"}}`)
	if code != http.StatusForbidden || !strings.Contains(body, "nobody may write this") {
		t.Errorf("create: %d: %s", code, body)
	}
	code, body = shared.do(t, "POST", path, "admin", header, `{"metadata":{"name":"keep"}}`)
	if code != http.StatusCreated {
		t.Fatalf("create: %d: %s", code, body)
	}
	code, body = shared.do(t, "DELETE", path+"/keep", "admin", nil, "")
	if code != http.StatusForbidden || !strings.Contains(body, "nobody may delete this") {
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
