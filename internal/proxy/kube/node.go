package kube

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// taintToBeDeleted is set by the cluster autoscaler on a node that it will remove (KEP-3836).
const taintToBeDeleted = "ToBeDeletedByClusterAutoscaler"

// Leaving reports whether a node is about to be removed, as kube-proxy does: load balancers are to
// send it no more connections (k8s.io/kubernetes, pkg/proxy/healthcheck/proxy_health.go).
func Leaving(n *corev1.Node) bool {
	return n.DeletionTimestamp != nil || slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == taintToBeDeleted
	})
}
