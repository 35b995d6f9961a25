// Package registries runs unmodified clients of registry protocols against the servers of Proxima. It is a
// module of its own, so that the product does not link them.
package registries
