package catalog

import (
	"iter"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	gateway "sigs.k8s.io/gateway-api/apis/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	plannerv1alpha1 "github.com/proxima-mesh/proxima/api/planner/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/servicetag"
)

// Kind names a table of the catalog.
type Kind uint8

// The tables. Kinds is their number.
const (
	Namespaces Kind = iota
	Services
	Slices
	Nodes
	Pods
	Dataplanes
	Endpoints
	ZoneCosts
	Heuristics
	Plans
	Meshes
	ZoneIngresses
	ZoneEgresses
	ServiceExports
	ServiceImports
	VirtualIPs
	ExternalServices
	AddressPools
	ZoneShifts
	TrafficPermissions
	BackendPolicies
	WorkloadPolicies
	ProxyPatches
	HTTPRoutes
	GRPCRoutes
	TCPRoutes
	ReferenceGrants
	RegistryConfigs
	Kinds
)

// Snapshot is the state at one Position: immutable, safe for concurrent use, and
// valid for as long as it is held.
type Snapshot struct {
	Position   Position
	Namespaces Table[*corev1.Namespace]
	Services   Table[*corev1.Service]
	Slices     Table[*discoveryv1.EndpointSlice]
	Nodes      Table[*corev1.Node]
	Pods       Table[*corev1.Pod]
	Dataplanes Table[*meshv1alpha1.Dataplane]
	Endpoints  Table[*corev1.Endpoints]
	ZoneCosts  Table[*meshv1alpha1.ZoneCosts]
	Heuristics Table[*meshv1alpha1.TopologyHeuristic]
	Plans      Table[*plannerv1alpha1.TrafficPlan]
	Meshes     Table[*meshv1alpha1.Mesh]
	// ZoneIngresses and ServiceExports are those of this zone, and copies of those of
	// other zones.
	ZoneIngresses  Table[*meshv1alpha1.ZoneIngress]
	ZoneEgresses   Table[*meshv1alpha1.ZoneEgress]
	ServiceExports Table[*mcs.ServiceExport]
	ServiceImports Table[*mcs.ServiceImport]
	VirtualIPs     Table[*meshv1alpha1.VirtualIP]

	ExternalServices Table[*meshv1alpha1.ExternalService]
	AddressPools     Table[*meshv1alpha1.IPAddressPool]
	ZoneShifts       Table[*meshv1alpha1.ZoneShift]

	// Policies of traffic, and routes of the Gateway API.
	TrafficPermissions Table[*meshv1alpha1.TrafficPermission]
	BackendPolicies    Table[*meshv1alpha1.BackendPolicy]
	WorkloadPolicies   Table[*meshv1alpha1.WorkloadPolicy]
	ProxyPatches       Table[*meshv1alpha1.ProxyPatch]
	HTTPRoutes         Table[*gateway.HTTPRoute]
	GRPCRoutes         Table[*gateway.GRPCRoute]
	TCPRoutes          Table[*gateway.TCPRoute]
	ReferenceGrants    Table[*gateway.ReferenceGrant]

	// RegistryConfigs are entries of the configuration of registries.
	RegistryConfigs Table[*meshv1alpha1.RegistryConfig]
}

func newSnapshot(at Position) *Snapshot {
	s := &Snapshot{Position: at}
	for _, t := range tables {
		t.clear(s)
	}
	return s
}

// Positions of the indexes of each table, in the order of tables below.
const (
	serviceBySelector = 0
	sliceByService    = 0
	sliceByImport     = 1
	workloadByLabel   = 0
	workloadByNode    = 1
	workloadByTag     = 2
	planByService     = 0
	exportByService   = 0
)

// tables describes every table once; it is constant.
var tables = [Kinds]tableOps{
	Namespaces: &tableKind[*corev1.Namespace]{
		gk:    schema.GroupKind{Kind: "Namespace"},
		at:    func(s *Snapshot) *Table[*corev1.Namespace] { return &s.Namespaces },
		delta: func(d *Delta) *[]Change[*corev1.Namespace] { return &d.Namespaces },
	},
	Services: &tableKind[*corev1.Service]{
		gk:      schema.GroupKind{Kind: "Service"},
		at:      func(s *Snapshot) *Table[*corev1.Service] { return &s.Services },
		delta:   func(d *Delta) *[]Change[*corev1.Service] { return &d.Services },
		indexes: []index[*corev1.Service]{serviceBySelector: serviceSelector},
	},
	Slices: &tableKind[*discoveryv1.EndpointSlice]{
		gk:      schema.GroupKind{Group: discoveryv1.GroupName, Kind: "EndpointSlice"},
		at:      func(s *Snapshot) *Table[*discoveryv1.EndpointSlice] { return &s.Slices },
		delta:   func(d *Delta) *[]Change[*discoveryv1.EndpointSlice] { return &d.Slices },
		indexes: []index[*discoveryv1.EndpointSlice]{sliceByService: sliceService, sliceByImport: sliceImport},
	},
	Nodes: &tableKind[*corev1.Node]{
		gk:    schema.GroupKind{Kind: "Node"},
		at:    func(s *Snapshot) *Table[*corev1.Node] { return &s.Nodes },
		delta: func(d *Delta) *[]Change[*corev1.Node] { return &d.Nodes },
	},
	Pods: &tableKind[*corev1.Pod]{
		gk:    schema.GroupKind{Kind: "Pod"},
		at:    func(s *Snapshot) *Table[*corev1.Pod] { return &s.Pods },
		delta: func(d *Delta) *[]Change[*corev1.Pod] { return &d.Pods },
		indexes: []index[*corev1.Pod]{
			workloadByLabel: workloadLabels[*corev1.Pod],
			workloadByNode:  func(p *corev1.Pod) []string { return nodeValue(p.Spec.NodeName) },
			workloadByTag:   servicetag.OfPod,
		},
	},
	Dataplanes: &tableKind[*meshv1alpha1.Dataplane]{
		gk:    schema.GroupKind{Group: meshv1alpha1.GroupName, Kind: "Dataplane"},
		at:    func(s *Snapshot) *Table[*meshv1alpha1.Dataplane] { return &s.Dataplanes },
		delta: func(d *Delta) *[]Change[*meshv1alpha1.Dataplane] { return &d.Dataplanes },
		indexes: []index[*meshv1alpha1.Dataplane]{
			workloadByLabel: workloadLabels[*meshv1alpha1.Dataplane],
			workloadByNode:  func(p *meshv1alpha1.Dataplane) []string { return nodeValue(p.Spec.NodeName) },
			workloadByTag:   servicetag.OfDataplane,
		},
	},
	Endpoints: &tableKind[*corev1.Endpoints]{
		gk:    schema.GroupKind{Kind: "Endpoints"},
		at:    func(s *Snapshot) *Table[*corev1.Endpoints] { return &s.Endpoints },
		delta: func(d *Delta) *[]Change[*corev1.Endpoints] { return &d.Endpoints },
	},
	ZoneCosts: &tableKind[*meshv1alpha1.ZoneCosts]{
		gk:    schema.GroupKind{Group: meshv1alpha1.GroupName, Kind: "ZoneCosts"},
		at:    func(s *Snapshot) *Table[*meshv1alpha1.ZoneCosts] { return &s.ZoneCosts },
		delta: func(d *Delta) *[]Change[*meshv1alpha1.ZoneCosts] { return &d.ZoneCosts },
	},
	Heuristics: &tableKind[*meshv1alpha1.TopologyHeuristic]{
		gk:    schema.GroupKind{Group: meshv1alpha1.GroupName, Kind: "TopologyHeuristic"},
		at:    func(s *Snapshot) *Table[*meshv1alpha1.TopologyHeuristic] { return &s.Heuristics },
		delta: func(d *Delta) *[]Change[*meshv1alpha1.TopologyHeuristic] { return &d.Heuristics },
	},
	Plans: &tableKind[*plannerv1alpha1.TrafficPlan]{
		gk:    schema.GroupKind{Group: plannerv1alpha1.GroupName, Kind: "TrafficPlan"},
		at:    func(s *Snapshot) *Table[*plannerv1alpha1.TrafficPlan] { return &s.Plans },
		delta: func(d *Delta) *[]Change[*plannerv1alpha1.TrafficPlan] { return &d.Plans },
		indexes: []index[*plannerv1alpha1.TrafficPlan]{
			planByService: func(p *plannerv1alpha1.TrafficPlan) []string {
				return []string{p.Namespace + separator + p.Spec.Service}
			},
		},
	},
	Meshes: &tableKind[*meshv1alpha1.Mesh]{
		gk:    schema.GroupKind{Group: meshv1alpha1.GroupName, Kind: "Mesh"},
		at:    func(s *Snapshot) *Table[*meshv1alpha1.Mesh] { return &s.Meshes },
		delta: func(d *Delta) *[]Change[*meshv1alpha1.Mesh] { return &d.Meshes },
	},
	ZoneIngresses: &tableKind[*meshv1alpha1.ZoneIngress]{
		gk:    schema.GroupKind{Group: meshv1alpha1.GroupName, Kind: "ZoneIngress"},
		at:    func(s *Snapshot) *Table[*meshv1alpha1.ZoneIngress] { return &s.ZoneIngresses },
		delta: func(d *Delta) *[]Change[*meshv1alpha1.ZoneIngress] { return &d.ZoneIngresses },
	},
	ZoneEgresses: &tableKind[*meshv1alpha1.ZoneEgress]{
		gk:    schema.GroupKind{Group: meshv1alpha1.GroupName, Kind: "ZoneEgress"},
		at:    func(s *Snapshot) *Table[*meshv1alpha1.ZoneEgress] { return &s.ZoneEgresses },
		delta: func(d *Delta) *[]Change[*meshv1alpha1.ZoneEgress] { return &d.ZoneEgresses },
	},
	ServiceExports: &tableKind[*mcs.ServiceExport]{
		gk:    schema.GroupKind{Group: mcs.GroupName, Kind: "ServiceExport"},
		at:    func(s *Snapshot) *Table[*mcs.ServiceExport] { return &s.ServiceExports },
		delta: func(d *Delta) *[]Change[*mcs.ServiceExport] { return &d.ServiceExports },
		indexes: []index[*mcs.ServiceExport]{exportByService: func(e *mcs.ServiceExport) []string {
			service := ExportedService(e)
			return []string{service.Namespace + separator + service.Name}
		}},
	},
	ServiceImports: &tableKind[*mcs.ServiceImport]{
		gk:    schema.GroupKind{Group: mcs.GroupName, Kind: "ServiceImport"},
		at:    func(s *Snapshot) *Table[*mcs.ServiceImport] { return &s.ServiceImports },
		delta: func(d *Delta) *[]Change[*mcs.ServiceImport] { return &d.ServiceImports },
	},
	VirtualIPs: &tableKind[*meshv1alpha1.VirtualIP]{
		gk:    schema.GroupKind{Group: meshv1alpha1.GroupName, Kind: "VirtualIP"},
		at:    func(s *Snapshot) *Table[*meshv1alpha1.VirtualIP] { return &s.VirtualIPs },
		delta: func(d *Delta) *[]Change[*meshv1alpha1.VirtualIP] { return &d.VirtualIPs },
	},
	ExternalServices: &tableKind[*meshv1alpha1.ExternalService]{
		gk:    schema.GroupKind{Group: meshv1alpha1.GroupName, Kind: "ExternalService"},
		at:    func(s *Snapshot) *Table[*meshv1alpha1.ExternalService] { return &s.ExternalServices },
		delta: func(d *Delta) *[]Change[*meshv1alpha1.ExternalService] { return &d.ExternalServices },
	},
	AddressPools: &tableKind[*meshv1alpha1.IPAddressPool]{
		gk:    schema.GroupKind{Group: meshv1alpha1.GroupName, Kind: "IPAddressPool"},
		at:    func(s *Snapshot) *Table[*meshv1alpha1.IPAddressPool] { return &s.AddressPools },
		delta: func(d *Delta) *[]Change[*meshv1alpha1.IPAddressPool] { return &d.AddressPools },
	},
	ZoneShifts: &tableKind[*meshv1alpha1.ZoneShift]{
		gk:    schema.GroupKind{Group: meshv1alpha1.GroupName, Kind: "ZoneShift"},
		at:    func(s *Snapshot) *Table[*meshv1alpha1.ZoneShift] { return &s.ZoneShifts },
		delta: func(d *Delta) *[]Change[*meshv1alpha1.ZoneShift] { return &d.ZoneShifts },
	},
	TrafficPermissions: &tableKind[*meshv1alpha1.TrafficPermission]{
		gk:    schema.GroupKind{Group: meshv1alpha1.GroupName, Kind: "TrafficPermission"},
		at:    func(s *Snapshot) *Table[*meshv1alpha1.TrafficPermission] { return &s.TrafficPermissions },
		delta: func(d *Delta) *[]Change[*meshv1alpha1.TrafficPermission] { return &d.TrafficPermissions },
	},
	BackendPolicies: &tableKind[*meshv1alpha1.BackendPolicy]{
		gk:    schema.GroupKind{Group: meshv1alpha1.GroupName, Kind: "BackendPolicy"},
		at:    func(s *Snapshot) *Table[*meshv1alpha1.BackendPolicy] { return &s.BackendPolicies },
		delta: func(d *Delta) *[]Change[*meshv1alpha1.BackendPolicy] { return &d.BackendPolicies },
	},
	WorkloadPolicies: &tableKind[*meshv1alpha1.WorkloadPolicy]{
		gk:    schema.GroupKind{Group: meshv1alpha1.GroupName, Kind: "WorkloadPolicy"},
		at:    func(s *Snapshot) *Table[*meshv1alpha1.WorkloadPolicy] { return &s.WorkloadPolicies },
		delta: func(d *Delta) *[]Change[*meshv1alpha1.WorkloadPolicy] { return &d.WorkloadPolicies },
	},
	ProxyPatches: &tableKind[*meshv1alpha1.ProxyPatch]{
		gk:    schema.GroupKind{Group: meshv1alpha1.GroupName, Kind: "ProxyPatch"},
		at:    func(s *Snapshot) *Table[*meshv1alpha1.ProxyPatch] { return &s.ProxyPatches },
		delta: func(d *Delta) *[]Change[*meshv1alpha1.ProxyPatch] { return &d.ProxyPatches },
	},
	HTTPRoutes: &tableKind[*gateway.HTTPRoute]{
		gk:    schema.GroupKind{Group: gateway.GroupName, Kind: "HTTPRoute"},
		at:    func(s *Snapshot) *Table[*gateway.HTTPRoute] { return &s.HTTPRoutes },
		delta: func(d *Delta) *[]Change[*gateway.HTTPRoute] { return &d.HTTPRoutes },
	},
	GRPCRoutes: &tableKind[*gateway.GRPCRoute]{
		gk:    schema.GroupKind{Group: gateway.GroupName, Kind: "GRPCRoute"},
		at:    func(s *Snapshot) *Table[*gateway.GRPCRoute] { return &s.GRPCRoutes },
		delta: func(d *Delta) *[]Change[*gateway.GRPCRoute] { return &d.GRPCRoutes },
	},
	TCPRoutes: &tableKind[*gateway.TCPRoute]{
		gk:    schema.GroupKind{Group: gateway.GroupName, Kind: "TCPRoute"},
		at:    func(s *Snapshot) *Table[*gateway.TCPRoute] { return &s.TCPRoutes },
		delta: func(d *Delta) *[]Change[*gateway.TCPRoute] { return &d.TCPRoutes },
	},
	ReferenceGrants: &tableKind[*gateway.ReferenceGrant]{
		gk:    schema.GroupKind{Group: gateway.GroupName, Kind: "ReferenceGrant"},
		at:    func(s *Snapshot) *Table[*gateway.ReferenceGrant] { return &s.ReferenceGrants },
		delta: func(d *Delta) *[]Change[*gateway.ReferenceGrant] { return &d.ReferenceGrants },
	},
	RegistryConfigs: &tableKind[*meshv1alpha1.RegistryConfig]{
		gk:    schema.GroupKind{Group: meshv1alpha1.GroupName, Kind: "RegistryConfig"},
		at:    func(s *Snapshot) *Table[*meshv1alpha1.RegistryConfig] { return &s.RegistryConfigs },
		delta: func(d *Delta) *[]Change[*meshv1alpha1.RegistryConfig] { return &d.RegistryConfigs },
	},
}

// ExportedService is the Service that an export offers. A copy of another zone's export
// has another name and namespace; its labels name the Service.
func ExportedService(e *mcs.ServiceExport) Key {
	if e.Labels[meshv1alpha1.LabelZone] == "" {
		return Key{Namespace: e.Namespace, Name: e.Name}
	}
	key := Key{Namespace: e.Labels[meshv1alpha1.LabelSourceNamespace], Name: e.Labels[meshv1alpha1.LabelDisplayName]}
	if key.Namespace == "" {
		key.Namespace = e.Namespace
	}
	return key
}

// ExportsOf iterates the exports of a service, this zone's and those of other zones.
func (s *Snapshot) ExportsOf(service Key) iter.Seq2[Key, *mcs.ServiceExport] {
	return walk(s.ServiceExports.under(exportByService, service.Namespace+separator+service.Name))
}

// SlicesOf iterates the EndpointSlices whose label names the service, whoever
// manages them.
func (s *Snapshot) SlicesOf(service Key) iter.Seq2[Key, *discoveryv1.EndpointSlice] {
	return walk(s.Slices.under(sliceByService, service.Namespace+separator+service.Name))
}

// SlicesOfImport iterates the EndpointSlices whose label names the ServiceImport, whoever
// manages them.
func (s *Snapshot) SlicesOfImport(imported Key) iter.Seq2[Key, *discoveryv1.EndpointSlice] {
	return walk(s.Slices.under(sliceByImport, imported.Namespace+separator+imported.Name))
}

// PlansOf iterates the parts of a service's plan by name, so the first part comes
// first; there are none if the service is not planned.
func (s *Snapshot) PlansOf(service Key) iter.Seq2[Key, *plannerv1alpha1.TrafficPlan] {
	return walk(s.Plans.under(planByService, service.Namespace+separator+service.Name))
}

// PodsMatching iterates the pods of a namespace that carry all labels of the
// selector. An empty selector matches none, as in a Service. The cost is that of
// the rarest label of the selector.
func (s *Snapshot) PodsMatching(namespace string, selector map[string]string) iter.Seq2[Key, *corev1.Pod] {
	return matching(s.Pods, namespace, selector)
}

// DataplanesMatching is the same for Dataplanes.
func (s *Snapshot) DataplanesMatching(namespace string, selector map[string]string) iter.Seq2[Key, *meshv1alpha1.Dataplane] {
	return matching(s.Dataplanes, namespace, selector)
}

// PodsOn iterates the pods that name a node.
func (s *Snapshot) PodsOn(node string) iter.Seq2[Key, *corev1.Pod] {
	return walk(s.Pods.under(workloadByNode, node))
}

// DataplanesOn iterates the Dataplanes that name a node.
func (s *Snapshot) DataplanesOn(node string) iter.Seq2[Key, *meshv1alpha1.Dataplane] {
	return walk(s.Dataplanes.under(workloadByNode, node))
}

// PodsTagged iterates the pods, of all meshes, that are part of the service of a tag, which is
// given as its hostname.
func (s *Snapshot) PodsTagged(host string) iter.Seq2[Key, *corev1.Pod] {
	return walk(s.Pods.under(workloadByTag, host))
}

// DataplanesTagged is the same for Dataplanes.
func (s *Snapshot) DataplanesTagged(host string) iter.Seq2[Key, *meshv1alpha1.Dataplane] {
	return walk(s.Dataplanes.under(workloadByTag, host))
}

// ServicesSelecting iterates the services of a namespace whose selector matches
// a workload's labels, in no particular order.
func (s *Snapshot) ServicesSelecting(namespace string, labels map[string]string) iter.Seq2[Key, *corev1.Service] {
	return func(yield func(Key, *corev1.Service) bool) {
		for k, v := range labels {
			for key, service := range walk(s.Services.under(serviceBySelector, labelValue(namespace, k, v))) {
				if matches(service.Spec.Selector, labels) && !yield(key, service) {
					return
				}
			}
		}
	}
}

func matching[T Row](t Table[T], namespace string, selector map[string]string) iter.Seq2[Key, T] {
	return func(yield func(Key, T) bool) {
		var rarest tree[T]
		found := false
		for k, v := range selector {
			if !filed(k) {
				continue
			}
			rows := t.under(workloadByLabel, labelValue(namespace, k, v))
			if rows.len == 0 {
				return
			}
			if !found || rows.len < rarest.len {
				rarest, found = rows, true
			}
		}
		if len(selector) == 0 {
			return
		}
		candidates := t.Namespace(namespace)
		if found {
			candidates = walk(rarest)
		}
		for key, row := range candidates {
			if matches(selector, row.GetLabels()) && !yield(key, row) {
				return
			}
		}
	}
}

func matches(selector, labels map[string]string) bool {
	for k, v := range selector {
		if have, ok := labels[k]; !ok || have != v {
			return false
		}
	}
	return true
}

func labelValue(namespace, key, value string) string {
	return namespace + separator + key + separator + value
}

func workloadLabels[T Row](obj T) []string {
	values := make([]string, 0, len(obj.GetLabels()))
	for k, v := range obj.GetLabels() {
		if filed(k) {
			values = append(values, labelValue(obj.GetNamespace(), k, v))
		}
	}
	return values
}

// Labels of what a client of a registry says of its instance (registry.LabelProtocol and LabelMetadata).
const (
	labelRegistryProtocol = "registry.proxima.dev/protocol"
	labelRegistryMetadata = "metadata.registry.proxima.dev/"
)

// filed reports whether workloads are found by a label. Each label that is filed takes some 400 bytes for
// each object, and time for each change. Those that registries set are up to 17, have the same values for
// many, and come in selectors beside a label that distinguishes services; a selector of them alone walks the
// namespace.
func filed(label string) bool {
	return label != labelRegistryProtocol && !strings.HasPrefix(label, labelRegistryMetadata)
}

// serviceSelector files a service under one term of its selector: a workload
// that matches has them all, so one finds it. The term with the longest value is
// taken, as the likeliest to distinguish services ("web-frontend" rather than
// "prod").
func serviceSelector(service *corev1.Service) []string {
	var key, value string
	found := false
	for k, v := range service.Spec.Selector {
		if !found || len(v) > len(value) || len(v) == len(value) && k < key {
			key, value, found = k, v, true
		}
	}
	if !found {
		return nil
	}
	return []string{labelValue(service.Namespace, key, value)}
}

func sliceService(slice *discoveryv1.EndpointSlice) []string {
	name, ok := slice.Labels[discoveryv1.LabelServiceName]
	if !ok {
		return nil
	}
	return []string{slice.Namespace + separator + name}
}

func sliceImport(slice *discoveryv1.EndpointSlice) []string {
	name, ok := slice.Labels[mcs.LabelServiceName]
	if !ok {
		return nil
	}
	return []string{slice.Namespace + separator + name}
}

func nodeValue(node string) []string {
	if node == "" {
		return nil
	}
	return []string{node}
}
