package describe

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/dns/meshname"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/servicetag"
)

func (d *Describer) node(ctx context.Context, p *page, n *corev1.Node) error {
	p.field("Zone", cmp.Or(n.Labels[corev1.LabelTopologyZone], "none"))
	var addresses []string
	for _, a := range n.Status.Addresses {
		addresses = append(addresses, a.Address+" ("+string(a.Type)+")")
	}
	p.fieldIf("Addresses", strings.Join(addresses, ", "))
	if cpu, ok := n.Status.Allocatable[corev1.ResourceCPU]; ok {
		p.field("CPUs", cpu.String())
	}
	p.fieldIf("Agent", n.Status.NodeInfo.KubeletVersion)
	if n.Spec.Unschedulable {
		p.field("Cordoned", "it takes no new workloads")
	}
	if drain := kind.DrainOf(n); drain.Taint != nil {
		p.field("Drain", strings.ToLower(drain.State()))
		p.note("its workloads get new connections only where no other endpoint is ready: it is %s; \"%s\" ends that", drain, drain.Undo(n.Name))
	}
	d.shift(ctx, p, "its workloads", n.Labels[corev1.LabelTopologyZone], n.Name)
	if err := d.nodeLease(ctx, p, n.Name); err != nil {
		return err
	}
	var rows [][]string
	for _, c := range n.Status.Conditions {
		rows = append(rows, []string{string(c.Type), string(c.Status), p.since(c.LastTransitionTime.Time), because(c.Reason, c.Message)})
	}
	p.table("Conditions", []string{"TYPE", "STATUS", "SINCE", "WHY"}, rows)

	dataplanes, err := list[*mesh.Dataplane](ctx, d, p, kind.Dataplane, resource.ListOptions{})
	if err != nil {
		return err
	}
	pods, err := list[*corev1.Pod](ctx, d, p, kind.Pod, resource.ListOptions{})
	if err != nil {
		return err
	}
	p.placed(n.Name, workloads(dataplanes, pods))
	return nil
}

// nodeLease is what keeps a Node alive.
func (d *Describer) nodeLease(ctx context.Context, p *page, name string) error {
	obj, err := d.Reader.Get(ctx, kind.Lease, resource.Key{Namespace: corev1.NamespaceNodeLease, Name: name})
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		p.field("Lease", "none: no agent has run on it")
		return nil
	}
	if err != nil {
		return fmt.Errorf("lease: %w", err)
	}
	lease, ok := obj.(*coordinationv1.Lease)
	if !ok || lease.Spec.RenewTime == nil {
		p.field("Lease", "never renewed")
		return nil
	}
	p.field("Lease", p.lease(ptr.Deref(lease.Spec.HolderIdentity, ""), lease.Spec.RenewTime.Time, ptr.Deref(lease.Spec.LeaseDurationSeconds, 0)))
	return nil
}

// placed lists the workloads on a Node.
func (p *page) placed(node string, all []workload) {
	var rows [][]string
	for i := range all {
		w := &all[i]
		if w.node != node || w.done {
			continue
		}
		state := "ready"
		if !w.ready {
			state = "not ready"
		}
		rows = append(rows, []string{w.Namespace, w.title(), strings.Join(w.addresses, ", "), state, w.why})
	}
	p.table("Workloads", []string{"NAMESPACE", "NAME", "ADDRESSES", "STATE", "WHY"}, rows)
}

func (d *Describer) dataplane(ctx context.Context, p *page, dp *mesh.Dataplane) error {
	p.dataplane(dp)
	zone := dp.Labels[corev1.LabelTopologyZone]
	if dp.Spec.NodeName != "" {
		node, err := d.dataplaneNode(ctx, p, dp.Spec.NodeName)
		if err != nil {
			return err
		}
		if node != nil {
			zone = cmp.Or(zone, node.Labels[corev1.LabelTopologyZone])
		}
	}
	d.shift(ctx, p, "it", zone, dp.Spec.NodeName)
	services, err := list[*corev1.Service](ctx, d, p, kind.Service, resource.ListOptions{Namespace: dp.Namespace})
	if err != nil {
		return err
	}
	var rows [][]string
	for _, s := range services {
		if selects(s.Spec.Selector, dp.Labels) {
			rows = append(rows, []string{s.Name, cmp.Or(strings.Join(s.Spec.ClusterIPs, ", "), "-"), servicePorts(s)})
		}
	}
	p.table("Selected by Services", []string{"NAME", "ADDRESSES", "PORTS"}, rows)
	hosts := servicetag.OfDataplane(dp)
	p.tags(hosts, "")
	for _, tag := range servicetag.TagsOfDataplane(dp) {
		if _, err := meshname.OfTag(tag); err != nil {
			p.note("it is in no service by its tag: %v", err)
		}
	}
	if len(rows) == 0 && len(hosts) == 0 {
		p.note("no Service in namespace %s selects it", dp.Namespace)
	}
	return nil
}

// shift notes which ZoneShift takes workloads in a zone, on a node, out. That ZoneShifts cannot
// be read is no reason to fail: older control planes have none.
func (d *Describer) shift(ctx context.Context, p *page, whose, zone, node string) {
	objects, _, err := d.Reader.List(ctx, kind.ZoneShift, resource.ListOptions{})
	if err != nil {
		return
	}
	for _, obj := range objects {
		z, ok := obj.(*mesh.ZoneShift)
		if ok && kind.ShiftInEffect(z) && kind.ShiftCovers(&z.Spec, zone, node) {
			verb := "gets"
			if whose != "it" {
				verb = "get"
			}
			p.note("%s %s new connections only where no other endpoint is ready: %s is taken out until %s (%s); \"%s\" ends that",
				whose, verb, kind.ShiftTarget(&z.Spec), z.Spec.Until.UTC().Format(time.RFC3339), z.Spec.Reason, kind.ShiftUndo(&z.Spec))
		}
	}
}

// dataplaneNode notes what keeps a Node from serving a workload. The Node is nil if it cannot
// be read, or does not exist.
func (d *Describer) dataplaneNode(ctx context.Context, p *page, name string) (*corev1.Node, error) {
	obj, err := d.Reader.Get(ctx, kind.Node, resource.Key{Name: name})
	switch {
	case apierrors.IsNotFound(err):
		p.note("its Node %q does not exist, so it gets no endpoint: remove spec.nodeName, or run an agent of that name", name)
		return nil, nil
	case apierrors.IsForbidden(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("node: %w", err)
	}
	n, ok := obj.(*corev1.Node)
	if ok {
		if ready, why := nodeReady(n); !ready {
			p.note("its node %s is not ready: %s", name, why)
		}
		if drain := kind.DrainOf(n); drain.Taint != nil {
			p.note("it gets new connections only where no other endpoint is ready: its node %s is %s; \"%s\" ends that",
				name, drain, drain.Undo(name))
		}
	}
	return n, nil
}

// dataplane prints the fields of the Dataplane itself.
func (p *page) dataplane(dp *mesh.Dataplane) {
	spec := &dp.Spec
	p.field("Mesh", cmp.Or(spec.Mesh, "that of its namespace"))
	p.field("Node", cmp.Or(spec.NodeName, "none"))
	p.field("Addresses", strings.Join(spec.Addresses, ", "))
	if w := spec.Weight; w != nil {
		p.field("Weight", fmt.Sprintf("%d (%d is the default)", *w, mesh.DefaultWeight))
	}
	if spec.Hostname != "" && spec.Subdomain != "" {
		p.field("Hostname", spec.Hostname+", below Service "+spec.Subdomain)
	}
	p.field("Readiness", probe(spec.Readiness))
	p.field("Drain", fmt.Sprintf("%ds", ptr.Deref(spec.DrainSeconds, mesh.DefaultDrainSeconds)))
	if l := dp.Status.Lease; l != nil {
		p.field("Lease", p.lease(l.Holder, l.RenewTime.Time, l.DurationSeconds))
	} else {
		p.field("Lease", "none: it lives until it is deleted")
	}
	var rows [][]string
	for _, port := range spec.Ports {
		var tags []string
		for _, key := range slices.Sorted(maps.Keys(port.Tags)) {
			tags = append(tags, key+"="+port.Tags[key])
		}
		rows = append(rows, []string{
			cmp.Or(port.Name, "-"), fmt.Sprintf("%d/%s", port.Port, cmp.Or(port.Protocol, mesh.ProtocolTCP)), ptr.Deref(port.AppProtocol, "-"), strings.Join(tags, ","),
		})
	}
	p.table("Ports", []string{"NAME", "PORT", "APPLICATION", "TAGS"}, rows)
	rows = nil
	for _, c := range dp.Status.Conditions {
		rows = append(rows, []string{c.Type, string(c.Status), p.since(c.LastTransitionTime.Time), because(c.Reason, c.Message)})
	}
	p.table("Conditions", []string{"TYPE", "STATUS", "SINCE", "WHY"}, rows)
	if w := ofDataplane(dp); !w.ready {
		p.note("it gets no new connections: %s", w.why)
	}
}

// probe as text.
func probe(pr *mesh.Probe) string {
	if pr == nil {
		return "as reported by its runner"
	}
	what := "unknown probe"
	switch {
	case pr.HTTPGet != nil:
		what = fmt.Sprintf("%s GET %s on port %s", cmp.Or(pr.HTTPGet.Scheme, mesh.SchemeHTTP), cmp.Or(pr.HTTPGet.Path, "/"), pr.HTTPGet.Port.String())
	case pr.TCPSocket != nil:
		what = "TCP connection to port " + pr.TCPSocket.Port.String()
	case pr.GRPC != nil:
		what = fmt.Sprintf("gRPC health on port %d", pr.GRPC.Port)
	case pr.Exec != nil:
		what = "command " + strings.Join(pr.Exec.Command, " ")
	}
	return fmt.Sprintf("%s every %ds, %d failures in a row: not ready", what, pr.PeriodSeconds, pr.FailureThreshold)
}

func servicePorts(s *corev1.Service) string {
	var ports []string
	for _, port := range s.Spec.Ports {
		ports = append(ports, fmt.Sprintf("%d/%s", port.Port, cmp.Or(port.Protocol, corev1.ProtocolTCP)))
	}
	return cmp.Or(strings.Join(ports, ", "), "-")
}
