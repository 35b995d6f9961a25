// Package mcs runs the conformance suite of the Multi-Cluster Services API,
// sigs.k8s.io/mcs-api/conformance, against a lab of two zones.
//
// It is a module of its own, so that the product does not depend on the suite. There is
// nothing in it but the test; README.md lists the cases, and how each of them is driven.
package mcs
