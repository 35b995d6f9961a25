package endpointslice

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func webService(edits ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "svc-1", Labels: map[string]string{"team": "blue"}},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.96.0.10", ClusterIPs: []string{"10.96.0.10"},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Selector:   map[string]string{"app": "web"},
			Ports:      []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(8080)}},
		},
	}
	for _, edit := range edits {
		edit(s)
	}
	return s
}

func node(name, zone string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelTopologyZone: zone}}}
}

// webPod is a ready pod on node n1.
func webPod(name, ip string, edits ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("pod-" + name), Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{
			Name: "c", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: corev1.ProtocolTCP}},
		}}},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}},
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		},
	}
	for _, edit := range edits {
		edit(p)
	}
	return p
}

func unready(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }
func terminating(p *corev1.Pod) {
	p.DeletionTimestamp = &metav1.Time{Time: p.CreationTimestamp.Time}
}

// vm is a ready Dataplane without a node.
func vm(name, ip string, edits ...func(*meshv1alpha1.Dataplane)) *meshv1alpha1.Dataplane {
	d := &meshv1alpha1.Dataplane{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("vm-" + name), Labels: map[string]string{"app": "web"}},
		Spec: meshv1alpha1.DataplaneSpec{
			Addresses: []string{ip},
			Ports:     []meshv1alpha1.DataplanePort{{Name: "http", Port: 9090}},
		},
		Status: meshv1alpha1.DataplaneStatus{Conditions: []metav1.Condition{{Type: meshv1alpha1.DataplaneReady, Status: metav1.ConditionTrue}}},
	}
	for _, edit := range edits {
		edit(d)
	}
	return d
}

// world is a set of slices that plans are carried out on, as the API would.
type world struct {
	in     Input
	nodes  map[string]*corev1.Node
	named  int // slices made so far
	pods   int // pods made so far
	slices map[string]*discoveryv1.EndpointSlice
}

func newWorld(service *corev1.Service, nodes ...*corev1.Node) *world {
	w := &world{nodes: map[string]*corev1.Node{}, slices: map[string]*discoveryv1.EndpointSlice{}}
	w.in.Service = service
	if len(nodes) == 0 {
		nodes = []*corev1.Node{node("n1", "z1"), node("n2", "z2")}
	}
	for _, n := range nodes {
		w.nodes[n.Name] = n
	}
	w.in.Node = func(name string) *corev1.Node { return w.nodes[name] }
	return w
}

func (w *world) plan() Plan {
	w.in.Slices = nil
	for _, s := range w.slices {
		w.in.Slices = append(w.in.Slices, s)
	}
	return Reconcile(w.in)
}

// sync plans and carries out, and returns the plan.
func (w *world) sync() Plan {
	p := w.plan()
	for _, s := range p.Create {
		made := s.DeepCopy()
		w.named++
		made.Name = fmt.Sprintf("%s%03d", s.GenerateName, w.named)
		made.UID = types.UID(made.Name)
		w.slices[made.Name] = made
	}
	for _, s := range p.Update {
		w.slices[s.Name] = s.DeepCopy()
	}
	for _, s := range p.Delete {
		delete(w.slices, s.Name)
	}
	return p
}

func (w *world) list() []*discoveryv1.EndpointSlice {
	var out []*discoveryv1.EndpointSlice
	for _, s := range w.slices {
		out = append(out, s)
	}
	return byName(out)
}

// sizes of the slices, descending.
func (w *world) sizes() []int {
	var out []int
	for _, s := range w.slices {
		out = append(out, len(s.Endpoints))
	}
	slices.Sort(out)
	slices.Reverse(out)
	return out
}

// show prints slices without names, one line per endpoint, sorted.
func show(all []*discoveryv1.EndpointSlice) []string {
	var out []string
	for _, s := range all {
		head := string(s.AddressType)
		for _, p := range s.Ports {
			head += fmt.Sprintf(" %s:%d/%s", *p.Name, *p.Port, *p.Protocol)
		}
		if len(s.Endpoints) == 0 {
			out = append(out, head+" empty")
		}
		for _, e := range s.Endpoints {
			out = append(out, head+" "+showEndpoint(&e))
		}
	}
	slices.Sort(out)
	return out
}

// showEndpoint prints an endpoint: address, reference, conditions (rst: ready,
// serving, terminating), then what else is set.
func showEndpoint(e *discoveryv1.Endpoint) string {
	flags := ""
	for flag, set := range map[string]*bool{"r": e.Conditions.Ready, "s": e.Conditions.Serving, "t": e.Conditions.Terminating} {
		if ptr.Deref(set, false) {
			flags += flag
		}
	}
	letters := strings.Split(flags, "")
	slices.Sort(letters)
	line := fmt.Sprintf("%s %s/%s [%s]", strings.Join(e.Addresses, ","), e.TargetRef.Kind, e.TargetRef.Name, strings.Join(letters, ""))
	if e.NodeName != nil {
		line += " node=" + *e.NodeName
	}
	if e.Zone != nil {
		line += " zone=" + *e.Zone
	}
	if e.Hostname != nil {
		line += " host=" + *e.Hostname
	}
	if e.Hints != nil {
		line += fmt.Sprintf(" hints=%v%v", e.Hints.ForZones, e.Hints.ForNodes)
	}
	return line
}
