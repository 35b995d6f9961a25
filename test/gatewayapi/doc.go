// Package gatewayapi runs the conformance suite of the Gateway API, in the profiles of meshes, against
// Proxima in a cluster with the real API server. It is a module of its own, so that the suite is no
// dependency of the product.
package gatewayapi
