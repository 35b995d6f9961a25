package xds_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/delta"
	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/internal/xds"
	"github.com/proxima-mesh/proxima/internal/xds/build"
)

// answering is a proxy that answers, refuses responses with a resource, or says nothing.
type answering struct {
	silent atomic.Pointer[chan struct{}] // answers wait until it is closed; nil: they do not
	refuse atomic.Pointer[string]
	stop   func()
}

func (p *plane) answering(id string) *answering {
	p.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+p.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := discovery.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		p.t.Fatal(err)
	}
	a, done := &answering{}, make(chan struct{})
	a.stop = func() { cancel(); <-done; conn.Close() }
	p.t.Cleanup(a.stop)
	node := &core.Node{Id: id, UserAgentName: "envoy", Extensions: []*core.Extension{{Name: "x"}}}
	for _, typ := range []string{build.ClusterType, build.ListenerType} {
		if err := stream.Send(&discovery.DeltaDiscoveryRequest{Node: node, TypeUrl: typ, ResourceNamesSubscribe: []string{"*"}}); err != nil {
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
			if name := a.refuse.Load(); name != nil && slices.ContainsFunc(r.GetResources(), func(r *discovery.Resource) bool { return r.GetName() == *name }) {
				answer.ErrorDetail = &spb.Status{Code: 3, Message: "no such thing"}
			}
			if silent := a.silent.Load(); silent != nil {
				select {
				case <-*silent:
				case <-ctx.Done():
					return
				}
			}
			_ = stream.Send(answer) // if it fails, so does Recv
		}
	}()
	return a
}

// TestAcknowledgements: a policy counts as taken once the proxy has answered what is made of it, and not
// while it refuses that; policies that a proxy does not use do not count.
func TestAcknowledgements(t *testing.T) {
	workload := &meshv1alpha1.Dataplane{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1", Annotations: map[string]string{build.AnnotationBackends: "api"}},
		Spec: meshv1alpha1.DataplaneSpec{
			Addresses: []string{"10.0.0.1"}, Ports: []meshv1alpha1.DataplanePort{{Port: 8080, Protocol: "TCP"}},
		},
	}
	object := func(name string, generation int64) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "shop", Name: name, UID: "u", Generation: generation}
	}
	ofBackend := func(service, connect string, generation int64) *meshv1alpha1.BackendPolicy {
		return &meshv1alpha1.BackendPolicy{ObjectMeta: object(service, generation), Spec: meshv1alpha1.BackendPolicySpec{
			PolicyTarget: meshv1alpha1.PolicyTarget{TargetRefs: []meshv1alpha1.PolicyTargetReference{{Kind: "Service", Name: service}}},
			Timeout:      &meshv1alpha1.PolicyTimeout{Connect: new(meshv1alpha1.Duration(connect))},
		}}
	}
	limits := func(n int32, generation int64) *meshv1alpha1.WorkloadPolicy {
		return &meshv1alpha1.WorkloadPolicy{ObjectMeta: object("limits", generation), Spec: meshv1alpha1.WorkloadPolicySpec{
			Limits: &meshv1alpha1.PolicyLimits{Connections: &n},
		}}
	}
	p := newPlane(t, workload, service("api", "10.96.0.7", port("http", 80, "http")), service("db", "10.96.0.8", port("sql", 5432, "")),
		ofBackend("api", "1s", 1), ofBackend("db", "1s", 1), limits(7, 1))
	acks := xds.NewAcknowledgements(p.server)
	state := map[string]string{}
	is := func(step string, want ...string) {
		t.Helper()
		got := ""
		ok := func() bool {
			for _, a := range acks.Look(false) {
				at := a.Policy.Kind + " " + a.Policy.Key.Name
				delete(state, at)
				if a.Selected > 0 {
					state[at] = fmt.Sprint(at, " ", a.Version, ": ", a.Selected-a.Behind, "/", a.Selected)
					for _, l := range a.Names {
						state[at] += " " + l.Proxy.String() + ": " + l.Reason
					}
				}
			}
			var all []string
			for _, text := range state {
				all = append(all, text)
			}
			slices.Sort(all)
			got = strings.Join(all, "\n")
			return got == strings.Join(want, "\n")
		}
		defer func() {
			if t.Failed() {
				t.Logf("%s: it is\n%s", step, got)
			}
		}()
		testkit.Eventually(t, step, ok)
	}
	is("no proxy")
	a := p.answering("default/shop/web-1")
	is("a proxy takes everything", "BackendPolicy api u/1: 1/1", "WorkloadPolicy limits u/1: 1/1")

	answers := make(chan struct{})
	a.silent.Store(&answers)
	p.seed(limits(8, 2))
	is("it does not answer", "BackendPolicy api u/1: 1/1", "WorkloadPolicy limits u/2: 0/1 shop/web-1: it has not answered")
	a.silent.Store(nil)
	close(answers)
	is("it answers", "BackendPolicy api u/1: 1/1", "WorkloadPolicy limits u/2: 1/1")

	a.refuse.Store(new("shop/api:80"))
	p.seed(ofBackend("api", "2s", 2))
	is("it refuses a cluster", "BackendPolicy api u/2: 0/1 shop/web-1: it refuses Cluster shop/api:80: InvalidArgument: no such thing",
		"WorkloadPolicy limits u/2: 1/1")
	p.seed(limits(9, 3))
	is("another change is taken meanwhile", "BackendPolicy api u/2: 0/1 shop/web-1: it refuses Cluster shop/api:80: InvalidArgument: no such thing",
		"WorkloadPolicy limits u/3: 1/1")
	a.refuse.Store(nil)
	p.seed(ofBackend("api", "3s", 3))
	is("the next one is taken", "BackendPolicy api u/3: 1/1", "WorkloadPolicy limits u/3: 1/1")

	other := workload.DeepCopy()
	other.Annotations = map[string]string{build.AnnotationBackends: "api,db"}
	other.Generation = 2
	p.seed(other)
	is("it uses another Service", "BackendPolicy api u/3: 1/1", "BackendPolicy db u/1: 1/1", "WorkloadPolicy limits u/3: 1/1")

	shown := limits(9, 4)
	shown.Spec.Metrics = &meshv1alpha1.WorkloadMetrics{}
	p.seed(shown)
	is("a field that needs a supervisor", "BackendPolicy api u/3: 1/1", "BackendPolicy db u/1: 1/1",
		"WorkloadPolicy limits u/4: 0/1 shop/web-1: its Envoy has no supervisor, which enforces spec.metrics")
	a.stop()
	is("it has gone")
}

// TestGate: listeners wait for the answer to the clusters before them, and are sent with it: an
// acknowledgement wakes the stream when there is something to send.
func TestGate(t *testing.T) {
	p := newPlane(t, &meshv1alpha1.Dataplane{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1"}, Spec: meshv1alpha1.DataplaneSpec{Addresses: []string{"10.0.0.1"}},
	}) // no cluster with endpoints, which listeners would wait for, too
	p.answering("default/shop/web-1")
	var after time.Duration
	testkit.Eventually(t, "listeners are taken", func() bool {
		for _, s := range p.server.Status() {
			after = time.Since(s.Since)
			return slices.ContainsFunc(s.Types, func(of delta.LaneStatus) bool { return of.Type == build.ListenerType && of.Acked > 0 })
		}
		return false
	})
	if after >= 2*time.Second { // without an answer to the clusters they are sent then
		t.Errorf("listeners were taken after %s", after)
	}
}
