// Package topology compares internal/planner/auto with the library that
// Kubernetes' own EndpointSlice controller uses. It is a module of its own, so that
// the product does not link what it is compared with.
package topology
