package finding

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/loadbalancer"
	"github.com/proxima-mesh/proxima/internal/controller/nodename"
	"github.com/proxima-mesh/proxima/internal/controller/policystatus"
	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/topology"
)

// settling is how long a condition that proxies are to fulfil may take.
const settling = 30 * time.Second

// ofTables are the problems that objects have by their conditions, and, where there are nodes, those of Nodes.
func ofTables(s *catalog.Snapshot, nodes bool, now time.Time) []admin.Problem {
	var out []admin.Problem
	if nodes {
		for _, n := range s.Nodes.All() {
			ready, since := "Unknown", time.Time{}
			for _, c := range n.Status.Conditions {
				if c.Type == corev1.NodeReady {
					ready, since = string(c.Status), c.LastTransitionTime.Time
				}
			}
			out = append(out, Node(n.Name, ready, kind.DrainOf(n).State() != "", nodename.Of(n), since)...)
		}
	}
	for _, service := range s.Services.All() {
		out = append(out, ofService(service)...)
	}
	conditions := func(of object, at string, all []metav1.Condition) {
		for i := range all {
			if p, ok := ofCondition(of, at, &all[i], now); ok {
				out = append(out, p)
			}
		}
	}
	zones := func(of object, all []meshv1alpha1.PolicyZoneStatus) {
		for i := range all {
			conditions(of, " in zone "+all[i].Zone, all[i].Conditions)
		}
	}
	for key, p := range s.ZoneCosts.All() {
		conditions(named("ZoneCosts", key), "", p.Status.Conditions)
		zones(named("ZoneCosts", key), p.Status.Zones)
	}
	for key, p := range s.Heuristics.All() {
		conditions(named("TopologyHeuristic", key), "", p.Status.Conditions)
		zones(named("TopologyHeuristic", key), p.Status.Zones)
	}
	policy := func(of object, obj resource.Object) {
		status := policystatus.StatusOf(obj)
		conditions(of, "", status.Conditions)
		zones(of, status.Zones)
	}
	for key, p := range s.TrafficPermissions.All() {
		policy(named("TrafficPermission", key), p)
	}
	for key, p := range s.BackendPolicies.All() {
		policy(named("BackendPolicy", key), p)
	}
	for key, p := range s.WorkloadPolicies.All() {
		policy(named("WorkloadPolicy", key), p)
	}
	for key, p := range s.ProxyPatches.All() {
		policy(named("ProxyPatch", key), p)
	}
	route := func(of object, obj resource.Object) {
		for _, parent := range *policystatus.ParentsOf(obj) {
			if parent.ControllerName == policystatus.ControllerName {
				conditions(of, " at "+string(parent.ParentRef.Name), parent.Conditions)
			}
		}
	}
	for key, r := range s.HTTPRoutes.All() {
		route(named("HTTPRoute", key), r)
	}
	for key, r := range s.GRPCRoutes.All() {
		route(named("GRPCRoute", key), r)
	}
	for key, r := range s.TCPRoutes.All() {
		route(named("TCPRoute", key), r)
	}
	return out
}

func named(kind string, key resource.Key) object { return object{kind, key.Namespace, key.Name} }

// ofService are the problems of a Service's routing.
func ofService(s *corev1.Service) []admin.Problem {
	var out []admin.Problem
	of := object{"Service", s.Namespace, s.Name}
	for i := range s.Status.Conditions {
		c := &s.Status.Conditions[i]
		var p admin.Problem
		explain := fmt.Sprintf("\"proxima explain service %s/%s\" has the figures", s.Namespace, s.Name)
		switch {
		case c.Type == topology.ConditionPlan && c.Status == metav1.ConditionFalse && c.Reason != topology.ReasonNoEndpoints:
			p = warning(problem.TopologyModeRefused, of, "the topology mode that it asks for is not in effect: "+said(c), explain)
		case c.Type == topology.ConditionParameters && c.Status == metav1.ConditionFalse:
			p = failing(problem.TopologyParametersInvalid, of, "its topology parameters are not in effect: "+said(c), "correct the annotation that it names")
		case c.Type == topology.ConditionLong && c.Status == metav1.ConditionTrue:
			p = warning(problem.ConnectionsLong, of, said(c), explain)
		case c.Type == topology.ConditionUnits && c.Status == metav1.ConditionTrue:
			p = warning(problem.DemandUnitsMixed, of, said(c), explain)
		case c.Type == loadbalancer.ConditionAddresses && c.Status == metav1.ConditionFalse:
			p = failing(problem.LoadBalancerPending, of, "it has no address from outside: "+said(c), "add addresses to an IPAddressPool that serves its namespace")
		default:
			continue
		}
		p.Since = c.LastTransitionTime.Time
		out = append(out, p)
	}
	return out
}

// ofCondition of a policy or a route; at says where.
func ofCondition(of object, at string, c *metav1.Condition, now time.Time) (p admin.Problem, ok bool) {
	refused := c.Status == metav1.ConditionFalse
	switch {
	case c.Type == meshv1alpha1.PolicyAccepted && refused:
		p = failing(problem.PolicyNotAccepted, of, "it is not accepted"+at+": "+said(c), "correct what it names")
	case (c.Type == meshv1alpha1.PolicyResolved || c.Type == meshv1alpha1.PolicyResolvedRefs) && refused:
		p = failing(problem.PolicyUnresolved, of, "what it refers to is missing, or failed,"+at+": "+said(c), "create what it names, or correct the reference")
	case c.Type == meshv1alpha1.PolicyProgrammed && refused && now.Sub(c.LastTransitionTime.Time) > settling:
		p = failing(problem.PolicyNotProgrammed, of, "not all proxies have it"+at+": "+said(c), "\"proxima proxy status NAMESPACE/NAME\" of one that is behind says why")
	case c.Type == meshv1alpha1.PolicyPartiallyEnforced && c.Status == metav1.ConditionTrue:
		p = warning(problem.PolicyPartlyEnforced, of, "some workloads do not enforce all of it"+at+": "+said(c), "give these workloads a sidecar, or leave the fields out")
	default:
		return p, false
	}
	p.Since = c.LastTransitionTime.Time
	return p, true
}

// maxSaid bounds what is quoted of a condition, in bytes.
const maxSaid = 1000

// said is what a condition says.
func said(c *metav1.Condition) string {
	text := c.Message
	if text == "" {
		text = c.Reason
	}
	if len(text) > maxSaid {
		cut := maxSaid
		for cut > 0 && text[cut]&0xC0 == 0x80 { // not within a character
			cut--
		}
		text = text[:cut] + " …"
	}
	return text
}
