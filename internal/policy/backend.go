package policy

import (
	"maps"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/labels"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// Backend is how a client treats a port of a backend. Every field that has a default is set:
// pointers to them are never nil.
type Backend struct {
	Settings
	Timeout     mesh.PolicyTimeout
	Retry       mesh.BackendRetry
	Limits      mesh.PolicyLimits
	Outlier     mesh.BackendOutlier
	HealthCheck mesh.BackendHealthCheck
	Balancer    mesh.BackendBalancer
	Locality    mesh.BackendLocality
	RateLimit   []mesh.RateLimit
	Faults      []mesh.Fault
}

// UsesHTTP reports whether a policy sets something that only proxies that understand HTTP do.
func (b *Backend) UsesHTTP() bool {
	for path := range b.From {
		switch path {
		case "timeout.request", "timeout.perTry", "timeout.streamIdle", "timeout.maxStream", "faults", "balancer.hash",
			"retry.attempts", "retry.conditions", "retry.codes", "retry.grpc", "retry.backoff.base", "retry.backoff.max":
			return true
		}
	}
	for _, r := range b.RateLimit {
		if r.HTTP != nil {
			return true
		}
	}
	return false
}

func at[T any](v T) *T { return &v }

// backendDefaults break nothing: there is no timeout of requests, no limit, and a retry of what
// was not sent.
func backendDefaults() mesh.BackendPolicySpec {
	return mesh.BackendPolicySpec{
		Timeout: &mesh.PolicyTimeout{
			Connect: at[mesh.Duration]("5s"), Idle: at[mesh.Duration]("1h"), Request: at[mesh.Duration]("0s"), PerTry: at[mesh.Duration]("0s"),
			StreamIdle: at[mesh.Duration]("30m"), MaxStream: at[mesh.Duration]("0s"), MaxConnection: at[mesh.Duration]("0s"),
		},
		Retry: &mesh.BackendRetry{
			Attempts: at[int32](2), Conditions: []string{"connect-failure", "refused-stream"},
			Backoff: &mesh.RetryBackoff{Base: at[mesh.Duration]("25ms"), Max: at[mesh.Duration]("250ms")},
			Budget: &mesh.RetryBudget{
				Percent: at[int32](20), MinRetryRate: &mesh.RequestRate{Count: at[int32](10), Interval: at[mesh.Duration]("1s")},
			},
			TCPAttempts: at[int32](3),
		},
		Limits: &mesh.PolicyLimits{Connections: at[int32](0), Requests: at[int32](0), Retries: at[int32](0)},
		Outlier: &mesh.BackendOutlier{
			Local: at[int32](3), Gateway: at[int32](0), Total: at[int32](0), Interval: at[mesh.Duration]("5s"), Ejection: at[mesh.Duration]("10s"),
			MaxPercent: at[int32](100), Panic: at[int32](1),
		},
		HealthCheck: &mesh.BackendHealthCheck{
			Type: mesh.CheckOff, Interval: at[mesh.Duration]("10s"), Timeout: at[mesh.Duration]("1s"), Healthy: at[int32](1),
			Unhealthy: at[int32](3),
		},
		Balancer: &mesh.BackendBalancer{},
		Locality: &mesh.BackendLocality{Mode: mesh.LocalityPlan, Threshold: at[int32](71)},
	}
}

// Backend is how clients of a namespace treat a port of a Service, ServiceImport or
// ExternalService. It need not be in the index: then policies that name it count.
func (x *Index) Backend(client string, ref Ref, port Port) Backend {
	return backendOf(merge(fieldsOf(backendDefaults()), x.backendLayers(client, ref, port)))
}

// HasBackend reports whether a policy says something of a backend, so that Backend is not all
// defaults. It is cheaper than Backend.
func (x *Index) HasBackend(client string, ref Ref, port Port) bool {
	return len(x.backendLayers(client, ref, port)) > 0
}

// Eager are the backends that clients of a namespace must know as HTTP from their first
// connection on, or whose connections go elsewhere: those with a route, and those for which a
// BackendPolicy of their namespace, or of the client's, sets what only proxies that understand HTTP
// do. A policy of a whole Mesh names none.
func (x *Index) Eager(client string) []Ref {
	seen := map[Ref]struct{}{}
	for ref := range x.routes.byParent {
		if len(x.attached(client, ref, anyPort, "HTTPRoute", "GRPCRoute", "TCPRoute")) > 0 {
			seen[ref] = struct{}{}
		}
	}
	for _, e := range x.policies["BackendPolicy"].all {
		b := Backend{Settings: Settings{From: merge(nil, []layer{{source: e.source, fields: e.fields}}).from}}
		b.RateLimit = e.object.(*mesh.BackendPolicy).Spec.RateLimit
		if !b.UsesHTTP() {
			continue
		}
		if len(e.targets) == 0 {
			for ref, known := range x.backends {
				if ref.Key.Namespace == e.source.Key.Namespace && (e.selector == nil || e.selector.Matches(labels.Set(known.labels))) {
					seen[ref] = struct{}{}
				}
			}
		}
		for _, t := range e.targets {
			ref := e.target(t)
			if x.backends[ref] != nil && (ref.Key.Namespace == e.source.Key.Namespace || client == e.source.Key.Namespace) {
				seen[ref] = struct{}{}
			}
		}
	}
	return unique(slices.Collect(maps.Keys(seen)))
}

func backendOf(m merged) Backend {
	spec := decode[mesh.BackendPolicySpec](m.fields)
	b := Backend{
		Settings: Settings{From: m.from, Overrides: m.overrides},
		Timeout:  *spec.Timeout, Retry: *spec.Retry, Limits: *spec.Limits, Outlier: *spec.Outlier, HealthCheck: *spec.HealthCheck,
		Balancer: *spec.Balancer, Locality: *spec.Locality, RateLimit: spec.RateLimit, Faults: spec.Faults,
	}
	if s := b.Outlier.SuccessRate; s != nil {
		orDefault(&s.Factor, 1900)
		orDefault(&s.MinHosts, 5)
		orDefault(&s.MinRequests, 100)
	}
	if f := b.Outlier.FailurePercent; f != nil {
		orDefault(&f.Threshold, 85)
		orDefault(&f.MinHosts, 5)
		orDefault(&f.MinRequests, 50)
	}
	return b
}

func orDefault(p **int32, value int32) {
	if *p == nil {
		*p = at(value)
	}
}

// backendLayers are the policies that hold for clients of a namespace.
func (x *Index) backendLayers(client string, ref Ref, port Port) []layer {
	set := x.policies["BackendPolicy"]
	known := x.backends[ref]
	var out []layer
	add := func(e *entry, l level) {
		r := producer
		if e.source.Key.Namespace != ref.Key.Namespace && l > levelMesh {
			if e.source.Key.Namespace != client {
				return // somebody else's clients
			}
			r = consumer
		}
		out = append(out, layer{e.source, l, r, e.age, e.fields})
	}
	of := x.meshOf(ref.Key.Namespace)
	if known != nil && known.mesh != "" {
		of = known.mesh
	}
	for _, e := range sorted(set.byTarget[Ref{"Mesh", resource.Key{Name: of}}]) {
		add(e, levelMesh)
	}
	for _, e := range sorted(set.byNamespace[ref.Key.Namespace]) {
		switch {
		case e.selector == nil:
			add(e, levelNamespace)
		case ref.Kind == "Service" && known != nil && e.selector.Matches(labels.Set(known.labels)):
			add(e, levelSelector)
		}
	}
	for _, e := range sorted(set.byTarget[ref]) {
		for _, l := range e.levels(ref, port) {
			add(e, l)
		}
	}
	return out
}

// levels at which a policy names an object: as a whole, or a port of it.
func (e *entry) levels(ref Ref, port Port) []level {
	whole, part := false, false
	for _, t := range e.targets {
		switch {
		case e.target(t) != ref:
		case t.SectionName == "":
			whole = true
		case port.is(t.SectionName):
			part = true
		}
	}
	switch {
	case part:
		return []level{levelPort}
	case whole:
		return []level{levelObject}
	}
	return nil
}

func decimal(n int32) string { return strconv.Itoa(int(n)) }
