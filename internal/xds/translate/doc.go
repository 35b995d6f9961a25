// Package translate makes Envoy's messages of what policies and routes amount to. It is pure: a
// function of package policy's answers, without state, time or I/O.
//
// Enter at RouteConfiguration, Cluster and TCPProxy for outbound traffic, at Permission and Inbound
// for inbound traffic, and at Patch for ProxyPatches. What it makes passes ValidateAll of the
// generated code, but for what a ProxyPatch does: Patch leaves those out that do not.
package translate
