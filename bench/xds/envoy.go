package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/testkit/envoytest"
)

// greeters are two servers, each of which says its letter to who connects and speaks first: Envoy
// asks for permission when the client's first byte comes.
type greeters [2]net.Listener

func newGreeters() (greeters, error) {
	var g greeters
	for i := range g {
		l, err := net.Listen("tcp4", "0.0.0.0:0")
		if err != nil {
			g.close()
			return g, err
		}
		g[i] = l
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return // closed
				}
				go answer(c, letter(i))
			}
		}()
	}
	return g, nil
}

func answer(c net.Conn, with byte) {
	defer c.Close()
	var b [1]byte
	if _, err := c.Read(b[:]); err == nil {
		_, _ = c.Write([]byte{with}) // the client may have gone
	}
}

// ownAddress is an IPv4 address of the machine.
func ownAddress() (netip.Addr, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return netip.Addr{}, err
	}
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && p.Addr().IsGlobalUnicast() {
			return p.Addr(), nil
		}
	}
	return netip.Addr{}, errors.New("the machine has no IPv4 address but those of loopback")
}

func letter(i int) byte { return byte('a' + i) }

func (g greeters) close() {
	for _, l := range g {
		if l != nil {
			_ = l.Close()
		}
	}
}

func (g greeters) port(i int) uint16 { return uint16(g[i%2].Addr().(*net.TCPAddr).Port) }

// at is the endpoint of one. It has the machine's own address: endpoints on loopback addresses are
// refused.
func (g greeters) at(i int) (netip.AddrPort, error) {
	own, err := ownAddress()
	return netip.AddrPortFrom(own, g.port(i)), err
}

// slice of the first Service, with one of them as its endpoint.
func (g greeters) slice(i int) (*discoveryv1.EndpointSlice, error) {
	at, err := g.at(i)
	return newSlice(0, at), err
}

// greeting is what is said to a new connection; 0: nothing.
func greeting(address string) byte {
	c, err := net.DialTimeout("tcp", address, time.Second)
	if err != nil {
		return 0
	}
	defer c.Close()
	return said(c)
}

// said is the first byte that comes; 0: none does.
func said(c net.Conn) byte {
	var b [1]byte
	if err := c.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return 0
	}
	if _, err := c.Write([]byte("hello")); err != nil { // from five bytes on Envoy knows that it is no TLS
		return 0
	}
	if _, err := c.Read(b[:]); err != nil {
		return 0
	}
	return b[0]
}

// direct is an Envoy without a supervisor, and without TLS, for servers of this process.
type direct struct {
	cmd *exec.Cmd
	dir string
}

const directBootstrap = `
node: {id: %[1]q, cluster: bench}
admin: {address: {pipe: {path: %[2]q}}}
dynamic_resources:
  ads_config:
    api_type: DELTA_GRPC
    transport_api_version: V3
    set_node_on_first_message_only: true
    grpc_services: [{envoy_grpc: {cluster_name: xds}}]
  cds_config: {resource_api_version: V3, ads: {}, initial_fetch_timeout: 0s}
  lds_config: {resource_api_version: V3, ads: {}, initial_fetch_timeout: 0s}
static_resources:
  clusters:
  - name: xds
    type: STATIC
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
    load_assignment: {cluster_name: xds, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %[3]s}}}}]}]}
`

func startDirect(ctx context.Context, p plan, id, server string) (*direct, error) {
	dir, err := os.MkdirTemp("", "xds")
	if err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(server)
	if err != nil {
		return nil, err
	}
	socket, file := envoytest.AdminSocket(dir), filepath.Join(dir, "bootstrap.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, directBootstrap, id, socket, port), 0o600); err != nil {
		return nil, err
	}
	d := &direct{dir: dir, cmd: exec.CommandContext(ctx, p.envoy, "-c", file, "--concurrency", "1", "--disable-hot-restart", "--log-level", "error")}
	if err := d.cmd.Start(); err != nil {
		return nil, err
	}
	_, err = until(ctx, func() bool {
		answer, err := envoytest.AdminClient(socket).Get("http://admin/ready")
		if err != nil {
			return false
		}
		_ = answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	})
	if err != nil {
		d.stop()
		return nil, fmt.Errorf("Envoy: %w", err)
	}
	return d, nil
}

func (d *direct) stop() {
	_ = d.cmd.Process.Kill() // it may have ended
	_ = d.cmd.Wait()
	_ = os.RemoveAll(d.dir)
}

// measureEnvoy: the endpoint of a Service changes, until a stream has it and until a new connection
// through a real Envoy comes to the other endpoint. Ours and go-control-plane's server take turns.
func measureEnvoy(ctx context.Context, p plan, out io.Writer) error {
	g, err := newGreeters()
	if err != nil {
		return err
	}
	defer g.close()
	ports, err := freePorts(2)
	if err != nil {
		return err
	}
	var numbers [2]int
	for i := range ports {
		if numbers[i], err = strconv.Atoi(ports[i]); err != nil {
			return err
		}
	}
	extra := newDataplane("direct", "127.0.0.1", nil)
	extra.Annotations = nil
	extra.Spec.Ports = nil
	extra.Spec.Proxy.Outbound = []meshv1alpha1.DataplaneOutbound{{Port: int32(numbers[0]), Service: serviceName(0), ServicePort: servicePort}}
	small := p
	small.streams = 1
	own, err := startOurs(small, extra)
	if err != nil {
		return err
	}
	defer own.stop()
	peer, err := startSnapshot(small, uint32(numbers[1]))
	if err != nil {
		return err
	}
	defer peer.stop()
	servers := []server{own, peer}
	held, connected := make([]times, 2), make([]times, 2)
	crowds := make([]*crowd, 2)
	for i, s := range servers {
		slice, err := g.slice(0)
		if err == nil {
			err = s.set(slice)
		}
		if err != nil {
			return err
		}
		envoy, err := startDirect(ctx, p, nodeID("direct"), s.address())
		if err != nil {
			return err
		}
		defer envoy.stop()
		crowds[i] = newCrowd(ctx, adsMethod, clusterOf(0))
		defer crowds[i].end()
		a := s.asks(0, []int{0})
		crowds[i].add(s.address(), a, plain)
		if err := crowds[i].wait(&crowds[i].complete, 1); err != nil {
			return err
		}
		if _, err := until(ctx, func() bool { return greeting("127.0.0.1:"+ports[i]) == letter(0) }); err != nil {
			return fmt.Errorf("%s: the first connection: %w", s.name(), err)
		}
	}
	for round := 1; round <= p.rounds; round++ {
		for i, s := range servers {
			if err := pause(ctx, settle); err != nil {
				return err
			}
			slice, err := g.slice(round)
			if err != nil {
				return err
			}
			h, c, err := turn(ctx, crowds[i], func() error { return s.set(slice) }, "127.0.0.1:"+ports[i], letter(round%2))
			if err != nil {
				return fmt.Errorf("%s: %w", s.name(), err)
			}
			held[i], connected[i] = append(held[i], h), append(connected[i], c)
		}
	}
	for i, s := range servers {
		fmt.Fprintf(out, "%-14s endpoint change → held by a stream p50 %s, p99 %s ms; → new connection through Envoy p50 %s, p99 %s ms\n", s.name(),
			ms(held[i].quantile(0.5)), ms(held[i].quantile(0.99)), ms(connected[i].quantile(0.5)), ms(connected[i].quantile(0.99)))
	}
	return nil
}

// turn makes a change, and measures when a stream has it and when a new connection says the letter.
func turn(ctx context.Context, c *crowd, change func() error, address string, want byte) (held, connected time.Duration, err error) {
	c.changed.Store(0)
	begin := time.Now()
	if err := change(); err != nil {
		return 0, 0, err
	}
	_, err = until(ctx, func() bool { return greeting(address) == want })
	connected = time.Since(begin)
	err = errors.Join(err, c.wait(&c.changed, 1))
	return time.Duration(c.last.Load()) - begin.Sub(c.start), connected, err
}
