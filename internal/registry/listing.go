package registry

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/sites"
	"github.com/proxima-mesh/proxima/internal/topology/trafficplan"
)

type discoverySlice = discoveryv1.EndpointSlice

// NameOf is the name by which registry clients know a Service; ok is false if they do not: it has
// no endpoints of its own, or is the API.
func NameOf(s *corev1.Service) (name Service, ok bool) {
	if s == nil || s.Spec.Type == corev1.ServiceTypeExternalName || s.Namespace == corev1.NamespaceDefault && s.Name == "kubernetes" {
		return Service{}, false
	}
	if text := s.Annotations[AnnotationService]; text != "" {
		return ParseGrouped(s.Namespace, text), true
	}
	// A Service that was derived from an import stands for the name that is imported.
	return Service{Namespace: s.Namespace, Name: cmp.Or(s.Annotations[AnnotationApplication], s.Labels[mcs.LabelServiceName], s.Name)}, true
}

// portOf a Service that registry clients are given.
func portOf(s *corev1.Service) (corev1.ServicePort, bool) {
	wanted := s.Annotations[AnnotationPort]
	for _, p := range s.Spec.Ports {
		if p.Protocol == corev1.ProtocolUDP || p.Protocol == corev1.ProtocolSCTP {
			continue
		}
		if wanted == "" || p.Name == wanted || strconv.Itoa(int(p.Port)) == wanted {
			return p, true
		}
	}
	return corev1.ServicePort{}, false
}

// draft is a Listing that is being made.
type draft struct {
	index *Index
	zone  locality.Zone
	// planned weights, by the name of a Dataplane, where a plan says them.
	planned map[string]uint32
	// plannedAt are those of addresses, of slices that name no Dataplanes (SlicesManagedBy).
	plannedAt map[netip.AddrPort]uint32
	hasPlan   bool
	rows      []row
}

type row struct {
	instance *Instance
	weight   float64
	known    bool // weight is that of a plan
}

// list makes what clients in a zone see of a service.
func (x *Index) list(e *entry, zone locality.Zone) *Listing {
	d := &draft{index: x, zone: zone, planned: map[string]uint32{}, plannedAt: map[netip.AddrPort]uint32{}}
	keys := slices.SortedFunc(maps.Keys(e.from), compareKeys)
	for _, key := range keys {
		if s, ok := x.snapshot.Services.Get(key); ok && !e.imports(s) {
			d.addEndpoints(e, s)
		}
	}
	for key, in := range e.own {
		d.addOwn(key, in)
	}
	d.settle()
	for _, key := range keys {
		if s, ok := x.snapshot.Services.Get(key); ok {
			d.addElsewhere(e, s)
		}
	}
	slices.SortFunc(d.rows, func(a, b row) int { return a.instance.Compare(b.instance) })
	out := &Listing{Service: e.service, Position: max(e.position, x.floor), Changed: e.changed}
	for _, r := range d.rows {
		out.Instances, out.Weights = append(out.Instances, r.instance), append(out.Weights, r.weight)
	}
	return out
}

func compareKeys(a, b resource.Key) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// imports reports whether a Service is the import of one that the entry is made of, too: the endpoints of
// this site are those of both.
func (e *entry) imports(s *corev1.Service) bool {
	imported, ok := sites.ImportOf(s)
	if !ok {
		return false
	}
	_, both := e.from[resource.Key{Namespace: imported.Namespace, Name: imported.Name}]
	return both
}

// addEndpoints adds the endpoints of a Service that no client registered, and notes the plan for
// those that one did.
func (d *draft) addEndpoints(e *entry, s *corev1.Service) {
	port, ok := portOf(s)
	if !ok {
		return
	}
	for _, slice := range d.index.snapshot.SlicesOf(resource.KeyOf(s)) {
		number, ok := portIn(slice, port.Name)
		if !ok || slice.AddressType == discoveryv1.AddressTypeFQDN {
			continue
		}
		weights := d.index.plans.Weights(d.zone, slice)
		if weights != nil {
			d.hasPlan = true
		} else {
			weights = d.index.plans.Own(slice)
		}
		for i := range slice.Endpoints {
			if slice.Labels[discoveryv1.LabelManagedBy] == SlicesManagedBy {
				d.noteRegistered(&slice.Endpoints[i], number, weightAt(weights, i))
				continue
			}
			d.addEndpoint(e, s, &slice.Endpoints[i], number, weightAt(weights, i))
		}
	}
}

// SlicesManagedBy marks the EndpointSlices of registered instances, in a cluster whose own controller makes none of
// Dataplanes: their endpoints name the Pods at the addresses.
const SlicesManagedBy = "registered-services." + GroupName

// noteRegistered notes the weight of an endpoint of registered instances. They are in the listing by themselves.
func (d *draft) noteRegistered(endpoint *discoveryv1.Endpoint, port uint16, weight uint32) {
	if len(endpoint.Addresses) == 0 {
		return
	}
	if address, err := netip.ParseAddr(endpoint.Addresses[0]); err == nil {
		d.plannedAt[netip.AddrPortFrom(address, port)] = weight
	}
}

func weightAt(weights []uint32, i int) uint32 {
	if weights == nil {
		return trafficplan.DefaultWeight
	}
	if i < len(weights) {
		return weights[i]
	}
	return 0
}

func portIn(slice *discoverySlice, name string) (uint16, bool) {
	for _, p := range slice.Ports {
		if trafficplan.PortName(p) == name && p.Port != nil {
			return uint16(*p.Port), true
		}
	}
	return 0, false
}

func (d *draft) addEndpoint(e *entry, s *corev1.Service, endpoint *discoveryv1.Endpoint, port uint16, weight uint32) {
	if ref := endpoint.TargetRef; ref != nil && ref.Kind == "Dataplane" {
		if _, ok := e.own[resource.Key{Namespace: s.Namespace, Name: ref.Name}]; ok {
			d.planned[ref.Name] = weight
			return
		}
	}
	if len(endpoint.Addresses) == 0 || endpoint.Conditions.Terminating != nil && *endpoint.Conditions.Terminating {
		return
	}
	address, err := netip.ParseAddr(endpoint.Addresses[0])
	if err != nil {
		return
	}
	in := &Instance{
		Service: e.service, Address: address, Port: port, Weight: int32(trafficplan.DefaultWeight), Enabled: true,
		Healthy: trafficplan.Ready(endpoint), Protocol: Kubernetes, Created: s.CreationTimestamp.Time,
		Metadata: d.index.endpointMetadata(s, port),
	}
	if endpoint.NodeName != nil {
		in.Node = *endpoint.NodeName
	}
	if endpoint.Zone != nil {
		in.Zone = locality.Zone(*endpoint.Zone)
	}
	d.rows = append(d.rows, row{instance: in, weight: float64(weight), known: true})
}

func (d *draft) addOwn(key resource.Key, in *Instance) {
	in = d.index.offered(in)
	if in.Zone == "" && in.Node != "" {
		if n, ok := d.index.snapshot.Nodes.Get(resource.Key{Name: in.Node}); ok {
			located := *in
			located.Zone = locality.Zone(zoneOf(n))
			in = &located
		}
	}
	weight, ok := d.planned[key.Name]
	if !ok {
		weight, ok = d.plannedAt[netip.AddrPortFrom(in.Address, in.Port)]
	}
	if !ok || !d.hasPlan {
		d.rows = append(d.rows, row{instance: in, weight: float64(in.Weight), known: !d.hasPlan})
		return
	}
	d.rows = append(d.rows, row{instance: in, weight: float64(weight), known: true})
}

// settle makes the weights relative to 1. An instance that the plan does not know yet is given the
// mean of the others.
func (d *draft) settle() {
	if !d.hasPlan {
		for i := range d.rows {
			d.rows[i].weight /= float64(trafficplan.DefaultWeight)
		}
		return
	}
	sum, n := 0.0, 0
	for _, r := range d.rows {
		if r.known {
			sum, n = sum+r.weight, n+1
		}
	}
	mean := 1.0
	if sum > 0 {
		mean = sum / float64(n)
	}
	for i := range d.rows {
		if r := &d.rows[i]; r.known && sum > 0 {
			r.weight /= mean
		} else {
			r.weight = 1
		}
	}
}

// addElsewhere adds one instance for all that other sites have: the virtual address of the Service,
// at which the node of a client carries connections there.
func (d *draft) addElsewhere(e *entry, s *corev1.Service) {
	remote, err := d.index.sites.Remote(proxy.ServiceName{Namespace: s.Namespace, Name: s.Name})
	if err != nil || remote == nil || s.Spec.ClusterIP == "" || s.Spec.ClusterIP == corev1.ClusterIPNone {
		return
	}
	port, ok := portOf(s)
	if !ok {
		return
	}
	at, ok := remote.Port(port.Name)
	address, err := netip.ParseAddr(s.Spec.ClusterIP)
	if !ok || err != nil {
		return
	}
	weight, use := d.shareElsewhere(remote, at, s)
	if !use {
		return
	}
	in := &Instance{
		Service: e.service, Address: address, Port: uint16(port.Port), Weight: int32(trafficplan.DefaultWeight), Enabled: true, Healthy: true,
		Protocol: Kubernetes, Created: s.CreationTimestamp.Time, Remote: true,
	}
	if remote.External != nil {
		in.Metadata = d.index.endpointMetadata(s, uint16(port.Port))
	} else {
		in.Metadata = d.index.remoteMetadata(e.service, s, uint16(port.Port), remote.Offering(at.Number))
		in.Zone = locality.Zone(in.Metadata[keyZone])
	}
	d.rows = append(d.rows, row{weight: weight, instance: in})
}

// shareElsewhere is the weight of other sites beside the instances of this one; use is false if they
// have no part: this site's own go first.
func (d *draft) shareElsewhere(remote *sites.Remote, port sites.RemotePort, s *corev1.Service) (weight float64, use bool) {
	instances := 0.0
	for _, site := range remote.Offering(port.Number) {
		instances += float64(site.Instances)
	}
	here, healthy := 0.0, 0
	for _, r := range d.rows {
		if r.instance.Healthy && r.instance.Enabled {
			here, healthy = here+r.weight, healthy+1
		}
	}
	split := d.index.plans.Split(d.zone, resource.KeyOf(s), port.Name)
	away := 0.0
	if split != nil {
		for _, part := range split.Sites {
			away += float64(part)
		}
	}
	switch {
	case remote.External != nil, healthy == 0:
		return max(instances, 1), true
	case remote.Spread:
		return instances * here / float64(healthy), instances > 0
	case away > 0 && split.Here == 0:
		return max(here, 1), true
	case away > 0:
		return here * away / float64(split.Here), true
	}
	return 0, false
}
