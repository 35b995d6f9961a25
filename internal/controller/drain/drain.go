// Package drain takes the workloads of a node out of their Services, so that its machine can
// be rebooted without a connection that breaks.
//
// The state of a drain is on the Node (kind.DrainOf): a taint, and an annotation that records
// who drained it. Package backend makes the node's endpoints terminating by the taint. This
// package owns the rest: Evaluate, which is pure, says what is still in the way of a reboot;
// Operator starts and ends drains for the command; Controller, of the leader, notes on the
// Node when it is drained, and writes the events. No workload is ended: that is left to the
// reboot, or to who runs it.
package drain

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/backend"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// Settle is how long after the begin of a drain the absence of connections says nothing:
// agents of other machines may not know of it yet. It is far more than a change takes to
// reach a connected agent (bench/run: tens of milliseconds).
const Settle = 2 * time.Second

// defaultDrain of workloads that name none: that of a Dataplane, and of a pod
// (DefaultTerminationGracePeriodSeconds).
const defaultDrain = 30 * time.Second

// State of a node.
type State string

const (
	// InUse: the node is not drained.
	InUse    State = "InUse"
	Draining State = "Draining"
	// Drained: a reboot interrupts nothing that was promised more time.
	Drained State = "Drained"
)

// Progress of a drain or, for a node in use, what a drain would find.
type Progress struct {
	Node  string `json:"node"`
	State State  `json:"state"`
	// Since is when the drain began, By who began it; empty: not known.
	Since time.Time `json:"since,omitzero"`
	By    string    `json:"by,omitempty"`
	// Taint by which workloads are taken out, as kubectl writes it.
	Taint string `json:"taint,omitempty"`
	// Cordoned: the node takes no new workloads.
	Cordoned  bool       `json:"cordoned"`
	Workloads []Workload `json:"workloads"`
	// LastEndpoints are the Services (NAMESPACE/NAME) with a port whose only endpoints are on
	// this node.
	LastEndpoints []string `json:"lastEndpoints,omitempty"`
	// Uncounted is why open connections are not known; empty: they are.
	Uncounted string `json:"uncounted,omitempty"`
	// Waiting says what is in the way of a reboot; empty: nothing is.
	Waiting []string `json:"waiting,omitempty"`
	// Cut is the number of connections that a reboot would break now.
	Cut int `json:"openConnections"`
}

// Workload of a node.
type Workload struct {
	// Kind is Dataplane or Pod.
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Services that it is an endpoint of.
	Services []string `json:"services,omitempty"`
	// Connections that are open; nil: not known.
	Connections *int `json:"openConnections,omitempty"`
	// SecondsLeft of the time that the workload's connections have to end.
	SecondsLeft int `json:"secondsLeft"`
	// Done: it has no open connections, or their time is over.
	Done bool `json:"done"`
}

// String is KIND NAMESPACE/NAME.
func (w *Workload) String() string { return w.Kind + " " + w.Namespace + "/" + w.Name }

// Input of Evaluate.
type Input struct {
	Snapshot *catalog.Snapshot
	// Node as it is, or as it is to be; it may be newer than the snapshot.
	Node *corev1.Node
	// Nodes by name, of which some may be drained, too; nil: those of the snapshot. They may be
	// newer than the snapshot.
	Nodes map[string]*corev1.Node
	// Open TCP connections at the node's endpoints; nil: not known, for the reason Uncounted.
	Open      map[netip.AddrPort]int
	Uncounted string
	Now       time.Time
}

// Evaluate says what is in the way of a reboot of a node. It is pure.
func Evaluate(in Input) Progress {
	d := kind.DrainOf(in.Node)
	p := Progress{
		Node: in.Node.Name, State: InUse, Since: d.Since, By: d.By, Cordoned: in.Node.Spec.Unschedulable,
		Workloads: workloads(in.Snapshot, in.Node), Uncounted: in.Uncounted,
	}
	services := in.servicesOn(p.Workloads)
	for _, s := range services {
		if s.last {
			p.LastEndpoints = append(p.LastEndpoints, s.name.String())
		}
	}
	since := in.Now
	if d.Taint != nil && !d.Since.IsZero() {
		since = d.Since
	}
	p.judge(in, since)
	if d.Taint == nil {
		return p
	}
	p.State, p.Taint = Draining, d.Taint.ToString()
	p.wait(services, d.Force, len(p.Workloads) > 0 && in.Now.Sub(since) < Settle)
	if len(p.Waiting) == 0 {
		p.State = Drained
	}
	return p
}

// judge each workload: what it has left, and whether it is done.
func (p *Progress) judge(in Input, since time.Time) {
	for i := range p.Workloads {
		w := &p.Workloads[i]
		left := w.drainTime(in.Snapshot) - in.Now.Sub(since)
		w.SecondsLeft = int(max(left+time.Second-1, 0) / time.Second)
		w.Done = left <= 0
		if in.Open == nil {
			continue
		}
		n := 0
		for _, at := range w.endpoints(in.Snapshot) {
			n += in.Open[at]
		}
		w.Connections = &n
		w.Done = w.Done || n == 0
		p.Cut += n
	}
}

// wait collects what is in the way of a reboot.
func (p *Progress) wait(services []serviceOn, force, early bool) {
	for _, s := range services {
		if s.listed {
			p.Waiting = append(p.Waiting, fmt.Sprintf("the EndpointSlices of Service %s do not have the change yet", s.name))
		}
	}
	if len(p.LastEndpoints) > 0 && !force {
		p.Waiting = append(p.Waiting, fmt.Sprintf("no other node has an endpoint of Service %s", strings.Join(p.LastEndpoints, ", ")))
	}
	for i := range p.Workloads {
		if w := &p.Workloads[i]; !w.Done {
			open := "open connections that cannot be counted"
			if w.Connections != nil {
				open = plural(*w.Connections, "open connection")
			}
			p.Waiting = append(p.Waiting, fmt.Sprintf("%s has %s, and %d s for them to end", w, open, w.SecondsLeft))
		}
	}
	if early {
		p.Waiting = append(p.Waiting, "agents of other machines may not know of it yet")
	}
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// workloads of a node that its drain takes out: all Dataplanes, and the pods that do not
// tolerate the taint.
func workloads(s *catalog.Snapshot, n *corev1.Node) []Workload {
	out := []Workload{}
	for key := range s.DataplanesOn(n.Name) {
		out = append(out, Workload{Kind: kindDataplane, Namespace: key.Namespace, Name: key.Name})
	}
	drained := kind.DrainOf(n).Taint != nil
	for key, pod := range s.PodsOn(n.Name) {
		if _, ok := backend.OfPod(pod, ""); !ok || drained && kind.EvictingTaint(n, pod.Spec.Tolerations) == nil {
			continue
		}
		out = append(out, Workload{Kind: kindPod, Namespace: key.Namespace, Name: key.Name})
	}
	slices.SortFunc(out, func(a, b Workload) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Kind, b.Kind))
	})
	return out
}

const (
	kindDataplane = "Dataplane"
	kindPod       = "Pod"
)

func (w *Workload) key() resource.Key { return resource.Key{Namespace: w.Namespace, Name: w.Name} }

// drainTime is how long its connections have to end.
func (w *Workload) drainTime(s *catalog.Snapshot) time.Duration {
	if w.Kind == kindPod {
		if pod, ok := s.Pods.Get(w.key()); ok && pod.Spec.TerminationGracePeriodSeconds != nil {
			return time.Duration(*pod.Spec.TerminationGracePeriodSeconds) * time.Second
		}
		return defaultDrain
	}
	if dp, ok := s.Dataplanes.Get(w.key()); ok && dp.Spec.DrainSeconds != nil {
		return time.Duration(*dp.Spec.DrainSeconds) * time.Second
	}
	return defaultDrain
}

// endpoints are the addresses and TCP ports at which it is reached.
func (w *Workload) endpoints(s *catalog.Snapshot) (out []netip.AddrPort) {
	add := func(addresses []string, port int32, protocol corev1.Protocol) {
		if protocol != corev1.ProtocolTCP {
			return
		}
		for _, text := range addresses {
			addr, err := netip.ParseAddr(text)
			if at := netip.AddrPortFrom(addr.Unmap(), uint16(port)); err == nil && !slices.Contains(out, at) {
				out = append(out, at)
			}
		}
	}
	if dp, ok := s.Dataplanes.Get(w.key()); ok && w.Kind == kindDataplane {
		for _, p := range dp.Spec.Ports {
			add(dp.Spec.Addresses, p.Port, backend.ProtocolOf(p.Protocol))
		}
	}
	if pod, ok := s.Pods.Get(w.key()); ok && w.Kind == kindPod {
		b, _ := backend.OfPod(pod, "")
		for i := range pod.Spec.Containers {
			for _, p := range pod.Spec.Containers[i].Ports {
				add(b.Addresses, p.ContainerPort, backend.ProtocolOf(string(p.Protocol)))
			}
		}
	}
	// A Service may lead to a port that the workload does not declare.
	for _, text := range w.Services {
		namespace, name, _ := strings.Cut(text, "/")
		for _, slice := range s.SlicesOf(resource.Key{Namespace: namespace, Name: name}) {
			for i := range slice.Endpoints {
				if e := &slice.Endpoints[i]; w.is(e) {
					for _, p := range slice.Ports {
						add(e.Addresses, ptr.Deref(p.Port, 0), ptr.Deref(p.Protocol, corev1.ProtocolTCP))
					}
				}
			}
		}
	}
	return out
}

func (w *Workload) is(e *discoveryv1.Endpoint) bool {
	r := e.TargetRef
	return r != nil && r.Kind == w.Kind && r.Namespace == w.Namespace && r.Name == w.Name
}

// Endpoints of a node's workloads, at which connections are counted.
func Endpoints(s *catalog.Snapshot, n *corev1.Node) []netip.AddrPort {
	all := workloads(s, n)
	Input{Snapshot: s, Node: n}.servicesOn(all)
	out := []netip.AddrPort{}
	for i := range all {
		out = append(out, all[i].endpoints(s)...)
	}
	return out
}

// serviceOn is a Service with endpoints on a node.
type serviceOn struct {
	name resource.Key
	// last: one of its ports has endpoints on this node, and on no other that is not drained. listed: a slice has an endpoint
	// of this node as ready.
	last, listed bool
}

// servicesOn are the Services with endpoints on the node, in order. It completes the workloads.
func (in Input) servicesOn(all []Workload) []serviceOn {
	names := map[resource.Key]bool{}
	backend.OnNode(in.Snapshot, in.Node.Name, func(service resource.Key) { names[service] = true })
	shifts := backend.ShiftsOf(in.Snapshot)
	var out []serviceOn
	for name := range names {
		service, ok := in.Snapshot.Services.Get(name)
		if !ok {
			continue
		}
		if on, found := in.lookAt(service, all, shifts); found {
			out = append(out, on)
		}
	}
	slices.SortFunc(out, func(a, b serviceOn) int { return cmp.Compare(a.name.String(), b.name.String()) })
	for i := range all {
		slices.Sort(all[i].Services)
	}
	return out
}

// portOf a Service, in a family.
type portOf struct {
	family   discoveryv1.AddressType
	name     string
	protocol corev1.Protocol
}

// lookAt the endpoints of a Service; found: some are on the node.
func (in Input) lookAt(service *corev1.Service, all []Workload, shifts backend.Shifts) (on serviceOn, found bool) {
	on.name = resource.KeyOf(service)
	here, elsewhere := map[portOf]bool{}, map[portOf]bool{}
	for _, slice := range in.Snapshot.SlicesOf(on.name) {
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			ready := ptr.Deref(e.Conditions.Ready, true)
			onNode := ptr.Deref(e.NodeName, "") == in.Node.Name
			if onNode {
				found = true
				on.listed = on.listed || ready && e.TargetRef != nil && !service.Spec.PublishNotReadyAddresses
				addService(all, e, on.name)
			}
			stays := !onNode && ready && !in.goes(e, shifts)
			for _, p := range slice.Ports {
				key := portOf{slice.AddressType, ptr.Deref(p.Name, ""), ptr.Deref(p.Protocol, corev1.ProtocolTCP)}
				here[key] = here[key] || onNode && ptr.Deref(e.Conditions.Serving, ready)
				elsewhere[key] = elsewhere[key] || stays
			}
		}
	}
	for key := range here {
		on.last = on.last || here[key] && !elsewhere[key]
	}
	return on, found
}

// goes reports whether the drain of another node, or a zone shift, takes an endpoint out. Its
// slice may not say so yet.
func (in Input) goes(e *discoveryv1.Endpoint, shifts backend.Shifts) bool {
	if e.TargetRef == nil {
		return false
	}
	if shifts.Of(ptr.Deref(e.Zone, ""), ptr.Deref(e.NodeName, "")) != nil {
		return true
	}
	if e.NodeName == nil {
		return false
	}
	node := in.Nodes[*e.NodeName]
	if in.Nodes == nil {
		node, _ = in.Snapshot.Nodes.Get(resource.Key{Name: *e.NodeName})
	}
	var tolerations []corev1.Toleration
	if e.TargetRef.Kind == kindPod {
		if pod, ok := in.Snapshot.Pods.Get(resource.Key{Namespace: e.TargetRef.Namespace, Name: e.TargetRef.Name}); ok {
			tolerations = pod.Spec.Tolerations
		}
	}
	return kind.EvictingTaint(node, tolerations) != nil
}

func addService(all []Workload, e *discoveryv1.Endpoint, name resource.Key) {
	for i := range all {
		if w := &all[i]; w.is(e) && !slices.Contains(w.Services, name.String()) {
			w.Services = append(w.Services, name.String())
		}
	}
}
