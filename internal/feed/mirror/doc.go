// Package mirror copies what the API of a Kubernetes cluster has into a store, so that a change feed can follow it: the cluster
// itself has no revision that all kinds share.
//
// It owns the keys and values of the copy, and its order: that of the cluster for each kind, and that of arrival between kinds. Enter at New
// and NewObjects. It never writes to the cluster, and never leaves out the last state of an object: changes that were made while nobody
// followed are one.
package mirror
