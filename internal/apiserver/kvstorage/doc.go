// Package kvstorage makes the storage of a Kubernetes API server out of a
// [store.Store].
//
// It owns the mapping of API objects to keys and of store revisions to resource
// versions, optimistic concurrency, pages and continue tokens, watches, and
// companion writes: further keys that are committed in the same transaction as
// an object. Enter at [NewRESTOptions] to build generic registries, at [New] for
// one bare resource, and at [WithCompanions] for companion writes.
//
// It never validates or defaults objects, never retries a companion, and never
// writes a key that the caller did not ask for, except the one of [Prime].
// Revisions are resource versions, unchanged, so positions in the store, in the
// API and in logs are the same number.
//
// DESIGN.md in this folder holds the invariants and notes for review.
package kvstorage
