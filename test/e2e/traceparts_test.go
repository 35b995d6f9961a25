package e2e

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/apiserver"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/endpointslice"
	"github.com/proxima-mesh/proxima/internal/delta/stream"
	agents "github.com/proxima-mesh/proxima/internal/node"
	"github.com/proxima-mesh/proxima/internal/node/fromview"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/traced"
	"github.com/proxima-mesh/proxima/internal/store/memory"
	"github.com/proxima-mesh/proxima/internal/tracing"
	"github.com/proxima-mesh/proxima/internal/tracing/otlp"
	"github.com/proxima-mesh/proxima/internal/view"
	"github.com/proxima-mesh/proxima/internal/view/wire"
)

// tablesOnly is a mode that takes everything.
type tablesOnly struct{}

func (tablesOnly) Name() string                                { return "tables" }
func (tablesOnly) Apply(context.Context, []proxy.Change) error { return nil }
func (tablesOnly) Close(context.Context) error                 { return nil }

// TestTraceParts: the parts of TestTrace in one process, put together as package app does: the registration of a
// workload, and its end, are traces as a whole.
func TestTraceParts(t *testing.T) {
	r := newReceiver(t)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	t.Cleanup(cancel)
	exporter, err := otlp.New(otlp.Config{Endpoint: r.server.URL, Service: "test"})
	if err != nil {
		t.Fatal(err)
	}
	s := memory.New(memory.Options{})
	t.Cleanup(func() { _ = s.Close() })
	recorder := tracing.New(tracing.Config{Epoch: s.Epoch(), Ratio: 1, Sink: exporter.Sink})
	client := startAPI(t, s, "10.64.0.0/16", func(c *apiserver.Config) { c.Tracer = recorder })
	controllers := resource.Wrap(client, traced.Wrapper(traced.Config{Recorder: recorder}))

	world := catalog.New(catalog.Config{Client: client, Descriptors: kind.All(), Epoch: s.Epoch(), Tracer: recorder})
	slices := endpointslice.New(endpointslice.Config{Client: controllers, Catalog: world, Slices: kind.EndpointSlice})
	builder := view.NewBuilder(view.BuilderConfig{Run: "run", Tracer: recorder})
	views := stream.NewServer(stream.ServerConfig{Admit: builder.Assign})
	server := grpc.NewServer(stream.ServerOptions()...)
	views.Register(server, wire.GRPCService, wire.Method)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	go func() { _ = server.Serve(listener) }()

	agent, err := agents.New(agents.Options{Mode: tablesOnly{}, Facts: agents.Facts{Name: "n1", Zone: "zone-a"}, Tracer: recorder})
	if err != nil {
		t.Fatal(err)
	}
	feed := fromview.NewFeed(fromview.FeedConfig{
		Target: listener.Addr().String(), Credentials: insecure.NewCredentials(), Node: "n1", Zone: "zone-a", Tracer: recorder,
		Update: func(u agents.Update) { agent.Apply(u.Update) },
	})
	follow := func(ctx context.Context) error {
		sub := world.Subscribe(view.Tables()...)
		defer sub.Close()
		return view.Follow(ctx, sub, builder, nil)
	}
	for _, run := range []func(context.Context) error{exporter.Run, world.Run, slices.Run, follow, feed.Run, agent.Run} {
		running.Go(func() {
			if err := run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	select {
	case <-agent.Ready():
	case <-t.Context().Done():
		t.Fatal("the agent has no state")
	}

	labels := map[string]string{"app": "web"}
	create := func(k *resource.Descriptor, obj resource.Object) resource.Object {
		t.Helper()
		made, err := client.Create(resource.WithStatus(ctx), k, obj)
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	kernel := func(what, revision string) string {
		t.Helper()
		var trace string
		write := r.find("of the write of "+what, func(s *span) bool {
			return s.GetName() == tracing.Write && s.parent() == "" && s.attributes[tracing.KeyRevision] == revision
		})
		trace = write.trace()
		r.find("of the data path after "+what, func(s *span) bool { return s.trace() == trace && s.GetName() == tracing.Kernel })
		r.whole(trace)
		check(t, r.of(trace))
		return trace
	}
	service := create(kind.Service, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec:       corev1.ServiceSpec{Selector: labels, Ports: []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080)}}},
	})
	kernel("the Service", service.GetResourceVersion())
	workload := create(kind.Dataplane, &v1alpha1.Dataplane{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-1", Labels: labels},
		Spec:       v1alpha1.DataplaneSpec{Addresses: []string{"10.1.0.1"}, Ports: []v1alpha1.DataplanePort{{Name: "http", Port: 8080}}},
		Status: v1alpha1.DataplaneStatus{Conditions: []metav1.Condition{
			{Type: v1alpha1.DataplaneReady, Status: metav1.ConditionTrue, Reason: "Test", LastTransitionTime: metav1.Now()},
		}},
	})
	trace := kernel("the workload", workload.GetResourceVersion())
	const want = "write Dataplane > controller  > write EndpointSlice > view EndpointSlice > agent  > kernel "
	if got := r.longest(trace); got != want {
		t.Errorf("the path of the workload is\n%s, want\n%s; received:\n%s", got, want, r)
	}
}

// longest is the path to the first kernel span of a trace.
func (r *receiver) longest(trace string) string {
	all := r.of(trace)
	byID := map[string]*span{}
	for _, s := range all {
		byID[s.id()] = s
	}
	for _, s := range all {
		if s.GetName() != tracing.Kernel {
			continue
		}
		var names []string
		for ; s != nil; s = byID[s.parent()] {
			names = append([]string{fmt.Sprintf("%s %s", s.GetName(), s.kind())}, names...)
		}
		return strings.Join(names, " > ")
	}
	return ""
}
