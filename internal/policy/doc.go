// Package policy computes what policies and routes amount to: for a client and a backend, for a
// workload, for a port of it. It is pure: no I/O, no clock, no goroutine.
//
// Enter at Index. It is told of objects one by one, by Set and Delete, and what it answers depends
// on the objects that it holds, never on the order in which they came. Its answers are values of
// the caller's own, with the defaults filled in and the names of the policies that set each field.
//
// It knows nothing of Envoy: package xds/translate makes protos of its answers.
package policy
