package kind

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

func defaultPod(p *corev1.Pod) {
	spec := &p.Spec
	fill(&spec.DNSPolicy, corev1.DNSClusterFirst)
	fill(&spec.RestartPolicy, corev1.RestartPolicyAlways)
	fill(&spec.SchedulerName, corev1.DefaultSchedulerName)
	if spec.SecurityContext == nil {
		spec.SecurityContext = &corev1.PodSecurityContext{}
	}
	if spec.TerminationGracePeriodSeconds == nil {
		spec.TerminationGracePeriodSeconds = new(int64(corev1.DefaultTerminationGracePeriodSeconds))
	}
	if spec.EnableServiceLinks == nil {
		spec.EnableServiceLinks = new(corev1.DefaultEnableServiceLinks)
	}
	// serviceAccount is the old name of serviceAccountName, which wins.
	fill(&spec.ServiceAccountName, spec.DeprecatedServiceAccount)
	spec.DeprecatedServiceAccount = spec.ServiceAccountName
	for i := range spec.Volumes {
		defaultVolume(&spec.Volumes[i])
	}
	for i := range spec.InitContainers {
		defaultContainer(&spec.InitContainers[i], spec.HostNetwork)
	}
	for i := range spec.Containers {
		defaultContainer(&spec.Containers[i], spec.HostNetwork)
	}
	defaultPodIPs(&p.Status)
}

// defaultPodIPs keeps podIP and podIPs in step: podIP is the first of the list,
// and where the two differ podIP is what an older writer meant.
func defaultPodIPs(s *corev1.PodStatus) {
	switch {
	case s.PodIP == "" && len(s.PodIPs) > 0:
		s.PodIP = s.PodIPs[0].IP
	case s.PodIP != "" && (len(s.PodIPs) == 0 || s.PodIPs[0].IP != s.PodIP):
		s.PodIPs = []corev1.PodIP{{IP: s.PodIP}}
	}
}

// fill sets a string that was left out.
func fill[T ~string](value *T, missing T) {
	if *value == "" {
		*value = missing
	}
}

// fillCount sets a number that was left out.
func fillCount(value *int32, missing int32) {
	if *value == 0 {
		*value = missing
	}
}

func defaultContainer(c *corev1.Container, hostNetwork bool) {
	if c.ImagePullPolicy == "" {
		c.ImagePullPolicy = corev1.PullIfNotPresent
		if latest(c.Image) {
			c.ImagePullPolicy = corev1.PullAlways
		}
	}
	fill(&c.TerminationMessagePath, corev1.TerminationMessagePathDefault)
	fill(&c.TerminationMessagePolicy, corev1.TerminationMessageReadFile)
	for i := range c.Ports {
		port := &c.Ports[i]
		fill(&port.Protocol, corev1.ProtocolTCP)
		if hostNetwork && port.HostPort == 0 {
			port.HostPort = port.ContainerPort
		}
	}
	for i := range c.Env {
		if from := c.Env[i].ValueFrom; from != nil && from.FieldRef != nil {
			fill(&from.FieldRef.APIVersion, "v1")
		}
	}
	for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		if p != nil {
			defaultProbe(p)
		}
	}
	if c.Lifecycle != nil {
		for _, h := range []*corev1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
			if h != nil && h.HTTPGet != nil {
				defaultHTTPGet(h.HTTPGet)
			}
		}
	}
	for name, limit := range c.Resources.Limits {
		if _, ok := c.Resources.Requests[name]; ok {
			continue
		}
		if c.Resources.Requests == nil {
			c.Resources.Requests = corev1.ResourceList{}
		}
		c.Resources.Requests[name] = limit.DeepCopy()
	}
}

// latest is true for an image whose tag may move: "latest", or none and no digest.
func latest(image string) bool {
	if strings.Contains(image, "@") {
		return false
	}
	_, tag, ok := strings.Cut(image[strings.LastIndexByte(image, '/')+1:], ":")
	return !ok || tag == "latest"
}

func defaultProbe(p *corev1.Probe) {
	fillCount(&p.TimeoutSeconds, 1)
	fillCount(&p.PeriodSeconds, 10)
	fillCount(&p.SuccessThreshold, 1)
	fillCount(&p.FailureThreshold, 3)
	if p.HTTPGet != nil {
		defaultHTTPGet(p.HTTPGet)
	}
	if p.GRPC != nil && p.GRPC.Service == nil {
		p.GRPC.Service = new("")
	}
}

func defaultHTTPGet(h *corev1.HTTPGetAction) {
	fill(&h.Path, "/")
	fill(&h.Scheme, corev1.URISchemeHTTP)
}

func defaultVolume(v *corev1.Volume) {
	switch s := &v.VolumeSource; {
	case *s == corev1.VolumeSource{}:
		s.EmptyDir = &corev1.EmptyDirVolumeSource{}
	case s.Secret != nil:
		defaultMode(&s.Secret.DefaultMode, corev1.SecretVolumeSourceDefaultMode)
	case s.ConfigMap != nil:
		defaultMode(&s.ConfigMap.DefaultMode, corev1.ConfigMapVolumeSourceDefaultMode)
	case s.DownwardAPI != nil:
		defaultMode(&s.DownwardAPI.DefaultMode, corev1.DownwardAPIVolumeSourceDefaultMode)
	case s.Projected != nil:
		defaultMode(&s.Projected.DefaultMode, corev1.ProjectedVolumeSourceDefaultMode)
		for _, source := range s.Projected.Sources {
			if t := source.ServiceAccountToken; t != nil && t.ExpirationSeconds == nil {
				t.ExpirationSeconds = new(int64(3600))
			}
		}
	case s.HostPath != nil && s.HostPath.Type == nil:
		s.HostPath.Type = new(corev1.HostPathUnset)
	}
}

func defaultMode(mode **int32, missing int32) {
	if *mode == nil {
		*mode = new(missing)
	}
}
