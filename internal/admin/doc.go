// Package admin is Proxima's own API, next to the Kubernetes one: the paths below
// /proxima/v1 of a control plane, and the paths of an agent's socket.
//
// It owns the paths, the JSON at them, and the handlers. Enter at Handlers for a control
// plane and at AgentHandlers for an agent; the commands decode the same types. It decides
// nothing: its answers come from the components behind the interfaces in this file.
// Requests are authorised before a handler is called. Tokens, certificates and the keys of
// secrets have handlers in the packages that own them.
package admin

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/proxima-mesh/proxima/internal/audit"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/health"
	"github.com/proxima-mesh/proxima/internal/controller/ipam"
	"github.com/proxima-mesh/proxima/internal/delta/stream"
	"github.com/proxima-mesh/proxima/internal/demand"
	"github.com/proxima-mesh/proxima/internal/feed/history"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/topology"
	"github.com/proxima-mesh/proxima/internal/tracing"
	"github.com/proxima-mesh/proxima/internal/version"
)

// Config of the handlers of a control plane. All fields are required, but for Views, Sums, Federation, Instances, Planning, Following, Registries,
// RegistryTroubles, History, UnfollowedKinds, AnyInstance, Sinks, Redactions and Pulsar,
// and for what GlobalHandlers do without. Nothing that is named here may block, except
// where a context is passed.
type Config struct {
	// Role, as --role names it, and StoreName, as --store does, without passwords.
	Role, StoreName string
	// Preset, as --preset names it; empty: none.
	Preset string
	// Site is the name of this zone.
	Site    string
	Started time.Time
	// DataDir with the keys that a backup may hold.
	DataDir string
	Store   store.Store
	// Unreadable are the resources whose objects cannot be listed, as stored data is damaged,
	// with the reason; nil: that is not known.
	Unreadable func() map[string]error
	Tables     Tables
	Planner    Planner
	Demand     Demand
	// Streams of agents that follow their view from this instance.
	Streams Streams
	// Views that agents follow from this instance; nil: how far a change got is not answered.
	Views Views
	// Refused are the agents whose versions are refused; nil: none.
	Refused *version.Refusals
	// Suspicion of machines, and Leases of nodes and workloads.
	Suspicion Suspicion
	Leases    Leases
	Tokens    Tokens
	// Traces returns how traces of changes are sent; nil, or if it returns nil: they are off.
	Traces func() *tracing.Status
	// Audit returns the state of each audit log.
	Audit func() audit.States
	// Ranges is the usage of the ranges of ClusterIPs, and of node ports. Nil: none is shown.
	Ranges func() []ipam.Usage
	// InServiceRange reports whether Services may have an address.
	InServiceRange func(netip.Addr) bool
	// Federation with other control planes; nil: this one stands alone.
	Federation Federation
	// Instances of this control plane besides this one; nil: there are none.
	Instances Instances
	// Planning are the instances that may have the sums which this one has not; nil: Instances.
	Planning Instances
	// Proxies answers for agents and gateways.
	Proxies Proxies
	// ByAddress reports whether agents in a mode enforce permissions by the addresses of clients.
	ByAddress func(mode string) bool
	// Drains of nodes.
	Drains Drains
	// Following sums up the proxies that follow from this instance; nil, or if it returns nil:
	// they are not served.
	Following func() *ProxiesStatus
	// Registries that this instance serves; nil: none.
	Registries func() []registry.Status
	// Pulsar clients that read the change feed; nil, or if it returns nil: they are not served.
	Pulsar func() *PulsarStatus
	// RegistryTroubles is what is wrong with what clients of registries registered; nil: nobody looks.
	RegistryTroubles func() []registry.Trouble
	// Checks asks zones; at global.
	Checks ZoneChecks
	// History of objects, from the change feed; nil: there is none. Authorizer decides who may read it.
	History    *history.Reader
	Authorizer authorizer.UnconditionalAuthorizer
	// UnfollowedKinds are the kinds that the change feed cannot follow now, with the reasons: in a Kubernetes cluster; nil: it follows all.
	UnfollowedKinds func() map[string]string
	// AnyInstance reports whether the next request of the same client may come to another instance, whose feed has positions of its own. It
	// must give moments as times then. Nil: positions are the same everywhere.
	AnyInstance func(context.Context) bool
	// Sinks of the change feed; nil: there is none.
	Sinks FeedSinks
	// Redactions of the change feed; nil: there is none.
	Redactions FeedRedactions
	// Sums of Services, and Problems to find; nil: there are no summaries. Authorizer decides then who sees which rows.
	Sums     Sums
	Problems ProblemFinder
	// Cursors of those who follow the feed; required with History.
	Cursors Cursors
	// Segments of the change feed; nil: there is none.
	Segments Segments
	Logger   *slog.Logger
}

// Tables are the state that answers are made from. A *catalog.Catalog is one.
type Tables interface {
	Snapshot() *catalog.Snapshot
	// Synced reports whether the tables are filled.
	Synced() bool
}

// Planner answers questions about plans. A *topology.Controller is one.
type Planner interface {
	// Modes counts Services by topology mode and by what chose it.
	Modes() []topology.ModeCount
	// Explain reports on a Service; false: there is none of that name.
	Explain(service resource.Key) (*topology.Report, bool)
	// Simulate plans a situation and applies nothing.
	Simulate(topology.Change) (*topology.Simulation, error)
	// Survey compares all Services with what kube-proxy does, and changes nothing.
	Survey(topology.SurveyQuestion) (*topology.Survey, error)
}

// Demand is what is measured. A *demand.Aggregator is one.
type Demand interface {
	Coverage() demand.Coverage
	// Snapshot of one Service; nil: of all.
	Snapshot(of *proxy.ServiceName) []demand.PortDemand
}

// Streams lists who follows a view. A *stream.Server is one.
type Streams interface {
	Status() []stream.StreamStatus
}

// Suspicion lists the machines that seem to be gone. A *health.Monitor is one.
type Suspicion interface {
	Suspects() []health.Suspect
	Unreachable() []string
}

// Leases lists the leases that are late. A *health.Controller is one.
type Leases interface {
	State() health.State
}

// Tokens lists the records of tokens. An *identity.Tokens is one.
type Tokens interface {
	List(ctx context.Context) ([]identity.TokenInfo, error)
}

// Handlers of a control plane, by path.
func Handlers(c Config) map[string]http.Handler {
	rows := newScopes(c)
	return withProxies(c, withRollout(c, withSummaries(c, rows, withFeed(c, map[string]http.Handler{
		StatusPath:         get(statusHandler{c}),
		DemandPath:         get(demandHandler{c}),
		ExplainServicePath: get(questionHandler{c, rows, explainService}),
		SimulatePath:       get(questionHandler{c, rows, simulate}),
		SurveyPath:         surveyHandler{c, rows},
		ShiftPath:          get(questionHandler{c, rows, shift}),
		BackupPath:         get(backupHandler{c, false}),
		BackupKeysPath:     get(backupHandler{c, true}),
		ConfirmPath:        confirmHandler{c},
		DrainPath:          drainHandler{c},
		UndrainPath:        undrainHandler{c},
	}))), ProxyConnections)
}

// PlannerHandlers of a control plane that only plans, by path. Proxies and Drains of the Config
// are not used.
func PlannerHandlers(c Config) map[string]http.Handler {
	rows := newScopes(c)
	return withRollout(c, withSummaries(c, rows, withFeed(c, map[string]http.Handler{
		StatusPath:         get(statusHandler{c}),
		DemandPath:         get(demandHandler{c}),
		ExplainServicePath: get(questionHandler{c, rows, explainService}),
		SimulatePath:       get(questionHandler{c, rows, simulate}),
		SurveyPath:         surveyHandler{c, rows},
	})))
}

// ClusterZoneHandlers are PlannerHandlers of a control plane in a Kubernetes cluster that is a zone.
// Drains of the Config is not used.
func ClusterZoneHandlers(c Config) map[string]http.Handler {
	all := withProxies(c, PlannerHandlers(c))
	all[ConfirmPath] = confirmHandler{c}
	return all
}

// GlobalHandlers of a global control plane, by path. Planner, Demand, Streams, Suspicion,
// Leases, Drains and InServiceRange of the Config are not used: there are no nodes.
func GlobalHandlers(c Config) map[string]http.Handler {
	return withProxies(c, withRollout(c, withProblems(c, newScopes(c), withFeed(c, map[string]http.Handler{
		StatusPath:     get(statusHandler{c}),
		BackupPath:     get(backupHandler{c, false}),
		BackupKeysPath: get(backupHandler{c, true}),
		ConfirmPath:    confirmHandler{c},
		CheckPath:      checkHandler{c},
	}))))
}

// get lets only requests with that method through.
func get(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			w.Header().Set("Allow", http.MethodGet)
			http.Error(w, "only GET is answered here", http.StatusMethodNotAllowed)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func answer(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value) // the client may be gone
}

// errNotSynced is the answer while the tables are being filled.
var errNotSynced = errors.New("the control plane is still reading its store; try again in a moment")

// errAlone is the answer where there are no other control planes.
var errAlone = errors.New("this control plane stands alone: it has no zones, and no global control plane")

// refuse as the Kubernetes API does.
func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
		Code: int32(code), Reason: reason, Message: err.Error(),
	})
}
