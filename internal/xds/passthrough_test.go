package xds_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/testkit/envoytest"
	"github.com/proxima-mesh/proxima/internal/testkit/netns"
)

// inNamespace is the version of Envoy in the process of the test that has a network namespace of its own.
const inNamespace = "PROXIMA_TEST_IN_NAMESPACE"

// TestPassthrough: connections that are led to a real Envoy reach destinations outside the mesh by
// passthrough.match, and no others. Its network is one of its own, where all addresses of 10.9.0.0/16
// lead to the Envoy, and its clusters "passthrough" to a server of the test.
func TestPassthrough(t *testing.T) {
	version := os.Getenv(inNamespace)
	if version != "" {
		passthrough(t, version)
		return
	}
	if why := netns.Available(); why != "" {
		t.Skip(why)
	}
	versions := []string{envoytest.Newest}
	if interop() {
		versions = append(versions, envoytest.Oldest)
	}
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			envoytest.BinaryOf(t, version) // there is no way to get it from there
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			c := exec.CommandContext(ctx, "unshare", "--net", os.Args[0], "-test.run=^TestPassthrough$", "-test.v")
			c.Env = append(os.Environ(), inNamespace+"="+version)
			if out, err := c.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		})
	}
}

func passthrough(t *testing.T, version string) {
	t.Helper()
	for _, line := range []string{
		"ip link set lo up", "ip route add 10.9.0.0/16 dev lo", "ip route add 10.96.0.0/16 dev lo", "nft add table ip test",
		"nft add chain ip test out { type nat hook output priority -100 ; }",
		"nft add rule ip test out ip saddr 127.0.0.5 ip daddr { 10.9.0.0/16, 10.96.0.0/16 } meta l4proto tcp redirect to :15001",
	} {
		if out, err := exec.CommandContext(t.Context(), strings.Fields(line)[0], strings.Fields(line)[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v %s", line, err, out)
		}
	}
	// It answers TLS by what is no TLS, too, which its client tells from a connection that is closed.
	outside := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "outside") }))
	t.Cleanup(outside.Close)
	port := outside.Listener.Addr().(*net.TCPAddr).Port

	d := dataplane("client-1", "127.0.0.1")
	d.Labels = map[string]string{"app": "client"}
	s := &stage{dir: envoytest.Dir(t), collector: &collector{}, ports: map[string]int32{}}
	s.plane = newPlane(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, strict("Permissive"), d)
	s.cert, s.key = s.identity(s.dir, "shop", "default")
	s.proxy = envoytest.StartWith(t, envoytest.BinaryOf(t, version), s.dir, bootstrap(s.plane, s.dir, "default/shop/client-1", s.cert, s.key, nil),
		"--concurrency", "1", "--disable-hot-restart", "--log-level", "warning", "--drain-time-s", "1", "--drain-strategy", "immediate")
	s.proxy.WaitReady()
	to := func(cluster string) string {
		return fmt.Sprintf("- type: Cluster\n  op: Merge\n  match: {name: %s}\n  value: |\n    type: STATIC\n    lb_policy: ROUND_ROBIN\n    load_assignment: "+
			"{cluster_name: %s, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %d}}}}]}]}\n", cluster, cluster, port)
	}
	s.apply(t, patches(to("passthrough")+to("passthrough-http")))
	client := &net.Dialer{Timeout: time.Second, LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 5)}} // which are led to the Envoy
	// What a client is answered, by how it speaks: "outside", "403", or nothing.
	plain := func(at, host string) string {
		c, err := client.DialContext(t.Context(), "tcp", at)
		if err != nil {
			return err.Error()
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(2 * time.Second))
		_, _ = fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", host)
		r, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			return "closed"
		}
		defer r.Body.Close()
		body, _ := io.ReadAll(r.Body)
		if r.StatusCode != http.StatusOK {
			return fmt.Sprint(r.StatusCode)
		}
		return string(body)
	}
	hello := func(at, name string) string { // the server learns the name that the client sent
		c, err := client.DialContext(t.Context(), "tcp", at)
		if err != nil {
			return err.Error()
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(2 * time.Second))
		secured := tls.Client(c, &tls.Config{ServerName: name, InsecureSkipVerify: true}) //nolint:gosec // the handshake does not end
		if err := secured.HandshakeContext(t.Context()); err != nil && strings.Contains(err.Error(), "first record does not look like") {
			return "outside" // it is plain HTTP
		}
		return "closed"
	}
	s.holds(t, "before", func(*stage) string { // the patch is there
		if got := plain("10.9.0.1:80", "a.example"); got != "outside" {
			return got
		}
		return ""
	})
	undo := s.apply(t, wp(`passthrough:
  mode: Matched
  match:
  - {type: Domain, value: a.example}
  - {type: Domain, value: "*.b.example", port: 443}
  - {type: Domain, value: h.example, port: 8080, protocol: HTTP}
  - {type: IP, value: 10.9.1.1}
  - {type: CIDR, value: 10.9.2.0/24, port: 8443}
  - {type: CIDR, value: 10.9.3.0/24, protocol: TLS}
  - {type: CIDR, value: 10.9.4.0/24, port: 8081, protocol: HTTP}
`))
	for _, c := range []struct {
		what string
		do   func() string
		want string
	}{
		{"another name", func() string { return hello("10.9.0.1:443", "c.example") }, "closed"},
		{"a name", func() string { return hello("10.9.0.1:9443", "a.example") }, "outside"},
		{"a name, on a port that another match names", func() string { return hello("10.9.0.1:443", "a.example") }, "outside"},
		{"a name below", func() string { return hello("10.9.0.1:443", "x.b.example") }, "outside"},
		{"a name below, another port", func() string { return hello("10.9.0.1:444", "x.b.example") }, "closed"},
		{"a host", func() string { return plain("10.9.0.1:8080", "h.example:8080") }, "outside"},
		{"another host", func() string { return plain("10.9.0.1:8080", "i.example") }, "403"},
		{"a host, another port", func() string { return plain("10.9.0.1:80", "h.example") }, "closed"},
		{"an address", func() string { return plain("10.9.1.1:80", "i.example") }, "outside"},
		{"an address, on a port that a host has", func() string { return plain("10.9.1.1:8080", "i.example") }, "outside"},
		{"a range", func() string { return plain("10.9.2.7:8443", "i.example") }, "outside"},
		{"a range, another port", func() string { return plain("10.9.2.7:80", "i.example") }, "closed"},
		{"TLS to a range", func() string { return hello("10.9.3.7:1", "c.example") }, "outside"},
		{"no TLS to a range", func() string { return plain("10.9.3.7:1", "i.example") }, "closed"},
		{"a name in a range of others", func() string { return hello("10.9.2.7:9443", "a.example") }, "outside"},
		{"HTTP to a range", func() string { return plain("10.9.4.7:8081", "i.example") }, "outside"},
		{"TLS to a range of HTTP", func() string { return hello("10.9.4.7:8081", "c.example") }, "closed"},
		{"an address of the mesh, on a port that a match names", func() string { return plain("10.96.0.7:8443", "i.example") }, "closed"},
	} {
		s.holds(t, c.what, func(*stage) string {
			if got := c.do(); got != c.want {
				return "it is " + got + ", not " + c.want
			}
			return ""
		})
	}
	undo()
	s.holds(t, "after", func(*stage) string {
		if got := hello("10.9.0.1:443", "c.example"); got != "outside" {
			return got
		}
		return ""
	})
	if len(s.seen.refused) > 0 {
		t.Errorf("the proxy refuses %s", s.seen.refused)
	}
}
