package kube_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	plannerv1alpha1 "github.com/proxima-mesh/proxima/api/planner/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/kubernetes/manifests"
	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/test/kube/cluster"
)

// The cluster of TestShares: where connections start, and where endpoints are.
var (
	// demanded are the connections of ten that start in each zone.
	demanded = map[string]int{"zone-a": 5, "zone-b": 3, "zone-c": 2}
	// endpoints of the Service by zone.
	endpointsIn = map[string]int{"zone-a": 1, "zone-b": 2, "zone-c": 3}
)

const (
	sharedService = `
apiVersion: v1
kind: Service
metadata: {name: web, annotations: {service.kubernetes.io/topology-mode: proxima.dev/Adaptive}}
spec: {clusterIP: 10.96.1.1, selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]}
`
	sharedAddress = "10.96.1.1:80"
	// directAfter of the agents, shorter than the chart's.
	directAfter = 5 * time.Second
	// counted connections of each source zone where shares are compared with the plan, and in
	// the phases of a failure.
	counted, countedInFailure = 20_000, 1000
)

// sharesRig is a cluster of three zones with two nodes each: all of them have our agent, two of
// them a replica of the control plane, in a pod.
type sharesRig struct {
	*rig
	agents map[string]*agentArgs
	run    map[string]*cluster.Program
	// planes are the replicas that run, by the name of their pod, and dirs their data.
	planes map[string]*corev1.Pod
	dirs   map[string]string
	// server is the address of the control plane's Service.
	server  string
	traffic *traffic
}

func newSharesRig(t *testing.T) *sharesRig {
	t.Helper()
	b := newBench(t)
	client, err := kubernetes.NewForConfig(b.Admin(t))
	if err != nil {
		t.Fatal(err)
	}
	r := &sharesRig{
		rig:    &rig{bench: b, client: client, nodes: map[string]*cluster.Node{}, pods: map[string]*corev1.Pod{}},
		agents: map[string]*agentArgs{}, run: map[string]*cluster.Program{},
		planes: map[string]*corev1.Pod{}, dirs: map[string]string{},
	}
	b.kubectl(b.manifests("kube-proxy-replacement", "--set", "controlPlane.topologyMode=Disabled", "--set", "agent.mode=nftables",
		"--set", "agent.directAfter="+directAfter.String(), "--set", "agent.workloadCIDRs=["+cluster.PodCIDR+"]"), "apply", "--server-side", "-f", "-")
	for _, namespace := range []string{"default", manifests.Namespace} {
		b.until("the account of pods is there", func() bool {
			_, err := client.CoreV1().ServiceAccounts(namespace).Get(t.Context(), "default", metav1.GetOptions{})
			return err == nil
		})
	}
	for _, zone := range slices.Sorted(maps.Keys(demanded)) {
		for i := range 2 {
			node := zone[len("zone-"):] + fmt.Sprint(i+1)
			r.nodes[node] = b.AddNode(t, node, zone)
			r.pod("client-"+node, "client", node)
		}
		for i := range endpointsIn[zone] {
			r.pod(fmt.Sprintf("web-%s-%d", zone, i), "web", zone[len("zone-"):]+fmt.Sprint(i%2+1))
		}
	}
	for name := range r.pods {
		b.until("pod "+name+" is ready", func() bool { return r.ready(name) })
	}
	b.kubectl(sharedService, "apply", "-f", "-")
	r.server = b.kubectl("", "--namespace", manifests.Namespace, "get", "service", "proxima", "-o", "jsonpath={.spec.clusterIP}")
	return r
}

// plane starts a replica of the control plane, in a pod on a node, and waits until it is ready.
func (r *sharesRig) plane(name, node string) {
	r.t.Helper()
	r.dirs[name] = r.t.TempDir()
	args := append(r.podArgs(r.dirs[name], "0.0.0.0:6443"), "--tls-san="+r.server)
	for i, a := range args {
		if strings.HasPrefix(a, "--advertise-address=") {
			args[i] = "--advertise-address=$(POD_IP)"
		}
	}
	pod, err := r.client.CoreV1().Pods(manifests.Namespace).Create(r.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			"app.kubernetes.io/name": "proxima", "app.kubernetes.io/component": "control-plane",
		}},
		Spec: corev1.PodSpec{NodeName: node, ServiceAccountName: "proxima", Containers: []corev1.Container{{
			Name: "control-plane", Image: "none", Command: append([]string{testkit.Binary(r.t)}, args...),
			Env:   []corev1.EnvVar{{Name: "PROXIMA_KUBECONFIG", Value: r.kubeconfigOf("proxima")}},
			Ports: []corev1.ContainerPort{{Name: "https", ContainerPort: 6443}, {Name: "grpc", ContainerPort: 6444}},
		}}},
	}, metav1.CreateOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	r.planes[name] = pod
	r.until("replica "+name+" is ready", func() bool {
		p, err := r.client.CoreV1().Pods(manifests.Namespace).Get(r.t.Context(), name, metav1.GetOptions{})
		return err == nil && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
	})
}

// killPlane as a crash does.
func (r *sharesRig) killPlane(name string) {
	r.t.Helper()
	pod := r.planes[name]
	r.nodes[pod.Spec.NodeName].KillPod(r.t, pod.UID)
	delete(r.planes, name)
	delete(r.dirs, name)
}

// leader is the name of the pod that holds the Lease.
func (r *sharesRig) leader() string {
	return r.kubectl("", "--namespace", manifests.Namespace, "get", "lease", "proxima-control-plane", "-o", "jsonpath={.spec.holderIdentity}")
}

// follow waits until all agents follow the view of a control plane.
func (r *sharesRig) follow(what string) {
	r.t.Helper()
	dir := slices.Collect(maps.Values(r.dirs))[0]
	for _, node := range slices.Sorted(maps.Keys(r.agents)) {
		r.until(what+": the agent of "+node+" follows the control plane", func() bool {
			a, answers := r.agentStatus(r.agents[node].state, dir)
			return answers && a.followsView()
		})
	}
}

// planGroup is the plan of the Service, of its one group of ports.
func (r *sharesRig) planGroup() (version int64, g *plannerv1alpha1.PortGroup) {
	r.t.Helper()
	out, err := r.bench.run("", testkit.Kubectl(r.t), "get", "trafficplan", "web", "-o", "json")
	if err != nil {
		return 0, nil // there is none yet
	}
	var plan plannerv1alpha1.TrafficPlan
	if err := json.Unmarshal([]byte(out), &plan); err != nil {
		r.t.Fatal(err)
	}
	if len(plan.Spec.Groups) != 1 {
		return 0, nil
	}
	return plan.Spec.Version, &plan.Spec.Groups[0]
}

// sharesOf a plan, by source zone and zone of the endpoint.
func sharesOf(g *plannerv1alpha1.PortGroup) map[string]map[string]float64 {
	out := map[string]map[string]float64{}
	for _, z := range g.Zones {
		out[z.Name] = map[string]float64{}
		for _, to := range z.To {
			out[z.Name][to.Zone] = to.Share
		}
	}
	return out
}

// demandWithin is how far the demand of a plan may be from that of the traffic: a plan stays while it is at most 0.3 points worse
// than the best one (planner.Republisher), though the estimate that it was made with was a rough one, as on a busy machine.
const demandWithin = 0.1

// measured waits for a plan of the demand that there is, and returns its shares.
func (r *sharesRig) measured() (version int64, shares map[string]map[string]float64) {
	r.t.Helper()
	r.until("the plan is made for the measured demand", func() bool {
		v, g := r.planGroup()
		if g == nil || g.DemandSource != plannerv1alpha1.DemandMeasured || len(g.Zones) != len(demanded) {
			return false
		}
		for _, z := range g.Zones {
			if math.Abs(z.Demand-float64(demanded[z.Name])/10) > demandWithin {
				return false
			}
		}
		version, shares = v, sharesOf(g)
		return true
	})
	return version, shares
}

// during begins a phase of the traffic, in which f runs, and waits until each zone that makes
// connections has made so many.
func (r *sharesRig) during(name string, least int, f func()) *phase {
	r.t.Helper()
	p := r.traffic.begin(name)
	f()
	r.until(name, func() bool { return r.traffic.least(p, len(demanded)) >= least })
	r.t.Log(name)
	return p
}

// planned is a phase in which the plan does not change; it must have the shares of the plan.
func (r *sharesRig) planned(name string, least int, f func()) {
	r.t.Helper()
	for range 3 {
		version, shares := r.measured()
		p := r.during(name, least, f)
		if after, _ := r.planGroup(); after == version {
			r.traffic.wantShares(r.t, p, shares)
			return
		}
		r.t.Logf("%s: another plan was published meanwhile", name)
	}
	r.t.Errorf("%s: the plan does not stand", name)
}

// TestShares: six nodes divide their connections as the plan says, which no hint carries. It
// stays so when replicas of the control plane, the API server and an agent are killed.
func TestShares(t *testing.T) {
	r := newSharesRig(t)
	r.plane("plane-1", "a2")
	r.plane("plane-2", "b2")
	for node := range r.nodes {
		r.agents[node] = r.agentArgs(node, r.server+":6443")
		r.run[node] = r.agents[node].start(r.rig)
	}
	r.follow("at first")
	r.traffic = newTraffic(t, sharedAddress, r.sources(), demanded, r.zonesOfPods())
	defer r.traffic.wantNoFailure(t)
	r.planned("plan", counted, func() {})
	r.planned("hints by hand", countedInFailure, r.hintByHand)
	r.killLeader()
	for _, name := range slices.Collect(maps.Keys(r.planes)) {
		r.during("no control plane", countedInFailure, func() { r.killPlane(name) })
	}
	_, g := r.planGroup()
	shares := sharesOf(g)
	r.during("no API server either", countedInFailure, func() { r.KillAPI(t) })
	r.during("an agent is killed, and starts from disk", countedInFailure, func() {
		r.run["a1"].Kill(t)
		r.run["a1"] = r.agents["a1"].start(r.rig)
		r.awaitHealthy("a1")
	})
	r.rebooted("a1", shares)
	r.comeBack()
}

// sources are the pods that make connections.
func (r *sharesRig) sources() []source {
	var out []source
	for _, zone := range slices.Sorted(maps.Keys(demanded)) {
		for i := range 2 {
			node := zone[len("zone-"):] + fmt.Sprint(i+1)
			out = append(out, source{node: node, zone: zone, ns: r.nodes[node].PodNamespace(r.pods["client-"+node].UID)})
		}
	}
	return out
}

// zonesOfPods that answer, with one that is made later.
func (r *sharesRig) zonesOfPods() map[string]string {
	out := map[string]string{"web-late": "zone-a"}
	for name := range r.pods {
		if rest, ok := strings.CutPrefix(name, "web-"); ok {
			out[name] = rest[:strings.LastIndex(rest, "-")]
		}
	}
	return out
}

// hintByHand gives all endpoints a hint to zone-a, and waits until Kubernetes' controller has
// removed them.
func (r *sharesRig) hintByHand() {
	r.t.Helper()
	out := r.kubectl("", "get", "endpointslices", "--selector=kubernetes.io/service-name=web", "-o", "json")
	var list struct {
		Items []struct {
			Metadata  metav1.ObjectMeta
			Endpoints []json.RawMessage
		}
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list.Items) == 0 {
		r.t.Fatalf("%v: %s", err, out)
	}
	for _, s := range list.Items {
		var patch []string
		for i := range s.Endpoints {
			patch = append(patch, fmt.Sprintf(`{"op":"add","path":"/endpoints/%d/hints","value":{"forZones":[{"name":"zone-a"}]}}`, i))
		}
		r.kubectl("", "patch", "endpointslice", s.Metadata.Name, "--type=json", "-p", "["+strings.Join(patch, ",")+"]")
	}
	r.until("Kubernetes' controller has removed the hints", func() bool {
		return !strings.Contains(r.kubectl("", "get", "endpointslices", "--selector=kubernetes.io/service-name=web", "-o", "json"), "forZones")
	})
}

// killLeader kills the replica that leads: the other one takes over, and plans for an endpoint
// that is new.
func (r *sharesRig) killLeader() {
	r.t.Helper()
	was := r.leader()
	r.during("the leader is killed", countedInFailure, func() {
		for name, pod := range r.planes {
			if p, err := r.client.CoreV1().Pods(manifests.Namespace).Get(r.t.Context(), name, metav1.GetOptions{}); err != nil {
				r.t.Fatal(err)
			} else if strings.Contains(was, p.Status.PodIP) || strings.Contains(was, pod.Name) {
				r.killPlane(name)
			}
		}
		if len(r.planes) != 1 {
			r.t.Fatalf("%q leads, and is none of %v", was, slices.Collect(maps.Keys(r.planes)))
		}
		r.pod("web-late", "web", "a2")
		r.until("the next leader has planned for a new endpoint", func() bool {
			_, g := r.planGroup()
			return g != nil && g.Zones[0].Name == "zone-a" && g.Zones[0].Endpoints == int64(endpointsIn["zone-a"]+1)
		})
		if is := r.leader(); is == was {
			r.t.Errorf("%q leads as before", is)
		}
	})
	r.planned("the next leader's plan", countedInFailure, func() {})
}

// awaitHealthy waits until the agent of a node says that it serves.
func (r *sharesRig) awaitHealthy(node string) {
	r.t.Helper()
	client := &http.Client{Transport: &http.Transport{DialContext: r.nodes[node].NS.DialContext, DisableKeepAlives: true}}
	r.until("the agent of "+node+" serves", func() bool {
		answer, err := client.Get("http://127.0.0.1:10256/healthz")
		if err != nil {
			return false
		}
		defer answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	})
}

// rebooted: with everything dead a node loses its rules, as when it is started again. Its agent
// serves from the state on disk, with the plan that was last.
func (r *sharesRig) rebooted(node string, shares map[string]map[string]float64) {
	r.t.Helper()
	r.traffic.silence(node, true)
	r.during("a node starts again", countedInFailure, func() {
		r.run[node].Kill(r.t)
		r.nodes[node].Run(r.t, "flush", "/usr/sbin/nft", "flush", "ruleset").Wait(r.t)
		r.run[node] = r.agents[node].start(r.rig)
		r.awaitHealthy(node)
	})
	r.traffic.silence(node, false)
	p := r.during("all nodes, and no control plane", 3*countedInFailure, func() {})
	r.traffic.wantShares(r.t, p, shares)
}

// comeBack starts the API server, and two replicas at other addresses: agents find them by the
// cluster's API, and follow their view again.
func (r *sharesRig) comeBack() {
	r.t.Helper()
	r.during("the API server is back", countedInFailure, func() { r.StartAPI(r.t) })
	r.during("the control plane is back", countedInFailure, func() {
		r.plane("plane-3", "a1")
		r.plane("plane-4", "c1")
		r.follow("in the end")
	})
	r.planned("in the end", 3*countedInFailure, func() {})
}
