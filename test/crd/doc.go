// Package crd checks Proxima's CustomResourceDefinitions by the code that an API server of
// Kubernetes checks them with, and what they accept against what package kind accepts.
//
// It is a module of its own, so that the product does not depend on that server. There is
// nothing in it but the tests. Definitions that an API server really has are the subject of
// module test/kube.
package crd
