package policy

import (
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	identity "github.com/proxima-mesh/proxima/internal/identity/mesh"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// Permission says who may call a port of a workload.
type Permission struct {
	// Deny comes before Allow.
	Deny, Allow []Rule
	// ShadowDeny and ShadowAllow are not enforced: proxies count what they would refuse.
	ShadowDeny, ShadowAllow []Rule
	// Refuse what no rule of Allow describes: there is one, or the Mesh denies by default.
	// Otherwise it is let through.
	Refuse bool
	// ShadowRefuse is what Refuse would be if the shadows were enforced.
	ShadowRefuse bool
}

// Empty reports that every call is let through.
func (p *Permission) Empty() bool {
	return len(p.Deny) == 0 && !p.Refuse && len(p.ShadowDeny) == 0 && len(p.ShadowAllow) == 0
}

// Rule describes calls.
type Rule struct {
	Source Source
	// Callers, one of which must be right. Empty and not Nobody: everybody.
	Callers []Caller
	// Nobody: the rule is for callers of whom there are none.
	Nobody bool
	// To describes HTTP requests; empty: all, and connections.
	To []mesh.PermissionRequest
}

// Caller describes who calls: of each of the lists one item must be right.
type Caller struct {
	// Names are lists of SPIFFE IDs, compared by Exact or Prefix.
	Names [][]mesh.ValueMatch
	// Addresses are lists of addresses and ranges.
	Addresses [][]string
}

// Permission of a port of a workload; false: there is no such workload or port.
func (x *Index) Permission(ref Ref, port int32) (Permission, bool) {
	w, ok := x.workload(ref)
	if !ok {
		return Permission{}, false
	}
	i := slices.IndexFunc(w.object.Spec.Ports, func(p mesh.DataplanePort) bool { return p.Port == port })
	if i < 0 {
		return Permission{}, false
	}
	var out Permission
	if m := x.meshes[x.workloadMesh(w)]; m != nil && m.Spec.DefaultAccess == mesh.AccessDeny {
		out.Refuse = true
	}
	for _, f := range x.forWorkload("TrafficPermission", w, &w.object.Spec.Ports[i]) {
		spec := &f.object.(*mesh.TrafficPermission).Spec
		deny, allow := x.rules(w, f, spec.Deny), x.rules(w, f, spec.Allow)
		if spec.Shadow {
			out.ShadowDeny, out.ShadowAllow = append(out.ShadowDeny, deny...), append(out.ShadowAllow, allow...)
			continue
		}
		out.Deny, out.Allow = append(out.Deny, deny...), append(out.Allow, allow...)
	}
	out.Refuse = out.Refuse || len(out.Allow) > 0
	out.ShadowRefuse = out.Refuse || len(out.ShadowAllow) > 0
	return out, true
}

func (x *Index) rules(w *workload, f found, all []mesh.PermissionRule) []Rule {
	var out []Rule
	for _, r := range all {
		rule := Rule{Source: f.source, To: r.To}
		for i := range r.From {
			rule.Callers = append(rule.Callers, x.callers(w, f, &r.From[i])...)
		}
		rule.Nobody = len(r.From) > 0 && len(rule.Callers) == 0
		out = append(out, rule)
	}
	return out
}

// Callers that the rules and limits of a workload's policy describe.
func (x *Index) Callers(ref Ref, source Source, from []mesh.PolicySource) []Caller {
	w, ok := x.workload(ref)
	if !ok {
		return nil
	}
	e := x.policies[source.Kind].all[source.Key]
	if e == nil {
		return nil
	}
	var out []Caller
	for i := range from {
		out = append(out, x.callers(w, found{e, levelObject}, &from[i])...)
	}
	return out
}

// domainOf a mesh: the name of its identities.
func (x *Index) domainOf(name string) string {
	domain := ""
	if m := x.meshes[name]; m != nil && m.Spec.MTLS != nil {
		domain = m.Spec.MTLS.TrustDomain
	}
	d, err := identity.DomainOf(name, domain)
	if err != nil {
		return name + ".mesh"
	}
	return d.String()
}

// callers of a source. What has labels becomes the service accounts of the workloads that have
// them; where others share an account, addresses must be right as well.
func (x *Index) callers(w *workload, f found, s *mesh.PolicySource) []Caller {
	of := x.workloadMesh(w)
	if s.Mesh != "" {
		of = s.Mesh
	}
	prefix := "spiffe://" + x.domainOf(of) + "/"
	var base Caller
	add := func(names []mesh.ValueMatch) { base.Names = append(base.Names, names) }
	if s.Mesh != "" {
		add([]mesh.ValueMatch{{Type: mesh.MatchPrefix, Value: prefix}})
	}
	if len(s.Namespaces) > 0 {
		var names []mesh.ValueMatch
		for _, n := range s.Namespaces {
			names = append(names, mesh.ValueMatch{Type: mesh.MatchPrefix, Value: prefix + "ns/" + n + "/"})
		}
		add(names)
	}
	if len(s.ServiceAccounts) > 0 {
		var names []mesh.ValueMatch
		for _, a := range s.ServiceAccounts {
			names = append(names, mesh.ValueMatch{Type: mesh.MatchExact, Value: accountName(prefix, a)})
		}
		add(names)
	}
	if len(s.SPIFFE) > 0 {
		add(slices.Clone(s.SPIFFE))
	}
	if len(s.Addresses) > 0 {
		base.Addresses = append(base.Addresses, slices.Clone(s.Addresses))
	}
	if s.Labels == nil {
		return []Caller{base}
	}
	return x.labelledCallers(base, prefix, of, f, s)
}

func accountName(prefix, account string) string {
	for i := range account {
		if account[i] == '/' {
			return prefix + "ns/" + account[:i] + "/sa/" + account[i+1:]
		}
	}
	return prefix
}

// account of workloads, and the addresses of those that have the labels.
type account struct {
	addresses []string
	shared    bool
}

// labelledCallers: labels are of workloads in the namespaces of the source, else in that of the
// policy, else (a policy of a Mesh) in those of the mesh.
func (x *Index) labelledCallers(base Caller, prefix, of string, f found, s *mesh.PolicySource) []Caller {
	selector, err := metav1.LabelSelectorAsSelector(s.Labels)
	if err != nil {
		return nil // validation refuses it
	}
	namespaces := s.Namespaces
	switch {
	case len(namespaces) > 0:
	case len(f.targets) > 0 && f.target(f.targets[0]).Kind == "Mesh":
		namespaces = slices.Collect(maps.Keys(x.workloads))
	default:
		namespaces = []string{f.source.Key.Namespace}
	}
	accounts := map[string]*account{}
	for _, n := range namespaces {
		for _, w := range x.workloads[n] {
			if x.workloadMesh(w) != of {
				continue
			}
			name := n + "/" + kind.DataplaneAccount(w.object)
			a := accounts[name]
			if a == nil {
				a = &account{}
				accounts[name] = a
			}
			if w.selects(selector) {
				a.addresses = append(a.addresses, w.object.Spec.Addresses...)
			} else {
				a.shared = true
			}
		}
	}
	return labelledBy(base, prefix, accounts)
}

func labelledBy(base Caller, prefix string, accounts map[string]*account) []Caller {
	var out []Caller
	var own []mesh.ValueMatch
	for _, name := range slices.Sorted(maps.Keys(accounts)) {
		a := accounts[name]
		match := mesh.ValueMatch{Type: mesh.MatchExact, Value: accountName(prefix, name)}
		switch {
		case len(a.addresses) == 0:
		case !a.shared:
			own = append(own, match)
		default:
			slices.Sort(a.addresses)
			out = append(out, Caller{
				Names:     append(slices.Clone(base.Names), []mesh.ValueMatch{match}),
				Addresses: append(slices.Clone(base.Addresses), slices.Compact(a.addresses)),
			})
		}
	}
	if len(own) > 0 {
		out = append([]Caller{{Names: append(slices.Clone(base.Names), own), Addresses: base.Addresses}}, out...)
	}
	return out
}

func usesLabels(p *mesh.TrafficPermission) bool {
	for _, rules := range [][]mesh.PermissionRule{p.Spec.Deny, p.Spec.Allow} {
		if slices.ContainsFunc(rules, func(r mesh.PermissionRule) bool { return byLabels(r.From) }) {
			return true
		}
	}
	return false
}

// limitsByLabels reports whether limits or faults are for callers with labels.
func limitsByLabels(s *mesh.WorkloadPolicySpec) bool {
	return slices.ContainsFunc(s.RateLimit, func(r mesh.RateLimit) bool { return byLabels(r.From) }) ||
		slices.ContainsFunc(s.Faults, func(f mesh.Fault) bool { return byLabels(f.From) })
}

func byLabels(from []mesh.PolicySource) bool {
	return slices.ContainsFunc(from, func(s mesh.PolicySource) bool { return s.Labels != nil })
}
