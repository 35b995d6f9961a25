// Package v1beta1 holds the types of the Multi-Cluster Services API, group
// multicluster.x-k8s.io, as far as Proxima serves them (KEP-1645). The fields of
// upstream's types have upstream's names and meaning.
//
// +k8s:deepcopy-gen=package
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=io.x-k8s.multicluster.v1beta1
// +groupName=multicluster.x-k8s.io
package v1beta1
