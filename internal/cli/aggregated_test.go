package cli

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/proxima-mesh/proxima/internal/kubernetes/extension"
	"github.com/proxima-mesh/proxima/internal/problem"
)

// TestSendToACluster: the paths of a control plane are asked for at the API server of a cluster,
// too, where they are an aggregated API, and an error says what to do where there is none.
func TestSendToACluster(t *testing.T) {
	const path = "/proxima/v1/simulate?all=true"
	direct, aggregated := "/proxima/v1/simulate", strings.TrimSuffix(extension.GroupPath(path), "?all=true")
	notFound := func(w http.ResponseWriter) { http.Error(w, "404 page not found", http.StatusNotFound) }
	forbidden := func(what string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprintf(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": %q, "reason": "Forbidden", "code": 403}`, what)
		}
	}
	answer := func(w http.ResponseWriter) { fmt.Fprint(w, `{"at": "here"}`) }
	for _, c := range []struct {
		name               string
		direct, aggregated func(http.ResponseWriter)
		code               problem.Code // of the error
		text, hint         string
	}{
		{name: "a control plane", direct: answer, aggregated: notFound},
		{name: "an aggregated API, to an administrator", direct: notFound, aggregated: answer},
		{name: "an aggregated API, to whom its roles allow", direct: forbidden("cannot get path"), aggregated: answer},
		{
			name: "no aggregated API, to an administrator", direct: notFound, aggregated: notFound,
			code: problem.APIOfCluster, text: "does not serve /proxima/v1/simulate", hint: "exec deployment/proxima -- proxima",
		},
		{
			name: "to whom the roles do not allow", direct: forbidden("cannot get path"), aggregated: forbidden("cannot get resource simulate"),
			text: "cannot get path; and as an aggregated API of a cluster: cannot get resource simulate",
		},
		{name: "a control plane refuses", direct: forbidden("nodes may not ask"), aggregated: notFound, text: "nodes may not ask"},
		{
			name: "no replica answers", direct: notFound, aggregated: func(w http.ResponseWriter) { http.Error(w, "service unavailable", http.StatusServiceUnavailable) },
			code: problem.APIUnavailable, text: "currently unable to handle the request",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.RawQuery != "all=true" {
					t.Errorf("query %q", r.URL.RawQuery)
				}
				if body, _ := io.ReadAll(r.Body); string(body) != "{\"a\":1}\n" {
					t.Errorf("body %q", body)
				}
				switch r.URL.Path {
				case direct:
					c.direct(w)
				case aggregated:
					c.aggregated(w)
				default:
					t.Errorf("path %s", r.URL.Path)
				}
			}))
			defer server.Close()
			cfg := &rest.Config{Host: server.URL}
			var out struct{ At string }
			err := explainAPI(cfg, callJSON(context.Background(), cfg, http.MethodPost, path, map[string]int{"a": 1}, &out))
			if c.text == "" {
				if err != nil || out.At != "here" {
					t.Errorf("%v, %+v", err, out)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.text) {
				t.Fatalf("%v, want %q", err, c.text)
			}
			if p, _ := problem.Of(err); p.Code != c.code {
				t.Errorf("code of %+v, want %q", p, c.code)
			}
			if hint := problem.HintOf(err, ""); !strings.Contains(hint, c.hint) {
				t.Errorf("hint %q, want %q in it", hint, c.hint)
			}
		})
	}
}
