package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
)

// What the node of a workload without a proxy does of permissions: it knows clients by their addresses
// alone.

// Members are the workloads that a permission describes as callers by namespace or labels.
type Members struct {
	Mesh string
	// Namespaces; nil: all.
	Namespaces []string
	// Labels; nil: any.
	Labels *metav1.LabelSelector

	selector labels.Selector
}

// ID of the set, the same for the same description.
func (m *Members) ID() string {
	text, err := json.Marshal(m)
	if err != nil {
		panic("policy: encode a description of callers: " + err.Error())
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// GuardRule describes clients: they are Members (nil: anybody), at an address in Ranges (nil: any).
type GuardRule struct {
	// Source is the TrafficPermission that it is of.
	Source  Source
	Members *Members
	Ranges  []netip.Prefix
}

// GuardedPort is who may connect to a port of a workload.
type GuardedPort struct {
	Port        mesh.DataplanePort
	Deny, Allow []GuardRule
	// Refuse whom Allow does not describe.
	Refuse bool
	// Left are permissions for the port that nodes leave out, by why (NotByAddress). They are not
	// among what a node gets.
	Left map[Source]string
}

// Guards reports whether there is anybody whom the port refuses.
func (g *GuardedPort) Guards() bool { return g.Refuse || len(g.Deny) > 0 }

// Guard are the ports of a workload to which its node lets only some clients connect. nil: none. A
// permission that describes a caller, or a request, by something else than namespaces, labels and
// addresses is left out as a whole; what it allows on a port nobody else is then refused on.
func (x *Index) Guard(ref Ref) []GuardedPort {
	w, ok := x.workload(ref)
	if !ok {
		return nil
	}
	if !x.denies(w) && !x.HasPolicies("TrafficPermission") {
		return nil
	}
	var out []GuardedPort
	for i := range w.object.Spec.Ports {
		if g := x.guardPort(w, &w.object.Spec.Ports[i]); g.Guards() {
			out = append(out, g)
		}
	}
	return out
}

// GuardPort is who may connect to a port of a workload without a proxy, as far as its node sees to it; false:
// there is no such port. Unlike Guard it answers for ports that refuse nobody, too.
func (x *Index) GuardPort(ref Ref, port int32) (GuardedPort, bool) {
	w, ok := x.workload(ref)
	if !ok {
		return GuardedPort{}, false
	}
	i := slices.IndexFunc(w.object.Spec.Ports, func(p mesh.DataplanePort) bool { return p.Port == port })
	if i < 0 {
		return GuardedPort{}, false
	}
	return x.guardPort(w, &w.object.Spec.Ports[i]), true
}

// denies reports whether the Mesh of a workload denies by default.
func (x *Index) denies(w *workload) bool {
	m := x.meshes[x.workloadMesh(w)]
	return m != nil && m.Spec.DefaultAccess == mesh.AccessDeny
}

func (x *Index) guardPort(w *workload, port *mesh.DataplanePort) GuardedPort {
	g := GuardedPort{Port: *port, Refuse: x.denies(w)}
	open := false
	for _, f := range x.forWorkload("TrafficPermission", w, port) {
		spec := &f.object.(*mesh.TrafficPermission).Spec
		if spec.Shadow {
			continue
		}
		if why := NotByAddress(spec); why != "" {
			open = open || len(spec.Allow) > 0
			if g.Left == nil {
				g.Left = map[Source]string{}
			}
			g.Left[f.source] = why
			continue
		}
		g.Deny, g.Allow = append(g.Deny, x.guardRules(w, f, spec.Deny)...), append(g.Allow, x.guardRules(w, f, spec.Allow)...)
	}
	if g.Refuse = (g.Refuse || len(g.Allow) > 0) && !open; !g.Refuse {
		g.Allow = nil
	}
	return g
}

// JudgeAddress is the verdict of a node on a connection of a workload, from an address of it, to a guarded
// port.
func (x *Index) JudgeAddress(g *GuardedPort, client Ref, from netip.Addr) Verdict {
	var v Verdict
	for _, r := range g.Allow {
		if !slices.Contains(v.Allowing, r.Source) {
			v.Allowing = append(v.Allowing, r.Source)
		}
	}
	describes := func(r GuardRule) bool {
		return (r.Members == nil || x.In(client, r.Members)) &&
			(r.Ranges == nil || slices.ContainsFunc(r.Ranges, func(p netip.Prefix) bool { return p.Contains(from.Unmap()) }))
	}
	if i := slices.IndexFunc(g.Deny, describes); i >= 0 {
		v.Denied, v.By = true, g.Deny[i].Source
		return v
	}
	if i := slices.IndexFunc(g.Allow, describes); i >= 0 {
		v.Allowed, v.By = true, g.Allow[i].Source
		return v
	}
	v.Allowed = !g.Refuse
	return v
}

// NotByAddress says why nodes do not enforce a permission; empty: they do.
func NotByAddress(spec *mesh.TrafficPermissionSpec) string {
	for _, part := range []struct {
		field string
		rules []mesh.PermissionRule
	}{{"deny", spec.Deny}, {"allow", spec.Allow}} {
		for i := range part.rules {
			r := &part.rules[i]
			if len(r.To) > 0 {
				return fmt.Sprintf("spec.%s[%d].to", part.field, i)
			}
			for k := range r.From {
				at := fmt.Sprintf("spec.%s[%d].from[%d].", part.field, i, k)
				switch s := &r.From[k]; {
				case len(s.ServiceAccounts) > 0:
					return at + "serviceAccounts"
				case len(s.SPIFFE) > 0:
					return at + "spiffe"
				case s.Mesh != "":
					return at + "mesh"
				}
			}
		}
	}
	return ""
}

func (x *Index) guardRules(w *workload, f found, rules []mesh.PermissionRule) []GuardRule {
	var out []GuardRule
	for i := range rules {
		if len(rules[i].From) == 0 {
			out = append(out, GuardRule{Source: f.source})
		}
		for k := range rules[i].From {
			s := &rules[i].From[k]
			rule := GuardRule{Source: f.source}
			if len(s.Addresses) > 0 {
				rule.Ranges = rangesOf(s.Addresses)
			}
			if len(s.Namespaces) > 0 || s.Labels != nil {
				m := &Members{Mesh: x.workloadMesh(w), Namespaces: slices.Sorted(slices.Values(s.Namespaces)), Labels: s.Labels}
				ofMesh := len(f.targets) > 0 && f.target(f.targets[0]).Kind == "Mesh"
				if len(m.Namespaces) == 0 && !ofMesh {
					m.Namespaces = []string{f.source.Key.Namespace}
				}
				if m.Labels != nil {
					selector, err := metav1.LabelSelectorAsSelector(m.Labels)
					if err != nil {
						selector = labels.Nothing() // validation refuses it
					}
					m.selector = selector
				}
				rule.Members = m
			}
			out = append(out, rule)
		}
	}
	return out
}

// rangesOf texts; what cannot be read is no client's.
func rangesOf(texts []string) []netip.Prefix {
	out := []netip.Prefix{}
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			addr, err := netip.ParseAddr(text)
			if err != nil {
				continue
			}
			addr = addr.Unmap()
			p = netip.PrefixFrom(addr, addr.BitLen())
		}
		out = append(out, p.Masked())
	}
	if len(out) == 0 {
		out = append(out, netip.PrefixFrom(netip.IPv6Unspecified(), 128))
	}
	return out
}

// In reports whether a workload is one of the members.
func (x *Index) In(ref Ref, m *Members) bool {
	w, ok := x.workload(ref)
	if !ok || x.workloadMesh(w) != m.Mesh || m.Namespaces != nil && !slices.Contains(m.Namespaces, ref.Key.Namespace) {
		return false
	}
	return m.selector == nil || w.selects(m.selector)
}

// Workloads of the index, in no order.
func (x *Index) Workloads(yield func(Ref) bool) {
	for _, all := range x.workloads {
		for _, w := range all {
			if !yield(w.ref) {
				return
			}
		}
	}
}

// CallerTables are those of Tables that an index needs to answer Guard and In.
func CallerTables() []catalog.Kind {
	return []catalog.Kind{
		catalog.Namespaces, catalog.Meshes, catalog.Services, catalog.Dataplanes, catalog.Pods, catalog.TrafficPermissions,
	}
}

// ApplyCallers is Apply for CallerTables alone.
func (x *Index) ApplyCallers(d *catalog.Delta) Affected {
	return x.Apply(&catalog.Delta{
		Before: d.Before, After: d.After, Namespaces: d.Namespaces, Meshes: d.Meshes, Services: d.Services, Dataplanes: d.Dataplanes,
		Pods: d.Pods, TrafficPermissions: d.TrafficPermissions,
	})
}

// LoadCallers sets everything of a snapshot that is in CallerTables.
func (x *Index) LoadCallers(s *catalog.Snapshot) {
	load(x, s.Namespaces)
	load(x, s.Meshes)
	load(x, s.Dataplanes)
	load(x, s.TrafficPermissions)
	for _, pod := range s.Pods.All() {
		x.SetPod(x.ofPod(s, pod))
	}
}
