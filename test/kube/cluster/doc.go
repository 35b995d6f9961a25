// Package cluster starts a Kubernetes control plane of real parts for a test: etcd,
// kube-apiserver with RBAC and Node authorisation, and kube-controller-manager.
//
// It owns their files, their certificate authority and their processes, all of which are
// gone with the test. Nodes are network namespaces with a stand-in for kubelet, and may have
// the real kube-proxy; there is no scheduler, so tests bind their pods. Enter at Start and at
// AddNode.
package cluster
