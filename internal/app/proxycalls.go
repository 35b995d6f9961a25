package app

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/api/meta"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/sidecar/wire"
	"github.com/proxima-mesh/proxima/internal/version"
	"github.com/proxima-mesh/proxima/internal/xds"
	"github.com/proxima-mesh/proxima/internal/xds/build"
	"github.com/proxima-mesh/proxima/internal/xds/insight"
)

// A question about the proxy of a Dataplane goes to the instance that has its streams, and from
// there to its supervisor, which asks Envoy:
//
//	… ─► zone's leader ─► the one with the proxy's stream ─► supervisor ─► Envoy
//	               (API)                          (xds.Server)      (Unix socket)

// errNoProxy: the agent of its node answers for a Dataplane.
var errNoProxy = errors.New("no proxy of it is connected")

// proxy asks about the proxy of a Dataplane. errNoProxy: it has none.
func (c *agentCalls) proxy(ctx context.Context, call admin.ProxyCall) ([]byte, error) {
	key := resource.Key{Namespace: call.Namespace, Name: call.Name}
	here := false
	if c.proxies != nil {
		_, _, here = c.proxies.server.Followed(key)
	}
	if !here && key.Namespace == xds.GatewayNamespace {
		return c.gateway(ctx, call)
	}
	if !here {
		d, ok := c.catalog.Snapshot().Dataplanes.Get(key)
		if !ok || !meta.IsStatusConditionTrue(d.Status.Conditions, meshv1alpha1.DataplaneProxyConnected) {
			return nil, errNoProxy
		}
		return nil, &elsewhereError{status.Errorf(codes.Unavailable,
			"the proxy of Dataplane %s has no stream to this instance (%s) of the control plane of zone %s", key, c.instance, c.zone)}
	}
	switch call.Question {
	case admin.ProxyStatus:
		return c.proxyState(ctx, key)
	case admin.ProxyDiff:
		return c.proxyDiff(ctx, key)
	}
	body, err := c.proxies.server.Ask(ctx, key, string(call.Question), call.Level)
	var none *xds.NotHereError
	switch {
	case errors.As(err, &none):
		return nil, c.unsupervised(key)
	case status.Code(err) == codes.Unimplemented:
		return nil, status.Errorf(codes.Unavailable, "the supervisor of the proxy of Dataplane %s is of another version than this control plane (%s): %s",
			key, version.Get().Version, status.Convert(err).Message())
	}
	return body, err
}

// gateway answers for one of whose Envoy there is no stream here: its process does, if it is a gateway
// without Envoy.
func (c *agentCalls) gateway(ctx context.Context, call admin.ProxyCall) ([]byte, error) {
	who := call.Namespace + "/" + call.Name
	var of insight.Subject
	tables := c.catalog.Snapshot()
	if i, ok := tables.ZoneIngresses.Get(resource.Key{Name: call.Name}); ok && i.Labels[meshv1alpha1.LabelOrigin] == "" {
		of = insight.Gateway(insight.OfIngress, call.Name)
	} else if _, ok := tables.ZoneEgresses.Get(resource.Key{Name: call.Name}); ok {
		of = insight.Gateway(insight.OfEgress, call.Name)
	} else {
		return nil, status.Errorf(codes.NotFound, "zone %s has no ingress or egress %s", c.zone, call.Name)
	}
	if call.Question == admin.ProxyConfig || call.Question == admin.ProxyClusters || call.Question == admin.ProxyStats {
		call.Namespace = "" // whichever engine it has, its process answers
		return c.Call(ctx, call)
	}
	var live meshv1alpha1.Subscription
	ok := false
	if c.insights != nil {
		live, ok = c.insights.Live(of)
	}
	if !ok {
		return nil, &elsewhereError{status.Errorf(codes.Unavailable,
			"the gateway %s has no stream to this instance (%s) of the control plane of zone %s", who, c.instance, c.zone)}
	}
	if call.Question != admin.ProxyStatus {
		return nil, status.Errorf(codes.FailedPrecondition, "the gateway %s has no Envoy (--engine proxima): \"proxima proxy config %s\" shows what it carries", who, call.Name)
	}
	return c.gatewayState(who, of, &live)
}

// gatewayState of a gateway without Envoy: the stream of its view.
func (c *agentCalls) gatewayState(who string, of insight.Subject, live *meshv1alpha1.Subscription) ([]byte, error) {
	out := admin.ProxyState{
		Dataplane: who, Mesh: build.AllMeshes, Zone: c.zone, Instance: c.instance, ControlPlane: version.Get().Version, Kind: of.Role.String(),
		Program: "proxima", Since: live.ConnectTime.Time, Types: []admin.ProxyType{},
		Reason: "a gateway without Envoy; \"proxima proxy stats " + of.Name + "\" has its metrics",
	}
	for _, s := range c.views.Status() {
		if s.Node == of.Name {
			out.Version, out.Peer = s.Version, s.Peer
		}
	}
	for _, r := range live.Resources {
		out.Types = append(out.Types, admin.ProxyType{
			Type: r.Type, Sent: uint64(r.Sent), Acknowledged: uint64(r.Acknowledged), Rejected: uint64(r.Rejected),
			Unanswered: int(r.Sent - r.Acknowledged - r.Rejected),
		})
	}
	return json.Marshal(out)
}

// unsupervised is why nobody answers for a proxy that has its stream here.
func (c *agentCalls) unsupervised(key resource.Key) error {
	st, _, _ := c.proxies.server.Followed(key)
	if st.Supervisor == "" {
		return status.Errorf(codes.FailedPrecondition,
			"the proxy of Dataplane %s has no supervisor that could be asked (%s): ask on its machine", key, cmp.Or(st.Program, st.Variant.String()))
	}
	return status.Errorf(codes.Unavailable, "the supervisor (%s) of the proxy of Dataplane %s does not take questions: try again in a moment, "+
		"or restart it in this version (%s)", st.Supervisor, key, version.Get().Version)
}

func (c *agentCalls) proxyState(ctx context.Context, key resource.Key) ([]byte, error) {
	st, _, ok := c.proxies.server.Followed(key)
	if !ok {
		return nil, status.Errorf(codes.Unavailable, "the proxy of Dataplane %s has just disconnected", key)
	}
	out := admin.ProxyState{
		Dataplane: key.String(), Mesh: st.Client.Mesh, Zone: c.zone, Instance: c.instance, ControlPlane: version.Get().Version,
		Kind: st.Variant.String(), Program: st.Program, Version: st.Version, Supervisor: st.Supervisor, Peer: st.Peer, Since: st.Since,
		Types: []admin.ProxyType{}, Rejected: rejectionsOf(st),
	}
	for i := range st.Types {
		t := &st.Types[i]
		out.Types = append(out.Types, admin.ProxyType{
			Type: shortType(t.Type), Resources: t.Resources, Sent: t.Responses, Acknowledged: t.Acked, Rejected: t.Rejections, Unanswered: t.Unanswered,
		})
	}
	own, err := c.proxies.server.Ask(ctx, key, wire.AskStatus, "")
	switch {
	case err != nil && st.Supervisor == "":
		out.Reason = "it has no supervisor"
	case err != nil:
		out.Reason = status.Convert(err).Message()
	case json.Valid(own):
		out.Own = own
	default:
		out.Reason = "the supervisor's answer is no JSON"
	}
	return json.Marshal(out)
}

func (c *agentCalls) proxyDiff(ctx context.Context, key resource.Key) ([]byte, error) {
	body, err := c.proxies.server.Ask(ctx, key, wire.AskHeld, "")
	var none *xds.NotHereError
	if errors.As(err, &none) {
		return nil, c.unsupervised(key)
	}
	if err != nil {
		return nil, err
	}
	var held map[string]map[string]string
	if err := json.Unmarshal(body, &held); err != nil {
		return nil, fmt.Errorf("what the supervisor holds: %w", err)
	}
	st, sent, _ := c.proxies.server.Followed(key)
	return json.Marshal(admin.ProxyDifference{Dataplane: key.String(), Resources: compareHeld(st, sent, held)})
}

// compareHeld is what was sent, beside what is held: versions by name, by type URL.
func compareHeld(st xds.StreamStatus, sent []xds.SentResource, held map[string]map[string]string) []admin.ProxyComparison {
	type ref struct{ typ, name string }
	rejected := map[ref]string{}
	for i := range st.Types {
		for _, r := range st.Types[i].Refused {
			rejected[ref{r.Type, r.Name}] = r.Reason
		}
	}
	out := []admin.ProxyComparison{}
	add := func(at ref, sent, held string) {
		one := admin.ProxyComparison{Type: shortType(at.typ), Name: at.name, Sent: sent, Held: held, State: admin.ProxySame}
		reason, bad := rejected[at]
		delete(rejected, at)
		switch {
		case bad:
			one.State, one.Reason = admin.ProxyRejected, reason
		case sent == "":
			one.State = admin.ProxyRemoved
		case sent != held:
			one.State = admin.ProxyPending
		}
		out = append(out, one)
	}
	for _, s := range sent {
		add(ref{s.Type, s.Name}, s.Version, held[s.Type][s.Name])
		delete(held[s.Type], s.Name)
	}
	for typ, names := range held {
		for name, version := range names {
			add(ref{typ, name}, "", version)
		}
	}
	for at := range rejected {
		add(at, "", "")
	}
	slices.SortFunc(out, func(a, b admin.ProxyComparison) int {
		return cmp.Or(strings.Compare(a.Type, b.Type), strings.Compare(a.Name, b.Name))
	})
	return out
}

// rejectionsOf a stream: what its client does not have as it is now.
func rejectionsOf(s xds.StreamStatus) []admin.ProxyRejection {
	var out []admin.ProxyRejection
	for i := range s.Types {
		for _, r := range s.Types[i].Refused {
			out = append(out, admin.ProxyRejection{Dataplane: s.Client.Dataplane.String(), Type: shortType(r.Type), Name: r.Name, Reason: r.Reason})
		}
	}
	return out
}

// shortType is the last part of a type URL.
func shortType(url string) string { return url[strings.LastIndexByte(url, '.')+1:] }
