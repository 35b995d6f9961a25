package app

import (
	"cmp"
	"context"
	"time"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/node"
	"github.com/proxima-mesh/proxima/internal/node/fallback"
	"github.com/proxima-mesh/proxima/internal/node/fromkube"
	"github.com/proxima-mesh/proxima/internal/node/fromview"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// defaultDirectAfter of NodeConfig.DirectAfter.
const defaultDirectAfter = time.Minute

// inCluster reports whether the agent runs in a Kubernetes cluster that has a control plane
// of ours.
func (c *NodeConfig) inCluster() bool { return c.Cluster != nil && c.Server != "" }

// meshed reports whether the agent has identities, and ways to other sites: where its control
// plane issues certificates. In a cluster that is the one of a zone, whose agents are given a
// port for the tunnel, and one whose Pods have sidecars.
func (c *NodeConfig) meshed() bool {
	return c.Cluster == nil || c.inCluster() && (c.TunnelPort != 0 || c.PodNamespaces != "")
}

// objectsElsewhere reports whether the control plane serves no objects: those of a cluster are in
// the cluster's API.
func (c *NodeConfig) objectsElsewhere() bool {
	return c.inCluster() || c.Gateway != nil && c.Gateway.InCluster
}

// joins reports whether the agent has a control plane of ours.
func (c *NodeConfig) joins() bool { return c.Cluster == nil || c.inCluster() }

// inClusterComponents follow the view of the control plane, and the cluster's API in its place.
func (a *agent) inClusterComponents() ([]component, error) {
	a.direct = fallback.New(fallback.Config{
		View: planeView{a}, Direct: a.followDirectly, After: cmp.Or(a.cfg.DirectAfter, defaultDirectAfter), Apply: a.apply,
		Changed: func(ctx context.Context, since time.Time, state node.Update) error {
			return fromkube.Changed(ctx, a.watchConfig(), a.wantsNames(), since, state)
		},
		Logger: a.log.With("component", "fallback"),
	})
	following, err := a.viewComponents(func(u node.Update) {
		a.learnZone()
		a.direct.FromView(u)
	})
	if err != nil {
		return nil, err
	}
	return append(following, component{Name: "fallback", Run: a.direct.Run}), nil
}

// learnZone takes the zone from the control plane, which knows the Node object.
func (a *agent) learnZone() {
	zone := cmp.Or(locality.Zone(a.cfg.Zone), a.feed.Status().Zone)
	a.factsMu.Lock()
	known := a.facts.Zone
	a.factsMu.Unlock()
	if zone != known {
		a.setFacts(func(f *node.Facts) { f.Zone = zone })
	}
}

// followDirectly follows the API until ctx ends.
func (a *agent) followDirectly(ctx context.Context, update func(node.Update)) error {
	var last lastRoutings
	feed, err := fromkube.New(fromkube.Config{
		REST: a.watchConfig(), Node: a.cfg.Name, Names: a.wantsNames(),
		Update: func(u node.Update) {
			if u.Reset {
				known := a.feed.State()
				last = routingsOf(known)
				if a.cfg.meshed() {
					u = withSites(u, known)
				}
			}
			last.addTo(&u)
			update(u)
		}, OnNode: a.learnOwn, Logger: a.log.With("component", "cluster"),
	})
	if err != nil {
		return err
	}
	return feed.Run(ctx)
}

// withSites adds to the state of the cluster's API what the control plane alone knows, as it was
// last: services of other sites go on without it.
func withSites(u, last node.Update) node.Update {
	if u.Reset {
		u.Remotes, u.Elsewhere, u.VirtualIPs, u.Meshes, u.Workloads = last.Remotes, last.Elsewhere, last.VirtualIPs, last.Meshes, last.Workloads
	}
	return u
}

// lastRoutings are what routes and policies said of connections to Services when the control plane was
// heard last. The API of the cluster has their objects, and the control plane alone resolves them: without
// this a route that gives a version a tenth would give it nothing, or all, as soon as the API is followed.
type lastRoutings map[proxy.ServiceName]map[string]*proxy.Routing

func routingsOf(last node.Update) lastRoutings {
	out := lastRoutings{}
	for name, s := range last.Services {
		if s != nil && len(s.Routing) > 0 {
			out[name] = s.Routing
		}
	}
	return out
}

// addTo the Services of an update of the API.
func (l lastRoutings) addTo(u *node.Update) {
	for name, s := range u.Services {
		if routing := l[name]; s != nil && routing != nil {
			with := *s
			with.Routing = routing
			u.Services[name] = &with
		}
	}
}

// wantsNames reports whether the agent answers DNS.
func (a *agent) wantsNames() bool { return a.cfg.DNSPort != 0 || a.cfg.DNSCapture }

// planeView implements fallback.View.
type planeView struct{ *agent }

func (v planeView) status() fromview.FeedStatus { return v.feed.Status() }

// Current implements fallback.View.
func (v planeView) Current() bool { return v.status().Current }

// Held implements fallback.View.
func (v planeView) Held() bool { return v.status().Synced }

// State implements fallback.View.
func (v planeView) State() node.Update { return v.feed.State() }
