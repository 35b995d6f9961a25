// Package cluster starts a Kubernetes control plane of real parts for a test: etcd,
// kube-apiserver with RBAC and Node authorisation, and kube-controller-manager.
//
// It owns their files, their certificate authority and their processes, all of which are
// gone with the test. There is no kubelet and no scheduler: pods are objects unless a test
// runs something for them. Enter at Start.
package cluster
