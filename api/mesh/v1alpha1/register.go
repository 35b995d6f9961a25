package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupName is the API group of Proxima's own kinds.
const GroupName = "mesh.proxima.dev"

// SchemeGroupVersion is the group and version of the types in this package. It
// is a value to read; nothing changes it.
var SchemeGroupVersion = schema.GroupVersion{Group: GroupName, Version: "v1alpha1"}

// Kind qualifies a kind of this package with its group.
func Kind(kind string) schema.GroupKind {
	return SchemeGroupVersion.WithKind(kind).GroupKind()
}

// Resource qualifies a plural resource name of this package with its group.
func Resource(resource string) schema.GroupResource {
	return SchemeGroupVersion.WithResource(resource).GroupResource()
}

// AddToScheme makes the types of this package known to a scheme. It panics, as
// runtime.Scheme does, if the scheme already holds other types of these names.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(SchemeGroupVersion, &Dataplane{}, &DataplaneList{})
	scheme.AddKnownTypes(SchemeGroupVersion, &Mesh{}, &MeshList{},
		&ExternalService{}, &ExternalServiceList{}, &GlobalSecret{}, &GlobalSecretList{})
	scheme.AddKnownTypes(SchemeGroupVersion, &ZoneCosts{}, &ZoneCostsList{})
	scheme.AddKnownTypes(SchemeGroupVersion, &VirtualIP{}, &VirtualIPList{}, &IPAddressPool{}, &IPAddressPoolList{},
		&ZoneShift{}, &ZoneShiftList{})
	scheme.AddKnownTypes(SchemeGroupVersion, &TopologyHeuristic{}, &TopologyHeuristicList{})
	scheme.AddKnownTypes(SchemeGroupVersion, &Zone{}, &ZoneList{}, &ZoneInsight{}, &ZoneInsightList{},
		&ZoneIngress{}, &ZoneIngressList{}, &ZoneIngressInsight{}, &ZoneIngressInsightList{},
		&ZoneEgress{}, &ZoneEgressList{}, &ZoneEgressInsight{}, &ZoneEgressInsightList{},
		&DataplaneInsight{}, &DataplaneInsightList{})
	scheme.AddKnownTypes(SchemeGroupVersion, &TrafficPermission{}, &TrafficPermissionList{}, &BackendPolicy{}, &BackendPolicyList{},
		&WorkloadPolicy{}, &WorkloadPolicyList{}, &ProxyPatch{}, &ProxyPatchList{})
	scheme.AddKnownTypes(SchemeGroupVersion, &RegistryConfig{}, &RegistryConfigList{})
	metav1.AddToGroupVersion(scheme, SchemeGroupVersion)
	return nil
}
