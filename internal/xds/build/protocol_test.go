package build

import (
	"slices"
	"testing"
	"time"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	gateway "sigs.k8s.io/gateway-api/apis/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/delta"
	"github.com/proxima-mesh/proxima/internal/sidecar/redirect"
)

// TestProtocolOfService: a port whose Dataplane says nothing of its protocol has that of the
// Services that lead to it, as they come, change and go; where they disagree it has none.
func TestProtocolOfService(t *testing.T) {
	d := testDataplane("a", "10.0.0.1", nil)
	d.Labels, d.Spec.Ports[0].Name = map[string]string{"app": "a"}, "web"
	w := newWorld(t, d)
	a := w.connect("a", Sidecar)
	check := func(when string, isHTTP bool) {
		t.Helper()
		s := delta.NewLayered(a.Config)
		defer s.Close()
		if err := s.Step(delta.Request{Type: RouteType, Subscribe: []string{inName(8080)}}); err != nil {
			t.Fatal(err)
		}
		frame, _ := s.Next(time.Time{})
		if got := frame != nil && frame.Resources == 1; got != isHTTP {
			t.Errorf("%s: the port is HTTP: %v, want %v", when, got, isHTTP)
		}
	}
	service := func(name, app string, target intstr.IntOrString) *corev1.Service {
		s := testService(name, "10.96.0.1", corev1.ServicePort{Port: 80, TargetPort: target, AppProtocol: &app})
		s.Spec.Selector = map[string]string{"app": "a"}
		return s
	}
	check("no Service", false)
	w.seed(service("one", "http", intstr.FromString("other")))
	check("one to another port", false)
	w.seed(service("one", "http", intstr.FromString("web")))
	check("one by the port's name", true)
	w.seed(service("two", "mysql", intstr.FromInt32(8080)))
	check("another one by number that disagrees", false)
	w.seed(service("two", "HTTP", intstr.FromInt32(8080)))
	check("they agree", true)
	other := service("two", "mysql", intstr.FromInt32(8080))
	other.Spec.Selector = map[string]string{"app": "b"}
	w.seed(other)
	check("the one that disagrees selects others", true)
	last := d.DeepCopy()
	last.Generation, last.Spec.Ports[0].AppProtocol = 2, new("mysql")
	w.seed(last)
	check("the Dataplane itself disagrees", false)
}

// TestNoTLSToGRPCPrograms: a gRPC program that follows gets nothing for its own server, so that
// clients do not use TLS with it, as they do with a workload that has a proxy.
func TestNoTLSToGRPCPrograms(t *testing.T) {
	w := newWorld(t, testDataplane("a", "10.0.0.1", nil), testDataplane("b", "10.0.0.2", nil))
	w.connect("a", GRPC)
	if len(w.builder.live) > 0 {
		t.Errorf("ports with a proxy: %v, want none", w.builder.live)
	}
	w.connect("b", Sidecar)
	if len(w.builder.live) != 1 {
		t.Errorf("ports with a proxy: %v, want that of b", w.builder.live)
	}
}

// TestTLSToGRPCServers: a port whose gRPC server has asked for its listener takes mutual TLS where the
// mesh is strict. With the annotation clients know that before the program has asked.
func TestTLSToGRPCServers(t *testing.T) {
	inMode := func(mode string) *meshv1alpha1.Mesh {
		return &meshv1alpha1.Mesh{ObjectMeta: metav1.ObjectMeta{Name: "default"}, Spec: meshv1alpha1.MeshSpec{MTLS: &meshv1alpha1.MeshMTLS{
			EnabledBackend: "ca", Backends: []meshv1alpha1.MeshCertificateBackend{{Name: "ca", Mode: mode}},
		}}}
	}
	w := newWorld(t, inMode("Strict"), testDataplane("a", "10.0.0.1", nil), testDataplane("b", "10.0.0.2", map[string]string{AnnotationGRPCServer: "true"}))
	check := func(when string, want ...string) {
		t.Helper()
		var got []string
		for at := range w.builder.live {
			got = append(got, at.String())
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s: ports with TLS %v, want %v", when, got, want)
		}
	}
	check("at the start", "10.0.0.2:8080")
	a := w.connect("a", GRPC)
	source := a.Config.Source
	ask := func(name string) { source.Want(delta.Ref{Type: ListenerType, Name: name}) }
	ask("in|0.0.0.0:9999") // a port that it has not declared
	ask("in|0.0.0.0:08080")
	check("nobody has asked", "10.0.0.2:8080")
	ask("in|[::]:8080")
	check("it has asked", "10.0.0.1:8080", "10.0.0.2:8080")
	source.Release(delta.Ref{Type: ListenerType, Name: "in|[::]:8080"})
	a.Close(nil)
	check("it is away", "10.0.0.1:8080", "10.0.0.2:8080")
	w.seed(inMode("Permissive"))
	check("permissive", "10.0.0.2:8080") // whose program has never asked
	w.seed(inMode("Strict"))
	check("strict", "10.0.0.1:8080", "10.0.0.2:8080")
}

// TestRecordedProxies: the ports of a Dataplane have a proxy if its status says so, whoever has recorded
// it: another instance, or this one before it was started again.
func TestRecordedProxies(t *testing.T) {
	recorded := func(name, address, reason string) *meshv1alpha1.Dataplane {
		d := testDataplane(name, address, nil)
		d.Status.Conditions = []metav1.Condition{{Type: meshv1alpha1.DataplaneProxyConnected, Status: metav1.ConditionFalse, Reason: reason}}
		return d
	}
	w := newWorld(t, recorded("a", "10.0.0.1", "Disconnected"), recorded("b", "10.0.0.2", meshv1alpha1.ReasonProgram), testDataplane("c", "10.0.0.3", nil))
	check := func(when string, want ...string) {
		t.Helper()
		var got []string
		for at := range w.builder.live {
			got = append(got, at.String())
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s: ports with a proxy %v, want %v", when, got, want)
		}
	}
	check("at the start", "10.0.0.1:8080")
	w.seed(recorded("c", "10.0.0.3", "Connected")) // the generation is the same
	check("another instance records one", "10.0.0.1:8080", "10.0.0.3:8080")
	moved := recorded("a", "10.0.0.9", "Disconnected")
	moved.Generation = 2
	w.seed(moved)
	check("it moves", "10.0.0.3:8080", "10.0.0.9:8080")
}

// TestBackendsOfRoutes: a port that does not say what it speaks is spoken to as its clients speak while a
// route of HTTP or gRPC leads to it, and is one of TCP otherwise. One that says it is not changed.
func TestBackendsOfRoutes(t *testing.T) {
	declared := testService("declared", "10.96.0.3", corev1.ServicePort{Port: 7070, AppProtocol: new("kubernetes.io/h2c")})
	w := newWorld(t, testDataplane("a", "10.0.0.1", map[string]string{AnnotationBackends: "front, back, declared"}),
		testService("front", "10.96.0.1", corev1.ServicePort{Port: 7070, AppProtocol: new("kubernetes.io/h2c")}),
		testService("back", "10.96.0.2", corev1.ServicePort{Name: "grpc", Port: 7070}), declared)
	a := w.connect("a", Sidecar)
	options := func(name string) *httpv3.HttpProtocolOptions {
		t.Helper()
		c := w.builder.classCluster(a, "shop/"+name+":7070")
		if c == nil {
			t.Fatalf("no cluster of %s", name)
		}
		any := c.TypedExtensionProtocolOptions["envoy.extensions.upstreams.http.v3.HttpProtocolOptions"]
		if any == nil {
			return nil
		}
		out := &httpv3.HttpProtocolOptions{}
		if err := any.UnmarshalTo(out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	if got := options("back"); got != nil {
		t.Errorf("without a route: %v", got)
	}
	w.seed(routeTo("front", "back", "declared"))
	if got := options("back"); got.GetUseDownstreamProtocolConfig().GetHttp2ProtocolOptions() == nil {
		t.Errorf("with a route: %v", got)
	}
	if got := options("declared"); got.GetExplicitHttpConfig().GetHttp2ProtocolOptions() == nil {
		t.Errorf("a port that says h2c: %v", got)
	}
	w.seed(routeTo("front", "declared"))
	if got := options("back"); got != nil {
		t.Errorf("without a route again: %v", got)
	}
}

// routeTo is a GRPCRoute from port 7070 of a Service to that of others.
func routeTo(from string, to ...string) *gateway.GRPCRoute {
	out := &gateway.GRPCRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "r"}}
	out.Spec.ParentRefs = []gateway.ParentReference{{Group: new(gateway.Group("")), Kind: new(gateway.Kind("Service")), Name: gateway.ObjectName(from)}}
	var rule gateway.GRPCRouteRule
	for _, name := range to {
		var b gateway.GRPCBackendRef
		b.Name, b.Port = gateway.ObjectName(name), new(gateway.PortNumber(7070))
		rule.BackendRefs = append(rule.BackendRefs, b)
	}
	out.Spec.Rules = []gateway.GRPCRouteRule{rule}
	return out
}

// TestPriorityOfClients: connections of a sidecar to what may have a proxy are told from others by their priority;
// those of an Envoy that nothing is led to are not.
func TestPriorityOfClients(t *testing.T) {
	for _, own := range []bool{false, true} {
		c := &cluster.Cluster{}
		(&clientTLS{fileIdentity: own}).on(c)
		options := c.GetUpstreamBindConfig().GetSocketOptions()
		if own != (len(options) == 0) {
			t.Fatalf("own files %v: %v", own, options)
		}
		if !own && options[0].GetIntValue() != redirect.ProxyPriority {
			t.Errorf("priority %d, want %d", options[0].GetIntValue(), redirect.ProxyPriority)
		}
	}
	c := &cluster.Cluster{}
	(*clientTLS)(nil).on(c)
	if c.UpstreamBindConfig != nil {
		t.Error("a cluster without TLS has a priority")
	}
}
