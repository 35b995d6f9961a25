// Package servicetag reads service tags: the labels of workloads, or of single ports, that
// name the service they are part of without a Service that selects them.
//
// It owns what follows from tags alone: the hostname of the service, the ports that count,
// and the name, namespace and ports of the Service that the control plane keeps for it. Enter
// at OfDataplane and OfPod. The package is pure: controller/tagged writes the Services, and
// controller/backend finds their workloads.
package servicetag

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/dns/meshname"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// Of labels, or of the tags of a port: the service tag among them; empty: there is none.
// Ours is preferred to Kuma's.
func Of(labels map[string]string) string {
	return cmp.Or(labels[meshv1alpha1.LabelService], labels[meshv1alpha1.LabelKumaService])
}

// Inbound is a port of a workload that is part of a service.
type Inbound struct {
	Number      int32
	Protocol    corev1.Protocol
	AppProtocol string
}

// OfDataplane returns the hostnames of the services that a Dataplane is part of: those of the
// tags of its ports, and that of its own label for ports without one. Tags without a hostname
// are left out.
func OfDataplane(d *meshv1alpha1.Dataplane) []string {
	var out []string
	for _, tag := range TagsOfDataplane(d) {
		if host, err := meshname.OfTag(tag); err == nil {
			out = append(out, host)
		}
	}
	return out
}

// TagsOfDataplane are the tags themselves, as they are written, those without a hostname among
// them.
func TagsOfDataplane(d *meshv1alpha1.Dataplane) []string {
	var out []string
	own := Of(d.Labels)
	for i := range d.Spec.Ports {
		if tag := cmp.Or(Of(d.Spec.Ports[i].Tags), own); tag != "" && !slices.Contains(out, tag) {
			out = append(out, tag)
		}
	}
	return out
}

// OfPod is OfDataplane for a pod: its tag is one of all ports of its containers.
func OfPod(pod *corev1.Pod) []string {
	if len(podPorts(pod)) == 0 {
		return nil
	}
	tag, _ := TagOfPod(pod)
	host, err := meshname.OfTag(tag)
	if err != nil {
		return nil
	}
	return []string{host}
}

// TagOfPod is the tag of a pod: that of its labels, else a generated one, NAME_NAMESPACE_svc
// with the name of what created the pod. A generated tag counts only while no Service selects
// the pod, which the caller knows; it is computed and never written to the pod.
func TagOfPod(pod *corev1.Pod) (tag string, generated bool) {
	if tag = Of(pod.Labels); tag != "" {
		return tag, false
	}
	name := pod.Name
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil {
		name = owner.Name
		if hash := pod.Labels[appsv1.DefaultDeploymentUniqueLabelKey]; owner.Kind == "ReplicaSet" && hash != "" {
			name = strings.TrimSuffix(name, "-"+hash) // the name of its Deployment
		}
	}
	return strings.Join([]string{name, pod.Namespace, "svc"}, "_"), true
}

// DataplaneInbounds are the ports of a Dataplane that are part of the service of a hostname,
// in the order of the specification: the first of a protocol is the main one.
func DataplaneInbounds(d *meshv1alpha1.Dataplane, host string) []Inbound {
	var out []Inbound
	own := Of(d.Labels)
	for i := range d.Spec.Ports {
		p := &d.Spec.Ports[i]
		if of, err := meshname.OfTag(cmp.Or(Of(p.Tags), own)); err != nil || of != host {
			continue
		}
		in := Inbound{Number: p.Port, Protocol: corev1.Protocol(cmp.Or(p.Protocol, meshv1alpha1.ProtocolTCP))}
		if p.AppProtocol != nil {
			in.AppProtocol = *p.AppProtocol
		}
		out = append(out, in)
	}
	return out
}

// PodInbounds is DataplaneInbounds for a pod.
func PodInbounds(pod *corev1.Pod, host string) []Inbound {
	if !slices.Contains(OfPod(pod), host) {
		return nil
	}
	return podPorts(pod)
}

// podPorts of the containers, and of init containers that keep running (KEP-753).
func podPorts(pod *corev1.Pod) []Inbound {
	var out []Inbound
	add := func(c *corev1.Container) {
		for _, p := range c.Ports {
			in := Inbound{Number: p.ContainerPort, Protocol: cmp.Or(p.Protocol, corev1.ProtocolTCP)}
			if p.ContainerPort > 0 && !slices.Contains(out, in) {
				out = append(out, in)
			}
		}
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i])
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			add(c)
		}
	}
	return out
}

// namespacePrefix of the namespaces of the Services of tags; no user makes one of these.
const namespacePrefix = "proxima-tags-"

// Namespace of the Services of the tags of a mesh. It is the same in all zones, so that their
// exports are of one name.
func Namespace(mesh string) string {
	if name := namespacePrefix + mesh; len(name) <= validation.DNS1123LabelMaxLength {
		return name
	}
	return meshname.Hashed(namespacePrefix+mesh, "tags of mesh", mesh)
}

// InNamespace reports whether a namespace is one of the Services of tags.
func InNamespace(namespace string) bool { return strings.HasPrefix(namespace, namespacePrefix) }

// hashed is how names of Services end that are not the hostname itself.
var hashed = regexp.MustCompile(`-[a-z2-7]{13}$`)

// ServiceName is the name of the Service of a hostname: the hostname itself if that can be
// the name of a Service, else its beginning and a hash.
func ServiceName(host string) string {
	if len(validation.IsDNS1035Label(host)) == 0 && !hashed.MatchString(host) {
		return host
	}
	return meshname.Hashed("tag-"+host, "service of tag", host)
}

// Selector of the Service of a hostname.
func Selector(host string) map[string]string {
	return map[string]string{meshv1alpha1.LabelService: host}
}

// HostOf returns the hostname whose workloads a Service has, which may be those of other
// namespaces of its mesh: it is the Service of a tag, or the one with the virtual IPs of its
// import. ok is false for all other Services.
func HostOf(s *corev1.Service) (host string, ok bool) {
	if s == nil || !InNamespace(s.Namespace) || len(s.Spec.Selector) != 1 {
		return "", false
	}
	host, ok = s.Spec.Selector[meshv1alpha1.LabelService]
	return host, ok && meshname.Valid(host)
}

// NameOf returns the hostname that a Service has the name of: it is the Service of a tag, or the
// one with the virtual IPs of its import, which may have workloads of other zones alone.
func NameOf(s *corev1.Service) (host string, ok bool) {
	if s == nil || !InNamespace(s.Namespace) || !meshname.Valid(s.Labels[meshv1alpha1.LabelService]) {
		return "", false
	}
	return s.Labels[meshv1alpha1.LabelService], true
}

// mainTarget is the target port that leads to the main port of each workload. In the Service
// of a tag no target port is the name of a workload's port.
const mainTarget = "main-port"

// MaxPorts is how many ports of a protocol the Service of a tag has, in addition to port 80.
// Workloads that listen on more numbers are all reached on port 80.
const MaxPorts = 8

// Ports of the Service of a tag, of the ports of its workloads. Port 80 leads to the main TCP
// port of each. A number on which some workload has its main port leads to that number where
// a workload has it, and to the main port of the others; any other number only to workloads
// that have it. Sorted; empty: no workload has a port.
func Ports(workloads [][]Inbound) []corev1.ServicePort {
	var out []corev1.ServicePort
	for _, protocol := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP} {
		out = append(out, portsOf(protocol, workloads)...)
	}
	return out
}

func portsOf(protocol corev1.Protocol, workloads [][]Inbound) []corev1.ServicePort {
	mains, others := map[int32]bool{}, map[int32]bool{}
	application := map[int32]map[string]bool{}
	for _, inbounds := range workloads {
		first := true
		for _, in := range inbounds {
			if in.Protocol != protocol {
				continue
			}
			if first {
				mains[in.Number] = true
			} else {
				others[in.Number] = true
			}
			first = false
			for _, number := range []int32{in.Number, proxy.CommonPort} {
				if application[number] == nil {
					application[number] = map[string]bool{}
				}
				application[number][in.AppProtocol] = true
			}
		}
	}
	chosen := lowest(mains, MaxPorts)
	for _, n := range lowest(others, MaxPorts-len(chosen)) {
		if !mains[n] {
			chosen = append(chosen, n)
		}
	}
	if protocol == corev1.ProtocolTCP && len(mains) > 0 {
		mains[proxy.CommonPort] = true
		chosen = append(chosen, proxy.CommonPort)
	}
	slices.Sort(chosen)
	out := make([]corev1.ServicePort, 0, len(chosen))
	for _, number := range slices.Compact(chosen) {
		p := corev1.ServicePort{
			Name: fmt.Sprintf("%s-%d", strings.ToLower(string(protocol)), number), Port: number, Protocol: protocol,
			TargetPort: intstr.FromInt32(number),
		}
		if mains[number] {
			p.TargetPort = intstr.FromString(mainTarget)
		}
		if len(application[number]) == 1 {
			for name := range application[number] {
				if name != "" {
					p.AppProtocol = &name
				}
			}
		}
		out = append(out, p)
	}
	return out
}

// lowest numbers of a set, sorted.
func lowest(set map[int32]bool, limit int) []int32 {
	out := make([]int32, 0, len(set))
	for n := range set {
		out = append(out, n)
	}
	slices.Sort(out)
	return out[:min(len(out), max(limit, 0))]
}

// Target is the port of a workload behind a port of the Service of a tag, of the workload's
// ports that are part of the service. ok is false if it has none.
func Target(p *corev1.ServicePort, inbounds []Inbound) (number int32, ok bool) {
	protocol := cmp.Or(p.Protocol, corev1.ProtocolTCP)
	wanted, main := p.Port, p.TargetPort.Type == intstr.String && p.TargetPort.StrVal == mainTarget
	switch {
	case main:
	case p.TargetPort.Type == intstr.String:
		return 0, false // a port that other zones alone have
	default:
		wanted = cmp.Or(p.TargetPort.IntVal, p.Port)
	}
	first := int32(0)
	for _, in := range inbounds {
		if in.Protocol != protocol {
			continue
		}
		if in.Number == wanted {
			return wanted, true
		}
		first = cmp.Or(first, in.Number)
	}
	return first, main && first != 0
}
