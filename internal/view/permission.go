package view

import (
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/policy"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// permissions are what nodes do of TrafficPermissions for workloads without a sidecar: which ports are
// guarded, and in which sets of callers workloads are. Without a permission and a Mesh that denies by
// default nothing is kept.
type permissions struct {
	index *policy.Index // nil: nothing is guarded
	// sets that guards name, by their IDs, and the guards of workloads.
	sets   map[string]*policy.Members
	guards map[policy.Ref][]policy.GuardedPort
}

// store what changed. It returns the workloads that may have other guards, or be in other sets. all: any.
func (p *permissions) store(d *catalog.Delta) (changed map[policy.Ref]struct{}, all bool) {
	denies := false
	for _, m := range d.After.Meshes.All() {
		denies = denies || m.Spec.DefaultAccess == meshv1alpha1.AccessDeny
	}
	any := denies || d.After.TrafficPermissions.Len() > 0
	switch {
	case !any && p.index == nil:
		return nil, false
	case !any:
		*p = permissions{}
		return nil, true
	case p.index == nil:
		p.index = policy.NewIndex()
		p.index.LoadCallers(d.After)
		p.guardAll()
		return nil, true
	}
	a := p.index.ApplyCallers(d)
	if len(d.TrafficPermissions)+len(d.Meshes)+len(d.Namespaces) > 0 {
		p.guardAll()
		return nil, true
	}
	changed = map[policy.Ref]struct{}{}
	before := len(p.sets)
	for _, ref := range a.Objects {
		if ref.Kind != "Dataplane" && ref.Kind != "Pod" {
			continue
		}
		changed[ref] = struct{}{}
		p.guard(ref)
	}
	return changed, len(p.sets) != before
}

func (p *permissions) guardAll() {
	p.sets, p.guards = map[string]*policy.Members{}, map[policy.Ref][]policy.GuardedPort{}
	p.index.Workloads(func(ref policy.Ref) bool {
		p.guard(ref)
		return true
	})
}

// guard notes the guards of a workload, and the sets that they name.
func (p *permissions) guard(ref policy.Ref) {
	ports := p.index.Guard(ref)
	if len(ports) == 0 {
		delete(p.guards, ref)
		return
	}
	p.guards[ref] = ports
	for i := range ports {
		for _, rules := range [][]policy.GuardRule{ports[i].Deny, ports[i].Allow} {
			for _, r := range rules {
				if r.Members != nil {
					p.sets[r.Members.ID()] = r.Members
				}
			}
		}
	}
}

// add to a workload what holds for it. proxied: its proxy sees to its ports.
func (p *permissions) add(w *proxy.Workload, ref policy.Ref, proxied bool) {
	if p.index == nil || w == nil {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(p.sets)) {
		if p.index.In(ref, p.sets[id]) {
			w.Sets = append(w.Sets, id)
		}
	}
	if proxied {
		return
	}
	for _, g := range p.guards[ref] {
		protocol := proxy.Protocol(g.Port.Protocol)
		if protocol == "" {
			protocol = proxy.TCP
		}
		w.Ports = append(w.Ports, proxy.GuardedPort{
			Port: uint16(g.Port.Port), Protocol: protocol, Deny: callersOf(g.Deny), Allow: callersOf(g.Allow), Refuse: g.Refuse, //nolint:gosec // a port
		})
	}
}

func callersOf(rules []policy.GuardRule) []proxy.Callers {
	var out []proxy.Callers
	for _, r := range rules {
		c := proxy.Callers{Ranges: slices.Clone(r.Ranges)}
		if r.Members != nil {
			c.Set = r.Members.ID()
		}
		slices.SortFunc(c.Ranges, netip.Prefix.Compare)
		out = append(out, c)
	}
	return out
}

// hasSidecar reports whether the proxy of a pod is up to its permissions.
func (b *Builder) hasSidecar(p *corev1.Pod) bool {
	return p != nil && b.config.HasSidecar != nil && b.config.HasSidecar(p)
}

func dataplaneRef(key catalog.Key) policy.Ref { return policy.Ref{Kind: "Dataplane", Key: key} }
func podRef(key catalog.Key) policy.Ref       { return policy.Ref{Kind: "Pod", Key: key} }

// guardedDataplane is what agents get of a Dataplane.
func (b *Builder) guardedDataplane(key catalog.Key, d *meshv1alpha1.Dataplane) *proxy.Workload {
	w := dataplaneWorkload(d, b.meshes.of(key.Namespace))
	b.meshes.permissions.add(w, dataplaneRef(key), kind.DataplaneHasProxy(d))
	return w
}

func (b *Builder) guardedPod(key catalog.Key, p *corev1.Pod) *proxy.Workload {
	w := podWorkload(p, b.meshes.of(key.Namespace))
	b.meshes.permissions.add(w, podRef(key), b.hasSidecar(p))
	return w
}
