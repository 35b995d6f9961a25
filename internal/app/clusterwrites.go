package app

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/identity/access"
	"github.com/proxima-mesh/proxima/internal/kubernetes/extension"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// clusterWrites judges what users of a cluster write of our kinds, by the rules that writes has
// outside of clusters. The API server asks by the webhook; who may write at all its roles decide.
type clusterWrites struct {
	site   access.Site
	meshes *meshUpdates
	// zones and dryRuns are global's; nil: this is another control plane.
	zones   *zoneDeletions
	dryRuns *dryRuns
}

// allow is the function of extension.NewAdmission.
func (c *clusterWrites) allow(ctx context.Context, in extension.Write) error {
	w := access.Write{
		User: &user.DefaultInfo{Name: in.User.Username, UID: in.User.UID, Groups: in.User.Groups},
		Kind: in.Kind.GVK.GroupKind(), Subresource: in.Subresource, Object: in.Object, Old: in.Old, DryRun: in.DryRun, Warn: in.Warn,
	}
	if err := c.site.Allow(w); err != nil {
		return err
	}
	if err := c.allowHere(w); err != nil {
		return err
	}
	if c.meshes.authorities != nil {
		if err := c.meshes.allow(ctx, w); err != nil {
			return err
		}
	}
	if c.zones == nil {
		return nil
	}
	if err := c.zones.allow(ctx, w); err != nil {
		return err
	}
	return c.dryRuns.allow(ctx, w)
}

// allowHere refuses what a cluster has means of its own for, and warns of what has no effect there.
func (c *clusterWrites) allowHere(w access.Write) error {
	if w.Old != nil || w.Subresource != "" {
		return nil
	}
	switch obj := w.Object.(type) {
	case *meshv1alpha1.ZoneShift:
		if c.site.AtGlobal {
			return (&shifts{global: true}).allow(w)
		}
		return apierrors.NewForbidden(kind.ZoneShift.GroupResource(), obj.Name, errors.New(insteadOfShift(&obj.Spec)))
	case *meshv1alpha1.Dataplane:
		w.Warn("the workloads of a cluster are its Pods: a Dataplane has no effect here")
	}
	return nil
}

// insteadOfShift names what takes a node or a zone out in a cluster, whose endpoints are those that
// its own controllers write.
func insteadOfShift(spec *meshv1alpha1.ZoneShiftSpec) string {
	const why = "the endpoints of a cluster are those of its Pods, which its own controllers move: "
	if spec.Node != "" {
		return why + fmt.Sprintf("\"kubectl drain %s --ignore-daemonsets\" takes the node out, \"kubectl uncordon %s\" ends that",
			spec.Node, spec.Node)
	}
	const zone = "--selector topology.kubernetes.io/zone="
	return why + fmt.Sprintf("\"kubectl drain %s%s --ignore-daemonsets\" takes the nodes of the zone out, \"kubectl uncordon %s%s\" ends that",
		zone, spec.Zone, zone, spec.Zone)
}
