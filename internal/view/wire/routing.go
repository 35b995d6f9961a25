package wire

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	nodev1 "github.com/proxima-mesh/proxima/api/node/v1"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

const (
	// maxConnectMillis is an hour, above which a limit means nothing.
	maxConnectMillis = 3600_000
	// maxTCPAttempts is the API's limit.
	maxTCPAttempts = 100
	// maxRouteWeight is the Gateway API's limit of a weight.
	maxRouteWeight = 1_000_000
)

func encodeRouting(r *proxy.Routing) *nodev1.Routing {
	if r == nil {
		return nil
	}
	m := &nodev1.Routing{
		Route: r.Route, Policy: r.Policy, SourceHash: r.SourceHash,
		ConnectTimeoutMillis: uint32(min(max(r.ConnectTimeout/time.Millisecond, 0), maxConnectMillis)), //nolint:gosec // bounded
		TcpAttempts:          r.TCPAttempts,
	}
	for _, b := range r.Backends {
		m.Backends = append(m.Backends, &nodev1.RouteBackend{
			Namespace: b.Service.Namespace, Service: b.Service.Name, Port: uint32(b.Port), Weight: b.Weight,
		})
	}
	if l := r.Locality; l != nil {
		m.Locality = &nodev1.LocalityPreference{Mode: nodev1.LocalityPreference_Mode(l.Mode), Site: string(l.Site)}
		for _, f := range l.Failover {
			m.Locality.Failover = append(m.Locality.Failover, &nodev1.Failover{
				From: texts(f.From), To: nodev1.Failover_To(f.To), Zones: texts(f.Zones),
			})
		}
	}
	return m
}

// encodeConsumers adds what holds for clients of namespaces, in their order.
func encodeConsumers(m *nodev1.Routing, r *proxy.Routing) *nodev1.Routing {
	if r == nil {
		return m
	}
	for _, namespace := range slices.Sorted(maps.Keys(r.Consumers)) {
		m.Consumers = append(m.Consumers, &nodev1.ConsumerRouting{Namespace: namespace, Routing: encodeRouting(r.Consumers[namespace])})
	}
	return m
}

// decodeConsumers reads a routing with what holds for clients of namespaces.
func decodeConsumers(m *nodev1.Routing) (*proxy.Routing, error) {
	r, err := decodeRouting(m)
	if r == nil || err != nil {
		return nil, err
	}
	for _, c := range m.GetConsumers() {
		own, err := decodeRouting(c.GetRouting())
		switch {
		case err != nil:
			return nil, fmt.Errorf("namespace %s: %w", c.GetNamespace(), err)
		case own == nil || c.GetNamespace() == "" || r.Consumers[c.GetNamespace()] != nil:
			return nil, fmt.Errorf("namespace %q: none, twice or without a routing", c.GetNamespace())
		case r.Consumers == nil:
			r.Consumers = map[string]*proxy.Routing{}
		}
		r.Consumers[c.GetNamespace()] = own
	}
	return r, nil
}

func texts(in []locality.Zone) []string {
	var out []string
	for _, z := range in {
		out = append(out, string(z))
	}
	return out
}

func decodeRouting(m *nodev1.Routing) (*proxy.Routing, error) {
	if m == nil {
		return nil, nil
	}
	r := &proxy.Routing{
		Route: m.GetRoute(), Policy: m.GetPolicy(), SourceHash: m.GetSourceHash(),
		ConnectTimeout: time.Duration(min(m.GetConnectTimeoutMillis(), maxConnectMillis)) * time.Millisecond,
		TCPAttempts:    min(m.GetTcpAttempts(), maxTCPAttempts),
	}
	for _, b := range m.GetBackends() {
		unusable := b.GetNamespace() == "" && b.GetService() == ""
		port, err := decodePort(b.GetPort(), unusable)
		if err != nil {
			return nil, fmt.Errorf("backend: %w", err)
		}
		if !unusable && (b.GetNamespace() == "" || b.GetService() == "") || b.GetWeight() == 0 || b.GetWeight() > maxRouteWeight {
			return nil, fmt.Errorf("backend %s/%s with weight %d", b.GetNamespace(), b.GetService(), b.GetWeight())
		}
		r.Backends = append(r.Backends, proxy.RouteBackend{
			Service: proxy.ServiceName{Namespace: b.GetNamespace(), Name: b.GetService()}, Port: port, Weight: b.GetWeight(),
		})
	}
	var err error
	r.Locality, err = decodeLocality(m.GetLocality())
	return r, err
}

func decodeLocality(m *nodev1.LocalityPreference) (*proxy.Locality, error) {
	if m == nil {
		return nil, nil
	}
	l := &proxy.Locality{Mode: proxy.LocalityMode(m.GetMode()), Site: locality.Site(m.GetSite())} //nolint:gosec // compared below
	if m.GetMode() < 0 || m.GetMode() > nodev1.LocalityPreference_OFF {
		return nil, fmt.Errorf("locality mode %d", m.GetMode())
	}
	for _, f := range m.GetFailover() {
		if f.GetTo() < 0 || f.GetTo() > nodev1.Failover_ANY_EXCEPT {
			return nil, fmt.Errorf("failover to %d", f.GetTo())
		}
		from, err := zonesOf(f.GetFrom())
		if err != nil {
			return nil, err
		}
		zones, err := zonesOf(f.GetZones())
		if err != nil {
			return nil, err
		}
		l.Failover = append(l.Failover, proxy.Failover{From: from, To: proxy.FailoverTo(f.GetTo()), Zones: zones}) //nolint:gosec // bounded
	}
	return l, nil
}

var errNoZone = errors.New("zone without a name")

func zonesOf(in []string) ([]locality.Zone, error) {
	var out []locality.Zone
	for _, z := range in {
		if z == "" {
			return nil, errNoZone
		}
		out = append(out, locality.Zone(z))
	}
	return out, nil
}
