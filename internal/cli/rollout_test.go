package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/problem"
)

// kubeconfigFor a server.
func kubeconfigFor(t *testing.T, handler http.Handler) string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: x\nclusters: [{name: x, cluster: {server: %q}}]\ncontexts: [{name: x, context: {cluster: x, user: x}}]\nusers: [{name: x, user: {}}]\n", server.URL)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestRolloutWaits: --watch ends when all agents have confirmed, and fails when its time is over; an object stands for its revision.
func TestRolloutWaits(t *testing.T) {
	var asked atomic.Int64
	mux := http.NewServeMux()
	mux.HandleFunc("/api/v1/namespaces/shop/services/web", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"apiVersion":"v1","kind":"Service","metadata":{"namespace":"shop","name":"web","resourceVersion":"41"}}`)
	})
	mux.HandleFunc(admin.ChangesPath, func(w http.ResponseWriter, r *http.Request) {
		out := admin.Rollout{Revision: 41, Newest: 50, Committed: true, Viewed: true, Agents: 3, Sent: 3, Confirmed: 2, Slowest: []admin.AgentRollout{{Node: "n-3", Sent: true, Behind: 7}}}
		if asked.Add(1) >= 3 && strings.HasSuffix(r.URL.Path, "/41") {
			out.Confirmed, out.Slowest = 3, nil
		}
		_ = json.NewEncoder(w).Encode(&out)
	})
	file := kubeconfigFor(t, mux)
	says(t, 0, []string{"rollout", "41", "--kubeconfig", file}, []string{"revision 41: committed; sent to 3 and confirmed by 2 of 3 agents", "node n-3 was sent it and has not confirmed it, 7 changes behind"}, nil)
	says(t, 0, []string{"rollout", "service/web", "-n", "shop", "--watch", "--kubeconfig", file}, []string{"confirmed by 3 of 3 agents"}, []string{"n-3"})
	says(t, 1, []string{"rollout", "40", "--watch", "--timeout", "300ms", "--kubeconfig", file},
		[]string{"revision 40 has not reached all agents within 300ms: 2 of 3", string(problem.RolloutIncomplete), "n-3"}, nil)
	says(t, 2, []string{"rollout", "web", "--kubeconfig", file}, []string{`"web": use a revision, or KIND/NAME`}, nil)
}

// TestDoctorCluster: problems are grouped by code, each group says once what mends it, and errors make the exit code.
func TestDoctorCluster(t *testing.T) {
	found := admin.Problems{Problems: []admin.Problem{
		{Code: "node-not-ready", Severity: admin.SeverityError, Kind: "Node", Name: "a", Problem: "node a is not ready", Fix: "see its log", Since: time.Now().Add(-time.Hour)},
		{Code: "node-not-ready", Severity: admin.SeverityError, Kind: "Node", Name: "b", Problem: "node b is not ready", Fix: "see its log"},
		{Code: "connections-long", Severity: admin.SeverityWarning, Kind: "Service", Namespace: "shop", Name: "web", Problem: "they stay open"},
	}}
	mux := http.NewServeMux()
	mux.HandleFunc(admin.ProblemsPath, func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(&found) })
	file := kubeconfigFor(t, mux)
	code, out, _ := runHere(t, "doctor", "--cluster", "--kubeconfig", file)
	if code != 1 || strings.Count(out, "see its log") != 1 || strings.Count(out, "node-not-ready") != 1 || !strings.Contains(out, "error  node-not-ready (2)") ||
		!strings.Contains(out, "- Node a: node a is not ready, since 60m") || !strings.Contains(out, "warning  connections-long (1)") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	found.Problems = found.Problems[2:]
	says(t, 0, []string{"doctor", "--cluster", "-o", "json", "--kubeconfig", file}, []string{`"code": "connections-long"`, `"severity": "warning"`}, nil)
	found.Problems = nil
	says(t, 0, []string{"doctor", "--cluster", "--kubeconfig", file}, []string{"no problems found"}, nil)
	says(t, 2, []string{"doctor", "--cluster", "--fix", "--kubeconfig", file}, []string{"--cluster goes without --fix"}, nil)
}
