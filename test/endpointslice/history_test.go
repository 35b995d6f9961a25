package endpointslice

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// history is a random life of a Service, its pods and their nodes.
type history struct {
	*rand.Rand
	service *corev1.Service
	pods    map[string]*corev1.Pod
	nodes   map[string]*corev1.Node
	max     int
	made    int
	step    int
}

var (
	nodeNames = []string{"n1", "n2", "n3", "n4"}
	zones     = []string{"", "z1", "z2", "z3"}
	ipv4      = []corev1.IPFamily{corev1.IPv4Protocol}
	ipv6      = []corev1.IPFamily{corev1.IPv6Protocol}
	dual      = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
)

func newHistory(seed uint64) *history {
	h := &history{
		Rand: rand.New(rand.NewPCG(seed, 1)),
		pods: map[string]*corev1.Pod{}, nodes: map[string]*corev1.Node{},
	}
	h.max = 1 + h.IntN(6)
	h.service = &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "svc-1", Labels: map[string]string{"team": "blue"}},
		Spec: corev1.ServiceSpec{
			ClusterIP: "10.96.0.10", IPFamilies: pick(h, ipv4, ipv6, dual), Selector: map[string]string{"app": "web"},
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(8080)}},
		},
	}
	if h.chance(4) {
		h.service.Spec.ClusterIP = corev1.ClusterIPNone
	}
	for _, name := range nodeNames {
		h.setNode(name)
	}
	return h
}

// chance is true once in n.
func (h *history) chance(n int) bool { return h.IntN(n) == 0 }

func pick[T any](h *history, from ...T) T { return from[h.IntN(len(from))] }

// next applies some random changes and returns the resulting situation.
func (h *history) next() *situation {
	h.step++
	if h.chance(3) {
		h.editService()
	}
	if h.chance(6) {
		if name := pick(h, nodeNames...); h.chance(2) {
			delete(h.nodes, name)
		} else {
			h.setNode(name)
		}
	}
	for range h.IntN(8) {
		switch names := slices.Sorted(maps.Keys(h.pods)); {
		case len(names) == 0 || h.chance(2):
			h.addPod()
		case h.chance(3):
			delete(h.pods, pick(h, names...))
		default:
			h.editPod(pick(h, names...))
		}
	}
	if h.chance(10) {
		for range 3 * h.max {
			h.addPod()
		}
	}
	if h.chance(12) {
		clear(h.pods)
	}
	s := &situation{
		service: h.service.DeepCopy(), nodes: maps.Clone(h.nodes), max: h.max,
		trigger: pick(h, time.Time{}, time.Unix(int64(h.step), 0)),
	}
	for _, name := range slices.Sorted(maps.Keys(h.pods)) {
		s.pods = append(s.pods, h.pods[name])
	}
	h.Shuffle(len(s.pods), func(i, j int) { s.pods[i], s.pods[j] = s.pods[j], s.pods[i] })
	return s
}

func (h *history) setNode(name string) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if zone := pick(h, zones...); zone != "" {
		node.Labels = map[string]string{corev1.LabelTopologyZone: zone}
	}
	h.nodes[name] = node
}

func (h *history) editService() {
	s := h.service.DeepCopy()
	h.service = s
	switch h.IntN(8) {
	case 0:
		s.Labels = map[string]string{"v": pick(h, "1", "2"), "kubernetes.io/service-name": "ignored"}
	case 1:
		s.Labels = nil
	case 2:
		s.Spec.IPFamilies = pick(h, ipv4, ipv6, dual)
	case 3:
		s.Spec.PublishNotReadyAddresses = !s.Spec.PublishNotReadyAddresses
	case 4:
		s.Spec.Ports = []corev1.ServicePort{
			{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: pick(h, intstr.FromInt32(8080), intstr.FromString("http"))}}
	case 5:
		s.Spec.Ports = append(slices.Clone(s.Spec.Ports), corev1.ServicePort{
			Name: fmt.Sprintf("p%d", h.step), Port: 90, Protocol: pick(h, corev1.ProtocolTCP, corev1.ProtocolUDP),
			TargetPort: pick(h, intstr.FromInt32(9090), intstr.FromString("http")), AppProtocol: pick(h, nil, ptr.To("h2")),
		})
	case 6:
		s.Spec.TrafficDistribution = pick(h, nil,
			ptr.To(corev1.ServiceTrafficDistributionPreferClose), ptr.To(corev1.ServiceTrafficDistributionPreferSameZone),
			ptr.To(corev1.ServiceTrafficDistributionPreferSameNode))
	case 7:
		if s.Spec.ClusterIP == corev1.ClusterIPNone {
			s.Spec.Ports = nil
		}
	}
}

func (h *history) addPod() {
	h.made++
	name := fmt.Sprintf("p%04d", h.made)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("pod-" + name), Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{NodeName: pick(h, nodeNames...)},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
	if !h.chance(8) {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: fmt.Sprintf("10.0.%d.%d", h.made/250, h.made%250+1)})
	}
	if h.chance(2) {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: pick(h, "fd00::%x", "FD00:0:0::%x")})
		last := &p.Status.PodIPs[len(p.Status.PodIPs)-1]
		last.IP = fmt.Sprintf(last.IP, h.made)
	}
	if len(p.Status.PodIPs) > 0 {
		p.Status.PodIP = p.Status.PodIPs[0].IP
	}
	h.pods[name] = p
	h.readiness(p)
	if !h.chance(4) {
		h.containers(p)
	}
	if h.chance(4) {
		p.Spec.Hostname, p.Spec.Subdomain = name, pick(h, "web", "other")
	}
}

// containers serve the named port, one of them maybe as a sidecar.
func (h *history) containers(p *corev1.Pod) {
	c := corev1.Container{
		Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: pick[int32](h, 8080, 8081), Protocol: corev1.ProtocolTCP}},
	}
	p.Spec.Containers, p.Spec.InitContainers = nil, nil
	switch h.IntN(5) {
	case 0:
		c.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
		p.Spec.InitContainers = []corev1.Container{c}
	case 1:
		p.Spec.InitContainers = []corev1.Container{c}
	default:
		p.Spec.Containers = []corev1.Container{c}
	}
}

func (h *history) readiness(p *corev1.Pod) {
	p.Status.Conditions = pick(h,
		nil,
		[]corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}},
		[]corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		[]corev1.PodCondition{{Type: corev1.PodScheduled}, {Type: corev1.PodReady, Status: corev1.ConditionTrue}},
	)
}

func (h *history) editPod(name string) {
	p := h.pods[name].DeepCopy()
	h.pods[name] = p
	switch h.IntN(6) {
	case 0:
		p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	case 1:
		p.Status.Phase = pick(h, corev1.PodRunning, corev1.PodFailed, corev1.PodSucceeded)
	case 2:
		h.containers(p)
	case 3:
		p.UID = types.UID(fmt.Sprintf("%s-%d", p.Name, h.step)) // a StatefulSet's next
	default:
		h.readiness(p)
	}
}
