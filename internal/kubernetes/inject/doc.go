// Package inject adds a sidecar to Pods when they are created.
//
// It owns who gets one (Wanted), the containers, volumes and probes of a Pod with one (Patch), and
// the annotation that says afterwards what it was made of (Sidecar), from which control planes and
// agents know the workload's ports. It is pure: it neither reads a cluster nor answers requests.
// The sidecar has no capability and no privilege; the agent of the node leads the Pod's connections
// to it.
package inject
