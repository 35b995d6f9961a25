package node

import (
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// TestRoutes: a service port has the endpoints of the backends of its route, is looked at when they
// change, and has its own again without the route.
func TestRoutes(t *testing.T) {
	m := newModel(true)
	marked := map[proxy.PortName]bool{}
	step := func(u proxy.Update) {
		clear(marked)
		m.apply(u, func(p proxy.PortName) { marked[p] = true })
	}
	v := virtualIP(0, 80)
	front := proxy.PortName{ServiceName: v.Name, Port: "http"}
	check := func(when, want string) {
		t.Helper()
		for _, name := range []proxy.PortName{portName(0), front} {
			w := work{name: name}
			svc, port := m.port(name)
			w.port, w.origin = port, m.origin(svc, port)
			w.backends = m.backends(&w.origin)
			state, _ := w.choose((&Agent{model: m}).node(), time.Time{})
			if got := addrs(state); got != want || !marked[name] {
				t.Errorf("%s: %s has %q, want %q; marked %t", when, name, got, want, marked[name])
			}
		}
	}
	plain, routed := service(0), service(0)
	routed.Routing = map[string]*proxy.Routing{"http": {Route: "default/r", Backends: []proxy.RouteBackend{
		{Service: name(1), Port: 80, Weight: 3}, {Service: name(2), Port: 80, Weight: 1}, {Weight: 5},
	}}}
	services := func(all ...*proxy.Service) map[proxy.ServiceName]*proxy.Service {
		out := map[proxy.ServiceName]*proxy.Service{}
		for _, s := range all {
			out[s.Name] = s
		}
		return out
	}
	slices := func(all ...*proxy.Slice) map[proxy.SliceName]*proxy.Slice {
		out := map[proxy.SliceName]*proxy.Slice{}
		for _, s := range all {
			out[s.Name] = s
		}
		return out
	}
	step(proxy.Update{
		Reset: true, Services: services(routed, service(1)), Slices: slices(slice(0, 9), slice(1, 1), slice(2, 2)),
		VirtualIPs: map[proxy.ServiceName]*proxy.VirtualIP{v.Name: v},
	})
	check("a backend is missing", "10.0.0.1")
	step(proxy.Update{Services: services(service(2))})
	check("it comes", "10.0.0.1 10.0.0.2")
	step(proxy.Update{Slices: slices(slice(2, 2, 3))})
	check("its endpoints change", "10.0.0.1 10.0.0.2 10.0.0.3")
	consumed := service(0)
	consumed.Routing = map[string]*proxy.Routing{"http": {Consumers: map[string]*proxy.Routing{
		"front": {Route: "front/r", Backends: []proxy.RouteBackend{{Service: name(1), Port: 80, Weight: 1}}},
	}}}
	step(proxy.Update{Services: services(consumed)})
	check("clients of a namespace have a route", "10.0.0.9")
	step(proxy.Update{Slices: slices(slice(1, 4))})
	check("its endpoints change", "10.0.0.9")
	o := m.origin(consumed, consumed.Ports[0])
	w := work{name: portName(0), port: consumed.Ports[0], origin: o, consumers: m.consumers(&o)}
	if state, _ := w.choose((&Agent{model: m}).node(), time.Time{}); addrs(state.Consumers["front"]) != "10.0.0.4" || state.Consumers["front"].Name != portName(0) {
		t.Errorf("for clients of the namespace: %+v", state.Consumers["front"])
	}
	step(proxy.Update{Services: services(routed), Slices: slices(slice(1, 1))})
	check("a route for all", "10.0.0.1 10.0.0.2 10.0.0.3")
	foreign := service(2)
	foreign.Scope.Mesh = "other"
	scoped := *routed
	scoped.Scope.Mesh = "default"
	step(proxy.Update{Services: services(foreign, &scoped)})
	m.setFrontend(v.Name, func(p proxy.PortName) { marked[p] = true })
	if w := m.origin(&scoped, scoped.Ports[0]); len(m.backends(&w)) != 3 || m.backends(&w)[1].Slices != nil {
		t.Error("a backend of another mesh is used")
	}
	step(proxy.Update{Services: services(plain)})
	check("no route", "10.0.0.9")
	step(proxy.Update{Slices: slices(slice(1, 1, 4))})
	if marked[portName(0)] || len(m.routed) != 0 {
		t.Errorf("the route has gone, and %v is marked, %v kept", marked, m.routed)
	}
}
