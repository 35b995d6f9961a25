// Package supervise runs an Envoy: it starts it, starts it again after a crash,
// replaces it by another binary without losing a connection, adopts the one that an earlier
// supervisor left, and drains it. It answers probes and collects metrics for what is around it.
//
// Enter at Envoy.Run, Admin, Probes and Metrics. The package never changes what Envoy serves:
// that comes by the relay.
package supervise
