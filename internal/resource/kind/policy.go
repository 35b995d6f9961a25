package kind

import (
	"fmt"
	"net/netip"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
)

// What policies of traffic may hold at most. 16 targets are the Gateway API's limit (GEP-713).
const (
	maxPolicyTargets = 16
	maxPolicyItems   = 64 // rules, sources, patches, …: of each list
	maxPolicyPorts   = 64
	maxPolicyText    = 1024
	maxPatchValue    = 64 << 10
	// maxWorkloadBackends that a proxy has from the beginning, as many as of scope All.
	maxWorkloadBackends = 1000
	// systemNamespace has the policies of whole meshes.
	systemNamespace = "proxima-system"
)

// durationFormat is that of the Gateway API (GEP-2257).
var durationFormat = regexp.MustCompile(`^([0-9]{1,5}(h|m|s|ms)){1,4}$`)

// checkTarget checks what a policy is for. kinds are those that it may name.
func checkTarget(policy metav1.Object, t *mesh.PolicyTarget, kinds ...metav1.GroupKind) field.ErrorList {
	path := field.NewPath("spec")
	refs := path.Child("targetRefs")
	var errs field.ErrorList
	if len(t.TargetRefs) > maxPolicyTargets {
		return field.ErrorList{field.TooMany(refs, len(t.TargetRefs), maxPolicyTargets)}
	}
	if len(t.TargetRefs) > 0 && t.Selector != nil {
		errs = append(errs, field.Forbidden(path.Child("selector"), "may not be set together with `targetRefs`"))
	}
	if t.Selector != nil {
		errs = append(errs, metav1validation.ValidateLabelSelector(t.Selector, metav1validation.LabelSelectorValidationOptions{}, path.Child("selector"))...)
	}
	seen := set[mesh.PolicyTargetReference]{}
	for i, r := range t.TargetRefs {
		errs = append(errs, checkTargetRef(refs.Index(i), policy.GetNamespace(), r, kinds)...)
		if !seen.add(r) {
			errs = append(errs, field.Duplicate(refs.Index(i), targetText(r)))
		}
	}
	return errs
}

func checkTargetRef(path *field.Path, namespace string, r mesh.PolicyTargetReference, kinds []metav1.GroupKind) field.ErrorList {
	var errs field.ErrorList
	var names []string
	known := false
	for _, k := range kinds {
		names = append(names, k.Kind)
		if k.Kind != r.Kind {
			continue
		}
		known = true
		if k.Group != r.Group {
			errs = append(errs, field.NotSupported(path.Child("group"), r.Group, []string{k.Group}))
		}
	}
	if !known {
		errs = append(errs, field.NotSupported(path.Child("kind"), r.Kind, names))
	}
	if r.Name == "" {
		errs = append(errs, field.Required(path.Child("name"), ""))
	} else {
		errs = append(errs, checkSubdomain(path.Child("name"), r.Name)...)
	}
	if r.Namespace != "" {
		errs = append(errs, checkLabel(path.Child("namespace"), r.Namespace)...)
	}
	if len(r.SectionName) > utilvalidation.DNS1123SubdomainMaxLength {
		errs = append(errs, field.TooLong(path.Child("sectionName"), "", utilvalidation.DNS1123SubdomainMaxLength))
	}
	if r.Kind == "Mesh" {
		if namespace != systemNamespace {
			errs = append(errs, field.Forbidden(path.Child("kind"), "a policy of a whole mesh belongs into namespace "+systemNamespace))
		}
		if r.Namespace != "" {
			errs = append(errs, field.Forbidden(path.Child("namespace"), "a Mesh is in no namespace"))
		}
		if r.SectionName != "" {
			errs = append(errs, field.Forbidden(path.Child("sectionName"), "a Mesh has no sections"))
		}
	}
	return errs
}

// workloadTargets are what policies of workloads may name.
func workloadTargets() []metav1.GroupKind {
	return []metav1.GroupKind{{Group: mesh.GroupName, Kind: "Dataplane"}, {Kind: "Pod"}, {Group: mesh.GroupName, Kind: "Mesh"}}
}

// checkOwnWorkloads: workloads of another namespace are for its own policies.
func checkOwnWorkloads(namespace string, refs []mesh.PolicyTargetReference) field.ErrorList {
	var errs field.ErrorList
	for i, r := range refs {
		at := field.NewPath("spec", "targetRefs").Index(i)
		if r.Kind != "Mesh" && r.Namespace != "" && r.Namespace != namespace {
			errs = append(errs, field.Invalid(at.Child("namespace"), r.Namespace, "must be that of the policy: it is not for workloads of others"))
		}
		if r.Kind != "Mesh" && r.SectionName != "" {
			errs = append(errs, field.Forbidden(at.Child("sectionName"), "name ports in `ports`"))
		}
	}
	return errs
}

func targetText(r mesh.PolicyTargetReference) string {
	text := r.Kind + "/" + r.Name
	if r.Namespace != "" {
		text = r.Kind + "/" + r.Namespace + "/" + r.Name
	}
	if r.SectionName != "" {
		text += ":" + r.SectionName
	}
	return text
}

// targetCell says in a word what a policy is for.
func targetCell(t *mesh.PolicyTarget) string {
	var all listed
	for _, r := range t.TargetRefs {
		all.add(targetText(r))
	}
	if t.Selector != nil {
		all.add(metav1.FormatLabelSelector(t.Selector))
	}
	return all.string("namespace")
}

func checkTrafficPolicyStatus(s *mesh.TrafficPolicyStatus) field.ErrorList {
	path := field.NewPath("status")
	errs := metav1validation.ValidateConditions(s.Conditions, path.Child("conditions"))
	if s.Targets < 0 {
		errs = append(errs, field.Invalid(path.Child("targets"), s.Targets, "must not be negative"))
	}
	return append(errs, checkZoneStatuses(s.Zones)...)
}

// trafficPolicyCell is the state of a policy in a word: here, or in the zones where it is not in effect.
func trafficPolicyCell(s *mesh.TrafficPolicyStatus) string {
	return stateOrZones(s.Conditions, s.Zones, trafficPolicyState)
}

func trafficPolicyState(conditions []metav1.Condition) string {
	c := meta.FindStatusCondition(conditions, mesh.PolicyAccepted)
	switch {
	case c == nil:
		return unknownState
	case c.Status != metav1.ConditionTrue:
		return c.Reason
	}
	if c := meta.FindStatusCondition(conditions, mesh.PolicyResolvedRefs); c != nil && c.Status == metav1.ConditionFalse {
		return c.Reason
	}
	for _, typ := range []string{mesh.PolicyPartiallyEnforced, mesh.PolicyOverridden} {
		if meta.IsStatusConditionTrue(conditions, typ) {
			return typ
		}
	}
	return policyGood
}

func trafficPolicyColumns() []metav1.TableColumnDefinition {
	return []metav1.TableColumnDefinition{
		nameColumn(),
		column("Target", "What the policy is for."),
		column("Status", "Whether the policy is in effect; else why not."),
		ageColumn(),
		wide("Targets", "The number of workloads, or of backends and routes, that it concerns."),
	}
}

func trafficPolicyCells(o metav1.Object, t *mesh.PolicyTarget, s *mesh.TrafficPolicyStatus) []any {
	return []any{o.GetName(), targetCell(t), trafficPolicyCell(s), age(o), s.Targets}
}

// checkDuration: nil is fine. least is what it must be at least; none allows "0s" as well.
func checkDuration(path *field.Path, d *mesh.Duration, least time.Duration, none bool) field.ErrorList {
	if d == nil {
		return nil
	}
	if !durationFormat.MatchString(string(*d)) {
		return field.ErrorList{field.Invalid(path, string(*d), "must be numbers with units of h, m, s or ms, as in 1m30s")}
	}
	if v := d.Value(); v < least && !(none && v == 0) {
		text := "must be at least " + least.String()
		if none {
			text += ", or 0s for none"
		}
		return field.ErrorList{field.Invalid(path, string(*d), text)}
	}
	return nil
}

// checkRange: nil is fine.
func checkRange(path *field.Path, v *int32, low, high int32) field.ErrorList {
	if v == nil || *v >= low && *v <= high {
		return nil
	}
	return field.ErrorList{field.Invalid(path, *v, fmt.Sprintf("must be from %d to %d", low, high))}
}

func checkPercent(path *field.Path, v *float64) field.ErrorList {
	if v == nil || *v >= 0 && *v <= 100 {
		return nil
	}
	return field.ErrorList{field.Invalid(path, *v, "must be from 0 to 100")}
}

// checkPolicyTimeout; inbound timeouts have no attempts.
func checkPolicyTimeout(path *field.Path, t *mesh.PolicyTimeout, inbound bool) field.ErrorList {
	if t == nil {
		return nil
	}
	errs := checkDuration(path.Child("connect"), t.Connect, time.Millisecond, false)
	for _, f := range []struct {
		name string
		d    *mesh.Duration
	}{
		{"idle", t.Idle}, {"request", t.Request}, {"perTry", t.PerTry},
		{"streamIdle", t.StreamIdle}, {"maxStream", t.MaxStream}, {"maxConnection", t.MaxConnection},
	} {
		errs = append(errs, checkDuration(path.Child(f.name), f.d, time.Millisecond, true)...)
	}
	if inbound && t.PerTry != nil {
		errs = append(errs, field.Forbidden(path.Child("perTry"), "requests to a workload are not retried by its own proxy: use a BackendPolicy"))
	}
	return errs
}

func checkPolicyLimits(path *field.Path, l *mesh.PolicyLimits) field.ErrorList {
	if l == nil {
		return nil
	}
	var errs field.ErrorList
	for _, f := range []struct {
		name string
		v    *int32
	}{{"connections", l.Connections}, {"pending", l.Pending}, {"requests", l.Requests}, {"retries", l.Retries}} {
		errs = append(errs, checkRange(path.Child(f.name), f.v, 0, 1<<31-1)...)
	}
	return errs
}

func checkPolicyPorts(path *field.Path, ports []string) field.ErrorList {
	if len(ports) > maxPolicyPorts {
		return field.ErrorList{field.TooMany(path, len(ports), maxPolicyPorts)}
	}
	var errs field.ErrorList
	seen := set[string]{}
	for i, p := range ports {
		if n, err := strconv.Atoi(p); err == nil {
			errs = append(errs, invalid(path.Index(i), p, utilvalidation.IsValidPortNum(n))...)
		} else {
			errs = append(errs, invalid(path.Index(i), p, utilvalidation.IsValidPortName(p))...)
		}
		if !seen.add(p) {
			errs = append(errs, field.Duplicate(path.Index(i), p))
		}
	}
	return errs
}

// checkSources checks who is meant.
func checkSources(path *field.Path, all []mesh.PolicySource) field.ErrorList {
	if len(all) > maxPolicyItems {
		return field.ErrorList{field.TooMany(path, len(all), maxPolicyItems)}
	}
	var errs field.ErrorList
	for i := range all {
		errs = append(errs, checkSource(path.Index(i), &all[i])...)
	}
	return errs
}

func checkSource(path *field.Path, s *mesh.PolicySource) field.ErrorList {
	var errs field.ErrorList
	if reflect.ValueOf(*s).IsZero() {
		return field.ErrorList{field.Required(path, "must describe a caller; leave out `from` for everybody")}
	}
	for _, f := range []struct {
		name string
		n    int
	}{
		{"namespaces", len(s.Namespaces)}, {"serviceAccounts", len(s.ServiceAccounts)}, {"spiffe", len(s.SPIFFE)}, {"addresses", len(s.Addresses)},
	} {
		if f.n > maxPolicyItems {
			errs = append(errs, field.TooMany(path.Child(f.name), f.n, maxPolicyItems))
		}
	}
	for i, n := range s.Namespaces {
		errs = append(errs, checkLabel(path.Child("namespaces").Index(i), n)...)
	}
	for i, a := range s.ServiceAccounts {
		at := path.Child("serviceAccounts").Index(i)
		namespace, name, ok := strings.Cut(a, "/")
		if !ok || len(utilvalidation.IsDNS1123Label(namespace)) > 0 || len(utilvalidation.IsDNS1123Subdomain(name)) > 0 {
			errs = append(errs, field.Invalid(at, a, "must be NAMESPACE/NAME, as in shop/web"))
		}
	}
	if s.Labels != nil {
		errs = append(errs, metav1validation.ValidateLabelSelector(s.Labels, metav1validation.LabelSelectorValidationOptions{}, path.Child("labels"))...)
	}
	errs = append(errs, checkValueMatches(path.Child("spiffe"), s.SPIFFE, "spiffe://", mesh.MatchExact, mesh.MatchPrefix)...)
	for i, a := range s.Addresses {
		errs = append(errs, checkAddressRange(path.Child("addresses").Index(i), a)...)
	}
	if s.Mesh != "" {
		errs = append(errs, checkLabel(path.Child("mesh"), s.Mesh)...)
	}
	return errs
}

// checkAddressRange: an address, or a range without bits beyond its prefix.
func checkAddressRange(path *field.Path, text string) field.ErrorList {
	if !strings.Contains(text, "/") {
		return utilvalidation.IsValidIP(path, text)
	}
	if p, err := netip.ParsePrefix(text); err != nil || p.Masked().String() != text {
		return field.ErrorList{field.Invalid(path, text, "must be an address, or a range in CIDR notation such as 10.1.0.0/16")}
	}
	return nil
}

// checkValueMatches; begin is what each value begins with.
func checkValueMatches(path *field.Path, all []mesh.ValueMatch, begin string, types ...string) field.ErrorList {
	if len(all) > maxPolicyItems {
		return field.ErrorList{field.TooMany(path, len(all), maxPolicyItems)}
	}
	var errs field.ErrorList
	for i, m := range all {
		at := path.Index(i)
		errs = append(errs, checkChoice(at.Child("type"), m.Type, types...)...)
		switch {
		case m.Value == "":
			errs = append(errs, field.Required(at.Child("value"), ""))
		case len(m.Value) > maxPolicyText:
			errs = append(errs, field.TooLong(at.Child("value"), "", maxPolicyText))
		case m.Type == mesh.MatchRegularExpression:
			errs = append(errs, checkExpression(at.Child("value"), m.Value)...)
		case !strings.HasPrefix(m.Value, begin):
			errs = append(errs, field.Invalid(at.Child("value"), m.Value, "must begin with "+begin))
		}
	}
	return errs
}

// checkExpression of RE2, which is Go's and Envoy's.
func checkExpression(path *field.Path, text string) field.ErrorList {
	if len(text) > maxPolicyText {
		return field.ErrorList{field.TooLong(path, "", maxPolicyText)}
	}
	if _, err := regexp.Compile(text); err != nil {
		return field.ErrorList{field.Invalid(path, text, "must be a regular expression (RE2): "+err.Error())}
	}
	return nil
}

// minRatePeriod is Envoy's shortest fill interval of a token bucket.
const minRatePeriod = 50 * time.Millisecond

func checkRateLimits(path *field.Path, all []mesh.RateLimit) field.ErrorList {
	if len(all) > maxPolicyItems {
		return field.ErrorList{field.TooMany(path, len(all), maxPolicyItems)}
	}
	var errs field.ErrorList
	for i, r := range all {
		at := path.Index(i)
		errs = append(errs, checkSources(at.Child("from"), r.From)...)
		if r.HTTP == nil && r.TCP == nil {
			errs = append(errs, field.Required(at, "must specify `http`, `tcp` or both"))
		}
		if h := r.HTTP; h != nil {
			errs = append(errs, checkRange(at.Child("http", "requests"), &h.Requests, 1, 1<<31-1)...)
			errs = append(errs, checkDuration(at.Child("http", "per"), &h.Per, minRatePeriod, false)...)
			errs = append(errs, checkRange(at.Child("http", "status"), h.Status, 400, 599)...)
		}
		if t := r.TCP; t != nil {
			errs = append(errs, checkRange(at.Child("tcp", "connections"), &t.Connections, 1, 1<<31-1)...)
			errs = append(errs, checkDuration(at.Child("tcp", "per"), &t.Per, minRatePeriod, false)...)
			if len(r.From) > 0 {
				errs = append(errs, field.Forbidden(at.Child("from"), "connections are limited for all callers together: leave out `from`, or `tcp`"))
			}
		}
	}
	return errs
}

func checkFaults(path *field.Path, all []mesh.Fault) field.ErrorList {
	if len(all) > maxPolicyItems {
		return field.ErrorList{field.TooMany(path, len(all), maxPolicyItems)}
	}
	var errs field.ErrorList
	for i, f := range all {
		at := path.Index(i)
		errs = append(errs, checkSources(at.Child("from"), f.From)...)
		errs = append(errs, checkPercent(at.Child("percent"), f.Percent)...)
		if f.Abort == nil && f.Delay == nil && f.Bandwidth == nil {
			errs = append(errs, field.Required(at, "must specify `abort`, `delay` or `bandwidth`"))
		}
		if a := f.Abort; a != nil {
			if (a.HTTPStatus == nil) == (a.GRPCStatus == nil) {
				errs = append(errs, field.Required(at.Child("abort"), "must specify one of `httpStatus` and `grpcStatus`"))
			}
			errs = append(errs, checkRange(at.Child("abort", "httpStatus"), a.HTTPStatus, 200, 599)...)
			errs = append(errs, checkRange(at.Child("abort", "grpcStatus"), a.GRPCStatus, 1, 16)...)
		}
		errs = append(errs, checkDuration(at.Child("delay"), f.Delay, time.Millisecond, false)...)
		errs = append(errs, checkRange(at.Child("bandwidth"), f.Bandwidth, 1, 1<<31-1)...)
	}
	return errs
}

// policyMeta checks the metadata of a policy of traffic.
func policyMeta[T interface {
	comparable
	metav1.Object
}](obj, old T) field.ErrorList {
	return checkMetaOf(obj, old, true, validation.NameIsDNSSubdomain)
}
