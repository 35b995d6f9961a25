// Package load takes load reports of Envoy and of gRPC clients (xDS load reporting service,
// LRS) and makes reports of demand of them.
//
// It owns the service (Server, which a gRPC server registers), the sums of what a stream
// reported and nobody has taken yet (tally, pure), and which service port a cluster is of
// (Ports). It never estimates, and never decides who may report: a function that the caller
// gives names the proxy at the other end of a stream. Enter at New.
package load
