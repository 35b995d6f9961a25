package kind

import (
	"math"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/diff"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func validatePod(p, old *corev1.Pod) field.ErrorList {
	if old != nil {
		errs := checkMeta(p, old, true, validation.NameIsDNSSubdomain)
		errs = append(errs, checkPodSpecUpdate(p, old)...)
		return append(errs, checkPodSpec(&p.Spec)...)
	}
	errs := checkMeta(p, nil, true, validation.NameIsDNSSubdomain)
	return append(errs, checkPodSpec(&p.Spec)...)
}

func validatePodStatus(p, old *corev1.Pod) field.ErrorList {
	errs := checkMeta(p, old, true, validation.NameIsDNSSubdomain)
	path := field.NewPath("status")
	if n := p.Status.NominatedNodeName; n != "" {
		errs = append(errs, checkSubdomain(path.Child("nominatedNodeName"), n)...)
	}
	var ips, kept []string
	for _, ip := range p.Status.PodIPs {
		ips = append(ips, ip.IP)
	}
	for _, ip := range old.Status.PodIPs {
		kept = append(kept, ip.IP)
	}
	path = path.Child("podIPs")
	seen := set[string]{}
	for i, ip := range ips {
		errs = append(errs, checkIP(path.Index(i), ip, kept)...)
		if !seen.add(ip) {
			errs = append(errs, field.Duplicate(path.Index(i), ip))
		}
	}
	if len(ips) > 1 && !dualStack(ips, isIPv6) {
		errs = append(errs, field.Invalid(path, p.Status.PodIPs,
			"may specify no more than one IP for each IP family"))
	}
	return errs
}

// checkPodSpecUpdate undoes the changes that are allowed and refuses whatever
// differs then.
func checkPodSpecUpdate(p, old *corev1.Pod) field.ErrorList {
	path := field.NewPath("spec")
	var errs field.ErrorList
	for _, c := range []struct {
		name    string
		is, was []corev1.Container
	}{
		{"containers", p.Spec.Containers, old.Spec.Containers},
		{"initContainers", p.Spec.InitContainers, old.Spec.InitContainers},
	} {
		if len(c.is) != len(c.was) {
			errs = append(errs, field.Forbidden(path.Child(c.name), "pod updates may not add or remove containers"))
		}
	}
	if len(errs) > 0 {
		return errs
	}
	errs = append(errs, checkDeadlineUpdate(p.Spec.ActiveDeadlineSeconds, old.Spec.ActiveDeadlineSeconds)...)
	errs = append(errs, checkTolerationsUpdate(p.Spec.Tolerations, old.Spec.Tolerations)...)
	is, was := p.Spec.DeepCopy(), &old.Spec
	for i := range is.Containers {
		is.Containers[i].Image = was.Containers[i].Image
	}
	for i := range is.InitContainers {
		is.InitContainers[i].Image = was.InitContainers[i].Image
	}
	is.ActiveDeadlineSeconds, is.Tolerations = was.ActiveDeadlineSeconds, was.Tolerations
	if !equality.Semantic.DeepEqual(is, was) {
		errs = append(errs, field.Forbidden(path, "pod updates may not change fields other than "+
			"`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,"+
			"`spec.tolerations` (only additions to existing tolerations),"+
			"`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)\n"+
			diff.Diff(was, is)))
	}
	return errs
}

func checkDeadlineUpdate(is, was *int64) field.ErrorList {
	path := field.NewPath("spec", "activeDeadlineSeconds")
	switch {
	case was == nil || (is != nil && *is <= *was):
		return nil
	case is == nil:
		return field.ErrorList{field.Invalid(path, is, "must not update from a positive integer to nil value")}
	}
	return field.ErrorList{field.Invalid(path, *is, "must be less than or equal to previous value")}
}

func checkTolerationsUpdate(is, was []corev1.Toleration) field.ErrorList {
	for _, w := range was {
		found := false
		for _, t := range is {
			w.TolerationSeconds = t.TolerationSeconds
			if found = equality.Semantic.DeepEqual(t, w); found {
				break
			}
		}
		if !found {
			return field.ErrorList{field.Forbidden(field.NewPath("spec", "tolerations"),
				"existing toleration can not be modified except its tolerationSeconds")}
		}
	}
	return nil
}

func checkPodSpec(spec *corev1.PodSpec) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("spec")
	names := set[string]{}
	if len(spec.Containers) == 0 {
		errs = append(errs, field.Required(path.Child("containers"), ""))
	}
	for i := range spec.Containers {
		errs = append(errs, checkContainer(path.Child("containers").Index(i), &spec.Containers[i], spec.HostNetwork, names)...)
	}
	for i := range spec.InitContainers {
		errs = append(errs, checkContainer(path.Child("initContainers").Index(i), &spec.InitContainers[i], spec.HostNetwork, names)...)
	}
	errs = append(errs, checkPodChoices(spec, path)...)
	errs = append(errs, metav1validation.ValidateLabels(spec.NodeSelector, path.Child("nodeSelector"))...)
	for _, n := range []struct {
		name, value string
		check       func(*field.Path, string) field.ErrorList
	}{
		{"nodeName", spec.NodeName, checkSubdomain},
		{"serviceAccountName", spec.ServiceAccountName, checkSubdomain},
		{"hostname", spec.Hostname, checkLabel},
		{"subdomain", spec.Subdomain, checkLabel},
	} {
		if n.value != "" {
			errs = append(errs, n.check(path.Child(n.name), n.value)...)
		}
	}
	if d := spec.ActiveDeadlineSeconds; d != nil && (*d < 1 || *d > math.MaxInt32) {
		errs = append(errs, field.Invalid(path.Child("activeDeadlineSeconds"), *d,
			utilvalidation.InclusiveRangeError(1, math.MaxInt32)))
	}
	if g := spec.TerminationGracePeriodSeconds; g != nil && *g < 0 {
		errs = append(errs, field.Invalid(path.Child("terminationGracePeriodSeconds"), *g,
			"must be greater than or equal to 0"))
	}
	return append(errs, checkVolumeNames(path.Child("volumes"), spec.Volumes)...)
}

func checkPodChoices(spec *corev1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch spec.RestartPolicy {
	case corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever:
	case "":
		errs = append(errs, field.Required(path.Child("restartPolicy"), ""))
	default:
		errs = append(errs, field.NotSupported(path.Child("restartPolicy"), spec.RestartPolicy, []corev1.RestartPolicy{
			corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever}))
	}
	switch spec.DNSPolicy {
	case corev1.DNSClusterFirst, corev1.DNSClusterFirstWithHostNet, corev1.DNSDefault, corev1.DNSNone:
	case "":
		errs = append(errs, field.Required(path.Child("dnsPolicy"), ""))
	default:
		errs = append(errs, field.NotSupported(path.Child("dnsPolicy"), spec.DNSPolicy, []corev1.DNSPolicy{
			corev1.DNSClusterFirstWithHostNet, corev1.DNSClusterFirst, corev1.DNSDefault, corev1.DNSNone}))
	}
	return errs
}

func checkVolumeNames(path *field.Path, volumes []corev1.Volume) field.ErrorList {
	var errs field.ErrorList
	names := set[string]{}
	for i, v := range volumes {
		at := path.Index(i).Child("name")
		if v.Name == "" {
			errs = append(errs, field.Required(at, ""))
			continue
		}
		errs = append(errs, checkLabel(at, v.Name)...)
		if !names.add(v.Name) {
			errs = append(errs, field.Duplicate(at, v.Name))
		}
	}
	return errs
}

func checkContainer(path *field.Path, c *corev1.Container, hostNetwork bool, names set[string]) field.ErrorList {
	var errs field.ErrorList
	name := path.Child("name")
	if c.Name == "" {
		errs = append(errs, field.Required(name, ""))
	} else {
		errs = append(errs, checkLabel(name, c.Name)...)
		if !names.add(c.Name) {
			errs = append(errs, field.Duplicate(name, c.Name))
		}
	}
	if c.Image == "" {
		errs = append(errs, field.Required(path.Child("image"), ""))
	} else if c.Image != strings.TrimSpace(c.Image) {
		errs = append(errs, field.Invalid(path.Child("image"), c.Image, "must not have leading or trailing whitespace"))
	}
	errs = append(errs, checkContainerChoices(path, c)...)
	errs = append(errs, checkContainerPorts(path.Child("ports"), c.Ports, hostNetwork)...)
	for i, e := range c.Env {
		at := path.Child("env").Index(i).Child("name")
		if e.Name == "" {
			errs = append(errs, field.Required(at, ""))
		} else {
			errs = append(errs, invalid(at, e.Name, utilvalidation.IsRelaxedEnvVarName(e.Name))...)
		}
	}
	errs = append(errs, checkProbe(path.Child("livenessProbe"), c.LivenessProbe, true)...)
	errs = append(errs, checkProbe(path.Child("readinessProbe"), c.ReadinessProbe, false)...)
	return append(errs, checkProbe(path.Child("startupProbe"), c.StartupProbe, true)...)
}

func checkContainerChoices(path *field.Path, c *corev1.Container) field.ErrorList {
	var errs field.ErrorList
	switch c.ImagePullPolicy {
	case corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever:
	case "":
		errs = append(errs, field.Required(path.Child("imagePullPolicy"), ""))
	default:
		errs = append(errs, field.NotSupported(path.Child("imagePullPolicy"), c.ImagePullPolicy, []corev1.PullPolicy{
			corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever}))
	}
	switch c.TerminationMessagePolicy {
	case corev1.TerminationMessageReadFile, corev1.TerminationMessageFallbackToLogsOnError:
	case "":
		errs = append(errs, field.Required(path.Child("terminationMessagePolicy"), ""))
	default:
		errs = append(errs, field.NotSupported(path.Child("terminationMessagePolicy"), c.TerminationMessagePolicy,
			[]corev1.TerminationMessagePolicy{
				corev1.TerminationMessageFallbackToLogsOnError, corev1.TerminationMessageReadFile}))
	}
	return errs
}

func checkContainerPorts(path *field.Path, ports []corev1.ContainerPort, hostNetwork bool) field.ErrorList {
	var errs field.ErrorList
	names := set[string]{}
	for i, p := range ports {
		at := path.Index(i)
		if p.Name != "" {
			if bad := utilvalidation.IsValidPortName(p.Name); len(bad) > 0 {
				errs = append(errs, invalid(at.Child("name"), p.Name, bad)...)
			} else if !names.add(p.Name) {
				errs = append(errs, field.Duplicate(at.Child("name"), p.Name))
			}
		}
		number := at.Child("containerPort")
		if p.ContainerPort == 0 {
			errs = append(errs, field.Required(number, ""))
		} else {
			errs = append(errs, checkPort(number, p.ContainerPort)...)
		}
		if p.HostPort != 0 {
			errs = append(errs, checkPort(at.Child("hostPort"), p.HostPort)...)
		}
		if hostNetwork && p.HostPort != p.ContainerPort {
			errs = append(errs, field.Invalid(number, p.ContainerPort, "must match `hostPort` when `hostNetwork` is true"))
		}
		errs = append(errs, checkProtocol(at.Child("protocol"), p.Protocol)...)
	}
	return errs
}

// checkProbe checks a container's probe; once: one success must be enough.
func checkProbe(path *field.Path, p *corev1.Probe, once bool) field.ErrorList {
	if p == nil {
		return nil
	}
	var errs field.ErrorList
	actions := 0
	for _, a := range []struct {
		name string
		set  bool
	}{
		{"exec", p.Exec != nil}, {"httpGet", p.HTTPGet != nil}, {"tcpSocket", p.TCPSocket != nil}, {"grpc", p.GRPC != nil},
	} {
		if !a.set {
			continue
		}
		if actions++; actions > 1 {
			errs = append(errs, field.Forbidden(path.Child(a.name), "may not specify more than 1 handler type"))
		}
	}
	if actions == 0 {
		errs = append(errs, field.Required(path, "must specify a handler type"))
	}
	if p.Exec != nil && len(p.Exec.Command) == 0 {
		errs = append(errs, field.Required(path.Child("exec", "command"), ""))
	}
	if h := p.HTTPGet; h != nil {
		errs = append(errs, checkHTTPProbe(path.Child("httpGet"), h.Path, string(h.Scheme))...)
		errs = append(errs, checkPortRef(path.Child("httpGet", "port"), h.Port)...)
	}
	if p.TCPSocket != nil {
		errs = append(errs, checkPortRef(path.Child("tcpSocket", "port"), p.TCPSocket.Port)...)
	}
	if p.GRPC != nil {
		errs = append(errs, checkPort(path.Child("grpc", "port"), p.GRPC.Port)...)
	}
	return append(errs, checkTimings(path, timings{
		p.InitialDelaySeconds, p.PeriodSeconds, p.TimeoutSeconds, p.SuccessThreshold, p.FailureThreshold,
	}, once)...)
}

func checkHTTPProbe(path *field.Path, target, scheme string) field.ErrorList {
	var errs field.ErrorList
	if target == "" {
		errs = append(errs, field.Required(path.Child("path"), ""))
	}
	if s := corev1.URIScheme(scheme); s != corev1.URISchemeHTTP && s != corev1.URISchemeHTTPS {
		errs = append(errs, field.NotSupported(path.Child("scheme"), s,
			[]corev1.URIScheme{corev1.URISchemeHTTP, corev1.URISchemeHTTPS}))
	}
	return errs
}

// timings are the five numbers of a probe, in the order of its fields.
type timings struct{ delay, period, timeout, success, failure int32 }

func checkTimings(path *field.Path, t timings, once bool) field.ErrorList {
	var errs field.ErrorList
	for _, f := range []struct {
		name  string
		value int32
	}{
		{"initialDelaySeconds", t.delay}, {"timeoutSeconds", t.timeout}, {"periodSeconds", t.period},
		{"successThreshold", t.success}, {"failureThreshold", t.failure},
	} {
		errs = append(errs, validation.ValidateNonnegativeField(int64(f.value), path.Child(f.name))...)
	}
	if once && t.success != 1 {
		errs = append(errs, field.Invalid(path.Child("successThreshold"), t.success, "must be 1"))
	}
	return errs
}
