package node

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// An endpoint at the virtual IP of a Service is not used, whichever of the two
// comes first, and is again when the Service has gone.
func TestEndpointsAtVirtualIPs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mode := newFake()
		a, err := New(Options{Mode: mode, Facts: Facts{Name: "n1", Machine: "m1"}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = a.Run(ctx) }()
		defer func() { cancel(); <-done }()
		check := func(when, want string) {
			t.Helper()
			time.Sleep(time.Second) // the bubble's clock
			synctest.Wait()
			if got := addrs(mode.snapshot()[portName(0)]); got != want {
				t.Errorf("%s: endpoints %q, want %q", when, got, want)
			}
		}
		from := slice(0, 1)
		virtual := from.Endpoints[0]
		virtual.Addr = service(1).ClusterIPs[0]
		itself := virtual
		itself.Addr = service(0).ClusterIPs[0]
		from.Ports[0].Port = 80
		from.Endpoints = append(from.Endpoints, virtual, itself)
		a.Apply(proxy.Update{
			Reset:    true,
			Services: map[proxy.ServiceName]*proxy.Service{name(0): service(0)},
			Slices:   map[proxy.SliceName]*proxy.Slice{from.Name: from},
		})
		check("no other service", "10.0.0.1 127.96.0.1")
		a.Apply(proxy.Update{Services: map[proxy.ServiceName]*proxy.Service{name(1): service(1)}})
		check("its virtual IP is an endpoint", "10.0.0.1")
		moved := service(1)
		moved.Ports = []proxy.Port{{Name: "http", Protocol: proxy.TCP, Port: 81}}
		a.Apply(proxy.Update{Services: map[proxy.ServiceName]*proxy.Service{name(1): moved}})
		check("at another port", "10.0.0.1 127.96.0.1")
		a.Apply(proxy.Update{Services: map[proxy.ServiceName]*proxy.Service{name(1): service(1)}})
		check("at its port again", "10.0.0.1")
		a.Apply(proxy.Update{Services: map[proxy.ServiceName]*proxy.Service{name(1): nil}})
		check("gone", "10.0.0.1 127.96.0.1")
	})
}

// A loopback endpoint is used on the machine that registered it alone.
func TestLoopbackEndpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mode := newFake()
		a, err := New(Options{Mode: mode, Facts: Facts{Name: "n1", Machine: "m1"}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = a.Run(ctx) }()
		defer func() { cancel(); <-done }()
		from := slice(0, 1, 2, 3)
		for i, addr := range []string{"127.0.0.1", "127.0.0.2", "10.0.0.3"} {
			from.Endpoints[i].Addr = netip.MustParseAddr(addr)
			from.Endpoints[i].Hints = nil
		}
		from.Machines = []string{"m1", "m2", ""}
		u := whole(1)
		u.Slices[from.Name] = from
		a.Apply(u)
		for machine, want := range map[string]string{"m1": "10.0.0.3 127.0.0.1", "m2": "10.0.0.3 127.0.0.2", "m3": "10.0.0.3"} {
			a.SetFacts(Facts{Name: "n9", Machine: machine})
			time.Sleep(time.Second) // the bubble's clock
			synctest.Wait()
			if got := addrs(mode.snapshot()[portName(0)]); got != want {
				t.Errorf("on machine %s: endpoints %q, want %q", machine, got, want)
			}
		}
	})
}
