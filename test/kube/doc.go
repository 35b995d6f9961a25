// Package kube tests Proxima on the real Kubernetes: etcd, kube-apiserver and
// kube-controller-manager, built from the versions that this module's go.mod names.
//
// It is a module of its own, so that the product does not depend on Kubernetes itself.
// Package cluster is the harness; the tests are here. "make interop-kube" runs them.
package kube
