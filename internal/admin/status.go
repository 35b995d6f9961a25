package admin

import (
	"context"
	"encoding/json"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/audit"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/health"
	"github.com/proxima-mesh/proxima/internal/controller/ipam"
	"github.com/proxima-mesh/proxima/internal/delta/stream"
	"github.com/proxima-mesh/proxima/internal/demand"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/topology"
	"github.com/proxima-mesh/proxima/internal/tracing"
	"github.com/proxima-mesh/proxima/internal/version"
)

// StatusPath answers how a control plane is, as a Status.
const StatusPath = "/proxima/v1/status"

// Status of a control plane, as JSON at StatusPath.
type Status struct {
	Version version.Info `json:"version"`
	Role    string       `json:"role"`
	// Preset of a control plane in Kubernetes; absent: none.
	Preset  string      `json:"preset,omitempty"`
	Started time.Time   `json:"started"`
	Store   StoreStatus `json:"store"`
	Catalog struct {
		Synced   bool             `json:"synced"`
		Position catalog.Position `json:"position"`
		Objects  map[string]int   `json:"objects"`
	} `json:"catalog"`
	// Leases of nodes and workloads: how many are watched and how many are late.
	// Held: some ran out together with so many others that they are not marked yet;
	// Reason sums up why, and Expiries lists them.
	Leases struct {
		Watched  int          `json:"watched"`
		Late     int          `json:"late"`
		Held     bool         `json:"held"`
		Reason   string       `json:"reason,omitempty"`
		Expiries []HeldExpiry `json:"expiries,omitempty"`
	} `json:"leases"`
	// Suspects are nodes that probably do not answer any more: their endpoints are used
	// last.
	Suspects []SuspectNode `json:"suspects,omitempty"`
	// Drains are the nodes that are drained or draining.
	Drains []DrainedNode `json:"drains,omitempty"`
	// Shifts are the zones and nodes that are taken out for a time.
	Shifts []ZoneShift `json:"zoneShifts,omitempty"`
	// Unreachable are nodes whose agent is there, but does not get the probes of others.
	Unreachable []string `json:"unreachable,omitempty"`
	// Everywhere are the nodes whose credentials register workloads in every
	// namespace.
	Everywhere []string `json:"nodesInEveryNamespace,omitempty"`
	// InServiceRanges are workloads whose address is one that Services have or get,
	// the first of them.
	InServiceRanges []string `json:"inServiceRanges,omitempty"`
	// Ranges of ClusterIPs and, last, of node ports: how much of each is taken.
	Ranges []ipam.Usage `json:"serviceRanges,omitempty"`
	// Demand: how many nodes report theirs.
	Demand demand.Coverage `json:"demand"`
	// TopologyModes counts Services by mode and by what chose it.
	TopologyModes []topology.ModeCount `json:"topologyModes,omitempty"`
	// Audit logs: whether they can be written.
	Audit audit.States `json:"audit"`
	// Agents that follow their view right now, from whichever instance.
	Agents []AgentStatus `json:"agents"`
	// SilentInstances of this control plane did not say which agents follow there.
	SilentInstances []string `json:"silentInstances,omitempty"`
	// Proxies and gRPC programs that follow right now, from whichever instance; absent: they are
	// not served.
	Proxies *ProxiesStatus `json:"proxies,omitempty"`
	// Registries whose protocols this instance serves.
	Registries []registry.Status `json:"registries,omitempty"`
	// Pulsar clients that read the change feed at this instance; absent: they are not served.
	Pulsar *PulsarStatus `json:"pulsar,omitempty"`
	// RegistryTroubles is what is wrong with what clients of registries registered.
	RegistryTroubles []registry.Trouble `json:"registryTroubles,omitempty"`
	// Refused are agents whose versions are too far from that of this control plane.
	Refused []version.Refusal `json:"refusedAgents,omitempty"`
	// Federation with other control planes; absent: this one stands alone.
	Federation *FederationStatus `json:"federation,omitempty"`
	// Feed of changes; absent: this control plane keeps none.
	Feed *FeedStatus `json:"feed,omitempty"`
	// Traces of changes, as this instance sends them; absent: they are off.
	Traces *tracing.Status `json:"traces,omitempty"`
}

// PulsarStatus is about clients of Pulsar that read the change feed.
type PulsarStatus struct {
	// Address on which they are served.
	Address       string `json:"address"`
	Connections   int    `json:"connections"`
	Consumers     int    `json:"consumers"`
	Subscriptions int    `json:"subscriptions"`
	// MaxConsumers that may be connected.
	MaxConsumers int `json:"maxConsumers"`
	// Topics that this instance serves, where there may be several.
	Topics int `json:"topics,omitempty"`
}

// HeldExpiry is a lease that ran out and whose holder is not marked not ready yet.
type HeldExpiry struct {
	Object string        `json:"object"`
	Zone   locality.Zone `json:"zone,omitempty"`
	Reason string        `json:"reason"`
	// Until when at most; absent: until it is renewed or the reason is gone.
	Until time.Time `json:"until,omitzero"`
}

// DrainedNode is a node whose workloads are taken out.
type DrainedNode struct {
	Node string `json:"node"`
	// State is Draining or Drained.
	State string    `json:"state"`
	Since time.Time `json:"since,omitzero"`
	By    string    `json:"by,omitempty"`
	Taint string    `json:"taint"`
	// Undo is the command that puts it back into use.
	Undo string `json:"undo"`
}

func drainsOf(s *catalog.Snapshot) (out []DrainedNode) {
	for key, n := range s.Nodes.All() {
		if d := kind.DrainOf(n); d.Taint != nil {
			out = append(out, DrainedNode{
				Node: key.Name, State: d.State(), Since: d.Since, By: d.By, Taint: d.Taint.ToString(), Undo: d.Undo(key.Name),
			})
		}
	}
	return out
}

// ZoneShift is a zone or node that is taken out for a time, or is to be.
type ZoneShift struct {
	// Name of the object.
	Name string `json:"name"`
	Zone string `json:"zone,omitempty"`
	Node string `json:"node,omitempty"`
	// State is InEffect, LastEndpoints, for which it is refused, or Pending.
	State  string    `json:"state"`
	Until  time.Time `json:"until"`
	Reason string    `json:"reason"`
	// Undo is the command that ends it.
	Undo string `json:"undo"`
}

// Target is what it takes out: "zone a", or "node n".
func (z *ZoneShift) Target() string {
	return kind.ShiftTarget(&mesh.ZoneShiftSpec{Zone: z.Zone, Node: z.Node})
}

// shiftsOf lists the shifts whose time is not over.
func shiftsOf(s *catalog.Snapshot) (out []ZoneShift) {
	for key, z := range s.ZoneShifts.All() {
		if state := kind.ShiftState(z); state != mesh.ZoneShiftExpired {
			out = append(out, ZoneShift{
				Name: key.Name, Zone: z.Spec.Zone, Node: z.Spec.Node, State: state, Until: z.Spec.Until.Time, Reason: z.Spec.Reason,
				Undo: kind.ShiftUndo(&z.Spec),
			})
		}
	}
	return out
}

// SuspectNode is a node whose stream stalled and that answers no probe.
type SuspectNode struct {
	Node  string        `json:"node"`
	Zone  locality.Zone `json:"zone,omitempty"`
	Since time.Time     `json:"since"`
	// Witnesses are the nodes that probed it in vain.
	Witnesses []string `json:"witnesses"`
}

// AgentStatus is how an agent follows its view.
type AgentStatus struct {
	Node string `json:"node"`
	// Version of the agent; empty: older ones announce none.
	Version string `json:"version,omitempty"`
	// Instance of the control plane that has the agent's stream; empty: the one that answers.
	Instance  string    `json:"instance,omitempty"`
	Peer      string    `json:"peer"`
	Since     time.Time `json:"since"`
	BytesSent uint64    `json:"bytesSent"`
	// Behind counts changes that the agent has not confirmed.
	Behind uint64 `json:"behind"`
	// Rejected is the last part of the view that the agent refused, and why.
	Rejected string `json:"rejected,omitempty"`
}

func agentStatus(s stream.StreamStatus) AgentStatus {
	out := AgentStatus{Node: s.Node, Version: s.Version, Peer: s.Peer, Since: s.Since, BytesSent: s.BytesSent}
	for _, t := range s.Types {
		out.Behind += t.Unsent + t.Unacked
		if t.Rejected.Reason != "" {
			out.Rejected = t.Rejected.Reason
		}
	}
	return out
}

// StoreStatus is how the store is.
type StoreStatus struct {
	Name      string         `json:"name"`
	Epoch     string         `json:"epoch"`
	Revision  store.Revision `json:"revision"`
	Compacted store.Revision `json:"compacted"`
	Bytes     int64          `json:"bytes"`
	// Problem is why it can't read or write now; empty: it can.
	Problem string `json:"problem,omitempty"`
	// Unreadable are the resources (RESOURCE.GROUP) whose objects cannot be listed, as stored data
	// is damaged, with what is lost.
	Unreadable map[string]string `json:"unreadable,omitempty"`
}

type statusHandler struct{ Config }

// ServeHTTP implements http.Handler.
func (h statusHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer(w, h.status(r.Context(), r.Header.Get(forwardedHeader) == ""))
}

// status of this instance, and with others of all.
func (h statusHandler) status(ctx context.Context, others bool) Status {
	s := Status{
		Version: version.Get(), Role: h.Role, Preset: h.Preset, Started: h.Started, Agents: []AgentStatus{},
		Audit: h.Audit(), Store: h.storeStatus(ctx), Everywhere: h.nodesEverywhere(ctx),
	}
	snapshot := h.Tables.Snapshot()
	s.Catalog.Synced = h.Tables.Synced()
	s.Catalog.Position = snapshot.Position
	s.Catalog.Objects = map[string]int{
		"services": snapshot.Services.Len(), "endpointslices": snapshot.Slices.Len(), "nodes": snapshot.Nodes.Len(),
		"pods": snapshot.Pods.Len(), "dataplanes": snapshot.Dataplanes.Len(), "namespaces": snapshot.Namespaces.Len(),
	}
	if h.Traces != nil {
		s.Traces = h.Traces()
	}
	s.Federation, s.Feed = h.federationStatus(ctx), h.feedStatus(ctx, false)
	if h.Leases != nil {
		h.addNodes(&s, snapshot)
	}
	if others && (h.Leases != nil || s.Federation != nil) {
		h.addOthers(ctx, &s)
	}
	if f := s.Federation; f != nil && others {
		f.Failures = failures(&failureFacts{
			federation: f, held: s.Leases.Held, nodes: h.Leases != nil && h.Preset == "", zones: nodesByZone(snapshot, s.Suspects),
		})
	}
	return s
}

// statusPatience is how long another instance may take to say which agents follow there.
const statusPatience = 2 * time.Second

// addOthers adds what the other instances know alone: their agents.
func (h statusHandler) addOthers(ctx context.Context, s *Status) {
	ctx, cancel := context.WithTimeout(ctx, statusPatience)
	defer cancel()
	for got := range (others{h.Instances, h.Logger}).outcomes(ctx, http.MethodGet, StatusPath, nil) {
		var there Status
		if got.err != nil || got.answer == nil || got.answer.code != http.StatusOK || json.Unmarshal(got.answer.body, &there) != nil {
			s.SilentInstances = append(s.SilentInstances, got.name)
			continue
		}
		for _, a := range there.Agents {
			a.Instance = got.name
			s.Agents = append(s.Agents, a)
		}
		s.Refused = append(s.Refused, there.Refused...)
		s.addFederation(there.Federation)
		s.Proxies = s.Proxies.plus(there.Proxies)
	}
	slices.Sort(s.SilentInstances)
	slices.SortStableFunc(s.Agents, func(a, b AgentStatus) int { return strings.Compare(a.Node, b.Node) })
}

// addNodes adds what is of agents, which a global control plane has not.
func (h statusHandler) addNodes(s *Status, snapshot *catalog.Snapshot) {
	s.InServiceRanges = h.inServiceRanges(snapshot)
	if h.Ranges != nil {
		s.Ranges = h.Ranges()
	}
	s.setLeases(h.Leases.State())
	for _, m := range h.Suspicion.Suspects() {
		s.Suspects = append(s.Suspects, SuspectNode{Node: m.Node, Zone: m.Zone, Since: m.Since, Witnesses: m.Witnesses})
	}
	s.Unreachable = h.Suspicion.Unreachable()
	s.Drains, s.Shifts = drainsOf(snapshot), shiftsOf(snapshot)
	s.Demand = h.Demand.Coverage()
	s.TopologyModes = h.Planner.Modes()
	s.Refused = h.Refused.List(time.Now())
	if h.Following != nil {
		s.Proxies = h.Following()
	}
	if h.Registries != nil {
		s.Registries = h.Registries()
	}
	if h.Pulsar != nil {
		s.Pulsar = h.Pulsar()
	}
	if h.RegistryTroubles != nil {
		s.RegistryTroubles = h.RegistryTroubles()
	}
	for _, a := range h.Streams.Status() {
		s.Agents = append(s.Agents, agentStatus(a))
	}
}

func (h statusHandler) storeStatus(ctx context.Context) StoreStatus {
	s := StoreStatus{Name: h.StoreName, Epoch: h.Store.Epoch(), Compacted: h.Store.Compacted()}
	var err error
	if s.Revision, err = h.Store.Revision(ctx); err == nil {
		s.Bytes, err = h.Store.Size(ctx)
	}
	if err == nil {
		err = h.Store.Ready(ctx)
	}
	if err != nil {
		s.Problem = err.Error()
	}
	if h.Unreadable == nil {
		return s
	}
	for resource, err := range h.Unreadable() {
		if s.Unreadable == nil {
			s.Unreadable = map[string]string{}
		}
		s.Unreadable[resource] = err.Error()
	}
	return s
}

// nodesEverywhere are the nodes that have a token which registers workloads in every
// namespace, as long as its record is kept: certificates may descend from it after it has
// expired. Nil also if the store cannot be read, which the status of the store reports.
func (h statusHandler) nodesEverywhere(ctx context.Context) []string {
	tokens, err := h.Tokens.List(ctx)
	if err != nil {
		return nil
	}
	var out []string
	for _, t := range tokens {
		if t.Kind == identity.Node && t.Everywhere() && t.Revoked.IsZero() {
			out = append(out, t.Name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// maxInServiceRanges bounds Status.InServiceRanges.
const maxInServiceRanges = 5

// inServiceRanges are the first Dataplanes with an address in a service range: the range
// may be younger than they are.
func (h statusHandler) inServiceRanges(s *catalog.Snapshot) []string {
	var out []string
	for key, d := range s.Dataplanes.All() {
		if slices.ContainsFunc(d.Spec.Addresses, func(text string) bool {
			a, err := netip.ParseAddr(text)
			return err == nil && h.InServiceRange(a)
		}) {
			out = append(out, key.String())
		}
		if len(out) == maxInServiceRanges {
			break
		}
	}
	return out
}

func (s *Status) setLeases(state health.State) {
	s.Leases.Watched, s.Leases.Late = state.Leases, state.Late
	s.Leases.Held, s.Leases.Reason = len(state.Held) > 0, state.Reason
	for _, h := range state.Held {
		s.Leases.Expiries = append(s.Leases.Expiries, HeldExpiry{Object: h.Key.String(), Zone: h.Zone, Reason: h.Reason, Until: h.Until})
	}
}
