package policy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/servicetag"
)

// Labels and tags that selectors of policies find on a Pod, though nobody wrote them there. Their names and
// values are those of Kuma's Dataplanes of Pods, so that its selectors mean the same here.
const (
	podNamespace      = "k8s.kuma.io/namespace"
	podServiceAccount = "k8s.kuma.io/service-account"
	podZone           = "kuma.io/zone"
	portService       = "k8s.kuma.io/service-name"
	portServicePort   = "k8s.kuma.io/service-port"
	portProtocol      = "kuma.io/protocol"
)

// applyPods sets the Pods that changed, or whose Services did.
func (x *Index) applyPods(out *Affected, d *catalog.Delta) {
	changed := map[resource.Key]bool{}
	for _, c := range d.Pods {
		if c.New == nil {
			out.add(x.Delete(Ref{"Pod", c.Key}))
			continue
		}
		changed[c.Key] = true
	}
	for _, c := range d.Services {
		for _, s := range []*corev1.Service{c.Old, c.New} {
			if s == nil || c.Old != nil && c.New != nil && sameTags(c.Old, c.New) {
				continue
			}
			for key := range d.After.PodsMatching(s.Namespace, s.Spec.Selector) {
				changed[key] = true
			}
		}
	}
	for key := range changed {
		if pod, ok := d.After.Pods.Get(key); ok {
			out.add(x.SetPod(x.ofPod(d.After, pod)))
		}
	}
}

// sameTags reports whether two states of a Service give Pods the same tags.
func sameTags(a, b *corev1.Service) bool {
	return maps.Equal(a.Spec.Selector, b.Spec.Selector) && slices.EqualFunc(a.Spec.Ports, b.Spec.Ports, func(p, q corev1.ServicePort) bool {
		return p.Port == q.Port && p.Protocol == q.Protocol && p.TargetPort == q.TargetPort &&
			textOf(p.AppProtocol) == textOf(q.AppProtocol)
	})
}

func textOf(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// ofPod is what policies see of a Pod: its labels, and with them its namespace, service account and zone; its
// addresses; and the ports that its containers declare, each with the tags of the first Service (by name) that has it.
func (x *Index) ofPod(s *catalog.Snapshot, p *corev1.Pod) *mesh.Dataplane {
	return x.PodWorkload(p, servicesOf(s, p))
}

// PodWorkload is what policies see of a Pod, for SetPod. services select the Pod and are of its mesh, sorted by name.
func (x *Index) PodWorkload(p *corev1.Pod, services []*corev1.Service) *mesh.Dataplane {
	d := &mesh.Dataplane{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, Labels: maps.Clone(p.Labels)},
		Spec:       mesh.DataplaneSpec{Mesh: kind.NamedMesh(p), ServiceAccount: p.Spec.ServiceAccountName},
	}
	if d.Labels == nil {
		d.Labels = map[string]string{}
	}
	d.Labels[podNamespace], d.Labels[podServiceAccount] = p.Namespace, kind.DataplaneAccount(d)
	if x.Zone != "" {
		d.Labels[podZone] = x.Zone
	}
	for _, ip := range p.Status.PodIPs {
		d.Spec.Addresses = append(d.Spec.Addresses, ip.IP)
	}
	add := func(c *corev1.Container) {
		for i := range c.Ports {
			port := &c.Ports[i]
			d.Spec.Ports = append(d.Spec.Ports, mesh.DataplanePort{
				Name: port.Name, Port: port.ContainerPort, Protocol: string(port.Protocol), Tags: tagsOf(p, port, services),
			})
		}
	}
	for i := range p.Spec.InitContainers {
		if c := &p.Spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			add(c)
		}
	}
	for i := range p.Spec.Containers {
		add(&p.Spec.Containers[i])
	}
	return d
}

// servicesOf a Pod, in the order of their names: those of its namespace that select it, if it is of their mesh.
func servicesOf(s *catalog.Snapshot, p *corev1.Pod) []*corev1.Service {
	namespace, _ := s.Namespaces.Get(resource.Key{Name: p.Namespace})
	if own := kind.NamedMesh(p); own != "" && (namespace == nil || own != kind.MeshOf(namespace)) {
		return nil
	}
	var out []*corev1.Service
	for _, service := range s.ServicesSelecting(p.Namespace, p.Labels) {
		out = append(out, service)
	}
	slices.SortFunc(out, func(a, b *corev1.Service) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// tagsOf a port of a Pod. A service tag among the labels of the Pod is one of all its ports, and not repeated.
func tagsOf(p *corev1.Pod, port *corev1.ContainerPort, services []*corev1.Service) map[string]string {
	own := servicetag.Of(p.Labels)
	for _, s := range services {
		for i := range s.Spec.Ports {
			if !leadsTo(&s.Spec.Ports[i], port) {
				continue
			}
			number := fmt.Sprint(s.Spec.Ports[i].Port)
			out := map[string]string{portService: s.Name, portServicePort: number}
			if protocol := s.Spec.Ports[i].AppProtocol; protocol != nil {
				out[portProtocol] = *protocol
			}
			if own == "" {
				tagService(out, s.Name+"_"+s.Namespace+"_svc_"+number)
			}
			return out
		}
	}
	if own != "" || len(services) > 0 {
		return nil
	}
	out := map[string]string{}
	tag, _ := servicetag.TagOfPod(p)
	tagService(out, tag)
	return out
}

func tagService(tags map[string]string, tag string) {
	tags[mesh.LabelService], tags[mesh.LabelKumaService] = tag, tag
}

// leadsTo reports whether a port of a Service is that port of its Pods.
func leadsTo(of *corev1.ServicePort, port *corev1.ContainerPort) bool {
	if cmp.Or(of.Protocol, corev1.ProtocolTCP) != cmp.Or(port.Protocol, corev1.ProtocolTCP) {
		return false
	}
	if of.TargetPort.Type == intstr.String {
		return of.TargetPort.StrVal == port.Name
	}
	return cmp.Or(of.TargetPort.IntVal, of.Port) == port.ContainerPort
}

// selects reports whether a selector of callers selects a workload: by its labels, or by them and the tags of one of
// its ports.
func (w *workload) selects(s labels.Selector) bool {
	return s.Matches(labels.Set(w.object.Labels)) || slices.ContainsFunc(w.object.Spec.Ports, func(p mesh.DataplanePort) bool {
		return len(p.Tags) > 0 && s.Matches(labels.Set(tagged(w.object.Labels, p.Tags)))
	})
}

// sameTagsOfPorts reports whether two states of a workload have the same tags.
func sameTagsOfPorts(a, b *mesh.Dataplane) bool {
	return slices.EqualFunc(a.Spec.Ports, b.Spec.Ports, func(p, q mesh.DataplanePort) bool { return maps.Equal(p.Tags, q.Tags) })
}
