package app

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/client-go/rest"
)

// TestAgentReadsItsNodeAsTheRoleAllows: settings that depend on the Node need no verb but list and watch
// of nodes, which the chart's role has; the agent asks for its own Node alone, and waits for it.
func TestAgentReadsItsNodeAsTheRoleAllows(t *testing.T) {
	const node = `{"kind":"Node","apiVersion":"v1","metadata":{"name":"n1","resourceVersion":"7"},` +
		`"spec":{"podCIDR":"10.244.1.0/24","podCIDRs":["10.244.1.0/24"]},` +
		`"status":{"addresses":[{"type":"InternalIP","address":"198.51.100.1"},{"type":"InternalIP","address":"198.51.100.2"}]}}`
	const mark = `{"type":"BOOKMARK","object":{"kind":"Node","apiVersion":"v1","metadata":{"resourceVersion":"7",` +
		`"annotations":{"k8s.io/initial-events-end":"true"}}}}`
	var asked atomic.Int32
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		query := r.URL.Query()
		if r.URL.Path != "/api/v1/nodes" || query.Get("fieldSelector") != "metadata.name=n1" || query.Get("watch") == "" {
			w.WriteHeader(http.StatusForbidden)
			_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"` + r.URL.Path + ` is forbidden"}`))
			return
		}
		if asked.Add(1) > 1 { // the node joins meanwhile
			_, _ = w.Write([]byte(`{"type":"ADDED","object":` + node + "}\n"))
		}
		_, _ = w.Write([]byte(mark + "\n"))
	}))
	defer api.Close()
	var log strings.Builder
	a := &agent{log: slog.New(slog.NewTextHandler(&log, nil))}
	a.cfg.Name, a.cfg.Cluster = "n1", &ClusterConfig{REST: &rest.Config{Host: api.URL}, NodeCIDR: true, Primary: true}
	if err := a.learnNode(t.Context()); err != nil {
		t.Fatal(err)
	}
	if want := []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}; !slices.Equal(a.cfg.WorkloadCIDRs, want) {
		t.Errorf("ranges of workloads: %v, want %v", a.cfg.WorkloadCIDRs, want)
	}
	if want := []netip.Prefix{netip.MustParsePrefix("198.51.100.1/32")}; !slices.Equal(a.cfg.NodePortAddresses, want) {
		t.Errorf("addresses of node ports: %v, want %v", a.cfg.NodePortAddresses, want)
	}
	if !strings.Contains(log.String(), "the API has no node of this name") {
		t.Errorf("the log does not say why it waits:\n%s", log.String())
	}
}
