package backend

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

func podAddresses(pod *corev1.Pod) []string {
	addresses := canonical(func(yield func(string) bool) {
		for _, ip := range pod.Status.PodIPs {
			if !yield(ip.IP) {
				return
			}
		}
	})
	// A status written by hand may have the older field alone.
	if len(addresses) == 0 && pod.Status.PodIP != "" {
		addresses = canonical(slices.Values([]string{pod.Status.PodIP}))
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
			if p.Name == name && ProtocolOf(string(p.Protocol)) == protocol {
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

// PodMatters reports whether a change of a pod can change an endpoint: status
// heartbeats do not. nil stands for a pod that is not there.
func PodMatters(was, is *corev1.Pod) bool {
	if was == nil || is == nil {
		return true
	}
	wasReady, _ := podReady(was)
	isReady, _ := podReady(is)
	return was.UID != is.UID ||
		was.Status.Phase != is.Status.Phase ||
		wasReady != isReady ||
		(was.DeletionTimestamp == nil) != (is.DeletionTimestamp == nil) ||
		!slices.Equal(podAddresses(was), podAddresses(is)) ||
		!maps.Equal(was.Labels, is.Labels) ||
		kind.NamedMesh(was) != kind.NamedMesh(is) ||
		!equality.Semantic.DeepEqual(was.Spec, is.Spec)
}

// DataplaneMatters is the same for Dataplanes.
func DataplaneMatters(was, is *meshv1alpha1.Dataplane) bool {
	if was == nil || is == nil {
		return true
	}
	wasReady, _ := dataplaneReady(was)
	isReady, _ := dataplaneReady(is)
	return was.UID != is.UID ||
		wasReady != isReady ||
		(was.DeletionTimestamp == nil) != (is.DeletionTimestamp == nil) ||
		!maps.Equal(was.Labels, is.Labels) ||
		!equality.Semantic.DeepEqual(was.Spec, is.Spec)
}
