// Package pulsar serves the change feed to readers by the binary protocol of Apache Pulsar: its unmodified clients follow a
// control plane as consumers, readers and table views.
//
// It owns the protocol, which objects a topic has, and the dispatch of messages to the consumers of a subscription. Enter at
// New and Server.Serve. It writes nothing but cursors: there are no producers. DESIGN.md has the mapping.
package pulsar
