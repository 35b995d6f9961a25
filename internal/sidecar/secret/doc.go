// Package secret has the identity of a proxy's workload: it gets the certificate, keeps it and its
// private key, renews them in time, and writes them as the resources that Envoy asks for.
//
// Enter at Keeper, with a Source: Agent for the machine's agent, Server for a token. A key that
// is made here never leaves the machine. The package verifies nothing for Envoy; it says only
// which roots belong to which trust domain.
//
// Sources: SPIFFE Workload API, envoy/extensions/transport_sockets/tls/v3/secret.proto.
package secret
