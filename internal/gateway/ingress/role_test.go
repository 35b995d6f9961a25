package ingress_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"crypto/tls"
	"crypto/x509"

	"github.com/proxima-mesh/proxima/internal/gateway/gatewaytest"
	"github.com/proxima-mesh/proxima/internal/gateway/ingress"
	"github.com/proxima-mesh/proxima/internal/gateway/server"
	"github.com/proxima-mesh/proxima/internal/gateway/tunnel"
)

const roleVariable = "PROXIMA_GATEWAY_TEST_ROLE"

// runRole is what this test's binary does in another process: an ingress in front of
// an endpoint, until it is killed or its input ends. Input begins with certificates.
func runRole(target string) {
	chain, key, roots, err := readPEM(bufio.NewReader(os.Stdin))
	if err == nil {
		err = runIngress(target, chain, key, roots)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func readPEM(in *bufio.Reader) (chain, key, roots []byte, err error) {
	for _, to := range []*[]byte{&chain, &key, &roots} {
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				return nil, nil, nil, err
			}
			*to = append(*to, line...)
			if strings.HasPrefix(line, "-----END") {
				break
			}
		}
	}
	return chain, key, roots, nil
}

func runIngress(target string, chain, key, roots []byte) error {
	cert, err := tls.X509KeyPair(chain, key)
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(roots)
	to, err := netip.ParseAddrPort(target)
	if err != nil {
		return err
	}
	handler, err := ingress.New(ingress.Config{Routes: &routes{routes: map[string]ingress.Route{sni: route(to)}}})
	if err != nil {
		return err
	}
	s, err := server.New(server.Config{
		Role: "ingress", Authority: &gatewaytest.Policy{Roots: pool}, Handler: handler,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &cert, nil },
	})
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	return s.Serve(l)
}

// TestKilledIngressIsAReset: its kernel ends connections with FIN, which must not look
// like the end of the stream. The process is a real one, killed with SIGKILL.
func TestKilledIngressIsAReset(t *testing.T) {
	ca := must(gatewaytest.NewCA())
	sent := make(chan struct{})
	to := endpoint(t, func(c *net.TCPConn) {
		_, _ = io.ReadFull(c, make([]byte, 5))
		_, _ = c.Write([]byte("half an ans"))
		close(sent)
		_, _ = io.Copy(io.Discard, c)
	})
	chain, key, err := gatewaytest.EncodePEM(must(ca.Issue(ingressID, time.Hour)))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVariable+"="+to.String())
	cmd.Stderr = os.Stderr
	in := must(cmd.StdinPipe())
	out := must(cmd.StdoutPipe())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	_, _ = in.Write(append(append(chain, key...), ca.PEM()...))
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	peer := tunnel.Peer{Name: "west-1", Address: netip.MustParseAddrPort(strings.TrimSpace(line)), Site: "west", Weight: 1}
	n := startNode(t, must(ca.Credentials(workload1, ingressID)), nil, peer)
	c := n.dial(t)
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	<-sent
	if _, err := io.ReadFull(c, make([]byte, 11)); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	expectReset(t, c)
	eventually(t, "it is counted", func() bool { return metric(t, n.registry, "proxima_tunnel_resets_total", "broken") == 1 })
}
