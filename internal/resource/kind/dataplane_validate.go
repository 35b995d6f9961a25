package kind

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
)

// validateDataplane allows loopback addresses: whether agent and control plane
// are one machine is known to those who write and export Dataplanes, not here.
func validateDataplane(d, old *mesh.Dataplane) field.ErrorList {
	var errs field.ErrorList
	if old == nil {
		errs = checkMeta(d, nil, true, validation.NameIsDNSSubdomain)
	} else {
		errs = checkMeta(d, old, true, validation.NameIsDNSSubdomain)
	}
	spec, path := &d.Spec, field.NewPath("spec")
	if spec.Mesh != "" {
		errs = append(errs, checkLabel(path.Child("mesh"), spec.Mesh)...)
	}
	if spec.NodeName != "" {
		errs = append(errs, checkSubdomain(path.Child("nodeName"), spec.NodeName)...)
	}
	if spec.ServiceAccount != "" {
		errs = append(errs, checkSubdomain(path.Child("serviceAccount"), spec.ServiceAccount)...)
	}
	errs = append(errs, checkDataplaneAddresses(path.Child("addresses"), spec.Addresses)...)
	errs = append(errs, checkDataplanePorts(path.Child("ports"), spec.Ports)...)
	if spec.Readiness != nil {
		errs = append(errs, checkReadiness(path.Child("readiness"), spec.Readiness, spec.Ports)...)
	}
	if s := spec.DrainSeconds; s != nil {
		errs = append(errs, validation.ValidateNonnegativeField(int64(*s), path.Child("drainSeconds"))...)
	}
	if w := spec.Weight; w != nil && (*w < 0 || *w > mesh.MaxWeight) {
		errs = append(errs, field.Invalid(path.Child("weight"), *w, fmt.Sprintf(
			"must be between 0 (no new connections) and %d; %d is the weight of a workload that names none", mesh.MaxWeight, mesh.DefaultWeight)))
	}
	if spec.Hostname != "" {
		errs = append(errs, checkLabel(path.Child("hostname"), spec.Hostname)...)
	}
	if spec.Subdomain != "" {
		errs = append(errs, checkLabel(path.Child("subdomain"), spec.Subdomain)...)
	}
	return append(errs, checkDataplaneProxy(path.Child("proxy"), spec.Proxy)...)
}

// supervisorPaths are what the supervisor of a proxy answers itself on the port of probes.
func supervisorPaths() []string { return []string{"/ready", "/redirected"} }

func checkDataplaneProxy(path *field.Path, p *mesh.DataplaneProxy) field.ErrorList {
	if p == nil {
		return nil
	}
	errs := checkMetrics(path.Child("metrics"), p.Metrics)
	if len(p.Outbound) > maxWorkloadBackends {
		return append(errs, field.TooMany(path.Child("outbound"), len(p.Outbound), maxWorkloadBackends))
	}
	if len(p.Probes) > maxPolicyItems {
		return append(errs, field.TooMany(path.Child("probes"), len(p.Probes), maxPolicyItems))
	}
	taken := set[netip.AddrPort]{}
	for i, o := range p.Outbound {
		at := path.Child("outbound").Index(i)
		address, err := netip.ParseAddr(orElse(o.Address, "127.0.0.1"))
		if err != nil || !address.IsLoopback() || address.Is4In6() {
			errs = append(errs, field.Invalid(at.Child("address"), o.Address, "must be a loopback address, as the workload alone may use it"))
		}
		errs = append(errs, checkPort(at.Child("port"), o.Port)...)
		errs = append(errs, checkPort(at.Child("servicePort"), o.ServicePort)...)
		if o.Namespace != "" {
			errs = append(errs, checkLabel(at.Child("namespace"), o.Namespace)...)
		}
		if o.Service == "" {
			errs = append(errs, field.Required(at.Child("service"), ""))
		} else {
			errs = append(errs, checkLabel(at.Child("service"), o.Service)...)
		}
		if !taken.add(netip.AddrPortFrom(address, uint16(o.Port))) { //nolint:gosec // the range is checked above
			errs = append(errs, field.Duplicate(at, fmt.Sprintf("%s port %d", address, o.Port)))
		}
	}
	paths := set[string]{}
	for i, probe := range p.Probes {
		at := path.Child("probes").Index(i)
		if probe.Path == "" {
			errs = append(errs, field.Required(at.Child("path"), ""))
		}
		errs = append(errs, checkPath(at.Child("path"), probe.Path)...)
		if slices.Contains(supervisorPaths(), probe.Path) {
			errs = append(errs, field.Invalid(at.Child("path"), probe.Path, "must not be a path of the proxy's supervisor itself"))
		}
		if !paths.add(probe.Path) {
			errs = append(errs, field.Duplicate(at.Child("path"), probe.Path))
		}
		errs = append(errs, checkChoice(at.Child("type"), probe.Type, mesh.CheckHTTP, mesh.CheckTCP, mesh.CheckGRPC)...)
		errs = append(errs, checkPort(at.Child("port"), probe.Port)...)
		errs = append(errs, checkPath(at.Child("targetPath"), probe.TargetPath)...)
		if probe.TargetPath != "" && probe.Type != "" && probe.Type != mesh.CheckHTTP {
			errs = append(errs, field.Forbidden(at.Child("targetPath"), "may only be set when `type` is 'HTTP'"))
		}
		if probe.Service != "" && probe.Type != mesh.CheckGRPC {
			errs = append(errs, field.Forbidden(at.Child("service"), "may only be set when `type` is 'GRPC'"))
		}
	}
	return errs
}

func checkDataplaneAddresses(path *field.Path, addresses []string) field.ErrorList {
	if len(addresses) == 0 {
		return field.ErrorList{field.Required(path, "must contain at least 1 address")}
	}
	if len(addresses) > 2 {
		return field.ErrorList{field.TooMany(path, len(addresses), 2)}
	}
	var errs field.ErrorList
	for i, a := range addresses {
		bad := utilvalidation.IsValidIP(path.Index(i), a)
		if len(bad) == 0 {
			bad = checkUnicast(path.Index(i), a)
		}
		errs = append(errs, bad...)
	}
	if len(errs) == 0 && len(addresses) == 2 && !dualStack(addresses, isIPv6) {
		errs = append(errs, field.Invalid(path, addresses, "may specify no more than one IP for each IP family"))
	}
	return errs
}

// checkUnicast refuses what no workload can be reached at from elsewhere.
func checkUnicast(path *field.Path, address string) field.ErrorList {
	errs := checkNoSpecialIP(path, address, loopbackAllowed)
	a, err := netip.ParseAddr(address)
	if len(errs) == 0 && err == nil && a.IsMulticast() {
		errs = append(errs, field.Invalid(path, address, "may not be in the multicast range (224.0.0.0/4, ff00::/8)"))
	}
	if err == nil && a == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		errs = append(errs, field.Invalid(path, address, "may not be the broadcast address (255.255.255.255)"))
	}
	return errs
}

func checkDataplanePorts(path *field.Path, ports []mesh.DataplanePort) field.ErrorList {
	var errs field.ErrorList
	names, numbers := set[string]{}, set[string]{}
	for i, p := range ports {
		at := path.Index(i)
		if p.Name != "" {
			// The stricter rule of the two for ports, so that a Service's
			// targetPort can name every port.
			errs = append(errs, invalid(at.Child("name"), p.Name, utilvalidation.IsValidPortName(p.Name))...)
			if !names.add(p.Name) {
				errs = append(errs, field.Duplicate(at.Child("name"), p.Name))
			}
		}
		errs = append(errs, checkPort(at.Child("port"), p.Port)...)
		protocol := orElse(p.Protocol, mesh.ProtocolTCP)
		errs = append(errs, checkProtocol(at.Child("protocol"), corev1.Protocol(protocol))...)
		if number := fmt.Sprintf("%d/%s", p.Port, protocol); !numbers.add(number) {
			errs = append(errs, field.Duplicate(at, number))
		}
		if p.AppProtocol != nil {
			errs = append(errs, checkQualifiedName(at.Child("appProtocol"), *p.AppProtocol)...)
		}
		if p.TargetPort != nil {
			errs = append(errs, checkPort(at.Child("targetPort"), *p.TargetPort)...)
		}
		errs = append(errs, metav1validation.ValidateLabels(p.Tags, at.Child("tags"))...)
	}
	return errs
}

func checkReadiness(path *field.Path, p *mesh.Probe, ports []mesh.DataplanePort) field.ErrorList {
	var errs field.ErrorList
	actions := 0
	for _, set := range []bool{p.HTTPGet != nil, p.TCPSocket != nil, p.GRPC != nil, p.Exec != nil} {
		if set {
			actions++
		}
	}
	switch {
	case actions == 0:
		errs = append(errs, field.Required(path, "must specify a handler type"))
	case actions > 1:
		errs = append(errs, field.Forbidden(path, "may not specify more than 1 handler type"))
	}
	if h := p.HTTPGet; h != nil {
		errs = append(errs, checkHTTPProbe(path.Child("httpGet"), h.Path, h.Scheme)...)
		errs = append(errs, checkProbePort(path.Child("httpGet", "port"), h.Port, ports)...)
	}
	if p.TCPSocket != nil {
		errs = append(errs, checkProbePort(path.Child("tcpSocket", "port"), p.TCPSocket.Port, ports)...)
	}
	if p.GRPC != nil {
		errs = append(errs, checkPort(path.Child("grpc", "port"), p.GRPC.Port)...)
	}
	if p.Exec != nil && len(p.Exec.Command) == 0 {
		errs = append(errs, field.Required(path.Child("exec", "command"), ""))
	}
	return append(errs, checkTimings(path, timings{
		p.InitialDelaySeconds, p.PeriodSeconds, p.TimeoutSeconds, p.SuccessThreshold, p.FailureThreshold,
	}, false)...)
}

// checkProbePort also requires that a named port exists: a probe that can never
// resolve would silently keep the workload out of service.
func checkProbePort(path *field.Path, port intstr.IntOrString, ports []mesh.DataplanePort) field.ErrorList {
	errs := checkPortRef(path, port)
	if len(errs) > 0 || port.Type != intstr.String {
		return errs
	}
	for _, p := range ports {
		if p.Name == port.StrVal {
			return nil
		}
	}
	return field.ErrorList{field.NotFound(path, port.StrVal)}
}

func validateDataplaneStatus(d, old *mesh.Dataplane) field.ErrorList {
	errs := checkMeta(d, old, true, validation.NameIsDNSSubdomain)
	path := field.NewPath("status")
	errs = append(errs, metav1validation.ValidateConditions(d.Status.Conditions, path.Child("conditions"))...)
	if l := d.Status.Lease; l != nil && l.DurationSeconds <= 0 {
		errs = append(errs, field.Invalid(path.Child("lease", "durationSeconds"), l.DurationSeconds, "must be greater than 0"))
	}
	return errs
}
