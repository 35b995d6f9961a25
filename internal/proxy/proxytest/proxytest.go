// Package proxytest is the contract of proxy.Mode as a test suite with real
// traffic. Every mode runs it in an environment of its own.
//
// Enter at [Run]. What virtual addresses answer is written as data in cases.go;
// streams.go has what needs a conversation.
package proxytest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// Feature is something that not every mode or environment has.
type Feature string

// Features that cases need.
const (
	// Retry: another endpoint is tried when one does not answer.
	Retry Feature = "retry"
	// Drop: the verdict Drop leaves packets unanswered.
	Drop Feature = "drop"
	// NodePort: node ports listen on Env.Node.
	NodePort Feature = "node port"
)

// Env is where a mode is tested.
type Env struct {
	// New makes the mode under test. The suite closes it.
	New func(t *testing.T) proxy.Mode
	// VIP is the i-th virtual address, Endpoint the address on which the i-th
	// backend listens. Different for different i ≥ 0, all of one family.
	VIP, Endpoint func(i int) netip.Addr
	// Node is an address of the node, for NodePort.
	Node netip.Addr
	// Random: endpoints are picked at random, so that shares are right up to chance.
	Random bool
	// Lacks reports which features are missing, and why.
	Lacks map[Feature]string
	// Results is the name of the mode whose file of results, in testdata, is compared with what is found; empty: none. The
	// calling test is that of a package beside this one.
	Results string
}

// Run runs the contract.
func Run(t *testing.T, env Env) {
	rec := &recorder{mode: env.Results, suite: suiteContract, incomplete: map[string]bool{}}
	var names []string
	for i, c := range cases {
		names = append(names, c.name)
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			rec.begin(t, c.name, c.needs, env.Lacks, nil)
			env.need(t, c.needs)
			s := newSetup(t, env, i)
			for _, dead := range c.backends {
				s.addBackend(c.protocol, dead)
			}
			for _, step := range c.steps {
				s.apply(c.protocol, step.services)
				for _, ask := range step.asks {
					s.ask(c.protocol, step.name, ask)
				}
			}
		})
	}
	for i, c := range streamCases {
		names = append(names, c.name)
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			rec.begin(t, c.name, c.needs, env.Lacks, nil)
			env.need(t, c.needs)
			c.run(newSetup(t, env, len(cases)+i))
		})
	}
	rec.end(t, names)
}

func (e Env) need(t *testing.T, features []Feature) {
	for _, f := range features {
		if why, lacking := e.Lacks[f]; lacking {
			t.Skipf("needs %s: %s", f, why)
		}
	}
}

// setup is one test's mode with its backends.
type setup struct {
	*testing.T
	env      Env
	mode     proxy.Mode
	vips     int // offset of this test's virtual addresses
	backends []*backend
	current  map[proxy.PortName]*proxy.PortState
	nodePort uint16 // where the environment has node ports
	close    func()
}

func newSetup(t *testing.T, env Env, index int) *setup {
	s := &setup{T: t, env: env, vips: index * 8, current: map[proxy.PortName]*proxy.PortState{}}
	if _, lacking := env.Lacks[NodePort]; !lacking {
		var err error
		if s.nodePort, err = freePort(env.Node); err != nil {
			t.Fatal(err)
		}
	}
	s.mode = env.New(t)
	s.close = sync.OnceFunc(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // no need to wait for connections
		if err := s.mode.Close(ctx); err != nil {
			t.Errorf("closing the mode: %v", err)
		}
	})
	t.Cleanup(s.close)
	if err := s.mode.Apply(t.Context(), nil); err != nil {
		t.Fatalf("applying nothing: %v", err)
	}
	return s
}

func (s *setup) vip(i int) netip.Addr { return s.env.VIP(s.vips + i) }

// service is a service port as cases write it: one virtual address, and shares
// by backend.
type service struct {
	name                    string
	vip                     int
	port                    uint16
	cluster, local          map[int]uint32
	noCluster, noLocal      proxy.Verdict
	internalLocal, external bool // external: externalTrafficPolicy Local
	affinity                time.Duration
	nodePort                bool
}

func (s *setup) state(proto proxy.Protocol, svc service) *proxy.PortState {
	vip := s.vip(svc.vip)
	p := proxy.Port{Name: "p", Protocol: proto, Port: svc.port}
	if svc.nodePort {
		p.NodePort = s.nodePort
	}
	name := proxy.ServiceName{Namespace: "default", Name: svc.name}
	state := &proxy.PortState{
		Name: proxy.PortName{ServiceName: name, Port: p.Name},
		Port: p,
		Service: &proxy.Service{
			Name: name, ClusterIPs: []netip.Addr{vip}, Ports: []proxy.Port{p},
			InternalLocal: svc.internalLocal, ExternalLocal: svc.external, AffinityTimeout: svc.affinity,
		},
	}
	*state.For(vip) = proxy.Choice{
		Cluster: s.targets(svc.cluster), Local: s.targets(svc.local),
		NoCluster: svc.noCluster, NoLocal: svc.noLocal,
	}
	return state
}

// targets lists backends, which are in the order of their addresses.
func (s *setup) targets(shares map[int]uint32) []proxy.Target {
	var out []proxy.Target
	for i, b := range s.backends {
		if w, ok := shares[i]; ok {
			out = append(out, proxy.Target{Addr: b.addr, Weight: w})
		}
	}
	return out
}

// changes makes exactly these services the state.
func (s *setup) changes(proto proxy.Protocol, services []service) []proxy.Change {
	var out []proxy.Change
	gone := maps.Clone(s.current)
	for _, svc := range services {
		state := s.state(proto, svc)
		out = append(out, proxy.Change{Name: state.Name, State: state})
		s.current[state.Name] = state
		delete(gone, state.Name)
	}
	for name := range gone {
		out = append(out, proxy.Change{Name: name})
		delete(s.current, name)
	}
	return out
}

func (s *setup) apply(proto proxy.Protocol, services []service) {
	s.Helper()
	changes := s.changes(proto, services)
	for _, again := range []bool{false, true} {
		if err := s.mode.Apply(s.Context(), changes); err != nil {
			s.Fatalf("applying (again: %v): %v", again, err)
		}
	}
}

// backend says its number first, then sends back what it gets.
type backend struct {
	number int
	addr   netip.AddrPort
}

// addBackend starts the next backend, or only takes an address for it.
func (s *setup) addBackend(proto proxy.Protocol, dead bool) *backend {
	s.Helper()
	b := &backend{number: len(s.backends)}
	addr := net.JoinHostPort(s.env.Endpoint(b.number).String(), "0")
	var stop func() error
	if proto == proxy.UDP {
		c, err := net.ListenPacket("udp", addr)
		if err != nil {
			s.Fatal(err)
		}
		b.addr, stop = c.LocalAddr().(*net.UDPAddr).AddrPort(), c.Close
		go b.serveDatagrams(c)
	} else {
		ln, err := net.Listen("tcp", addr)
		if err != nil {
			s.Fatal(err)
		}
		b.addr, stop = ln.Addr().(*net.TCPAddr).AddrPort(), ln.Close
		go b.serveStreams(ln)
	}
	if dead {
		_ = stop()
	} else {
		s.Cleanup(func() { _ = stop() })
	}
	s.backends = append(s.backends, b)
	return b
}

func (b *backend) serveStreams(ln net.Listener) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		go func() {
			defer func() { _ = c.Close() }()
			_, _ = fmt.Fprintln(c, b.number)
			_, _ = io.Copy(c, c)
		}()
	}
}

func (b *backend) serveDatagrams(c net.PacketConn) {
	buf := make([]byte, 64<<10)
	for {
		n, from, err := c.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			_, _ = c.WriteTo(fmt.Appendf(nil, "%d\n%s", b.number, buf[:n]), from)
		}
	}
}

// Outcomes of a question other than the number of the backend that answered.
const (
	refused    = -1
	silent     = -2
	unexpected = -3
)

// timeout is how long silence has to last to be called so; a proxy on the same
// host answers or refuses in well under a millisecond.
const timeout = 200 * time.Millisecond

// askOnce puts a question to an address as a new client and says who answered. reset: the
// client ends the TCP connection by a reset, so that its port is free for another one at once.
func (s *setup) askOnce(proto proxy.Protocol, to netip.AddrPort, wait time.Duration, reset bool) int {
	s.Helper()
	d := net.Dialer{Timeout: wait}
	c, err := d.Dial(strings.ToLower(string(proto)), to.String())
	if err != nil {
		return outcome(s.T, err)
	}
	defer func() { _ = c.Close() }()
	if tcp, ok := c.(*net.TCPConn); ok && reset {
		_ = tcp.SetLinger(0)
	}
	_ = c.SetDeadline(time.Now().Add(wait))
	// EPERM: the packet was dropped on its way out of this very machine, where a
	// refusal, if there is one, arrives on its own.
	if _, err := c.Write([]byte("hello\n")); err != nil && !errors.Is(err, syscall.EPERM) {
		return outcome(s.T, err)
	}
	var who int
	var what string
	if _, err := fmt.Fscan(bufio.NewReader(c), &who, &what); err != nil {
		return outcome(s.T, err)
	}
	if what != "hello" {
		s.Errorf("%s sent back %q", to, what)
	}
	return who
}

func outcome(t *testing.T, err error) int {
	t.Helper()
	kind := kindOf(err)
	if kind == unexpected {
		t.Errorf("unexpected kind of failure: %v", err)
		return refused
	}
	return kind
}

// kindOf sorts the failures of a client: refused, silent, or unexpected.
func kindOf(err error) int {
	var timeout interface{ Timeout() bool }
	switch {
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return refused
	case errors.As(err, &timeout) && timeout.Timeout():
		return silent
	}
	return unexpected
}
