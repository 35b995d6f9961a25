// Package credential gives nodes the certificates and keys, out of Secrets, by which they
// begin the TLS of services outside every mesh (spec.tls of an ExternalService).
//
// It owns both ends of that: Source reads and checks what Secrets hold, Server sends each
// node what its services need and nothing else, and Keeper is the agent's end, with a copy
// on disk that is protected as the keys of workloads are. Views of nodes never have these
// values. Enter at NewSource, NewServer and NewKeeper. The package connects to no service.
package credential
