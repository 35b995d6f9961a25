package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	federationv1 "github.com/proxima-mesh/proxima/api/federation/v1"
	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	witnessv1 "github.com/proxima-mesh/proxima/api/witness/v1"
	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/drain"
	deltastream "github.com/proxima-mesh/proxima/internal/delta/stream"
	"github.com/proxima-mesh/proxima/internal/federation/stream"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/witness"
)

// A question about an agent goes along these hops, of which the first two are at global. An
// error names the one that is missing.
//
//	any instance ─► the one with the zone's stream ─► zone's leader ─► the one with the agent's stream ─► agent
//	            (API)                           (stream.Global)   (API)                      (witness.Server)
//
// For a Dataplane with a proxy its supervisor answers: see proxycalls.go.

// agentCalls asks the agents that have a stream to this instance. It implements
// admin.Proxies for a control plane with agents.
type agentCalls struct {
	// zone of this control plane, and the name of this instance.
	zone, instance string
	heartbeat      *witness.Server
	proxies        *proxies            // nil: they are not served
	views          *deltastream.Server // of agents; nil: there are no insights of gateways
	insights       *insights
	catalog        *catalog.Catalog
	others         admin.Instances // nil: there are none
	log            *slog.Logger
}

// questions by their names in the messages to agents and between control planes.
var questions = []struct {
	question admin.ProxyQuestion
	agent    witnessv1.CallKind
	zone     federationv1.CallKind
}{
	{admin.ProxyConfig, witnessv1.CallKind_CALL_KIND_CONFIG, federationv1.CallKind_CALL_KIND_CONFIG_DUMP},
	{admin.ProxyClusters, witnessv1.CallKind_CALL_KIND_CLUSTERS, federationv1.CallKind_CALL_KIND_CLUSTERS},
	{admin.ProxyStats, witnessv1.CallKind_CALL_KIND_STATS, federationv1.CallKind_CALL_KIND_STATS},
	{admin.ProxyStatus, witnessv1.CallKind_CALL_KIND_UNSPECIFIED, federationv1.CallKind_CALL_KIND_PROXY_STATUS},
	{admin.ProxyDiff, witnessv1.CallKind_CALL_KIND_UNSPECIFIED, federationv1.CallKind_CALL_KIND_PROXY_DIFF},
	{admin.ProxyLogging, witnessv1.CallKind_CALL_KIND_UNSPECIFIED, federationv1.CallKind_CALL_KIND_PROXY_LOGGING},
	{admin.ProxyConnections, witnessv1.CallKind_CALL_KIND_CONNECTIONS, federationv1.CallKind_CALL_KIND_UNSPECIFIED},
}

// Call implements admin.Proxies.
func (c *agentCalls) Call(ctx context.Context, call admin.ProxyCall) ([]byte, error) {
	if call.Zone != "" && call.Zone != c.zone {
		return nil, status.Errorf(codes.InvalidArgument, "this is the control plane of zone %s: ask that of zone %s, or global",
			c.zone, call.Zone)
	}
	if call.Namespace != "" {
		if body, err := c.proxy(ctx, call); !errors.Is(err, errNoProxy) {
			return body, err
		}
	}
	node, err := c.nodeOf(call)
	kind := witnessv1.CallKind_CALL_KIND_UNSPECIFIED
	for _, q := range questions {
		if q.question == call.Question {
			kind = q.agent
		}
	}
	switch {
	case kind == witnessv1.CallKind_CALL_KIND_UNSPECIFIED && status.Code(err) != codes.NotFound && status.Code(err) != codes.Unavailable:
		return nil, status.Errorf(codes.FailedPrecondition, "Dataplane %s/%s: %v", call.Namespace, call.Name, errNoProxy)
	case err != nil:
		return nil, err
	}
	var about []byte
	if kind == witnessv1.CallKind_CALL_KIND_CONNECTIONS {
		if about, err = c.endpointsOf(node); err != nil {
			return nil, err
		}
	}
	body, err := c.heartbeat.Call(ctx, node, kind, about)
	var notHere *witness.NotHereError
	if !errors.As(err, &notHere) {
		return body, err
	}
	if _, ok := c.catalog.Snapshot().Nodes.Get(resource.Key{Name: node}); !ok && c.catalog.Listed() {
		return nil, status.Errorf(codes.NotFound, "zone %s has no node, ingress or egress %s (a Dataplane is NAMESPACE/NAME)", c.zone, node)
	}
	return nil, &elsewhereError{fmt.Errorf("%w (%s) of the control plane of zone %s", err, c.instance, c.zone)}
}

// nodeOf is the node whose agent answers.
func (c *agentCalls) nodeOf(call admin.ProxyCall) (string, error) {
	if call.Namespace == "" {
		return call.Name, nil
	}
	key := resource.Key{Namespace: call.Namespace, Name: call.Name}
	d, ok := c.catalog.Snapshot().Dataplanes.Get(key)
	switch {
	case !ok && !c.catalog.Listed():
		return "", status.Error(codes.Unavailable, "the control plane of zone "+c.zone+" is still reading its store; try again in a moment")
	case !ok:
		return "", status.Errorf(codes.NotFound, "zone %s has no Dataplane %s", c.zone, key)
	case d.Spec.NodeName == "":
		return "", status.Errorf(codes.FailedPrecondition, "Dataplane %s has no node (spec.nodeName): no agent serves it", key)
	}
	return d.Spec.NodeName, nil
}

// endpointsOf a node's workloads, as an agent is asked for their connections.
func (c *agentCalls) endpointsOf(node string) ([]byte, error) {
	snapshot := c.catalog.Snapshot()
	n, ok := snapshot.Nodes.Get(resource.Key{Name: node})
	if !ok {
		return nil, status.Errorf(codes.NotFound, "zone %s has no node %s", c.zone, node)
	}
	return json.Marshal(drain.Endpoints(snapshot, n))
}

// answer a call of global. It is a stream.CallHandler.
func (c *agentCalls) answer(ctx context.Context, call *federationv1.Call) ([]byte, error) {
	in := admin.ProxyCall{Namespace: call.GetNamespace(), Name: call.GetName(), Level: string(call.GetBody())}
	for _, q := range questions {
		if q.zone == call.GetKind() && q.zone != federationv1.CallKind_CALL_KIND_UNSPECIFIED {
			in.Question = q.question
		}
	}
	if in.Question == "" {
		return nil, status.Errorf(codes.Unimplemented, "the version of zone %s does not know the question %d", c.zone, call.GetKind())
	}
	body, err := c.Call(ctx, in)
	if errors.Is(err, admin.ErrElsewhere) {
		return admin.CallElsewhere(ctx, c.others, c.log, in, err)
	}
	return body, err
}

// Call implements admin.Proxies: the control plane of the zone knows who answers.
func (g *global) Call(ctx context.Context, call admin.ProxyCall) ([]byte, error) {
	zone, err := g.zoneOf(ctx, call.Zone)
	if err != nil {
		return nil, err
	}
	out := &federationv1.Call{Target: federationv1.TargetKind_TARGET_KIND_NODE, Namespace: call.Namespace, Name: call.Name, Body: []byte(call.Level)}
	if call.Namespace != "" {
		out.Target = federationv1.TargetKind_TARGET_KIND_DATAPLANE
	}
	for _, q := range questions {
		if q.question == call.Question {
			out.Kind = q.zone
		}
	}
	body, err := g.zones.Call(ctx, zone, out)
	var none *stream.NoStreamError
	switch {
	case errors.As(err, &none):
		return nil, &elsewhereError{fmt.Errorf("%w (%s)", err, g.name)}
	case status.Code(err) == codes.Unimplemented:
		return nil, status.Errorf(codes.Unavailable, "the control plane of zone %s is of an older version, which does not answer this", zone)
	}
	return body, err
}

// zoneOf a call: the one that it names, or the only one.
func (g *global) zoneOf(ctx context.Context, name string) (string, error) {
	if name != "" {
		obj, err := g.api.client.Get(ctx, kind.Zone, resource.Key{Name: name})
		switch {
		case apierrors.IsNotFound(err):
			return "", status.Errorf(codes.NotFound, "there is no zone %s: \"proxima zone list\" shows them", name)
		case err != nil:
			return "", status.Errorf(codes.Unavailable, "read Zone %s: %v", name, err)
		case !kind.ZoneEnabled(obj.(*meshv1alpha1.Zone)):
			return "", status.Errorf(codes.Unavailable, "zone %s is disabled, so its control plane has no stream to global", name)
		}
		return name, nil
	}
	objects, _, err := g.api.client.List(ctx, kind.Zone, resource.ListOptions{})
	if err != nil {
		return "", status.Errorf(codes.Unavailable, "list zones: %v", err)
	}
	var names []string
	for _, obj := range objects {
		names = append(names, obj.GetName())
	}
	switch len(names) {
	case 0:
		return "", status.Error(codes.NotFound, "there are no zones here, and so no agents")
	case 1:
		return names[0], nil
	}
	return "", status.Errorf(codes.InvalidArgument, "zone: name the one that it is in, of %s", strings.Join(names, ", "))
}
