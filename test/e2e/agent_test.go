package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/kernel/netns"
	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// TestVirtualIP is the main job: real programs behind a virtual IP, defined with
// kubectl, reached through an agent in a process of its own.
func TestVirtualIP(t *testing.T) {
	p := startPlane(t)
	n := p.startNode("edge-1", "zone-a")
	p.apply(webService)
	vip := p.vip("web")
	a, b := p.startBackend("web-a", "zone-a"), p.startBackend("web-b", "zone-b")
	awaitAnswers(t, vip, "web-a", "web-b")

	t.Run("kubectl shows it all", func(t *testing.T) {
		for _, tc := range []struct {
			args  []string
			words []string
		}{
			{[]string{"get", "dataplanes", "-o", "wide"}, []string{"web-a", "web-b", "True", "zone-a", "zone-b"}},
			{[]string{"get", "endpointslices", "-l", "kubernetes.io/service-name=web"}, []string{"IPv4", "127.0.0.1"}},
			{[]string{"get", "nodes", "-L", "topology.kubernetes.io/zone"}, []string{"edge-1", "Ready", "zone-a"}},
			{[]string{"get", "ipaddresses"}, []string{"services/default/web"}},
		} {
			out := p.kubectl(tc.args...)
			for _, w := range tc.words {
				if !strings.Contains(out, w) {
					t.Errorf("kubectl %v: %q is missing in:\n%s", tc.args, w, out)
				}
			}
		}
	})

	t.Run("status shows the agent", func(t *testing.T) {
		out := p.proxima("status", "--data-dir", n.dir)
		for _, w := range []string{"edge-1", "zone-a", "mode userspace", "connected", "no problems found"} {
			if !strings.Contains(out, w) {
				t.Errorf("%q is missing in:\n%s", w, out)
			}
		}
	})

	t.Run("PreferSameZone keeps traffic near, and sends it on when near is gone", func(t *testing.T) {
		p.kubectl("patch", "service", "web", "-p", `{"spec":{"trafficDistribution":"PreferSameZone"}}`)
		testkit.Eventually(t, "only zone-a answers", func() bool {
			for range 10 {
				if name, _, err := who(vip); err != nil || name != "web-a" {
					return false
				}
			}
			return true
		})
		out := p.proxima("explain", "service", "web", "--from-node", "edge-1")
		for _, w := range []string{"from node edge-1 in zone zone-a", "decided by: zone hints", "100 %  used", "hinted to zones [zone-b]"} {
			if !strings.Contains(out, w) {
				t.Errorf("explain: %q is missing in:\n%s", w, out)
			}
		}
		a.Signal(syscall.SIGTERM)
		if code := a.Wait(); code != 0 {
			t.Errorf("the workload ended with %d, want 0", code)
		}
		for range 20 {
			if name, _, err := who(vip); err != nil || name != "web-b" {
				t.Errorf("after zone-a's backend is gone: %q, %v; want web-b", name, err)
			}
		}
	})

	t.Run("no backend: refused, not hanging", func(t *testing.T) {
		b.Signal(syscall.SIGTERM)
		b.Wait()
		testkit.Eventually(t, "connections are refused", func() bool {
			conn, err := net.DialTimeout("tcp", vip, 5*time.Second)
			if err == nil {
				conn.Close()
			}
			return err != nil && strings.Contains(err.Error(), "refused")
		})
	})

	t.Run("the control plane has the sources of traffic", func(t *testing.T) {
		var got struct {
			ServicePorts []struct {
				Total struct{ Connections, BytesIn, BytesOut uint64 }
				Zones []struct {
					Zone  string
					Share float64
				}
			}
		}
		testkit.Eventually(t, "the demand of default/web", func() bool {
			text := p.kubectl("get", "--raw", "/proxima/v1/demand?service=default/web")
			if err := json.Unmarshal([]byte(text), &got); err != nil {
				t.Fatal(err)
			}
			return len(got.ServicePorts) == 1 && got.ServicePorts[0].Total.Connections > 30
		})
		for _, z := range got.ServicePorts[0].Zones {
			if z.Zone == "zone-a" && z.Share < 0.9 {
				t.Errorf("zone-a has %.2f of the demand, all of which started there", z.Share)
			}
		}
		if sum := got.ServicePorts[0].Total; sum.BytesIn == 0 || sum.BytesOut == 0 {
			t.Errorf("no bytes were counted: %+v", sum)
		}
		if out := p.proxima("status"); !strings.Contains(out, "1 of 1 nodes report") {
			t.Errorf("status:\n%s", out)
		}
	})
}

// TestOutage kills the control plane: agents serve on, over their own restart
// too, and catch up afterwards by what changed alone.
func TestOutage(t *testing.T) {
	p := startPlane(t)
	n := p.startNode("edge-1", "zone-a")
	const services = 200
	var manifest strings.Builder
	for i := range services {
		fmt.Fprintf(
			&manifest,
			"apiVersion: v1\nkind: Service\nmetadata: {name: bulk-%d, namespace: default}\nspec: {selector: {app: bulk-%d}, ports: [{name: http, port: 8080}]}\n---\n",
			i,
			i,
		)
	}
	p.apply(manifest.String() + webService)
	vip := p.vip("web")
	p.startBackend("web-a", "zone-a")
	awaitAnswers(t, vip, "web-a")
	full := n.metric("proxima_view_received_bytes")
	testkit.Eventually(t, "the agent's state is on disk", func() bool { return n.metric("proxima_view_unsaved") == 0 })

	p.process.Kill()
	askMany(t, vip, "web-a", "the control plane is dead")

	n.process.Kill()
	n.start()
	askMany(t, vip, "web-a", "control plane and agent were killed, the agent is back")
	host, _, _ := net.SplitHostPort(vip)
	if got, err := n.lookup("web.default.svc.cluster.local."); err != nil || !slices.Equal(got, []string{host}) {
		t.Errorf("without a control plane the name is %v, %v; want %s", got, err, host)
	}
	if got, err := n.lookup("nobody.default.svc.cluster.local."); err == nil {
		t.Errorf("a Service that is not there has the address %v", got)
	}

	p.start()
	testkit.Eventually(t, "the agent is connected again", func() bool { return n.metric("proxima_view_connected") == 1 })
	p.startBackend("web-b", "zone-b")
	awaitAnswers(t, vip, "web-a", "web-b")
	resumed := n.metric("proxima_view_received_bytes")
	t.Logf("whole view: %.0f bytes; resumed with %.0f bytes", full, resumed)
	if resumed > full/5 {
		t.Errorf("resuming took %.0f bytes, the whole view took %.0f: that is a full resync", resumed, full)
	}
	if lost := services + 2 - strings.Count(p.kubectl("get", "services", "-o", "name"), "service/"); lost != 0 {
		t.Errorf("%d Services were lost by the crash", lost)
	}
}

func askMany(t *testing.T, vip, want, when string) {
	t.Helper()
	for range 50 {
		if name, _, err := who(vip); err != nil || name != want {
			t.Fatalf("%s: %q, %v; want an answer of %s", when, name, err, want)
		}
	}
}

// TestRun is the life of a workload.
func TestRun(t *testing.T) {
	p := startPlane(t)
	bin := testkit.Binary(t)
	env := []string{"KUBECONFIG=" + p.kubeconfig}

	t.Run("exit code and output pass", func(t *testing.T) {
		r := testkit.Start(t, env, bin, "run", "--name", "job", "--address", "127.0.0.1", "--", "sh", "-c", "echo hello; exit 7")
		if code := r.Wait(); code != 7 {
			t.Errorf("exit code %d, want 7", code)
		}
		if got := r.Stdout.String(); got != "hello\n" {
			t.Errorf("standard output %q, want the command's own", got)
		}
		if out := p.kubectl("get", "dataplanes", "-o", "name"); out != "" {
			t.Errorf("left behind: %s", out)
		}
	})
	t.Run("a refused workload is not started", func(t *testing.T) {
		mark := t.TempDir() + "/started"
		out, err := p.try("", bin, "run", "--name", "Bad_Name", "--address", "127.0.0.1", "--", "touch", mark)
		if err == nil || !strings.Contains(out, "metadata.name") {
			t.Errorf("a bad name: %v\n%s", err, out)
		}
		if _, err := os.Stat(mark); err == nil {
			t.Error("the command was started all the same")
		}
	})
	t.Run("terminating while it drains", func(t *testing.T) {
		end := filepath.Join(t.TempDir(), "end") // the command ends once this is there
		r := testkit.Start(t, env, bin, "run", "--name", "slow", "--address", "127.0.0.1", "--",
			"sh", "-c", "trap 'while [ ! -e "+end+" ]; do sleep 0.02; done; exit 3' TERM; while :; do sleep 0.02; done")
		testkit.Eventually(t, "it is ready", func() bool {
			return strings.Contains(p.kubectl("get", "dataplanes"), "True")
		})
		r.Signal(syscall.SIGTERM)
		testkit.Eventually(t, "it is terminating", func() bool {
			return strings.Contains(p.kubectl("get", "dataplanes"), "Terminating")
		})
		if err := os.WriteFile(end, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if code := r.Wait(); code != 3 {
			t.Errorf("exit code %d, want 3", code)
		}
		if out := p.kubectl("get", "dataplanes", "-o", "name"); out != "" {
			t.Errorf("left behind: %s", out)
		}
	})
}

// TestDemo is what a newcomer runs first: without privileges, and as root.
func TestDemo(t *testing.T) {
	t.Run("userspace", func(t *testing.T) {
		playDemo(t, "userspace", []string{"web-a"}, []string{"web-a", "web-b", "web-c"})
	})
	t.Run("kernel", func(t *testing.T) {
		if err := netns.Available(); err != nil {
			t.Skip(err)
		}
		zone := []string{"web-a-1", "web-a-2"}
		out := playDemo(t, "auto", zone, zone)
		_, dark, ok := strings.Cut(out, "zone-b loses power")
		if !ok || !strings.Contains(dark, "no request failed") {
			t.Errorf("no zone lost its power, or it mattered:\n%s", out)
		}
		for _, name := range []string{"web-a-1", "web-a-2", "web-b-1", "web-b-2"} {
			if !strings.Contains(dark, silent(name)) {
				t.Errorf("%s answered after its zone lost power:\n%s", name, dark)
			}
		}
		_, lab, _ := strings.Cut(out, " lab ")
		lab, _, _ = strings.Cut(lab, "\n")
		lab = strings.TrimSpace(lab)
		if left, err := netns.List("pxlab-" + lab + "-"); lab == "" || err != nil || len(left) > 0 {
			t.Errorf("the demo left of lab %q: %v, %v", lab, left, err)
		}
	})
}

// silent is how a backend is shown that did not answer.
func silent(name string) string {
	return fmt.Sprintf("%-6s zone-%-2s ············ 0", name, name[4:5])
}

// playDemo of a mode: answer must all answer before the kill, and of the killed
// none after it.
func playDemo(t *testing.T, mode string, killed, answer []string) (out string) {
	t.Helper()
	demo := testkit.Start(t, []string{"TMPDIR=" + t.TempDir()}, testkit.Binary(t), "demo", "--once", "--mode", mode)
	if code := demo.Wait(); code != 0 {
		t.Fatalf("exit code %d\n%s\n%s", code, demo.Stdout, demo.Stderr)
	}
	out = demo.Stdout.String()
	before, after, ok := strings.Cut(out, "kill -9")
	if !ok {
		t.Fatalf("no backend was killed:\n%s", out)
	}
	for _, name := range answer {
		if !strings.Contains(before, name) || strings.Contains(before, silent(name)) {
			t.Errorf("%s did not answer:\n%s", name, before)
		}
	}
	for _, name := range killed {
		if !strings.Contains(after, silent(name)) {
			t.Errorf("%s answered after it was killed:\n%s", name, after)
		}
	}
	if !strings.Contains(after, "no request failed") {
		t.Errorf("the shift is not shown:\n%s", after)
	}
	return out
}

// TestInformers: unmodified client-go follows every built-in kind, in both
// encodings, and ours.
func TestInformers(t *testing.T) {
	p := startPlane(t)
	for _, encoding := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf} {
		t.Run(encoding, func(t *testing.T) {
			cfg := p.config()
			cfg.ContentType, cfg.AcceptContentTypes = encoding, encoding
			client := kubernetes.NewForConfigOrDie(cfg)
			factory := informers.NewSharedInformerFactory(client, 0)
			all := map[string]cache.SharedIndexInformer{
				"namespaces": factory.Core().V1().Namespaces().Informer(), "services": factory.Core().V1().Services().Informer(),
				"nodes": factory.Core().V1().Nodes().Informer(), "pods": factory.Core().V1().Pods().Informer(),
				"events": factory.Core().V1().Events().Informer(), "configmaps": factory.Core().V1().ConfigMaps().Informer(),
				"slices": factory.Discovery().V1().EndpointSlices().Informer(), "leases": factory.Coordination().V1().Leases().Informer(),
				"ipaddresses": factory.Networking().V1().IPAddresses().Informer(),
			}
			var seen atomic.Int64
			name := "informed-" + strings.TrimPrefix(strings.ReplaceAll(encoding, ".", "-"), "application/")
			_, err := all["services"].AddEventHandler(cache.ResourceEventHandlerFuncs{
				AddFunc: func(obj any) {
					if obj.(*corev1.Service).Name == name {
						seen.Add(1)
					}
				},
				DeleteFunc: func(obj any) {
					if svc, ok := obj.(*corev1.Service); ok && svc.Name == name {
						seen.Add(1)
					}
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer factory.Shutdown()
			defer cancel()
			factory.Start(ctx.Done())
			for what, informer := range all {
				if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
					t.Fatalf("%s did not sync", what)
				}
			}
			svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
			if _, err := client.CoreV1().Services("default").Create(ctx, svc, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			testkit.Eventually(t, "the informer sees the new Service", func() bool { return seen.Load() == 1 })
			if err := client.CoreV1().Services("default").Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			testkit.Eventually(t, "the informer sees it go", func() bool { return seen.Load() == 2 })
		})
	}
	t.Run("Dataplane", func(t *testing.T) {
		client, err := kubeclient.New(p.config(), kind.All())
		if err != nil {
			t.Fatal(err)
		}
		w, err := client.Watch(t.Context(), kind.Dataplane, resource.WatchOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		dp := &v1alpha1.Dataplane{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "d"},
			Spec:       v1alpha1.DataplaneSpec{Addresses: []string{"192.0.2.1"}},
		}
		if _, err := client.Create(t.Context(), kind.Dataplane, dp); err != nil {
			t.Fatal(err)
		}
		for event := range w.ResultChan() {
			if got, ok := event.Object.(*v1alpha1.Dataplane); ok && got.Name == "d" {
				return
			}
		}
		t.Error("the watch ended without the Dataplane")
	})
}

// BenchmarkReadiness measures what an application feels: from the request that
// makes a Dataplane ready (or not) until the agent, another process, uses it.
func BenchmarkReadiness(b *testing.B) {
	p := startPlane(b)
	p.startNode("edge-1", "zone-a")
	p.apply(webService)
	vip := p.vip("web")
	client, err := kubeclient.New(p.config(), kind.All())
	if err != nil {
		b.Fatal(err)
	}
	backend, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer backend.Close()
	go func() {
		for {
			conn, err := backend.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
	created, err := client.Create(b.Context(), kind.Dataplane, &v1alpha1.Dataplane{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-1", Labels: map[string]string{"app": "web"}},
		Spec: v1alpha1.DataplaneSpec{Addresses: []string{"127.0.0.1"}, Ports: []v1alpha1.DataplanePort{
			{Name: "http", Port: int32(backend.Addr().(*net.TCPAddr).Port)},
		}},
	})
	if err != nil {
		b.Fatal(err)
	}
	dp := created.(*v1alpha1.Dataplane)
	var up, down []time.Duration
	for i := 0; b.Loop(); i++ {
		ready := i%2 == 0
		took := toggle(b, client, &dp, vip, ready)
		if ready {
			up = append(up, took)
		} else {
			down = append(down, took)
		}
		// Apart from each other, as the changes of an idle service are: within
		// 100 ms of the last one a change waits for its fellows.
		time.Sleep(150 * time.Millisecond)
	}
	report(b, "ready", up)
	report(b, "unready", down)
}

// toggle readiness and wait until the virtual IP follows.
func toggle(b *testing.B, client resource.Client, dp **v1alpha1.Dataplane, vip string, ready bool) time.Duration {
	status := metav1.ConditionFalse
	if ready {
		status = metav1.ConditionTrue
	}
	next := (*dp).DeepCopy()
	meta.SetStatusCondition(&next.Status.Conditions, metav1.Condition{Type: v1alpha1.DataplaneReady, Status: status, Reason: "Toggled"})
	start := time.Now()
	out, err := client.UpdateStatus(b.Context(), kind.Dataplane, next)
	if err != nil {
		b.Fatal(err)
	}
	*dp = out.(*v1alpha1.Dataplane)
	for {
		conn, err := net.DialTimeout("tcp", vip, time.Second)
		if err == nil {
			conn.Close()
		}
		if (err == nil) == ready {
			return time.Since(start)
		}
		if time.Since(start) > testkit.Timeout {
			b.Fatalf("the virtual IP did not follow: ready %t, %v", ready, err)
		}
		time.Sleep(100 * time.Microsecond)
	}
}

func report(b *testing.B, name string, took []time.Duration) {
	if len(took) == 0 {
		return
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, name+"-p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, name+"-p99-ms")
	b.ReportMetric(0, "ns/op")
}
