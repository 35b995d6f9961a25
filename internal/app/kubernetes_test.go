package app

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/store/memory"
	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/internal/topology"
	"github.com/proxima-mesh/proxima/internal/topology/traffic"
)

// beside is a control plane whose API stands for that of a cluster, and planner-only beside
// it, as a user who may only read.
type beside struct {
	t       *testing.T
	cluster *plane
	rest    *rest.Config
	dir     string
	took    time.Duration // from the start to ready

	mu       sync.Mutex
	requests map[string]int // of planner-only, by method and path
	refuse   string         // a path that is answered with 403
}

// RoundTrip notes what planner-only asks the cluster.
func (o *beside) RoundTrip(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		o.mu.Lock()
		o.requests[r.Method+" "+r.URL.Path]++
		refuse := o.refuse == r.URL.Path
		o.mu.Unlock()
		if refuse {
			body, _ := json.Marshal(metav1.Status{
				TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: 403, Reason: metav1.StatusReasonForbidden, Message: "no rule is for it",
			})
			return &http.Response{StatusCode: 403, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(body)), Request: r}, nil
		}
		return next.RoundTrip(r)
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// observe starts a cluster with objects.
func observe(t *testing.T, objects ...resource.Object) *beside {
	cfg := planeConfig(t, RoleStandalone)
	cfg.ServiceCIDRs, cfg.DefaultTopologyMode = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}, topology.Adaptive
	o := &beside{t: t, cluster: startPlane(t, cfg, memory.New(memory.Options{})), dir: t.TempDir(), requests: map[string]int{}}
	client := o.cluster.cp.api.server.Client("system:test")
	kinds := map[string]*resource.Descriptor{"*v1.Node": kind.Node, "*v1.Service": kind.Service, "*v1.EndpointSlice": kind.EndpointSlice}
	for _, obj := range objects {
		d := kinds[fmt.Sprintf("%T", obj)]
		made, err := client.Create(t.Context(), d, obj)
		if err != nil {
			t.Fatal(err)
		}
		if n, ok := obj.(*corev1.Node); ok {
			n.ResourceVersion, n.UID = made.GetResourceVersion(), made.GetUID()
			if _, err := client.UpdateStatus(t.Context(), d, n); err != nil {
				t.Fatal(err)
			}
		}
	}
	token, _, err := o.cluster.cp.storage.tokens.Create(t.Context(), identity.ReadOnly, "planner", time.Hour, "test")
	if err != nil {
		t.Fatal(err)
	}
	o.rest = &rest.Config{
		Host: "https://" + reachable(o.cluster.cp.api.address), BearerToken: token.Reveal(),
		TLSClientConfig: rest.TLSClientConfig{CAData: o.cluster.cp.storage.ca.PEM()}, WrapTransport: o.RoundTrip,
	}
	return o
}

// start planner-only until the test ends. ready: it is waited for.
func (o *beside) start(ready bool) {
	o.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	began, serving, done := time.Now(), make(chan struct{}), make(chan error, 1)
	go func() {
		done <- RunControlPlane(ctx, ControlPlaneConfig{
			Feed: FeedConfig{Off: true}, Store: StoreKubernetes, Preset: PresetPlannerOnly, Cluster: o.rest, DataDir: o.dir, APIAddress: "127.0.0.1:0",
			DefaultTopologyMode: topology.Adaptive,
		}, func(Serving) { close(serving) })
	}()
	o.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			o.t.Error(err)
		}
	})
	if !ready {
		return
	}
	select {
	case <-serving:
		o.took = time.Since(began)
	case err := <-done:
		done <- err
		o.t.Fatalf("planner-only ends: %v", err)
	case <-time.After(testkit.Timeout):
		o.t.Fatal("planner-only does not become ready")
	}
}

// ask a control plane by the kubeconfig in its data directory.
func ask(t *testing.T, dir, method, path string, in, out any) int {
	t.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, cfg.Host+path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode == http.StatusOK && out != nil {
		if err := json.Unmarshal(answer, out); err != nil {
			t.Fatalf("%s: %v", answer, err)
		}
	} else if s, ok := out.(*string); ok {
		*s = string(answer)
	}
	return res.StatusCode
}

// zonedNodes are so many in each zone, of 4, 8 and 12 CPUs.
func zonedNodes(each int) (out []resource.Object) {
	for z, zone := range []string{"zone-a", "zone-b", "zone-c"} {
		for i := range each {
			out = append(out, &corev1.Node{
				ObjectMeta: metav1.ObjectMeta{
					Name:   fmt.Sprintf("%s-%02d", zone, i),
					Labels: map[string]string{corev1.LabelTopologyZone: zone, corev1.LabelTopologyRegion: "eu"},
				},
				Status: corev1.NodeStatus{
					Allocatable: corev1.ResourceList{corev1.ResourceCPU: apiresource.MustParse(fmt.Sprint(4 * (z + 1)))},
					Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Test"}},
				},
			})
		}
	}
	return out
}

// serviceOf a number, with endpoints in the zones of the letters, as somebody else's controller
// writes them. Hinted: the Service asks for hints, and has them.
func serviceOf(i int, zones string, hinted bool) []resource.Object {
	name := fmt.Sprintf("s%03d", i)
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
	}
	if hinted {
		service.Spec.TrafficDistribution = ptr.To(corev1.ServiceTrafficDistributionPreferClose)
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name + "-x", Labels: map[string]string{
			discoveryv1.LabelServiceName: name, discoveryv1.LabelManagedBy: "test",
		}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To[int32](8080)}},
	}
	for k, z := range zones {
		e := discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("10.%d.%d.%d", 1+i/250, i%250, k+1)}, Zone: ptr.To("zone-" + string(z)),
			NodeName: ptr.To("zone-" + string(z) + "-00"), Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)},
		}
		if hinted {
			e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: *e.Zone}}}
		}
		slice.Endpoints = append(slice.Endpoints, e)
	}
	return []resource.Object{service, slice}
}

// manyServices differ in their endpoints; every seventh asks for hints.
func manyServices(n int) (out []resource.Object, entries []traffic.Entry) {
	for i := range n {
		zones := strings.Repeat("a", 1+i%4) + strings.Repeat("b", i%3) + strings.Repeat("c", 1+i%5)
		out = append(out, serviceOf(i, zones, i%7 == 0)...)
		if i%5 != 0 { // of some nothing is known
			entries = append(entries, traffic.Entry{Namespace: "default", Service: fmt.Sprintf("s%03d", i), GB: ptr.To(float64(1 + i*37%1000))})
		}
	}
	return out, entries
}

// TestPlannerOnly: it answers what the control plane of the same data answers, having read a few
// kinds and written nothing.
func TestPlannerOnly(t *testing.T) {
	objects, entries := manyServices(30)
	o := observe(t, append(zonedNodes(2), objects...)...)
	o.start(true)
	for name, request := range map[string]admin.SurveyRequest{
		"no volumes": {},
		"volumes":    {Price: "USD:0.02:0.02", Traffic: entries, Top: 10},
	} {
		var here, there topology.Survey
		eventually(t, "the same answer ("+name+")", func() bool { // plans of the other one follow its nodes
			here, there = topology.Survey{}, topology.Survey{}
			code, code2 := ask(t, o.dir, http.MethodPost, admin.SurveyPath, request, &here), ask(t, o.cluster.cfg.DataDir, http.MethodPost, admin.SurveyPath, request, &there)
			return code == http.StatusOK && code2 == http.StatusOK && cmp.Equal(here, there)
		})
		if len(here.Services) == 0 || here.Total.Services != 30 {
			t.Errorf("%s: %+v", name, here.Total)
		}
		if name == "volumes" && (len(here.Services) != 10 || here.Services[0].Saving == nil || *here.Services[0].Saving < *here.Services[9].Saving || here.Total.Saving <= 0) {
			t.Errorf("%+v", here)
		}
	}

	var status admin.Status
	if code := ask(t, o.dir, http.MethodGet, admin.StatusPath, nil, &status); code != http.StatusOK || status.Preset != "planner-only" ||
		status.Store.Name != "kubernetes" || status.Store.Problem != "" || status.Catalog.Objects["nodes"] != 6 || status.Store.Epoch == "" {
		t.Errorf("status %d: %+v", code, status)
	}
	if key := (resource.Key{Name: "kube-system"}); string(getOrFail(t, o.cluster, kind.Namespace, key).GetUID()) != status.Store.Epoch {
		t.Errorf("epoch %s is not the UID of a namespace", status.Store.Epoch)
	}
	var explained struct{ Plan *topology.Report }
	if code := ask(t, o.dir, http.MethodGet, admin.ExplainServicePath+"?namespace=default&name=s001&zone=zone-a", nil, &explained); code != http.StatusOK {
		t.Errorf("explain: %d", code)
	}
	var failed topology.Simulation
	if code := ask(t, o.dir, http.MethodGet, admin.SimulatePath+"?failZone=zone-a", nil, &failed); code != http.StatusOK || len(failed.Services) == 0 || !failed.Services[0].Planned {
		t.Errorf("simulate: %d, %+v", code, failed)
	}
	var text string
	if code := ask(t, o.dir, http.MethodGet, "/api/v1/services", nil, &text); code != http.StatusNotFound || !strings.Contains(text, "serves no objects") {
		t.Errorf("%d %s", code, text)
	}
	if code := ask(t, o.dir, http.MethodPost, admin.SurveyPath, map[string]any{"Top": -1}, &text); code != http.StatusBadRequest || !strings.Contains(text, "top -1") {
		t.Errorf("%d %s", code, text)
	}

	// A change in the cluster is in the next answer.
	slice := getOrFail(t, o.cluster, kind.EndpointSlice, resource.Key{Namespace: "default", Name: "s001-x"}).(*discoveryv1.EndpointSlice)
	slice.Endpoints = slice.Endpoints[:1]
	if _, err := o.cluster.client.Update(t.Context(), kind.EndpointSlice, slice); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the change", func() bool {
		var survey topology.Survey
		ask(t, o.dir, http.MethodPost, admin.SurveyPath, admin.SurveyRequest{}, &survey)
		i := slices.IndexFunc(survey.Services, func(s topology.Surveyed) bool { return s.Service == "default/s001" })
		return i >= 0 && survey.Services[i].Endpoints == 1
	})

	o.mu.Lock()
	defer o.mu.Unlock()
	for request := range o.requests {
		switch request {
		case "GET /api/v1/namespaces/kube-system", "GET /api/v1/namespaces/default", "GET /api/v1/namespaces", "GET /api/v1/nodes", "GET /api/v1/services",
			"GET /apis/discovery.k8s.io/v1/endpointslices":
		default:
			t.Errorf("it asked the cluster for %s", request)
		}
	}
}

func getOrFail(t *testing.T, p *plane, d *resource.Descriptor, key resource.Key) resource.Object {
	t.Helper()
	obj, err := p.client.Get(t.Context(), d, key)
	if err != nil {
		t.Fatal(err)
	}
	return obj
}

// TestPlannerOnlyAdmits: health is for everyone, all else for those with a certificate of the
// data directory.
func TestPlannerOnlyAdmits(t *testing.T) {
	o := observe(t)
	o.start(true)
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(o.dir, "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	known, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := rest.HTTPClientFor(&rest.Config{Host: cfg.Host, TLSClientConfig: rest.TLSClientConfig{CAData: cfg.CAData}})
	if err != nil {
		t.Fatal(err)
	}
	wrong, err := rest.HTTPClientFor(&rest.Config{Host: cfg.Host, BearerToken: "wrong", TLSClientConfig: rest.TLSClientConfig{CAData: cfg.CAData}})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		who    *http.Client
		method string
		path   string
		want   int
	}{
		{stranger, "GET", "/healthz", 200}, {stranger, "GET", "/readyz", 200}, {stranger, "GET", "/version", 200},
		{stranger, "GET", "/metrics", 403}, {stranger, "GET", admin.StatusPath, 403}, {stranger, "POST", admin.SurveyPath, 403},
		{wrong, "GET", "/healthz", 401}, {wrong, "GET", admin.StatusPath, 401},
		{known, "GET", "/metrics", 200}, {known, "GET", admin.StatusPath, 200}, {known, "GET", admin.SurveyPath, 405}, {known, "GET", "/nothing", 404},
		{known, "POST", admin.DrainPath, 404},
	} {
		req, err := http.NewRequestWithContext(t.Context(), tc.method, cfg.Host+tc.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := tc.who.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != tc.want {
			t.Errorf("%s %s: %d, want %d: %s", tc.method, tc.path, res.StatusCode, tc.want, body)
		}
		if tc.path == "/metrics" && res.StatusCode == 200 && !bytes.Contains(body, []byte("proxima_resource_calls_total")) {
			t.Error("the metrics lack the requests to the cluster")
		}
	}
}

// TestPlannerOnlyMayNotRead: what is missing is in the status, and it goes on once it may.
func TestPlannerOnlyMayNotRead(t *testing.T) {
	o := observe(t, zonedNodes(1)...)
	o.refuse = "/api/v1/nodes"
	o.start(false)
	eventually(t, "a status with the reason", func() bool {
		if _, err := clientcmd.LoadFromFile(filepath.Join(o.dir, "kubeconfig")); err != nil {
			return false
		}
		var status admin.Status
		ask(t, o.dir, http.MethodGet, admin.StatusPath, nil, &status)
		return !status.Catalog.Synced && strings.Contains(status.Store.Problem, "nodes cannot be read") && strings.Contains(status.Store.Problem, "grant get, list and watch")
	})
	if code := ask(t, o.dir, http.MethodPost, admin.SurveyPath, admin.SurveyRequest{}, nil); code != http.StatusServiceUnavailable {
		t.Errorf("survey without nodes: %d", code)
	}
	if code := ask(t, o.dir, http.MethodGet, "/readyz", nil, nil); code != http.StatusServiceUnavailable {
		t.Errorf("ready without nodes: %d", code)
	}
	o.mu.Lock()
	o.refuse = ""
	o.mu.Unlock()
	eventually(t, "an answer", func() bool { return ask(t, o.dir, http.MethodGet, "/readyz", nil, nil) == http.StatusOK })
	var status admin.Status
	if ask(t, o.dir, http.MethodGet, admin.StatusPath, nil, &status); status.Store.Problem != "" || status.Catalog.Objects["nodes"] != 3 {
		t.Errorf("%+v", status.Store)
	}
}

// TestPlannerOnlyIsQuick: 3 zones, 60 nodes, 500 Services; from the start to a report of the ten
// Services that a plan saves most.
func TestPlannerOnlyIsQuick(t *testing.T) {
	objects, entries := manyServices(500)
	o := observe(t, append(zonedNodes(20), objects...)...)
	began := time.Now()
	o.start(true)
	var survey topology.Survey
	if code := ask(t, o.dir, http.MethodPost, admin.SurveyPath, admin.SurveyRequest{Price: "USD:0.02:0.02", Traffic: entries, Top: 10}, &survey); code != http.StatusOK {
		t.Fatal(code)
	}
	took := time.Since(began)
	if len(survey.Services) != 10 || survey.Total.Services != 500 || survey.Total.Saving <= 0 {
		t.Errorf("%+v", survey.Total)
	}
	t.Logf("ready after %s, a report after %s", o.took.Round(time.Millisecond), took.Round(time.Millisecond))
	if took > time.Minute {
		t.Errorf("a report took %s, want a minute at most", took)
	}
}
