// Command accounting measures what it costs to read bytes and open connections from the
// kernel's connection tracking table, compared with a netlink library, and what counting
// costs each packet, in network namespaces of its own that have no way out. It needs root,
// Linux and iptables-legacy.
//
//	go run ./bench/accounting [-smoke]
//
// The two read the same table in turns; a figure is the median over the rounds. The share
// of a core is the processor time of a reading, in the kernel and outside, divided by the
// time between two. The command exits with 1 if something did not work, and not because a
// goal was missed: that depends on the machine.
package main
