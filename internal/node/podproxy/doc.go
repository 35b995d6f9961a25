// Package podproxy leads the connections of Pods on this node to their sidecars: it puts the rules of
// package redirect into the network namespace of each Pod that has one, and puts them back where they
// are missing.
//
// A Pod has no right to do that itself. Which namespace is a Pod's the agent finds by its addresses,
// among those that the container runtime has named in a folder of the node, whatever network plugin
// made them. Rules go with the Pod's namespace; nothing is removed here. Enter at New.
package podproxy
