// Package sidecar is the supervisor of a workload's proxy as a program: it wires the certificate,
// the relay, Envoy, and what is answered about them.
//
// Enter at Main, or at Supervisor.Run. It must stay small, in the program and in memory: what it
// may import is in a test. See DESIGN.md.
package sidecar
