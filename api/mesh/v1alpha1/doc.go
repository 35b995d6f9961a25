// Package v1alpha1 holds Proxima's own API types, group mesh.proxima.dev.
//
// +k8s:deepcopy-gen=package
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=dev.proxima.mesh.v1alpha1
// +groupName=mesh.proxima.dev
package v1alpha1
