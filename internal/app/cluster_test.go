package app

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/node/local"
	"github.com/proxima-mesh/proxima/internal/proxy/modes"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// syncedLog keeps what is logged. The zero value is ready for use; safe for concurrent use.
type syncedLog struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write implements io.Writer.
func (l *syncedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String is what was logged.
func (l *syncedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

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
	a.cfg.Name, a.cfg.DataDir, a.cfg.Cluster = "n1", t.TempDir(), &ClusterConfig{REST: &rest.Config{Host: api.URL}, NodeCIDR: true, Primary: true}
	if err := a.learnNode(t.Context()); err != nil {
		t.Fatal(err)
	}
	if want := []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}; !slices.Equal(a.cfg.WorkloadCIDRs, want) {
		t.Errorf("ranges of workloads: %v, want %v", a.cfg.WorkloadCIDRs, want)
	}
	if want := []netip.Prefix{netip.MustParsePrefix("198.51.100.1/32")}; !slices.Equal(a.cfg.NodePortAddresses, want) { // of a mode that does not follow them
		t.Errorf("addresses of node ports: %v, want %v", a.cfg.NodePortAddresses, want)
	}
	if !strings.Contains(log.String(), "the API has no node of this name") {
		t.Errorf("the log does not say why it waits:\n%s", log.String())
	}
}

// clusterNode serves one Node to agents as an API does that allows list and watch of it alone.
type clusterNode struct {
	*httptest.Server
	addresses atomic.Pointer[string] // JSON; nil: there is no Node
}

func newClusterNode(t *testing.T) *clusterNode {
	c := &clusterNode{}
	const mark = `{"type":"BOOKMARK","object":{"kind":"Node","apiVersion":"v1","metadata":{"resourceVersion":"7",` +
		`"annotations":{"k8s.io/initial-events-end":"true"}}}}`
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if a := c.addresses.Load(); a != nil {
			_, _ = w.Write([]byte(`{"type":"ADDED","object":{"kind":"Node","apiVersion":"v1","metadata":{"name":"n1","resourceVersion":"7"},"status":{"addresses":` + *a + "}}}\n"))
		}
		_, _ = w.Write([]byte(mark + "\n"))
	}))
	t.Cleanup(c.Close)
	return c
}

// set the addresses of the Node.
func (c *clusterNode) set(addresses string) { c.addresses.Store(&addresses) }

// TestAgentWaitsForItsAddress: an agent whose Node has no address of type InternalIP yet, on which its node ports depend, goes on
// when it has; until then it is alive and not healthy, and its status and log say what it waits for.
func TestAgentWaitsForItsAddress(t *testing.T) {
	api := newClusterNode(t)
	api.set(`[{"type":"Hostname","address":"n1"},{"type":"ExternalIP","address":"198.51.100.1"}]`)
	var log syncedLog
	a := &agent{log: slog.New(slog.NewTextHandler(&log, nil))}
	a.cfg = NodeConfig{
		Name: "n1", Mode: nftablesMode, Host: "127.0.0.1", HealthPort: testkit.FreePort(t), DataDir: t.TempDir(),
		Cluster: &ClusterConfig{REST: &rest.Config{Host: api.URL}, Primary: true},
	}
	done := make(chan error, 1)
	go func() { done <- a.learnNode(t.Context()) }()
	health := func(path string) int {
		resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d%s", a.cfg.HealthPort, path))
		if err != nil {
			return 0
		}
		defer resp.Body.Close()
		return resp.StatusCode
	}
	until(t, "health", func() bool { return health("/livez") != 0 })
	if alive, healthy := health("/livez"), health("/healthz"); alive != http.StatusOK || healthy != http.StatusServiceUnavailable {
		t.Errorf("/livez answers %d, /healthz %d", alive, healthy)
	}
	const why = "node n1: it has no address of type InternalIP yet"
	until(t, "the status that says what it waits for", func() bool {
		var status admin.NodeStatus
		err := (&local.Client{DataDir: a.cfg.DataDir}).Ask(t.Context(), local.StatusPath, nil, &status)
		return err == nil && strings.Contains(status.Waiting, why) && status.Agent.Node.Name == "n1"
	})
	select {
	case err := <-done:
		t.Fatalf("it does not wait: %v", err)
	default:
	}
	api.set(`[{"type":"InternalIP","address":"192.0.2.1"},{"type":"InternalIP","address":"192.0.2.2"},{"type":"InternalIP","address":"fd00::1"}]`)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(a.primaryAddresses()); got != "[192.0.2.1 fd00::1]" {
		t.Errorf("addresses %s", got)
	}
	if n := strings.Count(log.String(), "waiting for this machine's node"); n != 1 || !strings.Contains(log.String(), "has no address of type InternalIP") {
		t.Errorf("it is logged %d times:\n%s", n, &log)
	}
	for _, open := range []func() (net.Listener, error){a.listenHealth, a.listenLocal} { // the agent needs them now
		l, err := open()
		if err != nil || l == nil {
			t.Fatalf("%v, %v", l, err)
		}
		_ = l.Close()
	}
}

// TestAgentEndsWhileItWaits: an agent that is stopped before its Node has what it needs has not failed.
func TestAgentEndsWhileItWaits(t *testing.T) {
	api := newClusterNode(t)
	api.set(`[]`)
	ctx, cancel := context.WithCancel(t.Context())
	done, port := make(chan error, 1), testkit.FreePort(t)
	go func() {
		done <- RunNode(ctx, NodeConfig{
			Name: "n1", Mode: userspaceMode, Host: "127.0.0.1", HealthPort: port, DataDir: t.TempDir(),
			Cluster: &ClusterConfig{REST: &rest.Config{Host: api.URL}, Primary: true},
		}, func(Serving) { t.Error("it serves") })
	}()
	until(t, "health", func() bool {
		resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/livez", port))
		if err == nil {
			resp.Body.Close()
		}
		return err == nil
	})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// addressed is a mode that follows the addresses of the Node.
type addressed struct {
	modes.Mode
	changed int
}

// AddressesChanged implements proxy.Addressed.
func (m *addressed) AddressesChanged() { m.changed++ }

// TestAgentFollowsItsAddresses: other addresses of the Node are those of node ports from then on, in a mode that can; else the log
// says that a restart is needed. A Node without any changes nothing.
func TestAgentFollowsItsAddresses(t *testing.T) {
	nodeOf := func(addresses ...string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
		for _, a := range addresses {
			n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
		}
		return n
	}
	var log syncedLog
	m := &addressed{}
	a := &agent{log: slog.New(slog.NewTextHandler(&log, nil)), mode: m}
	a.cfg.Cluster = &ClusterConfig{Primary: true}
	for i, step := range []struct {
		node    *corev1.Node
		want    string
		changed int
	}{
		{nodeOf("192.0.2.1", "fd00::1"), "[192.0.2.1 fd00::1]", 1},
		{nodeOf("192.0.2.1", "fd00::1"), "[192.0.2.1 fd00::1]", 1},
		{nodeOf(), "[192.0.2.1 fd00::1]", 1},
		{nodeOf("192.0.2.9", "fd00::1"), "[192.0.2.9 fd00::1]", 2},
	} {
		a.followAddresses(step.node)
		if got := fmt.Sprint(a.primaryAddresses()); got != step.want || m.changed != step.changed {
			t.Errorf("step %d: %s, told %d times; want %s, %d times", i, got, m.changed, step.want, step.changed)
		}
	}
	if log.String() != "" {
		t.Errorf("a mode that follows: %s", &log)
	}
	a.cfg.NodePortAddresses = []netip.Prefix{netip.MustParsePrefix("192.0.2.9/32"), netip.MustParsePrefix("fd00::1/128")} // as in mode iptables
	a.followAddresses(nodeOf("192.0.2.10", "fd00::1"))
	if !strings.Contains(log.String(), "until the agent is restarted") {
		t.Errorf("a mode that does not follow: %q", &log)
	}
}
