package apiserver_test

import (
	"net/http"
	"strings"
	"testing"
)

func TestIllFormedRequests(t *testing.T) {
	for _, path := range []string{
		"/api/v1/namespaces/%2e%2e/services",
		"/api/v1/namespaces/%2e%2e/services/x",
		"/api/v1/namespaces/%2e/configmaps",
		"/api/v1/namespaces/%2e%2e/services?watch=1&timeoutSeconds=1",
		"/api/v1/services?watch=1&resourceVersion=-1&timeoutSeconds=1",
		"/api/v1/events?watch=1&resourceVersion=99999999999999999999&timeoutSeconds=1",
		"/api/v1/watch/services?resourceVersion=x&timeoutSeconds=1",
	} {
		if code, body := shared.do(t, http.MethodGet, path, "admin", nil, ""); code != http.StatusBadRequest {
			t.Errorf("GET %s: %d %s", path, code, body)
		}
	}
	for _, path := range []string{"/api/v1/namespaces/%2e%2e/services", "/api/v1/namespaces/%2e%2e/configmaps/x"} {
		if code, body := shared.do(t, http.MethodDelete, path, "admin", nil, ""); code != http.StatusBadRequest {
			t.Errorf("DELETE %s: %d %s", path, code, body)
		}
	}
}

// TestPathsAreNotForAnybody: a path that is not served lists those that are, but not to a
// client who is not known.
func TestPathsAreNotForAnybody(t *testing.T) {
	for _, path := range []string{"/healthz/nope", "/healthz/%2e%2e/x", "/readyz/..%2f"} {
		// The server of the tests knows nobody but by token; the answer is the handler's own.
		code, body := shared.do(t, http.MethodGet, path, "", nil, "")
		if code == http.StatusOK || strings.Contains(body, `"paths"`) {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	if _, body := shared.do(t, http.MethodGet, "/healthz/nope", "admin", nil, ""); !strings.Contains(body, "/healthz/ping") {
		t.Errorf("an administrator sees %s", body)
	}
}
