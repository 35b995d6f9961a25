package sidecar

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/sidecar/adstest"
	"github.com/proxima-mesh/proxima/internal/sidecar/wire"
	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/internal/xds/translate"
)

// lineServer takes lines; each is on the channel.
func lineServer(t *testing.T, address string) (at string, lines <-chan string, stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	out := make(chan string, 100)
	conns := make(chan net.Conn, 100)
	go func() {
		defer close(conns)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conns <- conn
			go func() {
				for s := bufio.NewScanner(conn); s.Scan(); {
					select {
					case out <- s.Text():
					default: // nobody reads any more
					}
				}
			}()
		}
	}()
	stop = func() {
		_ = l.Close() // it may have been
		for c := range conns {
			_ = c.Close()
		}
	}
	t.Cleanup(stop)
	return l.Addr().String(), out, stop
}

// TestTCPAccessLog: a line for each connection comes to the server, in the format of the policy. Without the
// server connections go on, and its lines wait.
func TestTCPAccessLog(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	at, lines, stop := lineServer(t, "127.0.0.1:0")
	logged := free(t)
	l := adstest.Listener(t, "out|logged", logged, "web")
	l.FilterChains[0].Filters[0].GetTypedConfig().Reset()
	l.FilterChains[0].Filters[0].GetTypedConfig().TypeUrl = "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy"
	proxy := &tcpproxyv3.TcpProxy{
		StatPrefix: "tcp", ClusterSpecifier: &tcpproxyv3.TcpProxy_Cluster{Cluster: "web"},
		AccessLog: translate.AccessLogs([]mesh.AccessLog{{TCP: &mesh.TCPLog{Address: at}, Format: "to %UPSTREAM_CLUSTER%: %BYTES_SENT% bytes"}}, true),
	}
	l.FilterChains[0].Filters[0].GetTypedConfig().Value = adstest.Pack(t, proxy).Value
	w.cp.Set(wire.Listener, "out|logged", "1", l)
	s := w.start()
	ask := func() {
		t.Helper()
		testkit.Eventually(t, "it serves", func() bool { return adstest.Ask(logged, 3*time.Second) == "web" })
	}
	next := func(what string) {
		t.Helper()
		select {
		case line := <-lines:
			if line != "to web: 4 bytes" {
				t.Errorf("%s: %q", what, line)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("no line: ", what)
		}
	}
	ask()
	next("the first connection")

	stop()
	testkit.Eventually(t, "nobody takes lines", func() bool {
		c, err := net.Dial("tcp", at)
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	})
	for range 20 {
		if got := adstest.Ask(logged, 3*time.Second); got != "web" {
			t.Errorf("without the server of logs: %q", got)
		}
	}
	_, lines, _ = lineServer(t, at)
	for i := range 20 {
		next(fmt.Sprint("connection ", i, " of those without a server"))
	}
	testkit.Eventually(t, "lines are counted", func() bool {
		_, page := get(t, "http://"+w.arg("--metrics-address")+"/metrics")
		return strings.Contains(page, "proxima_sidecar_access_log_lines_total{result=\"sent\"} 21\n") &&
			strings.Contains(page, "proxima_sidecar_access_log_lines_total{result=\"dropped\"} 0\n")
	})
	s.end()
}
