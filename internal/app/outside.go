package app

import (
	"context"
	"net"
	"net/netip"
	"syscall"

	"github.com/proxima-mesh/proxima/internal/dns"
	"github.com/proxima-mesh/proxima/internal/dns/capture"
	"github.com/proxima-mesh/proxima/internal/gateway/external"
	"github.com/proxima-mesh/proxima/internal/gateway/record"
)

// outside connects an agent or gateway to services outside every mesh.
func (a *agent) outside(buffers *record.Pool) *external.Dialer {
	return external.New(external.Config{Resolver: outsideResolver{a}, Virtual: a.names.IsOutside, Credentials: a.credentialsOf, Buffers: buffers})
}

// outsideResolver finds out where a service outside every mesh is: by the upstreams of DNS,
// as workloads, and so perhaps this machine's resolver, have virtual IPs for the name.
type outsideResolver struct{ *agent }

// LookupNetIP implements external.Resolver.
func (r outsideResolver) LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error) {
	resolver := net.DefaultResolver
	if r.upstream != nil {
		resolver = r.upstream
	}
	return resolver.LookupNetIP(ctx, network, host)
}

// openUpstream makes the resolver by upstreams where no names are served. An agent of this
// machine may capture DNS, so sockets are marked, if this process may mark them.
func (a *agent) openUpstream() error {
	upstreams := a.upstreams(netip.AddrPort{})
	if a.dns.server != nil || len(upstreams) == 0 {
		return nil
	}
	server, err := dns.New(dns.Config{
		Zone: a.names, Domain: ClusterDomain, ServiceCIDRs: a.cfg.ServiceCIDRs, Upstreams: upstreams,
		Control: func(network, address string, conn syscall.RawConn) error {
			_ = capture.Control(network, address, conn)
			return nil
		},
		Logger: a.log.With("component", "dns"),
	})
	if err == nil {
		a.upstream = server.Resolver()
	}
	return err
}
