package resourcetest

import (
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcsv1beta1 "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	plannerv1alpha1 "github.com/proxima-mesh/proxima/api/planner/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// Descriptors are the kinds that most tests need, without any rules. Tests that
// want the rules pass the real descriptors to New.
func Descriptors() []*resource.Descriptor {
	return []*resource.Descriptor{
		{
			GVK: corev1.SchemeGroupVersion.WithKind("Namespace"), Resource: "namespaces", Status: true,
			New:     func() resource.Object { return &corev1.Namespace{} },
			NewList: func() runtime.Object { return &corev1.NamespaceList{} },
		},
		{
			GVK: corev1.SchemeGroupVersion.WithKind("Service"), Resource: "services", Namespaced: true, Status: true,
			New:     func() resource.Object { return &corev1.Service{} },
			NewList: func() runtime.Object { return &corev1.ServiceList{} },
		},
		{
			GVK: corev1.SchemeGroupVersion.WithKind("Node"), Resource: "nodes", Status: true,
			New:     func() resource.Object { return &corev1.Node{} },
			NewList: func() runtime.Object { return &corev1.NodeList{} },
		},
		{
			GVK: corev1.SchemeGroupVersion.WithKind("Pod"), Resource: "pods", Namespaced: true, Status: true,
			New:     func() resource.Object { return &corev1.Pod{} },
			NewList: func() runtime.Object { return &corev1.PodList{} },
		},
		{
			GVK: corev1.SchemeGroupVersion.WithKind("Event"), Resource: "events", Namespaced: true,
			New:     func() resource.Object { return &corev1.Event{} },
			NewList: func() runtime.Object { return &corev1.EventList{} },
		},
		{
			GVK: corev1.SchemeGroupVersion.WithKind("Endpoints"), Resource: "endpoints", Namespaced: true,
			New:     func() resource.Object { return &corev1.Endpoints{} },
			NewList: func() runtime.Object { return &corev1.EndpointsList{} },
		},
		{
			GVK: discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), Resource: "endpointslices", Namespaced: true,
			New:     func() resource.Object { return &discoveryv1.EndpointSlice{} },
			NewList: func() runtime.Object { return &discoveryv1.EndpointSliceList{} },
		},
		{
			GVK: coordinationv1.SchemeGroupVersion.WithKind("Lease"), Resource: "leases", Namespaced: true,
			New:     func() resource.Object { return &coordinationv1.Lease{} },
			NewList: func() runtime.Object { return &coordinationv1.LeaseList{} },
		},
		{
			GVK: meshv1alpha1.SchemeGroupVersion.WithKind("Dataplane"), Resource: "dataplanes", Namespaced: true, Status: true,
			New:     func() resource.Object { return &meshv1alpha1.Dataplane{} },
			NewList: func() runtime.Object { return &meshv1alpha1.DataplaneList{} },
		},
		{
			GVK: meshv1alpha1.SchemeGroupVersion.WithKind("ZoneCosts"), Resource: "zonecosts",
			New:     func() resource.Object { return &meshv1alpha1.ZoneCosts{} },
			NewList: func() runtime.Object { return &meshv1alpha1.ZoneCostsList{} },
		},
		{
			GVK: meshv1alpha1.SchemeGroupVersion.WithKind("TopologyHeuristic"), Resource: "topologyheuristics",
			New:     func() resource.Object { return &meshv1alpha1.TopologyHeuristic{} },
			NewList: func() runtime.Object { return &meshv1alpha1.TopologyHeuristicList{} },
		},
		{
			GVK: meshv1alpha1.SchemeGroupVersion.WithKind("Mesh"), Resource: "meshes", Status: true,
			New:     func() resource.Object { return &meshv1alpha1.Mesh{} },
			NewList: func() runtime.Object { return &meshv1alpha1.MeshList{} },
		},
		{
			GVK: meshv1alpha1.SchemeGroupVersion.WithKind("ZoneIngress"), Resource: "zoneingresses",
			New:     func() resource.Object { return &meshv1alpha1.ZoneIngress{} },
			NewList: func() runtime.Object { return &meshv1alpha1.ZoneIngressList{} },
		},
		{
			GVK: mcsv1beta1.SchemeGroupVersion.WithKind("ServiceExport"), Resource: "serviceexports", Namespaced: true, Status: true,
			New:     func() resource.Object { return &mcsv1beta1.ServiceExport{} },
			NewList: func() runtime.Object { return &mcsv1beta1.ServiceExportList{} },
		},
		{
			GVK: plannerv1alpha1.SchemeGroupVersion.WithKind("TrafficPlan"), Resource: "trafficplans", Namespaced: true,
			New:     func() resource.Object { return &plannerv1alpha1.TrafficPlan{} },
			NewList: func() runtime.Object { return &plannerv1alpha1.TrafficPlanList{} },
		},
	}
}
