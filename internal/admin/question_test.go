package admin

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/health"
	"github.com/proxima-mesh/proxima/internal/diag"
	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
	"github.com/proxima-mesh/proxima/internal/topology"
	"github.com/proxima-mesh/proxima/internal/topology/trafficplan"
)

// plannedWorld has planned one Service: two zones, and
// endpoints in one of them.
func plannedWorld(t testing.TB) Config {
	t.Helper()
	client := resourcetest.New()
	var objects []resource.Object
	for _, zone := range []string{"a", "b"} {
		objects = append(objects, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "node-" + zone, Labels: map[string]string{corev1.LabelTopologyZone: zone}},
			Status: corev1.NodeStatus{
				Allocatable: corev1.ResourceList{corev1.ResourceCPU: apiresource.MustParse("1")},
				Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			},
		})
	}
	objects = append(objects, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ops"}}, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", Annotations: map[string]string{corev1.AnnotationTopologyMode: topology.Adaptive}},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.9", ClusterIPs: []string{"10.96.0.9"}, Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}}},
	}, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "headless"}, Spec: corev1.ServiceSpec{ClusterIP: "None"},
	}, &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"10.0.0.1"}, Zone: new("a")}, {Addresses: []string{"10.0.0.2"}, Zone: new("b")},
		},
	})
	client.Seed(objects...)
	world := catalog.New(catalog.Config{Client: client, Descriptors: resourcetest.Descriptors()})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = world.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	plans := topology.New(topology.Config{Client: client, Catalog: world})
	ran := make(chan struct{})
	go func() { defer close(ran); _ = plans.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ran })
	sub := world.Subscribe(catalog.Plans)
	t.Cleanup(sub.Close)
	for {
		d, err := sub.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if trafficplan.Of(d.After, resource.Key{Namespace: "shop", Name: "web"}) != nil {
			break
		}
	}
	return Config{Tables: world, Planner: plans, Suspicion: health.NewMonitor(health.MonitorConfig{})}
}

func ask(h http.Handler, method, query string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, "/x?"+query, nil))
	return w
}

func TestExplainServiceOverHTTP(t *testing.T) {
	h := Handlers(plannedWorld(t))[ExplainServicePath]
	w := ask(h, http.MethodGet, "namespace=shop&name=web&zone=a")
	var e diag.Service
	if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil || w.Code != http.StatusOK {
		t.Fatalf("%d %s: %v", w.Code, w.Body, err)
	}
	f := e.Ports[0].Families[0]
	if f.Rule != "the plan for this zone" || f.Endpoints[0].Share != 1 || f.Endpoints[1].Why != "the plan gives it none of this zone's connections" {
		t.Errorf("%+v", f)
	}
	if e.Topology == nil || !e.Topology.Planned || len(e.Topology.Plans) != 1 || !strings.Contains(e.Topology.Text("a"), "> a: 50.0 % of demand") {
		t.Errorf("%+v", e.Topology)
	}
	node := ask(h, http.MethodGet, "namespace=shop&name=web&node=node-b")
	if err := json.Unmarshal(node.Body.Bytes(), &e); err != nil || e.Zone != "b" || e.Ports[0].Families[0].Endpoints[1].Share != 1 {
		t.Errorf("from a node: %s, %v", node.Body, err)
	}
}

func TestQuestionsThatAreRefused(t *testing.T) {
	handlers := Handlers(plannedWorld(t))
	explain, simulate := handlers[ExplainServicePath], handlers[SimulatePath]
	empty := catalog.New(catalog.Config{Client: resourcetest.New(), Descriptors: resourcetest.Descriptors()})
	for _, c := range []struct {
		handler http.Handler
		method  string
		query   string
		code    int
		text    string
	}{
		{explain, http.MethodGet, "namespace=shop&name=other", 404, `there is no service \"shop/other\"`},
		{explain, http.MethodGet, "namespace=shop&name=web&node=x", 404, `there is no node \"x\"`},
		{explain, http.MethodGet, "namespace=shop&name=headless", 400, "no virtual IP"},
		{explain, http.MethodPost, "", 405, "only GET"},
		{Handlers(Config{Tables: empty})[ExplainServicePath], http.MethodGet, "", 503, "still reading"},
		{simulate, http.MethodGet, "", 400, "nothing to simulate"},
		{simulate, http.MethodGet, "failZone=x", 404, "there are a, b"},
		{simulate, http.MethodGet, "demand=shop/web:a:3", 400, "such as shop/web:zone-a:x3"},
		{simulate, http.MethodGet, "endpoints=shop/web:a:-9", 400, "-9 where the weight is 1"},
		{simulate, http.MethodGet, "failZone=a&demand=shop/web:b:x2&endpoints=shop/web:b:%2B1", 200, `"planned":true`},
	} {
		if w := ask(c.handler, c.method, c.query); w.Code != c.code || !strings.Contains(w.Body.String(), c.text) {
			t.Errorf("%s %s: %d %s", c.method, c.query, w.Code, w.Body)
		}
	}
}

// TestQuestionsWithinRights: a viewer of some namespaces is told of their Services alone; no sum, count, list or error says more.
func TestQuestionsWithinRights(t *testing.T) {
	c := plannedWorld(t)
	c.Authorizer = rights{"admin": {"*"}, "seller": {"shop"}, "keeper": {"ops"}}
	handlers := Handlers(c)
	age := regexp.MustCompile(`"ageSeconds":[^,]*,`)
	question := func(who, path, query string) (int, string) {
		r := httptest.NewRequest(http.MethodGet, path+"?"+query, nil)
		if path == SurveyPath {
			r = httptest.NewRequest(http.MethodPost, path, strings.NewReader(query))
		}
		w := httptest.NewRecorder()
		handlers[path].ServeHTTP(w, r.WithContext(request.WithUser(r.Context(), &user.DefaultInfo{Name: who})))
		return w.Code, age.ReplaceAllString(w.Body.String(), "")
	}
	for _, q := range []struct{ path, query, empty string }{
		{SimulatePath, "failZone=a", `{"services":[],"unaffected":0}`},
		{SimulatePath, "shiftZone=a", `{"services":[],"unaffected":0}`},
		{SimulatePath, "failZone=a&summary=true", `"affected":0,"services":0,`},
		{SimulatePath, "failZone=a&top=5&price=USD:0.01:0.02", `{"services":[],"unaffected":0,"top":[]}`},
		{ShiftPath, "zone=a", `"services":[],"endpoints":0,"plans":{"services":[],"unaffected":0}`},
		{SurveyPath, "{}", `{"services":[],"total":{"services":0,`},
		{SurveyPath, `{"traffic":[{"namespace":"shop","service":"web","connectionsPerMonth":5}]}`, "do not exist: shop/web"},
		{ExplainServicePath, "namespace=shop&name=web&zone=a", "may not list Services of namespace"},
		{SimulatePath, "demand=shop/web:b:x2", "may not list Services of namespace"},
		{SimulatePath, "endpoints=shop/web:b:%2B1", "may not list Services of namespace"},
		{SimulatePath, "failZone=a&bytes=shop/web:5", "may not list Services of namespace"},
	} {
		_, all := question("admin", q.path, q.query)
		_, same := question("seller", q.path, q.query)
		_, other := question("keeper", q.path, q.query)
		if all != same {
			t.Errorf("%s %s: of all\n%s\nof shop, where all Services are\n%s", q.path, q.query, all, same)
		}
		if !strings.Contains(other, q.empty) || strings.Contains(all, q.empty) {
			t.Errorf("%s %s: of ops\n%s\nwant\n%s\nof all\n%s", q.path, q.query, other, q.empty, all)
		}
	}
	if code, _ := question("keeper", ExplainServicePath, "namespace=shop&name=none"); code != http.StatusForbidden {
		t.Errorf("whether a Service exists is told: %d", code)
	}
}

// Endpoints that a client of a registry registered say by which protocol, by whom, and where its session is.
func TestRegistrationsOf(t *testing.T) {
	d := &meshv1alpha1.Dataplane{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: "web-x", Labels: map[string]string{registry.LabelProtocol: "nacos"},
		Annotations: map[string]string{registry.AnnotationInstance: `{"metadata":{"proxima.mirrored-from":"nacos://old:8848"}}`, registry.AnnotationOwner: "cp-1", registry.AnnotationRegisteredBy: "proxima:workload:shop/web"},
	}, Spec: meshv1alpha1.DataplaneSpec{Addresses: []string{"10.0.0.1"}}}
	plain := &meshv1alpha1.Dataplane{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-y"}}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: new(int32(8080))}},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"10.0.0.1"}, TargetRef: &corev1.ObjectReference{Kind: "Dataplane", Name: "web-x"}},
			{Addresses: []string{"10.0.0.2"}, TargetRef: &corev1.ObjectReference{Kind: "Dataplane", Name: "web-y"}},
			{Addresses: []string{"10.0.0.3"}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: "web-x"}},
		},
	}
	client := resourcetest.New(kind.All()...)
	client.Seed(d, plain, slice)
	tables := catalog.New(catalog.Config{Client: client, Descriptors: kind.All()})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = tables.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	if err := tables.WaitSynced(ctx); err != nil {
		t.Fatal(err)
	}
	got := registrationsOf(tables.Snapshot(), resource.Key{Namespace: "shop", Name: "web"})
	r := got["10.0.0.1:8080"]
	if len(got) != 1 || r == nil || r.Dataplane != "shop/web-x" || r.String() != "nacos by proxima:workload:shop/web, copied from nacos://old:8848, session at cp-1" {
		t.Errorf("registrations %v", got)
	}
}
