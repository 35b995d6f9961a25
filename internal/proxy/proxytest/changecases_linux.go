package proxytest

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// fallbackCases: endpoints that terminate are the last resort, in either list.
var fallbackCases = []kernelCase{
	{name: "terminating endpoints, Cluster", run: func(k *kernel) { fallback(k, false) }},
	{name: "terminating endpoints, Local", run: func(k *kernel) { fallback(k, true) }},
}

// fallback walks through all mixtures of ready, draining and finished endpoints
// on this node and the other.
func fallback(k *kernel, local bool) {
	to, from := k.at(k.vip(0)), k.pod()
	if local {
		to, from = k.at(k.external(0)), k.outside(0)
	}
	for _, c := range []struct {
		name                string
		endpoints           []proxy.SliceEndpoint
		cluster, underLocal []string // who answers under either policy
	}{
		{
			name:      "ready ones there: draining ones rest",
			endpoints: []proxy.SliceEndpoint{k.on(local1), k.draining(local2), k.on(remote1), k.draining(remote2)},
			cluster:   []string{local1, remote1}, underLocal: []string{local1},
		},
		{
			name:      "none ready: all that drain",
			endpoints: []proxy.SliceEndpoint{k.draining(local1), k.finished(local2), k.draining(remote1), k.finished(remote2)},
			cluster:   []string{local1, remote1}, underLocal: []string{local1},
		},
		{
			name:      "ready elsewhere, draining here",
			endpoints: []proxy.SliceEndpoint{k.draining(local1), k.on(remote1)},
			cluster:   []string{remote1}, underLocal: []string{local1},
		},
		{
			name:      "ready here, draining elsewhere",
			endpoints: []proxy.SliceEndpoint{k.on(local1), k.draining(remote1)},
			cluster:   []string{local1}, underLocal: []string{local1},
		},
	} {
		s := k.openService(0, c.endpoints...)
		s.ExternalLocal = local
		k.apply(s)
		want := c.cluster
		if local {
			want = c.underLocal
		}
		k.Log(c.name)
		for _, proto := range both {
			k.reaches(from, proto, to, want...)
		}
	}
	k.apply(k.openService(0, k.finished(local1), k.finished(remote1)))
	for _, proto := range both {
		k.turnedAway(from, proto, to)
	}
}

// changeCases: what new states do to old and new traffic.
var changeCases = []kernelCase{
	{name: "one endpoint, none, one", run: oneNoneOne},
	{name: "a named port moves", run: namedPortMoves},
	{name: "one endpoint in two slices", run: duplicates},
	{name: "services come and go", run: comeAndGo},
	{name: "an address changes its owner", run: newOwner},
	{name: "streams outlive their endpoint and service", run: streamsOutlive},
	{name: "flows leave an endpoint that is gone", run: flowsLeaveEndpoint},
	{name: "flows stay while their endpoint serves", run: flowsStayWhileServing},
	{name: "flows end with their service", run: flowsEndWithService},
	{name: "flapping fails no connection", run: flapping},
}

func oneNoneOne(k *kernel) {
	for range 3 {
		k.apply(k.openService(0, k.on(remote1)))
		for _, proto := range both {
			k.reaches(k.pod(), proto, k.at(k.vip(0)), remote1)
			k.reaches(k.outside(0), proto, k.at(k.external(0)), remote1)
		}
		k.apply(k.openService(0))
		for _, proto := range both {
			k.turnedAway(k.pod(), proto, k.at(k.vip(0)))
			k.turnedAway(k.outside(0), proto, k.at(k.external(0)))
		}
	}
}

func namedPortMoves(k *kernel) {
	s := k.svc(0, k.on(remote1))
	for _, port := range []uint16{backendPort, otherPort, backendPort} {
		moved := *s.slices[0]
		moved.Ports = []proxy.SlicePort{{Name: "tcp", Port: port, Protocol: proxy.TCP}, {Name: "udp", Port: port, Protocol: proxy.UDP}}
		s.slices = []*proxy.Slice{&moved}
		k.apply(s)
		for _, proto := range both {
			for _, a := range k.reaches(k.pod(), proto, k.at(k.vip(0)), remote1) {
				if a.port != port {
					k.Errorf("%s asked at port %d, want %d", proto, a.port, port)
				}
			}
		}
	}
}

// duplicates: while an endpoint moves from slice to slice it is in both, and
// counts once.
func duplicates(k *kernel) {
	s := k.svc(0, k.on(local1), k.on(remote1))
	s.slices = append(s.slices, k.slice(s, "2", k.on(remote1)), k.slice(s, "3", k.draining(remote1)))
	k.apply(s)
	k.shares(k.pod(), map[string]float64{local1: .5, remote1: .5})
}

func comeAndGo(k *kernel) {
	a, b := k.svc(0, k.on(local1)), k.svc(1, k.on(remote1))
	k.apply(a)
	k.notServed(k.pod(), proxy.TCP, k.at(k.vip(1)))
	k.apply(a, b)
	k.reaches(k.pod(), proxy.TCP, k.at(k.vip(0)), local1)
	k.reaches(k.pod(), proxy.TCP, k.at(k.vip(1)), remote1)
	k.apply(b)
	k.notServed(k.pod(), proxy.TCP, k.at(k.vip(0)))
	k.notServed(k.pod(), proxy.UDP, k.at(k.vip(0)))
	k.reaches(k.pod(), proxy.TCP, k.at(k.vip(1)), remote1)
	// One port of two goes.
	b.Ports = b.Ports[:1]
	k.apply(b)
	k.reaches(k.pod(), proxy.TCP, k.at(k.vip(1)), remote1)
	k.turnedAway(k.pod(), proxy.UDP, k.at(k.vip(1)))
}

func newOwner(k *kernel) {
	k.apply(k.openService(0, k.on(local1)))
	heir := k.openService(1, k.on(remote1))
	heir.ClusterIPs, heir.ExternalIPs, heir.LoadBalancerIPs = k.svc(0).ClusterIPs, k.openService(0).ExternalIPs, nil
	for i := range heir.Ports {
		heir.Ports[i].NodePort = k.nodePort(0)
	}
	k.apply(heir)
	for _, proto := range both {
		k.reaches(k.pod(), proto, k.at(k.vip(0)), remote1)
		k.reaches(k.outside(0), proto, k.at(k.external(0)), remote1)
		k.reaches(k.outside(0), proto, k.nodeAt(k.nodePort(0)), remote1)
	}
}

func streamsOutlive(k *kernel) {
	k.apply(k.openService(0, k.on(remote1)))
	sessions := []*session{
		k.session(k.pod(), proxy.TCP, k.at(k.vip(0))),
		k.session(k.node(), proxy.TCP, k.at(k.vip(0))),
		k.session(k.outside(0), proxy.TCP, k.at(k.external(0))),
		k.session(k.outside(0), proxy.TCP, k.nodeAt(k.nodePort(0))),
	}
	k.apply(k.openService(0, k.on(local1)))
	for _, s := range sessions {
		s.lives("another endpoint took over")
	}
	k.apply()
	for _, s := range sessions {
		s.lives("the service is gone")
	}
}

// flowsLeaveEndpoint: a client that goes on from one port, as a resolver does,
// must not be stuck with the connection that the kernel remembers.
func flowsLeaveEndpoint(k *kernel) {
	k.apply(k.openService(0, k.on(remote1)))
	flows := []*session{
		k.session(k.pod(), proxy.UDP, k.at(k.vip(0))),
		k.session(k.node(), proxy.UDP, k.at(k.vip(0))),
		k.session(k.outside(0), proxy.UDP, k.at(k.external(0))),
		k.session(k.outside(0), proxy.UDP, k.nodeAt(k.nodePort(0))),
	}
	for _, f := range flows {
		f.lives("nothing happened")
	}
	k.apply(k.openService(0, k.all(remote1, remote2)...))
	for _, f := range flows {
		f.lives("another endpoint came")
	}
	k.apply(k.openService(0, k.on(remote2)))
	for _, f := range flows {
		if a := f.again(prompt); a.who != remote2 {
			k.Errorf("flow of %s to %s: answered by %s after its endpoint went, want %s",
				f.conn.LocalAddr(), f.conn.RemoteAddr(), a.who, remote2)
		}
	}
}

// flowsStayWhileServing: an endpoint that terminates, or that hints keep new flows from, goes on
// with those it has; when it serves no more they leave it.
func flowsStayWhileServing(k *kernel) {
	k.apply(k.openService(0, k.on(remote1)))
	flows := []*session{
		k.session(k.pod(), proxy.UDP, k.at(k.vip(0))),
		k.session(k.outside(0), proxy.UDP, k.nodeAt(k.nodePort(0))),
	}
	hinted := k.all(local1, remote1)
	for i := range hinted {
		hinted[i].Hints = proxy.HintsOf([]locality.Zone{hinted[i].Zone}, nil)
	}
	for _, step := range []struct {
		name      string
		endpoints []proxy.SliceEndpoint
	}{
		{"it is ready, for another zone", hinted},
		{"it terminates", []proxy.SliceEndpoint{k.on(local1), k.draining(remote1)}},
		{"it terminates, and nobody else is there", []proxy.SliceEndpoint{k.draining(remote1)}},
		{"another one comes", []proxy.SliceEndpoint{k.on(remote2), k.draining(remote1)}},
	} {
		k.apply(k.openService(0, step.endpoints...))
		for _, f := range flows {
			f.lives(step.name)
		}
	}
	k.apply(k.openService(0, k.on(remote2), k.finished(remote1)))
	for _, f := range flows {
		if a := f.again(prompt); a.who != remote2 {
			k.Errorf("flow of %s to %s: answered by %s when its endpoint had finished, want %s",
				f.conn.LocalAddr(), f.conn.RemoteAddr(), a.who, remote2)
		}
	}
}

// flowsEndWithService; kube-proxy forgets these.
func flowsEndWithService(k *kernel) {
	k.apply(k.openService(0, k.on(remote1)))
	flows := []*session{
		k.session(k.pod(), proxy.UDP, k.at(k.vip(0))),
		k.session(k.outside(0), proxy.UDP, k.at(k.external(0))),
		k.session(k.outside(0), proxy.UDP, k.nodeAt(k.nodePort(0))),
	}
	k.apply()
	for _, f := range flows {
		if a := f.again(timeout); a.who != whoRefused && a.who != whoSilent {
			k.Errorf("flow to %s is answered by %s after its service went", f.conn.RemoteAddr(), a.who)
		}
	}
}

// flapping: an endpoint comes and goes under traffic. No connection fails, and
// none that was made while it was gone goes to it.
func flapping(k *kernel) {
	three, two := k.all(local1, remote1, remote2), k.all(local1, remote1)
	k.apply(k.openService(0, three...))
	// Odd while remote2 is gone for certain.
	var gone atomic.Int64
	var asked, within atomic.Int64
	var mu sync.Mutex
	var failures []string
	stop := make(chan struct{})
	var workers sync.WaitGroup
	for _, c := range []client{k.pod(), k.node(), k.outside(5)} {
		workers.Go(func() {
			to := k.at(k.vip(0))
			for {
				select {
				case <-stop:
					return
				default:
				}
				before := gone.Load()
				a, err := c.ask(proxy.TCP, to, prompt)
				asked.Add(1)
				alone := before%2 == 1 && gone.Load() == before
				if alone {
					within.Add(1)
				}
				if err != nil || strings.HasPrefix(a.who, "(") || (alone && a.who == remote2) {
					mu.Lock()
					failures = append(failures, fmt.Sprintf("%s: %s, %v (endpoint gone: %v)", c.name, a.who, err, alone))
					mu.Unlock()
				}
			}
		})
	}
	const spell, enough = 1500 * time.Millisecond, 5 // of traffic, and of flaps
	flaps := 0
	for begin := time.Now(); time.Since(begin) < spell || flaps < enough; flaps++ {
		k.apply(k.openService(0, two...))
		gone.Add(1)
		for i := asked.Load(); asked.Load() < i+20; {
			time.Sleep(time.Millisecond) // let traffic pass
		}
		gone.Add(1)
		k.apply(k.openService(0, three...))
	}
	close(stop)
	workers.Wait()
	k.Logf("%d connections, %d of them while the endpoint was gone, %d flaps", asked.Load(), within.Load(), flaps)
	for i, f := range failures {
		if i < 5 {
			k.Error(f)
		}
	}
	if len(failures) > 0 {
		k.Errorf("%d of %d connections failed", len(failures), asked.Load())
	}
	if within.Load() == 0 {
		k.Errorf("nothing was proved: %d connections while the endpoint was gone, %d flaps", within.Load(), flaps)
	}
}
