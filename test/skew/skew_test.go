package skew

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// world is a global control plane, and a zone for each program that runs as an agent.
type world struct {
	t      *testing.T
	global *plane
	zones  []*zone
	rounds int
}

// TestPairings: every pairing of control planes and agents serves connections through virtual
// IPs without a failure while endpoints change, changes reach global and the other zones, and
// each version of the control plane keeps what the other one has stored.
func TestPairings(t *testing.T) {
	if os.Getenv("PROXIMA_SKEW") == "" {
		t.Skip("it builds earlier revisions and takes minutes: make interop-skew")
	}
	var agents, olds []*revision
	for _, r := range listed(t, strings.Fields(os.Getenv("PROXIMA_SKEW_REVISIONS"))) {
		r.build(t)
		agents = append(agents, &r)
		if r.controls {
			olds = append(olds, &r)
		}
	}
	if os.Getenv("PROXIMA_SKEW") == "build" {
		return
	}
	this := &revision{name: tree, binary: testkit.Binary(t), controls: true}
	agents = append(agents, this)
	var all []result
	for _, old := range olds {
		w := start(t, old, agents)
		// Each step changes one side; the last ones open the stores by the older version
		// again, and by the newer one after that.
		for _, step := range []struct{ global, zone *revision }{{old, old}, {this, old}, {this, this}, {old, this}, {old, old}, {this, this}} {
			results := w.step(step.global, step.zone)
			for _, r := range results {
				t.Log(r)
				if !slices.ContainsFunc(all, r.same) {
					all = append(all, r)
				}
			}
		}
		w.swapAgents(old, this)
		w.stop()
	}
	if path := os.Getenv("PROXIMA_SKEW_TABLE"); path != "" && !t.Failed() {
		if err := writeTable(path, all, described(t)); err != nil {
			t.Error(err)
		}
	}
}

// start a world whose control planes are all old.
func start(t *testing.T, old *revision, agents []*revision) *world {
	w := &world{t: t, global: newPlane(t, "global", "--role", "global")}
	w.global.run(old)
	mesh := w.global.get(kind.Mesh, "", "default").(*meshv1alpha1.Mesh)
	mesh.Spec.MTLS = &meshv1alpha1.MeshMTLS{EnabledBackend: "own", Backends: []meshv1alpha1.MeshCertificateBackend{{Name: "own"}}}
	if _, err := w.global.client.Update(t.Context(), kind.Mesh, mesh); err != nil {
		t.Fatal(err)
	}
	for i, r := range agents {
		name := string(rune('a' + i))
		token := w.global.tokenFile("zone", "create", name, "-o", "token")
		z := &zone{number: i, remote: map[string]*caller{}, plane: newPlane(t, "zone "+name, "--role", "zone", "--zone", name,
			"--global", w.global.address(), "--token-file", token, "--service-cidr", fmt.Sprintf("127.96.%d.0/24", 100+i), "--mesh-cidr", "none")}
		z.plane.name = name
		z.run(old)
		z.agent = z.newAgent("node-"+name, "node", "--mode", "userspace", "--zone", name, "--dns-port", "0")
		z.agent.run(r)
		z.prepare()
		w.zones = append(w.zones, z)
	}
	for _, z := range w.zones {
		if !z.agent.now.controls {
			continue // before there were zones
		}
		ingress := z.newAgent("ingress-"+z.name, "ingress", "--ingress-port", "0", "--listen-address", address())
		ingress.run(z.agent.now)
	}
	w.call()
	return w
}

// call keeps calling every Service from every agent that can reach it, until the test ends.
func (w *world) call() {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	w.t.Cleanup(func() { cancel(); running.Wait() })
	begin := func(at string) *caller {
		c := &caller{at: at}
		running.Go(func() { c.run(ctx) })
		return c
	}
	for _, z := range w.zones {
		z.local = begin(w.virtualIP(z, z.service()))
		for _, other := range w.zones {
			if address() != "127.0.0.1" && other != z && z.agent.now.controls && other.agent.now.controls {
				z.remote[other.name] = begin(w.virtualIP(z, w.derived(z, other.service())))
			}
		}
	}
}

// virtualIP of a Service, once something answers at it.
func (w *world) virtualIP(z *zone, service string) string {
	w.t.Helper()
	at := ""
	var err error
	testkit.Eventually(w.t, "a virtual IP of "+service+" in zone "+z.name, func() bool {
		obj := z.get(kind.Service, "default", service)
		if obj == nil || obj.(*corev1.Service).Spec.ClusterIP == "" {
			return false
		}
		at = obj.(*corev1.Service).Spec.ClusterIP + ":80"
		return true
	})
	defer func() {
		if w.t.Failed() {
			w.t.Log("last:", err)
		}
	}()
	testkit.Eventually(w.t, service+" answers in zone "+z.name, func() bool {
		c, _, _, e := dial(at)
		if err = e; e == nil {
			c.Close()
		}
		return e == nil
	})
	return at
}

// derived is the name of the Service that a zone has made for an import.
func (w *world) derived(z *zone, service string) (name string) {
	w.t.Helper()
	testkit.Eventually(w.t, "zone "+z.name+" imports "+service, func() bool {
		all, _, err := z.client.List(w.t.Context(), kind.Service, resource.ListOptions{Namespace: "default"})
		for _, obj := range all {
			if obj.GetLabels()[mcs.LabelServiceName] == service {
				name = obj.GetName()
			}
		}
		return err == nil && name != ""
	})
	return name
}

// result is what was seen of one pairing.
type result struct {
	global, zone, agent string
	// calls inside the zone, and to other zones.
	calls, remote int64
	failed        int64
}

func (r result) same(o result) bool {
	return r.global == o.global && r.zone == o.zone && r.agent == o.agent
}

func (r result) String() string {
	return fmt.Sprintf("global %s, zone %s, agent %s: %d calls, %d to other zones, %d failed", r.global, r.zone, r.agent, r.calls, r.remote, r.failed)
}

// step changes the programs of the control planes under traffic, and endpoints after that.
func (w *world) step(global, zones *revision) []result {
	w.t.Helper()
	w.rounds++
	w.t.Logf("step %d: global %s, zones %s", w.rounds, global, zones)
	w.eachCaller(func(_ *zone, c *caller) { c.clear() })
	open := w.connections()
	w.restart(w.global, global)
	var restarting sync.WaitGroup
	for _, z := range w.zones {
		restarting.Go(func() { w.restart(z.plane, zones) })
	}
	restarting.Wait()
	for _, c := range open {
		c.check(w.t)
	}
	w.synchronised()
	w.changes()
	var out []result
	for _, z := range w.zones {
		r := result{global: global.name, zone: zones.name, agent: z.agent.now.name, calls: z.local.requests.Load(), failed: z.local.failed.Load()}
		for _, c := range z.remote {
			r.remote += c.requests.Load()
			r.failed += c.failed.Load()
		}
		out = append(out, r)
	}
	w.eachCaller(func(z *zone, c *caller) {
		if n := c.failed.Load(); n > 0 {
			w.t.Errorf("step %d: %d of %d calls of %s in zone %s failed, the last: %v", w.rounds, n, c.requests.Load(), c.at, z.name, c.err)
		}
	})
	return out
}

func (w *world) eachCaller(f func(*zone, *caller)) {
	for _, z := range w.zones {
		f(z, z.local)
		for _, c := range z.remote {
			f(z, c)
		}
	}
}

// restart a control plane as another revision. It has all objects afterwards.
func (w *world) restart(p *plane, r *revision) {
	before := p.objects()
	p.run(r)
	after := p.objects()
	for name, uid := range before {
		if after[name] != uid {
			w.t.Errorf("%s, now run by %s, has lost %s, or has another one of the name: %q, before %q", p.name, r, name, after[name], uid)
		}
	}
	if len(before) < 10 {
		w.t.Errorf("%s has %d objects only", p.name, len(before))
	}
}

// synchronised waits for a Mesh of global in every zone, and for a workload of every zone at
// global.
func (w *world) synchronised() {
	w.t.Helper()
	name := fmt.Sprintf("step-%d", w.rounds)
	w.global.create(kind.Mesh, &meshv1alpha1.Mesh{ObjectMeta: metav1.ObjectMeta{Name: name}})
	for _, z := range w.zones {
		z.create(kind.Dataplane, &meshv1alpha1.Dataplane{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec:       meshv1alpha1.DataplaneSpec{NodeName: z.agent.name, Addresses: []string{fmt.Sprintf("127.0.1.%d", w.rounds)}},
		})
	}
	for _, z := range w.zones {
		testkit.Eventually(w.t, "Mesh "+name+" is in zone "+z.name, func() bool { return z.get(kind.Mesh, "", name) != nil })
	}
	testkit.Eventually(w.t, "global lists the workloads "+name+" of all zones", func() bool {
		all, _, err := w.global.client.List(w.t.Context(), kind.Dataplane, resource.ListOptions{})
		n := 0
		for _, obj := range all {
			if obj.GetLabels()[meshv1alpha1.LabelDisplayName] == name {
				n++
			}
		}
		return err == nil && n == len(w.zones)
	})
}

// changes moves the traffic of each zone to its other backend, twice. Every caller follows.
func (w *world) changes() {
	w.t.Helper()
	for range 2 {
		for _, z := range w.zones {
			z.turn()
		}
		w.follow()
	}
}

// follow waits until each caller is answered by the backend that is ready.
func (w *world) follow() {
	w.t.Helper()
	for _, z := range w.zones {
		want := z.backends[z.ready].name
		testkit.Eventually(w.t, "calls in zone "+z.name+" are answered by "+want, func() bool { return z.local.last() == want })
		for _, other := range w.zones {
			if c := other.remote[z.name]; c != nil {
				testkit.Eventually(w.t, "calls from zone "+other.name+" are answered by "+want, func() bool { return c.last() == want })
			}
		}
	}
}

// kept is a connection that is open while control planes restart.
type kept struct {
	what  string
	check func(t *testing.T)
}

// connections opens one through each virtual IP.
func (w *world) connections() (out []kept) {
	w.t.Helper()
	w.eachCaller(func(z *zone, c *caller) {
		conn, r, _, err := dial(c.at)
		if err != nil {
			w.t.Errorf("connect to %s: %v", c.at, err)
			return
		}
		out = append(out, kept{what: c.at, check: func(t *testing.T) {
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
			if _, err := fmt.Fprintln(conn, "still there"); err != nil {
				t.Errorf("step %d: the open connection to %s: %v", w.rounds, c.at, err)
				return
			}
			if line, err := r.ReadString('\n'); err != nil || line != "still there\n" {
				t.Errorf("step %d: the open connection to %s in zone %s: %q, %v", w.rounds, c.at, z.name, line, err)
			}
		}})
	})
	return out
}

// swapAgents replaces the program of each agent by the other one and back, on its state.
func (w *world) swapAgents(old, this *revision) {
	w.t.Helper()
	for _, z := range w.zones {
		own := z.agent.now
		for _, r := range []*revision{this, own, old, own} {
			if r == z.agent.now {
				continue
			}
			// In userspace mode a restart of the agent interrupts its traffic.
			z.local.paused.Store(true)
			for _, c := range z.remote {
				c.paused.Store(true)
			}
			z.agent.run(r)
			w.virtualIP(z, z.service())
			z.local.clear()
			z.local.paused.Store(false)
			z.turn()
			want := z.backends[z.ready].name
			testkit.Eventually(w.t, fmt.Sprintf("agent %s in place of %s follows", r, own), func() bool { return z.local.last() == want })
			if n := z.local.failed.Load(); n > 0 {
				w.t.Errorf("agent %s on the state of %s: %d calls failed, the last: %v", r, own, n, z.local.err)
			}
		}
	}
}

// stop everything, so that the next world has the machine to itself.
func (w *world) stop() {
	for _, z := range w.zones {
		z.agent.process.Stop()
		z.process.Stop()
	}
	w.global.process.Stop()
}
