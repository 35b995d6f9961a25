package kind

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The node port range, --service-node-port-range of kube-apiserver.
const (
	minNodePort = 30000
	maxNodePort = 32767
)

// validateService refuses what Kubernetes refuses. Names are DNS labels of RFC
// 1123: KEP-5311, stable in Kubernetes 1.37, ended the older and stricter rule.
func validateService(s, old *corev1.Service) field.ErrorList {
	var errs field.ErrorList
	if old == nil {
		errs = checkMeta(s, nil, true, validation.NameIsDNSLabel)
	} else {
		errs = checkMeta(s, old, true, validation.NameIsDNSLabel)
		errs = append(errs, checkClusterIPsUpdate(s, old)...)
		errs = append(errs, checkFamiliesUpdate(s, old)...)
		errs = append(errs, checkHealthCheckPortUpdate(s, old)...)
	}
	errs = append(errs, checkTopologyAnnotations(s)...)
	errs = append(errs, checkWarmUp(s)...)
	errs = append(errs, checkServiceType(s)...)
	errs = append(errs, checkServicePorts(s, old)...)
	path := field.NewPath("spec")
	errs = append(errs, metav1validation.ValidateLabels(s.Spec.Selector, path.Child("selector"))...)
	errs = append(errs, checkAffinity(&s.Spec, path)...)
	errs = append(errs, checkClusterIPs(s)...)
	errs = append(errs, checkExternalIPs(s, old)...)
	errs = append(errs, checkLoadBalancerFields(s, old)...)
	errs = append(errs, checkTrafficPolicies(s)...)
	return errs
}

func validateServiceStatus(s, old *corev1.Service) field.ErrorList {
	errs := checkMeta(s, old, true, validation.NameIsDNSLabel)
	path := field.NewPath("status", "loadBalancer", "ingress")
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer && len(s.Status.LoadBalancer.Ingress) > 0 {
		return append(errs, field.Forbidden(path, "may only be used when `spec.type` is 'LoadBalancer'"))
	}
	var kept []string
	for _, in := range old.Status.LoadBalancer.Ingress {
		kept = append(kept, in.IP)
	}
	for i, in := range s.Status.LoadBalancer.Ingress {
		errs = append(errs, checkIngress(path.Index(i), in, kept)...)
	}
	return errs
}

func checkIngress(path *field.Path, in corev1.LoadBalancerIngress, kept []string) field.ErrorList {
	var errs field.ErrorList
	mode := path.Child("ipMode")
	if in.IP != "" {
		errs = append(errs, checkIP(path.Child("ip"), in.IP, kept)...)
	}
	switch {
	case in.IP != "" && in.IPMode == nil:
		errs = append(errs, field.Required(mode, "must be specified when `ip` is set"))
	case in.IP == "" && in.IPMode != nil:
		errs = append(errs, field.Forbidden(mode, "may not be specified when `ip` is not set"))
	case in.IPMode != nil && *in.IPMode != corev1.LoadBalancerIPModeVIP && *in.IPMode != corev1.LoadBalancerIPModeProxy:
		errs = append(errs, field.NotSupported(mode, *in.IPMode,
			[]corev1.LoadBalancerIPMode{corev1.LoadBalancerIPModeProxy, corev1.LoadBalancerIPModeVIP}))
	}
	if in.Hostname != "" {
		host := path.Child("hostname")
		errs = append(errs, checkSubdomain(host, in.Hostname)...)
		if len(utilvalidation.IsValidIPForLegacyField(host, in.Hostname, false, nil)) == 0 {
			errs = append(errs, field.Invalid(host, in.Hostname, "must be a DNS name, not an IP address"))
		}
	}
	return errs
}

func checkTopologyAnnotations(s *corev1.Service) field.ErrorList {
	hints, hasHints := s.Annotations[corev1.DeprecatedAnnotationTopologyAwareHints]
	mode, hasMode := s.Annotations[corev1.AnnotationTopologyMode]
	if !hasHints || !hasMode || hints == mode {
		return nil
	}
	return field.ErrorList{field.Invalid(
		field.NewPath("metadata", "annotations").Key(corev1.AnnotationTopologyMode), mode,
		fmt.Sprintf("must match annotations[%s] when both are specified", corev1.DeprecatedAnnotationTopologyAwareHints))}
}

func checkServiceType(s *corev1.Service) field.ErrorList {
	var errs field.ErrorList
	spec, path := &s.Spec, field.NewPath("spec")
	if len(spec.Ports) == 0 && !headless(s) && spec.Type != corev1.ServiceTypeExternalName {
		errs = append(errs, field.Required(path.Child("ports"), ""))
	}
	switch spec.Type {
	case corev1.ServiceTypeClusterIP:
	case corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer:
		if headless(s) {
			errs = append(errs, field.Invalid(path.Child("clusterIPs").Index(0), spec.ClusterIPs[0],
				fmt.Sprintf("may not be set to 'None' for %s services", spec.Type)))
		}
	case corev1.ServiceTypeExternalName:
		errs = append(errs, checkExternalName(spec, path)...)
	case "":
		errs = append(errs, field.Required(path.Child("type"), ""))
	default:
		errs = append(errs, field.NotSupported(path.Child("type"), spec.Type, []corev1.ServiceType{
			corev1.ServiceTypeClusterIP, corev1.ServiceTypeExternalName,
			corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort}))
	}
	return errs
}

func checkExternalName(spec *corev1.ServiceSpec, path *field.Path) field.ErrorList {
	const forbidden = "may not be set for ExternalName services"
	var errs field.ErrorList
	if len(spec.ClusterIPs) > 0 {
		errs = append(errs, field.Forbidden(path.Child("clusterIPs"), forbidden))
	}
	if len(spec.IPFamilies) > 0 {
		errs = append(errs, field.Forbidden(path.Child("ipFamilies"), forbidden))
	}
	if spec.IPFamilyPolicy != nil {
		errs = append(errs, field.Forbidden(path.Child("ipFamilyPolicy"), forbidden))
	}
	// A trailing dot marks the name as fully qualified.
	name := strings.TrimSuffix(spec.ExternalName, ".")
	if name == "" {
		return append(errs, field.Required(path.Child("externalName"), ""))
	}
	return append(errs, checkSubdomain(path.Child("externalName"), name)...)
}

func checkServicePorts(s, old *corev1.Service) field.ErrorList {
	type key struct {
		protocol corev1.Protocol
		number   int32
	}
	var errs field.ErrorList
	names, ports, nodePorts := set[string]{}, set[key]{}, set[key]{}
	for i, p := range s.Spec.Ports {
		path := field.NewPath("spec", "ports").Index(i)
		switch {
		case p.Name != "":
			errs = append(errs, checkLabel(path.Child("name"), p.Name)...)
			if !names.add(p.Name) {
				errs = append(errs, field.Duplicate(path.Child("name"), p.Name))
			}
		case len(s.Spec.Ports) > 1:
			errs = append(errs, field.Required(path.Child("name"), ""))
		}
		errs = append(errs, checkPort(path.Child("port"), p.Port)...)
		errs = append(errs, checkProtocol(path.Child("protocol"), p.Protocol)...)
		errs = append(errs, checkPortRef(path.Child("targetPort"), p.TargetPort)...)
		if p.AppProtocol != nil {
			errs = append(errs, checkQualifiedName(path.Child("appProtocol"), *p.AppProtocol)...)
		}
		if !ports.add(key{p.Protocol, p.Port}) {
			errs = append(errs, field.Duplicate(path, corev1.ServicePort{Protocol: p.Protocol, Port: p.Port}))
		}
		if p.NodePort == 0 {
			continue
		}
		errs = append(errs, checkNodePort(path.Child("nodePort"), p.NodePort, s, old)...)
		if !nodePorts.add(key{p.Protocol, p.NodePort}) {
			errs = append(errs, field.Duplicate(path.Child("nodePort"), p.NodePort))
		}
	}
	return errs
}

// checkNodePort keeps ports that the Service owns already, whatever the range
// is today.
func checkNodePort(path *field.Path, port int32, s, old *corev1.Service) field.ErrorList {
	if s.Spec.Type == corev1.ServiceTypeClusterIP {
		return field.ErrorList{field.Forbidden(path, "may not be used when `type` is 'ClusterIP'")}
	}
	if old != nil {
		for _, p := range old.Spec.Ports {
			if p.NodePort == port {
				return nil
			}
		}
	}
	if port < minNodePort || port > maxNodePort {
		return field.ErrorList{field.Invalid(path, port, fmt.Sprintf(
			"provided port is not in the valid range. The range of valid ports is %d-%d", minNodePort, maxNodePort))}
	}
	return nil
}

func checkAffinity(spec *corev1.ServiceSpec, path *field.Path) field.ErrorList {
	config := path.Child("sessionAffinityConfig")
	switch spec.SessionAffinity {
	case corev1.ServiceAffinityNone:
		if spec.SessionAffinityConfig != nil {
			return field.ErrorList{field.Forbidden(config, "must not be set when session affinity is None")}
		}
		return nil
	case corev1.ServiceAffinityClientIP:
	case "":
		return field.ErrorList{field.Required(path.Child("sessionAffinity"), "")}
	default:
		return field.ErrorList{field.NotSupported(path.Child("sessionAffinity"), spec.SessionAffinity,
			[]corev1.ServiceAffinity{corev1.ServiceAffinityClientIP, corev1.ServiceAffinityNone})}
	}
	c := spec.SessionAffinityConfig
	if c == nil {
		return field.ErrorList{field.Required(config, "when session affinity type is ClientIP")}
	}
	if c.ClientIP == nil {
		return field.ErrorList{field.Required(config.Child("clientIP"), "when session affinity type is ClientIP")}
	}
	timeout := config.Child("clientIP", "timeoutSeconds")
	if c.ClientIP.TimeoutSeconds == nil {
		return field.ErrorList{field.Required(timeout, "when session affinity type is ClientIP")}
	}
	if v := *c.ClientIP.TimeoutSeconds; v <= 0 || v > maxAffinitySeconds {
		return field.ErrorList{field.Invalid(timeout, v,
			fmt.Sprintf("must be greater than 0 and less than %d", maxAffinitySeconds))}
	}
	return nil
}

// maxAffinitySeconds is a day, as core/v1 ClientIPConfig documents.
const maxAffinitySeconds = 86400

func checkExternalIPs(s, old *corev1.Service) field.ErrorList {
	var errs field.ErrorList
	var kept []string
	if old != nil {
		kept = old.Spec.ExternalIPs
	}
	for i, ip := range s.Spec.ExternalIPs {
		path := field.NewPath("spec", "externalIPs").Index(i)
		if bad := checkIP(path, ip, kept); len(bad) > 0 {
			errs = append(errs, bad...)
			continue
		}
		errs = append(errs, checkNoSpecialIP(path, ip, loopbackRefused)...)
	}
	return errs
}

func checkLoadBalancerFields(s, old *corev1.Service) field.ErrorList {
	const only = "may only be used when `type` is 'LoadBalancer'"
	var errs field.ErrorList
	spec, path := &s.Spec, field.NewPath("spec")
	balancer := spec.Type == corev1.ServiceTypeLoadBalancer
	errs = append(errs, checkSourceRanges(s, old)...)
	if spec.AllocateLoadBalancerNodePorts != nil && !balancer {
		errs = append(errs, field.Forbidden(path.Child("allocateLoadBalancerNodePorts"), only))
	}
	class := path.Child("loadBalancerClass")
	if old != nil && balancer && old.Spec.Type == corev1.ServiceTypeLoadBalancer &&
		!equality.Semantic.DeepEqual(spec.LoadBalancerClass, old.Spec.LoadBalancerClass) {
		errs = append(errs, field.Invalid(class, spec.LoadBalancerClass, "may not change once set"))
	}
	if spec.LoadBalancerClass != nil {
		if balancer {
			errs = append(errs, checkQualifiedName(class, *spec.LoadBalancerClass)...)
		} else {
			errs = append(errs, field.Forbidden(class, only))
		}
	}
	return errs
}

func checkSourceRanges(s, old *corev1.Service) field.ErrorList {
	// Upstream spells this path with a capital, and clients have seen it so.
	path := field.NewPath("spec", "LoadBalancerSourceRanges")
	ranges, at := s.Spec.LoadBalancerSourceRanges, path.Index
	if len(ranges) == 0 {
		value, ok := s.Annotations[corev1.AnnotationLoadBalancerSourceRangesKey]
		if !ok {
			return nil
		}
		path = field.NewPath("metadata", "annotations").Key(corev1.AnnotationLoadBalancerSourceRangesKey)
		at = func(int) *field.Path { return path }
		if value = strings.TrimSpace(value); value != "" {
			ranges = strings.Split(value, ",")
		}
	}
	var errs field.ErrorList
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer {
		errs = append(errs, field.Forbidden(path, "may only be used when `type` is 'LoadBalancer'"))
	}
	var kept []string
	if old != nil {
		kept = old.Spec.LoadBalancerSourceRanges
	}
	for i, r := range ranges {
		errs = append(errs, utilvalidation.IsValidCIDRForLegacyField(at(i), strings.TrimSpace(r), true, kept)...)
	}
	return errs
}

// checkTrafficPolicies does not ask for a healthCheckNodePort where one is
// needed: giving it out is the server's part.
func checkTrafficPolicies(s *corev1.Service) field.ErrorList {
	var errs field.ErrorList
	spec, path := &s.Spec, field.NewPath("spec")
	external := path.Child("externalTrafficPolicy")
	switch p := spec.ExternalTrafficPolicy; {
	case !externallyAccessible(s):
		if p != "" {
			errs = append(errs, field.Invalid(external, p, "may only be set for externally-accessible services"))
		}
	case p == "":
		errs = append(errs, field.Required(external, ""))
	case p != corev1.ServiceExternalTrafficPolicyCluster && p != corev1.ServiceExternalTrafficPolicyLocal:
		errs = append(errs, field.NotSupported(external, p, []corev1.ServiceExternalTrafficPolicy{
			corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal}))
	}
	if port := spec.HealthCheckNodePort; port != 0 {
		health := path.Child("healthCheckNodePort")
		if hasHealthCheckPort(s) {
			errs = append(errs, checkPort(health, port)...)
		} else {
			errs = append(errs, field.Invalid(health, port,
				"may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"))
		}
	}
	internal := path.Child("internalTrafficPolicy")
	switch p := spec.InternalTrafficPolicy; {
	case p == nil:
		if hasClusterIP(s) {
			errs = append(errs, field.Required(internal, ""))
		}
	case *p != corev1.ServiceInternalTrafficPolicyCluster && *p != corev1.ServiceInternalTrafficPolicyLocal:
		errs = append(errs, field.NotSupported(internal, *p, []corev1.ServiceInternalTrafficPolicy{
			corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal}))
	}
	if d := spec.TrafficDistribution; d != nil {
		switch *d {
		case corev1.ServiceTrafficDistributionPreferClose,
			corev1.ServiceTrafficDistributionPreferSameZone,
			corev1.ServiceTrafficDistributionPreferSameNode:
		default:
			errs = append(errs, field.NotSupported(path.Child("trafficDistribution"), *d, []string{
				corev1.ServiceTrafficDistributionPreferClose,
				corev1.ServiceTrafficDistributionPreferSameZone,
				corev1.ServiceTrafficDistributionPreferSameNode}))
		}
	}
	return errs
}

func checkHealthCheckPortUpdate(s, old *corev1.Service) field.ErrorList {
	if hasHealthCheckPort(s) && hasHealthCheckPort(old) &&
		old.Spec.HealthCheckNodePort != 0 && s.Spec.HealthCheckNodePort != old.Spec.HealthCheckNodePort {
		return field.ErrorList{field.Forbidden(field.NewPath("spec", "healthCheckNodePort"), "field is immutable")}
	}
	return nil
}
