package describe

import (
	"cmp"
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/dns/meshname"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/servicetag"
)

// tags prints the names of the services that a workload is part of by its tags.
func (p *page) tags(hosts []string, remark string) {
	for _, host := range hosts {
		p.field("Service of a tag", host+"."+meshname.Domain+remark)
	}
}

// pod describes a Pod: what it is part of, which its object does not show, and its contents.
func (d *Describer) pod(ctx context.Context, p *page, pod *corev1.Pod) error {
	tag, generated := servicetag.TagOfPod(pod)
	hosts, remark := servicetag.OfPod(pod), ""
	if generated && len(hosts) > 0 {
		remark = " (generated, as no Service selects it)"
		services, err := list[*corev1.Service](ctx, d, p, kind.Service, resource.ListOptions{Namespace: pod.Namespace})
		if err != nil {
			return err
		}
		if slices.ContainsFunc(services, func(s *corev1.Service) bool { return selects(s.Spec.Selector, pod.Labels) }) {
			hosts = nil
		}
	}
	p.tags(hosts, remark)
	if _, err := meshname.OfTag(tag); err != nil && !generated {
		p.note("it is in no service by its tag: %v", err)
	}
	return contents(p, pod)
}

// tagOf a Service, and the meshes of namespaces to tell its workloads by; empty: it has none.
func (d *Describer) tagOf(ctx context.Context, p *page, s *corev1.Service) (host string, meshes map[string]string, err error) {
	host, ok := servicetag.HostOf(s)
	if !ok {
		return "", nil, nil
	}
	namespaces, err := list[*corev1.Namespace](ctx, d, p, kind.Namespace, resource.ListOptions{})
	meshes = map[string]string{}
	for _, n := range namespaces {
		meshes[n.Name] = kind.MeshOf(n)
	}
	return host, meshes, err
}

// selects reports whether the Service has a workload.
func (in *serviceInput) selects(w *workload) bool {
	if in.host == "" {
		return selects(in.service.Spec.Selector, w.labels)
	}
	of := func(namespace string) string { return cmp.Or(in.meshes[namespace], mesh.DefaultMesh) }
	return slices.Contains(w.hosts, in.host) && cmp.Or(w.mesh, of(w.Namespace)) == of(in.service.Namespace)
}

// refName is the kind, namespace and name of the workload of an endpoint.
func refName(in *serviceInput, r *corev1.ObjectReference) string {
	return r.Kind + "/" + resource.Key{Namespace: cmp.Or(r.Namespace, in.service.Namespace), Name: r.Name}.String()
}
