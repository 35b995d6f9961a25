// Package pulsar runs the unmodified client of Apache Pulsar for Go against the server of the change feed. It is a module of
// its own, as it needs more than the product does.
//
// With the build tag "interop", which "make interop-pulsar" sets: the same script at the real Apache Pulsar (package standalone) and at
// that server, clients of Java and Python on a control plane, the feed published to Pulsar while that, the network and we fail, and the
// feed offloaded to an S3 server.
package pulsar
