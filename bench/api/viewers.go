package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/proxima-mesh/proxima/internal/admin"
)

const (
	// viewedChanges per second while viewers look on.
	viewedChanges = 100
	// goals of what viewers cost: bytes a second each, and of 50 of them the share of a core, MB, and how many times longer a write takes.
	goalViewer, goalCPU, goalMemory, goalWrite = 20, 5, 25, 1.05
	manyViewers                                = 50
)

// viewers measures what those who look at the console cost a control plane while objects change, beside a page that would watch the raw
// objects, and how long its answers take.
func (b *bench) viewers(ctx context.Context) error {
	p, err := b.startPlane(ctx, "memory")
	if err != nil {
		return err
	}
	defer p.end()
	v := &viewed{b: b, p: p}
	if v.clients, err = p.clients(ctx, 8); err != nil {
		return err
	}
	if err := v.fill(ctx); err != nil {
		return err
	}
	name := fmt.Sprintf("%d Services, %d endpoints, %d zones: ", b.viewedServices, 3*b.viewedServices, b.zones)
	// The first changes make what stays: the watch cache's events, the history. They are not measured.
	if _, err := v.look(ctx, 0); err != nil {
		return err
	}
	var looks []load
	views := []int{1, 0, manyViewers, 0} // nobody looks on before and after many
	for _, n := range views {
		l, err := v.look(ctx, n)
		if err != nil {
			return fmt.Errorf("%d viewers: %w", n, err)
		}
		looks = append(looks, l)
	}
	alone := looks[1].with(&looks[3])
	for i, n := range views[:3] {
		l := looks[i]
		of := fmt.Sprintf("%s%d viewers at %d changes/s: ", name, n, viewedChanges)
		b.atMost(of+"CPU", l.cpu, 0, "%.1f %% of a core")
		b.atMost(of+"write p50", l.writes.quantile(0.5), 0, "%.2f ms")
		b.atMost(of+"live memory", l.memory, 0, "%.0f MB")
		switch n {
		case 0: // beside which the others are
		case 1:
			b.atMost(of+"sent to it", l.bytes, goalViewer, "%.1f kB/s")
			b.atMost(of+"write sent → frame p50", l.frames.quantile(0.5), 0, "%.0f ms") // as many as the goal of bytes allows
		default:
			b.atMost(of+"CPU beyond none", l.cpu-alone.cpu, goalCPU, "%.1f %% of a core")
			b.atMost(of+"memory beyond none", l.memory-alone.memory, goalMemory, "%.1f MB")
			b.atMost(of+"write p50, times that of none", l.writes.quantile(0.5)/alone.writes.quantile(0.5), goalWrite, "%.2f")
		}
	}
	if err := v.settle(ctx); err != nil {
		return err
	}
	single, err := v.single(ctx)
	if err != nil {
		return err
	}
	b.atMost(name+"a single write sent → frame p50", single.quantile(0.5), goalFrame, "%.0f ms")
	b.atMost(name+"a single write sent → frame p95", single.quantile(0.95), goalFrames, "%.0f ms")
	raw, err := v.raw(ctx)
	if err != nil {
		return err
	}
	b.atMost(name+"a page that watches raw Services and EndpointSlices gets", raw, 0, "%.1f kB/s")
	if err := v.settle(ctx); err != nil {
		return err
	}
	return v.questions(ctx, name)
}

// goals (ms) until a change is in a frame.
const goalFrame, goalFrames = 100, 200

// viewed is a control plane that is looked at.
type viewed struct {
	b       *bench
	p       *process
	clients []*kubernetes.Clientset
	turn    int
}

func (v *viewed) fill(ctx context.Context) error {
	for i := range v.b.zones {
		if err := v.p.node(ctx, i); err != nil {
			return err
		}
	}
	_, err := each(len(v.clients), v.b.viewedServices, func(w, i int) error {
		s := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("many-%d", i), Namespace: "default"},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
		}
		if _, err := v.clients[w].CoreV1().Services("default").Create(ctx, s, metav1.CreateOptions{}); err != nil {
			return err
		}
		_, err := v.clients[w].DiscoveryV1().EndpointSlices("default").Create(ctx, v.slice(i), metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return err
	}
	return v.settle(ctx)
}

// slice of a Service with three endpoints in two or three zones.
func (v *viewed) slice(i int) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("many-%d-1", i), Namespace: "default",
			Labels: map[string]string{discoveryv1.LabelServiceName: fmt.Sprintf("many-%d", i), discoveryv1.LabelManagedBy: "bench"},
		},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080))}},
	}
	for k := range 3 {
		n := 3*i + k
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("10.%d.%d.%d", n>>16&255, n>>8&255, n&255)}, Zone: new(zoneName((i + 7*k) % v.b.zones)),
		})
	}
	return s
}

// change the readiness of an endpoint.
func (v *viewed) change(ctx context.Context) (time.Duration, error) {
	i := v.turn % v.b.viewedServices
	v.turn++
	began := time.Now()
	patch := fmt.Sprintf(`[{"op":"add","path":"/endpoints/0/conditions/ready","value":%t}]`, v.turn/v.b.viewedServices%2 == 1)
	_, err := v.clients[0].DiscoveryV1().EndpointSlices("default").Patch(ctx, fmt.Sprintf("many-%d-1", i), types.JSONPatchType, []byte(patch), metav1.PatchOptions{})
	return time.Since(began), err
}

// load is what a control plane did while it was looked at.
type load struct {
	cpu    float64 // percent of a core
	memory float64 // MB that are live
	bytes  float64 // kB a second to one viewer
	writes durations
	frames durations
}

// with another load: the mean of both, and the writes of both.
func (l load) with(other *load) load {
	l.cpu, l.memory = (l.cpu+other.cpu)/2, (l.memory+other.memory)/2
	l.writes = append(slices.Clone(l.writes), other.writes...)
	return l
}

// live memory of the process by its last collection, in MB of 10⁶ bytes.
func (v *viewed) live(ctx context.Context) (float64, error) {
	body, err := v.open(ctx, "/metrics")
	if err != nil {
		return 0, err
	}
	defer body.Close()
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if name, value, _ := strings.Cut(lines.Text(), " "); name == "go_gc_heap_live_bytes" {
			x, err := strconv.ParseFloat(value, 64)
			return x / 1e6, err
		}
	}
	return 0, errors.Join(lines.Err(), errors.New("/metrics has no go_gc_heap_live_bytes"))
}

// settle until the process does little: it plans what was created. It is an error if it goes on for minutes.
func (v *viewed) settle(ctx context.Context) error {
	const window, little, most = 3 * time.Second, 0.2, 5 * time.Minute
	before, err := v.p.cpu()
	for began := time.Now(); err == nil && time.Since(began) < most; {
		if err = pause(ctx, window); err != nil {
			return err
		}
		now, err := v.p.cpu()
		if err != nil || (now-before).Seconds() < little*window.Seconds() {
			return err
		}
		before = now
	}
	return errors.Join(err, fmt.Errorf("it is busy after %s, and nobody asks for anything", most))
}

// look on with n viewers while objects change.
func (v *viewed) look(ctx context.Context, n int) (l load, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var got atomic.Int64
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	first := make(chan time.Time, 1024)
	for k := range n {
		body, err := v.open(ctx, admin.StreamPath+"?topics=zones,problems")
		if err != nil {
			return l, err
		}
		defer body.Close()
		of := first
		if k > 0 {
			of = nil
		}
		watching.Go(func() { frames(body, &got, of) })
	}
	if err := pause(ctx, time.Second); err != nil { // first frames are not counted
		return l, err
	}
	got.Store(0)
	before, err := v.p.cpu()
	if err != nil {
		return l, err
	}
	began := time.Now()
	ticker := time.NewTicker(time.Second / viewedChanges)
	defer ticker.Stop()
	for range v.b.viewedFor * viewedChanges {
		select {
		case <-ctx.Done():
			return l, ctx.Err()
		case <-ticker.C:
		}
		for len(first) > 0 {
			<-first
		}
		sent := time.Now()
		took, err := v.change(ctx)
		if err != nil {
			return l, err
		}
		l.writes = append(l.writes, took)
		if n == 1 && len(l.writes)%viewedChanges == 0 { // once a second, with time to wait
			select {
			case at := <-first:
				l.frames = append(l.frames, at.Sub(sent))
			case <-time.After(timeout):
				return l, fmt.Errorf("no frame")
			}
		}
	}
	seconds := time.Since(began).Seconds()
	after, err := v.p.cpu()
	if err != nil {
		return l, err
	}
	l.cpu = 100 * (after - before).Seconds() / seconds
	l.bytes = float64(got.Load()) / float64(max(n, 1)) / 1000 / seconds
	l.memory, err = v.live(ctx)
	return l, err
}

// frames of a stream are counted until it ends; when one of zones comes is sent to a channel, if there is one.
func frames(body io.Reader, got *atomic.Int64, zones chan<- time.Time) {
	lines := bufio.NewReaderSize(body, 1<<20)
	for {
		line, err := lines.ReadSlice('\n')
		for errors.Is(err, bufio.ErrBufferFull) {
			got.Add(int64(len(line)))
			line, err = lines.ReadSlice('\n')
		}
		if err != nil {
			return
		}
		got.Add(int64(len(line)))
		if strings.Contains(string(line[:min(len(line), 40)]), `"zones"`) {
			select {
			case zones <- time.Now():
			default:
			}
		}
	}
}

// single changes, with time between them, until they are in a frame.
func (v *viewed) single(ctx context.Context) (took durations, err error) {
	body, err := v.open(ctx, admin.StreamPath+"?topics=zones")
	if err != nil {
		return nil, err
	}
	var got atomic.Int64
	var watching sync.WaitGroup
	defer watching.Wait()
	defer body.Close()
	zones := make(chan time.Time, 1024)
	watching.Go(func() { frames(body, &got, zones) })
	for range v.b.questions {
		if err := pause(ctx, time.Second); err != nil {
			return nil, err
		}
		for len(zones) > 0 {
			<-zones
		}
		sent := time.Now()
		if _, err := v.change(ctx); err != nil {
			return nil, err
		}
		select {
		case at := <-zones:
			took = append(took, at.Sub(sent))
		case <-time.After(timeout):
			return nil, errors.New("a change is in no frame")
		}
	}
	return took, nil
}

// raw is what a watch of the same changes sends, in kB a second.
func (v *viewed) raw(ctx context.Context) (float64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var got atomic.Int64
	for _, path := range []string{"/api/v1/services?watch=1", "/apis/discovery.k8s.io/v1/endpointslices?watch=1"} {
		list, err := v.clients[0].CoreV1().Services("default").List(ctx, metav1.ListOptions{Limit: 1})
		if err != nil {
			return 0, err
		}
		body, err := v.open(ctx, path+"&resourceVersion="+list.ResourceVersion)
		if err != nil {
			return 0, err
		}
		defer body.Close()
		go func() {
			buffer := make([]byte, 64<<10)
			for {
				n, err := body.Read(buffer)
				if got.Add(int64(n)); err != nil {
					return
				}
			}
		}()
	}
	began := time.Now()
	ticker := time.NewTicker(time.Second / viewedChanges)
	defer ticker.Stop()
	for range v.b.viewedFor * viewedChanges {
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-ticker.C:
		}
		if _, err := v.change(ctx); err != nil {
			return 0, err
		}
	}
	return float64(got.Load()) / 1000 / time.Since(began).Seconds(), nil
}

// questions that the pages ask.
func (v *viewed) questions(ctx context.Context, name string) error {
	for _, q := range []struct {
		what, path string
		goal       float64
		times      int
	}{
		{"zones", admin.SummaryZonesPath, 0, v.b.questions},
		{"a page of Services, searched and ordered", admin.SummaryServicesPath + "?q=many-1&sort=saving&limit=100", 150, v.b.questions},
		{"what if a Service had more endpoints", admin.SimulatePath + "?endpoints=" + url.QueryEscape("default/many-7:"+zoneName(1)+":+3"), 150, v.b.questions},
		{"what if a zone failed", admin.SimulatePath + "?summary=true&failZone=" + zoneName(2), 1000, v.b.questions},
	} {
		var took durations
		for range q.times {
			began := time.Now()
			body, err := v.open(ctx, q.path)
			if err != nil {
				return fmt.Errorf("%s: %w", q.what, err)
			}
			_, err = io.Copy(io.Discard, body)
			if err = errors.Join(err, body.Close()); err != nil {
				return err
			}
			took = append(took, time.Since(began))
		}
		b := v.b
		b.atMost(name+q.what+", p50", took.quantile(0.5), 0, "%.0f ms")
		b.atMost(name+q.what+", p95", took.quantile(0.95), q.goal, "%.0f ms")
	}
	return nil
}

// open an answer, on a connection of its own. The caller closes it.
func (v *viewed) open(ctx context.Context, path string) (io.ReadCloser, error) {
	config, err := v.p.config()
	if err != nil {
		return nil, err
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1000))
		_ = resp.Body.Close()
		return nil, fmt.Errorf("%s: %s: %s", path, resp.Status, text)
	}
	return resp.Body, nil
}

// zoneName of a node's number.
func zoneName(n int) string { return fmt.Sprintf("zone-%d", n) }
