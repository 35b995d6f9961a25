package app

import (
	"context"
	"log/slog"
	"slices"

	"k8s.io/client-go/rest"

	"github.com/proxima-mesh/proxima/internal/admin"
	gateways "github.com/proxima-mesh/proxima/internal/controller/gateway"
	"github.com/proxima-mesh/proxima/internal/federation/local"
	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// clusterZone is what the control plane of a cluster has that is one zone of several, in addition to
// clusterMeshes:
//
//	global ◄─── zoneLink ◄─── objects of the cluster ──► exports, imports, names, externals
//	              └─► copies                          ──► gateways (Pods) ──► ZoneIngresses
type clusterZone struct {
	link *zoneLink
	// secrets of the cluster that ExternalServices name.
	secrets *namedSecrets
	// kinds that are exchanged with global.
	kinds []local.Kind
}

// zoneKinds are what such a control plane follows in addition to planeKinds.
func zoneKinds() []*resource.Descriptor {
	return []*resource.Descriptor{
		kind.ExternalService, kind.ServiceExport, kind.ServiceImport, kind.ZoneIngress, kind.ZoneEgress, kind.VirtualIP,
	}
}

// clusterFederated are the kinds that a cluster exchanges. Secrets but GlobalSecrets are not among
// them: a control plane would have to be allowed to read all those of the cluster. Workloads are its
// Pods, and what is observed of gateways and workloads is their status. Nor are what the cluster does not serve.
func clusterFederated(unserved []*resource.Descriptor) []local.Kind {
	none := []*resource.Descriptor{kind.Secret, kind.DataplaneInsight, kind.ZoneIngressInsight, kind.ZoneEgressInsight}
	return without(federated(), append(none, unserved...))
}

// without some kinds.
func without(kinds []local.Kind, none []*resource.Descriptor) []local.Kind {
	return slices.DeleteFunc(kinds, func(k local.Kind) bool { return slices.Contains(none, k.Descriptor) })
}

// unservedKinds are those of the Gateway API that the cluster does not serve when the control plane
// starts: its definitions are the cluster's own, and may be missing. It blocks for a request.
func unservedKinds(ctx context.Context, cfg *rest.Config, log *slog.Logger) ([]*resource.Descriptor, error) {
	var all []*resource.Descriptor
	for _, k := range federated() {
		if ofGatewayAPI(k.Descriptor.GVK.GroupKind()) {
			all = append(all, k.Descriptor)
		}
	}
	client, err := kubeclient.New(clusterREST(cfg), all)
	if err != nil {
		return nil, err
	}
	served, err := client.Served(ctx, all)
	if err != nil {
		return nil, explainCluster(cfg, err)
	}
	out := slices.DeleteFunc(all, func(d *resource.Descriptor) bool { return slices.Contains(served, d) })
	for _, d := range out {
		log.Info("the cluster does not serve this kind, so its objects are not exchanged with other control planes",
			"kind", d.GVK.Kind, "version", d.GVK.GroupVersion(), "remedy", "install the definitions of the Gateway API, and restart the control plane")
	}
	return out, nil
}

// newZone wires the parts of a zone, if it is one. The instance listens already, and newMeshes was called.
func (p *clusterPlane) newZone(ctx context.Context) (err error) {
	z, i := p.zone, p.instance
	if z == nil {
		return nil
	}
	calls := &agentCalls{
		zone: string(p.cfg.site()), instance: instanceName(p.api.address), heartbeat: i.heartbeat, catalog: i.catalog,
		log: p.log.With("component", "calls"),
	}
	z.link = &zoneLink{
		cfg: p.cfg, log: p.log.With("component", "federation"), storage: p.storage, client: p.client, sends: p.client, kinds: z.kinds,
		epoch: p.epoch, run: p.run, instance: instanceName(p.api.address), calls: calls,
	}
	pods := derivedDataplanes{p.client, i.catalog}
	z.link.derived = pods.follow
	if z.link.sends, err = resource.NewRouter(p.client, resource.Override{Kind: kind.Dataplane, Client: pods}); err != nil {
		return err
	}
	z.link.checker = &local.Checker{
		Zone: p.cfg.Zone, Client: p.client, Kinds: z.link.kinds, Try: p.cluster.Try, Uses: policyUses{i.catalog, p.cfg.DefaultTopologyMode}.of,
	}
	if err := z.link.join(ctx); err != nil {
		return err
	}
	p.meshes.identities.link.zone.Store(z.link)
	return nil
}

// zoneComponents run in addition to those of a cluster that stands alone.
func (p *clusterPlane) zoneComponents() []component {
	z := p.zone
	if z == nil {
		return nil
	}
	return slices.Concat(
		[]component{
			{Name: "secrets of policies", Run: func(ctx context.Context) error { return z.secrets.follow(ctx, p.instance.catalog) }},
			{Name: "export controller", Scope: leader, Run: p.leader.runExports},
			{Name: "import controller", Scope: leader, Run: p.leader.runImports},
			{Name: "names of meshes", Scope: leader, Run: p.leader.runVirtualIPs},
			{Name: "external service controller", Scope: leader, Run: p.leader.runExternals},
			{Name: "gateways", Scope: leader, Run: p.runGateways},
		},
		z.link.components(),
	)
}

// Ports that gateways listen on in a cluster: CONTRACT's.
const (
	ingressPort = 10001
	egressPort  = 10002
)

// runGateways keeps the objects of gateways.
func (p *clusterPlane) runGateways(ctx context.Context) error {
	return gateways.New(gateways.Config{
		Client: p.client, Catalog: p.instance.catalog, Site: string(p.cfg.site()), Namespace: p.cfg.Namespace,
		IngressPort: ingressPort, EgressPort: egressPort, Logger: p.log.With("component", "gateways"),
	}).Run(ctx)
}

// federation is what the status says of global; nil: there is none.
func (z *clusterZone) federation() admin.Federation {
	if z == nil {
		return nil
	}
	return z.link.admin()
}
