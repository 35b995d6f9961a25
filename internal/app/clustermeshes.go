package app

import (
	"context"
	"slices"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/identity/authorities"
	"github.com/proxima-mesh/proxima/internal/identity/sealed"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// clusterMeshes is what the control plane of a cluster has whose meshes have certificates:
//
//	agents, gateways ◄── identities ◄── records (a Secret) ◄── roots: of global, or of this leader
//	sidecars ◄── proxies ◄── tables
//
// In a zone the roots of meshes are global's, and there is an intermediate authority below them here. A
// cluster that stands alone makes both itself.
type clusterMeshes struct {
	records    *clusterRecords
	identities *identities
	// routes are the kinds of the Gateway API that the cluster serves.
	routes []*resource.Descriptor
	// proxies of Pods and what is observed of them; nil: they are not served.
	proxies  *proxies
	insights *insights
	// members of nodes, and events of those with a sidecar.
	members *podMembers
	events  *podEvents
}

// openMeshes opens the records, and finds out what the cluster serves, where meshes have certificates. It
// blocks for some requests.
func (p *clusterPlane) openMeshes(ctx context.Context) (err error) {
	zone := p.cfg.role() == RoleZone
	if !zone && !p.cfg.standsWithSidecars() {
		return nil
	}
	p.meshes = &clusterMeshes{}
	if p.meshes.records, err = openClusterRecords(ctx, p.cfg, p.storage); err != nil {
		return err
	}
	if err := p.meshes.records.use(ctx, p.cfg, p.storage); err != nil {
		return err
	}
	unserved, err := unservedKinds(ctx, p.cfg.Cluster, p.log)
	if err != nil {
		return err
	}
	for _, k := range without(federated(), unserved) {
		if ofGatewayAPI(k.Descriptor.GVK.GroupKind()) {
			p.meshes.routes = append(p.meshes.routes, k.Descriptor)
		}
	}
	if zone {
		p.zone = &clusterZone{kinds: clusterFederated(unserved)}
	}
	return nil
}

// newMeshes wires the authorities, and what serves sidecars. The instance listens already.
func (p *clusterPlane) newMeshes(ctx context.Context) (err error) {
	m, i := p.meshes, p.instance
	if m == nil {
		return nil
	}
	i.modes = newModeLabels(i.catalog, patchMode(p.cluster), p.log.With("component", "modes of nodes"))
	m.events = &podEvents{
		client: p.client, tables: i.catalog, log: p.log.With("component", "events of pods"),
		certified: func(mesh string) bool { _, ok := m.identities.mesh(mesh); return ok },
	}
	m.members = newPodMembers(i.catalog, m.events)
	workloads := podWorkloads{workloadTable{i.catalog, string(p.cfg.site())}}
	if p.servesProxies() {
		m.insights = newInsights(podInsights{p.client, i.catalog}, nil, false, p.storage, p.api, p.log)
		m.insights.runs, i.acks.runs = p.runsHere, p.runsHere
	}
	m.identities, err = newIdentitiesOf(p.cfg, p.storage, p.api, i, identityTables{
		records: sealed.NewRecords(m.records.records, unsealed{}), ledger: newHolders(m.records.certificates),
		workloads: workloads, members: m.members, insights: m.insights,
		unenforced: func(m *meshv1alpha1.Mesh) authorities.Unenforced { return clusterUnenforced(i.catalog.Snapshot(), m) },
	}, p.log)
	if err != nil {
		return err
	}
	p.leader.secrets = m.identities.external.source
	if p.servesProxies() {
		return p.newProxies(ctx, workloads)
	}
	return nil
}

func (m *clusterMeshes) components(s *storage) []component {
	if m == nil {
		return nil
	}
	return slices.Concat(m.records.components(s), m.identities.components(), m.insights.components(), m.proxies.components())
}

// close what openMeshes and newMeshes have opened.
func (m *clusterMeshes) close() {
	if m == nil {
		return
	}
	m.proxies.close()
	if m.identities != nil {
		m.identities.link.close()
	}
	m.records.close()
}

// clusterUnenforced are the Pods of a mesh without passthrough for which that does not hold: those
// in the network of their node. Others have addresses of their own, by which agents tell them.
func clusterUnenforced(s *catalog.Snapshot, mesh *meshv1alpha1.Mesh) authorities.Unenforced {
	out := authorities.Unenforced{Apart: s.Meshes.Len() > 1}
	for key, pod := range s.Pods.All() {
		namespace, _ := s.Namespaces.Get(resource.Key{Name: key.Namespace})
		if pod.Spec.HostNetwork && pod.Spec.NodeName != "" && !kind.MeshPassthrough(mesh) && kind.PodMesh(pod, namespace) == mesh.Name {
			out.Passthrough = append(out.Passthrough, key.String()+": it is in the network of node "+pod.Spec.NodeName)
		}
	}
	slices.Sort(out.Passthrough)
	return out
}
