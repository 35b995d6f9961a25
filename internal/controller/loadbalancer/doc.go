// Package loadbalancer gives Services of type LoadBalancer their addresses from outside.
//
// It owns status.loadBalancer of Services of the classes proxima.dev/node (addresses of
// ready nodes) and proxima.dev/pool (addresses of IPAddressPools), and the condition that
// says why a Service has none. Enter at New. Services of other classes are left to their
// providers; one without a class is told that nobody provides for it.
//
// The addresses of a pool that a Service has are in its status, and nowhere else: the leader
// reads them when its term begins, and it alone allocates. Agents serve every address in
// the status (internal/proxy), on each node. Addresses are not announced (ARP, BGP): routes to
// those of a pool are made by others.
package loadbalancer
