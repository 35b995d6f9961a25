package node

import (
	"maps"
	"slices"
	"time"

	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/choose"
)

// model is the desired state, indexed so that a change finds the service ports
// it concerns without a look at the others. It is not safe for concurrent use;
// the lists in slicesOf are replaced, never changed, so they can be handed out.
type model struct {
	services map[proxy.ServiceName]*proxy.Service
	slices   map[proxy.SliceName]*proxy.Slice
	slicesOf map[proxy.ServiceName][]*proxy.Slice
	// suspects is replaced, never changed, so that it can be handed out.
	suspects map[string]bool
	// elsewhere are the Services that other sites offer.
	elsewhere map[proxy.ServiceName]*proxy.Elsewhere
	// virtual are the names below "mesh", virtualOf those of each Service, and fronts what
	// the mode carries for them. common: they answer on port 80.
	virtual   map[proxy.ServiceName]*proxy.VirtualIP
	virtualOf map[proxy.ServiceName]map[proxy.ServiceName]struct{}
	fronts    map[proxy.ServiceName]*proxy.Service
	common    bool
	// routed are the service ports whose routes lead to a Service, by its name.
	routed map[proxy.ServiceName]map[proxy.PortName]struct{}
	// frontends are where the services answer; touched is what of that changed since
	// markTouched was called.
	frontends *choose.Frontends
	touched   choose.Touched
	now       func() time.Time
}

func newModel(common bool) model {
	return model{
		frontends: choose.NewFrontends(),
		services:  map[proxy.ServiceName]*proxy.Service{},
		slices:    map[proxy.SliceName]*proxy.Slice{},
		slicesOf:  map[proxy.ServiceName][]*proxy.Slice{},
		elsewhere: map[proxy.ServiceName]*proxy.Elsewhere{},
		virtual:   map[proxy.ServiceName]*proxy.VirtualIP{},
		virtualOf: map[proxy.ServiceName]map[proxy.ServiceName]struct{}{},
		fronts:    map[proxy.ServiceName]*proxy.Service{},
		common:    common,
		routed:    map[proxy.ServiceName]map[proxy.PortName]struct{}{},
		now:       time.Now,
	}
}

// apply takes an update and marks every service port that it may concern. It
// returns how many services and slices the update touched.
func (m *model) apply(u proxy.Update, mark func(proxy.PortName)) (services, slices int) {
	if len(m.services)+len(m.slices) == 0 { // the first: maps need not grow
		m.services = make(map[proxy.ServiceName]*proxy.Service, len(u.Services))
		m.slices = make(map[proxy.SliceName]*proxy.Slice, len(u.Slices))
		m.slicesOf = make(map[proxy.ServiceName][]*proxy.Slice, len(u.Slices))
	}
	for name, svc := range u.Services {
		m.setService(name, svc, mark)
	}
	for name, s := range u.Slices {
		m.setSlice(name, s, mark)
	}
	m.setSuspects(u, mark)
	m.setElsewhere(u, mark)
	m.setVirtualIPs(u, mark)
	services, slices = len(u.Services), len(u.Slices)
	if !u.Reset {
		return services, slices
	}
	for name := range m.services {
		if u.Services[name] == nil {
			m.setService(name, nil, mark)
			services++
		}
	}
	for name := range m.slices {
		if u.Slices[name] == nil {
			m.setSlice(name, nil, mark)
			slices++
		}
	}
	return services, slices
}

// setSuspects takes over which nodes are suspect, and marks the ports that have
// endpoints on a node of which that changed. It looks at all endpoints then.
func (m *model) setSuspects(u proxy.Update, mark func(proxy.PortName)) {
	if len(u.Suspects) == 0 && (!u.Reset || len(m.suspects) == 0) {
		return
	}
	next := map[string]bool{}
	if !u.Reset {
		maps.Copy(next, m.suspects)
	}
	for name, suspect := range u.Suspects {
		if suspect {
			next[name] = true
		} else {
			delete(next, name)
		}
	}
	if maps.Equal(next, m.suspects) {
		return
	}
	changed := func(e proxy.SliceEndpoint) bool { return next[e.Node] != m.suspects[e.Node] }
	for _, s := range m.slices {
		if slices.ContainsFunc(s.Endpoints, changed) {
			m.markSlice(s, mark)
		}
	}
	m.suspects = next
}

// setElsewhere takes over which Services other sites offer.
func (m *model) setElsewhere(u proxy.Update, mark func(proxy.PortName)) {
	for name, e := range u.Elsewhere {
		m.markService(name, mark)
		if e == nil {
			delete(m.elsewhere, name)
		} else {
			m.elsewhere[name] = e
		}
	}
	if !u.Reset {
		return
	}
	for name := range m.elsewhere {
		if u.Elsewhere[name] == nil {
			m.markService(name, mark)
			delete(m.elsewhere, name)
		}
	}
}

func (m *model) setService(name proxy.ServiceName, svc *proxy.Service, mark func(proxy.PortName)) {
	old := m.services[name]
	markPorts(old, mark)
	markPorts(svc, mark)
	m.frontends.Set(old, svc)
	m.touched.Touch(old, svc)
	m.setRouted(old, svc)
	if svc == nil {
		delete(m.services, name)
	} else {
		m.services[name] = svc
	}
	m.markRouted(name, mark)
	for virtual := range m.virtualOf[name] {
		m.setFrontend(virtual, mark)
	}
}

func (m *model) setSlice(name proxy.SliceName, s *proxy.Slice, mark func(proxy.PortName)) {
	s = started(s, m.slices[name], m.now())
	if old := m.slices[name]; old != nil {
		m.markSlice(old, mark)
		m.replace(old.Service, name, nil)
		delete(m.slices, name)
	}
	if s != nil {
		m.markSlice(s, mark)
		m.replace(s.Service, name, s)
		m.slices[name] = s
	}
}

// replace puts a slice into its service's list, or takes it out (nil).
func (m *model) replace(svc proxy.ServiceName, name proxy.SliceName, s *proxy.Slice) {
	list := make([]*proxy.Slice, 0, len(m.slicesOf[svc])+1)
	for _, o := range m.slicesOf[svc] {
		if o.Name != name {
			list = append(list, o)
		}
	}
	if s != nil {
		list = append(list, s)
	}
	if len(list) == 0 {
		delete(m.slicesOf, svc)
		return
	}
	m.slicesOf[svc] = list
}

// port finds a service port; a nil Service if it is not there.
func (m *model) port(name proxy.PortName) (*proxy.Service, proxy.Port) {
	svc := m.services[name.ServiceName]
	if svc == nil {
		svc = m.fronts[name.ServiceName]
	}
	if svc == nil {
		return nil, proxy.Port{}
	}
	i := slices.IndexFunc(svc.Ports, func(p proxy.Port) bool { return p.Name == name.Port })
	if i < 0 {
		return nil, proxy.Port{}
	}
	return svc, svc.Ports[i]
}

func (m *model) eachPort(do func(proxy.PortName)) {
	for _, svc := range m.services {
		markPorts(svc, do)
	}
	for _, svc := range m.fronts {
		markPorts(svc, do)
	}
}

func markPorts(svc *proxy.Service, mark func(proxy.PortName)) {
	if svc == nil {
		return
	}
	for _, p := range svc.Ports {
		mark(proxy.PortName{ServiceName: svc.Name, Port: p.Name})
	}
}

// markService marks the ports of a Service, and of the names and routes that lead to it.
func (m *model) markService(name proxy.ServiceName, mark func(proxy.PortName)) {
	markPorts(m.services[name], mark)
	m.markVirtual(name, mark)
	m.markRouted(name, mark)
}

// markSlice marks the ports that a slice serves, and the names and routes that lead to them. A slice
// without ports serves none.
func (m *model) markSlice(s *proxy.Slice, mark func(proxy.PortName)) {
	for _, p := range s.Ports {
		mark(proxy.PortName{ServiceName: s.Service, Port: p.Name})
	}
	if len(s.Ports) > 0 {
		m.markVirtual(s.Service, mark)
		m.markRouted(s.Service, mark)
	}
}

// markTouched marks the ports of slices with an endpoint where services answer
// since the last call, or do no more: such an endpoint is not used, whichever
// Service it is of. It looks at all endpoints, if there is something to look for.
func (m *model) markTouched(mark func(proxy.PortName)) {
	if len(m.touched) == 0 {
		return
	}
	for _, s := range m.slices {
		for i := range s.Endpoints {
			if _, ok := m.touched[s.Endpoints[i].Addr]; ok {
				m.markSlice(s, mark)
				break
			}
		}
	}
	m.touched = nil
}
