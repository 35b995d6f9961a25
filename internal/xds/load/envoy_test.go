package load

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/proxima-mesh/proxima/internal/demand"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/internal/testkit/envoytest"
)

// bootstrap of an Envoy with an HTTP and a TCP listener. Arguments: the socket of its admin
// interface, ports of the HTTP listener, the TCP listener, and the address of each cluster: HTTP,
// TCP, and the control plane.
const bootstrap = `
node: {id: web-1, cluster: shop}
admin: {address: {pipe: {path: %q}}}
cluster_manager:
  load_stats_config: {api_type: GRPC, transport_api_version: V3, grpc_services: [{envoy_grpc: {cluster_name: xds}}]}
static_resources:
  listeners:
  - name: web
    address: {socket_address: {address: 127.0.0.1, port_value: %d}}
    filter_chains:
    - filters:
      - name: hcm
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: web
          http_filters: [{name: router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]
          route_config: {virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: /}, route: {cluster: "shop/web:80"}}]}]}
  - name: mail
    address: {socket_address: {address: 127.0.0.1, port_value: %d}}
    filter_chains:
    - filters:
      - name: tcp
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy
          stat_prefix: mail
          cluster: "vip|10.96.0.5:80"
  clusters:
  - {name: "shop/web:80", lrs_report_endpoint_metrics: [cpu_utilization], load_assignment: %s}
  - {name: "vip|10.96.0.5:80", load_assignment: %s}
  - name: xds
    load_assignment: %s
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
`

func endpoints(address net.Addr) string {
	a := address.(*net.TCPAddr)
	return fmt.Sprintf("{cluster_name: x, endpoints: [{locality: {zone: z}, lb_endpoints: [{endpoint: "+
		"{address: {socket_address: {address: %s, port_value: %d}}}}]}]}", a.IP, a.Port)
}

// sum adds up what a stream reported.
type sum struct {
	mu      sync.Mutex
	reports int
	traffic map[proxy.PortName]demand.Traffic
}

func (s *sum) Take(_ context.Context, r *demand.Report) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reports++
	for _, t := range r.Traffic {
		all := s.traffic[t.Port]
		all.Connections += t.Connections
		all.Requests += t.Requests
		all.Utilisation.Sum += t.Utilisation.Sum
		all.Utilisation.Reports += t.Utilisation.Reports
		s.traffic[t.Port] = all
	}
	return nil
}

func (s *sum) of(service string) (demand.Traffic, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.traffic[name(service)], s.reports
}

// TestEnvoy: a real Envoy's requests, connections, and what endpoints say of their utilisation.
func TestEnvoy(t *testing.T) {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("endpoint-load-metrics", "TEXT cpu_utilization=0.4")
		if r.URL.Path == "/bad" {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	defer web.Close()
	mail, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer mail.Close()
	go func() {
		for {
			c, err := mail.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("220"))
			c.Close()
		}
	}()
	got := &sum{traffic: map[proxy.PortName]demand.Traffic{}}
	server := grpc.NewServer()
	New(Config{Identify: byNode, Taker: got, Ports: fakePorts{}, Interval: time.Second}).Register(server)
	plane, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(plane) }()
	defer func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	dir := envoytest.Dir(t)
	webPort, mailPort := testkit.FreePort(t), testkit.FreePort(t)
	envoytest.Start(t, dir, fmt.Sprintf(bootstrap, envoytest.AdminSocket(dir), webPort, mailPort,
		endpoints(web.Listener.Addr()), endpoints(mail.Addr()), endpoints(plane.Addr())))
	until(t, "the first report", func() bool { _, n := got.of("web"); return n > 0 })

	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for i := range 30 {
		path := "/"
		if i%10 == 0 {
			path = "/bad"
		}
		response, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d%s", webPort, path))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, response.Body); err != nil {
			t.Error(err)
		}
		response.Body.Close()
	}
	for range 7 {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", mailPort))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(c); err != nil {
			t.Error(err)
		}
		c.Close()
	}
	until(t, "all requests and connections", func() bool {
		x, _ := got.of("web")
		y, _ := got.of("db")
		return x.Connections >= 30 && y.Connections >= 7
	})
	if x, _ := got.of("web"); x.Connections != 30 || x.Requests != 30 || x.Utilisation.Reports != 30 || x.Utilisation.Sum < 11.99 || x.Utilisation.Sum > 12.01 {
		t.Errorf("HTTP: %+v, want 30 requests of which 30 state 0.4", x)
	}
	if x, _ := got.of("db"); x.Connections != 7 || x.Requests != 0 || x.Utilisation.Reports != 0 {
		t.Errorf("TCP: %+v, want 7 connections", x)
	}
}

func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !is(); {
		if time.Now().After(end) {
			t.Fatalf("%s: not within 30 s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
