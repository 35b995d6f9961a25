// Package spiffe serves the SPIFFE Workload API to the workloads of a node, on a Unix
// socket: X.509 certificates with their keys, and the roots of trust domains.
//
// Enter at Listen and Server. A caller shows no credential: the kernel says which
// process has connected (SO_PEERCRED), and an Attestor which workload that is. The
// package never issues; it hands out what an Identities has. JWT and WIT tokens are not
// served: their methods answer UNIMPLEMENTED, as the specification allows.
//
// Source: SPIFFE Workload Endpoint and Workload API
// (github.com/spiffe/spiffe/tree/main/standards).
package spiffe
