// Package cluster lets several instances of a control plane share one store: it elects the
// leader among them, fences the writes of a leader whose term has ended, and keeps the list
// of the instances.
//
// Enter at NewElection, Fenced and NewMembers. An election takes place in the store alone, by
// compare-and-swap, and compares no clocks of different machines. The package never does the
// work of a leader, and never serves a request. DESIGN.md has the protocol.
package cluster
