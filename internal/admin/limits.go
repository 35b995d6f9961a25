package admin

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/diag"
)

// kernelspace is the mode that does not do all of what a Service may ask for.
const kernelspace = "kernelspace"

// maxNodesNamed bounds how many nodes a limit names.
const maxNodesNamed = 3

// explainLimits adds what nodes in mode kernelspace do not do of a Service. What depends on the version
// of Windows, each node says in an Event.
func explainLimits(e *diag.Service, s *catalog.Snapshot, service *corev1.Service) {
	var nodes []string
	for _, n := range s.Nodes.All() {
		if n.Labels[meshv1alpha1.LabelProxyMode] == kernelspace {
			nodes = append(nodes, n.Name)
		}
	}
	if len(nodes) == 0 {
		return
	}
	slices.Sort(nodes)
	of := strings.Join(nodes[:min(len(nodes), maxNodesNamed)], ", ")
	if more := len(nodes) - maxNodesNamed; more > 0 {
		of += fmt.Sprintf(" and %d more", more)
	}
	limits := []string{"weights, as of a plan: each endpoint has the same share", "counting traffic: they report no demand"}
	if service.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		limits = append(limits, "the timeout of session affinity: a client stays at an endpoint")
	}
	if len(service.Spec.LoadBalancerSourceRanges) > 0 {
		limits = append(limits, "loadBalancerSourceRanges, where HNS has no access control lists: the load balancer's addresses are not served there, or to all with --windows-allow-open")
	}
	internal := service.Spec.InternalTrafficPolicy
	if service.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal || internal != nil && *internal == corev1.ServiceInternalTrafficPolicyLocal {
		limits = append(limits, "dropping under a policy Local without a local endpoint, where HNS has no access control lists")
	}
	for _, l := range limits {
		e.Limits = append(e.Limits, fmt.Sprintf("nodes in mode %s (%s) do not do %s", kernelspace, of, l))
	}
}
