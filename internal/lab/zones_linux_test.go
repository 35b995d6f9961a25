package lab_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/kernel/netns"
	"github.com/proxima-mesh/proxima/internal/lab"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// zonesLab is a lab with global and two zones.
type zonesLab struct {
	*lab.Lab
	t *testing.T
}

// client of a zone's control plane; empty: global's.
func (l *zonesLab) client(zone string) resource.Client {
	l.t.Helper()
	c, err := l.Client(zone)
	if err != nil {
		l.t.Fatal(err)
	}
	return c
}

func (l *zonesLab) create(zone string, d *resource.Descriptor, object resource.Object) {
	l.t.Helper()
	if _, err := l.client(zone).Create(l.t.Context(), d, object); err != nil {
		l.t.Fatal(err)
	}
}

// has reports whether a control plane has an object.
func (l *zonesLab) has(zone string, d *resource.Descriptor, key resource.Key) bool {
	l.t.Helper()
	_, err := l.client(zone).Get(l.t.Context(), d, key)
	if err != nil && !apierrors.IsNotFound(err) {
		return false // it does not answer now
	}
	return err == nil
}

// run a command on the machine of a control plane; empty: global's.
func (l *zonesLab) run(zone string, args ...string) string {
	l.t.Helper()
	machine, config := "control", l.Kubeconfig()
	if zone != "" {
		machine = "control-" + strings.TrimPrefix(zone, "zone-")
		var err error
		if config, err = l.KubeconfigOf(zone); err != nil {
			l.t.Fatal(err)
		}
	}
	ns, err := netns.Open("pxlab-" + labName() + "-" + machine)
	if err != nil {
		l.t.Fatal(err)
	}
	defer ns.Close()
	out, err := ns.Output(l.t.Context(), testkit.Binary(l.t), append(args, "--kubeconfig", config)...)
	if err != nil {
		l.t.Fatalf("%s: %v", strings.Join(args, " "), err)
	}
	return string(out)
}

// traffic from the clients of all zones, until stop is called; it counts what fails.
type traffic struct {
	stop   context.CancelFunc
	done   sync.WaitGroup
	mu     sync.Mutex
	asked  map[string]int
	failed []string
}

func (l *zonesLab) traffic(zones ...string) *traffic {
	ctx, cancel := context.WithCancel(l.t.Context())
	tr := &traffic{stop: cancel, asked: map[string]int{}}
	for _, zone := range zones {
		tr.done.Go(func() {
			for ctx.Err() == nil {
				_, err := l.Ask(ctx, zone)
				if ctx.Err() != nil {
					return
				}
				tr.mu.Lock()
				tr.asked[zone]++
				if err != nil {
					tr.failed = append(tr.failed, fmt.Sprintf("%s: %v", zone, err))
				}
				tr.mu.Unlock()
			}
		})
	}
	return tr
}

// none ends the traffic, of which nothing may have failed.
func (tr *traffic) none(t *testing.T, during string) {
	t.Helper()
	tr.stop()
	tr.done.Wait()
	if len(tr.failed) > 0 {
		t.Errorf("%s: %d requests failed, the first: %s", during, len(tr.failed), tr.failed[0])
	}
	for zone, n := range tr.asked {
		if n == 0 {
			t.Errorf("%s: no request from %s", during, zone)
		}
	}
	t.Logf("%s: %v requests, %d failed", during, tr.asked, len(tr.failed))
}

func blue() *meshv1alpha1.Mesh {
	return &meshv1alpha1.Mesh{ObjectMeta: metav1.ObjectMeta{Name: "blue"}}
}

// TestZones: rows of the table of failures, with two zones of one node, under traffic.
func TestZones(t *testing.T) {
	l := &zonesLab{Lab: start(t, lab.Spec{Zones: 2, Nodes: 1, Mode: "userspace", Global: true}), t: t}
	testkit.Eventually(t, "everything is well", func() bool { return wellInZones(l.Status(t.Context())) })
	t.Run("names of workloads", func(t *testing.T) { l.t = t; l.names() })
	t.Run("a zone has no endpoints", func(t *testing.T) { l.t = t; l.failover() })
	t.Run("link of a zone to global is cut", func(t *testing.T) { l.t = t; l.linkCut() })
	t.Run("global comes back empty", func(t *testing.T) { l.t = t; l.globalEmptied() })
}

// names: a workload with a hostname and a subdomain resolves in its zone below its headless
// Service, as a pod does, and below clusterset.local with the name of its zone, here and in
// the other zone, once the Service is exported.
func (l *zonesLab) names() {
	db := metav1.ObjectMeta{Namespace: "default", Name: "db"}
	l.create("zone-a", kind.Service, &corev1.Service{ObjectMeta: db, Spec: corev1.ServiceSpec{
		ClusterIP: corev1.ClusterIPNone, Selector: map[string]string{"app": "db"}, Ports: []corev1.ServicePort{{Name: "sql", Port: 5432}},
	}})
	ns := inNamespace(l.t, "a-1")
	defer ns.Close()
	config, err := l.KubeconfigOf("zone-a")
	l.do(err)
	run := exec.Command(testkit.Binary(l.t), "run", "--kubeconfig", config, "--data-dir", l.DataDir("a-1"), "--node-name", "a-1", "--name", "db-0",
		"--labels", "app=db", "--hostname", "db-zero", "--subdomain", "db", "--address", "10.200.1.11", "--", "sleep", "1000")
	l.do(ns.Start(run))
	defer func() {
		l.do(run.Process.Signal(os.Interrupt))
		_ = run.Wait() // its exit code is that of sleep
		key := resource.KeyOf(&corev1.Service{ObjectMeta: db})
		_ = l.client("zone-a").Delete(l.t.Context(), kind.ServiceExport, key, resource.Preconditions{}) // it may not be there yet
		l.do(l.client("zone-a").Delete(l.t.Context(), kind.Service, key, resource.Preconditions{}))
	}()
	resolves := func(machine, name string) {
		at := inNamespace(l.t, machine)
		defer at.Close()
		testkit.Eventually(l.t, machine+" resolves "+name, func() bool { return addressOf(at, "udp", "127.0.0.1", name) == "10.200.1.11" })
	}
	resolves("a-1", "db-zero.db.default.svc.cluster.local.")
	l.create("zone-a", kind.ServiceExport, &mcs.ServiceExport{ObjectMeta: db})
	for _, machine := range []string{"a-1", "b-1"} {
		resolves(machine, "db-zero.zone-a.db.default.svc.clusterset.local.")
	}
	at := inNamespace(l.t, "b-1")
	defer at.Close()
	for _, other := range []string{"db-0.db.default.svc.cluster.local.", "db-zero.zone-b.db.default.svc.clusterset.local.", "db-zero.db.default.svc.clusterset.local."} {
		if got := addressOf(at, "udp", "127.0.0.1", other); got != "" {
			l.t.Errorf("%s resolves to %s", other, got)
		}
	}
}

func wellInZones(s *lab.Status) bool {
	for _, z := range s.Zones {
		if z.Site == nil || z.Site.ControlPlane != "running" || z.Site.Ingress != "running" || !served(&z.Served) {
			return false
		}
		for _, n := range z.Nodes {
			if n.Ready != "True" || n.Agent != "running" || n.WorkloadProcess != "running" {
				return false
			}
		}
	}
	return s.ControlPlane == "running"
}

// failover: without endpoints of its own a zone is served by the other one, by way of its
// ingress, also while all control planes are down.
func (l *zonesLab) failover() {
	t := l.t
	l.drain("zone-a", true)
	testkit.Eventually(t, "the other zone serves", func() bool {
		who, err := l.Ask(t.Context(), "zone-a")
		return err == nil && who == "web-b-1"
	})
	tr := l.traffic("zone-a", "zone-b")
	for _, plane := range []string{"global", "control-a", "control-b"} {
		if err := l.Kill(t.Context(), plane); err != nil {
			t.Fatal(err)
		}
	}
	answers(t, l.Lab, "zone-a", "web-b-1")
	for _, plane := range []string{"global", "control-a", "control-b"} {
		if err := l.Heal(t.Context(), plane); err != nil {
			t.Fatal(err)
		}
	}
	answers(t, l.Lab, "zone-a", "web-b-1")
	tr.none(t, "all control planes down")

	// Without an ingress there is no way, and that is said at once.
	if err := l.Kill(t.Context(), "gateway-b"); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if who, err := l.Ask(t.Context(), "zone-a"); err == nil {
		t.Errorf("answered by %s without an ingress", who)
	} else if took := time.Since(begin); took > time.Second {
		t.Errorf("it took %s to fail", took)
	}
	if out, err := exec.Command(testkit.Binary(t), "status", "--data-dir", l.DataDir("a-1")).CombinedOutput(); err != nil ||
		!strings.Contains(string(out), "a connection to another zone was reset") {
		t.Errorf("the status of the node does not say why: %v\n%s", err, out)
	}
	if err := l.Heal(t.Context(), "gateway-b"); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the other zone serves again", func() bool {
		who, err := l.Ask(t.Context(), "zone-a")
		return err == nil && who == "web-b-1"
	})
	l.drain("zone-a", false)
	testkit.Eventually(t, "the own zone serves again", func() bool {
		who, err := l.Ask(t.Context(), "zone-a")
		return err == nil && who == "web-a-1"
	})
}

// drain makes the workload of a zone not selected any more, or selected again.
func (l *zonesLab) drain(zone string, drained bool) {
	l.t.Helper()
	key := resource.Key{Namespace: "default", Name: "web-" + strings.TrimPrefix(zone, "zone-") + "-1"}
	object, err := l.client(zone).Get(l.t.Context(), kind.Dataplane, key)
	if err != nil {
		l.t.Fatal(err)
	}
	labels := object.GetLabels()
	labels["app"] = "web"
	if drained {
		labels["app"] = "drained"
	}
	object.SetLabels(labels)
	if _, err := l.client(zone).Update(l.t.Context(), kind.Dataplane, object); err != nil {
		l.t.Fatal(err)
	}
}

// linkCut: the zone goes on, joins and configuration included; what changed elsewhere
// arrives after healing, and nothing is lost.
func (l *zonesLab) linkCut() {
	t := l.t
	if err := l.CutBetween("zone-a", "global"); err != nil {
		t.Fatal(err)
	}
	if s := l.Status(t.Context()); len(s.Zones[0].CutFrom) != 1 || s.Zones[0].CutFrom[0] != "global" || len(s.Zones[1].CutFrom) != 0 {
		t.Errorf("cut from %v and %v", s.Zones[0].CutFrom, s.Zones[1].CutFrom)
	}
	tr := l.traffic("zone-a", "zone-b")
	l.create("", kind.Mesh, blue())
	testkit.Eventually(t, "the other zone has the mesh", func() bool { return l.has("zone-b", kind.Mesh, resource.Key{Name: "blue"}) })
	if l.has("zone-a", kind.Mesh, resource.Key{Name: "blue"}) {
		t.Error("the zone that is cut off has the mesh")
	}
	// A service and a workload come in the zone that is cut off.
	api := resource.Key{Namespace: "default", Name: "api"}
	l.create("zone-a", kind.Service, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: api.Namespace, Name: api.Name},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "api"}, Ports: []corev1.ServicePort{{Port: 80}}},
	})
	l.create("zone-a", kind.ServiceExport, &mcs.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: api.Namespace, Name: api.Name}})
	testkit.Eventually(t, "the zone imports its own service", func() bool { return l.has("zone-a", kind.ServiceImport, api) })
	if l.has("zone-b", kind.ServiceImport, api) {
		t.Error("the other zone has what cannot have reached it")
	}
	if err := l.HealBetween("global", "zone-a"); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the zone catches up", func() bool { return l.has("zone-a", kind.Mesh, resource.Key{Name: "blue"}) })
	testkit.Eventually(t, "the other zone catches up", func() bool { return l.has("zone-b", kind.ServiceImport, api) })
	tr.none(t, "link to global cut")
}

// globalEmptied: zones lose nothing, and say so.
func (l *zonesLab) globalEmptied() {
	t := l.t
	tr := l.traffic("zone-a", "zone-b")
	if err := l.Kill(t.Context(), "global"); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(l.DataDir("control"), "store.db*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("files of global's store: %v, %v", files, err)
	}
	for _, file := range files {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Heal(t.Context(), "global"); err != nil {
		t.Fatal(err)
	}
	// It does not know its zones any more.
	for _, zone := range []string{"zone-a", "zone-b"} {
		l.run("", "zone", "create", zone, "-o", "token")
	}
	for _, zone := range []string{"zone-a", "zone-b"} {
		testkit.Eventually(t, zone+" holds the deletion", func() bool {
			return strings.Contains(l.run(zone, "status"), "held")
		})
		if !l.has(zone, kind.Mesh, resource.Key{Name: "blue"}) {
			t.Errorf("%s lost its mesh", zone)
		}
	}
	tr.none(t, "global empty")
	// An operator confirms in one zone, and makes the mesh again for the other.
	l.run("zone-a", "zone", "confirm", "zone-a", "mesh.proxima.dev/Mesh")
	testkit.Eventually(t, "what is confirmed is deleted", func() bool { return !l.has("zone-a", kind.Mesh, resource.Key{Name: "blue"}) })
	if !l.has("zone-b", kind.Mesh, resource.Key{Name: "blue"}) {
		t.Error("zone-b lost its mesh by a confirmation in zone-a")
	}
	l.create("", kind.Mesh, blue())
	testkit.Eventually(t, "the mesh is back", func() bool { return l.has("zone-a", kind.Mesh, resource.Key{Name: "blue"}) })
	testkit.Eventually(t, "the other zone holds nothing", func() bool { return !strings.Contains(l.run("zone-b", "status"), "held") })
}
