package node

import (
	"time"

	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/choose"
)

// setVirtualIPs takes over the names below "mesh".
func (m *model) setVirtualIPs(u proxy.Update, mark func(proxy.PortName)) {
	for name, v := range u.VirtualIPs {
		m.setVirtualIP(name, v, mark)
	}
	if !u.Reset {
		return
	}
	for name := range m.virtual {
		if u.VirtualIPs[name] == nil {
			m.setVirtualIP(name, nil, mark)
		}
	}
}

func (m *model) setVirtualIP(name proxy.ServiceName, v *proxy.VirtualIP, mark func(proxy.PortName)) {
	if old := m.virtual[name]; old != nil {
		if delete(m.virtualOf[old.Service], name); len(m.virtualOf[old.Service]) == 0 {
			delete(m.virtualOf, old.Service)
		}
		delete(m.virtual, name)
	}
	if v != nil {
		m.virtual[name] = v
		if m.virtualOf[v.Service] == nil {
			m.virtualOf[v.Service] = make(map[proxy.ServiceName]struct{}, 1)
		}
		m.virtualOf[v.Service][name] = struct{}{}
	}
	m.setFrontend(name, mark)
}

// setFrontend makes the frontend of a name of what is known now.
func (m *model) setFrontend(name proxy.ServiceName, mark func(proxy.PortName)) {
	old, now := m.fronts[name], (*proxy.Service)(nil)
	if v := m.virtual[name]; v != nil {
		if of := m.services[v.Service]; of != nil {
			now = v.Frontend(of, m.common)
		}
	}
	markPorts(old, mark)
	markPorts(now, mark)
	m.frontends.Set(old, now)
	m.touched.Touch(old, now)
	if now == nil {
		delete(m.fronts, name)
	} else {
		m.fronts[name] = now
	}
}

// markVirtual marks the ports of the names that lead to a Service.
func (m *model) markVirtual(service proxy.ServiceName, mark func(proxy.PortName)) {
	for name := range m.virtualOf[service] {
		markPorts(m.fronts[name], mark)
	}
}

// source is the Service port whose endpoints a port has: its own, but for the frontend of a
// name.
func source(svc *proxy.Service, port proxy.Port) (of proxy.ServiceName, name string) {
	if svc.Of == (proxy.ServiceName{}) {
		return svc.Name, port.Name
	}
	return svc.Of, proxy.SourcePort(port.Name)
}

// Source is the Service port whose endpoints a port has: another one for a name below
// "mesh". A port that is not known is its own.
func (a *Agent) Source(name proxy.PortName) proxy.PortName {
	a.mu.Lock()
	defer a.mu.Unlock()
	v := a.model.virtual[name.ServiceName]
	if v == nil {
		return name
	}
	return proxy.PortName{ServiceName: v.Service, Port: proxy.SourcePort(name.Port)}
}

// choose the endpoints of the port on a node. step is when one of them takes its next step of
// warming up; zero: none does.
func (w *work) choose(node choose.Node, now time.Time) (state *proxy.PortState, step time.Time) {
	if w.origin.Service == nil {
		return nil, time.Time{}
	}
	state, step = choose.Port(w.origin, w.backends, w.tunnel, node, now)
	state.Name, state.Port = w.name, w.port
	for namespace, c := range w.consumers {
		own, at := choose.Port(c.origin, c.backends, w.tunnel, node, now)
		own.Name, own.Port = w.name, w.port
		if !at.IsZero() && (step.IsZero() || at.Before(step)) {
			step = at
		}
		if state.Consumers == nil {
			state.Consumers = map[string]*proxy.PortState{}
		}
		state.Consumers[namespace] = own
	}
	return state, step
}
