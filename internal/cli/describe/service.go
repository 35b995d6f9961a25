package describe

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/dns/meshname"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/servicetag"
)

func (d *Describer) service(ctx context.Context, p *page, s *corev1.Service) error {
	p.service(s)
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		return nil // a name in DNS, and no more
	}
	in := serviceInput{service: s}
	here := resource.ListOptions{Namespace: s.Namespace}
	if host, ok := servicetag.NameOf(s); ok {
		p.field("Name in the mesh", host+"."+meshname.Domain)
	}
	own := here
	own.Labels = labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: s.Name})
	var err error
	if in.slices, err = list[*discoveryv1.EndpointSlice](ctx, d, p, kind.EndpointSlice, own); err != nil {
		return err
	}
	if in.host, in.meshes, err = d.tagOf(ctx, p, s); err != nil {
		return err
	}
	if in.host != "" {
		here = resource.ListOptions{} // its workloads are in all namespaces of the mesh
	}
	dataplanes, err := list[*mesh.Dataplane](ctx, d, p, kind.Dataplane, here)
	if err != nil {
		return err
	}
	pods, err := list[*corev1.Pod](ctx, d, p, kind.Pod, here)
	if err != nil {
		return err
	}
	in.workloads = workloads(dataplanes, pods)
	nodes, err := list[*corev1.Node](ctx, d, p, kind.Node, resource.ListOptions{})
	if err != nil {
		return err
	}
	in.nodes = map[string]*corev1.Node{}
	for _, n := range nodes {
		in.nodes[n.Name] = n
	}
	p.endpoints(&in)
	return nil
}

// service prints the fields of the Service itself.
func (p *page) service(s *corev1.Service) {
	spec := &s.Spec
	p.field("Type", string(spec.Type))
	if spec.Type == corev1.ServiceTypeExternalName {
		p.field("Name in DNS", spec.ExternalName)
		return
	}
	switch {
	case spec.ClusterIP == corev1.ClusterIPNone:
		p.field("Addresses", "none: it is headless, and its name stands for its endpoints")
	case len(spec.ClusterIPs) > 0:
		p.field("Addresses", strings.Join(spec.ClusterIPs, ", "))
	default:
		p.field("Addresses", cmp.Or(spec.ClusterIP, "none yet"))
	}
	p.fieldIf("External IPs", strings.Join(spec.ExternalIPs, ", "))
	var balancers []string
	for _, i := range s.Status.LoadBalancer.Ingress {
		balancers = append(balancers, cmp.Or(i.IP, i.Hostname))
	}
	p.fieldIf("Load balancer", strings.Join(balancers, ", "))
	if len(spec.Selector) > 0 {
		p.field("Selector", labels.FormatLabels(spec.Selector))
	} else {
		p.field("Selector", "none: its endpoints are managed by another client")
	}
	p.field("Policies", strings.Join(policies(s), ", "))
	affinity := string(spec.SessionAffinity)
	if c := spec.SessionAffinityConfig; c != nil && c.ClientIP != nil {
		affinity += fmt.Sprintf(" for %ds", ptr.Deref(c.ClientIP.TimeoutSeconds, corev1.DefaultClientIPServiceAffinitySeconds))
	}
	p.field("Affinity", cmp.Or(affinity, "None"))
	if d := kind.WarmUpOf(s); d > 0 {
		p.field("Warm-up", d.String())
	}
	var rows [][]string
	for _, port := range spec.Ports {
		node := "-"
		if port.NodePort != 0 {
			node = fmt.Sprint(port.NodePort)
		}
		target := port.TargetPort.String()
		if target == "0" {
			target = fmt.Sprint(port.Port)
		}
		rows = append(rows, []string{
			cmp.Or(port.Name, "-"), fmt.Sprintf("%d/%s", port.Port, cmp.Or(port.Protocol, corev1.ProtocolTCP)), target, node, ptr.Deref(port.AppProtocol, "-"),
		})
	}
	p.table("Ports", []string{"NAME", "PORT", "TARGET", "NODE PORT", "APPLICATION"}, rows)
}

func policies(s *corev1.Service) []string {
	spec := &s.Spec
	out := []string{"internal " + string(ptr.Deref(spec.InternalTrafficPolicy, corev1.ServiceInternalTrafficPolicyCluster))}
	if spec.ExternalTrafficPolicy != "" {
		out = append(out, "external "+string(spec.ExternalTrafficPolicy))
	}
	if spec.TrafficDistribution != nil {
		out = append(out, "distribution "+*spec.TrafficDistribution)
	}
	if mode, ok := s.Annotations[corev1.AnnotationTopologyMode]; ok {
		out = append(out, "topology mode "+mode)
	}
	if spec.PublishNotReadyAddresses {
		out = append(out, "ready or not")
	}
	return out
}

// serviceInput is what the endpoints of a Service are explained from.
type serviceInput struct {
	service   *corev1.Service
	slices    []*discoveryv1.EndpointSlice
	workloads []workload // of the namespace; of all, if host is set
	nodes     map[string]*corev1.Node
	// host is the name of a Service of a tag, and meshes those of namespaces; empty: the
	// Service is no such one.
	host   string
	meshes map[string]string
}

// endpoints lists the slices, each endpoint's state with its reason, and the selected
// workloads without an endpoint.
func (p *page) endpoints(in *serviceInput) {
	slices.SortFunc(in.slices, func(a, b *discoveryv1.EndpointSlice) int {
		return cmp.Or(cmp.Compare(a.AddressType, b.AddressType), cmp.Compare(len(b.Endpoints), len(a.Endpoints)), cmp.Compare(a.Name, b.Name))
	})
	var sliceRows, rows [][]string
	seen := map[string]bool{}
	ready, at := 0, 0
	weights := p.weigh(in)
	for _, s := range in.slices {
		readyHere := 0
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			if r := e.TargetRef; r != nil {
				seen[refName(in, r)] = true
			}
			if ptr.Deref(e.Conditions.Ready, true) {
				readyHere++
			}
			row := p.endpoint(in, e)
			if weights != nil {
				row = append(row, weights.of(at, in.workloadOf(e)))
			}
			rows = append(rows, row)
			at++
		}
		ready += readyHere
		sliceRows = append(sliceRows, []string{
			s.Name, string(s.AddressType), slicePorts(s), fmt.Sprint(len(s.Endpoints)), fmt.Sprint(readyHere), p.since(s.CreationTimestamp.Time),
		})
	}
	p.table("Slices", []string{"NAME", "FAMILY", "PORTS", "ENDPOINTS", "READY", "AGE"}, sliceRows)
	columns := []string{"ADDRESS", "STATE", "ZONE", "NODE", "WORKLOAD", "WHY"}
	if weights != nil {
		columns = weighted(columns, rows)
		p.note("the shares that endpoints get follow from weights and from where connections begin: proxima explain service %s/%s --from-zone ZONE",
			in.service.Namespace, in.service.Name)
	}
	p.table("Endpoints", columns, rows)
	p.missing(in, seen)
	p.unresolved(in)
	switch {
	case ready > 0:
	case in.service.Spec.ClusterIP == corev1.ClusterIPNone:
		p.note("no endpoint is ready: its name has no address")
	default:
		p.note("no endpoint is ready: connections to it are refused")
	}
}

// endpoint is one row.
func (p *page) endpoint(in *serviceInput, e *discoveryv1.Endpoint) []string {
	state, why := endpointState(e), ""
	name := "-"
	if r := e.TargetRef; r != nil {
		name = strings.ToLower(r.Kind) + "/" + r.Name
	}
	if state != "ready" {
		why = in.why(e)
	}
	if n := in.nodes[ptr.Deref(e.NodeName, "")]; n != nil {
		if ok, reason := nodeReady(n); !ok {
			why = strings.TrimPrefix(why+"; ", "; ") + fmt.Sprintf("node %s is not ready: %s", n.Name, reason)
		}
	}
	return []string{
		strings.Join(e.Addresses, ", "), state, ptr.Deref(e.Zone, "-"), ptr.Deref(e.NodeName, "-"), name, why,
	}
}

func endpointState(e *discoveryv1.Endpoint) string {
	switch {
	case ptr.Deref(e.Conditions.Ready, true):
		return "ready"
	case ptr.Deref(e.Conditions.Terminating, false) && ptr.Deref(e.Conditions.Serving, true):
		return "draining"
	case ptr.Deref(e.Conditions.Terminating, false):
		return "ending"
	}
	return "not ready"
}

// why an endpoint is not ready.
func (in *serviceInput) why(e *discoveryv1.Endpoint) string {
	if e.TargetRef == nil {
		return "as its slice states"
	}
	if w := in.workloadOf(e); w != nil {
		return cmp.Or(w.why, "it is ready by now; the slice follows")
	}
	return "the " + e.TargetRef.Kind + " is gone; the slice follows"
}

// missing workloads: selected, and without an endpoint.
func (p *page) missing(in *serviceInput, seen map[string]bool) {
	selector := in.service.Spec.Selector
	if len(selector) == 0 {
		return
	}
	selected := false
	var rows [][]string
	for i := range in.workloads {
		w := &in.workloads[i]
		if !in.selects(w) {
			continue
		}
		selected = true
		if !seen[w.kind+"/"+w.Key.String()] {
			rows = append(rows, []string{w.title(), in.whyMissing(w)})
		}
	}
	p.table("Selected, without an endpoint", []string{"WORKLOAD", "WHY"}, rows)
	switch {
	case selected:
	case in.host != "":
		p.note("no workload of the mesh has the service tag %s", in.host)
	default:
		p.note("no Dataplane or Pod in namespace %s has the labels %s", in.service.Namespace, labels.FormatLabels(selector))
	}
}

func (in *serviceInput) whyMissing(w *workload) string {
	families := in.service.Spec.IPFamilies
	switch {
	case w.done:
		return w.why
	case len(w.addresses) == 0:
		return "it has no address yet"
	case len(families) > 0 && !w.hasFamily(families):
		return fmt.Sprintf("it has no address of the Service's families %v", families)
	case w.node != "" && in.nodes[w.node] == nil:
		return fmt.Sprintf("its Node %q does not exist", w.node)
	case w.kind == "Pod" && w.node == "":
		return "it is on no Node yet"
	}
	return "the slices follow in a moment"
}

// unresolved ports: named target ports that no workload has.
func (p *page) unresolved(in *serviceInput) {
	if len(in.service.Spec.Selector) == 0 || in.host != "" {
		return
	}
	found := map[string]bool{}
	endpoints := 0
	for _, s := range in.slices {
		endpoints += len(s.Endpoints)
		for _, port := range s.Ports {
			if len(s.Endpoints) > 0 {
				found[ptr.Deref(port.Name, "")] = true
			}
		}
	}
	for _, port := range in.service.Spec.Ports {
		if endpoints > 0 && !found[port.Name] {
			p.note("port %s: no workload has a port named %q of protocol %s", cmp.Or(port.Name, fmt.Sprint(port.Port)), port.TargetPort.String(), cmp.Or(port.Protocol, corev1.ProtocolTCP))
		}
	}
}

func slicePorts(s *discoveryv1.EndpointSlice) string {
	var ports []string
	for _, port := range s.Ports {
		text := "any"
		if port.Port != nil {
			text = fmt.Sprint(*port.Port)
		}
		text += "/" + string(ptr.Deref(port.Protocol, corev1.ProtocolTCP))
		ports = append(ports, strings.TrimPrefix(ptr.Deref(port.Name, "")+" "+text, " "))
	}
	return cmp.Or(strings.Join(ports, ", "), "-")
}

// slice describes an EndpointSlice.
func (d *Describer) slice(p *page, s *discoveryv1.EndpointSlice) {
	p.field("Service", cmp.Or(s.Labels[discoveryv1.LabelServiceName], "none: no label "+discoveryv1.LabelServiceName))
	p.field("Written by", cmp.Or(s.Labels[discoveryv1.LabelManagedBy], "unknown"))
	p.field("Family", string(s.AddressType))
	p.field("Ports", slicePorts(s))
	var rows [][]string
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		name := "-"
		if r := e.TargetRef; r != nil {
			name = strings.ToLower(r.Kind) + "/" + r.Name
		}
		rows = append(rows, []string{
			strings.Join(e.Addresses, ", "), endpointState(e), ptr.Deref(e.Zone, "-"), ptr.Deref(e.NodeName, "-"), name, hints(e),
		})
	}
	p.table("Endpoints", []string{"ADDRESS", "STATE", "ZONE", "NODE", "WORKLOAD", "FOR"}, rows)
}

// hints in words: whom the endpoint is meant for.
func hints(e *discoveryv1.Endpoint) string {
	if e.Hints == nil {
		return "all"
	}
	names := map[string]bool{}
	for _, z := range e.Hints.ForZones {
		names["zone "+z.Name] = true
	}
	for _, n := range e.Hints.ForNodes {
		names["node "+n.Name] = true
	}
	return cmp.Or(strings.Join(slices.Sorted(maps.Keys(names)), ", "), "all")
}
