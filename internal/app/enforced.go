package app

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	trafficpolicy "github.com/proxima-mesh/proxima/internal/policy"
	"github.com/proxima-mesh/proxima/internal/proxy/modes"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// nodeModes are the nodes by the mode of their agents. The zero value is ready.
type nodeModes struct {
	mu       sync.Mutex
	revision uint64
	byMode   map[string][]string
}

// of the nodes in the tables. The result is not to be changed.
func (n *nodeModes) of(tables *catalog.Snapshot) map[string][]string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.byMode != nil && n.revision == tables.Nodes.Revision() {
		return n.byMode
	}
	n.revision, n.byMode = tables.Nodes.Revision(), map[string][]string{}
	for key, node := range tables.Nodes.All() {
		if mode := modeOf(node); mode != "" {
			n.byMode[mode] = append(n.byMode[mode], key.Name)
		}
	}
	return n.byMode
}

const clientsWithout = "clients without a proxy do not apply "

// notOnNodes says what of a policy of backends, or of a route, is not applied for clients without a proxy,
// where their nodes would have to do it.
func notOnNodes(nodes map[string][]string, obj resource.Object, source trafficpolicy.Source, targets []trafficpolicy.Ref) []string {
	if len(nodes) == 0 {
		return []string{clientsWithout + "it"}
	}
	switch o := obj.(type) {
	case *gatewayv1.TCPRoute:
		return routeNotOnNodes(nodes, o, source, targets)
	case *meshv1alpha1.BackendPolicy:
		var out []string
		foreign := slices.ContainsFunc(targets, func(t trafficpolicy.Ref) bool {
			return !trafficpolicy.Produces(source, t, o.Spec.TargetRefs)
		})
		if foreign {
			out = append(out, consumerNotOnNodes(nodes, "it to backends of other namespaces")...)
		}
		if slices.ContainsFunc(targets, func(t trafficpolicy.Ref) bool { return t.Kind == "HTTPRoute" }) {
			out = append(out, clientsWithout+"it to routes of HTTP")
		}
		return append(out, fieldsNotOnNodes(&o.Spec, nodes)...)
	}
	return []string{clientsWithout + "it"}
}

// routeNotOnNodes: nodes divide connections among Services of the site.
func routeNotOnNodes(nodes map[string][]string, r *gatewayv1.TCPRoute, source trafficpolicy.Source, parents []trafficpolicy.Ref) []string {
	var out []string
	for _, parent := range parents {
		if parent.Key.Namespace != source.Key.Namespace && len(out) == 0 {
			out = consumerNotOnNodes(nodes, "it to parents of other namespaces")
		}
		for i := range r.Spec.Rules {
			for j := range r.Spec.Rules[i].BackendRefs {
				b := &r.Spec.Rules[i].BackendRefs[j]
				kind := "Service"
				if b.Kind != nil {
					kind = string(*b.Kind)
				}
				if own := parent.Kind == kind && parent.Key.Name == string(b.Name); kind != "Service" && !own && (b.Weight == nil || *b.Weight > 0) {
					return []string{fmt.Sprintf("%sit: %s %s is reached by gateways, which takes a proxy", clientsWithout, kind, b.Name)}
				}
			}
		}
	}
	return out
}

// consumerNotOnNodes says which clients of a namespace do not apply what is of theirs: those of nodes that do not
// know the namespaces of clients, and those without an address of their own.
func consumerNotOnNodes(nodes map[string][]string, what string) []string {
	var lacking []string
	able := false
	for _, mode := range slices.Sorted(maps.Keys(nodes)) {
		if does, _ := modes.AbilityOf(mode); does.Namespaces {
			able = true
		} else {
			lacking = append(lacking, mode)
		}
	}
	switch {
	case !able:
		return []string{clientsWithout + what}
	case len(lacking) == 0:
		return []string{clientsWithout + what + " if other namespaces share their address"}
	}
	var names []string
	for _, mode := range lacking {
		names = append(names, nodes[mode]...)
	}
	return []string{fmt.Sprintf("%s%s on nodes in mode %s: %s, nor elsewhere if other namespaces share their address", clientsWithout, what, strings.Join(lacking, ", "), someOf(names))}
}

// fieldsNotOnNodes: what no node enforces, and then what those in some mode do not.
func fieldsNotOnNodes(spec *meshv1alpha1.BackendPolicySpec, nodes map[string][]string) []string {
	missing := map[string][]string{} // modes by field
	for _, mode := range slices.Sorted(maps.Keys(nodes)) {
		does, _ := modes.AbilityOf(mode)
		for _, field := range trafficpolicy.NotOnNodes(spec, does) {
			missing[field] = append(missing[field], mode)
		}
	}
	byModes := map[string][]string{} // fields by modes
	for _, field := range slices.Sorted(maps.Keys(missing)) {
		at := ""
		if len(missing[field]) < len(nodes) {
			at = strings.Join(missing[field], ", ")
		}
		byModes[at] = append(byModes[at], "spec."+field)
	}
	var out []string
	for _, at := range slices.Sorted(maps.Keys(byModes)) {
		text := clientsWithout + strings.Join(byModes[at], ", ")
		if at != "" {
			var names []string
			for mode := range strings.SplitSeq(at, ", ") {
				names = append(names, nodes[mode]...)
			}
			text += fmt.Sprintf(" on nodes in mode %s: %s", at, someOf(names))
		}
		out = append(out, text)
	}
	return out
}

// someOf names, and how many more there are.
func someOf(names []string) string {
	names = slices.Sorted(slices.Values(names))
	if len(names) > maxNamedWorkloads {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNamedWorkloads], ", "), len(names)-maxNamedWorkloads)
	}
	return strings.Join(names, ", ")
}

// workloadsWithout a proxy, of all that a policy is for, that do not enforce it. Of TrafficPermissions by
// address their nodes see to it.
func workloadsWithout(tables *catalog.Snapshot, obj resource.Object, without []trafficpolicy.Ref, all int) []string {
	if len(without) == 0 {
		return nil
	}
	permission, ok := obj.(*meshv1alpha1.TrafficPermission)
	why := ""
	if ok {
		why = trafficpolicy.NotByAddress(&permission.Spec)
	}
	switch {
	case !ok:
		return []string{fmt.Sprintf("%d of %d workloads have no proxy, and do not enforce it: %s", len(without), all, namesOf(without))}
	case permission.Spec.Shadow:
		return []string{fmt.Sprintf("%d of %d workloads have no proxy that counts: %s", len(without), all, namesOf(without))}
	case why != "":
		return []string{fmt.Sprintf("%d of %d workloads have no proxy, and their nodes know clients by namespace, labels and addresses alone, not by %s: %s",
			len(without), all, why, namesOf(without))}
	}
	away := slices.DeleteFunc(slices.Clone(without), func(ref trafficpolicy.Ref) bool { return nodeSeesTo(tables, ref) })
	if len(away) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%d of %d workloads have no proxy, nor an agent in a kernel mode on their node: %s", len(away), all, namesOf(away))}
}

// nodeSeesTo reports whether the node of a workload sees to permissions by address.
func nodeSeesTo(tables *catalog.Snapshot, ref trafficpolicy.Ref) bool {
	name := ""
	if ref.Kind == "Pod" {
		if pod, ok := tables.Pods.Get(ref.Key); ok && !pod.Spec.HostNetwork {
			name = pod.Spec.NodeName
		}
	} else if d, ok := tables.Dataplanes.Get(ref.Key); ok {
		name = d.Spec.NodeName
	}
	node, _ := tables.Nodes.Get(resource.Key{Name: name})
	return seesToPermissions(modeOf(node))
}

// seesToPermissions reports whether agents in a mode enforce permissions by the addresses of clients.
func seesToPermissions(mode string) bool {
	does, _ := modes.AbilityOf(mode)
	return does.Addresses
}

func namesOf(refs []trafficpolicy.Ref) string {
	var names []string
	for _, r := range refs {
		names = append(names, r.Key.String())
	}
	return someOf(names)
}
