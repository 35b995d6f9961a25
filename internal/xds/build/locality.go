package build

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/policy"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/choose"
	"github.com/proxima-mesh/proxima/internal/proxy/kube"
	"github.com/proxima-mesh/proxima/internal/xds/translate"
)

// Which endpoints clients prefer by a BackendPolicy. Endpoints are shared by the clients of a zone;
// those that policies of their own namespace, or labels, treat in another way have them under a name
// of their own, a view.

// view is whose endpoints they are, beside a zone's. The zero value is everybody's.
type view struct {
	// namespace of the clients, whose policies count; empty: policies of the backend's own.
	namespace string
	// labels of the clients, by which they prefer endpoints, as in Class.Affinity.
	labels string
}

// viewed is the name of endpoints: NAMESPACE/NAME:PORT, then "@NAMESPACE" and "?LABEL=VALUE&…" of a
// view.
func viewed(of ServicePort, v view) string {
	name := of.String()
	if v.namespace != "" {
		name += "@" + v.namespace
	}
	if v.labels != "" {
		name += "?" + v.labels
	}
	return name
}

// parseViewed reads what viewed wrote, and nothing else.
func parseViewed(name string) (ServicePort, view, error) {
	text, labels, _ := strings.Cut(name, "?")
	text, namespace, _ := strings.Cut(text, "@")
	of, err := ParseServicePort(text)
	if v := (view{namespace, labels}); err != nil || viewed(of, v) == name {
		return of, v, err
	}
	return of, view{}, fmt.Errorf("parse endpoints %.80q: not in canonical form", name)
}

// affinityOf a Dataplane: the values of the labels that policies name, its own before its node's.
func (b *Builder) affinityOf(d *meshv1alpha1.Dataplane) string {
	var all []string
	for _, label := range b.affinities {
		if value := b.labelOf(label, d.Labels, d.Spec.NodeName); value != "" {
			all = append(all, label+"="+value)
		}
	}
	return strings.Join(all, "&")
}

func (b *Builder) labelOf(label string, own map[string]string, node string) string {
	if value := own[label]; value != "" {
		return value
	}
	if n, ok := b.snapshot.Nodes.Get(catalog.Key{Name: node}); ok {
		return n.Labels[label]
	}
	return ""
}

// storeAffinities keeps the labels by which any policy prefers endpoints. It reports whether they
// are others than before.
func (b *Builder) storeAffinities(d *catalog.Delta) bool {
	if len(d.BackendPolicies) == 0 {
		return false
	}
	labels := map[string]struct{}{}
	for _, p := range b.snapshot.BackendPolicies.All() {
		if l := p.Spec.Locality; l != nil {
			for _, a := range l.Affinity {
				labels[a.Label] = struct{}{}
			}
		}
	}
	next := slices.Sorted(maps.Keys(labels))
	was := b.affinities
	b.affinities = next
	return !slices.Equal(was, next)
}

// relabelled adds the Services whose endpoints have other labels, where policies prefer any by labels.
func (b *Builder) relabelled(d *catalog.Delta, changed map[catalog.Key]struct{}) {
	if len(b.affinities) == 0 {
		return
	}
	namespaces := map[string]struct{}{}
	for _, c := range d.Dataplanes {
		if c.Old == nil || c.New == nil || !maps.Equal(c.Old.Labels, c.New.Labels) {
			namespaces[c.Key.Namespace] = struct{}{}
		}
	}
	for _, c := range d.Pods {
		if c.Old == nil || c.New == nil || !maps.Equal(c.Old.Labels, c.New.Labels) {
			namespaces[c.Key.Namespace] = struct{}{}
		}
	}
	nodes := slices.ContainsFunc(d.Nodes, func(c catalog.Change[*corev1.Node]) bool {
		return c.Old == nil || c.New == nil || !maps.Equal(c.Old.Labels, c.New.Labels)
	})
	for key := range b.byService {
		if nodes || has(namespaces, key.Namespace) {
			changed[key] = struct{}{}
		}
	}
}

// localityOf a service port for clients of a namespace; empty: as policies of its own namespace say
// alone.
func (b *Builder) localityOf(of ServicePort, port, client string) meshv1alpha1.BackendLocality {
	ref, at := b.backendRef(of.Service), policy.Port{Name: port, Number: int32(of.Port)}
	client = cmp.Or(client, of.Service.Namespace)
	if !b.policies.HasBackend(client, ref, at) {
		return meshv1alpha1.BackendLocality{}
	}
	return b.policies.Backend(client, ref, at).Locality
}

// viewOf a service port, for clients of a class.
func (b *Builder) viewOf(c *class, of ServicePort, port string) view {
	var v view
	own, theirs := b.localityOf(of, port, ""), b.localityOf(of, port, c.Namespace)
	if !sameLocality(&own, &theirs) {
		v.namespace = c.Namespace
	}
	if len(theirs.Affinity) == 0 || c.Affinity == "" {
		return v
	}
	var labels []string
	for text := range strings.SplitSeq(c.Affinity, "&") {
		label, _, _ := strings.Cut(text, "=")
		if slices.ContainsFunc(theirs.Affinity, func(a meshv1alpha1.LocalityAffinity) bool { return a.Label == label }) {
			labels = append(labels, text)
		}
	}
	v.labels = strings.Join(labels, "&")
	return v
}

// sameLocality reports whether two settings choose alike. What nothing says anything of is the default.
func sameLocality(x, y *meshv1alpha1.BackendLocality) bool {
	return translate.Overprovisioning(&policy.Backend{Locality: *x}) == translate.Overprovisioning(&policy.Backend{Locality: *y}) &&
		cmp.Or(x.Mode, meshv1alpha1.LocalityPlan) == cmp.Or(y.Mode, meshv1alpha1.LocalityPlan) &&
		reflect.DeepEqual(x.Affinity, y.Affinity) && reflect.DeepEqual(x.Failover, y.Failover)
}

// preferences are what a BackendPolicy says of localities, to clients of a zone.
type preferences struct {
	choose.Preference
	// weight of an endpoint relative to others of its zone; nil: all are alike.
	weight func(proxy.Target) uint32
}

// preferencesOf clients with a view, in a zone of this site.
func (b *Builder) preferencesOf(l *meshv1alpha1.BackendLocality, zone locality.Zone, of ServicePort, v view) preferences {
	out := preferences{Preference: choose.PreferenceOf(kube.LocalityOf(l), zone, b.config.Site)}
	if v.labels != "" && len(l.Affinity) > 0 {
		out.weight = b.affinityWeights(l.Affinity, of, v.labels)
	}
	return out
}

// affinityWeights are by the first label of which an endpoint has the client's value.
func (b *Builder) affinityWeights(affinity []meshv1alpha1.LocalityAffinity, of ServicePort, labels string) func(proxy.Target) uint32 {
	mine := map[string]string{}
	for text := range strings.SplitSeq(labels, "&") {
		label, value, _ := strings.Cut(text, "=")
		mine[label] = value
	}
	weights := map[netip.AddrPort]uint32{}
	for _, s := range b.snapshot.SlicesOf(of.Service) {
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			if len(e.Addresses) == 0 {
				continue
			}
			for _, a := range affinity {
				value := b.endpointLabel(a.Label, s.Namespace, e)
				if value == "" || value != mine[a.Label] {
					continue
				}
				weight := uint32(defaultAffinity)
				if a.Weight != nil && *a.Weight > 0 {
					weight = uint32(*a.Weight)
				}
				for _, p := range s.Ports {
					if address, err := netip.ParseAddr(e.Addresses[0]); err == nil && p.Port != nil {
						weights[netip.AddrPortFrom(address.Unmap(), uint16(*p.Port))] = weight //nolint:gosec // a port
					}
				}
				break
			}
		}
	}
	return func(t proxy.Target) uint32 { return max(weights[t.Addr], 1) }
}

// defaultAffinity is the weight of a label that names none.
const defaultAffinity = 9

func (b *Builder) endpointLabel(label, namespace string, e *discoveryv1.Endpoint) string {
	node := ""
	if e.NodeName != nil {
		node = *e.NodeName
	}
	var own map[string]string
	if r := e.TargetRef; r != nil {
		key := catalog.Key{Namespace: namespace, Name: r.Name}
		switch r.Kind {
		case "Dataplane":
			if d, ok := b.snapshot.Dataplanes.Get(key); ok {
				own = d.Labels
				node = cmp.Or(node, d.Spec.NodeName)
			}
		case "Pod":
			if p, ok := b.snapshot.Pods.Get(key); ok {
				own = p.Labels
			}
		}
	}
	return b.labelOf(label, own, node)
}

func only(all []proxy.Target, is func(proxy.Target) bool) []proxy.Target {
	var out []proxy.Target
	for _, t := range all {
		if is(t) {
			out = append(out, t)
		}
	}
	return out
}

// leaving are the ways out of the site that clients use; nil: there are none.
func (p *preferences) leaving(to *beyond) *beyond {
	if to == nil || p.Strict {
		return nil
	}
	if p.Failover == nil || to.split.Away > 0 || to.remote.Spread { // a plan has decided
		return to
	}
	out := *to
	out.ways = nil
	for _, w := range to.ways {
		if w.egress && p.Failover.To != proxy.FailoverNone || !w.egress && p.Takes(proxy.OtherSitesZone, w.site) {
			out.ways = append(out.ways, w)
		}
	}
	return &out
}

// weigh the endpoints of a zone: their sum is within what Envoy takes (32 bits).
func weigh(weights []uint64) []uint32 {
	total := uint64(0)
	for _, w := range weights {
		total += w
	}
	by := total/math.MaxUint32 + 1
	out := make([]uint32, len(weights))
	for i, w := range weights {
		out[i] = uint32(max(w/by, 1)) //nolint:gosec // the sum of all is less
	}
	return out
}
