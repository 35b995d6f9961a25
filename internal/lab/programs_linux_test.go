package lab_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	xdscreds "google.golang.org/grpc/credentials/xds"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/xds"

	"github.com/proxima-mesh/proxima/internal/kernel/cgroup"
	"github.com/proxima-mesh/proxima/internal/lab"
	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/internal/testkit/envoytest"
)

// What the programs of TestPrograms run: this test's binary with one of these variables.
const (
	// programAddress: serve gRPC there with credentials of xDS.
	programAddress = "PROGRAM_SERVE"
	// programTarget: call it with credentials of xDS, once for each connection to the socket
	// programSocket, and answer with what became of it.
	programTarget, programSocket = "PROGRAM_TARGET", "PROGRAM_SOCKET"
	// lookupSocket: GET the URL in the first line of each connection to this socket, and answer with the
	// address that its name has, and the body. The resolver is none that answers.
	lookupSocket = "PROGRAM_LOOKUP"
)

const (
	// absentResolver is the machine of the control plane, where nothing serves DNS.
	absentResolver = "10.200.0.2:53"
	programPort    = 9090
)

// TestPrograms: a command of "run --dns" resolves a Service of the mesh by its sidecar alone, and reaches it.
// Commands of "run --grpc" are a server and a client of gRPC with credentials of xDS: they have mutual TLS from
// what run gives them, and the server refuses who has none.
func TestPrograms(t *testing.T) {
	if _, err := cgroup.Find(); err != nil {
		t.Skip(err)
	}
	s := &sidecars{t: t, l: start(t, lab.Spec{Zones: 2, Nodes: 1, Mode: "nftables", IPv4Only: true})}
	var err error
	if s.api, err = s.l.Client(""); err != nil {
		t.Fatal(err)
	}
	s.setMode("Strict")
	sockets := t.TempDir()

	t.Run("grpc", func(t *testing.T) {
		s.service("pay", "grpc", programPort)
		s.runWith("b-1", "pay", []string{"--grpc", "--port", fmt.Sprint("grpc:", programPort)}, []string{fmt.Sprintf("%s=0.0.0.0:%d", programAddress, programPort)}, os.Args[0])
		socket := sockets + "/till"
		s.runWith("a-1", "till", []string{"--grpc"}, []string{programTarget + "=xds:///pay.default.svc.cluster.local:80", programSocket + "=" + socket}, os.Args[0])
		const want = "SERVING spiffe://default.mesh/ns/default/sa/default spiffe://default.mesh/ns/default/sa/default"
		testkit.Eventually(t, "a call with mutual TLS", func() bool { return told(t, socket, "") == want })
		if got := told(t, socket, ""); got != want {
			t.Errorf("the next call: %s", got)
		}
		for _, from := range []string{"client-a", "b-1"} {
			if err := plainCall(t, from); status.Code(err) != codes.Unavailable {
				t.Errorf("a call without TLS from %s: %v", from, err)
			}
		}
	})

	t.Run("dns", func(t *testing.T) {
		s.t = t
		s.serve()
		s.run("b-1", "stock", "sleep", "1000")
		socket := sockets + "/asker"
		s.runWith("a-1", "asker", []string{"--sidecar", "--envoy", envoytest.Binary(t), "--redirect", "cgroup", "--dns"}, []string{lookupSocket + "=" + socket}, os.Args[0])
		testkit.Eventually(t, "the Service is resolved and reached", func() bool {
			return told(t, socket, "http://stock.default.svc.cluster.local/") == s.vip+" in stock"
		})
		if got := told(t, socket, "http://none.default.svc.cluster.local/"); !strings.Contains(got, "no such host") {
			t.Errorf("a name that there is not: %s", got)
		}
	})
}

// told is what a program answers on its socket to a line.
func told(t *testing.T, socket, line string) string {
	t.Helper()
	c, err := net.Dial("unix", socket)
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	if _, err := io.WriteString(c, line+"\n"); err != nil {
		return err.Error()
	}
	text, err := io.ReadAll(c)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(text))
}

// plainCall of the server of TestPrograms, without TLS.
func plainCall(t *testing.T, from string) error {
	t.Helper()
	ns := inNamespace(t, from)
	defer ns.Close()
	conn, err := grpc.NewClient(fmt.Sprint("passthrough:///10.200.2.11:", programPort), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return ns.DialContext(ctx, "tcp", address)
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return checkHealth(t.Context(), conn)
}

// serveProgram until ctx ends. It answers with the SPIFFE ID of who calls, in the header "caller".
func serveProgram(ctx context.Context, address string) error {
	creds, err := xdscreds.NewServerCredentials(xdscreds.ServerOptions{FallbackCreds: insecure.NewCredentials()})
	if err != nil {
		return err
	}
	server, err := xds.NewGRPCServer(grpc.Creds(creds), grpc.UnaryInterceptor(
		func(ctx context.Context, r any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
			p, _ := peer.FromContext(ctx)
			if err := grpc.SetHeader(ctx, metadata.Pairs("caller", spiffeID(p))); err != nil {
				return nil, err
			}
			return h(ctx, r)
		}))
	if err != nil {
		return err
	}
	healthpb.RegisterHealthServer(server, health.NewServer())
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, server.Stop)()
	return server.Serve(l)
}

// spiffeID of the other end of a connection; "none": it has none.
func spiffeID(p *peer.Peer) string {
	if p != nil {
		if info, ok := p.AuthInfo.(credentials.TLSInfo); ok && info.SPIFFEID != nil {
			return info.SPIFFEID.String()
		}
	}
	return "none"
}

// callProgram: an answer has the status, who the server says has called, and who the server is.
func callProgram(ctx context.Context, target, socket string) error {
	creds, err := xdscreds.NewClientCredentials(xdscreds.ClientOptions{FallbackCreds: insecure.NewCredentials()})
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(creds))
	if err != nil {
		return err
	}
	defer conn.Close()
	return listenUnix(ctx, socket, func(c net.Conn) {
		defer c.Close()
		if _, err := bufio.NewReader(c).ReadString('\n'); err != nil { // what is unread takes the answer with it
			return
		}
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		var server peer.Peer
		header := metadata.MD{}
		r, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{}, grpc.Header(&header), grpc.Peer(&server))
		if err != nil {
			fmt.Fprint(c, err)
			return
		}
		fmt.Fprint(c, r.Status, " ", strings.Join(header.Get("caller"), ","), " ", spiffeID(&server))
	})
}

// lookUp and fetch, with a resolver that is not there.
func lookUp(ctx context.Context, socket string) error {
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, absentResolver)
	}}
	return listenUnix(ctx, socket, func(c net.Conn) {
		defer c.Close()
		line, err := bufio.NewReader(c).ReadString('\n')
		if err == nil {
			line, err = fetch(ctx, resolver, strings.TrimSpace(line))
		}
		fmt.Fprint(c, line, errorText(err))
	})
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// fetch a URL: the address of its host, and the body.
func fetch(ctx context.Context, r *net.Resolver, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	var at netip.AddrPort
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{Resolver: r}).DialContext(ctx, network, address)
		if err == nil {
			at, err = netip.ParseAddrPort(conn.RemoteAddr().String())
		}
		return conn, err
	}}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(response.Body)
	return at.Addr().String() + " " + string(body), errors.Join(err, response.Body.Close())
}
