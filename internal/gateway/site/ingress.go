package site

import (
	"context"
	"crypto/tls"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"

	"github.com/proxima-mesh/proxima/internal/gateway/external"
	"github.com/proxima-mesh/proxima/internal/gateway/frame"
	"github.com/proxima-mesh/proxima/internal/gateway/ingress"
	"github.com/proxima-mesh/proxima/internal/gateway/server"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
	"github.com/proxima-mesh/proxima/internal/node"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/sites"
)

// Ingress is what an ingress serves: the services that its site offers, at the endpoints
// that an agent chooses for this node. Safe for concurrent use.
type Ingress struct {
	authority

	outside *external.Dialer

	mu     sync.RWMutex
	offers map[proxy.ServiceName]*sites.Offer
	states map[proxy.PortName]*proxy.PortState
	ports  map[string]offered // by server name
}

type offered struct {
	offer *sites.Offer
	port  sites.OfferedPort
	// external; nil: the service has endpoints here.
	external *external.Service
}

// NewIngress serves nothing yet. It connects to services outside every mesh by outside.
func NewIngress(identities Identities, outside *external.Dialer) *Ingress {
	i := &Ingress{
		outside: outside,
		offers:  map[proxy.ServiceName]*sites.Offer{}, states: map[proxy.PortName]*proxy.PortState{}, ports: map[string]offered{},
	}
	i.authority = authority{identities, i.find}
	return i
}

// SetOffers takes what the site offers from an update of the view.
func (i *Ingress) SetOffers(u node.Update) {
	if !u.Reset && len(u.Offers) == 0 {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if u.Reset {
		clear(i.offers)
	}
	for name, o := range u.Offers {
		if o == nil {
			delete(i.offers, name)
		} else {
			i.offers[name] = o
		}
	}
	clear(i.ports)
	for _, o := range i.offers {
		for _, p := range o.Ports {
			port := offered{offer: o, port: p}
			if o.External != nil {
				port.external = external.Of(o.Service, o.External, p.Target)
			}
			i.ports[p.SNI] = port
		}
	}
}

func (i *Ingress) find(sni string) (service, bool) {
	i.mu.RLock()
	defer i.mu.RUnlock()
	o, ok := i.ports[sni]
	if !ok {
		return service{}, false
	}
	return service{mesh: o.offer.Mesh, toSites: o.offer.ToSites}, true
}

// Name implements proxy.Mode.
func (*Ingress) Name() string { return "ingress" }

// Apply implements proxy.Mode. It never fails.
func (i *Ingress) Apply(_ context.Context, changes []proxy.Change) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, c := range changes {
		if c.State == nil {
			delete(i.states, c.Name)
		} else {
			i.states[c.Name] = c.State
		}
	}
	return nil
}

// Close implements proxy.Mode.
func (*Ingress) Close(context.Context) error { return nil }

// Route implements ingress.Routes.
func (i *Ingress) Route(sni string) (ingress.Route, bool) {
	i.mu.RLock()
	o, ok := i.ports[sni]
	var state *proxy.PortState
	if ok {
		state = i.states[proxy.PortName{ServiceName: o.offer.Service, Port: o.port.Name}]
	}
	i.mu.RUnlock()
	if !ok {
		return ingress.Route{}, false
	}
	if o.external != nil {
		return ingress.Route{Connect: func(ctx context.Context) (server.Upstream, error) {
			up, err := i.outside.Connect(ctx, o.external)
			if err != nil {
				return nil, &server.Refusal{Reason: frame.Unreachable, Err: err}
			}
			return up, nil
		}}, true
	}
	route := ingress.Route{ProxyProtocol: o.port.ProxyProtocol}
	if state != nil {
		route.Endpoints = attempts(state)
	}
	if o.offer.Proxied {
		route.TLS = i.toProxy(sni, o.offer)
	}
	return route, true
}

// toProxy is how TLS with the proxy of an endpoint is begun: as proxies do, with the certificate
// of the ingress in the place of the client's.
func (i *Ingress) toProxy(sni string, o *sites.Offer) *tls.Config {
	want := func() mesh.Matcher {
		bundle, _ := i.identities.Trust().Bundle(o.Mesh)
		var ids []mesh.ID
		for _, account := range o.ServiceAccounts {
			if id, err := mesh.Workload(bundle.Domain, o.Service.Namespace, account); err == nil {
				ids = append(ids, id)
			}
		}
		return mesh.Accounts(ids...)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, ServerName: sni, NextProtos: []string{frame.ProtocolProxy},
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			svid, err := i.identities.Own(o.Mesh)
			if err != nil {
				return nil, err
			}
			pair := svid.TLS()
			return &pair, nil
		},
		InsecureSkipVerify: true, // host names are not in these certificates: the following verifies
		VerifyConnection: func(s tls.ConnectionState) error {
			return mesh.VerifyServer(i.identities.Trust, want(), nil)(s)
		},
	}
}

// PassthroughRoute implements ingress.Routes: of services whose endpoints all have proxies, for
// what only proxies offer, and not of those that some sites may not use. Nobody has authenticated the client, and the application behind a
// permissive proxy gets the TLS of every other protocol.
func (i *Ingress) PassthroughRoute(sni string, protocols []string) (ingress.Route, bool) {
	if !slices.Equal(protocols, []string{frame.ProtocolProxy}) {
		return ingress.Route{}, false
	}
	i.mu.RLock()
	o, ok := i.ports[sni]
	i.mu.RUnlock()
	if !ok || !o.offer.Proxied || len(o.offer.ToSites) > 0 || o.external != nil {
		return ingress.Route{}, false
	}
	route, ok := i.Route(sni)
	route.TLS = nil
	return route, ok
}

// attempts are the endpoints in an order at random by weight, and then those that are to be
// used last.
func attempts(s *proxy.PortState) []netip.AddrPort {
	var out []netip.AddrPort
	for _, list := range [][]proxy.Target{s.IPv4.Cluster, s.IPv6.Cluster, s.IPv4.Fallback, s.IPv6.Fallback} {
		left := append([]proxy.Target(nil), list...)
		for len(left) > 0 {
			at := draw(left)
			out = append(out, left[at].Addr)
			left = append(left[:at], left[at+1:]...)
		}
	}
	return out
}

func draw(targets []proxy.Target) int {
	sum := uint64(0)
	for _, t := range targets {
		sum += uint64(max(t.Weight, 1))
	}
	at := rand.Uint64N(sum)
	for i, t := range targets {
		w := uint64(max(t.Weight, 1))
		if at < w {
			return i
		}
		at -= w
	}
	return len(targets) - 1
}

var (
	_ ingress.Routes = (*Ingress)(nil)
	_ proxy.Mode     = (*Ingress)(nil)
)
