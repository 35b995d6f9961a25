package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/kubernetes/inject"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// proxyKinds are what a control plane in a cluster follows in addition, where Pods have sidecars:
// policies of traffic, and of the routes of the Gateway API those that the cluster serves.
func (m *clusterMeshes) proxyKinds() []*resource.Descriptor {
	return append([]*resource.Descriptor{kind.TrafficPermission, kind.BackendPolicy, kind.WorkloadPolicy, kind.ProxyPatch}, m.routes...)
}

// newProxies serves the sidecars of Pods, and their certificates. It blocks for a request to the
// cluster: where its virtual addresses are.
func (p *clusterPlane) newProxies(ctx context.Context, workloads podWorkloads) error {
	m, cfg := p.meshes, p.cfg
	virtual := clusterVirtualIPs{catalog: p.instance.catalog}
	if err := virtual.read(ctx, p.cluster); err != nil {
		return explainCluster(cfg.Cluster, err)
	}
	if virtual.ranges != nil {
		cfg.ServiceCIDRs = virtual.ranges
	}
	var err error
	m.proxies, err = newProxies(cfg, p.storage, p.api, p.instance, m.identities, m.insights, p.log)
	if err == nil && m.proxies != nil {
		m.identities.servePods(m.proxies, workloads, p.reviewer(), string(cfg.site()))
	}
	return err
}

// sidecarComponents run where Pods have sidecars.
func (p *clusterPlane) sidecarComponents() []component {
	if p.meshes == nil || p.meshes.proxies == nil {
		return nil
	}
	return []component{
		{Name: "certificates of pods that are gone", Run: p.meshes.identities.forgetPods},
		{Name: "status of policies", Scope: leader, Run: p.leader.runPolicyStatus},
		{Name: "pods without a sidecar", Scope: leader, Run: p.meshes.events.follow},
	}
}

// inject answers what is added to a Pod that is created.
func (p *clusterPlane) inject(_ context.Context, pod *corev1.Pod) (inject.Result, error) {
	if !p.instance.catalog.Listed() {
		return inject.Result{}, errors.New("the control plane is still reading the cluster: create the Pod again")
	}
	namespace, _ := p.instance.catalog.Snapshot().Namespaces.Get(resource.Key{Name: pod.Namespace})
	mesh := kind.PodMesh(pod, namespace)
	c := *p.cfg.Injection
	c.Site, c.Authorities = string(p.cfg.site()), p.storage.ca.PEM()
	if c.Server == "" {
		c.Server = net.JoinHostPort("proxima."+p.cfg.Namespace+".svc", portOf(p.meshes.proxies.listener.Addr()))
	}
	result, err := c.Patch(pod, namespace, mesh)
	if err != nil || len(result.Patch) == 0 {
		return result, err
	}
	if _, ok := p.meshes.identities.mesh(mesh); !ok {
		return inject.Result{}, fmt.Errorf("mesh %s has no certificates (spec.mtls), without which a sidecar does not start", mesh)
	}
	return result, nil
}

// runsHere reports whether a replica of this control plane runs: it is a Pod of that name.
func (p *clusterPlane) runsHere(instance string) bool {
	pod, ok := p.instance.catalog.Snapshot().Pods.Get(resource.Key{Namespace: p.cfg.Namespace, Name: instance})
	return ok && pod.Status.Phase != corev1.PodFailed && pod.Status.Phase != corev1.PodSucceeded
}

// sidecars sums up the proxies of Pods, and those that are missing; nil: they are not served.
func (m *clusterMeshes) sidecars(tables *catalog.Snapshot) *admin.ProxiesStatus {
	out := m.proxies.status()
	if out == nil {
		return nil
	}
	for key, pod := range tables.Pods.All() {
		namespace, _ := tables.Namespaces.Get(resource.Key{Name: key.Namespace})
		if inject.Missing(pod, namespace) {
			out.Missing++
			if len(out.Without) < admin.MaxProxyRejections {
				out.Without = append(out.Without, key.String())
			}
		}
	}
	slices.Sort(out.Without)
	m.members.addUnled(out)
	return out
}
