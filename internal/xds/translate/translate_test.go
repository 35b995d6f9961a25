package translate_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gateway "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/policy"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/testkit/envoytest"
	"github.com/proxima-mesh/proxima/internal/xds/translate"
)

var update = flag.Bool("update", false, "write what is made into testdata, for a person to check")

// world is an index of the objects of a file.
func world(t *testing.T, text string) *policy.Index {
	t.Helper()
	x := policy.NewIndex()
	for i, doc := range strings.Split(text, "---\n") {
		var meta metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(doc), &meta); err != nil {
			t.Fatal(err)
		}
		obj := map[string]resource.Object{
			"Service": &corev1.Service{}, "Dataplane": &mesh.Dataplane{}, "BackendPolicy": &mesh.BackendPolicy{},
			"WorkloadPolicy": &mesh.WorkloadPolicy{}, "TrafficPermission": &mesh.TrafficPermission{}, "ProxyPatch": &mesh.ProxyPatch{},
			"HTTPRoute": &gateway.HTTPRoute{}, "GRPCRoute": &gateway.GRPCRoute{}, "TCPRoute": &gateway.TCPRoute{},
		}[meta.Kind]
		if obj == nil {
			t.Fatalf("document %d: kind %q", i, meta.Kind)
		}
		if err := yaml.UnmarshalStrict([]byte(doc), obj); err != nil {
			t.Fatalf("document %d: %v", i, err)
		}
		obj.SetNamespace("shop")
		x.Set(obj)
	}
	return x
}

const common = `kind: Service
metadata: {name: pay}
spec: {ports: [{name: http, port: 80}]}
---
kind: Service
metadata: {name: v2}
spec: {ports: [{name: http, port: 80}]}
---
kind: Dataplane
metadata: {name: pay-1, labels: {app: pay}}
spec: {addresses: [10.0.0.1], serviceAccount: pay, ports: [{name: http, port: 8080}]}
---
`

var (
	pay  = policy.Ref{Kind: "Service", Key: resource.Key{Namespace: "shop", Name: "pay"}}
	pay1 = policy.Ref{Kind: "Dataplane", Key: resource.Key{Namespace: "shop", Name: "pay-1"}}
	port = policy.Port{Name: "http", Number: 80}
)

// made is what is made of the objects of a file.
type made struct {
	resources translate.Resources
	refused   []translate.Refused
}

// build makes the resources of a client and of the workload, as a proxy that is both has them.
func build(t *testing.T, x *policy.Index) made {
	t.Helper()
	b := x.Backend("shop", pay, port)
	routes := x.Routes("shop", pay, port)
	var out made
	for _, name := range []string{"shop/pay:80", "shop/v2:80"} {
		c := cluster(name)
		if name == "shop/pay:80" {
			if err := translate.Cluster(c, &b, true); err != nil {
				t.Fatal(err)
			}
		}
		out.resources.Clusters = append(out.resources.Clusters, c)
	}
	out.resources.Routes = []*routev3.RouteConfiguration{translate.RouteConfiguration("out|shop/pay:80", "shop/pay:80", routes, &b)}
	tcp := &tcpv3.TcpProxy{StatPrefix: "tcp", ClusterSpecifier: &tcpv3.TcpProxy_Cluster{Cluster: "shop/pay:80"}}
	translate.TCPProxy(tcp, &b, x.TCPBackends("shop", pay, port))

	w, _ := x.Workload(pay1)
	p := w.Ports[8080]
	permission, _ := x.Permission(pay1, 8080)
	local := cluster("local|8080")
	translate.InboundCluster(local, &p)
	out.resources.Clusters = append(out.resources.Clusters, local)
	toLocal := &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: "local|8080"}}
	translate.InboundRoute(toLocal, &p)
	in := manager("in|8080", &routev3.RouteConfiguration{Name: "in|8080", VirtualHosts: []*routev3.VirtualHost{{
		Name: "in|8080", Domains: []string{"*"}, Routes: []*routev3.Route{{
			Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}}, Action: &routev3.Route_Route{Route: toLocal},
		}},
	}}}, translate.InboundFilters(&p, &permission, func(from []mesh.PolicySource) []policy.Caller {
		return x.Callers(pay1, policy.Source{Kind: "WorkloadPolicy", Key: resource.Key{Namespace: "shop", Name: "pay"}}, from)
	}))
	translate.InboundConnections(in, &p)
	if logs := translate.AccessLogs(w.AccessLog, false); len(logs) > 0 {
		in.AccessLog = logs
	}
	in.Tracing = translate.Tracing(w.Tracing)
	out.resources.Clusters = append(out.resources.Clusters, translate.Collectors(&w)...)
	inbound := listener("in|8080", 8080)
	var filters []*listenerv3.Filter
	for _, l := range translate.ConnectionLimits(&p) {
		filters = append(filters, filter("envoy.filters.network.local_ratelimit", l))
	}
	for _, r := range translate.NetworkAccess(&permission) {
		filters = append(filters, filter("envoy.filters.network.rbac", r))
	}
	inbound.FilterChains = []*listenerv3.FilterChain{{
		Filters:         append(filters, filter("envoy.filters.network.http_connection_manager", in)),
		TransportSocket: tls(translate.TLSParameters(&p.TLS)),
	}}

	http := listener("out|10.96.0.1:80", 1080)
	http.FilterChains = []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{filter("envoy.filters.network.http_connection_manager",
		manager("out|shop/pay:80", out.resources.Routes[0], translate.ClientFilters(routes, &b)))}}}
	plain := listener("out|10.96.0.2:80", 1081)
	plain.FilterChains = []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{filter("envoy.filters.network.tcp_proxy", tcp)}}}
	out.resources.Listeners = []*listenerv3.Listener{http, plain, inbound}

	out.resources, _, out.refused = translate.ApplyPatches(out.resources, x.Patches(pay1))
	return out
}

func cluster(name string) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name: name, ConnectTimeout: durationpb.New(5e9), ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		LoadAssignment: &endpointv3.ClusterLoadAssignment{ClusterName: name},
	}
}

func listener(name string, port uint32) *listenerv3.Listener {
	return &listenerv3.Listener{Name: name,
		Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
			Address: "127.0.0.1", PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
		}}}}
}

func packed(t proto.Message) *anypb.Any {
	out, err := anypb.New(t)
	if err != nil {
		panic(err)
	}
	return out
}

func filter(name string, config proto.Message) *listenerv3.Filter {
	return &listenerv3.Filter{Name: name, ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: packed(config)}}
}

func manager(name string, routes *routev3.RouteConfiguration, filters []*hcmv3.HttpFilter) *hcmv3.HttpConnectionManager {
	return &hcmv3.HttpConnectionManager{
		StatPrefix: name, RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: routes},
		HttpFilters: append(filters, &hcmv3.HttpFilter{
			Name: "envoy.filters.http.router", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: packed(&routerv3.Router{})},
		}),
	}
}

func tls(p *tlsv3.TlsParameters) *corev3.TransportSocket {
	return &corev3.TransportSocket{Name: "envoy.transport_sockets.tls", ConfigType: &corev3.TransportSocket_TypedConfig{
		TypedConfig: packed(&tlsv3.DownstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{
			TlsParams: p, TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{{
				Name: "identity", SdsConfig: &corev3.ConfigSource{ConfigSourceSpecifier: &corev3.ConfigSource_PathConfigSource{
					PathConfigSource: &corev3.PathConfigSource{Path: "/dev/null"},
				}},
			}},
		}}),
	}}
}

// render a message as YAML.
func render(t *testing.T, m proto.Message) string {
	t.Helper()
	data, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	text, err := yaml.JSONToYAML(data)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// added are lines of a text that another one has not, so that a file has what its objects change alone.
func added(before, after string) string {
	had := map[string]int{}
	for line := range strings.SplitSeq(before, "\n") {
		had[line]++
	}
	var out []string
	for line := range strings.SplitSeq(after, "\n") {
		if had[line] > 0 {
			had[line]--
			continue
		}
		out = append(out, line)
	}
	return strings.Trim(strings.Join(out, "\n"), "\n") + "\n"
}

func whole(t *testing.T, m made) string {
	var out strings.Builder
	for _, c := range m.resources.Clusters {
		out.WriteString(render(t, c))
	}
	for _, l := range m.resources.Listeners {
		out.WriteString(render(t, l))
	}
	for _, r := range m.refused {
		out.WriteString("refused: " + r.Error() + "\n")
	}
	return out.String()
}

func validate(t *testing.T, m made) {
	t.Helper()
	for _, r := range m.resources.Clusters {
		if err := r.ValidateAll(); err != nil {
			t.Error(err)
		}
	}
	for _, r := range m.resources.Listeners {
		if err := r.ValidateAll(); err != nil {
			t.Error(err)
		}
	}
	for _, r := range m.resources.Routes {
		if err := r.ValidateAll(); err != nil {
			t.Error(err)
		}
	}
}

// TestGolden: each file of testdata has objects, and what they change in what is made. A real Envoy
// takes all of it.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	plain := whole(t, build(t, world(t, strings.TrimSuffix(common, "---\n"))))
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			m := build(t, world(t, common+string(archive.Files[0].Data)))
			validate(t, m)
			got := added(plain, whole(t, m))
			if *update {
				archive.Files = append(archive.Files[:1], txtar.File{Name: "made", Data: []byte(got)})
				if err := os.WriteFile(file, txtar.Format(archive), 0o600); err != nil {
					t.Fatal(err)
				}
			} else if diff := cmp.Diff(string(archive.Files[1].Data), got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			envoyTakes(t, m)
		})
	}
}

// envoyTakes what was made.
func envoyTakes(t *testing.T, m made) {
	t.Helper()
	boot := &bootstrapv3.Bootstrap{
		Node:            &corev3.Node{Id: "default/shop/pay-1", Cluster: "shop/pay"},
		StaticResources: &bootstrapv3.Bootstrap_StaticResources{Clusters: m.resources.Clusters, Listeners: m.resources.Listeners},
	}
	data, err := protojson.Marshal(boot)
	if err != nil {
		t.Fatal(err)
	}
	if err := envoytest.Validate(t, string(data)); err != nil {
		t.Error(err)
	}
}

// TestOverprovisioning: a level gives traffic to the next one once less than the threshold of it is
// healthy. Envoy multiplies the healthy share by the factor: below 100 % it is too little.
func TestOverprovisioning(t *testing.T) {
	for threshold, want := range map[int32]uint32{1: 10000, 50: 200, 71: 141, 100: 100} {
		b := policy.NewIndex().Backend("shop", pay, port)
		b.Locality.Threshold = &threshold
		got := translate.Overprovisioning(&b)
		if got != want {
			t.Errorf("threshold %d: %d, want %d", threshold, got, want)
		}
		if uint32(threshold)*got < 10000 {
			t.Errorf("threshold %d: %d %% healthy would not do", threshold, threshold)
		}
	}
}
