package endpointslice

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
)

// workload is what Pods and Dataplanes have in common.
type workload struct {
	ref                  corev1.ObjectReference
	addresses            []string
	node, zone           string
	hostname             string
	serving, terminating bool
	// readySince is when serving last changed; zero: unknown.
	readySince time.Time
	// port resolves a named target port.
	port func(name string, protocol corev1.Protocol) (int32, bool)
}

func (w *workload) name() string { return w.ref.Kind + " " + w.ref.Namespace + "/" + w.ref.Name }

// workloads are those that get an endpoint, and those that cannot for want of
// their Node.
func (in *Input) workloads() (out []workload, skipped []SkippedWorkload) {
	out = make([]workload, 0, len(in.Pods)+len(in.Dataplanes))
	add := func(w workload, nodeRequired bool) {
		if w.node != "" || nodeRequired {
			node := in.Node(w.node)
			switch {
			case node == nil && !in.Service.Spec.PublishNotReadyAddresses:
				skipped = append(skipped, SkippedWorkload{Workload: w.name(), Node: w.node})
				return
			case node != nil && w.zone == "":
				w.zone = node.Labels[corev1.LabelTopologyZone]
			}
		}
		out = append(out, w)
	}
	for _, pod := range in.Pods {
		if w, ok := podWorkload(pod, in.Service.Name); ok {
			add(w, true)
		}
	}
	for _, dataplane := range in.Dataplanes {
		add(dataplaneWorkload(dataplane), false)
	}
	return out, skipped
}

func podWorkload(pod *corev1.Pod, service string) (workload, bool) {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return workload{}, false
	}
	addresses := podAddresses(pod)
	if len(addresses) == 0 {
		return workload{}, false
	}
	w := workload{
		ref:         corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		addresses:   addresses,
		node:        pod.Spec.NodeName,
		terminating: pod.DeletionTimestamp != nil,
		port: func(name string, protocol corev1.Protocol) (int32, bool) {
			return containerPort(pod, name, protocol)
		},
	}
	w.serving, w.readySince = podReady(pod)
	if pod.Spec.Hostname != "" && pod.Spec.Subdomain == service {
		w.hostname = pod.Spec.Hostname
	}
	return w, true
}

func podAddresses(pod *corev1.Pod) []string {
	var addresses []string
	for _, ip := range pod.Status.PodIPs {
		addresses = append(addresses, ip.IP)
	}
	// Whoever writes a status by hand may know the older field alone.
	if len(addresses) == 0 && pod.Status.PodIP != "" {
		addresses = []string{pod.Status.PodIP}
	}
	return addresses
}

func podReady(pod *corev1.Pod) (bool, time.Time) {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue, c.LastTransitionTime.Time
		}
	}
	return false, time.Time{}
}

// containerPort looks in containers, and in init containers that keep running
// (sidecars, KEP-753).
func containerPort(pod *corev1.Pod, name string, protocol corev1.Protocol) (int32, bool) {
	find := func(c *corev1.Container) (int32, bool) {
		for _, p := range c.Ports {
			if p.Name == name && p.Protocol == protocol {
				return p.ContainerPort, true
			}
		}
		return 0, false
	}
	for i := range pod.Spec.Containers {
		if port, ok := find(&pod.Spec.Containers[i]); ok {
			return port, true
		}
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways {
			continue
		}
		if port, ok := find(c); ok {
			return port, true
		}
	}
	return 0, false
}

func dataplaneWorkload(d *meshv1alpha1.Dataplane) workload {
	w := workload{
		ref: corev1.ObjectReference{
			APIVersion: meshv1alpha1.SchemeGroupVersion.String(), Kind: "Dataplane",
			Namespace: d.Namespace, Name: d.Name, UID: d.UID,
		},
		addresses:   d.Spec.Addresses,
		node:        d.Spec.NodeName,
		zone:        d.Labels[corev1.LabelTopologyZone],
		terminating: d.DeletionTimestamp != nil,
		port: func(name string, protocol corev1.Protocol) (int32, bool) {
			for _, p := range d.Spec.Ports {
				if p.Name == name && protocolOf(p.Protocol) == protocol {
					return p.Port, true
				}
			}
			return 0, false
		},
	}
	if ready := meta.FindStatusCondition(d.Status.Conditions, meshv1alpha1.DataplaneReady); ready != nil {
		w.serving, w.readySince = ready.Status == metav1.ConditionTrue, ready.LastTransitionTime.Time
	}
	return w
}

func protocolOf(p string) corev1.Protocol {
	if p == "" {
		return corev1.ProtocolTCP
	}
	return corev1.Protocol(p)
}

// group is the endpoints that share their resolved ports.
type group struct {
	ports []discoveryv1.EndpointPort
	want  []discoveryv1.Endpoint // in order of workloads
	index map[endpointID]int     // into want
}

// groups sorts the workloads that have an address of the family by their ports.
func (f *familyReconciler) groups(workloads []workload) map[string]*group {
	groups := make(map[string]*group)
	for i := range workloads {
		w := &workloads[i]
		address, ok := w.address(f.family)
		if !ok {
			continue
		}
		ports := resolvePorts(f.Service, w)
		key := portsKey(ports)
		g := groups[key]
		if g == nil {
			g = &group{ports: ports, index: make(map[endpointID]int)}
			groups[key] = g
		}
		e := w.endpoint(f.Service, address)
		id := idOf(&e)
		if _, twice := g.index[id]; twice {
			continue
		}
		g.index[id] = len(g.want)
		g.want = append(g.want, e)
	}
	return groups
}

func (w *workload) address(family discoveryv1.AddressType) (string, bool) {
	for _, address := range w.addresses {
		if f, ok := familyOf(address); ok && f == family {
			return address, true
		}
	}
	return "", false
}

func (w *workload) endpoint(service *corev1.Service, address string) discoveryv1.Endpoint {
	ready := service.Spec.PublishNotReadyAddresses || w.serving && !w.terminating
	e := discoveryv1.Endpoint{
		Addresses: []string{address},
		Conditions: discoveryv1.EndpointConditions{
			Ready: ptr.To(ready), Serving: ptr.To(w.serving), Terminating: ptr.To(w.terminating),
		},
		TargetRef: &w.ref,
	}
	if w.node != "" {
		e.NodeName = &w.node
	}
	if w.zone != "" {
		e.Zone = &w.zone
	}
	if w.hostname != "" {
		e.Hostname = &w.hostname
	}
	return e
}

// resolvePorts finds the Service's target ports at a workload. One that it does
// not have is left out.
func resolvePorts(service *corev1.Service, w *workload) []discoveryv1.EndpointPort {
	ports := make([]discoveryv1.EndpointPort, 0, len(service.Spec.Ports))
	for i := range service.Spec.Ports {
		p := &service.Spec.Ports[i]
		protocol := protocolOf(string(p.Protocol))
		number := p.TargetPort.IntVal
		switch {
		case p.TargetPort.Type == intstr.String:
			named, ok := w.port(p.TargetPort.StrVal, protocol)
			if !ok {
				continue
			}
			number = named
		case number == 0:
			number = p.Port
		}
		ports = append(ports, discoveryv1.EndpointPort{
			Name: &p.Name, Port: ptr.To(number), Protocol: ptr.To(protocol), AppProtocol: p.AppProtocol,
		})
	}
	return ports
}

// portsKey is equal for the same set of ports in any order.
func portsKey(ports []discoveryv1.EndpointPort) string {
	keys := make([]string, len(ports))
	for i, p := range ports {
		number := "any"
		if p.Port != nil {
			number = fmt.Sprint(*p.Port)
		}
		keys[i] = strings.Join([]string{
			ptr.Deref(p.Name, ""), number, string(ptr.Deref(p.Protocol, corev1.ProtocolTCP)), ptr.Deref(p.AppProtocol, ""),
		}, "\x00")
	}
	slices.Sort(keys)
	return strings.Join(keys, "\x01")
}

// endpointID is what makes an endpoint the same one in two slices.
type endpointID struct{ addresses, hostname, namespace, name string }

func idOf(e *discoveryv1.Endpoint) endpointID {
	id := endpointID{addresses: strings.Join(e.Addresses, ","), hostname: ptr.Deref(e.Hostname, "")}
	if e.TargetRef != nil {
		id.namespace, id.name = e.TargetRef.Namespace, e.TargetRef.Name
	}
	return id
}

// sameEndpoint compares what is not part of the identity. Hints are the
// business of the hints step.
func sameEndpoint(a, b *discoveryv1.Endpoint) bool {
	return ptr.Equal(a.NodeName, b.NodeName) &&
		ptr.Equal(a.Zone, b.Zone) &&
		ptr.Equal(a.Conditions.Ready, b.Conditions.Ready) &&
		ptr.Equal(a.Conditions.Serving, b.Conditions.Serving) &&
		ptr.Equal(a.Conditions.Terminating, b.Conditions.Terminating) &&
		ptr.Equal(a.TargetRef, b.TargetRef)
}
