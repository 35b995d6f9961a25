// Package ipvs is the mode that lets the kernel's IPVS choose endpoints: a virtual service per list of endpoints, found by the
// mark of a connection's first packet, behind the nftables mode's table, which decides what a connection is for (package
// nftables, Balancer).
//
// Enter at [Check] and [New]; the result is a proxy.Mode. It owns the virtual services whose mark nftables.IsListMark
// names, the routes of protocol 113 in the table local, and the kernel parameters in [Settings]. It needs no
// interface kube-ipvs0. It never chooses endpoints' weights (package choose does).
//
// DESIGN.md has the layout, what holds at any time, and what to look at in a review.
package ipvs

// Name of the mode.
const Name = "ipvs"
