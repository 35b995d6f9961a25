package app

import (
	"fmt"
	"slices"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/backend"
	"github.com/proxima-mesh/proxima/internal/dns/meshname"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/identity/access"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/servicetag"
)

// tagMembers limit the service tags that nodes and workloads register: the service of a tag
// is that of a whole mesh, and a credential is for some namespaces. The catalog is set before
// the server runs.
type tagMembers struct{ catalog *catalog.Catalog }

// allow refuses a service tag that the credential's token does not name, where it names any,
// and one that workloads of namespaces have that the credential is not for. It reads the
// tables, so of two that are written at the same moment both may pass.
func (m *tagMembers) allow(w access.Write) error {
	dp, ok := w.Object.(*meshv1alpha1.Dataplane)
	if !ok || dp == nil || w.Subresource != "" || w.User == nil {
		return nil
	}
	name, groups := w.User.GetName(), w.User.GetGroups()
	bounds := identity.BoundsOf(w.User.GetExtra())
	within := bounds.AllowsNamespace
	if _, ok := identity.NodeName(name, groups); !ok {
		namespace, _, ok := identity.WorkloadName(name, groups)
		if !ok {
			return nil // an administrator, or the control plane
		}
		within = func(ns string) bool { return ns == namespace }
	}
	named := slices.Concat(bounds.Labels[meshv1alpha1.LabelService], bounds.Labels[meshv1alpha1.LabelKumaService])
	for _, tag := range servicetag.TagsOfDataplane(dp) {
		if len(named) > 0 {
			if !slices.Contains(named, tag) {
				return fmt.Errorf("the service tag of Dataplane %s must be one that its token names; %q is none", resource.KeyOf(dp), tag)
			}
			continue
		}
		if other, found := m.elsewhere(dp, tag, within); found {
			return fmt.Errorf("the service tag %q is that of %s, in a namespace that the credential is not for: make its token with --labels %s=%s",
				tag, other, meshv1alpha1.LabelService, tag)
		}
	}
	return nil
}

// elsewhere finds a workload of the service of a tag in a namespace that is not within.
func (m *tagMembers) elsewhere(dp *meshv1alpha1.Dataplane, tag string, within func(namespace string) bool) (name string, found bool) {
	host, err := meshname.OfTag(tag)
	if m.catalog == nil || err != nil {
		return "", false
	}
	s := m.catalog.Snapshot()
	pods, dataplanes := backend.Tagged(s, meshOf(s, resource.KeyOf(dp), dp), host)
	for _, pod := range pods {
		if !within(pod.Namespace) {
			return "Pod " + resource.KeyOf(pod).String(), true
		}
	}
	for _, other := range dataplanes {
		if !within(other.Namespace) {
			return "Dataplane " + resource.KeyOf(other).String(), true
		}
	}
	return "", false
}
