package app

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// TestSeveralServers: an agent joins while nothing listens at its first address, and is
// authenticated, follows its view and renews its Lease; when it is started again, too, and when
// the list is in another order then.
func TestSeveralServers(t *testing.T) {
	p := startMeshPlane(t)
	node, real := p.node, p.node.Server
	const nobody = "127.0.0.1:1"
	for i, servers := range [][]string{{nobody, real}, {nobody, real}, {real, nobody}} {
		node.Server, node.OtherServers = servers[0], servers[1:]
		began := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		a, err := newAgent(ctx, node)
		if err != nil {
			cancel()
			t.Fatalf("start %d: %v", i, err)
		}
		components, err := a.components()
		if err != nil {
			cancel()
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- run(ctx, unopposed{}, components) }()
		eventually(t, "the view", func() bool { return a.feed.Status().Connected })
		eventually(t, "a renewal of the Lease", func() bool {
			lease := getOrNil[*coordinationv1.Lease](p, kind.Lease, resource.Key{Namespace: "kube-node-lease", Name: "n1"})
			return lease != nil && lease.Spec.RenewTime != nil && lease.Spec.RenewTime.After(began)
		})
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		a.close()
		node.Token = "" // it may be deleted once the node has joined
	}
}

// TestDialServers: requests go to the server that answers, over HTTP/2; when it ends, to the
// next one.
func TestDialServers(t *testing.T) {
	answer := func(name string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Server-Name", name) })
	}
	pool := x509.NewCertPool()
	start := func(name, at string) *httptest.Server {
		s := httptest.NewUnstartedServer(answer(name))
		if at != "" {
			l, err := net.Listen("tcp", at)
			if err != nil {
				t.Fatal(err)
			}
			s.Listener.Close()
			s.Listener = l
		}
		s.EnableHTTP2 = true
		s.StartTLS()
		pool.AddCert(s.Certificate())
		t.Cleanup(s.Close)
		return s
	}
	one, two := start("one", ""), start("two", "")
	servers := []string{one.Listener.Addr().String(), two.Listener.Addr().String()}
	one.Close()
	var hosts []string
	client := &http.Client{Transport: &http.Transport{
		ForceAttemptHTTP2: true,
		DialTLSContext: DialServers(servers, func(host string) *tls.Config {
			hosts = append(hosts, host)
			return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool, ServerName: host}
		}),
	}}
	defer client.CloseIdleConnections()
	ask := func() (string, error) {
		resp, err := client.Get("https://" + servers[0] + "/")
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		if resp.ProtoMajor != 2 {
			t.Errorf("%s", resp.Proto)
		}
		return resp.Header.Get("Server-Name"), nil
	}
	for range 2 {
		if name, err := ask(); err != nil || name != "two" {
			t.Fatalf("%q, %v", name, err)
		}
	}
	if len(hosts) != 1 || hosts[0] != "127.0.0.1" {
		t.Errorf("handshakes with %v: two requests share a connection", hosts)
	}
	start("one again", servers[0])
	two.Close()
	eventually(t, "the other server", func() bool { // the request may be on the connection that ends
		name, err := ask()
		return err == nil && name == "one again"
	})
}
