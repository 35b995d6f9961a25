package proxytest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/choose"
	"github.com/proxima-mesh/proxima/internal/testkit/netns"
)

// kernelCase is one promise, kept for both families unless it says otherwise.
type kernelCase struct {
	name  string
	needs []Feature
	run   func(*kernel)
}

// RunKernel proves a mode with real packets between machines, each a network
// namespace: the node, pods on it, another node with its pods, and clients
// outside. All cases of a family share one network and one mode, whose state
// each case changes into its own.
//
// The test runs once more in a process of its own, which is on the node; what a
// mode does on whatever thread stays there. Its output comes back as a log.
func RunKernel(t *testing.T, env KernelEnv) {
	t.Helper()
	if !OnNode(t) {
		return
	}
	net := newNetwork(t)
	rec := &recorder{mode: env.Results, suite: suiteKernel, incomplete: map[string]bool{}}
	defer func() {
		var names []string
		for _, c := range kernelCases() {
			names = append(names, c.name)
		}
		rec.end(t, names)
	}()
	for _, f := range []family{ipv4, ipv6} {
		t.Run(f.String(), func(t *testing.T) {
			shared := &sharedMode{env: env, net: net}
			shared.open(t)
			t.Cleanup(func() { shared.close(t, context.Background()) })
			for i, c := range kernelCases() {
				t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
					k := &kernel{T: t, sharedMode: shared, family: f, index: i, logged: map[Feature]bool{}}
					rec.begin(t, c.name, c.needs, env.Lacks, k.logged)
					Env{Lacks: env.Lacks}.need(t, c.needs)
					t.Cleanup(func() { k.apply() })
					c.run(k)
				})
			}
		})
	}
}

func kernelCases() []kernelCase {
	var all []kernelCase
	for _, some := range [][]kernelCase{
		reachCases, weightCases, byteCases, policyCases, sourceCases, fallbackCases, routingCases, changeCases, affinityCases, meshCases, originalCases, lifeCases,
	} {
		all = append(all, some...)
	}
	return all
}

// OnNode runs the calling test once more in a process with a network namespace
// of its own, and reports whether this is that process. A thread of its own
// would not do: modes open sockets on whichever thread is free.
func OnNode(t *testing.T) bool {
	t.Helper()
	const inside = "PROXIMA_TEST_ON_NODE"
	if os.Getenv(inside) == t.Name() {
		return true
	}
	if why := netns.Available(); why != "" {
		t.Skip(why)
	}
	args := []string{"-test.run=" + sameTest(t), "-test.v", "-test.count=1"}
	if end, ok := t.Deadline(); ok { // a little earlier, so that it can say where it hangs
		args = append(args, "-test.timeout="+(time.Until(end)*9/10).String())
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), inside+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	var ended *exec.ExitError
	switch {
	case err == nil:
		t.Logf("on the node:\n%s", out)
	case errors.As(err, &ended):
		t.Errorf("on the node: %v\n%s", err, out)
	default:
		t.Errorf("starting a process on a node: %v", err)
	}
	return false
}

// sameTest is the pattern for this test alone, with what -run says of its
// subtests.
func sameTest(t *testing.T) string {
	names := strings.Split(t.Name(), "/")
	for i, name := range names {
		names[i] = "^" + regexp.QuoteMeta(name) + "$"
	}
	if f := flag.Lookup("test.run"); f != nil {
		if given := strings.Split(f.Value.String(), "/"); len(given) > len(names) {
			names = append(names, given[len(names):]...)
		}
	}
	return strings.Join(names, "/")
}

// sharedMode is the mode of one family's cases, over its restarts.
type sharedMode struct {
	env     KernelEnv
	net     *network
	mode    proxy.Mode
	ports   uint16 // of SCTP clients, used so far
	current map[proxy.PortName]*proxy.PortState
	// isolation that a mode is told before its first Apply; nil: none.
	isolation *proxy.Isolation
}

func (s *sharedMode) open(t *testing.T) {
	t.Helper()
	s.mode = s.env.New(t, s.net.describe())
	if s.current == nil {
		s.current = map[proxy.PortName]*proxy.PortState{}
	}
	var all []proxy.Change
	for name, state := range s.current {
		all = append(all, proxy.Change{Name: name, State: state})
	}
	if mode, ok := s.mode.(proxy.Isolator); ok && s.isolation != nil {
		if err := mode.Isolate(*s.isolation); err != nil {
			t.Fatalf("isolating before the first state: %v", err)
		}
	}
	if err := s.mode.Apply(t.Context(), all); err != nil {
		t.Fatalf("applying the whole state: %v", err)
	}
}

func (s *sharedMode) close(t *testing.T, ctx context.Context) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	if err := s.mode.Close(ctx); err != nil {
		t.Errorf("closing the mode: %v", err)
	}
}

// kernel is one case on the network.
type kernel struct {
	*testing.T
	*sharedMode
	family family
	index  int // of the case: each has addresses of its own
	logged map[Feature]bool
}

// lacks reports whether a part of a case is to be left out.
func (k *kernel) lacks(f Feature) bool {
	why, lacking := k.env.Lacks[f]
	if lacking && !k.logged[f] {
		k.Logf("not checked: %s: %s", f, why)
		k.logged[f] = true
	}
	return lacking
}

// service is a Service with its endpoints, as cases write it. Its ports are
// "tcp" and "udp", both number 80.
type kernelService struct {
	proxy.Service
	slices []*proxy.Slice
}

// vip, external and balancer are the addresses of the case's i-th service.
func (k *kernel) vip(i int) netip.Addr      { return k.family.vip(k.index*4 + i) }
func (k *kernel) external(i int) netip.Addr { return k.family.external(k.index*2 + i) }
func (k *kernel) balancer(i int) netip.Addr { return k.family.external(100 + k.index*2 + i) }

// nodePort of the case's i-th service.
func (k *kernel) nodePort(i int) uint16 { return uint16(30000 + k.index*4 + i) }

func (k *kernel) at(a netip.Addr) netip.AddrPort { return netip.AddrPortFrom(a, 80) }

// svc makes the case's i-th service, with a ClusterIP only.
func (k *kernel) svc(i int, endpoints ...proxy.SliceEndpoint) *kernelService {
	name := proxy.ServiceName{Namespace: "default", Name: fmt.Sprintf("case-%d-%d", k.index, i)}
	s := &kernelService{Service: proxy.Service{
		Name: name, ClusterIPs: []netip.Addr{k.vip(i)},
		Ports: []proxy.Port{{Name: "tcp", Protocol: proxy.TCP, Port: 80}, {Name: "udp", Protocol: proxy.UDP, Port: 80}},
	}}
	s.slices = []*proxy.Slice{k.slice(s, "1", endpoints...)}
	return s
}

// open gives the service all kinds of addresses.
func (k *kernel) openService(i int, endpoints ...proxy.SliceEndpoint) *kernelService {
	s := k.svc(i, endpoints...)
	s.ExternalIPs = []netip.Addr{k.external(i)}
	s.LoadBalancerIPs = []netip.Addr{k.balancer(i)}
	for p := range s.Ports {
		s.Ports[p].NodePort = k.nodePort(i)
	}
	return s
}

func (k *kernel) slice(s *kernelService, suffix string, endpoints ...proxy.SliceEndpoint) *proxy.Slice {
	return &proxy.Slice{
		Name:    proxy.SliceName{Namespace: s.Name.Namespace, Name: s.Name.Name + "-" + suffix},
		Service: s.Name,
		Ports: []proxy.SlicePort{
			{Name: "tcp", Port: backendPort, Protocol: proxy.TCP},
			{Name: "udp", Port: backendPort, Protocol: proxy.UDP},
			{Name: "sctp", Port: backendPort, Protocol: proxy.SCTP},
		},
		Endpoints: endpoints,
	}
}

// on the pod of that name, an endpoint that is ready.
func (k *kernel) on(pod string) proxy.SliceEndpoint {
	p := k.net.backends[pod]
	return proxy.SliceEndpoint{Addr: p.addr(k.family), Node: p.node, Zone: p.zone, Ready: true, Serving: true}
}

func (k *kernel) draining(pod string) proxy.SliceEndpoint {
	e := k.on(pod)
	e.Ready, e.Terminating = false, true
	return e
}

// finished endpoints terminate and serve no more.
func (k *kernel) finished(pod string) proxy.SliceEndpoint {
	e := k.draining(pod)
	e.Serving = false
	return e
}

func (k *kernel) all(pods ...string) []proxy.SliceEndpoint {
	var out []proxy.SliceEndpoint
	for _, p := range pods {
		out = append(out, k.on(p))
	}
	return out
}

// apply makes exactly these services the state, by the changes from the one
// before, twice: the second time it must be no error.
func (k *kernel) apply(services ...*kernelService) {
	k.Helper()
	changes := k.changes(services)
	for range 2 {
		// The test's own context is over when its state is cleared away.
		if err := k.mode.Apply(context.Background(), changes); err != nil {
			k.Fatalf("applying: %v", err)
		}
	}
}

func (k *kernel) changes(services []*kernelService) []proxy.Change {
	var out []proxy.Change
	gone := maps.Clone(k.current)
	node := choose.Node{Name: nodeName, Zone: nodeZone}
	for _, s := range services {
		svc := s.Service // modes may keep what they get; a case goes on changing its own
		svc.Ports = append([]proxy.Port(nil), s.Ports...)
		for _, p := range svc.Ports {
			origin := choose.Origin{Service: &svc, Port: p, Slices: s.slices, Routing: s.Routing[p.Name]}
			state, _ := choose.Port(origin, backendsOf(services, origin.Routing), nil, node, time.Time{})
			delete(gone, state.Name)
			if !state.Equal(k.current[state.Name]) {
				out = append(out, proxy.Change{Name: state.Name, State: state})
			}
			k.current[state.Name] = state
		}
	}
	for name := range gone {
		out = append(out, proxy.Change{Name: name})
		delete(k.current, name)
	}
	return out
}

// backendsOf a route, among services.
func backendsOf(services []*kernelService, r *proxy.Routing) []choose.Backend {
	if r == nil {
		return nil
	}
	var out []choose.Backend
	for _, b := range r.Backends {
		for _, s := range services {
			if s.Name == b.Service {
				out = append(out, choose.Backend{Origin: choose.Origin{Service: &s.Service, Port: s.Ports[0], Slices: s.slices}, Weight: b.Weight})
			}
		}
	}
	return out
}

// restart ends the mode and starts another, as an agent that is restarted;
// between runs meanwhile, and may change the state that the new one gets.
func (k *kernel) restart(between func()) {
	k.Helper()
	k.close(k.T, k.Context())
	if between != nil {
		between()
	}
	k.open(k.T)
}
