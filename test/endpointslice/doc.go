// Package endpointslice compares the EndpointSlice controller with the library
// that Kubernetes' own is made of, k8s.io/endpointslice.
//
// It is a module of its own, so that the product does not depend on what it is
// compared with. There is nothing in it but the test.
package endpointslice
