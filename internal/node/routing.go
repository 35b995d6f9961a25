package node

import (
	"slices"

	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/choose"
)

// setRouted notes which service ports of a Service have routes, and where those lead.
func (m *model) setRouted(old, svc *proxy.Service) {
	if old != nil {
		for port, r := range old.Routing {
			for _, b := range routedBackends(r) {
				if delete(m.routed[b.Service], proxy.PortName{ServiceName: old.Name, Port: port}); len(m.routed[b.Service]) == 0 {
					delete(m.routed, b.Service)
				}
			}
		}
	}
	if svc == nil {
		return
	}
	for port, r := range svc.Routing {
		for _, b := range routedBackends(r) {
			if m.routed[b.Service] == nil {
				m.routed[b.Service] = map[proxy.PortName]struct{}{}
			}
			m.routed[b.Service][proxy.PortName{ServiceName: svc.Name, Port: port}] = struct{}{}
		}
	}
}

// routedBackends are those of all clients, and of each namespace.
func routedBackends(r *proxy.Routing) []proxy.RouteBackend {
	out := r.Backends
	for _, own := range r.Consumers {
		out = slices.Concat(out, own.Backends)
	}
	return out
}

// consumer is what the endpoints for clients of a namespace are chosen from.
type consumer struct {
	origin   choose.Origin
	backends []choose.Backend
}

// consumers of a port, by their namespaces; nil: there are none.
func (m *model) consumers(o *choose.Origin) map[string]consumer {
	if o.Routing == nil || len(o.Routing.Consumers) == 0 {
		return nil
	}
	out := make(map[string]consumer, len(o.Routing.Consumers))
	for namespace, r := range o.Routing.Consumers {
		own := *o
		own.Routing = r
		out[namespace] = consumer{own, m.backends(&own)}
	}
	return out
}

// markRouted marks the service ports whose routes lead to a Service, and the names that lead to those.
func (m *model) markRouted(to proxy.ServiceName, mark func(proxy.PortName)) {
	for name := range m.routed[to] {
		mark(name)
		m.markVirtual(name.ServiceName, mark)
	}
}

// origin is what the endpoints of a port of a Service are chosen from.
func (m *model) origin(svc *proxy.Service, port proxy.Port) choose.Origin {
	of, name := source(svc, port)
	o := choose.Origin{Service: svc, Port: port, Slices: m.slicesOf[of], Elsewhere: m.elsewhere[of]}
	o.Port.Name = name
	if s := m.services[of]; s != nil {
		o.Routing = s.Routing[name]
	}
	return o
}

// backends to which the route of a port leads, as far as workloads of its mesh may use them; nil: it has
// none.
func (m *model) backends(o *choose.Origin) []choose.Backend {
	if o.Routing == nil || len(o.Routing.Backends) == 0 {
		return nil
	}
	out := make([]choose.Backend, 0, len(o.Routing.Backends))
	for _, b := range o.Routing.Backends {
		backend := choose.Backend{Weight: b.Weight}
		backend.Service = &proxy.Service{Name: b.Service} // without endpoints
		if svc := m.services[b.Service]; svc != nil && svc.Scope.Allows(o.Service.Scope.Mesh) {
			i := slices.IndexFunc(svc.Ports, func(p proxy.Port) bool { return p.Port == b.Port && p.Protocol == o.Port.Protocol })
			if i >= 0 {
				backend.Origin = m.origin(svc, svc.Ports[i])
			}
		}
		out = append(out, backend)
	}
	return out
}
