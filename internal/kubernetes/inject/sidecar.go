package inject

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
)

// Values of the label and the annotation of injection.
const (
	enabled  = "enabled"
	disabled = "disabled"
)

// Sidecar is what the sidecar of a Pod was made of: the content of its annotation.
type Sidecar struct {
	// Mesh of the Pod when it was created: it is in the sidecar's own configuration.
	Mesh string `json:"mesh"`
	// Ports of TCP that are led to the sidecar.
	Ports []Port `json:"ports,omitempty"`
	// ExcludeInbound and ExcludeOutbound are ports, addresses and prefixes, joined by commas.
	ExcludeInbound  string `json:"excludeInbound,omitempty"`
	ExcludeOutbound string `json:"excludeOutbound,omitempty"`
}

// Port that a container listens on.
type Port struct {
	Name string `json:"name,omitempty"`
	Port int32  `json:"port"`
}

// SidecarOf a Pod; nil: it has none. The error says what of the annotation, which users can write,
// cannot be used.
func SidecarOf(pod metav1.Object) (*Sidecar, error) {
	text, ok := pod.GetAnnotations()[meshv1alpha1.AnnotationSidecar]
	if !ok {
		return nil, nil //nolint:nilnil // as the comment says
	}
	s := &Sidecar{}
	if err := json.Unmarshal([]byte(text), s); err != nil {
		return nil, fmt.Errorf("annotation %s: %w", meshv1alpha1.AnnotationSidecar, err)
	}
	seen := map[int32]bool{}
	for _, p := range s.Ports {
		if p.Port < 1 || p.Port > 65535 || seen[p.Port] {
			return nil, fmt.Errorf("annotation %s: port %d is none, or is there twice", meshv1alpha1.AnnotationSidecar, p.Port)
		}
		seen[p.Port] = true
	}
	for _, text := range []string{s.ExcludeInbound, s.ExcludeOutbound} {
		if err := checkExclusion(text); err != nil {
			return nil, fmt.Errorf("annotation %s: %w", meshv1alpha1.AnnotationSidecar, err)
		}
	}
	return s, nil
}

// Wanted reports whether a Pod is to have a sidecar, by itself, else by its namespace (nil:
// unknown). An error names a value that is neither of the two.
func Wanted(pod, namespace metav1.Object) (bool, error) {
	for _, o := range []metav1.Object{pod, namespace} {
		if o == nil {
			continue
		}
		for _, key := range []string{meshv1alpha1.LabelSidecarInjection, meshv1alpha1.LabelKumaSidecarInjection} {
			for _, values := range []map[string]string{o.GetLabels(), o.GetAnnotations()} {
				switch value, ok := values[key]; {
				case !ok:
				case value == enabled || value == "true":
					return true, nil
				case value == disabled || value == "false":
					return false, nil
				default:
					return false, fmt.Errorf("%s=%q: want %s or %s", key, value, enabled, disabled)
				}
			}
		}
	}
	return false, nil
}

// Missing reports whether a Pod should have a sidecar and has none, although it could: it was
// created while nobody answered, or before it was asked for.
func Missing(pod *corev1.Pod, namespace *corev1.Namespace) bool {
	var of metav1.Object // not an interface of a nil pointer
	if namespace != nil {
		of = namespace
	}
	_, has := pod.Annotations[meshv1alpha1.AnnotationSidecar]
	if has || pod.Spec.HostNetwork || pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return false
	}
	wanted, err := Wanted(pod, of)
	return err == nil && wanted
}

// annotated is the first of the annotations that is there.
func annotated(pod *corev1.Pod, keys ...string) string {
	for _, key := range keys {
		if text := pod.Annotations[key]; text != "" {
			return text
		}
	}
	return ""
}

// Annotations of Kuma that mean the same.
const (
	kumaExcludeInbound  = "traffic.kuma.io/exclude-inbound-ports"
	kumaExcludeOutbound = "traffic.kuma.io/exclude-outbound-ports"
)

// sidecarFor a Pod that is created in a namespace (nil: unknown).
func sidecarFor(pod *corev1.Pod, namespace *corev1.Namespace, mesh string) (Sidecar, error) {
	s := Sidecar{
		Mesh:            mesh,
		ExcludeInbound:  annotated(pod, meshv1alpha1.AnnotationExcludeInbound, kumaExcludeInbound),
		ExcludeOutbound: annotated(pod, meshv1alpha1.AnnotationExcludeOutbound, kumaExcludeOutbound),
	}
	for _, a := range []struct{ key, text string }{
		{meshv1alpha1.AnnotationExcludeInbound, s.ExcludeInbound}, {meshv1alpha1.AnnotationExcludeOutbound, s.ExcludeOutbound},
	} {
		if err := checkExclusion(a.text); err != nil {
			return s, fmt.Errorf("annotation %s: %w", a.key, err)
		}
	}
	for _, c := range running(&pod.Spec) {
		for _, p := range c.Ports {
			if p.Protocol == corev1.ProtocolTCP || p.Protocol == "" {
				s.add(Port{p.Name, p.ContainerPort})
			}
		}
	}
	inbound, own := pod.Annotations[meshv1alpha1.AnnotationInboundPorts]
	if !own && namespace != nil {
		inbound = namespace.Annotations[meshv1alpha1.AnnotationInboundPorts]
	}
	for _, text := range split(inbound) {
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil || port == 0 {
			return s, fmt.Errorf("annotation %s: %q is no port", meshv1alpha1.AnnotationInboundPorts, text)
		}
		s.add(Port{Port: int32(port)})
	}
	return s, nil
}

func (s *Sidecar) add(p Port) {
	if slices.ContainsFunc(s.Ports, func(q Port) bool { return q.Port == p.Port }) {
		return
	}
	if slices.ContainsFunc(s.Ports, func(q Port) bool { return q.Name == p.Name }) {
		p.Name = "" // names are unique in a container, not in a Pod
	}
	s.Ports = append(s.Ports, p)
}

func split(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
}

// checkExclusion of ports, addresses and prefixes.
func checkExclusion(text string) error {
	for _, item := range split(text) {
		if port, err := strconv.ParseUint(item, 10, 16); err == nil && port > 0 {
			continue
		}
		_, notPrefix := netip.ParsePrefix(item)
		addr, notAddr := netip.ParseAddr(item)
		if notPrefix != nil && (notAddr != nil || addr.Zone() != "") {
			return fmt.Errorf("%q: want a port, an address, or a prefix as in 10.0.0.0/8", item)
		}
	}
	return nil
}

// running are the containers that run beside each other: those of the Pod, and its native sidecars.
func running(spec *corev1.PodSpec) []*corev1.Container {
	var out []*corev1.Container
	for i := range spec.InitContainers {
		if r := spec.InitContainers[i].RestartPolicy; r != nil && *r == corev1.ContainerRestartPolicyAlways {
			out = append(out, &spec.InitContainers[i])
		}
	}
	for i := range spec.Containers {
		out = append(out, &spec.Containers[i])
	}
	return out
}
