// Package extension is what the API server of a Kubernetes cluster calls: the validating
// admission webhook of our kinds, the one that adds sidecars to Pods, and our paths as an aggregated API.
//
// It owns the answers to admission reviews (Admission, Injection), the identity and the permission of those
// for whom the API server asks (Aggregated), and the certificate authority that the API server
// trusts for both: what follows from its record (Authorities, pure), its rotation (Keeper, for
// the leader) and the certificate of each replica (Certificates). It decides nothing about
// objects: that is their descriptors' part. See DESIGN.md for the rotation.
package extension
