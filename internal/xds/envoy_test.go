package xds_test

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/testkit/envoytest"
)

// bootstrap of an Envoy without a supervisor. Its static listeners stand for redirected
// connections: each asks for the cluster of a virtual address.
func bootstrap(p *plane, dir, id, cert, key string, onDemand map[string]int32) string {
	var listeners strings.Builder
	for vip, port := range onDemand {
		fmt.Fprintf(&listeners, `
  - name: "static-%[1]s"
    address: {socket_address: {address: 127.0.0.1, port_value: %[2]d}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.set_filter_state
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.set_filter_state.v3.Config
          on_new_connection: [{object_key: envoy.tcp_proxy.cluster, format_string: {text_format_source: {inline_string: "vip|%[1]s"}}}]
      - name: envoy.filters.network.tcp_proxy
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy
          stat_prefix: static
          cluster: blackhole
          on_demand: {odcds_config: {ads: {}, resource_api_version: V3}, timeout: 2s}`, vip, port)
	}
	host, portText, _ := net.SplitHostPort(p.address)
	return fmt.Sprintf(`
node: {id: %[1]s, cluster: shop/default}
admin: {address: {pipe: {path: %[2]q}}}
dynamic_resources:
  ads_config:
    api_type: DELTA_GRPC
    transport_api_version: V3
    set_node_on_first_message_only: true
    grpc_services: [{envoy_grpc: {cluster_name: xds, retry_policy: {retry_back_off: {base_interval: 0.1s, max_interval: 1s}}}}]
  cds_config: {resource_api_version: V3, ads: {}, initial_fetch_timeout: 0s}
  lds_config: {resource_api_version: V3, ads: {}, initial_fetch_timeout: 0s}
static_resources:
  listeners: %[5]s
  secrets:
  - name: identity
    tls_certificate: {certificate_chain: {filename: %[6]q}, private_key: {filename: %[7]q}}
  clusters:
  - name: xds
    type: STATIC
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
    load_assignment: {cluster_name: xds, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: %[3]s, port_value: %[4]s}}}}]}]}
`, id, envoytest.AdminSocket(dir), host, portText, listeners.String(), cert, key)
}

func dataplane(name, address string, ports ...meshv1alpha1.DataplanePort) *meshv1alpha1.Dataplane {
	return &meshv1alpha1.Dataplane{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Generation: 1, UID: "u"},
		Spec:       meshv1alpha1.DataplaneSpec{Addresses: []string{address}, NodeName: "n1", Ports: ports, Proxy: &meshv1alpha1.DataplaneProxy{}},
	}
}

func strict(mode string) *meshv1alpha1.Mesh {
	return &meshv1alpha1.Mesh{ObjectMeta: metav1.ObjectMeta{Name: "default"}, Spec: meshv1alpha1.MeshSpec{MTLS: &meshv1alpha1.MeshMTLS{
		EnabledBackend: "b", Backends: []meshv1alpha1.MeshCertificateBackend{{Name: "b", Mode: mode}},
	}}}
}

// TestEnvoy: a real Envoy has each kind of resource, shown by traffic.
func TestEnvoy(t *testing.T) {
	plain, secured := application(t, "plain"), application(t, "secured")
	tcpPort, httpPort, mtlsPort := freePort(t), freePort(t), freePort(t)
	vipPort, unknownPort := freePort(t), freePort(t)
	inbound := freePort(t)

	client := dataplane("client-1", "127.0.0.1", meshv1alpha1.DataplanePort{Port: inbound, AppProtocol: new("http"), TargetPort: new(secured)})
	client.Spec.Proxy.Outbound = []meshv1alpha1.DataplaneOutbound{
		{Port: tcpPort, Service: "plain", ServicePort: 80}, {Port: httpPort, Service: "plain", ServicePort: 81},
		{Port: mtlsPort, Service: "secured", ServicePort: 80},
	}
	p := newPlane(t,
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{corev1.LabelTopologyZone: "a"}}},
		strict("Permissive"), client,
		service("plain", "10.96.0.10", port("tcp", 80, ""), port("web", 81, "http")),
		slice("plain", "tcp", plain, "a", "p1=127.0.0.1"), slice("plain", "web", plain, "a", "p1=127.0.0.1"),
		service("secured", "10.96.0.11", port("web", 80, "http")),
		slice("secured", "web", inbound, "a", "client-1=127.0.0.1"),
	)
	dir := envoytest.Dir(t)
	cert, key := p.identity(dir, "shop", "default")
	onDemand := map[string]int32{"10.96.0.10:80": vipPort, "10.96.0.99:80": unknownPort}
	yaml := bootstrap(p, dir, "default/shop/client-1", cert, key, onDemand)
	proxy := envoytest.Start(t, dir, yaml)
	proxy.WaitReady()

	answers := func(port int32, want string) {
		t.Helper()
		var got string
		var err error
		end := time.Now().Add(3 * time.Second)
		for time.Now().Before(end) {
			if got, _, err = get(port, "/x"); err == nil && got == want {
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
		_, stats, _ := proxy.Admin(http.MethodGet, "/stats?usedonly&filter=ssl|sds|lds|cds|update_|warming|no_filter|connect_fail|rds")
		t.Log(stats)
		t.Fatalf("port %d answers %q (%v), want %q", port, got, err, want)
	}
	t.Run("TCP", func(t *testing.T) { answers(tcpPort, "plain/x") })
	t.Run("HTTP", func(t *testing.T) {
		answers(httpPort, "plain/x")
		_, header, err := get(httpPort, "/x")
		if err != nil || header.Get("endpoint-load-metrics") != "" {
			t.Errorf("what is for proxies reaches the client: %v, %v", header, err)
		}
		if n := proxy.Stats("http.out.downstream_rq_total")["http.out.downstream_rq_total"]; n < 2 {
			t.Errorf("%v requests, so it is not HTTP", n)
		}
	})
	t.Run("mutual TLS to an endpoint with a proxy, plain to others", func(t *testing.T) {
		answers(mtlsPort, "secured/x")
		stats := proxy.Stats("listener.*ssl.handshake")
		n := 0.0
		for _, v := range stats {
			n += v
		}
		if n == 0 {
			t.Errorf("no TLS handshake: %v", stats)
		}
	})
	t.Run("permissive", func(t *testing.T) { answers(inbound, "secured/x") })
	t.Run("on demand", func(t *testing.T) {
		answers(vipPort, "plain/x")
	})
	t.Run("unknown, then known", func(t *testing.T) {
		start := time.Now()
		if got, _, err := get(unknownPort, "/"); err == nil {
			t.Errorf("an answer of nobody: %q", got)
		}
		if d := time.Since(start); d > time.Second {
			t.Errorf("it waited %s", d)
		}
		p.seed(service("late", "10.96.0.99", port("tcp", 80, "")), slice("late", "tcp", plain, "a", "p1=127.0.0.1"))
		answers(unknownPort, "plain/x")
	})
	t.Run("endpoints change", func(t *testing.T) {
		other := application(t, "other")
		p.seed(slice("plain", "tcp", other, "a", "p1=127.0.0.1"))
		answers(tcpPort, "other/x")
		answers(vipPort, "other/x")
	})
	t.Run("strict", func(t *testing.T) {
		p.seed(strict("Strict"))
		end := time.Now().Add(3 * time.Second)
		for {
			if _, _, err := get(inbound, "/x"); err != nil {
				break
			}
			if time.Now().After(end) {
				t.Fatal("a client without a certificate is admitted")
			}
			time.Sleep(5 * time.Millisecond)
		}
		answers(mtlsPort, "secured/x")
	})
	p.seen.none(t)
	if _, dump, _ := proxy.Admin(http.MethodGet, "/clusters"); !strings.Contains(dump, "shop/plain:80") {
		t.Errorf("clusters:\n%s", dump)
	}
}
