package app

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/delta/stream"
	"github.com/proxima-mesh/proxima/internal/demand"
	"github.com/proxima-mesh/proxima/internal/node/fromview"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/version"
)

// StatusPath is where a control plane tells how it is.
const StatusPath = "/proxima/v1/status"

// Status of a control plane, as JSON at StatusPath.
type Status struct {
	Version version.Info `json:"version"`
	Role    string       `json:"role"`
	Started time.Time    `json:"started"`
	Store   StoreStatus  `json:"store"`
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
	// Unreachable are nodes whose agent is there, but does not get the probes of others.
	Unreachable []string `json:"unreachable,omitempty"`
	// Everywhere are the nodes whose credentials register workloads in every
	// namespace.
	Everywhere []string `json:"nodesInEveryNamespace,omitempty"`
	// InServiceRanges are workloads whose address is one that Services have or get,
	// the first of them.
	InServiceRanges []string `json:"inServiceRanges,omitempty"`
	// Demand: how many nodes report theirs.
	Demand demand.Coverage `json:"demand"`
	// Audit logs: whether they can be written.
	Audit AuditStatus `json:"audit"`
	// Agents that follow their view right now.
	Agents []AgentStatus `json:"agents"`
}

// HeldExpiry is a lease that ran out and whose holder is not marked not ready yet.
type HeldExpiry struct {
	Object string `json:"object"`
	Zone   string `json:"zone,omitempty"`
	Reason string `json:"reason"`
	// Until when at most; absent: until it is renewed or the reason is gone.
	Until time.Time `json:"until,omitzero"`
}

// SuspectNode is a node whose stream stalled and that answers no probe.
type SuspectNode struct {
	Node  string    `json:"node"`
	Zone  string    `json:"zone,omitempty"`
	Since time.Time `json:"since"`
	// Witnesses are the nodes that probed it in vain.
	Witnesses []string `json:"witnesses"`
}

// AgentStatus is how an agent follows its view.
type AgentStatus struct {
	Node      string    `json:"node"`
	Peer      string    `json:"peer"`
	Since     time.Time `json:"since"`
	BytesSent uint64    `json:"bytesSent"`
	// Behind counts changes that the agent has not confirmed.
	Behind uint64 `json:"behind"`
	// Rejected is the last part of the view that the agent refused, and why.
	Rejected string `json:"rejected,omitempty"`
}

// ViewStatus is how an agent sees its own following.
type ViewStatus struct {
	Connected bool `json:"connected"`
	// Synced: the agent has a whole state. FromDisk: it began with that on disk.
	Synced   bool   `json:"synced"`
	FromDisk bool   `json:"fromDisk"`
	Zone     string `json:"zone,omitempty"`
	// Streams counts those that were opened; the bytes are of the newest.
	Streams       uint64            `json:"streams"`
	BytesSent     uint64            `json:"bytesSent"`
	BytesReceived uint64            `json:"bytesReceived"`
	LastError     string            `json:"lastError,omitempty"`
	Rejected      map[string]string `json:"rejected,omitempty"`
}

func agentStatus(s stream.StreamStatus) AgentStatus {
	out := AgentStatus{Node: s.Node, Peer: s.Peer, Since: s.Since, BytesSent: s.BytesSent}
	for _, t := range s.Types {
		out.Behind += t.Unsent + t.Unacked
		if t.Rejected.Reason != "" {
			out.Rejected = t.Rejected.Reason
		}
	}
	return out
}

func viewStatus(s fromview.FeedStatus) ViewStatus {
	out := ViewStatus{
		Connected: s.Connected, Synced: s.Synced, FromDisk: s.FromDisk, Zone: s.Zone,
		Streams: s.Streams, BytesSent: s.BytesSent, BytesReceived: s.BytesReceived, Rejected: s.Rejected,
	}
	if s.LastError != nil {
		out.LastError = s.LastError.Error()
	}
	return out
}

// StoreStatus tells how the store is.
type StoreStatus struct {
	Name      string         `json:"name"`
	Epoch     string         `json:"epoch"`
	Revision  store.Revision `json:"revision"`
	Compacted store.Revision `json:"compacted"`
	Bytes     int64          `json:"bytes"`
	// Problem is why it can't read or write now; empty: it can.
	Problem string `json:"problem,omitempty"`
}

type statusHandler struct{ cp *controlPlane }

func (h statusHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		w.Header().Set("Allow", http.MethodGet)
		http.Error(w, "only GET is answered here", http.StatusMethodNotAllowed)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(h.cp.status(r)) // the client may be gone
}

func (cp *controlPlane) status(r *http.Request) Status {
	s := Status{
		Version: version.Get(), Role: "standalone", Started: cp.started,
		Agents: []AgentStatus{}, Audit: cp.audit.status(), Store: StoreStatus{Name: storeName(cp.cfg.Store), Epoch: cp.store.Epoch(), Compacted: cp.store.Compacted()},
	}
	var err error
	if s.Store.Revision, err = cp.store.Revision(r.Context()); err == nil {
		s.Store.Bytes, err = cp.store.Size(r.Context())
	}
	if err == nil {
		err = cp.store.Ready(r.Context())
	}
	if err != nil {
		s.Store.Problem = err.Error()
	}
	s.Everywhere = cp.nodesEverywhere(r.Context())
	running := cp.running.Load()
	if running == nil {
		return s // still starting
	}
	snapshot := running.catalog.Snapshot()
	s.Catalog.Synced = running.catalog.Synced()
	s.Catalog.Position = snapshot.Position
	s.Catalog.Objects = map[string]int{
		"services": snapshot.Services.Len(), "endpointslices": snapshot.Slices.Len(), "nodes": snapshot.Nodes.Len(),
		"pods": snapshot.Pods.Len(), "dataplanes": snapshot.Dataplanes.Len(), "namespaces": snapshot.Namespaces.Len(),
	}
	s.InServiceRanges = cp.inServiceRanges(snapshot)
	running.detection.addTo(&s)
	s.Demand = running.demand.Coverage()
	for _, a := range running.views.Status() {
		s.Agents = append(s.Agents, agentStatus(a))
	}
	return s
}
