// Package kernelspace is the mode that lets the Host Networking Service (HNS) of Windows carry
// traffic: a load balancer per front of a service port, among endpoints of the HNS network that the
// CNI plugin made.
//
// Enter at [New]; the result is a proxy.Mode. It owns the load balancers, remote endpoints and access
// control lists that it made, which it knows by a record on disk and by the names of endpoints, and
// repairs them. It never chooses endpoints (package choose does), never touches what other programs
// made in HNS, except a load balancer at a front that it needs, and leaves its own in place when it
// is closed: a new process takes them over, [Cleanup] removes them.
//
// DESIGN.md has what HNS can do, what holds at any time, and what to look at in a review. The package
// is for all systems, so that it can be tested on any; only package hns needs Windows.
package kernelspace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxima-mesh/proxima/internal/atomicfile"
	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/kernelspace/hns"
)

// Name of the mode.
const Name = "kernelspace"

// Options of the mode.
type Options struct {
	// HNS of this machine. Required.
	HNS hns.Service
	// StateFile keeps which objects in HNS are the mode's. Required.
	StateFile string
	// Network is the name of the HNS network of Pods. Required.
	Network string
	// SourceVIP is the source address of translated connections. An overlay needs it, and the mode
	// makes the endpoint for it.
	SourceVIP netip.Addr
	// EnableDSR: direct server return for cluster IPs.
	EnableDSR bool
	// ForwardHealthChecks: the health check port at ingress addresses leads to Gateway, the name of
	// the endpoint of the root namespace. HealthPort is that of Services that have no port of their own.
	ForwardHealthChecks bool
	Gateway             string
	HealthPort          uint16
	// AllowOpen: what HNS cannot restrict is open in place of closed.
	AllowOpen bool
	// NodeAddresses of this machine, at most one per family. It may be called at any time. Nil: none.
	NodeAddresses func() []netip.Addr
	// HostMAC is the address of the interface that has an address, as 00-15-5d-01-02-03. An overlay
	// needs it.
	HostMAC func(netip.Addr) (string, error)
	// Logger gets what no caller sees. Default: discard.
	Logger *slog.Logger
	// Registerer gets the mode's metrics until Close. Default: none.
	Registerer prometheus.Registerer
	// Interval between two looks at HNS. Default: 1 s; it lists all load balancers each 30th time.
	Interval time.Duration

	// write the record, in place of package atomicfile.
	write func(path string, data []byte, mode fs.FileMode) error
}

const (
	defaultInterval = time.Second
	// compareEach is after how many looks the mode lists all load balancers.
	compareEach = 30
	// deletesPerSync bounds how many leftovers one synchronisation deletes, as in kube-proxy.
	deletesPerSync = 20
)

// Mode implements proxy.Mode.
type Mode struct {
	o       Options
	can     ability
	metrics *metrics
	stop    context.CancelFunc
	ended   sync.WaitGroup

	mu      sync.Mutex
	started bool
	ports   map[proxy.PortName]*servicePort
	network *hns.Network
	// have are the mode's load balancers by front, and leftovers those that could not be deleted. They
	// hold while trusted; otherwise they are read first.
	have      map[key]hns.LoadBalancer
	leftovers map[string]bool
	trusted   bool
	// removing: there is nothing to carry any more, see Cleanup.
	removing bool
	// rejected: HNS says that it cannot modify load balancers.
	rejected bool
	record   record
	saved    string
	// again: something is not as it should be, and is tried again.
	again bool
	err   error // of the last synchronisation
}

// servicePort is a desired one.
type servicePort struct {
	state *proxy.PortState
	plan  plan
}

// New makes the mode, and changes nothing. It fails where HNS lacks what the options ask for, and
// does not wait for the network, which Apply reports as missing.
func New(o Options) (*Mode, error) {
	m, err := newMode(o)
	if err != nil {
		return nil, err
	}
	if o.Registerer != nil {
		if err := o.Registerer.Register(m.metrics); err != nil {
			return nil, fmt.Errorf("registering metrics of the kernelspace mode: %w", err)
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	m.stop = stop
	m.ended.Go(func() { m.watch(ctx) })
	return m, nil
}

func newMode(o Options) (*Mode, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.write == nil {
		o.write = atomicfile.Write
	}
	if o.Interval == 0 {
		o.Interval = defaultInterval
	}
	if o.NodeAddresses == nil {
		o.NodeAddresses = func() []netip.Addr { return nil }
	}
	if o.Network == "" {
		return nil, errors.New("--network-name: it must name the HNS network of the node's Pods (or set KUBE_NETWORK)")
	}
	features, err := o.HNS.Features()
	if err != nil {
		return nil, err
	}
	if o.EnableDSR && !features.DSR {
		return nil, errors.New("--enable-dsr: this version of HNS has no direct server return (Windows Server 2019 with KB4580390, or later)")
	}
	m := &Mode{
		o: o,
		can: ability{
			features: features, dsr: o.EnableDSR, ipv4: true, ipv6: features.IPv6DualStack, allowOpen: o.AllowOpen,
			forward: o.ForwardHealthChecks, healthPort: o.HealthPort,
		},
		ports:     map[proxy.PortName]*servicePort{},
		have:      map[key]hns.LoadBalancer{},
		leftovers: map[string]bool{},
	}
	m.metrics = newMetrics(m)
	if m.record, err = readRecord(o.StateFile); err != nil {
		o.Logger.Warn("load balancers of an earlier run stay in HNS where no service port has their front", "error", err)
	}
	return m, nil
}

// Name implements proxy.Mode.
func (m *Mode) Name() string { return Name }

// Apply implements proxy.Mode.
func (m *Mode) Apply(_ context.Context, changes []proxy.Change) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.started = true
	for _, c := range changes {
		if c.State == nil {
			delete(m.ports, c.Name)
		} else {
			m.ports[c.Name] = &servicePort{state: c.State, plan: planOf(c.State, m.can)}
		}
	}
	failed, err := m.sync()
	if err == nil && len(failed) > 0 {
		err = &proxy.PortError{Failed: failed}
	}
	return err
}

// Close implements proxy.Mode. What is in HNS stays.
func (m *Mode) Close(context.Context) error {
	m.stop()
	m.ended.Wait()
	if m.o.Registerer != nil {
		m.o.Registerer.Unregister(m.metrics)
	}
	return nil
}

// watch looks whether the network is still the same, and repairs what differs.
func (m *Mode) watch(ctx context.Context) {
	retry := backoff.Backoff{Policy: backoff.Policy{First: m.o.Interval, Last: compareEach * m.o.Interval}}
	looks := 0
	pause := m.o.Interval
	for backoff.Sleep(ctx, pause) {
		looks++
		pause = m.o.Interval
		if !m.look(looks%compareEach == 0) {
			pause = retry.Next()
		} else {
			retry.Reset()
		}
	}
}

// look at HNS; false: it is not as it should be.
func (m *Mode) look(compare bool) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.started {
		return true
	}
	if !compare && !m.again && m.err == nil && m.trusted {
		network, err := m.o.HNS.NetworkByName(m.o.Network)
		if err == nil && m.network != nil && hns.SameID(network.ID, m.network.ID) {
			return true
		}
	}
	m.trusted = m.trusted && !compare
	was := m.err
	failed, err := m.sync()
	if err != nil && (was == nil || was.Error() != err.Error()) {
		m.o.Logger.Warn("HNS is not as it should be; it is tried again", "error", err)
	}
	return err == nil && len(failed) == 0 && !m.again
}

// Limits are what HNS cannot do of the service ports in place, for those of which there is something.
func (m *Mode) Limits() map[proxy.PortName][]Limit {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[proxy.PortName][]Limit{}
	for name, p := range m.ports {
		if len(p.plan.limits) > 0 {
			out[name] = slices.Clone(p.plan.limits)
		}
	}
	return out
}

// State of the mode in HNS.
type State struct {
	// Problem of the last synchronisation; empty: none.
	Problem string
	// Balancers by service port, a line each.
	Balancers map[proxy.PortName][]string
}

// Front of a service port at an address: its load balancer, in words; an address that is none of its
// virtual ones is the machine's, for the node port. Without one, outcome says what becomes of a
// connection: "drop" by rules, or "pass".
func (m *Mode) Front(to netip.Addr, name proxy.PortName) (line, outcome string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.ports[name]
	if p == nil {
		return "", "pass"
	}
	s := p.state.Service
	k := key{vip: to, protocol: protocolOf(p.state.Port.Protocol), port: p.state.Port.Port, ipv6: !to.Is4()}
	if !slices.Contains(slices.Concat(s.ClusterIPs, s.ExternalIPs, s.LoadBalancerIPs), to) {
		k.vip, k.port = netip.Addr{}, p.state.Port.NodePort
	}
	if b, ok := m.have[k]; ok {
		return describe(k, b), "endpoint"
	}
	for _, a := range p.plan.acls {
		if !a.Allow && !a.Out && a.LocalPort == k.port && a.Protocol == k.protocol && slices.ContainsFunc(a.Local, func(l netip.Prefix) bool { return l.Contains(to) }) {
			return "", "drop"
		}
	}
	return "", "pass"
}

// State returns what the mode has in HNS, as of the last synchronisation.
func (m *Mode) State() State {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := State{Balancers: map[proxy.PortName][]string{}}
	if m.err != nil {
		out.Problem = m.err.Error()
	}
	for name, p := range m.ports {
		for _, f := range p.plan.fronts {
			if b, ok := m.have[f.key]; ok {
				out.Balancers[name] = append(out.Balancers[name], describe(f.key, b))
			}
		}
	}
	return out
}

func describe(k key, b hns.LoadBalancer) string {
	var flags []string
	if b.Flags&hns.DSR != 0 {
		flags = append(flags, "direct server return")
	}
	if b.Mapping.Distribution == hns.ClientIP {
		flags = append(flags, "by client address")
	}
	if b.Mapping.Flags&hns.PreserveDIP != 0 {
		flags = append(flags, "destination preserved")
	}
	text := fmt.Sprintf("load balancer %s: %s to %d endpoints, port %d", b.ID, k, len(b.Endpoints), b.Mapping.InternalPort)
	if len(flags) > 0 {
		text += " (" + strings.Join(flags, ", ") + ")"
	}
	return text
}

// Dump compares HNS with what the mode wants there. Foreign load balancers are none of its concern.
type Dump struct{ Objects, Missing []string }

// Dump reads HNS. It changes nothing.
func (m *Mode) Dump() (Dump, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	list, err := m.o.HNS.LoadBalancers()
	if err != nil {
		return Dump{}, err
	}
	there := map[string]bool{}
	for _, b := range list {
		there[hns.CanonicalID(b.ID)] = true
	}
	var d Dump
	for k, b := range m.have {
		if there[hns.CanonicalID(b.ID)] {
			d.Objects = append(d.Objects, describe(k, b))
		} else {
			d.Missing = append(d.Missing, describe(k, b))
		}
	}
	slices.Sort(d.Objects)
	slices.Sort(d.Missing)
	return d, nil
}

// Cleanup removes what a mode with this StateFile made in HNS, also a process's of long ago; of the
// options it needs HNS, too. Nothing there is no error. Close the mode before.
func Cleanup(o Options) error {
	r, err := readRecord(o.StateFile)
	if err != nil {
		return err
	}
	if o.Network = cmp.Or(o.Network, r.Network); o.Network == "" {
		return nil // it never made anything
	}
	o.EnableDSR = false
	m, err := newMode(o)
	if err != nil {
		return err
	}
	m.started, m.removing = true, true
	for range 3 + len(r.Balancers)/deletesPerSync {
		if _, err = m.sync(); errors.Is(err, hns.ErrNetworkNotFound) {
			err = m.deleteAll()
		}
		if err == nil && len(m.leftovers) == 0 {
			break
		}
	}
	if err == nil && len(m.leftovers) > 0 {
		err = fmt.Errorf("HNS did not delete %d load balancers, one of them %s: restart the service hns, and try again",
			len(m.leftovers), slices.Min(slices.Collect(maps.Keys(m.leftovers))))
	}
	return err
}
