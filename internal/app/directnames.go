package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/dns"
	"github.com/proxima-mesh/proxima/internal/dns/direct"
	"github.com/proxima-mesh/proxima/internal/dns/records"
	"github.com/proxima-mesh/proxima/internal/problem"
)

// directNames answers names for machines without an agent, by the addresses of endpoints.
// The zero value is off.
type directNames struct {
	nameServer
	zone    *records.Zone
	clients *direct.Clients
	tables  *catalog.Catalog
}

// listenDirect opens the sockets of --dns-address. It forwards nothing: a server that many
// machines reach must not be a resolver for the world.
func listenDirect(address string, tables *catalog.Catalog, metrics prometheus.Registerer, log *slog.Logger) (directNames, error) {
	if address == "" {
		return directNames{}, nil
	}
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return directNames{}, &problem.Error{
			Code: problem.Usage, Err: fmt.Errorf("--dns-address %q: want ADDRESS:PORT, as in 192.0.2.1:53", address),
		}
	}
	udp, tcp, err := listenBoth(at.Addr().String(), int(at.Port()))
	if err != nil {
		return directNames{}, &problem.Error{
			Code: problem.ListenFailed, Err: fmt.Errorf("--dns-address: %w", err),
			Hint: "is another DNS server running on this machine? choose another port",
		}
	}
	d := directNames{nameServer: nameServer{udp: udp, tcp: tcp}, zone: records.New(), clients: &direct.Clients{}, tables: tables}
	config := dns.Config{Zone: d.zone, Mesh: d.clients.MeshAt, Viewer: d.clients.Viewer, Domain: ClusterDomain, Logger: log.With("component", "dns"), Registerer: metrics}
	if self := udp.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(); !self.IsUnspecified() {
		config.Addresses = []netip.Addr{self}
	}
	if d.server, err = dns.New(config); err != nil {
		return directNames{}, errors.Join(err, udp.Close(), tcp.Close())
	}
	return d, nil
}

func (d directNames) components() []component {
	if d.server == nil {
		return nil
	}
	return []component{
		{Name: "names of endpoints", Run: func(ctx context.Context) error { return direct.Follow(ctx, d.tables, d.zone, d.clients) }},
		{Name: "DNS upstreams", Run: d.server.Run},
		{Name: "DNS over UDP", Run: func(ctx context.Context) error { return d.server.ServeUDP(ctx, d.udp) }},
		{Name: "DNS over TCP", Run: func(ctx context.Context) error { return d.server.ServeTCP(ctx, d.tcp) }},
	}
}
