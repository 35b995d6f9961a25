package kind

import (
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// BackendPolicy describes mesh.proxima.dev/v1alpha1 BackendPolicy. Nothing is defaulted: what a
// policy leaves out others may say.
var BackendPolicy = &resource.Descriptor{
	GVK:        mesh.SchemeGroupVersion.WithKind("BackendPolicy"),
	Resource:   "backendpolicies",
	Singular:   "backendpolicy",
	ShortNames: []string{"bp"},
	Categories: []string{"proxima"},
	Namespaced: true,
	Status:     true,
	Direction:  resource.GlobalToZone,

	New:     func() resource.Object { return &mesh.BackendPolicy{} },
	NewList: func() runtime.Object { return &mesh.BackendPolicyList{} },

	Prepare:        backendPolicyParts.prepare,
	PrepareStatus:  backendPolicyParts.prepareStatus,
	Validate:       compare(validateBackendPolicy),
	ValidateStatus: compare(validateBackendPolicyStatus),

	Columns: trafficPolicyColumns(),
	Cells: of(func(p *mesh.BackendPolicy) []any {
		return trafficPolicyCells(p, &p.Spec.PolicyTarget, &p.Status)
	}),
}

var backendPolicyParts = parts[*mesh.BackendPolicy, mesh.BackendPolicySpec, mesh.TrafficPolicyStatus](
	func(p *mesh.BackendPolicy) (*mesh.BackendPolicySpec, *mesh.TrafficPolicyStatus) {
		return &p.Spec, &p.Status
	})

func validateBackendPolicyStatus(p, old *mesh.BackendPolicy) field.ErrorList {
	return append(policyMeta(p, old), checkTrafficPolicyStatus(&p.Status)...)
}

// gatewayGroup is that of the Gateway API's kinds.
const gatewayGroup = "gateway.networking.k8s.io"

func validateBackendPolicy(p, old *mesh.BackendPolicy) field.ErrorList {
	errs := policyMeta(p, old)
	spec, path := &p.Spec, field.NewPath("spec")
	errs = append(errs, checkTarget(p, &spec.PolicyTarget, metav1.GroupKind{Kind: "Service"}, metav1.GroupKind{Group: mcs.GroupName, Kind: "ServiceImport"},
		metav1.GroupKind{Group: mesh.GroupName, Kind: "ExternalService"}, metav1.GroupKind{Group: gatewayGroup, Kind: "HTTPRoute"},
		metav1.GroupKind{Group: mesh.GroupName, Kind: "Mesh"})...)
	errs = append(errs, checkPolicyTimeout(path.Child("timeout"), spec.Timeout, false)...)
	errs = append(errs, checkBackendRetry(path.Child("retry"), spec.Retry)...)
	errs = append(errs, checkPolicyLimits(path.Child("limits"), spec.Limits)...)
	errs = append(errs, checkOutlier(path.Child("outlier"), spec.Outlier)...)
	errs = append(errs, checkHealthCheck(path.Child("healthCheck"), spec.HealthCheck)...)
	errs = append(errs, checkBalancer(path.Child("balancer"), spec.Balancer)...)
	errs = append(errs, checkLocality(path.Child("locality"), spec.Locality)...)
	errs = append(errs, checkRateLimits(path.Child("rateLimit"), spec.RateLimit)...)
	errs = append(errs, checkFaults(path.Child("faults"), spec.Faults)...)
	for i, r := range spec.RateLimit {
		if len(r.From) > 0 {
			errs = append(errs, field.Forbidden(path.Child("rateLimit").Index(i).Child("from"), "the callers are those that the policy is for"))
		}
	}
	for i, f := range spec.Faults {
		if len(f.From) > 0 {
			errs = append(errs, field.Forbidden(path.Child("faults").Index(i).Child("from"), "the callers are those that the policy is for"))
		}
	}
	return errs
}

// retryConditions are what a proxy tries again, by the names of Envoy (x-envoy-retry-on).
func retryConditions() []string {
	return []string{
		"5xx", "gateway-error", "reset", "reset-before-request", "connect-failure", "retriable-4xx", "refused-stream", "http3-post-connect-failure",
	}
}

// retryStatuses are what it tries again of gRPC (x-envoy-retry-grpc-on).
func retryStatuses() []string {
	return []string{"cancelled", "deadline-exceeded", "internal", "resource-exhausted", "unavailable"}
}

func checkBackendRetry(path *field.Path, r *mesh.BackendRetry) field.ErrorList {
	if r == nil {
		return nil
	}
	errs := checkRange(path.Child("attempts"), r.Attempts, 0, 100)
	errs = append(errs, checkRange(path.Child("tcpAttempts"), r.TCPAttempts, 1, 100)...)
	on, grpc := set[string]{}, set[string]{}
	for i, v := range r.Conditions {
		errs = append(errs, checkWord(path.Child("conditions").Index(i), v, on, retryConditions()...)...)
	}
	for i, v := range r.GRPC {
		errs = append(errs, checkWord(path.Child("grpc").Index(i), v, grpc, retryStatuses()...)...)
	}
	errs = append(errs, checkStatuses(path.Child("codes"), r.Codes, 400)...)
	if b := r.Backoff; b != nil {
		errs = append(errs, checkDuration(path.Child("backoff", "base"), b.Base, time.Millisecond, false)...)
		errs = append(errs, checkDuration(path.Child("backoff", "max"), b.Max, time.Millisecond, false)...)
		if b.Base != nil && b.Max != nil && b.Max.Value() < b.Base.Value() {
			errs = append(errs, field.Invalid(path.Child("backoff", "max"), string(*b.Max), "must not be less than `base`"))
		}
	}
	if b := r.Budget; b != nil {
		errs = append(errs, checkRange(path.Child("budget", "percent"), b.Percent, 0, 100)...)
		if m := b.MinRetryRate; m != nil {
			errs = append(errs, checkRange(path.Child("budget", "minRetryRate", "count"), m.Count, 1, 1000000)...)
			errs = append(errs, checkDuration(path.Child("budget", "minRetryRate", "interval"), m.Interval, time.Second, false)...)
			if m.Interval != nil && m.Interval.Value() > time.Hour {
				errs = append(errs, field.Invalid(path.Child("budget", "minRetryRate", "interval"), string(*m.Interval), "must be at most 1h"))
			}
		}
	}
	return errs
}

// checkWord of a list, each of which is there once.
func checkWord(path *field.Path, word string, seen set[string], words ...string) field.ErrorList {
	if word == "" {
		return field.ErrorList{field.NotSupported(path, word, words)}
	}
	errs := checkChoice(path, word, words...)
	if !seen.add(word) {
		errs = append(errs, field.Duplicate(path, word))
	}
	return errs
}

func checkStatuses(path *field.Path, codes []int32, low int32) field.ErrorList {
	if len(codes) > maxPolicyItems {
		return field.ErrorList{field.TooMany(path, len(codes), maxPolicyItems)}
	}
	var errs field.ErrorList
	seen := set[int32]{}
	for i := range codes {
		errs = append(errs, checkRange(path.Index(i), &codes[i], low, 599)...)
		if !seen.add(codes[i]) {
			errs = append(errs, field.Duplicate(path.Index(i), codes[i]))
		}
	}
	return errs
}

func checkOutlier(path *field.Path, o *mesh.BackendOutlier) field.ErrorList {
	if o == nil {
		return nil
	}
	const most = 1<<31 - 1
	errs := checkRange(path.Child("local"), o.Local, 0, most)
	errs = append(errs, checkRange(path.Child("gateway"), o.Gateway, 0, most)...)
	errs = append(errs, checkRange(path.Child("total"), o.Total, 0, most)...)
	errs = append(errs, checkRange(path.Child("maxPercent"), o.MaxPercent, 0, 100)...)
	errs = append(errs, checkRange(path.Child("panic"), o.Panic, 0, 100)...)
	errs = append(errs, checkDuration(path.Child("interval"), o.Interval, time.Millisecond, false)...)
	errs = append(errs, checkDuration(path.Child("ejection"), o.Ejection, time.Millisecond, false)...)
	if s := o.SuccessRate; s != nil {
		at := path.Child("successRate")
		errs = append(errs, checkRange(at.Child("factor"), s.Factor, 1, most)...)
		errs = append(errs, checkRange(at.Child("minHosts"), s.MinHosts, 1, most)...)
		errs = append(errs, checkRange(at.Child("minRequests"), s.MinRequests, 1, most)...)
	}
	if f := o.FailurePercent; f != nil {
		at := path.Child("failurePercent")
		errs = append(errs, checkRange(at.Child("threshold"), f.Threshold, 1, 100)...)
		errs = append(errs, checkRange(at.Child("minHosts"), f.MinHosts, 1, most)...)
		errs = append(errs, checkRange(at.Child("minRequests"), f.MinRequests, 1, most)...)
	}
	return errs
}

func checkHealthCheck(path *field.Path, h *mesh.BackendHealthCheck) field.ErrorList {
	if h == nil {
		return nil
	}
	errs := checkChoice(path.Child("type"), h.Type, mesh.CheckOff, mesh.CheckHTTP, mesh.CheckTCP, mesh.CheckGRPC)
	if h.Path != "" && h.Type != mesh.CheckHTTP {
		errs = append(errs, field.Forbidden(path.Child("path"), "may only be set when `type` is 'HTTP'"))
	} else if h.Path != "" && !strings.HasPrefix(h.Path, "/") {
		errs = append(errs, field.Invalid(path.Child("path"), h.Path, "must begin with /"))
	}
	if h.Host != "" && h.Type != mesh.CheckHTTP && h.Type != mesh.CheckGRPC {
		errs = append(errs, field.Forbidden(path.Child("host"), "may only be set when `type` is 'HTTP' or 'GRPC'"))
	}
	if len(h.Statuses) > 0 && h.Type != mesh.CheckHTTP {
		errs = append(errs, field.Forbidden(path.Child("statuses"), "may only be set when `type` is 'HTTP'"))
	}
	if h.Service != "" && h.Type != mesh.CheckGRPC {
		errs = append(errs, field.Forbidden(path.Child("service"), "may only be set when `type` is 'GRPC'"))
	}
	errs = append(errs, checkStatuses(path.Child("statuses"), h.Statuses, 100)...)
	errs = append(errs, checkDuration(path.Child("interval"), h.Interval, time.Millisecond, false)...)
	errs = append(errs, checkDuration(path.Child("timeout"), h.Timeout, time.Millisecond, false)...)
	errs = append(errs, checkRange(path.Child("healthy"), h.Healthy, 1, 1000)...)
	return append(errs, checkRange(path.Child("unhealthy"), h.Unhealthy, 1, 1000)...)
}

func checkBalancer(path *field.Path, b *mesh.BackendBalancer) field.ErrorList {
	if b == nil {
		return nil
	}
	errs := checkChoice(path.Child("type"), b.Type,
		mesh.BalanceLeastRequest, mesh.BalanceRoundRobin, mesh.BalanceRandom, mesh.BalanceRingHash, mesh.BalanceMaglev)
	hashed := b.Type == mesh.BalanceRingHash || b.Type == mesh.BalanceMaglev
	switch {
	case hashed && len(b.Hash) == 0:
		errs = append(errs, field.Required(path.Child("hash"), "must say what "+b.Type+" chooses by"))
	case len(b.Hash) > 0 && !hashed && b.Type != "":
		errs = append(errs, field.Forbidden(path.Child("hash"), "may only be set when `type` is 'RingHash' or 'Maglev'"))
	case len(b.Hash) > maxPolicyItems:
		return append(errs, field.TooMany(path.Child("hash"), len(b.Hash), maxPolicyItems))
	}
	for i, h := range b.Hash {
		at := path.Child("hash").Index(i)
		if h.Type == "" {
			errs = append(errs, field.Required(at.Child("type"), "must be Header, Cookie, Query or SourceIP"))
		}
		errs = append(errs, checkChoice(at.Child("type"), h.Type, mesh.HashHeader, mesh.HashCookie, mesh.HashQuery, mesh.HashSourceIP)...)
		switch named := h.Type != mesh.HashSourceIP; {
		case named && h.Name == "":
			errs = append(errs, field.Required(at.Child("name"), ""))
		case !named && h.Name != "":
			errs = append(errs, field.Forbidden(at.Child("name"), "an address has no name"))
		}
		if h.TTL != nil && h.Type != mesh.HashCookie {
			errs = append(errs, field.Forbidden(at.Child("ttl"), "may only be set when `type` is 'Cookie'"))
		}
		errs = append(errs, checkDuration(at.Child("ttl"), h.TTL, time.Second, true)...)
	}
	return errs
}

func checkLocality(path *field.Path, l *mesh.BackendLocality) field.ErrorList {
	if l == nil {
		return nil
	}
	errs := checkChoice(path.Child("mode"), l.Mode, mesh.LocalityPlan, mesh.LocalityStrict, mesh.LocalityOff)
	errs = append(errs, checkRange(path.Child("threshold"), l.Threshold, 1, 100)...)
	if len(l.Affinity) > maxPolicyItems {
		return append(errs, field.TooMany(path.Child("affinity"), len(l.Affinity), maxPolicyItems))
	}
	if len(l.Failover) > maxPolicyItems {
		return append(errs, field.TooMany(path.Child("failover"), len(l.Failover), maxPolicyItems))
	}
	for i, a := range l.Affinity {
		at := path.Child("affinity").Index(i)
		if a.Label == "" {
			errs = append(errs, field.Required(at.Child("label"), ""))
		} else {
			errs = append(errs, checkQualifiedName(at.Child("label"), a.Label)...)
		}
		errs = append(errs, checkRange(at.Child("weight"), a.Weight, 1, 1000000)...)
	}
	for i, f := range l.Failover {
		errs = append(errs, checkFailover(path.Child("failover").Index(i), f)...)
	}
	if l.Mode == mesh.LocalityStrict && len(l.Failover) > 0 || l.Mode == mesh.LocalityOff && (len(l.Failover) > 0 || len(l.Affinity) > 0) {
		errs = append(errs, field.Forbidden(path.Child("mode"), "mode "+l.Mode+" has no failover, and mode Off has no affinity: use 'Plan'"))
	}
	return errs
}

func checkFailover(path *field.Path, f mesh.LocalityFailover) field.ErrorList {
	var errs field.ErrorList
	to := []string{mesh.FailoverAny, mesh.FailoverNone, mesh.FailoverOnly, mesh.FailoverAnyExcept}
	if f.To == "" {
		errs = append(errs, field.NotSupported(path.Child("to"), f.To, to))
	}
	errs = append(errs, checkChoice(path.Child("to"), f.To, to...)...)
	switch named := f.To == mesh.FailoverOnly || f.To == mesh.FailoverAnyExcept; {
	case named && len(f.Zones) == 0:
		errs = append(errs, field.Required(path.Child("zones"), "must be set when `to` is '"+f.To+"'"))
	case !named && len(f.Zones) > 0:
		errs = append(errs, field.Forbidden(path.Child("zones"), "may only be set when `to` is 'Only' or 'AnyExcept'"))
	}
	for _, list := range []struct {
		name  string
		zones []string
	}{{"from", f.From}, {"zones", f.Zones}} {
		seen := set[string]{}
		for i, z := range list.zones {
			errs = append(errs, checkZoneName(path.Child(list.name).Index(i), z)...)
			if !seen.add(z) {
				errs = append(errs, field.Duplicate(path.Child(list.name).Index(i), z))
			}
		}
	}
	return errs
}
