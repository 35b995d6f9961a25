package translate_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/encoding/protojson"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/policy"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/testkit/envoytest"
	"github.com/proxima-mesh/proxima/internal/xds/translate"
)

// backendServer answers with what it was asked.
func backendServer(t *testing.T, name string) *clusterv3.Cluster {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("gone", "soon")
		fmt.Fprintf(w, "%s %s host=%s a=%s", name, r.URL.Path, r.Host, r.Header.Get("a"))
	}))
	t.Cleanup(s.Close)
	host, text, _ := net.SplitHostPort(s.Listener.Addr().String())
	n, _ := strconv.ParseUint(text, 10, 32)
	c := cluster(name)
	c.LoadAssignment = &endpointv3.ClusterLoadAssignment{ClusterName: name, Endpoints: []*endpointv3.LocalityLbEndpoints{{
		LbEndpoints: []*endpointv3.LbEndpoint{{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
			Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
				Address: host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(n)},
			}}},
		}}}},
	}}}
	return c
}

// httpListener of a connection manager, at a free port.
func httpListener(name string, routes *routev3.RouteConfiguration, filters []*hcmv3.HttpFilter) *listenerv3.Listener {
	l := listener(name, 0)
	l.FilterChains = []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{
		filter("envoy.filters.network.http_connection_manager", manager(name, routes, filters)),
	}}}
	return l
}

func toPay(name string) *routev3.RouteConfiguration {
	b := policy.NewIndex().Backend("shop", pay, port)
	return translate.RouteConfiguration(name, "shop/pay:80", nil, &b)
}

// outbound is a listener of a client, by the policies and routes of a file.
func outbound(t *testing.T, name, objects string) *listenerv3.Listener {
	x := world(t, common+objects)
	b, routes := x.Backend("shop", pay, port), x.Routes("shop", pay, port)
	return httpListener(name, translate.RouteConfiguration(name, "shop/pay:80", routes, &b), translate.ClientFilters(routes, &b))
}

// inbound is a listener of the workload, by the policies of a file.
func inbound(t *testing.T, name, objects string) *listenerv3.Listener {
	x := world(t, common+objects)
	w, _ := x.Workload(pay1)
	p := w.Ports[8080]
	permission, _ := x.Permission(pay1, 8080)
	return httpListener(name, toPay(name), translate.InboundFilters(&p, &permission, func(from []mesh.PolicySource) []policy.Caller {
		return x.Callers(pay1, policy.Source{Kind: "WorkloadPolicy", Key: resource.Key{Namespace: "shop", Name: "pay"}}, from)
	}))
}

const trafficRoutes = `kind: HTTPRoute
metadata: {name: pay}
spec:
  parentRefs: [{group: "", kind: Service, name: pay}]
  rules:
  - {backendRefs: [{name: pay, port: 80}]}
  - matches: [{path: {value: /api}}]
    filters:
    - {type: URLRewrite, urlRewrite: {hostname: pay.example, path: {type: ReplacePrefixMatch, replacePrefixMatch: /v2}}}
    - {type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: a, value: "100%"}]}}
    - {type: ResponseHeaderModifier, responseHeaderModifier: {remove: [gone]}}
    backendRefs: [{name: v2, port: 80}]
  - matches: [{path: {value: /strip}}]
    filters: [{type: URLRewrite, urlRewrite: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /}}}]
    backendRefs: [{name: pay, port: 80}]
  - matches: [{path: {value: /full}}]
    filters: [{type: URLRewrite, urlRewrite: {path: {type: ReplaceFullPath, replaceFullPath: /whole}}}]
    backendRefs: [{name: pay, port: 80}]
  - matches: [{path: {value: /old}}]
    filters: [{type: RequestRedirect, requestRedirect: {statusCode: 308, path: {type: ReplacePrefixMatch, replacePrefixMatch: /new}}}]
  - matches: [{path: {value: /root}}]
    filters: [{type: RequestRedirect, requestRedirect: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /}}}]
  - matches: [{path: {value: /half}}]
    backendRefs: [{name: pay, port: 80}, {name: gone, port: 80}]
  - matches: [{path: {value: /none}}]
    backendRefs: [{name: gone, port: 80}]
`

// asked is what one request is answered.
type asked struct {
	status         int
	body, location string
	header         http.Header
}

func ask(t *testing.T, address, path string) asked {
	t.Helper()
	client := &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return asked{response.StatusCode, string(body), response.Header.Get("Location"), response.Header}
}

// addresses of the listeners of an Envoy.
func addresses(t *testing.T, e *envoytest.Proxy) map[string]string {
	t.Helper()
	_, body, err := e.Admin(http.MethodGet, "/listeners?format=json")
	if err != nil {
		t.Fatal(err)
	}
	var all struct {
		Statuses []struct {
			Name    string
			Address struct {
				Socket struct {
					Address string
					Port    int `json:"port_value"`
				} `json:"socket_address"`
			} `json:"local_address"`
		} `json:"listener_statuses"`
	}
	if err := json.Unmarshal([]byte(body), &all); err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, s := range all.Statuses {
		out[s.Name] = fmt.Sprintf("%s:%d", s.Address.Socket.Address, s.Address.Socket.Port)
	}
	return out
}

// TestTraffic: what a real Envoy does by what is made.
func TestTraffic(t *testing.T) {
	const limited = "kind: WorkloadPolicy\nmetadata: {name: pay}\nspec: {rateLimit: [{from: [{addresses: [%s]}], http: {requests: 2, per: 1h}}]}\n"
	boot := &bootstrapv3.Bootstrap{StaticResources: &bootstrapv3.Bootstrap_StaticResources{
		Clusters: []*clusterv3.Cluster{backendServer(t, "shop/pay:80"), backendServer(t, "shop/v2:80")},
		Listeners: []*listenerv3.Listener{
			outbound(t, "routes", trafficRoutes),
			outbound(t, "fault", "kind: BackendPolicy\nmetadata: {name: pay}\nspec: {faults: [{abort: {httpStatus: 418}}]}\n"),
			outbound(t, "limit", "kind: BackendPolicy\nmetadata: {name: pay}\nspec: {rateLimit: [{http: {requests: 2, per: 1h, status: 503}}]}\n"),
			inbound(t, "permission", "kind: TrafficPermission\nmetadata: {name: pay}\nspec:\n"+
				"  deny: [{to: [{paths: [{type: Prefix, value: /admin}]}]}]\n"+
				"  allow: [{from: [{addresses: [127.0.0.0/8]}], to: [{methods: [GET], paths: [{type: Prefix, value: /}]}]}]\n"),
			inbound(t, "names", "kind: TrafficPermission\nmetadata: {name: pay}\nspec: {allow: [{from: [{serviceAccounts: [shop/web]}]}]}\n"),
			inbound(t, "shadow",
				"kind: TrafficPermission\nmetadata: {name: pay}\nspec: {shadow: true, allow: [{from: [{serviceAccounts: [shop/web]}]}]}\n"),
			inbound(t, "ours", fmt.Sprintf(limited, "127.0.0.0/8")),
			inbound(t, "others", fmt.Sprintf(limited, "192.0.2.0/24")),
		},
	}}
	dir := envoytest.Dir(t)
	boot.Admin = &bootstrapv3.Admin{Address: &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: envoytest.AdminSocket(dir)}}}}
	text, err := protojson.Marshal(boot)
	if err != nil {
		t.Fatal(err)
	}
	e := envoytest.Start(t, dir, string(text))
	e.WaitReady()
	at := addresses(t, e)

	for path, want := range map[string]asked{
		"/plain":   {status: 200, body: "shop/pay:80 /plain host=" + at["routes"] + " a="},
		"/api":     {status: 200, body: "shop/v2:80 /v2 host=pay.example a=100%"},
		"/api/x":   {status: 200, body: "shop/v2:80 /v2/x host=pay.example a=100%"},
		"/apish":   {status: 200, body: "shop/pay:80 /apish host=" + at["routes"] + " a="},
		"/strip":   {status: 200, body: "shop/pay:80 / host=" + at["routes"] + " a="},
		"/strip/x": {status: 200, body: "shop/pay:80 /x host=" + at["routes"] + " a="},
		"/full/x":  {status: 200, body: "shop/pay:80 /whole host=" + at["routes"] + " a="},
		"/old/x":   {status: 308, location: "http://" + at["routes"] + "/new/x"},
		"/root/x":  {status: 302, location: "http://" + at["routes"] + "/x"},
		"/none":    {status: 500},
	} {
		got := ask(t, at["routes"], path)
		if got.status != want.status || got.body != want.body || got.location != want.location {
			t.Errorf("%s: got %d %q %q, want %d %q %q", path, got.status, got.body, got.location, want.status, want.body, want.location)
		}
		if had := got.header.Get("gone") != ""; got.status == 200 && had == (path == "/api" || path == "/api/x") {
			t.Errorf("%s: header of the response left: %v", path, had)
		}
	}
	statuses := map[int]int{}
	for range 60 {
		statuses[ask(t, at["routes"], "/half").status]++
	}
	if statuses[200] < 10 || statuses[500] < 10 || statuses[200]+statuses[500] != 60 {
		t.Errorf("half of the requests go to a backend that is not there: %v", statuses)
	}
	for _, test := range []struct {
		listener, path string
		want           []int
	}{
		{"fault", "/", []int{418}},
		{"limit", "/", []int{200, 200, 503}},
		{"permission", "/open", []int{200}},
		{"permission", "/admin/x", []int{403}},
		{"names", "/", []int{403}},
		{"shadow", "/", []int{200}},
		{"ours", "/", []int{200, 200, 429}},
		{"others", "/", []int{200, 200, 200, 200}},
	} {
		for i, want := range test.want {
			if got := ask(t, at[test.listener], test.path); got.status != want {
				t.Errorf("%s, request %d: %d, want %d (%s)", test.listener, i, got.status, want, got.body)
			}
		}
	}
	_, stats, err := e.Admin(http.MethodGet, "/stats?filter=shadow_denied")
	if err != nil || !strings.Contains(stats, ": 1") {
		t.Errorf("what a shadow would refuse is counted: %v %s", err, stats)
	}
}
