package app

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/apiserver"
	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/memory"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// clustered is an instance that takes part in the election on the store.
type clustered struct {
	cp     *standalone
	client *apiserver.Client
	stop   func()
}

func clusterKey(t *testing.T) string {
	t.Helper()
	key := make([]byte, 32)
	_, _ = rand.Read(key)
	file := filepath.Join(t.TempDir(), "cluster.key")
	if err := os.WriteFile(file, []byte(base64.StdEncoding.EncodeToString(key)), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func clusteredConfig(dir, key string) ControlPlaneConfig {
	return ControlPlaneConfig{
		Store: "postgres://test", DataDir: dir, APIAddress: "127.0.0.1:0", MachineID: dir, ClusterKeyFile: key,
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/24")},
	}
}

func openClustered(t *testing.T, s store.Store, cfg ControlPlaneConfig) (*standalone, error) {
	t.Helper()
	return newStandaloneOn(t.Context(), cfg,
		func(context.Context, string, string, *slog.Logger) (store.Store, error) { return shared{s}, nil }, nil)
}

func startClustered(t *testing.T, s store.Store, cfg ControlPlaneConfig) *clustered {
	t.Helper()
	var detector resourcetest.Detector
	if cfg.Wrap == nil {
		cfg.Wrap = detector.Wrap
	}
	cp, err := openClustered(t, s, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- run(ctx, cp.election, append(cp.components(), announce(func(Serving) { close(ready) }, cp.serving())))
	}()
	stopped := false
	c := &clustered{cp: cp, stop: func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		cp.close()
		detector.Check(t)
	}}
	t.Cleanup(c.stop)
	select {
	case <-ready:
	case <-time.After(testkit.Timeout):
		t.Fatal("the control plane does not become ready")
	}
	c.client = cp.api.server.Client("system:test")
	return c
}

func (c *clustered) leads() bool {
	return c.cp.others.ballots != nil && c.cp.others.ballots.Status().Leads
}

func sharedSecret(name, value string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Data: map[string][]byte{"k": []byte(value)}}
}

func (c *clustered) secret(t *testing.T, name string) string {
	t.Helper()
	obj, err := c.client.Get(t.Context(), kind.Secret, resource.Key{Namespace: "default", Name: name})
	if err != nil {
		t.Errorf("read secret %s: %v", name, err)
		return ""
	}
	return string(obj.(*corev1.Secret).Data["k"])
}

// TestOneInstanceBecomesSeveral: a control plane of one instance goes on as several with its
// authority and its secrets; they share the work of the leader and the keys, and one data
// directory may be lost.
func TestOneInstanceBecomesSeveral(t *testing.T) {
	s := memory.New(memory.Options{})
	t.Cleanup(func() { s.Close() })
	dir, key := t.TempDir(), clusterKey(t)
	alone := startClustered(t, s, clusteredConfig(dir, ""))
	if alone.leads() || alone.cp.leader.planner.Load() == nil {
		t.Error("an instance alone takes part in an election, or does not lead")
	}
	if _, err := alone.client.Create(t.Context(), kind.Secret, sharedSecret("before", "1")); err != nil {
		t.Fatal(err)
	}
	pin := alone.cp.storage.ca.Pin()
	alone.stop()

	first := startClustered(t, s, clusteredConfig(dir, key))
	testkit.Eventually(t, "the first leads", first.leads)
	second := startClustered(t, s, clusteredConfig(t.TempDir(), key))
	if got := second.cp.storage.ca.Pin(); got != pin {
		t.Errorf("the second has another authority: %v, not %v", got, pin)
	}
	if got := second.secret(t, "before"); got != "1" {
		t.Errorf("the second reads %q", got)
	}
	if second.leads() {
		t.Error("both lead")
	}

	// A rotation at one instance is known at the other before it reads what came of it.
	if _, err := second.cp.storage.rotation(second.cp.api.server).Step(t.Context(), time.Minute, true); err != nil {
		t.Fatal(err)
	}
	if _, err := second.client.Create(t.Context(), kind.Secret, sharedSecret("rotated", "2")); err != nil {
		t.Fatal(err)
	}
	if before, after := first.secret(t, "before"), first.secret(t, "rotated"); before != "1" || after != "2" {
		t.Errorf("after the rotation the first reads %q and %q", before, after)
	}

	// What the leader does passes the fence, and goes on with the next leader.
	if _, err := second.client.Create(t.Context(), kind.Service, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}}},
	}); err != nil {
		t.Fatal(err)
	}
	sliceOf := func(c *clustered, service string) bool {
		objects, _, err := c.client.List(t.Context(), kind.EndpointSlice, resource.ListOptions{Namespace: "default"})
		if err != nil {
			t.Error(err)
		}
		for _, o := range objects {
			if o.(*discoveryv1.EndpointSlice).Labels[discoveryv1.LabelServiceName] == service {
				return true
			}
		}
		return false
	}
	testkit.Eventually(t, "the leader's slice", func() bool { return sliceOf(second, "web") })
	first.stop()
	began := time.Now()
	testkit.Eventually(t, "the second leads", second.leads)
	t.Logf("the second leads %v after the first has ended", time.Since(began))
	if _, err := second.client.Create(t.Context(), kind.Service, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "more"},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}}},
	}); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the slice of the second", func() bool { return sliceOf(second, "more") })

	// The data directory of the first is lost.
	third := startClustered(t, s, clusteredConfig(t.TempDir(), key))
	if third.cp.storage.ca.Pin() != pin || third.secret(t, "before") != "1" || third.secret(t, "rotated") != "2" {
		t.Error("an instance with an empty data directory is not one of them")
	}
	// That of the first comes back with the key ring as it was.
	again := startClustered(t, s, clusteredConfig(dir, key))
	if again.secret(t, "rotated") != "2" {
		t.Error("an instance that was away does not know the new key")
	}
}

// TestInstancesRefused: each for its reason.
func TestInstancesRefused(t *testing.T) {
	s := memory.New(memory.Options{})
	t.Cleanup(func() { s.Close() })
	key := clusterKey(t)
	startClustered(t, s, clusteredConfig(t.TempDir(), key)).stop()
	other := t.TempDir()
	unrelated := memory.New(memory.Options{})
	t.Cleanup(func() { unrelated.Close() })
	startClustered(t, unrelated, clusteredConfig(other, "")).stop()
	sqlite := clusteredConfig(t.TempDir(), key)
	sqlite.Store = "sqlite:"
	for what, refused := range map[string]struct {
		cfg  ControlPlaneConfig
		want string
		code problem.Code
	}{
		"no cluster key":         {clusteredConfig(t.TempDir(), ""), "several instances", problem.ClusterKey},
		"another cluster key":    {clusteredConfig(t.TempDir(), clusterKey(t)), "another cluster key", problem.ClusterKey},
		"no such file":           {clusteredConfig(t.TempDir(), "/nonexistent/key"), "no such file", problem.ClusterKey},
		"another data directory": {clusteredConfig(other, key), "of another control plane", problem.ClusterKey},
	} {
		_, err := openClustered(t, s, refused.cfg)
		if err == nil || !strings.Contains(err.Error(), refused.want) || codeOf(err) != refused.code || problem.HintOf(err, "") == "" {
			t.Errorf("%s: %v (code %q, hint %q)", what, err, codeOf(err), problem.HintOf(err, ""))
		}
	}
	if _, err := newStandalone(t.Context(), sqlite); codeOf(err) != problem.StoreUnsupported {
		t.Errorf("several instances on SQLite: %v", err)
	}
	if _, err := os.Stat(filepath.Join(other, "pki", "ca", "ca.key")); err != nil {
		t.Errorf("the refused instance has lost its own keys: %v", err)
	}
}

func codeOf(err error) problem.Code {
	p, _ := problem.Of(err)
	return p.Code
}

// TestLeaderAddress: instances know where the leader takes reports of demand, and it knows that it
// leads.
func TestLeaderAddress(t *testing.T) {
	s := memory.New(memory.Options{})
	t.Cleanup(func() { s.Close() })
	key := clusterKey(t)
	start := func() *clustered {
		cfg := clusteredConfig(t.TempDir(), key)
		cfg.GRPCPort = testkit.FreePort(t)
		return startClustered(t, s, cfg)
	}
	first := start()
	testkit.Eventually(t, "the first leads", first.leads)
	second := start()
	testkit.Eventually(t, "the second knows where the leader is", func() bool {
		return second.cp.others.leaderAddress() == first.cp.instance.listener.Addr().String()
	})
	if got := first.cp.others.leaderAddress(); got != "" {
		t.Errorf("the leader passes reports on to %s", got)
	}
	first.stop()
	testkit.Eventually(t, "the second leads", second.leads)
	if got := second.cp.others.leaderAddress(); got != "" {
		t.Errorf("the new leader passes reports on to %s", got)
	}
}
