// Package secret has the identity of a proxy's workload: it gets certificate and key, keeps them,
// and writes them as the resources that Envoy asks for.
//
// Enter at Keeper, with a Source: Agent, the machine's agent, which makes the key and renews the
// certificate. The package verifies nothing for Envoy; it says only which roots belong to which
// trust domain.
//
// Sources: SPIFFE Workload API, envoy/extensions/transport_sockets/tls/v3/secret.proto.
package secret
