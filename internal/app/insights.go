package app

import (
	"context"
	"crypto/rand"
	"log/slog"
	"slices"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/cluster"
	"github.com/proxima-mesh/proxima/internal/delta/stream"
	"github.com/proxima-mesh/proxima/internal/identity/issue"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/view/wire"
	"github.com/proxima-mesh/proxima/internal/xds/insight"
)

// insights record what this instance observes of proxies, and of certificates.
type insights struct {
	*insight.Recorder
	// runs reports whether an instance does; set before components run.
	runs func(instance string) bool
	// leader's client, which writes in its term alone.
	client resource.Client
}

// newInsights makes the recorder, which reads the objects that insights are of by cached; nil: by client.
// gateways: of these, too; inside a cluster they are Pods, whose status says how they are.
func newInsights(client, cached resource.Client, gateways bool, s *storage, a *api, log *slog.Logger) *insights {
	return &insights{client: client, Recorder: insight.New(insight.Config{
		Client: client, Cached: cached, Gateways: gateways, Instance: instanceName(a.address), Logger: log.With("component", "insights"), Registerer: s.metrics,
	})}
}

func (x *insights) components() []component {
	if x == nil {
		return nil
	}
	return []component{
		{Name: "insights of proxies", Run: x.Run},
		{Name: "insights of instances that are gone", Scope: leader, Run: x.lead},
	}
}

func (x *insights) lead(ctx context.Context) error { return x.Lead(ctx, x.client, x.runs) }

// runs reports whether an instance is in the list.
func (x *instances) runs(instance string) bool {
	return x.members != nil && slices.ContainsFunc(x.members.List(), func(m cluster.Member) bool { return m.Name == instance })
}

// recorded keeps the record of a certificate, and notes it in the insight of its workload.
func (x *insights) recorded(record func(context.Context, issue.Issued) error) func(context.Context, issue.Issued) error {
	return func(ctx context.Context, i issue.Issued) error {
		if err := record(ctx, i); err != nil {
			return err
		}
		if subject, ok := insightOf(i); ok {
			x.Certified(subject, insight.Certificate{Mesh: i.Mesh, Identity: i.ID.String(), Issued: time.Now(), Expiry: i.NotAfter})
		}
		return nil
	}
}

// insightOf the holder of a certificate; false: it is a node, of which there is none.
func insightOf(i issue.Issued) (insight.Subject, bool) {
	switch kind := i.ID.Kind(); {
	case i.Workload != "":
		return insight.Workload(resource.Key{Namespace: i.Namespace, Name: i.Workload}), true
	case kind == mesh.IngressID:
		return insight.Gateway(insight.OfIngress, i.Node), true
	case kind == mesh.EgressID:
		return insight.Gateway(insight.OfEgress, i.Node), true
	}
	return insight.Subject{}, false
}

// gateway observes the stream of an agent that is a gateway, if this Node is that of one; else nil.
func (x *insights) gateway(n *core.Node) stream.Observer {
	if x == nil {
		return nil
	}
	role := insight.OfIngress
	switch n.GetCluster() {
	case wire.IngressCluster:
	case wire.EgressCluster:
		role = insight.OfEgress
	default:
		return nil
	}
	o := &gatewayStream{x.Recorder, insight.Gateway(role, n.GetId()), rand.Text()}
	o.Connected(o.subject, insight.Connection{ID: o.id, Versions: meshv1alpha1.ProxyVersions{
		Proxy: n.GetUserAgentName(), Version: n.GetUserAgentVersion(),
	}})
	return o
}

// gatewayStream implements stream.Observer for the view of a gateway without Envoy.
type gatewayStream struct {
	*insight.Recorder
	subject insight.Subject
	id      string
}

// Sent implements stream.Observer.
func (g *gatewayStream) Sent(typ string) { g.Recorder.Sent(g.subject, g.id, typ) }

// Answered implements stream.Observer. A view is refused as a response, not resource by resource.
func (g *gatewayStream) Answered(typ, refused string) {
	if refused == "" {
		g.Acked(g.subject, g.id, typ, []string{wholeView})
		return
	}
	g.Nacked(g.subject, g.id, typ, []string{wholeView}, insight.Rejection{Error: refused})
}

// wholeView stands for the resources of a response.
const wholeView = "*"

// Ended implements stream.Observer.
func (g *gatewayStream) Ended() { g.Disconnected(g.subject, g.id) }
