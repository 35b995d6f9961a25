package app

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"time"

	"github.com/proxima-mesh/proxima/internal/dns"
	"github.com/proxima-mesh/proxima/internal/dns/capture"
	"github.com/proxima-mesh/proxima/internal/dns/resolvconf"
	"github.com/proxima-mesh/proxima/internal/problem"
)

// DNSPortAuto is DefaultDNSPort if that is free, and no DNS if it is not.
const DNSPortAuto = -1

// DefaultDNSPort is what clients expect, where a process may have it.
func DefaultDNSPort(privileged bool) int {
	if privileged {
		return 53
	}
	return 10053
}

// nameServer answers names while an agent runs; the zero value is off.
type nameServer struct {
	server *dns.Server
	udp    *net.UDPConn // nil: names are served to who is captured alone
	tcp    net.Listener
	// capture; nil: off.
	capture *nameCapture
}

// listenNames opens the sockets of the DNS server, if there is to be one.
func (a *agent) listenNames() error {
	if err := a.listenPort(); err != nil {
		return err
	}
	if a.dns.udp == nil && !a.cfg.DNSCapture {
		return nil
	}
	self := a.dns.self()
	config := dns.Config{
		Zone: a.names, Domain: ClusterDomain, ServiceCIDRs: a.cfg.ServiceCIDRs, Upstreams: a.upstreams(self),
		Mesh: a.meshAt, Viewer: a.isolation.Viewer,
		Logger: a.log.With("component", "dns"), Registerer: a.registry,
	}
	if self.IsValid() && !self.Addr().IsUnspecified() {
		config.Addresses = []netip.Addr{self.Addr().Unmap()}
	}
	var err error
	if a.cfg.DNSCapture {
		config.Control = capture.Control
		if a.dns.capture, err = a.openCapture(config.Upstreams); err != nil {
			return err
		}
	}
	if a.dns.server, err = dns.New(config); err != nil {
		return err
	}
	if len(config.Upstreams) > 0 {
		a.upstream = a.dns.server.Resolver()
	}
	return nil
}

// listenPort opens the port of names, if there is to be one.
func (a *agent) listenPort() error {
	port := a.cfg.DNSPort
	switch port {
	case 0:
		return nil
	case DNSPortAuto:
		port = DefaultDNSPort(os.Geteuid() == 0)
	}
	udp, tcp, err := listenBoth(a.cfg.Host, port)
	if err != nil {
		if a.cfg.DNSPort == DNSPortAuto {
			a.log.Warn("names are not served at a port", "error", err, "remedy", "choose a port with --dns-port, or 0 for none")
			return nil
		}
		return &problem.Error{
			Code: problem.ListenFailed,
			Err:  fmt.Errorf("DNS: %w", err),
			Hint: "is another resolver running on this machine? choose another port with --dns-port",
		}
	}
	a.dns.udp, a.dns.tcp = udp, tcp
	a.undoResolver(a.dns.self(), "an agent that did not end by itself")
	return nil
}

// listenBoth opens one port for UDP and TCP.
func listenBoth(host string, port int) (*net.UDPConn, net.Listener, error) {
	address := net.JoinHostPort(host, strconv.Itoa(port))
	tcp, err := net.Listen("tcp", address)
	if err != nil {
		return nil, nil, err
	}
	conn, err := net.ListenPacket("udp", tcp.Addr().String())
	if err != nil {
		tcp.Close()
		return nil, nil, err
	}
	return conn.(*net.UDPConn), tcp, nil
}

// upstreams are those that were named, or the machine's own resolvers, but for this server
// itself.
func (a *agent) upstreams(self netip.AddrPort) []string {
	if len(a.cfg.DNSUpstreams) > 0 {
		return a.cfg.DNSUpstreams
	}
	out, err := a.cfg.Resolver.Upstreams(self)
	if err != nil {
		a.log.Warn("names of others are not resolved", "error", err)
	}
	return out
}

// resolverTimeout bounds how long an ending agent works on the machine's
// resolver.
const resolverTimeout = 5 * time.Second

// undoResolver restores the machine's resolver, if it points at this server. No other
// process can be serving there: this agent holds the address.
func (a *agent) undoResolver(self netip.AddrPort, whose string) {
	if server, ok := a.cfg.Resolver.Current(); !ok || server != resolvconf.Reachable(self) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), resolverTimeout)
	defer cancel()
	if _, err := a.cfg.Resolver.Undo(ctx); err != nil {
		a.log.Error("this machine's resolver still points here", "error", err, "remedy", "run \"proxima doctor --undo\"")
		return
	}
	a.log.Info("this machine's resolver is as it was before", "set_for", whose)
}

// dnsComponents answer names, and leave the machine's resolver as it was.
func (a *agent) dnsComponents() []component {
	if a.dns.server == nil {
		return nil
	}
	out := []component{{Name: "DNS upstreams", Run: a.dns.server.Run}}
	if a.dns.capture != nil {
		out = append(out, a.dns.capture.component(a))
	}
	if a.dns.udp == nil {
		return out
	}
	return append(out,
		component{Name: "host resolver", Run: func(ctx context.Context) error {
			<-ctx.Done()
			a.undoResolver(a.dns.self(), "this agent")
			return nil
		}},
		component{Name: "DNS over UDP", Run: func(ctx context.Context) error { return a.dns.server.ServeUDP(ctx, a.dns.udp) }},
		component{Name: "DNS over TCP", Run: func(ctx context.Context) error { return a.dns.server.ServeTCP(ctx, a.dns.tcp) }},
	)
}

// self is the address that the server listens on; the zero value: none.
func (n nameServer) self() netip.AddrPort {
	if n.udp == nil {
		return netip.AddrPort{}
	}
	return n.udp.LocalAddr().(*net.UDPAddr).AddrPort()
}

// address that the server listens on; empty: none.
func (n nameServer) address() string {
	if n.udp == nil {
		return ""
	}
	return n.udp.LocalAddr().String()
}

func (n nameServer) close() {
	n.capture.close()
	if n.udp != nil {
		_ = n.udp.Close()
		n.tcp.Close()
	}
}
