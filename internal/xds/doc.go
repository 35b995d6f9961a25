// Package xds serves proxies and gRPC programs: aggregated discovery, in both variants of the
// protocol, and, by a handler that it is given, load reports.
//
// Enter at [New] and [Server.Register]. What proxies get is made by package build; who a client
// is, is decided by a function of the caller. The package listens on no port.
package xds
