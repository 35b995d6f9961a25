// Package spiffe serves the SPIFFE Workload API to the workloads of a node, on a Unix
// socket: X.509 certificates with their keys, and the roots of trust domains.
//
// Enter at Listen and Server. A caller has no credential: the kernel identifies the
// connected process (SO_PEERCRED), and an Attestor its workload. The package never
// issues; it serves what an Identities has. JWT and WIT tokens are not
// served: their methods answer UNIMPLEMENTED, as the specification allows.
//
// Source: SPIFFE Workload Endpoint and Workload API
// (github.com/spiffe/spiffe/tree/main/standards).
package spiffe
