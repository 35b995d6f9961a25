// Package clients runs clients of Kubernetes, as their users install them, on a control plane
// of ours: "make interop-clients". The tests do nothing else: each client writes, watches,
// changes, finds and deletes objects, and fails if an answer is not the one that it expects.
package clients
