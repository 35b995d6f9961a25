package app

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/api/meta"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	sidecarv1 "github.com/proxima-mesh/proxima/api/sidecar/v1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/policystatus"
	"github.com/proxima-mesh/proxima/internal/identity/access"
	trafficpolicy "github.com/proxima-mesh/proxima/internal/policy"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/xds"
	"github.com/proxima-mesh/proxima/internal/xds/build"
	"github.com/proxima-mesh/proxima/internal/xds/insight"
)

const (
	// lookPeriod is how often an instance looks at what its proxies have taken.
	lookPeriod = time.Second
	// passTimeout of one report to the leader.
	passTimeout = 3 * time.Second
	// maxPassed policies are in one report: below the 4 MB of a gRPC message.
	maxPassed = 500
)

// acknowledgements are what the proxies of all instances have taken of policies: each instance looks at
// its own, and passes on to the one that leads what has changed.
type acknowledgements struct {
	sidecarv1.UnimplementedAcknowledgementsServer
	log     *slog.Logger
	catalog *catalog.Catalog
	board   *insight.Board
	self    string
	run     string
	// leader and dial as in wire.Relay; nil: this is the only instance.
	leader func() string
	dial   func(address string) (*grpc.ClientConn, error)
	// runs reports whether another instance does; nil: none.
	runs func(instance string) bool

	// nodes by the mode of their agents.
	nodes nodeModes

	// Of follow alone.
	own      uint64 // the last sequence of reports to the board of this instance
	sequence uint64 // and of those to the leader
	at       string
	conn     *grpc.ClientConn
}

func newAcknowledgements(self string, tables *catalog.Catalog, log *slog.Logger) *acknowledgements {
	return &acknowledgements{log: log.With("component", "acknowledgements"), catalog: tables, board: insight.NewBoard(), self: self, run: rand.Text()}
}

// follow the proxies of a server until ctx ends.
func (a *acknowledgements) follow(ctx context.Context, server *xds.Server) error {
	ticker := time.NewTicker(lookPeriod)
	defer ticker.Stop()
	defer a.leave()
	var looking *xds.Acknowledgements
	whole := true
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if looking == nil {
			select {
			case <-server.Wanted(): // until then there are no proxies, and nothing is read for them
				looking = xds.NewAcknowledgements(server)
			default:
			}
		}
		a.board.Keep(func(name string) bool { return name == a.self || a.runs != nil && a.runs(name) })
		if looking == nil {
			continue
		}
		if a.moved() {
			whole = true
		}
		err := a.report(ctx, looking.Look(whole), whole)
		if whole = err != nil; whole && ctx.Err() == nil {
			a.log.Info("what proxies have acknowledged does not reach the instance that leads; it is sent again", "error", err)
		}
	}
}

// moved reports whether the leader is another one than before.
func (a *acknowledgements) moved() bool {
	if a.leader == nil || a.leader() == a.at {
		return false
	}
	a.leave()
	if a.at = a.leader(); a.at == "" {
		return true
	}
	conn, err := a.dial(a.at)
	if err != nil {
		a.at = ""
		a.log.Warn("no connection to the instance that leads", "error", err)
		return true
	}
	a.conn = conn
	return true
}

func (a *acknowledgements) leave() {
	if a.conn != nil {
		_ = a.conn.Close() // what was lost is sent again
	}
	a.conn, a.at = nil, ""
}

// report what has changed, to the board of this instance, which may be the next leader, and to the
// leader.
func (a *acknowledgements) report(ctx context.Context, all []insight.Acknowledged, whole bool) error {
	if len(all) == 0 && !whole {
		return nil
	}
	a.own++
	if err := a.board.Put(insight.Report{Instance: a.self, Run: a.run, Sequence: a.own, Whole: whole, Policies: all}); err != nil {
		return err
	}
	if a.conn == nil {
		return nil
	}
	for first := true; first || len(all) > 0; first = false {
		a.sequence++
		n := min(len(all), maxPassed)
		q := &sidecarv1.AcknowledgementReport{
			Instance: a.self, Run: a.run, Sequence: a.sequence, Whole: whole && first, Policies: encodeAcknowledged(all[:n]),
		}
		all = all[n:]
		if err := a.pass(ctx, q); err != nil {
			return err
		}
	}
	return nil
}

func (a *acknowledgements) pass(ctx context.Context, q *sidecarv1.AcknowledgementReport) error {
	ctx, cancel := context.WithTimeout(ctx, passTimeout)
	defer cancel()
	_, err := sidecarv1.NewAcknowledgementsClient(a.conn).Report(ctx, q)
	if status.Code(err) == codes.Unimplemented { // an older version, which says nothing of it
		return nil
	}
	return err
}

func encodeAcknowledged(all []insight.Acknowledged) []*sidecarv1.Acknowledged {
	var out []*sidecarv1.Acknowledged
	for i := range all {
		a := &all[i]
		p := &sidecarv1.Acknowledged{
			Kind: a.Policy.Kind, Namespace: a.Policy.Key.Namespace, Name: a.Policy.Key.Name, Version: a.Version,
			Selected: uint32(a.Selected), Behind: uint32(a.Behind), //nolint:gosec // numbers of streams
		}
		for _, l := range a.Names {
			p.Lags = append(p.Lags, &sidecarv1.Lag{Namespace: l.Proxy.Namespace, Name: l.Proxy.Name, Reason: l.Reason})
		}
		out = append(out, p)
	}
	return out
}

// Report implements AcknowledgementsServer, for other instances.
func (a *acknowledgements) Report(ctx context.Context, q *sidecarv1.AcknowledgementReport) (*sidecarv1.AcknowledgementTaken, error) {
	if !access.CallerInstance(ctx) {
		return nil, status.Error(codes.PermissionDenied, "instances of this control plane alone report acknowledgements")
	}
	if a.leader != nil && a.leader() != "" {
		return nil, status.Error(codes.Unavailable, "this instance does not lead any more")
	}
	r := insight.Report{Instance: q.GetInstance(), Run: q.GetRun(), Sequence: q.GetSequence(), Whole: q.GetWhole()}
	for _, p := range q.GetPolicies() {
		one := insight.Acknowledged{
			Policy:  trafficpolicy.Source{Kind: p.GetKind(), Key: resource.Key{Namespace: p.GetNamespace(), Name: p.GetName()}},
			Version: p.GetVersion(), Selected: int(p.GetSelected()), Behind: int(p.GetBehind()),
		}
		for _, l := range p.GetLags() {
			one.Names = append(one.Names, insight.Lag{Proxy: resource.Key{Namespace: l.GetNamespace(), Name: l.GetName()}, Reason: l.GetReason()})
		}
		r.Policies = append(r.Policies, one)
	}
	switch err := a.board.Put(r); {
	case errors.Is(err, insight.ErrGap):
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	case err != nil:
		return nil, err
	}
	return &sidecarv1.AcknowledgementTaken{}, nil
}

// Changed implements policystatus.Changes.
func (a *acknowledgements) Changed() <-chan struct{} { return a.board.Changed() }

// Take implements policystatus.Changes.
func (a *acknowledgements) Take() []trafficpolicy.Source { return a.board.Take() }

// Enforced implements policystatus.Proxies.
func (a *acknowledgements) Enforced(source trafficpolicy.Source, targets []trafficpolicy.Ref) policystatus.Enforcement {
	tables := a.catalog.Snapshot()
	obj := policyIn(tables, source)
	if obj == nil {
		return policystatus.Enforcement{}
	}
	known := a.board.Of(source, build.PolicyVersion(obj))
	e := policystatus.Enforcement{Selected: known.Selected, Acknowledged: known.Selected - known.Behind}
	for _, l := range known.Names {
		if l.Proxy.Name == "" {
			e.Behind = append(e.Behind, l.Reason)
		} else {
			e.Behind = append(e.Behind, l.Proxy.String()+": "+l.Reason)
		}
	}
	switch source.Kind {
	case "WorkloadPolicy", "TrafficPermission", "ProxyPatch":
	default:
		e.Missing = notOnNodes(a.nodes.of(tables), obj, source, targets)
		return e
	}
	with, without := 0, []trafficpolicy.Ref{}
	var away []string
	for _, ref := range targets {
		has, connected := proxyOf(tables, ref)
		switch {
		case !has:
			without = append(without, ref)
			continue
		case !connected:
			away = append(away, ref.Key.String()+": its proxy is not connected")
		}
		with++
	}
	if with > e.Selected { // what no instance has a stream of
		e.Selected = with
		e.Behind = append(e.Behind, away...)
	}
	e.Missing = workloadsWithout(tables, obj, without, len(targets))
	return e
}

// maxNamedWorkloads in a message.
const maxNamedWorkloads = 10

// proxyOf a workload: whether it has one, and whether that follows a control plane, as far as it is known.
func proxyOf(tables *catalog.Snapshot, ref trafficpolicy.Ref) (has, connected bool) {
	if ref.Kind == "Pod" {
		_, has = sidecarOf(tables, ref.Key)
		return has, has
	}
	d, ok := tables.Dataplanes.Get(ref.Key)
	if !ok || !kind.DataplaneHasProxy(d) {
		return false, false
	}
	return true, meta.IsStatusConditionTrue(d.Status.Conditions, meshv1alpha1.DataplaneProxyConnected)
}

// policyIn the tables; nil: it has gone.
func policyIn(tables *catalog.Snapshot, source trafficpolicy.Source) resource.Object {
	switch source.Kind {
	case "TrafficPermission":
		return objectOf(tables.TrafficPermissions.Get(source.Key))
	case "BackendPolicy":
		return objectOf(tables.BackendPolicies.Get(source.Key))
	case "WorkloadPolicy":
		return objectOf(tables.WorkloadPolicies.Get(source.Key))
	case "ProxyPatch":
		return objectOf(tables.ProxyPatches.Get(source.Key))
	case "HTTPRoute":
		return objectOf(tables.HTTPRoutes.Get(source.Key))
	case "GRPCRoute":
		return objectOf(tables.GRPCRoutes.Get(source.Key))
	case "TCPRoute":
		return objectOf(tables.TCPRoutes.Get(source.Key))
	}
	return nil
}

func objectOf[T catalog.Row](row T, ok bool) resource.Object {
	if !ok {
		return nil
	}
	return row
}
