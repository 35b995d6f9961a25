package zoneshift

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/backend"
	"github.com/proxima-mesh/proxima/internal/controller/endpointslice"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// Effect of a ZoneShift on the Services of its site.
type Effect struct {
	Zone string `json:"zone,omitempty"`
	Node string `json:"node,omitempty"`
	// Services with ready endpoints there, by name.
	Services []Service `json:"services"`
	// Endpoints that are ready there, each counted once.
	Endpoints int `json:"endpoints"`
}

// Service of which endpoints are taken out.
type Service struct {
	// Name is NAMESPACE/NAME.
	Name string `json:"name"`
	// Out are its ready endpoints there, Left those elsewhere.
	Out  int `json:"out"`
	Left int `json:"left"`
	// Last: a port of it has no ready endpoint elsewhere, so that those there go on serving it.
	Last bool `json:"last,omitempty"`
}

// LastEndpoints are the Services that would have no other endpoint.
func (e *Effect) LastEndpoints() (out []string) {
	for i := range e.Services {
		if e.Services[i].Last {
			out = append(out, e.Services[i].Name)
		}
	}
	return out
}

// Known reports whether the zone or node of a ZoneShift exists: a Node is there, or a
// workload that names the zone itself.
func Known(s *catalog.Snapshot, spec *mesh.ZoneShiftSpec) bool {
	if spec.Node != "" {
		_, ok := s.Nodes.Get(resource.Key{Name: spec.Node})
		return ok
	}
	return slices.Contains(Zones(s), spec.Zone)
}

// Zones that there are, in order.
func Zones(s *catalog.Snapshot) []string {
	seen := map[string]bool{}
	for _, n := range s.Nodes.All() {
		seen[n.Labels[corev1.LabelTopologyZone]] = true
	}
	for _, d := range s.Dataplanes.All() {
		seen[d.Labels[corev1.LabelTopologyZone]] = true
	}
	delete(seen, "")
	out := make([]string, 0, len(seen))
	for zone := range seen {
		out = append(out, zone)
	}
	slices.Sort(out)
	return out
}

// Evaluate says what a shift takes out, while others are in effect, whose endpoints do not
// count, as those of drained nodes do not. Only Services of namespaces within count; nil: of all. Its cost is that of their
// EndpointSlices. It is pure.
func Evaluate(s *catalog.Snapshot, spec *mesh.ZoneShiftSpec, others backend.Shifts, within func(namespace string) bool) Effect {
	e := Effect{Zone: spec.Zone, Node: spec.Node, Services: []Service{}}
	out := map[string]bool{} // endpoints of the whole site
	for key := range s.Services.All() {
		if within != nil && !within(key.Namespace) {
			continue
		}
		l := look{snapshot: s, spec: spec, others: others, out: map[string]bool{}, left: map[string]bool{}, here: map[portOf]bool{}, elsewhere: map[portOf]bool{}}
		for _, slice := range s.SlicesOf(key) {
			l.add(slice)
		}
		if len(l.out) == 0 {
			continue
		}
		one := Service{Name: key.String(), Out: len(l.out), Left: len(l.left)}
		for port := range l.here {
			one.Last = one.Last || !l.elsewhere[port]
		}
		for id := range l.out {
			out[id] = true
		}
		e.Services = append(e.Services, one)
	}
	slices.SortFunc(e.Services, func(a, b Service) int { return cmp.Compare(a.Name, b.Name) })
	e.Endpoints = len(out)
	return e
}

// portOf a Service, in a family.
type portOf struct {
	family   discoveryv1.AddressType
	name     string
	protocol corev1.Protocol
}

// look at the endpoints of one Service.
type look struct {
	snapshot        *catalog.Snapshot
	spec            *mesh.ZoneShiftSpec
	others          backend.Shifts
	out, left       map[string]bool
	here, elsewhere map[portOf]bool
}

func (l *look) add(slice *discoveryv1.EndpointSlice) {
	// Slices of other authors are not changed: their endpoints stay wherever they are.
	ours := slice.Labels[discoveryv1.LabelManagedBy] == endpointslice.ManagedBy
	for i := range slice.Endpoints {
		e := &slice.Endpoints[i]
		if !ptr.Deref(e.Conditions.Ready, true) {
			continue
		}
		zone, node := ptr.Deref(e.Zone, ""), ptr.Deref(e.NodeName, "")
		at := l.elsewhere
		switch {
		case ours && kind.ShiftCovers(l.spec, zone, node):
			l.out[idOf(e)], at = true, l.here
		case ours && (l.others.Of(zone, node) != nil || l.drained(node)):
			continue // its slice may not say so yet
		default:
			l.left[idOf(e)] = true
		}
		for _, p := range slice.Ports {
			at[portOf{slice.AddressType, ptr.Deref(p.Name, ""), ptr.Deref(p.Protocol, corev1.ProtocolTCP)}] = true
		}
	}
}

// drained reports whether a node is, or a drain of it has begun.
func (l *look) drained(node string) bool {
	n, ok := l.snapshot.Nodes.Get(resource.Key{Name: node})
	return ok && kind.DrainOf(n).Taint != nil
}

// idOf an endpoint: that of its workload, which has an address of each family.
func idOf(e *discoveryv1.Endpoint) string {
	if e.TargetRef != nil {
		return e.TargetRef.Kind + "/" + e.TargetRef.Namespace + "/" + e.TargetRef.Name
	}
	return e.Addresses[0]
}
