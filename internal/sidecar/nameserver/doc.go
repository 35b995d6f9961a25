// Package nameserver answers the DNS questions of a workload: names of its mesh and of the cluster from
// a copy that a control plane keeps up to date, all others by the resolvers of the machine. It needs no
// agent and, once it has the names, no control plane.
//
// Enter at Table, which has the names, and Server. It keeps no answers of others: what it forwards is
// passed on as it is, but for the ID of the message.
//
// Sources: RFC 1035, RFC 2308, RFC 6891, RFC 7766, the Kubernetes DNS-based service discovery.
package nameserver
