package app

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/xds"
	"github.com/proxima-mesh/proxima/internal/xds/build"
	"github.com/proxima-mesh/proxima/internal/xds/insight"
)

var _ xds.Observer = (*insight.Recorder)(nil)

// follower is a proxy that answers what it is sent, and refuses responses with one cluster while
// it is told to.
type follower struct {
	refuse atomic.Bool
	stop   func()
}

const apiCluster = "default/api:80"

func (p *proxyPlane) follow(id string) *follower {
	p.t.Helper()
	certificate, err := tls.X509KeyPair(p.rest.CertData, p.rest.KeyData)
	if err != nil {
		p.t.Fatal(err)
	}
	conn, err := grpc.NewClient("passthrough:///"+p.address, grpc.WithTransportCredentials(credentials.NewTLS(p.tls(certificate))))
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(p.t.Context())
	stream, err := discovery.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		p.t.Fatal(err)
	}
	f, done := &follower{}, make(chan struct{})
	f.refuse.Store(true)
	f.stop = func() {
		cancel()
		<-done
		conn.Close()
	}
	p.t.Cleanup(f.stop)
	node := &core.Node{
		Id: id, UserAgentName: "envoy", UserAgentVersionType: &core.Node_UserAgentVersion{UserAgentVersion: "1.40.0"},
		Extensions: []*core.Extension{{Name: "x"}},
	}
	for typ, names := range map[string][]string{build.ClusterType: {"*", apiCluster}, build.ListenerType: {"*"}} {
		if err := stream.Send(&discovery.DeltaDiscoveryRequest{Node: node, TypeUrl: typ, ResourceNamesSubscribe: names}); err != nil {
			p.t.Fatal(err)
		}
	}
	go func() {
		defer close(done)
		for {
			r, err := stream.Recv()
			if err != nil {
				return
			}
			answer := &discovery.DeltaDiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce()}
			has := slices.ContainsFunc(r.GetResources(), func(r *discovery.Resource) bool { return r.GetName() == apiCluster })
			if has && f.refuse.Load() {
				answer.ErrorDetail = &spb.Status{Code: int32(codes.InvalidArgument), Message: "no such thing"}
			}
			_ = stream.Send(answer) // if it fails, so does Recv
		}
	}()
	return f
}

// dataplane as it is now, its conditions as "TYPE=STATUS", and the condition ConfigAccepted.
func (p *proxyPlane) dataplane(name string) (conditions string, config metav1.Condition) {
	p.t.Helper()
	obj, err := p.client.Get(p.t.Context(), kind.Dataplane, resource.Key{Namespace: "default", Name: name})
	if err != nil {
		p.t.Fatal(err)
	}
	all := obj.(*meshv1alpha1.Dataplane).Status.Conditions
	var out []string
	for _, typ := range []string{
		meshv1alpha1.DataplaneProxyConnected, meshv1alpha1.DataplaneConfigAccepted, meshv1alpha1.DataplaneProxyReady,
	} {
		if c := meta.FindStatusCondition(all, typ); c != nil {
			out = append(out, fmt.Sprint(typ, "=", c.Status))
			if typ == meshv1alpha1.DataplaneConfigAccepted {
				config = *c
			}
		}
	}
	return strings.Join(out, " "), config
}

func (p *proxyPlane) status() *admin.ProxiesStatus {
	p.t.Helper()
	transport, err := rest.TransportFor(p.rest)
	if err != nil {
		p.t.Fatal(err)
	}
	r, err := (&http.Client{Transport: transport}).Get(p.rest.Host + admin.StatusPath)
	if err != nil {
		p.t.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	var s admin.Status
	if err := json.Unmarshal(body, &s); err != nil || s.Proxies == nil {
		p.t.Fatalf("status: %v in %s", err, body)
	}
	return s.Proxies
}

// TestInsights: a proxy connects, refuses one cluster, accepts its next version, and goes; the
// insight, the conditions of the Dataplane and the status say so each time.
func TestInsights(t *testing.T) {
	p := startProxyPlane(t)
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "api"},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "api"}, Ports: []corev1.ServicePort{{Name: "x", Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}
	made, err := p.client.Create(t.Context(), kind.Service, service)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"web-1", "web-2"} {
		d := &meshv1alpha1.Dataplane{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec:       meshv1alpha1.DataplaneSpec{Addresses: []string{"10.0.0." + name[len(name)-1:]}},
		}
		if _, err := p.client.Create(t.Context(), kind.Dataplane, d); err != nil {
			t.Fatal(err)
		}
	}
	first := p.follow("default/default/web-1")
	eventually(t, "the refusal of web-1", func() bool {
		all, c := p.dataplane("web-1")
		return all == "ProxyConnected=True ConfigAccepted=False ProxyReady=True" && strings.HasPrefix(c.Message, "Cluster "+apiCluster+": ")
	})
	second := p.follow("default/default/web-2")
	eventually(t, "that web-2 is not sent it", func() bool { _, c := p.dataplane("web-2"); return c.Status == metav1.ConditionFalse })
	s := p.status()
	if s.Connected != 2 || s.Rejecting != 2 || len(s.Rejected) != 2 || s.Rejected[0].Dataplane != "default/web-1" ||
		s.Rejected[0].Type != "Cluster" || s.Rejected[0].Name != apiCluster || !strings.Contains(s.Rejected[0].Reason, "no such thing") {
		t.Errorf("status %+v", s)
	}

	// Both: what one refuses is not sent to the other.
	first.refuse.Store(false)
	second.refuse.Store(false)
	next := made.DeepCopyObject().(*corev1.Service)
	next.Spec.Ports[0].AppProtocol = new("http")
	if _, err := p.client.Update(t.Context(), kind.Service, next); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the next version at web-1", func() bool {
		return !slices.ContainsFunc(p.status().Rejected, func(r admin.ProxyRejection) bool { return r.Dataplane == "default/web-1" })
	})
	first.stop()
	eventually(t, "the end of web-1", func() bool {
		all, _ := p.dataplane("web-1")
		return all == "ProxyConnected=False ConfigAccepted=True ProxyReady=True"
	})
	obj, err := p.client.Get(t.Context(), kind.DataplaneInsight, resource.Key{Namespace: "default", Name: "web-1"})
	if err != nil {
		t.Fatal(err)
	}
	i := obj.(*meshv1alpha1.DataplaneInsight).Status
	if i.Online || len(i.Rejected) > 0 || i.Versions.Version != "1.40.0" || i.Subscriptions[0].Instance == "" {
		t.Errorf("insight %+v", i)
	}
}
