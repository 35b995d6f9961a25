package kind

import (
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// WorkloadPolicy describes mesh.proxima.dev/v1alpha1 WorkloadPolicy. Nothing is defaulted: what
// a policy leaves out others may say.
var WorkloadPolicy = &resource.Descriptor{
	GVK:        mesh.SchemeGroupVersion.WithKind("WorkloadPolicy"),
	Resource:   "workloadpolicies",
	Singular:   "workloadpolicy",
	ShortNames: []string{"wp"},
	Categories: []string{"proxima"},
	Namespaced: true,
	Status:     true,
	Direction:  resource.GlobalToZone,

	New:     func() resource.Object { return &mesh.WorkloadPolicy{} },
	NewList: func() runtime.Object { return &mesh.WorkloadPolicyList{} },

	Prepare:        workloadPolicyParts.prepare,
	PrepareStatus:  workloadPolicyParts.prepareStatus,
	Validate:       compare(validateWorkloadPolicy),
	ValidateStatus: compare(validateWorkloadPolicyStatus),

	Columns: trafficPolicyColumns(),
	Cells: of(func(p *mesh.WorkloadPolicy) []any {
		return trafficPolicyCells(p, &p.Spec.PolicyTarget, &p.Status)
	}),
}

var workloadPolicyParts = parts[*mesh.WorkloadPolicy, mesh.WorkloadPolicySpec, mesh.TrafficPolicyStatus](
	func(p *mesh.WorkloadPolicy) (*mesh.WorkloadPolicySpec, *mesh.TrafficPolicyStatus) {
		return &p.Spec, &p.Status
	})

func validateWorkloadPolicyStatus(p, old *mesh.WorkloadPolicy) field.ErrorList {
	return append(policyMeta(p, old), checkTrafficPolicyStatus(&p.Status)...)
}

func validateWorkloadPolicy(p, old *mesh.WorkloadPolicy) field.ErrorList {
	errs := policyMeta(p, old)
	spec, path := &p.Spec, field.NewPath("spec")
	errs = append(errs, checkTarget(p, &spec.PolicyTarget, workloadTargets()...)...)
	errs = append(errs, checkOwnWorkloads(p.Namespace, spec.TargetRefs)...)
	errs = append(errs, checkPolicyPorts(path.Child("ports"), spec.Ports)...)
	errs = append(errs, checkWorkloadTLS(path.Child("tls"), spec.TLS)...)
	errs = append(errs, checkPolicyTimeout(path.Child("timeout"), spec.Timeout, true)...)
	errs = append(errs, checkPolicyLimits(path.Child("limits"), spec.Limits)...)
	errs = append(errs, checkWorkloadBackends(path.Child("backends"), spec.Backends)...)
	errs = append(errs, checkRateLimits(path.Child("rateLimit"), spec.RateLimit)...)
	errs = append(errs, checkFaults(path.Child("faults"), spec.Faults)...)
	errs = append(errs, checkPassthrough(path.Child("passthrough"), spec.Passthrough)...)
	errs = append(errs, checkAccessLogs(path.Child("accessLog"), spec.AccessLog)...)
	errs = append(errs, checkTracing(path.Child("tracing"), spec.Tracing)...)
	return append(errs, checkMetrics(path.Child("metrics"), spec.Metrics)...)
}

// tlsCiphers are the cipher suites of TLS 1.2 that Envoy has without RSA key exchange.
func tlsCiphers() []string {
	return []string{
		"ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-RSA-AES256-GCM-SHA384",
		"ECDHE-ECDSA-CHACHA20-POLY1305", "ECDHE-RSA-CHACHA20-POLY1305", "ECDHE-ECDSA-AES128-SHA", "ECDHE-RSA-AES128-SHA",
		"ECDHE-ECDSA-AES256-SHA", "ECDHE-RSA-AES256-SHA",
	}
}

func checkWorkloadTLS(path *field.Path, t *mesh.WorkloadTLS) field.ErrorList {
	if t == nil {
		return nil
	}
	errs := checkChoice(path.Child("mode"), t.Mode, mesh.MTLSStrict, mesh.MTLSPermissive)
	errs = append(errs, checkChoice(path.Child("min"), t.Min, mesh.TLS12, mesh.TLS13)...)
	errs = append(errs, checkChoice(path.Child("max"), t.Max, mesh.TLS12, mesh.TLS13)...)
	if t.Max == mesh.TLS12 && t.Min != mesh.TLS12 {
		errs = append(errs, field.Invalid(path.Child("max"), t.Max, "must not be less than `min`, which is 1.3 unless it is set"))
	}
	seen := set[string]{}
	for i, c := range t.Ciphers {
		errs = append(errs, checkWord(path.Child("ciphers").Index(i), c, seen, tlsCiphers()...)...)
	}
	if len(t.Ciphers) > 0 && t.Min != mesh.TLS12 {
		errs = append(errs, field.Forbidden(path.Child("ciphers"), "TLS 1.3 has no choice of ciphers: set `min` to 1.2"))
	}
	return errs
}

func checkWorkloadBackends(path *field.Path, all []mesh.WorkloadBackend) field.ErrorList {
	if len(all) > maxWorkloadBackends {
		return field.ErrorList{field.TooMany(path, len(all), maxWorkloadBackends)}
	}
	var errs field.ErrorList
	for i, b := range all {
		at := path.Index(i)
		errs = append(errs, checkChoice(at.Child("kind"), b.Kind, "Service", "ServiceImport", "ExternalService")...)
		if b.Namespace != "" {
			errs = append(errs, checkLabel(at.Child("namespace"), b.Namespace)...)
		}
		if b.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), ""))
		} else {
			errs = append(errs, checkSubdomain(at.Child("name"), b.Name)...)
		}
	}
	return errs
}

func checkPassthrough(path *field.Path, p *mesh.WorkloadPassthrough) field.ErrorList {
	if p == nil {
		return nil
	}
	errs := checkChoice(path.Child("mode"), p.Mode, mesh.PassthroughAll, mesh.PassthroughNone, mesh.PassthroughMatched)
	switch matched := p.Mode == mesh.PassthroughMatched; {
	case matched && len(p.Match) == 0:
		errs = append(errs, field.Required(path.Child("match"), "must be set when `mode` is 'Matched'"))
	case !matched && len(p.Match) > 0:
		errs = append(errs, field.Forbidden(path.Child("match"), "may only be set when `mode` is 'Matched'"))
	case len(p.Match) > maxPolicyItems:
		return append(errs, field.TooMany(path.Child("match"), len(p.Match), maxPolicyItems))
	}
	for i, m := range p.Match {
		errs = append(errs, checkPassthroughMatch(path.Child("match").Index(i), m)...)
	}
	return errs
}

func checkPassthroughMatch(path *field.Path, m mesh.PassthroughMatch) field.ErrorList {
	var errs field.ErrorList
	value := path.Child("value")
	switch m.Type {
	case mesh.PassthroughDomain:
		errs = append(errs, checkSubdomain(value, strings.TrimPrefix(m.Value, "*."))...)
		errs = append(errs, checkChoice(path.Child("protocol"), m.Protocol, "TLS", "HTTP")...)
	case mesh.PassthroughIP:
		errs = append(errs, utilvalidation.IsValidIP(value, m.Value)...)
		errs = append(errs, checkChoice(path.Child("protocol"), m.Protocol, "TCP", "TLS", "HTTP")...)
	case mesh.PassthroughCIDR:
		if p, err := netip.ParsePrefix(m.Value); err != nil || p.Masked().String() != m.Value {
			errs = append(errs, field.Invalid(value, m.Value, "must be a range in CIDR notation such as 10.1.0.0/16"))
		}
		errs = append(errs, checkChoice(path.Child("protocol"), m.Protocol, "TCP", "TLS", "HTTP")...)
	default:
		errs = append(errs, field.NotSupported(path.Child("type"), m.Type, []string{mesh.PassthroughDomain, mesh.PassthroughIP, mesh.PassthroughCIDR}))
	}
	if m.Port != 0 {
		errs = append(errs, checkPort(path.Child("port"), m.Port)...)
	} else if m.Protocol == "HTTP" {
		errs = append(errs, field.Required(path.Child("port"), "HTTP needs a port"))
	}
	return errs
}

// checkHostPort of a server.
func checkHostPort(path *field.Path, text string) field.ErrorList {
	const form = "must be HOST:PORT, as in collector.example.com:4317"
	host, port, err := net.SplitHostPort(text)
	n, bad := strconv.Atoi(port)
	if text == "" {
		return field.ErrorList{field.Required(path, form)}
	}
	if err != nil || bad != nil || len(utilvalidation.IsValidPortNum(n)) > 0 {
		return field.ErrorList{field.Invalid(path, text, form)}
	}
	if _, err := netip.ParseAddr(host); err != nil && len(utilvalidation.IsDNS1123Subdomain(host)) > 0 {
		return field.ErrorList{field.Invalid(path, text, form)}
	}
	return nil
}

func checkAccessLogs(path *field.Path, all []mesh.AccessLog) field.ErrorList {
	if len(all) > maxPolicyItems {
		return field.ErrorList{field.TooMany(path, len(all), maxPolicyItems)}
	}
	var errs field.ErrorList
	for i, l := range all {
		at := path.Index(i)
		if count(l.Stdout != nil, l.File != nil, l.TCP != nil, l.OTLP != nil) != 1 {
			errs = append(errs, field.Required(at, "must specify one of `stdout`, `file`, `tcp` and `otlp`"))
		}
		if l.File != nil && !filepath.IsAbs(l.File.Path) {
			errs = append(errs, field.Invalid(at.Child("file", "path"), l.File.Path, "must be an absolute path"))
		}
		if l.TCP != nil {
			errs = append(errs, checkHostPort(at.Child("tcp", "address"), l.TCP.Address)...)
		}
		if l.OTLP != nil {
			errs = append(errs, checkHostPort(at.Child("otlp", "address"), l.OTLP.Address)...)
		}
		errs = append(errs, checkChoice(at.Child("of"), l.Of, mesh.LogAll, mesh.LogErrors)...)
		if len(l.Format) > maxPolicyText {
			errs = append(errs, field.TooLong(at.Child("format"), "", maxPolicyText))
		}
	}
	return errs
}

func count(set ...bool) int {
	n := 0
	for _, s := range set {
		if s {
			n++
		}
	}
	return n
}

func checkTracing(path *field.Path, t *mesh.WorkloadTracing) field.ErrorList {
	if t == nil {
		return nil
	}
	var errs field.ErrorList
	if count(t.OTLP != nil, t.Zipkin != nil, t.Datadog != nil) != 1 {
		errs = append(errs, field.Required(path, "must specify one of `otlp`, `zipkin` and `datadog`"))
	}
	if t.OTLP != nil {
		errs = append(errs, checkHostPort(path.Child("otlp", "address"), t.OTLP.Address)...)
	}
	if t.Zipkin != nil {
		errs = append(errs, checkHostPort(path.Child("zipkin", "address"), t.Zipkin.Address)...)
		errs = append(errs, checkPath(path.Child("zipkin", "path"), t.Zipkin.Path)...)
	}
	if t.Datadog != nil {
		errs = append(errs, checkHostPort(path.Child("datadog", "address"), t.Datadog.Address)...)
	}
	errs = append(errs, checkPercent(path.Child("sample"), t.Sample)...)
	if len(t.Tags) > maxPolicyItems {
		return append(errs, field.TooMany(path.Child("tags"), len(t.Tags), maxPolicyItems))
	}
	names := set[string]{}
	for i, tag := range t.Tags {
		at := path.Child("tags").Index(i)
		if tag.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), ""))
		}
		if !names.add(tag.Name) {
			errs = append(errs, field.Duplicate(at.Child("name"), tag.Name))
		}
		if tag.Value == "" && tag.Header == "" {
			errs = append(errs, field.Required(at, "must specify `value`, `header` or both"))
		}
	}
	return errs
}

// checkPath of a URL; empty is the default.
func checkPath(path *field.Path, text string) field.ErrorList {
	if text == "" || strings.HasPrefix(text, "/") {
		return nil
	}
	return field.ErrorList{field.Invalid(path, text, "must begin with /")}
}

func checkMetrics(path *field.Path, m *mesh.WorkloadMetrics) field.ErrorList {
	if m == nil {
		return nil
	}
	errs := checkRange(path.Child("port"), m.Port, 1, 65535)
	errs = append(errs, checkPath(path.Child("path"), m.Path)...)
	errs = append(errs, checkExpression(path.Child("include"), m.Include)...)
	errs = append(errs, checkExpression(path.Child("exclude"), m.Exclude)...)
	if len(m.Apps) > maxPolicyItems {
		return append(errs, field.TooMany(path.Child("apps"), len(m.Apps), maxPolicyItems))
	}
	for i, a := range m.Apps {
		errs = append(errs, checkPort(path.Child("apps").Index(i).Child("port"), a.Port)...)
		errs = append(errs, checkPath(path.Child("apps").Index(i).Child("path"), a.Path)...)
	}
	return errs
}
