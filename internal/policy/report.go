package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/proxima-mesh/proxima/internal/resource"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
)

// Report is what is to be said of a policy in its status.
type Report struct {
	// Targets that it concerns.
	Targets []Ref
	// Missing are targets that it names and that are not there.
	Missing []string
	// Overridden are fields of it that others set, for some target.
	Overridden []Override
}

// Report on a policy; false: it is not in the index. It costs as much as the number of its
// targets, and, of a BackendPolicy, of their ports.
func (x *Index) Report(source Source) (Report, bool) {
	set := x.policies[source.Kind]
	if set == nil || set.all[source.Key] == nil {
		return Report{}, false
	}
	e := set.all[source.Key]
	var out Report
	out.Missing = x.missing(e)
	seen := map[Override]struct{}{}
	note := func(all []Override) {
		for _, o := range all {
			if o.Policy == source {
				seen[o] = struct{}{}
			}
		}
	}
	if source.Kind == "BackendPolicy" {
		out.Targets = x.backendTargets(e)
		for _, ref := range out.Targets {
			for _, m := range x.mergedFor(e, ref) {
				note(m.overrides)
			}
		}
	} else {
		out.Targets = x.workloadTargets(e)
		if source.Kind == "WorkloadPolicy" {
			for _, ref := range out.Targets {
				w, _ := x.Workload(ref)
				note(w.Overrides)
				for _, p := range w.Ports {
					note(p.Overrides)
				}
			}
		}
	}
	out.Overridden = slices.SortedFunc(maps.Keys(seen), func(a, b Override) int {
		return strings.Compare(a.Field+a.By.String(), b.Field+b.By.String())
	})
	return out, true
}

// mergedFor merges for each port of a target, as the clients that the policy is for see it.
func (x *Index) mergedFor(e *entry, ref Ref) []merged {
	if ref.Kind == "HTTPRoute" {
		return nil
	}
	ports := []Port{{}}
	if b := x.backends[ref]; b != nil && len(b.ports) > 0 {
		ports = b.ports
	}
	var out []merged
	for _, p := range ports {
		out = append(out, merge(fieldsOf(backendDefaults()), x.backendLayers(e.source.Key.Namespace, ref, p)))
	}
	return out
}

func (x *Index) missing(e *entry) []string {
	var out []string
	for i, t := range e.targets {
		ref := e.target(t)
		var there bool
		switch ref.Kind {
		case "":
			out = append(out, fmt.Sprintf("spec.targetRefs[%d]: a policy of namespace %s is not for %s %s", i, e.source.Key.Namespace, t.Kind, t.Name))
			continue
		case "Mesh":
			there = x.meshes[ref.Key.Name] != nil
		case "HTTPRoute":
			there = x.routes.all[ref] != nil
		case "Dataplane", "Pod":
			_, there = x.workload(ref)
		default:
			b := x.backends[ref]
			there = b != nil
			if there && t.SectionName != "" && !slices.ContainsFunc(b.ports, func(p Port) bool { return p.is(t.SectionName) }) {
				out = append(out, fmt.Sprintf("spec.targetRefs[%d]: %s %s has no port %s", i, ref.Kind, ref.Key, t.SectionName))
			}
		}
		if !there {
			out = append(out, fmt.Sprintf("spec.targetRefs[%d]: there is no %s %s", i, ref.Kind, ref.Key))
		}
	}
	return out
}

func (x *Index) backendTargets(e *entry) []Ref {
	var out []Ref
	for _, t := range e.targets {
		ref := e.target(t)
		switch {
		case ref.Kind == "HTTPRoute" && x.routes.all[ref] != nil, x.backends[ref] != nil:
			out = append(out, ref)
		case ref.Kind == "Mesh":
			for b := range x.backends {
				if x.meshOf(b.Key.Namespace) == ref.Key.Name {
					out = append(out, b)
				}
			}
		}
	}
	if len(e.targets) == 0 {
		for ref := range x.backends {
			if slices.ContainsFunc(x.backendLayers("", ref, Port{}), func(l layer) bool { return l.source == e.source }) {
				out = append(out, ref)
			}
		}
	}
	return unique(out)
}

func (x *Index) workloadTargets(e *entry) []Ref {
	var out []Ref
	namespaces := []string{e.source.Key.Namespace}
	for _, t := range e.targets {
		if e.target(t).Kind == "Mesh" {
			namespaces = slices.Collect(maps.Keys(x.workloads))
		}
	}
	for _, n := range namespaces {
		for _, w := range x.workloads[n] {
			if x.concerns(e, w) {
				out = append(out, w.ref)
			}
		}
	}
	return unique(out)
}

// concerns reports whether a policy is for a workload, or for a port of it.
func (x *Index) concerns(e *entry, w *workload) bool {
	is := func(f found) bool { return f.entry == e }
	if slices.ContainsFunc(x.forWorkload(e.source.Kind, w, nil), is) {
		return true
	}
	return slices.ContainsFunc(w.object.Spec.Ports, func(p mesh.DataplanePort) bool {
		return slices.ContainsFunc(x.forWorkload(e.source.Kind, w, &p), is)
	})
}

func unique(in []Ref) []Ref {
	slices.SortFunc(in, func(a, b Ref) int {
		if c := strings.Compare(a.Kind, b.Kind); c != 0 {
			return c
		}
		return strings.Compare(a.Key.String(), b.Key.String())
	})
	return slices.Compact(in)
}

// Policies of a kind, in order of their names.
func (x *Index) Policies(kind string) []resource.Key {
	set := x.policies[kind]
	if set == nil {
		return nil
	}
	return slices.SortedFunc(maps.Keys(set.all), func(a, b resource.Key) int { return strings.Compare(a.String(), b.String()) })
}
