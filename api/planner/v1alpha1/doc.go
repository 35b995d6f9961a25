// Package v1alpha1 holds the API types of the zone planner, group
// planner.mesh.proxima.dev: what it has decided, for all readers of plans.
//
// +k8s:deepcopy-gen=package
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=dev.proxima.mesh.planner.v1alpha1
// +groupName=planner.mesh.proxima.dev
package v1alpha1
