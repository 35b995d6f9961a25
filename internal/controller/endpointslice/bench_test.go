package endpointslice

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/resourcetest"
)

// benchEndpoints is how many pods each Service of the benchmark has.
const benchEndpoints = 10

// BenchmarkOneEndpointChange is the way of one readiness change, from the write
// of the pod to the write of the slice, among few and among many Services: the
// two must not differ much. The client is in memory, so what is measured is
// catalog and controller.
func BenchmarkOneEndpointChange(b *testing.B) {
	for _, services := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("services=%d", services), func(b *testing.B) { benchmarkChange(b, services) })
	}
}

func benchmarkChange(b *testing.B, benchServices int) {
	client := resourcetest.New()
	client.Seed(node("n1", "z1"), node("n2", "z2"))
	for i := range benchServices {
		client.Seed(benchService(i))
		for j := range benchEndpoints {
			client.Seed(benchPod(i, j))
		}
	}
	written := make(chan resource.Key, benchServices)
	client.Intercept(func(call resourcetest.Call) error {
		if call.Kind.Kind == "EndpointSlice" && (call.Verb == resourcetest.Create || call.Verb == resourcetest.Update) {
			written <- call.Key
		}
		return nil
	})
	cat := catalog.New(catalog.Config{Client: client, Descriptors: resourcetest.Descriptors()})
	controller := New(Config{Client: client, Catalog: cat, Slices: kindOf("EndpointSlice"), Window: -1})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{}, 2)
	go func() { _ = cat.Run(ctx); done <- struct{}{} }()
	go func() { _ = controller.Run(ctx); done <- struct{}{} }()
	for range benchServices {
		<-written
	}

	runtime.GC() // what setting up left behind is not the subject
	var took []time.Duration
	i := 0
	for b.Loop() {
		p := benchPod(i%benchServices, 0)
		if i/benchServices%2 == 0 {
			unready(p)
		}
		start := time.Now()
		client.Seed(p)
		<-written
		took = append(took, time.Since(start))
		i++
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
	cancel()
	<-done
	<-done
}

func benchService(i int) *corev1.Service {
	return webService(func(s *corev1.Service) {
		s.Namespace, s.Name = fmt.Sprintf("ns-%02d", i%100), fmt.Sprintf("svc-%05d", i)
		s.UID = types.UID(s.Name)
		s.Spec.Selector = map[string]string{"app": s.Name, "env": "prod"}
	})
}

func benchPod(i, j int) *corev1.Pod {
	return webPod(fmt.Sprintf("svc-%05d-%d", i, j), fmt.Sprintf("10.%d.%d.%d", i/250, i%250, j+1), func(p *corev1.Pod) {
		p.Namespace = fmt.Sprintf("ns-%02d", i%100)
		p.Labels = map[string]string{"app": fmt.Sprintf("svc-%05d", i), "env": "prod"}
	})
}

// BenchmarkReconcile is the pure part, by the size of the Service.
func BenchmarkReconcile(b *testing.B) {
	for _, n := range []int{10, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			w := newWorld(webService())
			w.in.Pods = pods(0, n)
			w.sync()
			w.in.Pods[0] = pods(0, 1, unready)[0]
			w.plan()
			b.ReportAllocs()
			for b.Loop() {
				if p := Reconcile(w.in); len(p.Update) != 1 {
					b.Fatal("one slice should change")
				}
			}
		})
	}
}
