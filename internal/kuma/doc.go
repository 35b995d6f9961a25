// Package kuma translates policies of Kuma into ours.
//
// It knows both generations: those with sources and destinations (Timeout, TrafficPermission) and
// those with targetRef (MeshTimeout, MeshTrafficPermission), each as objects of Kubernetes or
// as Kuma's own resources. What an object says and no policy of ours can say is named, field by
// field, never dropped in silence: every value that a translation does not read is reported. Enter
// at Convert. It is pure, and applies nothing.
package kuma
