//go:build linux || darwin

package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/endpoints"
	"github.com/proxima-mesh/proxima/internal/controller/endpointslice"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/store/sqlite"
)

// What a large site has: BenchmarkSettle is the size that the docs quote,
// TestSettle a small one that shows the result to be right.
const (
	settleServices  = 10_000
	settleEndpoints = 10
)

// settle fills a SQLite store with Services and Dataplanes that no controller
// has processed, starts the controllers and waits until every Service has one slice with all
// its endpoints, and its Endpoints object.
func settle(t testing.TB, services, endpointsEach int) (took, cpu time.Duration, heap uint64) {
	s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "store.db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	client := startAPI(t, s, "10.64.0.0/16")
	t.Cleanup(func() { _ = s.Close() })
	fill(t, client, services, endpointsEach)

	ctx, cancel := context.WithCancel(t.Context())
	var controllers sync.WaitGroup
	defer controllers.Wait()
	defer cancel()
	start, spent := time.Now(), cpuTime(t)
	world := catalog.New(catalog.Config{Client: client, Descriptors: kind.All(), Epoch: s.Epoch()})
	slices := endpointslice.New(endpointslice.Config{Client: client, Catalog: world, Slices: kind.EndpointSlice})
	objects := endpoints.New(endpoints.Config{Client: client, Catalog: world, Endpoints: kind.Endpoints})
	for _, run := range []func(context.Context) error{world.Run, slices.Run, objects.Run} {
		controllers.Go(func() { _ = run(ctx) })
	}
	w, err := client.Watch(ctx, kind.EndpointSlice, resource.WatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	done := map[string]bool{}
	for event := range w.ResultChan() {
		slice, ok := event.Object.(*discoveryv1.EndpointSlice)
		if ok && len(slice.Endpoints) == endpointsEach {
			done[slice.Labels[discoveryv1.LabelServiceName]] = true
		}
		if len(done) == services {
			break
		}
	}
	took, cpu = time.Since(start), cpuTime(t)-spent
	if len(done) != services {
		t.Fatalf("%d of %d Services have their slice", len(done), services)
	}
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return took, cpu, m.HeapAlloc
}

// cpuTime of this process so far: the machine may be busy with others.
func cpuTime(t testing.TB) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func fill(t testing.TB, client resource.Client, services, endpointsEach int) {
	t.Helper()
	var wg sync.WaitGroup
	const workers = 64 // so that commits are grouped
	for worker := range workers {
		wg.Go(func() {
			for i := worker; i < services; i += workers {
				name := fmt.Sprintf("svc-%05d", i)
				_, err := client.Create(t.Context(), kind.Service, &corev1.Service{
					ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
					Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": name}, Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
				})
				for j := 0; err == nil && j < endpointsEach; j++ {
					_, err = client.Create(t.Context(), kind.Dataplane, &v1alpha1.Dataplane{
						ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("%s-%d", name, j), Labels: map[string]string{"app": name}},
						Spec:       v1alpha1.DataplaneSpec{Addresses: []string{fmt.Sprintf("10.%d.%d.%d", 128+i/250, i%250, j+1)}},
					})
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

func TestSettle(t *testing.T) { settle(t, 200, settleEndpoints) }

// BenchmarkSettle measures 10,000 Services of 10 endpoints each from nothing:
// until the last of their slices is durable and at a watcher.
func BenchmarkSettle(b *testing.B) {
	for b.Loop() {
		took, cpu, heap := settle(b, settleServices, settleEndpoints)
		b.ReportMetric(took.Seconds(), "settle-s")
		b.ReportMetric(cpu.Seconds(), "settle-cpu-s")
		b.ReportMetric(float64(heap>>20), "heap-MiB")
	}
}
