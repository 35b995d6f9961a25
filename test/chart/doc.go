// Package chart compares what Helm renders of the chart with what "proxima install
// kubernetes" prints, and lints the chart by Helm's own rules.
//
// It is a module of its own, so that the product does not depend on Helm. There is nothing
// in it but the test.
package chart
