package policy

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// Workload is what the proxy of a workload does.
type Workload struct {
	Settings
	// Mesh that the workload is in.
	Mesh        string
	Passthrough mesh.WorkloadPassthrough
	Backends    []Ref
	AccessLog   []mesh.AccessLog
	Tracing     *mesh.WorkloadTracing
	Metrics     mesh.WorkloadMetrics
	// Ports of the workload, by number.
	Ports map[int32]WorkloadPort
}

// WorkloadPort is what the proxy does with calls to a port.
type WorkloadPort struct {
	Settings
	TLS       mesh.WorkloadTLS
	Timeout   mesh.PolicyTimeout
	Limits    mesh.PolicyLimits
	RateLimit []mesh.RateLimit
	Faults    []mesh.Fault
	AccessLog []mesh.AccessLog
}

// workloadDefaults: TLS 1.3, no timeout of requests, no limits.
func workloadDefaults() mesh.WorkloadPolicySpec {
	return mesh.WorkloadPolicySpec{
		TLS: &mesh.WorkloadTLS{Min: mesh.TLS13},
		Timeout: &mesh.PolicyTimeout{
			Connect: at[mesh.Duration]("5s"), Idle: at[mesh.Duration]("1h"), Request: at[mesh.Duration]("0s"),
			StreamIdle: at[mesh.Duration]("30m"), MaxStream: at[mesh.Duration]("0s"), MaxConnection: at[mesh.Duration]("0s"),
		},
		Limits:      &mesh.PolicyLimits{Connections: at[int32](0), Requests: at[int32](0), Retries: at[int32](0)},
		Passthrough: &mesh.WorkloadPassthrough{},
		Metrics:     &mesh.WorkloadMetrics{Port: at[int32](15020), Path: "/metrics"},
	}
}

// Workload returns what the proxy of a Dataplane or Pod does; false: it is not in the index.
func (x *Index) Workload(ref Ref) (Workload, bool) {
	w, ok := x.workload(ref)
	if !ok {
		return Workload{}, false
	}
	defaults := fieldsOf(workloadDefaults())
	whole := merge(defaults, x.workloadLayers("WorkloadPolicy", w, nil))
	if p := w.object.Spec.Proxy; p != nil && p.Metrics != nil {
		own := fieldsOf(mesh.WorkloadPolicySpec{Metrics: p.Metrics})
		whole.apply(whole.fields, own, "", Source(ref))
	}
	spec := decode[mesh.WorkloadPolicySpec](whole.fields)
	out := Workload{
		Settings: Settings{whole.from, whole.overrides}, Mesh: x.workloadMesh(w), Passthrough: *spec.Passthrough,
		AccessLog: spec.AccessLog, Tracing: spec.Tracing, Metrics: *spec.Metrics, Ports: map[int32]WorkloadPort{},
	}
	namespace := whole.from["backends"].Key.Namespace
	for _, b := range spec.Backends {
		ref := Ref{b.Kind, resource.Key{Namespace: b.Namespace, Name: b.Name}}
		if ref.Kind == "" {
			ref.Kind = "Service"
		}
		if ref.Key.Namespace == "" {
			ref.Key.Namespace = namespace
		}
		out.Backends = append(out.Backends, ref)
	}
	for i := range w.object.Spec.Ports {
		p := &w.object.Spec.Ports[i]
		if p.Protocol != "" && p.Protocol != mesh.ProtocolTCP {
			continue // UDP never enters a proxy
		}
		m := merge(defaults, x.workloadLayers("WorkloadPolicy", w, p))
		spec := decode[mesh.WorkloadPolicySpec](m.fields)
		out.Ports[p.Port] = WorkloadPort{
			Settings: Settings{m.from, m.overrides}, TLS: *spec.TLS, Timeout: *spec.Timeout, Limits: *spec.Limits,
			RateLimit: spec.RateLimit, Faults: spec.Faults, AccessLog: spec.AccessLog,
		}
	}
	return out, true
}

// HasPolicies reports whether there is a policy of a kind.
func (x *Index) HasPolicies(kind string) bool { return len(x.policies[kind].all) > 0 }

// workloadLayers are the policies of a kind for a workload as a whole (port nil), or for a port.
func (x *Index) workloadLayers(kind string, w *workload, port *mesh.DataplanePort) []layer {
	var out []layer
	for _, f := range x.forWorkload(kind, w, port) {
		out = append(out, layer{f.source, f.level, producer, f.age, f.fields})
	}
	return out
}

// found is a policy for a workload, and how closely it describes it.
type found struct {
	*entry
	level level
}

// forWorkload finds the policies of a kind; those of a port only if there is one. They are in the
// order in which they are applied.
func (x *Index) forWorkload(kind string, w *workload, port *mesh.DataplanePort) []found {
	set := x.policies[kind]
	var out []found
	add := func(e *entry, l level) {
		if len(e.ports) > 0 {
			if port == nil || !slices.ContainsFunc(e.ports, Port{port.Name, port.Port}.is) {
				return
			}
			l = levelPort
		}
		out = append(out, found{e, l})
	}
	for _, e := range sorted(set.byTarget[Ref{"Mesh", resource.Key{Name: x.workloadMesh(w)}}]) {
		add(e, levelMesh)
	}
	for _, e := range sorted(set.byNamespace[w.ref.Key.Namespace]) {
		switch {
		case e.selector == nil:
			add(e, levelNamespace)
		case e.selector.Matches(labels.Set(w.object.Labels)):
			add(e, levelSelector)
		case port != nil && len(port.Tags) > 0 && e.selector.Matches(labels.Set(tagged(w.object.Labels, port.Tags))):
			add(e, levelPort)
		}
	}
	for _, e := range sorted(set.byTarget[w.ref]) {
		add(e, levelObject)
	}
	slices.SortStableFunc(out, func(a, b found) int {
		return compareLayers(layer{a.source, a.level, producer, a.age, nil}, layer{b.source, b.level, producer, b.age, nil})
	})
	return out
}

// tagged are the labels of a port: those of its workload, and its tags.
func tagged(labels, tags map[string]string) map[string]string {
	out := maps.Clone(labels)
	if out == nil {
		out = map[string]string{}
	}
	maps.Copy(out, tags)
	return out
}

// Patch is one change of a ProxyPatch.
type Patch struct {
	Source Source
	// Index of the change in its policy.
	Index int
	mesh.ProxyPatchItem
}

// Patches of the proxy of a workload, in the order in which they are applied.
func (x *Index) Patches(ref Ref) []Patch {
	w, ok := x.workload(ref)
	if !ok {
		return nil
	}
	var out []Patch
	for _, f := range x.forWorkload("ProxyPatch", w, nil) {
		for i, p := range f.object.(*mesh.ProxyPatch).Spec.Patches {
			out = append(out, Patch{f.source, i, p})
		}
	}
	return out
}
