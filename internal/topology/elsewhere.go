package topology

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcsv1beta1 "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	plannerv1alpha1 "github.com/proxima-mesh/proxima/api/planner/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/sites"
	"github.com/proxima-mesh/proxima/internal/topology/trafficplan"
)

// group of ports that are planned together, and what other sites offer of it. Each other
// site is one zone of the plan: its name in Endpoints is that of plannerv1alpha1.SiteZone.
type group struct {
	*trafficplan.Group
	elsewhere elsewhere
}

// elsewhere is the demand for a group of ports that is not that of the Service here.
type elsewhere struct {
	// sites that can be entered for all of the ports.
	sites []siteDemand
	// local are the same ports of the Service whose name is imported. Their endpoints are
	// the same, so their connections load them, too.
	local []proxy.PortName
}

// siteDemand is the demand that starts in another site, in connections per second.
type siteDemand struct {
	zone locality.Zone
	rate float64
	// known: the site has said so.
	known bool
}

// groupsOf a Service. Other sites are part of the plan of an import that is offered here,
// too: where this site has no endpoint, its connections leave it without a plan.
func (c *Controller) groupsOf(snapshot *catalog.Snapshot, service *corev1.Service) []*group {
	var parts []trafficplan.Part
	for _, slice := range snapshot.SlicesOf(resource.KeyOf(service)) {
		parts = append(parts, trafficplan.PartOf(snapshot, slice))
	}
	var out []*group
	for _, g := range trafficplan.Groups(parts) {
		out = append(out, &group{Group: g})
	}
	imported, ok := sites.ImportOf(service)
	if !ok || len(out) == 0 {
		return out
	}
	remote, err := sites.Look(snapshot, string(c.config.Site), serviceName(service))
	if err != nil || remote == nil || !plannable(remote) {
		return out
	}
	local, _ := snapshot.Services.Get(resource.Key{Namespace: imported.Namespace, Name: imported.Name})
	for _, g := range out {
		if g.Len() > 0 {
			g.offered(service, local, remote)
		}
	}
	return out
}

// dispatchSites queues the imports for which other sites may offer something else.
func (c *Controller) dispatchSites(d *catalog.Delta) {
	modes := c.modes(d.After)
	replan := func(key resource.Key) {
		if service, ok := d.After.Services.Get(key); ok && modes.Of(service).Kind == Planned {
			c.replan(key)
		}
	}
	for _, change := range d.ServiceExports {
		for _, export := range []*mcsv1beta1.ServiceExport{change.Old, change.New} {
			if export != nil && export.Labels[meshv1alpha1.LabelZone] != "" {
				of := catalog.ExportedService(export)
				replan(resource.Key{Namespace: of.Namespace, Name: mcsv1beta1.DerivedServiceName(of.Namespace, of.Name)})
			}
		}
	}
	if len(d.ZoneIngresses)+len(d.ZoneEgresses)+len(d.Meshes) == 0 {
		return
	}
	for key, service := range d.After.Services.All() { // gateways are few, and of concern to all
		if _, ok := sites.ImportOf(service); ok {
			replan(key)
		}
	}
}

// plannable: the sites are there to be chosen. Where the mesh spreads connections over all
// sites by their instances, no site is nearer than another.
func plannable(r *sites.Remote) bool {
	return !r.Spread && r.External == nil && !(r.EgressOnly && len(r.Egresses) == 0)
}

// offered notes the sites that offer all ports of the group. An endpoint has one weight for
// all of them, and so has a site.
func (g *group) offered(service, local *corev1.Service, remote *sites.Remote) {
	numbers := make([]uint16, 0, len(g.Ports))
	for _, name := range g.Ports {
		p, ok := remote.Port(name)
		if !ok {
			return
		}
		numbers = append(numbers, p.Number)
	}
	for _, s := range remote.Sites {
		if s.Instances == 0 || !s.Offers(numbers) {
			continue
		}
		zone := plannerv1alpha1.SiteZone(s.Name)
		d := siteDemand{zone: locality.Zone(zone), known: s.Demand != nil}
		for _, n := range numbers {
			d.rate += s.Demand[n]
		}
		g.Endpoints[d.zone] = int64(s.Instances)
		if g.Weights != nil { // instances of other sites count as endpoints that name no weight
			g.Weights[d.zone] = int64(s.Instances) * int64(trafficplan.DefaultWeight)
		}
		g.elsewhere.sites = append(g.elsewhere.sites, d)
	}
	if g.elsewhere.sites == nil || local == nil {
		return
	}
	for _, p := range local.Spec.Ports {
		for _, n := range numbers {
			if p.Port == int32(n) && (p.Protocol == corev1.ProtocolTCP || p.Protocol == "") {
				g.elsewhere.local = append(g.elsewhere.local, proxy.PortName{ServiceName: serviceName(local), Port: p.Name})
			}
		}
	}
}

// add the demand of other sites to that of this one, which is in connections per second. A
// site that has not said what its demand is counts as loaded as this one. Sites say nothing of
// address families: theirs is divided as that of this one is, of which other is the other family's.
// rest is what that one gets.
func (e *elsewhere) add(shares []float64, in *input, other float64) (rest float64) {
	if len(e.sites) == 0 {
		return 0
	}
	own, endpoints := 0.0, int64(0)
	for i := range shares {
		if !isSite(in.topology.Zone(i).Name) {
			own += shares[i]
			endpoints += in.weight[i]
		}
	}
	part := 1.0
	if other > 0 {
		part = own / (own + other)
	}
	for _, s := range e.sites {
		at, ok := in.topology.Index(s.zone)
		switch {
		case !ok:
		case s.known:
			shares[at] = s.rate * part
			rest += s.rate * (1 - part)
		case endpoints > 0:
			shares[at] = own / float64(endpoints) * float64(in.weight[at])
		}
	}
	return rest
}

// isSite: the zone of a plan is another site.
func isSite(zone locality.Zone) bool {
	return strings.HasPrefix(string(zone), plannerv1alpha1.SitePrefix)
}
