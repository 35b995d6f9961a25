package kind

import (
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/proxima-mesh/proxima/internal/resource"
)

// Pod describes v1 Pod: all of its metadata and status, and of its spec what a
// mesh needs to trust (containers, ports, probes, names). Rules for the rest,
// such as volumes and security contexts, are a kubelet's concern.
var Pod = &resource.Descriptor{
	GVK:        corev1.SchemeGroupVersion.WithKind("Pod"),
	Resource:   "pods",
	Singular:   "pod",
	ShortNames: []string{"po"},
	Categories: []string{"all"},
	Namespaced: true,
	Status:     true,

	New:     func() resource.Object { return &corev1.Pod{} },
	NewList: func() runtime.Object { return &corev1.PodList{} },

	Default:        on(defaultPod),
	Prepare:        change(preparePod),
	PrepareStatus:  change(preparePodStatus),
	Validate:       compare(validatePod),
	ValidateStatus: compare(validatePodStatus),

	Fields:  of(podFields),
	Columns: podColumns(),
	Cells:   of(podCells),
}

func preparePod(p, old *corev1.Pod) {
	if old == nil {
		p.Generation = 1
		p.Status = corev1.PodStatus{Phase: corev1.PodPending, QOSClass: podQOS(p)}
		return
	}
	p.Status = *old.Status.DeepCopy()
	p.Generation = old.Generation
	if !equality.Semantic.DeepEqual(p.Spec, old.Spec) {
		p.Generation++
	}
}

// preparePodStatus keeps what only a write of the Pod itself, or its deletion,
// may change.
func preparePodStatus(p, old *corev1.Pod) {
	p.Spec = *old.Spec.DeepCopy()
	p.Generation = old.Generation
	p.DeletionTimestamp = old.DeletionTimestamp.DeepCopy()
	p.OwnerReferences = old.DeepCopy().OwnerReferences
	if p.Status.QOSClass == "" {
		p.Status.QOSClass = old.Status.QOSClass
	}
}

// podQOS is Kubernetes' quality-of-service class: Guaranteed if every container
// limits cpu and memory to what it requests, BestEffort if none requests either.
func podQOS(p *corev1.Pod) corev1.PodQOSClass {
	guaranteed, requests := true, false
	for _, list := range [][]corev1.Container{p.Spec.Containers, p.Spec.InitContainers} {
		for _, c := range list {
			for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
				request, limit := c.Resources.Requests[name], c.Resources.Limits[name]
				if request.Sign() > 0 || limit.Sign() > 0 {
					requests = true
				}
				if limit.Sign() <= 0 || limit.Cmp(request) != 0 {
					guaranteed = false
				}
			}
		}
	}
	switch {
	case !requests:
		return corev1.PodQOSBestEffort
	case guaranteed:
		return corev1.PodQOSGuaranteed
	}
	return corev1.PodQOSBurstable
}

func podFields(p *corev1.Pod) fields.Set {
	ips := make([]string, len(p.Status.PodIPs))
	for i, ip := range p.Status.PodIPs {
		ips[i] = ip.IP
	}
	first := ""
	if len(ips) > 0 {
		first = ips[0]
	}
	return fields.Set{
		"spec.nodeName":            p.Spec.NodeName,
		"spec.restartPolicy":       string(p.Spec.RestartPolicy),
		"spec.schedulerName":       p.Spec.SchedulerName,
		"spec.serviceAccountName":  p.Spec.ServiceAccountName,
		"spec.hostNetwork":         strconv.FormatBool(p.Spec.HostNetwork),
		"status.phase":             string(p.Status.Phase),
		"status.podIP":             first,
		"status.podIPs":            strings.Join(ips, ","),
		"status.nominatedNodeName": p.Status.NominatedNodeName,
	}
}
