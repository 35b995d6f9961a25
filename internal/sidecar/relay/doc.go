// Package relay is a client of delta xDS towards control planes and a server of it towards a
// local Envoy: it passes resources on, keeps what Envoy has accepted on disk, and answers from
// there while no control plane does.
//
// Enter at New and Relay.Run. The protocol is Core, a state machine without I/O and clock, which
// transcripts test. Bodies are never decoded, except for the EDS service name of a Cluster. The
// package never judges a resource: Envoy does. See DESIGN.md.
package relay
