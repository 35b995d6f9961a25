package admin

import (
	"cmp"
	"net"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/diag"
	"github.com/proxima-mesh/proxima/internal/kubernetes/inject"
	"github.com/proxima-mesh/proxima/internal/policy"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// explainGuards adds what nodes do of permissions for the endpoints of a Service without a sidecar.
// byAddress reports whether a mode enforces them.
func explainGuards(e *diag.Service, s *catalog.Snapshot, service resource.Key, byAddress func(mode string) bool) {
	denies := false
	for _, m := range s.Meshes.All() {
		denies = denies || m.Spec.DefaultAccess == meshv1alpha1.AccessDeny
	}
	if byAddress == nil || !denies && s.TrafficPermissions.Len() == 0 {
		return
	}
	x := policy.NewIndex()
	x.LoadCallers(s)
	for _, slice := range s.SlicesOf(service) {
		for i := range slice.Endpoints {
			guardsOf(e, x, s, slice, &slice.Endpoints[i], byAddress)
		}
	}
	slices.SortFunc(e.Guards, func(a, b diag.Guard) int { return cmp.Compare(a.Endpoint, b.Endpoint) })
}

func guardsOf(e *diag.Service, x *policy.Index, s *catalog.Snapshot, slice *discoveryv1.EndpointSlice, endpoint *discoveryv1.Endpoint, byAddress func(string) bool) {
	of, mesh, proxied := workloadOf(s, slice.Namespace, endpoint.TargetRef)
	if of == (policy.Ref{}) || proxied || len(endpoint.Addresses) == 0 {
		return
	}
	node := diag.PeerNode{}
	if endpoint.NodeName != nil {
		node.Name = *endpoint.NodeName
	}
	if n, ok := s.Nodes.Get(resource.Key{Name: node.Name}); ok {
		node.Mode = n.Labels[meshv1alpha1.LabelProxyMode]
	}
	node.ByAddress = byAddress(node.Mode)
	for _, p := range slice.Ports {
		if p.Port == nil {
			continue
		}
		port, ok := x.GuardPort(of, *p.Port)
		if !ok {
			continue
		}
		at := net.JoinHostPort(endpoint.Addresses[0], strconv.Itoa(int(*p.Port)))
		if g, ok := diag.GuardOf(&port, at, of, mesh, node); ok {
			e.Guards = append(e.Guards, g)
		}
	}
}

// workloadOf an endpoint; zero: it is none of this control plane's. proxied: its own proxy sees to permissions.
func workloadOf(s *catalog.Snapshot, namespace string, target *corev1.ObjectReference) (of policy.Ref, mesh string, proxied bool) {
	if target == nil {
		return policy.Ref{}, "", false
	}
	key := resource.Key{Namespace: cmp.Or(target.Namespace, namespace), Name: target.Name}
	in, _ := s.Namespaces.Get(resource.Key{Name: key.Namespace})
	switch target.Kind {
	case "Dataplane":
		if d, ok := s.Dataplanes.Get(key); ok {
			return policy.Ref{Kind: "Dataplane", Key: key}, kind.DataplaneMesh(d, in), kind.DataplaneHasProxy(d)
		}
	case "Pod":
		if p, ok := s.Pods.Get(key); ok {
			sidecar, err := inject.SidecarOf(p)
			return policy.Ref{Kind: "Pod", Key: key}, kind.PodMesh(p, in), sidecar != nil && err == nil
		}
	}
	return policy.Ref{}, "", false
}
