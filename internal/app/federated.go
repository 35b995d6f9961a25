package app

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	gatewayapi "sigs.k8s.io/gateway-api/apis/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/federation"
	"github.com/proxima-mesh/proxima/internal/federation/local"
	"github.com/proxima-mesh/proxima/internal/identity/access"
	trafficpolicy "github.com/proxima-mesh/proxima/internal/policy"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// federated are the kinds that zones and global exchange, in the order in which they are
// sent. Their descriptors have the direction. Of secrets only what a zone uses goes there,
// and never the key of an authority (package secrets).
func federated() []local.Kind {
	return []local.Kind{
		secretKind(kind.GlobalSecret),
		secretKind(kind.Secret),
		meshes(),
		policyKind(kind.ZoneCosts),
		policyKind(kind.TopologyHeuristic),
		policyKind(kind.ExternalService),
		ranked(policyKind(kind.TrafficPermission)),
		ranked(policyKind(kind.BackendPolicy)),
		ranked(policyKind(kind.WorkloadPolicy)),
		ranked(policyKind(kind.ProxyPatch)),
		ranked(route(kind.HTTPRoute)),
		ranked(route(kind.GRPCRoute)),
		ranked(route(kind.TCPRoute)),
		route(kind.ReferenceGrant),
		transient(local.Kind{Descriptor: kind.ZoneIngress, Stamp: on(stampIngress)}),
		transient(local.Kind{Descriptor: kind.ZoneEgress, Stamp: on(stampEgress)}),
		labelled(local.Kind{Descriptor: kind.Service, Prune: pruned(pruneService), Local: of(localService), OwnStatus: true}),
		// What is available of a service changes with its workloads, as an ingress does.
		transient(labelled(selected(local.Kind{
			Descriptor: kind.ServiceExport, Zones: of(exportZones), Stamp: on(stampExport), Local: of(newExport),
		}))),
		transient(local.Kind{Descriptor: kind.Dataplane, Mesh: of(dataplaneMesh), Prune: pruned(pruneDataplane)}),
		transient(local.Kind{Descriptor: kind.DataplaneInsight}),
		transient(local.Kind{Descriptor: kind.ZoneIngressInsight}),
		transient(local.Kind{Descriptor: kind.ZoneEgressInsight}),
	}
}

// typed completes a kind by the type that its descriptor declares.
func typed(k local.Kind) local.Kind {
	if k.Type.Name == "" {
		k.Type, _ = local.TypeOf(k.Descriptor)
	}
	return k
}

// policyKind is a kind that users write at global. Others refer to it by its name; its status
// is what each control plane observes.
func policyKind(d *resource.Descriptor) local.Kind {
	k := typed(local.Kind{Descriptor: d, OwnStatus: true, Policy: true})
	k.Type.KeepName = true
	return k
}

// meshes are policies, of which every control plane that stands alone makes the default one.
func meshes() local.Kind {
	k := policyKind(kind.Mesh)
	k.Untouched = of(kind.UntouchedMesh)
	return k
}

// route is a kind of the Gateway API. Who owns a Service writes its routes where it is, at global for
// all zones, or in its zone; so a zone's own one needs no label, and does not give way.
func route(d *resource.Descriptor) local.Kind {
	k := policyKind(d)
	k.Policy, k.Local = false, routeElsewhere
	return k
}

// routeElsewhere selects what is no route of a mesh: those of Gateways are what the cluster's own
// implementation of the Gateway API serves, and a grant is for these if it is for no route.
func routeElsewhere(obj resource.Object) bool {
	if g, ok := obj.(*gatewayapi.ReferenceGrant); ok {
		return !slices.ContainsFunc(g.Spec.From, func(f gatewayapi.ReferenceGrantFrom) bool {
			return f.Group == gatewayapi.GroupName && strings.HasSuffix(string(f.Kind), "Route")
		})
	}
	return !slices.ContainsFunc(trafficpolicy.ParentRefs(obj), func(p gatewayapi.ParentReference) bool {
		_, ok := trafficpolicy.Parent(obj.GetNamespace(), &p)
		return ok
	})
}

// ranked kinds are those of which the older object wins.
func ranked(k local.Kind) local.Kind {
	k.Ranked = true
	return k
}

// withoutLabel reports a kind of which zones write objects of their own without a label.
func withoutLabel(gk schema.GroupKind) bool {
	return isSecret(gk) || ofGatewayAPI(gk)
}

// ofGatewayAPI reports a kind of which the definitions are not ours.
func ofGatewayAPI(gk schema.GroupKind) bool { return gk.Group == gatewayapi.GroupName }

// transient kinds come and go with workloads.
func transient(k local.Kind) local.Kind {
	k = typed(k)
	k.Type.Transient = true
	return k
}

// labelled kinds have DNS labels as names.
func labelled(k local.Kind) local.Kind {
	k = typed(k)
	k.Type.LabelName = true
	return k
}

// selected kinds go to the zones that each object names.
func selected(k local.Kind) local.Kind {
	k = typed(k)
	k.Type.FanOut = federation.SelectedZones
	return k
}

func on[T resource.Object](f func(T, string)) func(resource.Object, string) {
	return func(obj resource.Object, zone string) { f(obj.(T), zone) }
}

func of[T resource.Object, R any](f func(T) R) func(resource.Object) R {
	return func(obj resource.Object) R { return f(obj.(T)) }
}

func pruned[T resource.Object](f func(T)) func(resource.Object) {
	return func(obj resource.Object) { f(obj.(T)) }
}

func stampIngress(i *meshv1alpha1.ZoneIngress, zone string) { i.Spec.Zone = zone }
func stampEgress(e *meshv1alpha1.ZoneEgress, zone string)   { e.Spec.Zone = zone }

func stampExport(e *mcs.ServiceExport, zone string) {
	if e.Status.Available != nil {
		e.Status.Available.Zone = zone
	}
}

// newExport reports whether the zone's controller has not written the status of an export yet.
// Such an export offers nothing. Sent at once, it would be a message and a commit in each control
// plane, and what it offers would come a moment later, after another one.
func newExport(e *mcs.ServiceExport) bool {
	return e.Status.Available == nil && len(e.Status.Conditions) == 0
}

// exportZones are the zones that may use an export.
func exportZones(e *mcs.ServiceExport) []string {
	var out []string
	if e.Status.Available != nil {
		out = slices.Clone(e.Status.Available.ToZones)
	}
	for name := range strings.SplitSeq(e.Annotations[meshv1alpha1.AnnotationToZones], ",") {
		if name = strings.TrimSpace(name); name != "" {
			out = append(out, name)
		}
	}
	if len(out) == 0 {
		return []string{local.AnyZone}
	}
	return out
}

func dataplaneMesh(d *meshv1alpha1.Dataplane) string { return kind.DataplaneMesh(d, nil) }

// pruneDataplane drops the lease, which its control plane alone follows.
func pruneDataplane(d *meshv1alpha1.Dataplane) { d.Status.Lease = nil }

// localService are Services that every control plane has, and those that are derived of
// other zones' exports, or of ExternalServices.
func localService(s *corev1.Service) bool {
	_, derived := s.Labels[mcs.LabelServiceName]
	_, external := s.Labels[meshv1alpha1.LabelExternalService]
	return derived || external || kind.IsAPI(resource.KeyOf(s))
}

// pruneService drops what is an address of the zone's own: at global a Service is an
// inventory of names and ports, which takes no virtual IP.
func pruneService(s *corev1.Service) {
	kept := corev1.ServiceSpec{
		Type: corev1.ServiceTypeClusterIP, ClusterIP: corev1.ClusterIPNone, Selector: s.Spec.Selector, Ports: s.Spec.Ports,
		SessionAffinity: s.Spec.SessionAffinity, SessionAffinityConfig: s.Spec.SessionAffinityConfig,
		PublishNotReadyAddresses: s.Spec.PublishNotReadyAddresses, TrafficDistribution: s.Spec.TrafficDistribution,
	}
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		kept.Type, kept.ClusterIP, kept.ExternalName = s.Spec.Type, "", s.Spec.ExternalName
	}
	for i := range kept.Ports {
		kept.Ports[i].NodePort = 0
	}
	s.Spec = kept
}

// directionOf a kind that is federated.
func directionOf(gk schema.GroupKind) resource.Direction {
	for _, k := range federated() {
		if k.Descriptor.GVK.GroupKind() == gk {
			return k.Descriptor.Direction
		}
	}
	return resource.Stays
}

// accessSite is what the policy of writes knows of this control plane.
func (c *ControlPlaneConfig) accessSite() access.Site {
	return access.Site{Zone: c.Zone, AtGlobal: c.role() == RoleGlobal, Global: c.Global, Direction: directionOf, Shared: withoutLabel}
}

// systemNamespaces of a control plane that is one of several.
func (c *ControlPlaneConfig) systemNamespaces() []string {
	if c.role() == RoleStandalone {
		return nil
	}
	return []string{access.SystemNamespace}
}

// zoneDeletions refuses to delete a zone that is online; its client is set before the
// server runs.
type zoneDeletions struct{ client resource.Client }

func (z *zoneDeletions) allow(ctx context.Context, w access.Write) error {
	zone, ok := w.Old.(*meshv1alpha1.Zone)
	if !ok || w.Object != nil || !kind.ZoneEnabled(zone) || zone.DeletionTimestamp != nil {
		return nil
	}
	obj, err := z.client.Get(ctx, kind.ZoneInsight, resource.Key{Name: zone.Name})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if obj.(*meshv1alpha1.ZoneInsight).Status.Online {
		return apierrors.NewConflict(kind.Zone.GroupResource(), zone.Name, fmt.Errorf(
			"it is online: stop its control plane or disable it first, or delete it with \"proxima zone delete %s --force\"", zone.Name))
	}
	return nil
}
