// Package crd makes a CustomResourceDefinition of each kind of Proxima and of the
// Multi-Cluster Services API, for clusters whose own API server stores them.
//
// Names, columns and selectable fields are those of the descriptors (package kind), types
// and descriptions those of the OpenAPI definitions, which are generated from the Go types.
// What schemas say beyond types, and the rules in CEL, are in limits*.go: they equal
// Validate as far as a schema can; Beyond lists the rest. Enter at All.
package crd
