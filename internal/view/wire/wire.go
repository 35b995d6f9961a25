// Package wire is the encoding of node views, which the control plane and agents share.
//
// It owns the names of the gRPC method, the resource types and the header, and converts
// between the model (packages proxy, sites and dns/records) and the messages of api/node/v1.
// Encoding is deterministic, as versions of resources are hashes of it. Decoding treats
// its input as untrusted: a resource with any invalid value is refused as a whole. It
// does no I/O and keeps no state.
package wire

import (
	"strings"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// The gRPC method of views, and its resource types.
const (
	GRPCService = "proxima.node.v1.Views"
	Method      = "Stream"

	ServiceType = "type.googleapis.com/proxima.node.v1.Service"
	SliceType   = "type.googleapis.com/proxima.node.v1.EndpointSlice"
	// Names of Services that are resolved but not proxied, and the endpoints of
	// headless ones.
	NameType      = "type.googleapis.com/proxima.node.v1.Name"
	NameSliceType = "type.googleapis.com/proxima.node.v1.NameSlice"
	// Suspect nodes; the name of the resource is the node's.
	SuspectType = "type.googleapis.com/proxima.node.v1.Suspect"
	// Nodes that are about to be removed; the name of the resource is the node's.
	LeavingType = "type.googleapis.com/proxima.node.v1.Leaving"
	// What other sites offer under the names of Services, and what this one offers.
	RemoteType = "type.googleapis.com/proxima.node.v1.Remote"
	OfferType  = "type.googleapis.com/proxima.node.v1.Offer"
	// Names below "mesh"; the name of the resource is mesh/HOSTNAME.mesh.
	VirtualIPType = "type.googleapis.com/proxima.node.v1.VirtualIP"
	// Meshes of the site, and its workloads where meshes have to be kept apart.
	MeshType     = "type.googleapis.com/proxima.node.v1.Mesh"
	WorkloadType = "type.googleapis.com/proxima.node.v1.Workload"
)

// What an agent that is a gateway between zones says of itself, as the cluster of its Node. One behind
// an Envoy says nothing: the Envoy does.
const (
	IngressCluster = "gateway/ingress"
	EgressCluster  = "gateway/egress"
)

// modeKey is the field of a Node's metadata with the mode of its agent.
const modeKey = "proxy-mode"

// Metadata is what an agent says of itself: the mode in which it carries traffic. Empty: nil.
func Metadata(mode string) *structpb.Struct {
	if mode == "" {
		return nil
	}
	return &structpb.Struct{Fields: map[string]*structpb.Value{modeKey: structpb.NewStringValue(mode)}}
}

// ModeOf an agent, as it says; empty: it carries no traffic of its node, or is of a version that does not say.
func ModeOf(n *core.Node) string { return n.GetMetadata().GetFields()[modeKey].GetStringValue() }

// ZoneHeader is the response header that names the zone whose view is sent.
const ZoneHeader = "proxima-zone"

// ResourceName is the name of the resource of a namespaced object. Neither part can
// contain a slash.
func ResourceName(namespace, name string) string { return namespace + "/" + name }

// SplitName reverses ResourceName. ok is false for names that it cannot have made.
func SplitName(s string) (namespace, name string, ok bool) {
	namespace, name, ok = strings.Cut(s, "/")
	return namespace, name, ok && namespace != "" && name != "" && !strings.Contains(name, "/")
}
