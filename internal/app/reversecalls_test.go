package app

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/store/memory"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// proxy asks for what an agent has, and returns the HTTP status and the body, or the message
// of the refusal. token is that of the user; empty: the admin of the kubeconfig.
func (p *plane) proxy(path, token string, query ...string) (int, string) {
	p.t.Helper()
	return p.proxyBy(http.MethodGet, path, token, query...)
}

// proxyBy is proxy by another method.
func (p *plane) proxyBy(method, path, token string, query ...string) (int, string) {
	p.t.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(p.cfg.DataDir, "kubeconfig"))
	if err != nil {
		p.t.Fatal(err)
	}
	if token != "" {
		cfg = rest.AnonymousClientConfig(cfg)
		cfg.BearerToken = token
	}
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		p.t.Fatal(err)
	}
	q := url.Values{}
	for i := 0; i < len(query); i += 2 {
		q.Set(query[i], query[i+1])
	}
	r, err := http.NewRequestWithContext(p.t.Context(), method, cfg.Host+path+"?"+q.Encode(), http.NoBody)
	if err != nil {
		p.t.Fatal(err)
	}
	resp, err := client.Do(r)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	var status metav1.Status
	if resp.StatusCode != http.StatusOK && json.Unmarshal(body, &status) == nil {
		return resp.StatusCode, status.Message
	}
	return resp.StatusCode, string(body)
}

// agents that follow their view, as the status of the instance has them.
func (p *plane) agents() []admin.AgentStatus {
	p.t.Helper()
	code, body := p.proxy(admin.StatusPath, "")
	var s admin.Status
	if err := json.Unmarshal([]byte(body), &s); code != http.StatusOK || err != nil {
		p.t.Fatalf("status: %d %s, %v", code, body, err)
	}
	if len(s.SilentInstances) > 0 {
		p.t.Errorf("instances that did not answer: %v", s.SilentInstances)
	}
	return s.Agents
}

// TestReverseCalls: two instances of global and two of a zone. Whichever is asked, the agent
// answers, whose stream goes to the instance of the zone that has no stream to global.
func TestReverseCalls(t *testing.T) {
	several := func(cfg ControlPlaneConfig, key string) ControlPlaneConfig {
		cfg.Store, cfg.ClusterKeyFile, cfg.ZoneTimeout = "postgres://test", key, 3*time.Second
		return cfg
	}
	ofGlobal, ofZone := store.Store(memory.New(memory.Options{})), store.Store(memory.New(memory.Options{}))
	t.Cleanup(func() { ofGlobal.Close(); ofZone.Close() })
	globalKey, zoneKey := clusterKey(t), clusterKey(t)
	var globals, zone []*plane
	var proxyPort int
	for range 2 {
		globals = append(globals, startPlane(t, several(planeConfig(t, RoleGlobal), globalKey), ofGlobal))
	}
	s := &sites{t: t, global: globals[0]}
	code, got := globals[0].proxy(admin.ProxyConfigPath, "", "name", "n1")
	if code != http.StatusNotFound || !strings.Contains(got, "there are no zones") {
		t.Errorf("without zones: %d %q", code, got)
	}
	s.global.create(kind.Zone, &meshv1alpha1.Zone{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
	for range 2 {
		cfg := several(s.zoneConfig("a", "a"), zoneKey)
		cfg.Global = globals[0].global.api.address.String()
		proxyPort = testkit.FreePort(t)
		cfg.XDSPort, cfg.XDSPortChosen = proxyPort, true
		zone = append(zone, startPlane(t, cfg, ofZone))
		until(t, "zone a is online", func() bool { return s.online("a") })
	}
	// The leader has the stream to global, the other one that of the agent and the ingress.
	site := testSite{&meshPlane{t: t, cp: zone[1].cp}}
	_, stop := site.start("n1", func(*NodeConfig) {})
	site.startIngress("ingress-1")
	if zone[1].cp.zone.current.Load() != nil || zone[0].cp.zone.current.Load() == nil {
		t.Fatal("the first instance of the zone does not lead")
	}
	w := workloadAt("web", "10.1.0.1")
	w.Spec.NodeName = "n1"
	zone[0].create(kind.Dataplane, w)
	zone[0].create(kind.Dataplane, workloadAt("nowhere", "10.1.0.2"))
	planes := map[string]*plane{"global 0": globals[0], "global 1": globals[1], "zone 0": zone[0], "zone 1": zone[1]}
	for i, at := range []string{instanceName(zone[1].cp.api.address), ""} {
		until(t, fmt.Sprintf("instance %d of the zone knows that n1 follows at %q", i, at), func() bool {
			return slices.ContainsFunc(zone[i].agents(), func(a admin.AgentStatus) bool { return a.Node == "n1" && a.Instance == at })
		})
	}
	for name, p := range planes {
		until(t, name+" reaches n1", func() bool {
			code, _ := p.proxy(admin.ProxyConfigPath, "", "name", "n1")
			return code == http.StatusOK
		})
		for _, test := range []struct {
			path  string
			query []string
			want  string
		}{
			{admin.ProxyConfigPath, []string{"name", "n1"}, `"mode":"userspace"`},
			{admin.ProxyConfigPath, []string{"name", "n1", "zone", "a"}, `"name":"n1"`},
			{admin.ProxyClustersPath, []string{"name", "n1"}, `"name":"default/kubernetes:https"`},
			{admin.ProxyClustersPath, []string{"name", "web", "namespace", "default"}, `"name":"n1"`},
			{admin.ProxyConfigPath, []string{"name", "ingress-1"}, `"name":"ingress-1"`},
			{admin.ProxyStatsPath, []string{"name", "ingress-1"}, "# TYPE proxima_node_"},
		} {
			if code, got := p.proxy(test.path, "", test.query...); code != http.StatusOK || !strings.Contains(got, test.want) {
				t.Errorf("%s, %s of %v: %d %.300q, want %q", name, test.path, test.query, code, got, test.want)
			}
		}
		for _, test := range []struct {
			query []string
			code  int
			want  string
		}{
			{[]string{"name", "n9"}, http.StatusNotFound, "zone a has no node, ingress or egress n9"},
			{[]string{"name", "none", "namespace", "default"}, http.StatusNotFound, "zone a has no Dataplane default/none"},
			{[]string{"name", "nowhere", "namespace", "default"}, http.StatusConflict, "Dataplane default/nowhere has no node"},
			{nil, http.StatusBadRequest, "name: give that of a node"},
		} {
			if code, got := p.proxy(admin.ProxyConfigPath, "", test.query...); code != test.code || !strings.Contains(got, test.want) {
				t.Errorf("%s, %v: %d %q, want %d with %q", name, test.query, code, got, test.code, test.want)
			}
		}
	}
	own := namedMesh("own")
	own.Labels = map[string]string{meshv1alpha1.LabelOrigin: meshv1alpha1.OriginZone}
	zone[0].create(kind.Mesh, own)
	for i, p := range globals {
		if _, _, got := p.dryRun(kind.Mesh, namedMesh("own")); !strings.Contains(got, "zone a: it would replace own") {
			t.Errorf("a dry run at instance %d of global: %q", i, got)
		}
	}
	testProxiedCalls(t, planes, zone[1], fmt.Sprintf("127.0.0.1:%d", proxyPort))
	testProgrammed(t, zone[0], fmt.Sprintf("127.0.0.1:%d", proxyPort))
	testProxyAccess(t, globals[0], zone[0])
	testMissingHops(s, globals, zone, stop)
}

// testProxyAccess: the answers are for admins.
func testProxyAccess(t *testing.T, globalPlane, zonePlane *plane) {
	for _, test := range []struct {
		at   *plane
		of   identity.Kind
		name string
	}{
		{globalPlane, identity.ReadOnly, "reader"}, {globalPlane, identity.Zone, "a"},
		{zonePlane, identity.Node, "n1"}, {zonePlane, identity.ReadOnly, "reader"},
	} {
		tokens := zonePlane.cp.storage.tokens
		if test.at == globalPlane {
			tokens = globalPlane.global.storage.tokens
		}
		token, _, err := tokens.Create(t.Context(), test.of, test.name, time.Hour, "test")
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range admin.ProxyPaths() {
			if code, got := test.at.proxy(path, token.Reveal(), "name", "n1"); code != http.StatusForbidden {
				t.Errorf("%s with a token of kind %s: %d %.100q", path, test.of, code, got)
			}
		}
	}
}

// testMissingHops: an error names the hop that is missing, from the agent back to global.
func testMissingHops(s *sites, globals, zone []*plane, stopAgent func()) {
	s.t.Helper()
	refused := func(what string, p *plane, code int, want ...string) {
		s.t.Helper()
		until(s.t, what, func() bool {
			got, text := p.proxy(admin.ProxyStatsPath, "", "name", "n1", "zone", "a")
			for _, w := range want {
				if !strings.Contains(text, w) {
					return false
				}
			}
			return got == code
		})
	}
	instance := func(p *plane) string {
		if p.global != nil {
			return instanceName(p.global.api.address)
		}
		return instanceName(p.cp.api.address)
	}
	stopAgent()
	for _, p := range append(globals, zone[0]) {
		refused("the agent is missing", p, http.StatusServiceUnavailable,
			"the agent of node n1 has no stream to this instance", "of the control plane of zone a", instance(zone[0]), instance(zone[1]))
	}
	zone[1].stop()
	zone[0].stop()
	for _, p := range globals {
		refused("the zone is missing", p, http.StatusServiceUnavailable, "the control plane of zone a has no stream to this instance of global",
			fmt.Sprintf("(%s)", instance(p)), "nor to")
	}
	s.enable("a", false)
	refused("the zone is disabled", globals[1], http.StatusServiceUnavailable, "zone a is disabled")
	s.global.create(kind.Zone, &meshv1alpha1.Zone{ObjectMeta: metav1.ObjectMeta{Name: "b"}})
	code, got := globals[0].proxy(admin.ProxyConfigPath, "", "name", "n1")
	if code != http.StatusBadRequest || !strings.Contains(got, "name the one that it is in, of a, b") {
		s.t.Errorf("two zones, and none is named: %d %q", code, got)
	}
	code, got = globals[0].proxy(admin.ProxyConfigPath, "", "name", "n1", "zone", "c")
	if code != http.StatusNotFound || !strings.Contains(got, "there is no zone c") {
		s.t.Errorf("an unknown zone: %d %q", code, got)
	}
}
