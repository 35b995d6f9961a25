// Package outbound is a node's way to other sites, and to services outside every mesh: it
// decides for a connection of the node's tunnel which service it is for, whose identity it
// has, and which gateways of other sites it may enter by.
//
// Enter at [New]; a [Router] is a tunnel.Router, and is told by [Router.Apply] what other
// sites offer. Package tunnel carries the bytes, and chooses among the gateways. This
// package issues no certificates, and knows no endpoints of this site.
package outbound

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/proxima-mesh/proxima/internal/gateway/external"
	"github.com/proxima-mesh/proxima/internal/gateway/frame"
	"github.com/proxima-mesh/proxima/internal/gateway/hosts"
	"github.com/proxima-mesh/proxima/internal/gateway/tunnel"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
	"github.com/proxima-mesh/proxima/internal/node"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/sites"
)

// Identities of a node and its workloads. Methods are called concurrently, and do not
// block.
type Identities interface {
	// Of returns the certificate of the client of a connection to a service of a mesh.
	Of(c Connection, mesh string) (*mesh.SVID, error)
	// Admits returns why the client of a connection may not use services of a mesh, also where
	// no certificate is asked for: it is, or may be, a workload of another mesh. Nil: it may.
	Admits(c Connection, mesh string) error
	// Trust is what is trusted now.
	Trust() *mesh.Trust
	// Holds reports whether a certificate is still one of the node's.
	Holds(identity, serial string) bool
}

// Connection of a client, as its socket has it: where it connects from, and to which virtual
// address.
type Connection struct{ Client, Destination netip.AddrPort }

// Config of a Router. Client is required.
type Config struct {
	// Node that this is, and its identities. An egress has none of a node: it speaks for
	// those that it has authenticated.
	Node       string
	Identities Identities
	// Client that the streams are opened by: its connections of certificates that are
	// replaced are dropped.
	Client *tunnel.Client
	// Site of this node; empty: not known yet.
	Site func() string
	// External connects to services outside every mesh; nil: one with the system's resolver.
	External *external.Dialer
	// Lookup resolves the DNS names of gateways; nil: the system's resolver.
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)
	Logger *slog.Logger // nil: discard
}

// Router routes the connections of a node's tunnel. Safe for concurrent use.
type Router struct {
	cfg     Config
	hosts   *hosts.Table
	arrival *arrivals

	mu       sync.Mutex
	services map[proxy.ServiceName]*proxy.Service
	remotes  map[proxy.ServiceName]*sites.Remote
	virtual  map[proxy.ServiceName]*proxy.VirtualIP
	// at are the ports of Services that other sites offer, by virtual address and port.
	at map[netip.AddrPort]target
	// byName are they by server name.
	byName map[string]target
	// used are the certificates that streams were opened with.
	used map[certificate]struct{}
}

// target is a port of a Service that other sites offer.
type target struct {
	remote *sites.Remote
	port   sites.RemotePort
	// external; nil: the service is one of other sites.
	external *external.Service
}

func targetOf(remote *sites.Remote, p sites.RemotePort) target {
	t := target{remote: remote, port: p}
	if remote.External != nil {
		t.external = external.Of(remote.Service, remote.External, p.Target)
	}
	return t
}

type certificate struct{ identity, serial string }

// New returns a router that knows no service.
func New(cfg Config) *Router {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.External == nil {
		cfg.External = external.New(external.Config{})
	}
	return &Router{
		cfg: cfg, hosts: hosts.New(cfg.Lookup, cfg.Logger), arrival: newArrivals(),
		services: map[proxy.ServiceName]*proxy.Service{}, remotes: map[proxy.ServiceName]*sites.Remote{},
		virtual: map[proxy.ServiceName]*proxy.VirtualIP{},
		at:      map[netip.AddrPort]target{}, byName: map[string]target{}, used: map[certificate]struct{}{},
	}
}

// Apply takes an update of the agent's model. The router keeps the objects, not the maps.
func (r *Router) Apply(u node.Update) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if u.Reset {
		clear(r.services)
		clear(r.remotes)
		clear(r.virtual)
	}
	merge(r.services, u.Services)
	merge(r.remotes, u.Remotes)
	concerned := r.virtualConcernsLocked(u) || r.concernsLocked(u)
	merge(r.virtual, u.VirtualIPs)
	if !u.Reset && !concerned {
		return
	}
	clear(r.at)
	clear(r.byName)
	var names []string
	for name, remote := range r.remotes {
		for _, site := range remote.Sites {
			names = append(names, hosts.Of(site.Ingresses)...)
		}
		names = append(names, hosts.Of(remote.Egresses)...)
		for _, p := range remote.Ports {
			t := targetOf(remote, p)
			r.byName[p.SNI] = t
			if svc := r.services[name]; svc != nil {
				for _, addr := range svc.ClusterIPs {
					r.at[netip.AddrPortFrom(addr.Unmap(), p.Number)] = t
				}
			}
		}
	}
	for _, v := range r.virtual {
		r.setVirtualLocked(v)
	}
	r.hosts.Want(names)
}

// setVirtualLocked notes where the addresses of a name below "mesh" lead, if other sites
// offer its service.
func (r *Router) setVirtualLocked(v *proxy.VirtualIP) {
	remote := r.remotes[v.Service]
	if remote == nil {
		return
	}
	for _, p := range remote.Ports {
		if v.Port != 0 && p.Number != v.Port {
			continue
		}
		for _, addr := range v.Addresses {
			t := targetOf(remote, p)
			r.at[netip.AddrPortFrom(addr.Unmap(), p.Number)] = t
			if v.Port != 0 {
				r.at[netip.AddrPortFrom(addr.Unmap(), proxy.CommonPort)] = t
			}
		}
	}
}

// virtualConcernsLocked reports whether an update has a name whose service other sites
// offer. It is to be called before the names of the update are stored.
func (r *Router) virtualConcernsLocked(u node.Update) bool {
	for name, v := range u.VirtualIPs {
		if was := r.virtual[name]; was != nil && r.remotes[was.Service] != nil || v != nil && r.remotes[v.Service] != nil {
			return true
		}
	}
	return false
}

// concernsLocked reports whether an update may change where connections go: few Services
// are offered by other sites.
func (r *Router) concernsLocked(u node.Update) bool {
	if len(u.Remotes) > 0 {
		return true
	}
	for name := range u.Services {
		if r.remotes[name] != nil {
			return true
		}
	}
	return false
}

func merge[T any](into, from map[proxy.ServiceName]*T) {
	for name, o := range from {
		if o == nil {
			delete(into, name)
		} else {
			into[name] = o
		}
	}
}

// Route implements tunnel.Router.
func (r *Router) Route(_ context.Context, client, destination netip.AddrPort) (tunnel.Route, error) {
	destination = netip.AddrPortFrom(destination.Addr().Unmap(), destination.Port())
	c := Connection{netip.AddrPortFrom(client.Addr().Unmap(), client.Port()), destination}
	r.mu.Lock()
	t, ok := r.at[destination]
	r.mu.Unlock()
	if !ok {
		return tunnel.Route{}, &tunnel.OpenError{SNI: destination.String(), Reason: frame.NoRoute,
			Err: fmt.Errorf("no other site offers a service at %s", destination)}
	}
	if t.external != nil && !t.remote.EgressOnly {
		if err := r.cfg.Identities.Admits(c, t.remote.Mesh); err != nil {
			return tunnel.Route{}, &tunnel.OpenError{SNI: t.port.SNI, Reason: frame.Unauthorized, Err: err}
		}
		connect := func(ctx context.Context) (tunnel.Upstream, error) { return r.cfg.External.Connect(ctx, t.external) }
		return tunnel.Route{Request: tunnel.Request{SNI: t.port.SNI}, Connect: connect}, nil
	}
	creds, err := r.credentials(c, t.remote.Mesh)
	if err != nil {
		return tunnel.Route{}, &tunnel.OpenError{SNI: t.port.SNI, Reason: frame.Unauthorized, Err: err}
	}
	return tunnel.Route{Request: tunnel.Request{
		SNI: t.port.SNI, Peers: r.peers(t), EgressOnly: t.remote.EgressOnly, Credentials: creds,
		Stream: frame.Stream{Node: r.cfg.Node, Identity: creds.Identity},
	}}, nil
}

// Beyond is what an egress reaches for a server name.
type Beyond struct {
	// Mesh of the service.
	Mesh string
	// Ingresses of other sites that serve it, or External: a service outside every mesh.
	Ingresses []tunnel.Peer
	External  *external.Service
	// Service and its Port, of the name.
	Service proxy.ServiceName
	Port    uint16
}

// Beyond is what an egress reaches for a server name; ok is false if there is nothing.
func (r *Router) Beyond(sni string) (b Beyond, ok bool) {
	r.mu.Lock()
	t, ok := r.byName[sni]
	r.mu.Unlock()
	if !ok {
		return Beyond{}, false
	}
	return Beyond{t.remote.Mesh, r.ingresses(t), t.external, t.remote.Service, t.port.Number}, true
}

// weightScale keeps the shares of sites whose instances are few and ingresses many.
const weightScale = 100

// peers of a port: those of each site share its part.
func (r *Router) peers(t target) []tunnel.Peer {
	if t.remote.EgressOnly {
		return r.gateways(t.remote.Egresses, tunnel.RoleEgress, r.site(), 1)
	}
	return r.ingresses(t)
}

func (r *Router) ingresses(t target) []tunnel.Peer {
	var out []tunnel.Peer
	for _, s := range t.remote.Leaving(t.port) {
		out = append(out, r.gateways(s.Ingresses, tunnel.RoleIngress, s.Name, s.Weight)...)
	}
	return out
}

func (r *Router) site() string {
	if r.cfg.Site == nil {
		return ""
	}
	return r.cfg.Site()
}

// gateways of a site share its weight. Those that names and addresses lead to alike
// count once.
func (r *Router) gateways(all []sites.Gateway, role tunnel.Role, site string, weight uint32) []tunnel.Peer {
	var out []tunnel.Peer
	for _, g := range all {
		for _, addr := range r.hosts.Addresses(g.Host) {
			at := netip.AddrPortFrom(addr.Unmap(), g.Port)
			if !slices.ContainsFunc(out, func(p tunnel.Peer) bool { return p.Address == at }) {
				out = append(out, tunnel.Peer{Name: g.Name, Address: at, Role: role, Site: site})
			}
		}
	}
	for i := range out {
		out[i].Weight = uint32(max(uint64(weight)*weightScale/uint64(len(out)), 1))
	}
	return out
}

// credentials of the client of a connection.
func (r *Router) credentials(c Connection, meshName string) (*tunnel.Credentials, error) {
	svid, err := r.cfg.Identities.Of(c, meshName)
	if err != nil {
		return nil, fmt.Errorf("identity of the client at %s: %w", c.Client.Addr(), err)
	}
	r.mu.Lock()
	r.used[certificate{svid.ID.String(), svid.Serial()}] = struct{}{}
	r.mu.Unlock()
	return CredentialsOf(svid, meshName, r.cfg.Identities.Trust), nil
}

// CredentialsOf a certificate, for gateways of a mesh. The gateway has to have the identity
// of its role in its site, signed by that site.
func CredentialsOf(svid *mesh.SVID, meshName string, trust func() *mesh.Trust) *tunnel.Credentials {
	pair := svid.TLS()
	return &tunnel.Credentials{
		Identity: svid.ID.String(), Serial: svid.Serial(), Certificate: &pair,
		VerifyPeer: func(p tunnel.Peer, s tls.ConnectionState) error { return verifyGateway(trust(), meshName, p, s) },
	}
}

func verifyGateway(trust *mesh.Trust, meshName string, p tunnel.Peer, s tls.ConnectionState) error {
	b, ok := trust.Bundle(meshName)
	if !ok {
		return fmt.Errorf("verify gateway %s: mesh %s is not trusted here", p.Name, meshName)
	}
	identity := mesh.Ingress
	if p.Role == tunnel.RoleEgress {
		identity = mesh.Egress
	}
	want, err := identity(b.Domain, p.Site)
	if err != nil {
		return fmt.Errorf("verify gateway %s: %w", p.Name, err)
	}
	got, err := trust.Server(mesh.Exactly(want), s.PeerCertificates, time.Now())
	if err != nil {
		return fmt.Errorf("verify gateway %s: %w", p.Name, err)
	}
	if got.IssuerZone != "" && got.IssuerZone != p.Site {
		return fmt.Errorf("verify gateway %s: site %s signed a certificate for the gateway of %s", p.Name, got.IssuerZone, p.Site)
	}
	return nil
}

// sweepEvery is how soon connections of a certificate that was replaced are dropped.
const sweepEvery = 10 * time.Second

// Run resolves the names of gateways, and drops what belongs to certificates that the node
// no longer has, until ctx ends; it returns nil then.
func (r *Router) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var resolving sync.WaitGroup
	resolving.Go(func() { r.hosts.Run(ctx) })
	defer resolving.Wait()
	defer cancel()
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			r.retire()
		}
	}
}

func (r *Router) retire() {
	if r.cfg.Identities == nil {
		return
	}
	var gone []certificate
	r.mu.Lock()
	for c := range r.used {
		if !r.cfg.Identities.Holds(c.identity, c.serial) {
			delete(r.used, c)
			gone = append(gone, c)
		}
	}
	r.mu.Unlock()
	for _, c := range gone {
		r.cfg.Client.Retire(c.identity, c.serial)
	}
}

var _ tunnel.Router = (*Router)(nil)
