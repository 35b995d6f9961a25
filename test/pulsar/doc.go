// Package pulsar runs the unmodified client of Apache Pulsar for Go against the server of the change feed. It is a module of
// its own, so that the product does not link it.
package pulsar
