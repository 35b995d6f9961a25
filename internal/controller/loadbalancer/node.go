package loadbalancer

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// maxNodeAddresses of a Service: its status is written whenever one of these nodes comes or
// goes, so it is not to hold those of a thousand.
const maxNodeAddresses = 64

// ownPorts are those that a node needs for itself: a Service that had one of them on the
// node's address would take it away. The ports of Proxima are those of its defaults.
var ownPorts = map[int32]string{
	22: "SSH", 53: "DNS of the agent", 6443: "the API", 6444: "streams of agents", 10001: "the zone's ingress", 10002: "the zone's egress",
	10003: "the tunnel to other sites", 10249: "metrics of the agent", 10256: "health of the agent", 15010: "xDS",
}

// nodeIngress are the addresses of ready nodes for a Service; with policy Local, of those
// with endpoints.
func (c *Controller) nodeIngress(s *catalog.Snapshot, service *corev1.Service) ingress {
	if why := c.portTaken(s, service); why != "" {
		return ingress{reason: ReasonPortInUse, message: why}
	}
	var with map[string]bool // nil: all
	if service.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		with = nodesWithEndpoints(s, service)
	}
	out, nodes, left := ingress{reason: ReasonAssigned}, 0, 0
	for key, node := range s.Nodes.All() {
		if !balances(node) || with != nil && !with[key.Name] {
			continue
		}
		addresses := addressesOf(node, service.Spec.IPFamilies)
		switch {
		case len(addresses) == 0:
		case nodes == maxNodeAddresses:
			left++
		default:
			nodes++
			out.addresses = append(out.addresses, addresses...)
		}
	}
	switch {
	case nodes == 0 && with != nil:
		return ingress{reason: ReasonNoNode, message: "externalTrafficPolicy is Local, and no ready node with an address of the Service's IP families has a ready endpoint"}
	case nodes == 0:
		return ingress{reason: ReasonNoNode, message: "no node is ready and has an address of the Service's IP families"}
	}
	out.message = fmt.Sprintf("addresses of %d ready nodes", nodes)
	if left > 0 {
		out.message += fmt.Sprintf("; %d more are not listed, and answer as well", left)
	}
	return out
}

// balances says whether traffic from outside may be sent to a node: it is ready, is not
// being emptied, and does not carry the label by which nodes are left out (KEP-1143).
func balances(n *corev1.Node) bool {
	if _, excluded := n.Labels[corev1.LabelNodeExcludeBalancers]; excluded {
		return false
	}
	if slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Effect == corev1.TaintEffectNoExecute }) {
		return false
	}
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// addressesOf a node, one for each family: an external one if there is one.
func addressesOf(n *corev1.Node, families []corev1.IPFamily) []netip.Addr {
	var out []netip.Addr
	for _, family := range families {
		var found netip.Addr
		for _, typ := range []corev1.NodeAddressType{corev1.NodeExternalIP, corev1.NodeInternalIP} {
			for _, a := range n.Status.Addresses {
				addr, err := netip.ParseAddr(a.Address)
				if a.Type == typ && err == nil && !found.IsValid() && addr.Is4() == (family == corev1.IPv4Protocol) {
					found = addr
				}
			}
		}
		if found.IsValid() {
			out = append(out, found)
		}
	}
	return out
}

// nodesWithEndpoints are those with a ready endpoint of a Service.
func nodesWithEndpoints(s *catalog.Snapshot, service *corev1.Service) map[string]bool {
	out := map[string]bool{}
	for _, slice := range s.SlicesOf(resource.KeyOf(service)) {
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			if e.NodeName != nil && (e.Conditions.Ready == nil || *e.Conditions.Ready) {
				out[*e.NodeName] = true
			}
		}
	}
	return out
}

// portTaken says why ports of a Service cannot be served at addresses of nodes; empty: they
// can. Of two Services with one port the older one has it.
func (c *Controller) portTaken(s *catalog.Snapshot, service *corev1.Service) string {
	for _, p := range service.Spec.Ports {
		if of := cmp.Or(ownPorts[p.Port], c.Reserved[p.Port]); of != "" {
			return fmt.Sprintf("port %d of nodes is for %s: give the Service another port", p.Port, of)
		}
	}
	for key, other := range s.Services.All() {
		if key == resource.KeyOf(service) || !onNodes(other) || before(service, other) {
			continue
		}
		for _, p := range service.Spec.Ports {
			if slices.ContainsFunc(other.Spec.Ports, func(q corev1.ServicePort) bool { return portOf(q) == portOf(p) }) {
				return fmt.Sprintf("port %d/%s of nodes is that of service %s: give one of them another port, or addresses of a pool (class proxima.dev/pool)",
					p.Port, strings.ToLower(string(portOf(p).protocol)), key)
			}
		}
	}
	return ""
}

// onNodes reports whether a Service is to have addresses of nodes.
func onNodes(s *corev1.Service) bool { return classOf(s) == classNode && s.DeletionTimestamp == nil }

// before says whether a Service is older than another.
func before(a, b *corev1.Service) bool {
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return resource.KeyOf(a).String() < resource.KeyOf(b).String()
}

// portKey names a port that a Service takes of each node.
type portKey struct {
	number   int32
	protocol corev1.Protocol
}

func portOf(p corev1.ServicePort) portKey {
	return portKey{p.Port, cmp.Or(p.Protocol, corev1.ProtocolTCP)}
}

// notePorts that a Service takes of nodes; it may be nil.
func notePorts(ports map[portKey]bool, s *corev1.Service) {
	if !onNodes(s) {
		return
	}
	for _, p := range s.Spec.Ports {
		ports[portOf(p)] = true
	}
}

func hasOneOf(s *corev1.Service, ports map[portKey]bool) bool {
	return slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return ports[portOf(p)] })
}
