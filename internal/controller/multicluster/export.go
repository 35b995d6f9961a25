package multicluster

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/servicetag"
)

// Reasons of the conditions Valid and Ready, as the Multi-Cluster Services API has them.
const (
	ReasonValid              = "Valid"
	ReasonNoService          = "NoService"
	ReasonInvalidServiceType = "InvalidServiceType"
	ReasonExported           = "Exported"
	ReasonPending            = "Pending"
)

// ExportInput is what there is of one name. ReconcileExport changes none of it.
type ExportInput struct {
	Key  resource.Key
	Site string
	// Export of this zone, its Service, their namespace, and the Mesh of that; nil: there is
	// none.
	Export    *mcs.ServiceExport
	Service   *corev1.Service
	Namespace *corev1.Namespace
	Mesh      *meshv1alpha1.Mesh
	// Slices of the Service.
	Slices []*discoveryv1.EndpointSlice
	// Dataplanes that are endpoints of them, by name.
	Dataplanes map[string]*meshv1alpha1.Dataplane
	// Configs returns the entries of the configuration of registries, by which applications of Dubbo
	// have their metadata; nil: there are none.
	Configs func(registry.ConfigKey) *meshv1alpha1.RegistryConfig
	// Others are the exports of the same name of other zones.
	Others []*mcs.ServiceExport
	// Demand of this zone by port, in connections per second, where plans of other zones need
	// it; nil: they do not. HoldDemand: it is not known, so that what was exported stays.
	Demand     map[int32]float64
	HoldDemand bool
	// Now is the time of changed conditions.
	Now metav1.Time
}

// ExportPlan is what has to be written. At most one field is set.
type ExportPlan struct {
	Create *mcs.ServiceExport
	// Delete the export: nobody asks for it any more.
	Delete bool
	// Status is the export with another status.
	Status *mcs.ServiceExport
}

// ReconcileExport compares what this zone exports under a name with its Service. In a mesh
// that exports all Services it creates their exports, and deletes only what it created.
func ReconcileExport(in ExportInput) ExportPlan {
	all := in.Mesh != nil && in.Mesh.Spec.Routing != nil && in.Mesh.Spec.Routing.Export == meshv1alpha1.ExportAll
	wanted := all && exportedByDefault(in.Key, in.Service) && in.Namespace != nil && in.Namespace.DeletionTimestamp.IsZero()
	switch {
	case in.Export == nil && wanted:
		return ExportPlan{Create: &mcs.ServiceExport{ObjectMeta: metav1.ObjectMeta{
			Namespace: in.Key.Namespace, Name: in.Key.Name, Labels: map[string]string{LabelManagedBy: managedBy},
		}}}
	case in.Export == nil || !in.Export.DeletionTimestamp.IsZero():
		return ExportPlan{}
	case owned(in.Export.Labels) && !wanted:
		return ExportPlan{Delete: true}
	}
	next := in.Export.DeepCopy()
	next.Status.Available = available(in)
	in.setConditions(next)
	if equality.Semantic.DeepEqual(next.Status, in.Export.Status) {
		return ExportPlan{}
	}
	return ExportPlan{Status: next}
}

// exportedByDefault: what belongs to the control plane itself, what is an import, and what is
// outside every mesh is not exported with a whole mesh.
func exportedByDefault(key resource.Key, s *corev1.Service) bool {
	if s == nil || !s.DeletionTimestamp.IsZero() || s.Spec.Type == corev1.ServiceTypeExternalName || IsDerived(s) ||
		s.Labels[meshv1alpha1.LabelExternalService] != "" {
		return false
	}
	switch key.Namespace {
	case metav1.NamespaceSystem, systemNamespace:
		return false
	}
	return !kind.IsAPI(key)
}

// systemNamespace has the control plane's own objects.
const systemNamespace = "proxima-system"

// available is what the zone offers; nil: nothing.
func available(in ExportInput) *mcs.AvailableService {
	s := in.Service
	if s == nil || s.Spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	a := &mcs.AvailableService{
		Mesh: meshOf(in.Namespace), Zone: in.Site, ExportTime: in.Export.CreationTimestamp, Type: mcs.ClusterSetIP,
		Ports: portsOf(s), SessionAffinity: s.Spec.SessionAffinity, SessionAffinityConfig: s.Spec.SessionAffinityConfig,
		Instances: Instances(in.Slices), ToZones: kind.ExportZones(in.Export),
		IPFamilies: s.Spec.IPFamilies, InternalTrafficPolicy: s.Spec.InternalTrafficPolicy, TrafficDistribution: s.Spec.TrafficDistribution,
	}
	a.Demand = in.demand(a.Ports)
	if host, ok := servicetag.HostOf(s); ok {
		a.ServiceTag = host
	}
	if s.Spec.ClusterIP == corev1.ClusterIPNone {
		a.Type, a.Endpoints = mcs.Headless, endpointsOf(in.Slices)
	}
	if s.Annotations[meshv1alpha1.AnnotationProxyProtocol] == "" {
		a.ServiceAccounts = in.proxied()
		a.Proxied = len(a.ServiceAccounts) > 0
	}
	a.Registry = in.registry()
	return a
}

// registry is what clients of registries in other zones are told of the endpoints that are ready.
func (in ExportInput) registry() *mcs.AvailableRegistry {
	if in.Configs == nil {
		return nil
	}
	var instances []*registry.Instance
	for _, s := range in.Slices {
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			if e.TargetRef == nil || e.Conditions.Ready != nil && !*e.Conditions.Ready {
				continue
			}
			if d := in.Dataplanes[e.TargetRef.Name]; registry.Registered(d) {
				if instance, err := registry.Parse(d); err == nil {
					instances = append(instances, instance)
				}
			}
		}
	}
	var before *mcs.AvailableRegistry
	if a := in.Export.Status.Available; a != nil {
		before = a.Registry
	}
	return registry.Offer(in.Service, instances, in.Configs, before)
}

// proxied are the service accounts of the endpoints that serve, if each of them has a proxy;
// nil: one has none.
func (in ExportInput) proxied() []string {
	var out []string
	for _, s := range in.Slices {
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			if e.Conditions.Ready != nil && !*e.Conditions.Ready && (e.Conditions.Serving == nil || !*e.Conditions.Serving) {
				continue
			}
			if e.TargetRef == nil {
				return nil
			}
			d := in.Dataplanes[e.TargetRef.Name]
			if !kind.DataplaneHasProxy(d) {
				return nil
			}
			out = append(out, cmp.Or(d.Spec.ServiceAccount, mesh.DefaultServiceAccount))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// demand of ports as it is exported. Estimates are never the same twice, and each change
// goes to all zones: so they are rounded, and what was exported stays while it is near.
func (in ExportInput) demand(ports []mcs.ServicePort) []mcs.PortDemand {
	var was []mcs.PortDemand
	if a := in.Export.Status.Available; a != nil {
		was = a.Demand
	}
	if in.HoldDemand {
		return was
	}
	if in.Demand == nil {
		return nil
	}
	var out []mcs.PortDemand
	for _, p := range ports {
		if protocolOf(p.Protocol) != corev1.ProtocolTCP {
			continue
		}
		d := mcs.PortDemand{Port: p.Port, ConnectionsPerSecond: roundedRate(in.Demand[p.Port])}
		i := slices.IndexFunc(was, func(w mcs.PortDemand) bool { return w.Port == p.Port })
		if i >= 0 && nearRate(was[i].ConnectionsPerSecond, in.Demand[p.Port]) {
			d = was[i]
		}
		out = append(out, d)
	}
	return out
}

// leastRate, in connections per second, is no demand to plan for: a connection a minute.
const leastRate = 1. / 60

// roundedRate has two digits.
func roundedRate(rate float64) float64 {
	if rate < leastRate {
		return 0
	}
	unit := math.Pow(10, math.Floor(math.Log10(rate))-1)
	if unit < 1 { // divided by a whole number, so that the result is the nearest to its decimals
		return math.Round(rate/unit) / math.Round(1/unit)
	}
	return math.Round(rate/unit) * math.Round(unit)
}

// nearRate: plans made for the one are good enough for the other.
func nearRate(was, is float64) bool {
	if was == 0 || is < leastRate {
		return was == 0 && is < leastRate
	}
	return math.Abs(is-was) < 0.2*was
}

// endpointsOf a headless Service that are ready, in a fixed order: those that other zones
// answer for by DNS. Loopback addresses are left out, and what exceeds
// mcs.MaxAvailableHosts.
func endpointsOf(all []*discoveryv1.EndpointSlice) []mcs.AvailableEndpoints {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b *discoveryv1.EndpointSlice) int { return strings.Compare(a.Name, b.Name) })
	var out []mcs.AvailableEndpoints
	left := mcs.MaxAvailableHosts
	for _, s := range all {
		group := mcs.AvailableEndpoints{AddressType: s.AddressType, Ports: portsOfSlice(s)}
		for _, e := range s.Endpoints {
			if left == 0 || s.AddressType == discoveryv1.AddressTypeFQDN || len(e.Addresses) == 0 ||
				e.Conditions.Ready != nil && !*e.Conditions.Ready || isLoopback(e.Addresses[0]) {
				continue
			}
			host := mcs.AvailableHost{Address: e.Addresses[0]}
			if e.Hostname != nil {
				host.Hostname = *e.Hostname
			}
			group.Hosts = append(group.Hosts, host)
			left--
		}
		if len(group.Hosts) == 0 {
			continue
		}
		slices.SortFunc(group.Hosts, func(a, b mcs.AvailableHost) int {
			return cmp.Or(strings.Compare(a.Address, b.Address), strings.Compare(a.Hostname, b.Hostname))
		})
		out = append(out, group)
	}
	return out
}

func portsOfSlice(s *discoveryv1.EndpointSlice) []mcs.ServicePort {
	var out []mcs.ServicePort
	for _, p := range s.Ports {
		if p.Port == nil {
			continue
		}
		port := mcs.ServicePort{Port: *p.Port, Protocol: corev1.ProtocolTCP, AppProtocol: p.AppProtocol}
		if p.Name != nil {
			port.Name = *p.Name
		}
		if p.Protocol != nil {
			port.Protocol = *p.Protocol
		}
		out = append(out, port)
	}
	return out
}

func meshOf(ns *corev1.Namespace) string {
	if ns == nil {
		return meshv1alpha1.DefaultMesh
	}
	return kind.MeshOf(ns)
}

// Instances counts the endpoints that are ready: those of the family that has more, as a
// workload has an address of each. Workloads at one address count each, as those of one machine are
// that have different ports. Loopback addresses do not count, as nothing reaches them from another
// machine.
func Instances(all []*discoveryv1.EndpointSlice) int32 {
	type instance struct{ address, workload string }
	families := map[discoveryv1.AddressType]map[instance]struct{}{}
	for _, s := range all {
		for _, e := range s.Endpoints {
			if len(e.Addresses) == 0 || e.Conditions.Ready != nil && !*e.Conditions.Ready || isLoopback(e.Addresses[0]) {
				continue
			}
			if families[s.AddressType] == nil {
				families[s.AddressType] = map[instance]struct{}{}
			}
			of := instance{address: e.Addresses[0]}
			if e.TargetRef != nil {
				of.workload = e.TargetRef.Name
			}
			families[s.AddressType][of] = struct{}{}
		}
	}
	most := 0
	for _, f := range families {
		most = max(most, len(f))
	}
	return int32(most)
}

func isLoopback(address string) bool {
	a, err := netip.ParseAddr(address)
	return err == nil && a.IsLoopback()
}

func (in ExportInput) setConditions(e *mcs.ServiceExport) {
	set := func(name string, is metav1.ConditionStatus, reason, message string) {
		meta.SetStatusCondition(&e.Status.Conditions, metav1.Condition{
			Type: name, Status: is, Reason: reason, Message: message, LastTransitionTime: in.Now, ObservedGeneration: e.Generation,
		})
	}
	switch s := in.Service; {
	case s == nil:
		set(mcs.ServiceExportValid, metav1.ConditionFalse, ReasonNoService, "there is no Service of this name in the namespace")
	case s.Spec.Type == corev1.ServiceTypeExternalName:
		set(mcs.ServiceExportValid, metav1.ConditionFalse, ReasonInvalidServiceType, "a Service of type ExternalName has nothing to export")
	default:
		set(mcs.ServiceExportValid, metav1.ConditionTrue, ReasonValid, "")
	}
	if e.Status.Available == nil {
		set(mcs.ServiceExportReady, metav1.ConditionFalse, ReasonPending, "nothing is exported: see the condition Valid")
		meta.RemoveStatusCondition(&e.Status.Conditions, mcs.ServiceExportConflict)
		return
	}
	set(mcs.ServiceExportReady, metav1.ConditionTrue, ReasonExported, "")
	// This zone's own offer counts as it will be.
	offers := OffersOf(in.Site, e.Status.Available.Mesh, append(slices.Clone(in.Others), e))
	if conflicts := Merge(offers).Conflicts; len(conflicts) > 0 {
		reason, message := describe(conflicts)
		set(mcs.ServiceExportConflict, metav1.ConditionTrue, reason, message)
		return
	}
	set(mcs.ServiceExportConflict, metav1.ConditionFalse, ReasonNoConflicts, "")
}
