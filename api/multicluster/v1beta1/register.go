package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupName is the API group of the Multi-Cluster Services API.
const GroupName = "multicluster.x-k8s.io"

// Labels of the Multi-Cluster Services API.
const (
	// LabelServiceName on an EndpointSlice names the ServiceImport that it is of.
	LabelServiceName = "multicluster.kubernetes.io/service-name"
	// LabelSourceCluster on an EndpointSlice names the cluster that its endpoints are in.
	LabelSourceCluster = "multicluster.kubernetes.io/source-cluster"
)

// SchemeGroupVersion is the group and version of the types in this package. It
// is a value to read; nothing changes it.
var SchemeGroupVersion = schema.GroupVersion{Group: GroupName, Version: "v1beta1"}

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
	scheme.AddKnownTypes(SchemeGroupVersion, &ServiceExport{}, &ServiceExportList{}, &ServiceImport{}, &ServiceImportList{})
	metav1.AddToGroupVersion(scheme, SchemeGroupVersion)
	return nil
}
