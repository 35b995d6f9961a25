package lab_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/kernel/netns"
	"github.com/proxima-mesh/proxima/internal/lab"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/testkit"
)

// grace is how long connections over a path that was cut may fail.
const grace = time.Second

// flow is traffic of a zone's client to an exported Service.
type flow struct{ zone, service string }

func (f flow) String() string { return f.zone + " → " + f.service }

// request of a flow, by a connection of its own or by an open one.
type request struct {
	began time.Time
	took  time.Duration
	by    string
	err   error
	// open: by a connection that had answered before.
	open bool
}

// load is traffic of several flows until it ends. Every request is kept.
type load struct {
	t     *testing.T
	end   context.CancelFunc
	done  sync.WaitGroup
	flows []flow

	mu       sync.Mutex
	requests map[flow][]request
}

// connectLimit is how long a connection over a path that drops everything may take to fail: the
// agent waits 1 s for a peer that did not answer lately, and the computer is busy.
const connectLimit = 1700 * time.Millisecond

// pause between two requests of a flow.
const pause = 25 * time.Millisecond

// patience of a client with one request.
const patience = 5 * time.Second

// vip of a Service for the clients of a zone: the address of the import there.
func (l *zonesLab) vip(f flow) string {
	l.t.Helper()
	var vip string
	testkit.Eventually(l.t, f.String()+" has an address", func() bool {
		object, err := l.client(f.zone).Get(l.t.Context(), kind.ServiceImport, resource.Key{Namespace: "default", Name: f.service})
		if err != nil || len(object.(*mcs.ServiceImport).Spec.IPs) == 0 {
			return false
		}
		vip = net.JoinHostPort(object.(*mcs.ServiceImport).Spec.IPs[0], "8080")
		return true
	})
	return vip
}

// load begins traffic: of each flow new connections one after the other, and requests by a
// connection that stays open.
func (l *zonesLab) load(flows ...flow) *load {
	l.t.Helper()
	ctx, cancel := context.WithCancel(l.t.Context())
	w := &load{t: l.t, end: cancel, flows: flows, requests: map[flow][]request{}}
	for _, f := range flows {
		ns := inNamespace(l.t, "client-"+strings.TrimPrefix(f.zone, "zone-"))
		vip := l.vip(f)
		var running sync.WaitGroup
		for _, open := range []bool{false, true} {
			running.Go(func() { w.ask(ctx, ns, f, vip, open) })
		}
		w.done.Go(func() {
			running.Wait()
			_ = ns.Close()
		})
	}
	return w
}

func (w *load) ask(ctx context.Context, ns *netns.NS, f flow, vip string, open bool) {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	var c net.Conn
	for ctx.Err() == nil {
		r := request{began: time.Now(), open: c != nil}
		if c == nil {
			c, r.err = dial(ctx, ns, vip)
		}
		if r.err == nil {
			r.by, r.err = exchange(c)
		}
		r.took = time.Since(r.began)
		if c != nil && (r.err != nil || !open) {
			_ = c.Close()
			c = nil
		}
		w.mu.Lock()
		if ctx.Err() == nil {
			w.requests[f] = append(w.requests[f], r)
		}
		w.mu.Unlock()
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	if c != nil {
		_ = c.Close()
	}
}

func dial(ctx context.Context, ns *netns.NS, vip string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return ns.DialContext(ctx, "tcp", vip)
}

// exchange sends a request on a connection and reads who answers.
func exchange(c net.Conn) (string, error) {
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: web\r\n\r\n"); err != nil {
		return "", err
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var answer lab.Answer
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return "", err
	}
	return answer.Name, nil
}

// stop ends the traffic and prints what there was.
func (w *load) stop() {
	w.end()
	w.done.Wait()
	for _, f := range w.flows {
		failed, slowest, by := 0, time.Duration(0), map[string]int{}
		for _, r := range w.requests[f] {
			if r.err != nil {
				failed++
				continue
			}
			slowest = max(slowest, r.took)
			by[r.by]++
		}
		w.t.Logf("%s: %d requests, %d failed, the slowest answer after %s, by %v", f, len(w.requests[f]), failed, slowest.Round(time.Millisecond), by)
	}
}

// of a flow, those that began in a while.
func (w *load) of(f flow, from, to time.Time) []request {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []request
	for _, r := range w.requests[f] {
		if !r.began.Before(from) && r.began.Before(to) {
			out = append(out, r)
		}
	}
	return out
}

// worked: nothing failed of these flows but, where cut is not zero, what began in the second
// after it, which must not hang, and open connections.
func (w *load) worked(cut time.Time, flows ...flow) {
	w.t.Helper()
	for _, f := range flows {
		all := w.of(f, time.Time{}, time.Now())
		if len(all) < 20 {
			w.t.Errorf("%s: only %d requests", f, len(all))
		}
		bad := slices.DeleteFunc(all, func(r request) bool {
			during := r.began.After(cut.Add(-grace)) && r.began.Before(cut.Add(grace)) && r.took < patience/2
			return r.err == nil || !cut.IsZero() && (r.open || during)
		})
		if len(bad) > 0 {
			w.t.Errorf("%s: %d requests failed, the first %s after the failure (open connection: %v): %v", f, len(bad), bad[0].began.Sub(cut), bad[0].open, bad[0].err)
		}
	}
}

// refused: of these flows everything that began in a while failed, within a time.
func (w *load) refused(from, to time.Time, within time.Duration, flows ...flow) {
	w.t.Helper()
	for _, f := range flows {
		all := w.of(f, from, to)
		if len(all) == 0 {
			w.t.Errorf("%s: no request in %s", f, to.Sub(from))
		}
		var slowest time.Duration
		for _, r := range all {
			if r.err == nil && !r.open {
				w.t.Errorf("%s: answered by %s", f, r.by)
			}
			slowest = max(slowest, r.took)
		}
		w.t.Logf("%s: %d requests failed as they must, the slowest after %s", f, len(all), slowest.Round(time.Millisecond))
		if slowest > within {
			w.t.Errorf("%s: a request took %s to fail, want at most %s", f, slowest, within)
		}
	}
}

// progress waits until so many more requests of a flow are done.
func (w *load) progress(f flow, n int) {
	w.t.Helper()
	from := time.Now()
	testkit.Eventually(w.t, f.String()+" goes on", func() bool { return len(w.of(f, from, time.Now())) >= n })
}

// answered waits until a flow is answered again, now.
func (w *load) answered(f flow) {
	w.t.Helper()
	from := time.Now()
	testkit.Eventually(w.t, f.String()+" is answered", func() bool {
		return slices.ContainsFunc(w.of(f, from, time.Now()), func(r request) bool { return r.err == nil })
	})
}

// offer creates a Service of a zone's workloads and exports it.
func (l *zonesLab) offer(service string, zones ...string) {
	l.t.Helper()
	for _, zone := range zones {
		l.create(zone, kind.Service, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: service},
			Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{
				{Name: "http", Port: 8080, TargetPort: intstr.FromString("http")}}},
		})
		l.create(zone, kind.ServiceExport, &mcs.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: service}})
	}
}

// do is a step that must succeed.
func (l *zonesLab) do(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

// failing runs a command on a machine, which must fail, and returns what it printed.
func (l *zonesLab) failing(machine string, args ...string) string {
	l.t.Helper()
	ns := inNamespace(l.t, machine)
	defer ns.Close()
	out, err := ns.Output(l.t.Context(), testkit.Binary(l.t), args...)
	if err == nil {
		l.t.Errorf("%s on %s succeeded: %s", strings.Join(args, " "), machine, out)
		return string(out)
	}
	return err.Error()
}

// says reports whether the output of a command that must fail has a text.
func (l *zonesLab) says(text, machine string, args ...string) {
	l.t.Helper()
	if out := l.failing(machine, args...); !strings.Contains(out, text) {
		l.t.Errorf("%s on %s says %q, want %q in it", strings.Join(args, " "), machine, out, text)
	}
}

// statusOf an agent or gateway.
func (l *zonesLab) statusOf(machine string) string {
	out, _ := exec.Command(testkit.Binary(l.t), "status", "--data-dir", l.DataDir(machine)).CombinedOutput() // it may fail and says why
	return string(out)
}

// equal waits until all control planes have the same: global what each zone owns, the zones
// what global owns, and what other zones offer them.
func (l *zonesLab) equal(zones ...string) {
	l.t.Helper()
	deadline := time.Now().Add(testkit.Timeout)
	for {
		diff := l.difference(zones)
		if diff == "" {
			return
		}
		if time.Now().After(deadline) {
			l.t.Fatalf("the states differ: %s", diff)
		}
		time.Sleep(20 * time.Millisecond) // between two looks at programs that send no notification
	}
}

// difference between the control planes; empty: there is none.
func (l *zonesLab) difference(zones []string) string {
	for _, d := range kind.All() {
		if d == kind.GlobalSecret || d.Direction == resource.Stays {
			continue
		}
		owners := zones
		if d.Direction == resource.GlobalToZone {
			owners = []string{""}
		}
		for _, owner := range owners {
			own := l.objects(owner, owner, d)
			if len(own) == 0 && (d == kind.Dataplane || d == kind.Mesh || d == kind.ServiceExport || d == kind.ZoneIngress) {
				return fmt.Sprintf("%q has no %s", owner, d.GVK.Kind)
			}
			for _, at := range append([]string{""}, zones...) {
				if at == owner || at != "" && d.Direction == resource.ZoneToGlobal {
					continue
				}
				copies := l.objects(at, owner, d)
				for name, want := range own {
					if got := copies[name]; got != want {
						return fmt.Sprintf("%s %s of %q is\n%s\nand at %q\n%s", d.GVK.Kind, name, owner, want, at, got)
					}
				}
				for name := range copies {
					if _, ok := own[name]; !ok {
						return fmt.Sprintf("%q has %s %s of %q, which that has not", at, d.GVK.Kind, name, owner)
					}
				}
			}
		}
	}
	return ""
}

// objects of an owner that a control plane has, by their name there, as what must be equal.
func (l *zonesLab) objects(at, owner string, d *resource.Descriptor) map[string]string {
	out := map[string]string{}
	all, _, err := l.client(at).List(l.t.Context(), d, resource.ListOptions{})
	if err != nil {
		return map[string]string{"": fmt.Sprintf("%s: %v", at, err)}
	}
	for _, o := range all {
		labels := o.GetLabels()
		origin, zone := labels[meshv1alpha1.LabelOrigin], labels[meshv1alpha1.LabelZone]
		copied := origin == meshv1alpha1.OriginGlobal || origin == meshv1alpha1.OriginZone && zone != ""
		if copied && zone != owner || !copied && at != owner {
			continue
		}
		name := o.GetNamespace() + "/" + o.GetName()
		if at != owner {
			name = labels[meshv1alpha1.LabelSourceNamespace] + "/" + labels[meshv1alpha1.LabelDisplayName]
		}
		if svc, ok := o.(*corev1.Service); ok {
			if _, derived := labels[mcs.LabelServiceName]; derived || name == "default/kubernetes" {
				continue
			}
			for i := range svc.Spec.Ports {
				svc.Spec.Ports[i].NodePort = 0
			}
			svc.Spec, svc.Status = corev1.ServiceSpec{Ports: svc.Spec.Ports, Selector: svc.Spec.Selector}, corev1.ServiceStatus{}
		}
		switch o := o.(type) {
		case *meshv1alpha1.Dataplane:
			o.Status.Lease = nil
		case *mcs.ServiceExport:
			if o.Status.Available != nil {
				o.Status.Available.Zone = ""
			}
		}
		body, err := json.Marshal(o)
		fields := map[string]json.RawMessage{}
		if err == nil {
			err = json.Unmarshal(body, &fields)
		}
		delete(fields, "metadata")
		if d.Direction == resource.GlobalToZone {
			delete(fields, "status") // each control plane observes its own
		}
		if err == nil {
			body, err = json.Marshal(fields)
		}
		if err != nil {
			l.t.Fatal(err)
		}
		out[name] = string(body)
	}
	return out
}

// well waits until everything runs and is ready.
func (l *zonesLab) well() {
	l.t.Helper()
	testkit.Eventually(l.t, "everything is well", func() bool { return wellInZones(l.Status(l.t.Context())) })
}

func soak(t *testing.T) {
	t.Helper()
	if os.Getenv("PROXIMA_SOAK") == "" {
		t.Skip("the rows of the table of failures take minutes: PROXIMA_SOAK=1 runs them")
	}
}

// The flows of the rows: "web" is served by every zone itself, "only-b" by zone-b alone,
// "both" by zone-b and zone-c.
var (
	aLocal, bLocal, cLocal = flow{"zone-a", "web"}, flow{"zone-b", "web"}, flow{"zone-c", "web"}
	aOnlyB, cOnlyB         = flow{"zone-a", "only-b"}, flow{"zone-c", "only-b"}
	aBoth                  = flow{"zone-a", "both"}
	threeZones             = []string{"zone-a", "zone-b", "zone-c"}
)

// TestFailures: rows of the table of failures with three zones of one node, in the kernel's
// mode, under traffic.
func TestFailures(t *testing.T) {
	soak(t)
	l := &zonesLab{Lab: start(t, lab.Spec{Zones: 3, Nodes: 1, Mode: "auto", Global: true}), t: t}
	l.offer("only-b", "zone-b")
	l.offer("both", "zone-b", "zone-c")
	l.well()
	for _, f := range []flow{aOnlyB, cOnlyB, aBoth} {
		l.reached(f)
	}
	for _, row := range []struct {
		name string
		run  func()
	}{
		{"global is offline", l.globalOffline},
		{"the control plane of a zone is offline", l.zoneOffline},
		{"link of two zones is cut", l.zonesCut},
		{"all ingresses of a zone are down", l.ingressesDown},
		{"a gateway is cut from its control plane", l.gatewayAlone},
		{"a whole zone loses power", l.zoneDark},
	} {
		if !t.Run(row.name, func(t *testing.T) {
			l.t = t
			row.run()
			l.equal(threeZones...)
			l.well()
		}) {
			return // what it broke is not healed
		}
	}
}

// reached waits until a flow is answered.
func (l *zonesLab) reached(f flow) {
	l.t.Helper()
	ns := inNamespace(l.t, "client-"+strings.TrimPrefix(f.zone, "zone-"))
	defer ns.Close()
	vip := l.vip(f)
	testkit.Eventually(l.t, f.String()+" is answered", func() bool {
		c, err := dial(l.t.Context(), ns, vip)
		if err != nil {
			return false
		}
		defer c.Close()
		_, err = exchange(c)
		return err == nil
	})
}

// extra is a workload of a zone's own that joins and leaves.
func (l *zonesLab) extra(zone, name string) *meshv1alpha1.Dataplane {
	letter := strings.TrimPrefix(zone, "zone-")
	return &meshv1alpha1.Dataplane{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{"app": name}},
		Spec: meshv1alpha1.DataplaneSpec{
			NodeName: letter + "-1", Addresses: []string{"10.200." + strconv.Itoa(int(letter[0]-'a')+1) + ".11"},
			Ports: []meshv1alpha1.DataplanePort{{Name: "http", Port: 8080}},
		},
	}
}

// joinsAndLeaves: in a zone a Service and a workload come, are used by the zone's client,
// and go.
func (l *zonesLab) joinsAndLeaves(zone, name string) {
	t := l.t
	t.Helper()
	c := l.client(zone)
	made, err := c.Create(t.Context(), kind.Service, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": name}, Ports: []corev1.ServicePort{{Port: 8080, TargetPort: intstr.FromString("http")}}},
	})
	l.do(err)
	joined, err := c.Create(t.Context(), kind.Dataplane, l.extra(zone, name))
	l.do(err)
	joined.(*meshv1alpha1.Dataplane).Status.Conditions = []metav1.Condition{{
		Type: meshv1alpha1.DataplaneReady, Status: metav1.ConditionTrue, Reason: "Test", LastTransitionTime: metav1.Now(),
	}}
	_, err = c.UpdateStatus(t.Context(), kind.Dataplane, joined)
	l.do(err)
	ns := inNamespace(t, "client-"+strings.TrimPrefix(zone, "zone-"))
	defer ns.Close()
	answered := func() bool {
		c, err := dial(t.Context(), ns, net.JoinHostPort(made.(*corev1.Service).Spec.ClusterIP, "8080"))
		if err != nil {
			return false
		}
		defer c.Close()
		_, err = exchange(c)
		return err == nil
	}
	testkit.Eventually(t, "the workload that joined in "+zone+" is used", answered)
	l.do(c.Delete(t.Context(), kind.Dataplane, resource.Key{Namespace: "default", Name: name}, resource.Preconditions{}))
	testkit.Eventually(t, "the workload that left in "+zone+" is not used", func() bool { return !answered() })
	l.do(c.Delete(t.Context(), kind.Service, resource.Key{Namespace: "default", Name: name}, resource.Preconditions{}))
}

func (l *zonesLab) globalOffline() {
	t := l.t
	flows := []flow{aLocal, bLocal, cLocal, aOnlyB, cOnlyB, aBoth}
	w := l.load(flows...)
	l.do(l.Kill(t.Context(), "global"))
	for i, zone := range threeZones {
		l.joinsAndLeaves(zone, "joined-"+strconv.Itoa(i))
		if !l.has(zone, kind.Mesh, resource.Key{Name: "default"}) {
			t.Errorf("%s has no mesh while global is offline", zone)
		}
	}
	// Policy changes, and disabling a zone, are refused; both say why.
	_, err := l.client("zone-a").Create(t.Context(), kind.Mesh, blue())
	if err == nil || !strings.Contains(err.Error(), "global") {
		t.Errorf("a mesh written in a zone while global is offline: %v", err)
	}
	l.says("refused", "control", "zone", "disable", "zone-a", "--kubeconfig", l.Kubeconfig())
	testkit.Eventually(t, "the zone says that global is away", func() bool {
		return strings.Contains(l.run("zone-a", "status"), "no connection to global")
	})
	// A new service of another zone waits.
	late := resource.Key{Namespace: "default", Name: "late"}
	l.offer(late.Name, "zone-b")
	testkit.Eventually(t, "the zone imports its own service", func() bool { return l.has("zone-b", kind.ServiceImport, late) })
	if l.has("zone-a", kind.ServiceImport, late) {
		t.Error("another zone has a new service while global is offline")
	}
	w.progress(aOnlyB, 50)
	l.do(l.Heal(t.Context(), "global"))
	testkit.Eventually(t, "the new service arrives", func() bool { return l.has("zone-a", kind.ServiceImport, late) })
	l.equal(threeZones...)
	w.stop()
	w.worked(time.Time{}, flows...)
}

func (l *zonesLab) zoneOffline() {
	t := l.t
	flows := []flow{aLocal, bLocal, cLocal, aOnlyB, cOnlyB, aBoth}
	w := l.load(flows...)
	l.do(l.Kill(t.Context(), "control-b"))
	// The agent dies and comes back with the state that it has on disk; the kernel serves
	// meanwhile.
	l.do(l.Kill(t.Context(), "b-1"))
	w.progress(bLocal, 30)
	l.do(l.Heal(t.Context(), "b-1"))
	out := flow{"zone-b", "both"} // out of the zone, by the tunnel of the new agent
	w.progress(bLocal, 30)
	if out := l.statusOf("b-1"); !strings.Contains(out, "serves its last state") {
		t.Errorf("the status of the node does not say that it serves its last state:\n%s", out)
	}
	// Nothing joins or changes in the zone, which is said; the others go on.
	_, err := l.client("zone-b").Create(t.Context(), kind.Dataplane, l.extra("zone-b", "refused"))
	if err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("a workload joined a zone without a control plane: %v", err)
	}
	l.joinsAndLeaves("zone-a", "joined-a")
	l.create("", kind.Mesh, blue())
	testkit.Eventually(t, "the other zones have the mesh", func() bool {
		return l.has("zone-a", kind.Mesh, resource.Key{Name: "blue"}) && l.has("zone-c", kind.Mesh, resource.Key{Name: "blue"})
	})
	testkit.Eventually(t, "global says that the zone is offline", func() bool {
		for line := range strings.Lines(l.run("", "zone", "list")) {
			if strings.HasPrefix(line, "zone-b") {
				return strings.Contains(line, "offline")
			}
		}
		return false
	})
	l.do(l.Heal(t.Context(), "control-b"))
	testkit.Eventually(t, "the zone catches up", func() bool { return l.has("zone-b", kind.Mesh, resource.Key{Name: "blue"}) })
	l.reached(out)
	l.equal(threeZones...)
	w.stop()
	w.worked(time.Time{}, flows...)
	l.do(l.client("").Delete(t.Context(), kind.Mesh, resource.Key{Name: "blue"}, resource.Preconditions{}))
}

func (l *zonesLab) zonesCut() {
	w := l.load(aLocal, bLocal, cLocal, aOnlyB, cOnlyB, aBoth)
	w.progress(aOnlyB, 20)
	cut := time.Now()
	l.do(l.CutBetween("zone-a", "zone-b"))
	w.progress(aBoth, 300)
	w.progress(aOnlyB, 2)
	healed := time.Now()
	l.do(l.HealBetween("zone-a", "zone-b"))
	w.answered(aOnlyB)
	l.equal(threeZones...)
	w.stop()
	w.worked(time.Time{}, aLocal, bLocal, cLocal, cOnlyB)
	w.worked(cut, aBoth)
	w.refused(cut.Add(grace), healed.Add(-patience/2), connectLimit, aOnlyB)
	l.resetIsSaid("a-1")
}

// resetIsSaid: the status of a node says that, and why, a connection to another zone failed.
func (l *zonesLab) resetIsSaid(node string) {
	l.t.Helper()
	if out := l.statusOf(node); !strings.Contains(out, "a connection to another zone was reset") {
		l.t.Errorf("the status of %s does not say why:\n%s", node, out)
	}
}

func (l *zonesLab) ingressesDown() {
	t := l.t
	w := l.load(aLocal, bLocal, cLocal, aOnlyB, cOnlyB, aBoth)
	w.progress(aOnlyB, 20)
	down := time.Now()
	l.do(l.Kill(t.Context(), "gateway-b"))
	w.progress(aBoth, 300)
	w.progress(aOnlyB, 20)
	healed := time.Now()
	l.do(l.Heal(t.Context(), "gateway-b"))
	w.answered(aOnlyB)
	w.answered(cOnlyB)
	l.equal(threeZones...)
	w.stop()
	w.worked(time.Time{}, aLocal, bLocal, cLocal)
	w.worked(down, aBoth)
	w.refused(down.Add(grace), healed, time.Second, aOnlyB, cOnlyB)
	l.resetIsSaid("a-1")
}

func (l *zonesLab) gatewayAlone() {
	t := l.t
	w := l.load(aLocal, bLocal, cLocal, aOnlyB, cOnlyB, aBoth)
	l.do(l.CutBetween("gateway-b", "control-b"))
	w.progress(aOnlyB, 100)
	// It cannot serve what it does not know.
	l.offer("unknown", "zone-b")
	unknown := flow{"zone-a", "unknown"}
	vip := l.vip(unknown)
	ns := inNamespace(t, "client-a")
	defer ns.Close()
	testkit.Eventually(t, "a service that the gateway cannot know is refused", func() bool {
		c, err := dial(t.Context(), ns, vip)
		if err == nil {
			_, err = exchange(c)
			_ = c.Close()
		}
		return err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
	})
	w.stop()
	w.worked(time.Time{}, aLocal, bLocal, cLocal, aOnlyB, cOnlyB, aBoth)

	// It serves on after a restart, although its control plane does not answer.
	l.do(l.Kill(t.Context(), "gateway-b"))
	l.do(l.Heal(t.Context(), "gateway-b"))
	l.reached(aOnlyB)
	w = l.load(aOnlyB, cOnlyB, aBoth)
	w.progress(aOnlyB, 100)
	w.stop()
	w.worked(time.Time{}, aOnlyB, cOnlyB, aBoth)
	l.do(l.HealBetween("control-b", "gateway-b"))
	l.reached(unknown)
}

func (l *zonesLab) zoneDark() {
	t := l.t
	w := l.load(aLocal, cLocal, aOnlyB, cOnlyB, aBoth)
	w.progress(aOnlyB, 20)
	dark := time.Now()
	l.do(l.PowerOff(t.Context(), "zone-b"))
	w.progress(aBoth, 300)
	w.progress(aOnlyB, 2)
	l.joinsAndLeaves("zone-a", "joined-a")
	testkit.Eventually(t, "global says that the zone is offline", func() bool { return strings.Contains(l.run("", "zone", "list"), "offline") })
	healed := time.Now()
	l.do(l.Heal(t.Context(), "zone-b"))
	w.answered(aOnlyB)
	w.answered(cOnlyB)
	l.equal(threeZones...)
	w.stop()
	w.worked(time.Time{}, aLocal, cLocal)
	w.worked(dark, aBoth)
	w.refused(dark.Add(grace), healed.Add(-patience/2), connectLimit, aOnlyB, cOnlyB)
}
