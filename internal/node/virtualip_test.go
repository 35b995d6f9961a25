package node

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

func virtualIP(i int, port uint16) *proxy.VirtualIP {
	return &proxy.VirtualIP{
		Name:      proxy.ServiceName{Namespace: "default", Name: "web.mesh"},
		Addresses: []netip.Addr{netip.AddrFrom4([4]byte{240, 0, 0, 1})}, Service: name(i), Port: port,
	}
}

// TestVirtualIPs: the addresses of a name lead to the endpoints of its Service, on the port
// of that and on 80, whatever comes first and whatever changes.
func TestVirtualIPs(t *testing.T) {
	for _, common := range []bool{true, false} {
		m := newModel(common)
		marked := map[proxy.PortName]bool{}
		step := func(u proxy.Update) {
			clear(marked)
			m.apply(u, func(p proxy.PortName) { marked[p] = true })
		}
		v := virtualIP(0, 8080)
		own, eighty := proxy.PortName{ServiceName: v.Name, Port: "http"}, proxy.PortName{ServiceName: v.Name, Port: "http@80"}
		choose := func(name proxy.PortName) *proxy.PortState {
			w := work{name: name}
			svc, port := m.port(name)
			if svc == nil {
				return nil
			}
			w.port, w.origin = port, m.origin(svc, port)
			state, _ := w.choose((&Agent{model: m}).node(), time.Time{})
			return state
		}
		check := func(when, want string) {
			t.Helper()
			if got := addrs(choose(own)); got != want || !marked[own] {
				t.Errorf("%s: port of the Service: %q, want %q; marked %t", when, got, want, marked[own])
			}
			if !common {
				want = "none"
			}
			if got := addrs(choose(eighty)); got != want {
				t.Errorf("%s: port 80: %q, want %q", when, got, want)
			}
		}
		web := service(0)
		web.Ports = []proxy.Port{{Name: "http", Protocol: proxy.TCP, Port: 8080, NodePort: 30080}, {Name: "admin", Protocol: proxy.TCP, Port: 9}}
		step(proxy.Update{Reset: true, VirtualIPs: map[proxy.ServiceName]*proxy.VirtualIP{v.Name: v}})
		if len(marked) > 0 {
			t.Errorf("without its Service: %v", marked)
		}
		first := slice(0, 1)
		step(proxy.Update{Services: map[proxy.ServiceName]*proxy.Service{web.Name: web}, Slices: map[proxy.SliceName]*proxy.Slice{first.Name: first}})
		check("the Service is there", "10.0.0.1")
		if s := choose(own); s.Port.NodePort != 0 || s.Service.Of != web.Name || s.Name != own {
			t.Errorf("state %+v", s)
		}
		more := slice(0, 1, 2)
		step(proxy.Update{Slices: map[proxy.SliceName]*proxy.Slice{more.Name: more}})
		check("another endpoint", "10.0.0.1 10.0.0.2")
		if _, there := m.frontends.At(netip.MustParseAddrPort("240.0.0.1:8080"), proxy.TCP); !there {
			t.Error("the address is no frontend")
		}
		other := service(0)
		other.Ports = []proxy.Port{{Name: "http", Protocol: proxy.TCP, Port: 81}}
		step(proxy.Update{Services: map[proxy.ServiceName]*proxy.Service{web.Name: other}})
		check("the Service lacks the port", "none")
		step(proxy.Update{Services: map[proxy.ServiceName]*proxy.Service{web.Name: web}})
		check("it has it again", "10.0.0.1 10.0.0.2")
		e := &proxy.Elsewhere{Instances: map[string]uint32{"http": 1}}
		step(proxy.Update{Elsewhere: map[proxy.ServiceName]*proxy.Elsewhere{web.Name: e}})
		check("other sites offer it", "10.0.0.1 10.0.0.2")
		if w := choose(own); w == nil || m.elsewhere[web.Name] != e {
			t.Error("other sites are not known")
		}
		moved := virtualIP(1, 80)
		step(proxy.Update{
			Services:   map[proxy.ServiceName]*proxy.Service{name(1): service(1)},
			Slices:     map[proxy.SliceName]*proxy.Slice{slice(1, 3).Name: slice(1, 3)},
			VirtualIPs: map[proxy.ServiceName]*proxy.VirtualIP{v.Name: moved},
		})
		if got := addrs(choose(own)); got != "10.0.0.3" {
			t.Errorf("of another Service: %q", got)
		}
		if choose(eighty) != nil {
			t.Error("port 80 is there twice")
		}
		step(proxy.Update{Reset: true, Services: map[proxy.ServiceName]*proxy.Service{name(1): service(1)}})
		if choose(own) != nil || !marked[own] || len(m.virtual)+len(m.virtualOf)+len(m.fronts) != 0 {
			t.Error("it is there after a reset without it")
		}
	}
}

// TestTrafficOfNamesIsTheServices: demand is counted for the Service.
func TestTrafficOfNamesIsTheServices(t *testing.T) {
	a, err := New(Options{Mode: newFake()})
	if err != nil {
		t.Fatal(err)
	}
	v := virtualIP(0, 8080)
	a.Apply(proxy.Update{Reset: true, VirtualIPs: map[proxy.ServiceName]*proxy.VirtualIP{v.Name: v}})
	if got := a.Source(proxy.PortName{ServiceName: v.Name, Port: "http@80"}); got != portName(0) {
		t.Errorf("traffic is that of %s", got)
	}
	if got := a.Source(portName(1)); got != portName(1) {
		t.Errorf("traffic of a Service is that of %s", got)
	}
}

// TestVirtualIPOfAllPorts: without a port, the addresses of a name answer on all ports of its
// Service; on 80 only where that can be answered.
func TestVirtualIPOfAllPorts(t *testing.T) {
	web := service(0)
	web.Ports = []proxy.Port{{Name: "tcp-80", Protocol: proxy.TCP, Port: 80}, {Name: "tcp-8080", Protocol: proxy.TCP, Port: 8080, NodePort: 30080}}
	v := virtualIP(0, 0)
	for common, want := range map[bool][]uint16{true: {80, 8080}, false: {8080}} {
		f := v.Frontend(web, common)
		var got []uint16
		for _, p := range f.Ports {
			if got = append(got, p.Port); p.NodePort != 0 || proxy.SourcePort(p.Name) != p.Name {
				t.Errorf("port %+v", p)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("common %t: ports %v, want %v", common, got, want)
		}
	}
	if v.Frontend(&proxy.Service{}, true) != nil {
		t.Error("a Service without ports has a frontend")
	}
}
