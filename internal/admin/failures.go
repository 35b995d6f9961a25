package admin

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/locality"
)

// Failure is a row of the board of what can fail between and in sites.
type Failure struct {
	// Name is stable, as GlobalOffline.
	Name string `json:"name"`
	// Failure in words.
	Failure string `json:"failure"`
	// State is one of the constants below; Why is how that is known, or why it is not.
	State string `json:"state"`
	Why   string `json:"why"`
	// Where it is so: names of sites, zones, nodes or gateways, the first MaxFailureNames of Count.
	Where []string `json:"where,omitempty"`
	Count int      `json:"count,omitempty"`
	// Works meanwhile, and Fails, as it is said.
	Works string `json:"works"`
	Fails string `json:"fails"`
	// Look is the command that shows more; empty: there is none.
	Look string `json:"look,omitempty"`
}

// States of a Failure.
const (
	// FailureAbsent: it is not so.
	FailureAbsent = "no"
	// FailurePresent: it is so.
	FailurePresent = "yes"
	// FailurePossible: it is so, or another failure that looks the same from here.
	FailurePossible = "perhaps"
	// FailureUnknown: this control plane cannot see it.
	FailureUnknown = "unknown"
)

// Lit reports whether the row says that something fails.
func (f *Failure) Lit() bool { return f.State == FailurePresent || f.State == FailurePossible }

// MaxFailureNames are in Failure.Where.
const MaxFailureNames = 10

// failureFacts are what the board is decided by.
type failureFacts struct {
	federation *FederationStatus
	// nodes: this control plane watches nodes, which zones are of. held: leases ran out that are not marked yet.
	nodes bool
	held  bool
	zones []zoneOfNodes
}

// zoneOfNodes are the nodes of a topology zone.
type zoneOfNodes struct {
	name  locality.Zone
	nodes int
	lost  []string // those that are suspect or not ready, in order
}

// nodesByZone sorts nodes by zone.
func nodesByZone(s *catalog.Snapshot, suspects []SuspectNode) []zoneOfNodes {
	zones := map[locality.Zone]*zoneOfNodes{}
	for key, n := range s.Nodes.All() {
		name := locality.ZoneOf(n.Labels)
		if zones[name] == nil {
			zones[name] = &zoneOfNodes{name: name}
		}
		z := zones[name]
		z.nodes++
		ready := slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})
		if !ready || slices.ContainsFunc(suspects, func(s SuspectNode) bool { return s.Node == key.Name }) {
			z.lost = append(z.lost, key.Name)
		}
	}
	out := make([]zoneOfNodes, 0, len(zones))
	for _, z := range zones {
		slices.Sort(z.lost)
		out = append(out, *z)
	}
	slices.SortFunc(out, func(a, b zoneOfNodes) int { return cmp.Compare(a.name, b.name) })
	return out
}

// verdict of a row.
type verdict struct {
	state, why string
	where      []string
}

// failureRow is a row of the board: its words, and how it is decided. Words about what works are those of docs/how-to/zones.md.
type failureRow struct {
	name, failure, works, fails, look string
	decide                            func(*failureFacts) verdict
}

// failureRows is the board. test/e2e and internal/lab have a test with live traffic for each row.
var failureRows = []failureRow{
	{
		name: "GlobalOffline", failure: "the global control plane is offline",
		works:  "all traffic, in sites and between them; workloads that come and go inside each site; policies as they were last known",
		fails:  "changes of policies; new Services of other sites; disabling a site",
		look:   "proxima status",
		decide: func(f *failureFacts) verdict { return apartFromGlobal(f, "this is global, and it answers") },
	},
	{
		name: "ZoneOffline", failure: "the control plane of a site is offline",
		works:  "existing traffic in the site, into it and out of it; all other sites; certificates until they end (24 h by default); agents keep their state over a restart of their own",
		fails:  "new workloads of that site; changes of its configuration",
		look:   "proxima zone list",
		decide: func(f *failureFacts) verdict { return offlineZones(f, "this site's answers; of others global knows") },
	},
	{
		name: "LinkCut", failure: "the link between a site and global is cut",
		works:  "everything inside the site: workloads that come, configuration, certificates",
		fails:  "policies to that site; changes of Services between it and the others. Both catch up when the link is back, and nothing is lost",
		look:   "proxima zone inspect SITE",
		decide: linkCut,
	},
	{
		name: "SitesApart", failure: "the link between two sites is cut",
		works: "each site inside; calls move to sites that can be reached",
		fails: "calls that the cut-off site alone could serve fail at once",
		look:  "proxima explain service NAMESPACE/NAME --from-node NODE",
		decide: func(*failureFacts) verdict {
			return verdict{state: FailureUnknown, why: "connections between sites do not pass control planes: agents count those that fail (metric proxima_tunnel_open_failures_total)"}
		},
	},
	{
		name: "NodeLost", failure: "a node has lost power, or hangs",
		works:  "everything else; new connections avoid its endpoints within 5 seconds",
		fails:  "its own workloads",
		look:   "proxima top nodes",
		decide: lostNodes,
	},
	{
		name: "ZoneLost", failure: "a whole zone has lost power",
		works:  "the other zones; the leases of its nodes end together, as one confirmed wave",
		fails:  "its own workloads",
		look:   "proxima top zones",
		decide: lostZones,
	},
	{
		name: "IngressesDown", failure: "all ingresses of a site are down",
		works:  "the site inside; calls from other sites go to sites that can serve them",
		fails:  "calls from other sites that it alone could serve",
		look:   "proxima get zoneingressinsights",
		decide: func(f *failureFacts) verdict { return gatewaysDown(f, "ingress") },
	},
	{
		name: "EgressesDown", failure: "all egresses of a site are down",
		works:  "the site inside",
		fails:  "its calls to other sites and to external services fail at once: nothing goes around the egress",
		look:   "proxima get zoneegressinsights",
		decide: func(f *failureFacts) verdict { return gatewaysDown(f, "egress") },
	},
	{
		name: "StandaloneOffline", failure: "a control plane that stands alone is offline",
		works: "all traffic; agents, over restarts of their own",
		fails: "new workloads; a workload with mTLS, when its certificate ends",
		look:  "proxima status",
		decide: func(*failureFacts) verdict {
			return verdict{state: FailureAbsent, why: "this control plane is one of several, and it answers"}
		},
	},
	{
		name: "GatewayCut", failure: "a gateway is cut off from its control plane",
		works:  "it goes on serving, also over a restart of its own",
		fails:  "changes of what it serves",
		look:   "proxima get zoneingressinsights,zoneegressinsights",
		decide: cutGateways,
	},
}

// failures of the board, in its order.
func failures(f *failureFacts) []Failure {
	out := make([]Failure, 0, len(failureRows))
	for _, r := range failureRows {
		v := r.decide(f)
		out = append(out, Failure{
			Name: r.name, Failure: r.failure, State: v.state, Why: v.why, Works: r.works, Fails: r.fails, Look: r.look,
			Where: v.where[:min(len(v.where), MaxFailureNames)], Count: len(v.where),
		})
	}
	return out
}

// Board is what a control plane that is so says of the failures; a site has nodes, none of which is lost. It is for tests of what shows
// it: a Status has the board of its control plane.
func Board(f *FederationStatus) []Failure {
	return failures(&failureFacts{federation: f, nodes: f.Zone != ""})
}

func (f *failureFacts) ofZone() bool { return f.federation.Zone != "" }

// apartFromGlobal decides what a site sees if it has no connection to global.
func apartFromGlobal(f *failureFacts, atGlobal string) verdict {
	c := f.federation
	switch {
	case !f.ofZone():
		return verdict{state: FailureAbsent, why: atGlobal}
	case c.Connected:
		return verdict{state: FailureAbsent, why: "this site is connected to global"}
	case c.Elsewhere:
		return verdict{state: FailureUnknown, why: "another instance of this control plane has the connection, and does not answer"}
	}
	why := "this site has no connection to global; from here, global offline and a cut link look the same"
	if c.Problem != "" {
		why += ": " + c.Problem
	}
	return verdict{state: FailurePossible, why: why, where: []string{c.Global}}
}

// offlineZones decides what global sees of sites that are silent.
func offlineZones(f *failureFacts, inZone string) verdict {
	if f.ofZone() {
		return verdict{state: FailureAbsent, why: inZone}
	}
	var silent []string
	for i := range f.federation.Zones {
		z := &f.federation.Zones[i]
		if z.Enabled && z.Insight != nil && len(z.Insight.Subscriptions) > 0 && !z.Insight.Online {
			silent = append(silent, z.Name)
		}
	}
	if len(silent) == 0 {
		return verdict{state: FailureAbsent, why: "each site that is enabled and has joined is online"}
	}
	return verdict{state: FailurePossible, why: "no sign of life; from here, a control plane that is offline and a cut link look the same", where: silent}
}

func linkCut(f *failureFacts) verdict {
	if f.ofZone() {
		return apartFromGlobal(f, "")
	}
	return offlineZones(f, "")
}

// nodesElsewhere is the verdict of a control plane that does not watch nodes.
func nodesElsewhere(f *failureFacts) verdict {
	if f.ofZone() {
		return verdict{state: FailureUnknown, why: "the nodes of a cluster are watched by Kubernetes: \"kubectl get nodes\""}
	}
	return verdict{state: FailureUnknown, why: "nodes are known to the control plane of each site: ask there"}
}

func lostNodes(f *failureFacts) verdict {
	if !f.nodes {
		return nodesElsewhere(f)
	}
	var lost []string
	for _, z := range f.zones {
		lost = append(lost, z.lost...)
	}
	if len(lost) == 0 {
		return verdict{state: FailureAbsent, why: "each node is ready, and none is suspected"}
	}
	why := "its lease has ended, or it answers no probe of two other nodes"
	if f.held {
		why += "; leases that ran out together are not marked yet: \"proxima status\" says why"
	}
	return verdict{state: FailurePresent, why: why, where: lost}
}

func lostZones(f *failureFacts) verdict {
	if !f.nodes {
		return nodesElsewhere(f)
	}
	var lost []string
	for _, z := range f.zones {
		if z.nodes > 1 && len(z.lost) == z.nodes {
			lost = append(lost, cmp.Or(string(z.name), "(no zone)"))
		}
	}
	if len(lost) == 0 {
		return verdict{state: FailureAbsent, why: "no zone with two nodes or more has lost all of them"}
	}
	return verdict{state: FailurePresent, why: "none of its nodes is ready and answers", where: lost}
}

// gateways of a kind by site, whose sites this control plane hears.
func (f *failureFacts) gateways(kind string) (sites []string, of map[string][]GatewayState) {
	silent := offlineZones(f, "").where
	of = map[string][]GatewayState{}
	for _, g := range f.federation.Gateways {
		if g.Kind == kind && !slices.Contains(silent, g.Zone) {
			of[g.Zone] = append(of[g.Zone], g)
		}
	}
	for site := range of {
		sites = append(sites, site)
	}
	slices.Sort(sites)
	return sites, of
}

func gatewaysDown(f *failureFacts, kind string) verdict {
	if why := f.federation.GatewaysUnknown; why != "" {
		return verdict{state: FailureUnknown, why: why}
	}
	sites, of := f.gateways(kind)
	if len(sites) == 0 {
		return verdict{state: FailureAbsent, why: "no site has an " + kind + " that is known here"}
	}
	var down []string
	for _, site := range sites {
		if !slices.ContainsFunc(of[site], func(g GatewayState) bool { return g.Connected }) {
			down = append(down, site)
		}
	}
	if len(down) == 0 {
		return verdict{state: FailureAbsent, why: "each site that has an " + kind + " has one that is connected to its control plane"}
	}
	return verdict{state: FailurePossible, why: "none is connected to its control plane: they are down, or cut off and serve on", where: down}
}

func cutGateways(f *failureFacts) verdict {
	if why := f.federation.GatewaysUnknown; why != "" {
		return verdict{state: FailureUnknown, why: why}
	}
	var cut []string
	for _, kind := range []string{"ingress", "egress"} {
		sites, of := f.gateways(kind)
		for _, site := range sites {
			for _, g := range of[site] {
				if !g.Connected {
					cut = append(cut, fmt.Sprintf("%s %s", kind, strings.Join(slices.DeleteFunc([]string{g.Zone, g.Name}, func(s string) bool { return s == "" }), "/")))
				}
			}
		}
	}
	if len(cut) == 0 {
		return verdict{state: FailureAbsent, why: "each gateway that is known here is connected"}
	}
	return verdict{state: FailurePossible, why: "it has no connection to its control plane: it is cut off, or down", where: cut}
}
