package kube

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// ScopeOf a Service in a namespace of a mesh. Services of an ExternalService name their mesh.
// The names without which a workload finds nothing, those of the API and of a cluster's DNS,
// are for all meshes, and so is what is exported to all.
func ScopeOf(s *corev1.Service, mesh string) proxy.Scope {
	if key := resource.KeyOf(s); kind.IsAPI(key) || key == (resource.Key{Namespace: metav1.NamespaceSystem, Name: "kube-dns"}) {
		return proxy.Scope{}
	}
	if s.Labels[meshv1alpha1.LabelExternalService] != "" && s.Labels[meshv1alpha1.LabelMesh] != "" {
		mesh = s.Labels[meshv1alpha1.LabelMesh]
	}
	names, all := ExportsOf(s, mesh)
	if all {
		return proxy.Scope{}
	}
	return proxy.Scope{Mesh: mesh, Exported: names}
}

// ExportsOf a Service of a mesh are the other meshes that its annotation names, sorted; all: it is
// exported to every mesh, and names is nil.
func ExportsOf(s *corev1.Service, mesh string) (names []string, all bool) {
	for name := range strings.SplitSeq(s.Annotations[meshv1alpha1.AnnotationToMeshes], ",") {
		switch name = strings.TrimSpace(name); name {
		case meshv1alpha1.ToAllMeshes:
			return nil, true
		case "", mesh:
		default:
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), false
}
