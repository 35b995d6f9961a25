package xds_test

import (
	"slices"
	"strings"
	"testing"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/sidecar/wire"
	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/internal/xds/build"
	"github.com/proxima-mesh/proxima/internal/xds/insight"
)

// TestRejections: what a client does not accept is noted of it, whatever kind of client it is.
func TestRejections(t *testing.T) {
	node := func(id, agent string, extensions bool) *core.Node {
		n := &core.Node{Id: id, UserAgentName: agent}
		if extensions {
			n.Extensions = []*core.Extension{{Name: "envoy.filters.network.tcp_proxy"}}
		}
		return n
	}
	workload := insight.Workload(resource.Key{Namespace: "shop", Name: "client-1"})
	for name, of := range map[string]struct {
		node    *core.Node
		agent   string // of the call
		typ     string
		want    string // empty: all
		whole   bool
		subject insight.Subject
	}{
		"an Envoy with a supervisor":    {node: node("default/shop/client-1", "envoy", false), agent: wire.UserAgent + "v1.2.3", typ: build.ClusterType, subject: workload},
		"an Envoy without a supervisor": {node: node("default/shop/client-1", "envoy", true), typ: build.ClusterType, subject: workload},
		"a gRPC program": {
			node: node("default/shop/client-1", "gRPC Go", false), typ: build.ListenerType, want: "api.shop.svc.cluster.local:80", whole: true, subject: workload,
		},
		"the Envoy of an ingress": {node: node("*/ingress/i1", "envoy", false), typ: build.ClusterType, subject: insight.Gateway(insight.OfIngress, "i1")},
		// Its response names no resource.
		"the Envoy of an egress": {node: node("*/egress/e1", "envoy", false), typ: build.ListenerType, subject: insight.Gateway(insight.OfEgress, "e1")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			gateway := meshv1alpha1.ZoneGatewaySpec{Zone: "local", Address: "192.0.2.1", Port: 1}
			p := newPlane(t, append(exported("api", "10.96.0.20", 9000), dataplane("client-1", "127.0.0.1"),
				&meshv1alpha1.ZoneIngress{ObjectMeta: metav1.ObjectMeta{Name: "i1"}, Spec: gateway},
				&meshv1alpha1.ZoneEgress{ObjectMeta: metav1.ObjectMeta{Name: "e1"}, Spec: gateway})...)
			conn, err := grpc.NewClient(p.address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUserAgent(of.agent))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			refused := &statuspb.Status{Code: int32(codes.InvalidArgument), Message: "not by this one"}
			client := discovery.NewAggregatedDiscoveryServiceClient(conn)
			if of.whole {
				refuseWhole(t, client, &discovery.DiscoveryRequest{Node: of.node, TypeUrl: of.typ, ResourceNames: []string{of.want}}, refused)
			} else {
				refuseDelta(t, client, &discovery.DeltaDiscoveryRequest{Node: of.node, TypeUrl: of.typ}, refused)
			}
			testkit.Eventually(t, "the rejection is noted", func() bool {
				p.seen.mu.Lock()
				defer p.seen.mu.Unlock()
				return slices.Contains(p.seen.rejecting, of.subject) &&
					slices.ContainsFunc(p.seen.refused, func(text string) bool {
						return strings.Contains(text, "not by this one") && strings.Contains(text, of.want)
					})
			})
		})
	}
}

// refuseDelta opens a stream, and refuses the first response.
func refuseDelta(t *testing.T, c discovery.AggregatedDiscoveryServiceClient, first *discovery.DeltaDiscoveryRequest, why *statuspb.Status) {
	t.Helper()
	s, err := c.DeltaAggregatedResources(t.Context())
	if err == nil {
		err = s.Send(first)
	}
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Recv()
	if err == nil {
		err = s.Send(&discovery.DeltaDiscoveryRequest{TypeUrl: first.TypeUrl, ResponseNonce: r.Nonce, ErrorDetail: why})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// refuseWhole is refuseDelta for the state of the world.
func refuseWhole(t *testing.T, c discovery.AggregatedDiscoveryServiceClient, first *discovery.DiscoveryRequest, why *statuspb.Status) {
	t.Helper()
	s, err := c.StreamAggregatedResources(t.Context())
	if err == nil {
		err = s.Send(first)
	}
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Recv()
	if err == nil {
		err = s.Send(&discovery.DiscoveryRequest{TypeUrl: first.TypeUrl, ResourceNames: first.ResourceNames, ResponseNonce: r.Nonce, ErrorDetail: why})
	}
	if err != nil {
		t.Fatal(err)
	}
}
