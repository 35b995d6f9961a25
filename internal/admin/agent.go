package admin

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/proxima-mesh/proxima/internal/diag"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/identity/workload"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/machine"
	"github.com/proxima-mesh/proxima/internal/node"
	"github.com/proxima-mesh/proxima/internal/node/fallback"
	"github.com/proxima-mesh/proxima/internal/node/fromkube"
	"github.com/proxima-mesh/proxima/internal/node/fromview"
	"github.com/proxima-mesh/proxima/internal/node/isolation"
	"github.com/proxima-mesh/proxima/internal/node/local"
	"github.com/proxima-mesh/proxima/internal/node/membership"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/ebpf"
	"github.com/proxima-mesh/proxima/internal/proxy/ipvs"
	"github.com/proxima-mesh/proxima/internal/proxy/permit"
	"github.com/proxima-mesh/proxima/internal/tracing"
	"github.com/proxima-mesh/proxima/internal/version"
)

// Agent answers queries of programs on its machine.
type Agent interface {
	// Status of the agent now. It may try the disk.
	Status() NodeStatus
	// Trace returns how a connection is handled.
	Trace(diag.Connection) *diag.Trace
	// Dump returns what the agent has programmed. It blocks while the kernel's tables are read.
	Dump(ctx context.Context) (*NodeDump, error)
}

// AgentHandlers of the agent's socket, by pattern of http.ServeMux.
func AgentHandlers(a Agent) map[string]http.Handler {
	return map[string]http.Handler{
		"GET " + local.AlivePath:  http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}),
		"GET " + local.StatusPath: StatusHandler(a.Status),
		"GET " + local.TracePath: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c, err := connectionOf(r)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			answer(w, a.Trace(c))
		}),
		"GET " + local.DumpPath: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			dump, err := a.Dump(r.Context())
			if err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
			answer(w, dump)
		}),
	}
}

// StatusHandler answers queries for the status of an agent.
func StatusHandler(status func() NodeStatus) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { answer(w, status()) })
}

// NodeStatus is the state of an agent, as JSON at local.StatusPath.
type NodeStatus struct {
	Version version.Info `json:"version"`
	Agent   node.Status  `json:"agent"`
	// PID of the agent's process.
	PID int `json:"pid"`
	// API (URL) that the agent uses.
	API string `json:"api"`
	// Waiting is what the agent waits for before it begins to serve, after which there is more to tell; empty: nothing.
	Waiting string `json:"waiting,omitempty"`
	// Traces of changes; nil: they are off.
	Traces *tracing.Status `json:"traces,omitempty"`
	// Unsaved are files that the agent could not write.
	Unsaved []UnsavedFile `json:"unsaved,omitempty"`
	// View of a control plane, or the Kubernetes API, that the agent follows: one of
	// the two.
	View    *ViewStatus      `json:"view,omitempty"`
	Cluster *fromkube.Status `json:"cluster,omitempty"`
	// Fallback tells whether the agent follows the API of its cluster in the place of the
	// view; nil: it never does.
	Fallback *fallback.Status `json:"fallback,omitempty"`
	// Identities are the certificates of this node's workloads and of the node in its
	// meshes; SpiffeSocket is the path of the SPIFFE Workload API, empty: off.
	Identities   []workload.Status `json:"identities,omitempty"`
	SpiffeSocket string            `json:"spiffeSocket,omitempty"`
	// Cgroups: the agent knows workloads by the cgroups that `proxima run` makes.
	Cgroups bool `json:"cgroups,omitempty"`
	// Layer of mode ebpf; nil: the agent has another mode.
	Layer *ebpf.Status `json:"layer,omitempty"`
	// LayerEstimate is what mode ebpf would save on this node; nil: it is not known (yet), or the mode was asked for by name.
	LayerEstimate *ebpf.Estimate `json:"layerEstimate,omitempty"`
	// IPVS of mode ipvs, or why another mode runs in its place; nil: the agent was told another mode.
	IPVS *ipvs.Status `json:"ipvs,omitempty"`
	// Tunnel to other sites; nil: the agent has none.
	Tunnel *TunnelStatus `json:"tunnel,omitempty"`
	// Isolation of meshes on this node; nil: the site has one mesh.
	Isolation *isolation.Status `json:"isolation,omitempty"`
	// Permissions of workloads of this node without a sidecar; nil: the agent is a gateway.
	Permissions *permit.Status `json:"permissions,omitempty"`
	// Limits are what service ports ask for and the mode does not do, a line each. ModeProblem is that of
	// the mode as a whole; empty: none.
	Limits      []string `json:"limits,omitempty"`
	ModeProblem string   `json:"modeProblem,omitempty"`
	// HealthCheckNodePorts that are not served, each with the reason.
	HealthCheckNodePorts []string `json:"healthCheckNodePorts,omitempty"`
	// DNS (host:port) of names; empty: off.
	DNS string `json:"dns,omitempty"`
	// Capture of port 53; nil: off.
	Capture *CaptureStatus `json:"capture,omitempty"`
	// Certificate by which the control plane recognises this node; nil: it follows a
	// Kubernetes API.
	Certificate *identity.CertificateStatus `json:"certificate,omitempty"`
	// Membership is how the Node and its Lease are kept; nil: the kubelet does that.
	Membership *membership.Status `json:"membership,omitempty"`
}

// CaptureStatus is what an agent captures of port 53.
type CaptureStatus struct {
	// Port that questions are led to.
	Port uint16 `json:"port"`
	// Only questions to these servers are captured of programs of the machine; empty: all.
	Only []string `json:"only,omitempty"`
	// Workloads are the sources that are captured on their way through the machine; empty:
	// all.
	Workloads []string `json:"workloads,omitempty"`
	// Questions by UDP, and connections, since the agent started.
	Questions uint64 `json:"questions"`
}

// TunnelStatus is an agent's tunnel to other sites.
type TunnelStatus struct {
	// Port that is listened on; 0: no other site offers anything.
	Port uint16 `json:"port"`
	// Failures are the last ones of services, the newest first, at most 10.
	Failures []TunnelFailure `json:"failures,omitempty"`
}

// TunnelFailure is the last connection to a service of other sites that failed: the client
// saw a reset.
type TunnelFailure struct {
	// Service is its server name (SNI), or the address that was connected to.
	Service string    `json:"service"`
	At      time.Time `json:"at"`
	// Count of connections that failed since the agent started.
	Count  int    `json:"count"`
	Reason string `json:"reason"`
	Error  string `json:"error"`
}

// UnsavedFile is a file that the agent could not write: after a restart it would go on
// from an older one, or from none.
type UnsavedFile struct {
	File  string    `json:"file"`
	Error string    `json:"error"`
	Since time.Time `json:"since"`
}

// ViewStatus is how an agent follows its view, as the agent sees it.
type ViewStatus struct {
	Connected bool `json:"connected"`
	// Synced: the agent has a whole state. FromDisk: it began with that on disk.
	Synced   bool          `json:"synced"`
	FromDisk bool          `json:"fromDisk"`
	Zone     locality.Zone `json:"zone,omitempty"`
	// Streams counts those that were opened; the bytes are of the newest.
	Streams       uint64            `json:"streams"`
	BytesSent     uint64            `json:"bytesSent"`
	BytesReceived uint64            `json:"bytesReceived"`
	LastError     string            `json:"lastError,omitempty"`
	Rejected      map[string]string `json:"rejected,omitempty"`
}

// ViewStatusOf a feed.
func ViewStatusOf(s fromview.FeedStatus) ViewStatus {
	out := ViewStatus{
		Connected: s.Connected, Synced: s.Synced, FromDisk: s.FromDisk, Zone: s.Zone,
		Streams: s.Streams, BytesSent: s.BytesSent, BytesReceived: s.BytesReceived, Rejected: s.Rejected,
	}
	if s.LastError != nil {
		out.LastError = s.LastError.Error()
	}
	return out
}

// connectionOf a request: to, protocol (default tcp) and from (default: this
// machine's own address on the way there).
func connectionOf(r *http.Request) (c diag.Connection, err error) {
	q := r.URL.Query()
	if c.To, err = netip.ParseAddrPort(q.Get("to")); err != nil || c.To.Port() == 0 {
		return c, fmt.Errorf("to=%q: want IP:PORT, or [IP]:PORT", q.Get("to"))
	}
	c.To = netip.AddrPortFrom(c.To.Addr().Unmap(), c.To.Port())
	c.Protocol = proxy.Protocol(strings.ToUpper(cmp.Or(q.Get("protocol"), "tcp")))
	if !slices.Contains([]proxy.Protocol{proxy.TCP, proxy.UDP, proxy.SCTP}, c.Protocol) {
		return c, fmt.Errorf("protocol=%q: want tcp, udp or sctp", q.Get("protocol"))
	}
	if q.Get("from") == "" {
		c.From = machine.AddressTowards(c.To)
		return c, nil
	}
	if c.From, err = netip.ParseAddr(q.Get("from")); err != nil {
		return c, fmt.Errorf("from=%q: want an IP address", q.Get("from"))
	}
	if c.From = c.From.Unmap(); c.From.Is4() != c.To.Addr().Is4() {
		return c, fmt.Errorf("from=%s and to=%s are of different families", c.From, c.To)
	}
	return c, nil
}
