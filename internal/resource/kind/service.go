package kind

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/proxima-mesh/proxima/internal/resource"
)

// Service describes v1 Service. Addresses, families and node ports are given
// out by the registry between Default and Validate; Prepare keeps those that an
// update left out.
var Service = &resource.Descriptor{
	GVK:            corev1.SchemeGroupVersion.WithKind("Service"),
	Resource:       "services",
	Singular:       "service",
	ShortNames:     []string{"svc"},
	Categories:     []string{"all"},
	Namespaced:     true,
	Direction:      resource.ZoneToGlobal,
	Status:         true,
	CreateOnUpdate: true,

	New:     func() resource.Object { return &corev1.Service{} },
	NewList: func() runtime.Object { return &corev1.ServiceList{} },

	Compact:        compactService,
	Default:        on(defaultService),
	Prepare:        change(prepareService),
	PrepareStatus:  change(func(obj, old *corev1.Service) { obj.Spec = *old.Spec.DeepCopy() }),
	Validate:       compare(validateService),
	ValidateStatus: compare(validateServiceStatus),
	Warnings:       compare(serviceWarnings),

	Fields: of(func(s *corev1.Service) fields.Set {
		return fields.Set{"spec.clusterIP": s.Spec.ClusterIP, "spec.type": string(s.Spec.Type)}
	}),
	Columns: serviceColumns(),
	Cells:   of(serviceCells),
}

// compactService: most of its strings are names of choices.
func compactService(obj resource.Object, share func(*string)) {
	s := obj.(*corev1.Service)
	share((*string)(&s.Spec.Type))
	share((*string)(&s.Spec.SessionAffinity))
	share((*string)(&s.Spec.ExternalTrafficPolicy))
	each(share, (*string)(s.Spec.InternalTrafficPolicy), (*string)(s.Spec.IPFamilyPolicy), s.Spec.TrafficDistribution)
	for i := range s.Spec.IPFamilies {
		share((*string)(&s.Spec.IPFamilies[i]))
	}
	for i := range s.Spec.Ports {
		share(&s.Spec.Ports[i].Name)
		share((*string)(&s.Spec.Ports[i].Protocol))
	}
	for i := range s.Status.Conditions {
		c := &s.Status.Conditions[i]
		share(&c.Type)
		share((*string)(&c.Status))
		share(&c.Reason)
	}
}

func defaultService(s *corev1.Service) {
	spec := &s.Spec
	defaultAffinity(spec)
	if spec.Type == "" {
		spec.Type = corev1.ServiceTypeClusterIP
	}
	for i := range spec.Ports {
		p := &spec.Ports[i]
		if p.Protocol == "" {
			p.Protocol = corev1.ProtocolTCP
		}
		if p.TargetPort == intstr.FromInt32(0) || p.TargetPort == intstr.FromString("") {
			p.TargetPort = intstr.FromInt32(p.Port)
		}
	}
	if externallyAccessible(s) && spec.ExternalTrafficPolicy == "" {
		spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
	}
	switch {
	case spec.Type == corev1.ServiceTypeExternalName:
		spec.InternalTrafficPolicy = nil // also what is left of an earlier type
	case spec.InternalTrafficPolicy == nil && hasClusterIP(s):
		spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyCluster)
	}
	if spec.Type != corev1.ServiceTypeLoadBalancer {
		return
	}
	if spec.AllocateLoadBalancerNodePorts == nil {
		spec.AllocateLoadBalancerNodePorts = new(true)
	}
	for i := range s.Status.LoadBalancer.Ingress {
		in := &s.Status.LoadBalancer.Ingress[i]
		if in.IP != "" && in.IPMode == nil {
			in.IPMode = new(corev1.LoadBalancerIPModeVIP)
		}
	}
}

func defaultAffinity(spec *corev1.ServiceSpec) {
	switch spec.SessionAffinity {
	case "", corev1.ServiceAffinityNone:
		spec.SessionAffinity = corev1.ServiceAffinityNone
		spec.SessionAffinityConfig = nil
	case corev1.ServiceAffinityClientIP:
		c := spec.SessionAffinityConfig
		if c == nil || c.ClientIP == nil || c.ClientIP.TimeoutSeconds == nil {
			spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{
				TimeoutSeconds: new(corev1.DefaultClientIPServiceAffinitySeconds),
			}}
		}
	}
}

// hasClusterIP is true for the types that own addresses.
func hasClusterIP(s *corev1.Service) bool {
	switch s.Spec.Type {
	case corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer:
		return true
	}
	return false
}

func hasNodePorts(s *corev1.Service) bool {
	if s.Spec.Type == corev1.ServiceTypeNodePort {
		return true
	}
	allocate := s.Spec.AllocateLoadBalancerNodePorts
	return s.Spec.Type == corev1.ServiceTypeLoadBalancer && (allocate == nil || *allocate)
}

func hasHealthCheckPort(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeLoadBalancer &&
		s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// externallyAccessible is true if traffic from outside can reach the Service.
func externallyAccessible(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeLoadBalancer ||
		s.Spec.Type == corev1.ServiceTypeNodePort ||
		(s.Spec.Type == corev1.ServiceTypeClusterIP && len(s.Spec.ExternalIPs) > 0)
}

func headless(s *corev1.Service) bool {
	return len(s.Spec.ClusterIPs) == 1 && s.Spec.ClusterIPs[0] == corev1.ClusterIPNone
}

func serviceWarnings(s, _ *corev1.Service) []string {
	var w []string
	spec := &s.Spec
	if _, ok := s.Annotations[corev1.DeprecatedAnnotationTopologyAwareHints]; ok {
		w = append(w, fmt.Sprintf("annotation %s is deprecated, please use %s instead",
			corev1.DeprecatedAnnotationTopologyAwareHints, corev1.AnnotationTopologyMode))
	}
	external := spec.Type == corev1.ServiceTypeExternalName
	if !external && !headless(s) {
		w = append(w, ipWarnings(field.NewPath("spec", "clusterIPs"), spec.ClusterIPs)...)
	}
	if spec.Type == corev1.ServiceTypeClusterIP && spec.ClusterIP == corev1.ClusterIPNone {
		if spec.LoadBalancerIP != "" {
			w = append(w, "spec.loadBalancerIP is ignored for headless services")
		}
		if len(spec.ExternalIPs) > 0 {
			w = append(w, "spec.externalIPs is ignored for headless services")
		}
		if spec.SessionAffinity != corev1.ServiceAffinityNone {
			w = append(w, "spec.SessionAffinity is ignored for headless services")
		}
	} else if len(spec.ExternalIPs) > 0 && !external {
		w = append(w, "spec.externalIPs is deprecated and may no longer be implemented in some clusters")
	}
	w = append(w, ipWarnings(field.NewPath("spec", "externalIPs"), spec.ExternalIPs)...)
	if spec.LoadBalancerIP != "" {
		w = append(w, ipWarning(field.NewPath("spec", "loadBalancerIP"), spec.LoadBalancerIP)...)
	}
	for i, cidr := range spec.LoadBalancerSourceRanges {
		w = append(w, cidrWarning(field.NewPath("spec", "loadBalancerSourceRanges").Index(i), cidr)...)
	}
	if external && len(spec.ExternalIPs) > 0 {
		w = append(w, fmt.Sprintf("spec.externalIPs is ignored when spec.type is %q", spec.Type))
	}
	if !external && spec.ExternalName != "" {
		w = append(w, fmt.Sprintf("spec.externalName is ignored when spec.type is not %q", corev1.ServiceTypeExternalName))
	}
	if d := spec.TrafficDistribution; d != nil && *d == corev1.ServiceTrafficDistributionPreferClose {
		w = append(w, fmt.Sprintf("spec.trafficDistribution: %q is deprecated; use %q",
			*d, corev1.ServiceTrafficDistributionPreferSameZone))
	}
	return w
}

func ipWarnings(path *field.Path, values []string) []string {
	var w []string
	for i, v := range values {
		w = append(w, ipWarning(path.Index(i), v)...)
	}
	return w
}

// ipWarning is silent about what is no address at all; validation refuses that.
func ipWarning(path *field.Path, value string) []string {
	if len(utilvalidation.IsValidIPForLegacyField(path, value, false, nil)) > 0 {
		return nil
	}
	return utilvalidation.GetWarningsForIP(path, value)
}

func cidrWarning(path *field.Path, value string) []string {
	if len(utilvalidation.IsValidCIDRForLegacyField(path, value, false, nil)) > 0 {
		return nil
	}
	return utilvalidation.GetWarningsForCIDR(path, value)
}

func serviceColumns() []metav1.TableColumnDefinition {
	doc := corev1.ServiceSpec{}.SwaggerDoc()
	return []metav1.TableColumnDefinition{
		nameColumn(),
		column("Type", doc["type"]),
		column("Cluster-IP", doc["clusterIP"]),
		column("External-IP", doc["externalIPs"]),
		column("Port(s)", doc["ports"]),
		ageColumn(),
		wide("Selector", doc["selector"]),
	}
}

func serviceCells(s *corev1.Service) []any {
	clusterIP := none
	if len(s.Spec.ClusterIPs) > 0 {
		clusterIP = s.Spec.ClusterIPs[0]
	}
	var ports []string
	for _, p := range s.Spec.Ports {
		if p.NodePort > 0 {
			ports = append(ports, fmt.Sprintf("%d:%d/%s", p.Port, p.NodePort, p.Protocol))
		} else {
			ports = append(ports, fmt.Sprintf("%d/%s", p.Port, p.Protocol))
		}
	}
	return []any{
		s.Name, string(s.Spec.Type), clusterIP, externalIPs(s),
		orElse(strings.Join(ports, ","), none), age(s), labels.FormatLabels(s.Spec.Selector),
	}
}

// externalIPs is how the Service is reached from outside.
func externalIPs(s *corev1.Service) string {
	switch s.Spec.Type {
	case corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort:
		return orElse(strings.Join(s.Spec.ExternalIPs, ","), none)
	case corev1.ServiceTypeLoadBalancer:
		var all []string
		for _, in := range s.Status.LoadBalancer.Ingress {
			if a := orElse(in.IP, in.Hostname); a != "" {
				all = append(all, a)
			}
		}
		slices.Sort(all)
		all = append(slices.Compact(all), s.Spec.ExternalIPs...)
		return orElse(strings.Join(all, ","), "<pending>")
	case corev1.ServiceTypeExternalName:
		return s.Spec.ExternalName
	}
	return unknown
}

// IsAPI reports whether a Service of a name is that of the API: every control plane makes it,
// and its endpoints are the control plane's instances.
func IsAPI(key resource.Key) bool {
	return key == resource.Key{Namespace: metav1.NamespaceDefault, Name: "kubernetes"}
}
