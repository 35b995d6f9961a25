// Package view brings the Services and endpoints of a zone to the agents of its
// nodes.
//
// It owns both ends: Builder turns what the catalog holds into one view per
// topology zone, shared by all agents there; Feed, in the agent, follows the
// view, keeps it on disk, and hands it on as updates of the agent's model.
// Between them lie the messages of api/node/v1 and package delta. Services that no proxy carries (headless
// ones, external names) travel too, for DNS, and so do the nodes whose endpoints are
// used last. It chooses no endpoint and carries no
// traffic.
package view

import "strings"

// The gRPC method of views, and the types of resource that it serves.
const (
	Service = "proxima.node.v1.Views"
	Method  = "Stream"

	ServiceType = "type.googleapis.com/proxima.node.v1.Service"
	SliceType   = "type.googleapis.com/proxima.node.v1.EndpointSlice"
	// Names of Services that no proxy carries, and the endpoints of headless ones.
	NameType      = "type.googleapis.com/proxima.node.v1.Name"
	NameSliceType = "type.googleapis.com/proxima.node.v1.NameSlice"
	// Nodes that are suspect; the name of the resource is the node's.
	SuspectType = "type.googleapis.com/proxima.node.v1.Suspect"
)

// zoneHeader tells the agent which zone's view it gets.
const zoneHeader = "proxima-zone"

// resourceName is the name of an object on the wire. Neither part can contain a
// slash.
func resourceName(namespace, name string) string { return namespace + "/" + name }

// splitName reads what resourceName wrote.
func splitName(s string) (namespace, name string, ok bool) {
	namespace, name, ok = strings.Cut(s, "/")
	return namespace, name, ok && namespace != "" && name != "" && !strings.Contains(name, "/")
}
