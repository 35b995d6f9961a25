// Package openapi holds the generated OpenAPI definitions of every type that
// the API server serves: Proxima's own, those of the Kubernetes groups it
// speaks, and what they are made of. kubectl explain, diff and server-side
// apply work from them.
//
// Enter at GetOpenAPIDefinitions. Nothing here is written by hand but this
// file and generate.sh.
package openapi

//go:generate ./generate.sh
