package kind

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

func prepareService(s, old *corev1.Service) {
	if old == nil {
		s.Status = corev1.ServiceStatus{}
		syncClusterIPs(s, nil)
		return
	}
	s.Status = *old.Status.DeepCopy()
	keepAllocated(s, old)
	syncClusterIPs(s, old)
	dropForeignToType(s, old)
	trimToSingleStack(s, old)
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer {
		s.Status.LoadBalancer = corev1.LoadBalancerStatus{}
	}
}

// keepAllocated gives an update that replaces the whole object, without what
// the server had filled in, the addresses and ports that the Service owns.
func keepAllocated(s, old *corev1.Service) {
	if hasClusterIP(old) && hasClusterIP(s) {
		if s.Spec.ClusterIP == "" {
			s.Spec.ClusterIP = old.Spec.ClusterIP
		}
		if len(s.Spec.ClusterIPs) == 0 && s.Spec.ClusterIP == old.Spec.ClusterIP {
			s.Spec.ClusterIPs = slices.Clone(old.Spec.ClusterIPs)
		}
		if len(s.Spec.IPFamilies) == 0 && s.Spec.ClusterIP == old.Spec.ClusterIP {
			s.Spec.IPFamilies = slices.Clone(old.Spec.IPFamilies)
		}
		if p := old.Spec.IPFamilyPolicy; s.Spec.IPFamilyPolicy == nil && p != nil {
			s.Spec.IPFamilyPolicy = new(*p)
		}
	}
	if hasNodePorts(old) && hasNodePorts(s) {
		keepNodePorts(s, old)
	}
	if hasHealthCheckPort(old) && hasHealthCheckPort(s) && s.Spec.HealthCheckNodePort == 0 {
		s.Spec.HealthCheckNodePort = old.Spec.HealthCheckNodePort
	}
}

func keepNodePorts(s, old *corev1.Service) {
	type nodePort struct {
		protocol corev1.Protocol
		number   int32
	}
	taken := set[nodePort]{}
	owned := map[nodePort]int32{} // by service port
	for _, p := range s.Spec.Ports {
		if p.NodePort != 0 {
			taken.add(nodePort{p.Protocol, p.NodePort})
		}
	}
	for _, p := range old.Spec.Ports {
		owned[nodePort{p.Protocol, p.Port}] = p.NodePort
	}
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		was := owned[nodePort{p.Protocol, p.Port}]
		if p.NodePort == 0 && was != 0 && taken.add(nodePort{p.Protocol, was}) {
			p.NodePort = was
		}
	}
}

// syncClusterIPs makes clusterIPs follow clusterIP where the user set only the
// latter; both at once, and differing, is left for validation to refuse.
func syncClusterIPs(s, old *corev1.Service) {
	switch {
	case old == nil:
		if s.Spec.ClusterIP != "" && len(s.Spec.ClusterIPs) == 0 {
			s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
		}
	case s.Spec.ClusterIP == old.Spec.ClusterIP:
	case !slices.Equal(s.Spec.ClusterIPs, old.Spec.ClusterIPs):
		if len(s.Spec.ClusterIPs) == 0 && s.Spec.ClusterIP != "" {
			s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
		}
	case s.Spec.ClusterIP == "":
		s.Spec.ClusterIPs = nil
	default:
		s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
	}
}

// dropForeignToType clears what belonged to the old type and was not changed by
// the user; a changed value is left for validation to refuse.
func dropForeignToType(s, old *corev1.Service) {
	if hasClusterIP(old) && !hasClusterIP(s) {
		if s.Spec.ClusterIP == old.Spec.ClusterIP && slices.Equal(s.Spec.ClusterIPs, old.Spec.ClusterIPs) {
			s.Spec.ClusterIP, s.Spec.ClusterIPs = "", nil
		}
		if slices.Equal(s.Spec.IPFamilies, old.Spec.IPFamilies) {
			s.Spec.IPFamilies = nil
		}
		if equality.Semantic.DeepEqual(s.Spec.IPFamilyPolicy, old.Spec.IPFamilyPolicy) {
			s.Spec.IPFamilyPolicy = nil
		}
	}
	if hasNodePorts(old) && !hasNodePorts(s) && sameNodePorts(s, old) {
		for i := range s.Spec.Ports {
			s.Spec.Ports[i].NodePort = 0
		}
	}
	if hasHealthCheckPort(old) && !hasHealthCheckPort(s) && s.Spec.HealthCheckNodePort == old.Spec.HealthCheckNodePort {
		s.Spec.HealthCheckNodePort = 0
	}
	if old.Spec.Type == corev1.ServiceTypeLoadBalancer && s.Spec.Type != corev1.ServiceTypeLoadBalancer {
		if equality.Semantic.DeepEqual(s.Spec.AllocateLoadBalancerNodePorts, old.Spec.AllocateLoadBalancerNodePorts) {
			s.Spec.AllocateLoadBalancerNodePorts = nil
		}
		if equality.Semantic.DeepEqual(s.Spec.LoadBalancerClass, old.Spec.LoadBalancerClass) {
			s.Spec.LoadBalancerClass = nil
		}
	}
	if externallyAccessible(old) && !externallyAccessible(s) &&
		s.Spec.ExternalTrafficPolicy == old.Spec.ExternalTrafficPolicy {
		s.Spec.ExternalTrafficPolicy = ""
	}
}

// sameNodePorts is true if the update names no node port that the old object
// did not have.
func sameNodePorts(s, old *corev1.Service) bool {
	had := set[int32]{}
	for _, p := range old.Spec.Ports {
		had.add(p.NodePort)
	}
	return !slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool {
		return p.NodePort != 0 && had.add(p.NodePort)
	})
}

// trimToSingleStack releases the second address and family of a Service that
// the user turned to SingleStack, if the user did not name them again.
func trimToSingleStack(s, old *corev1.Service) {
	policy := s.Spec.IPFamilyPolicy
	if !hasClusterIP(s) || !hasClusterIP(old) || policy == nil || *policy != corev1.IPFamilyPolicySingleStack {
		return
	}
	if len(old.Spec.ClusterIPs) == 2 && slices.Equal(s.Spec.ClusterIPs, old.Spec.ClusterIPs) {
		s.Spec.ClusterIPs = s.Spec.ClusterIPs[:1]
	}
	if len(old.Spec.IPFamilies) == 2 && slices.Equal(s.Spec.IPFamilies, old.Spec.IPFamilies) {
		s.Spec.IPFamilies = s.Spec.IPFamilies[:1]
	}
}
