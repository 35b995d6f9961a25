package app

import (
	"cmp"
	"context"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	identityv1 "github.com/proxima-mesh/proxima/api/identity/v1"
	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	controller "github.com/proxima-mesh/proxima/internal/controller/external"
	"github.com/proxima-mesh/proxima/internal/gateway/external"
	"github.com/proxima-mesh/proxima/internal/identity/access"
	"github.com/proxima-mesh/proxima/internal/identity/credential"
	"github.com/proxima-mesh/proxima/internal/node"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	sitetable "github.com/proxima-mesh/proxima/internal/sites"
	"github.com/proxima-mesh/proxima/internal/xds/build"
)

// externalTLS is what nodes get out of Secrets for the TLS of external services:
//
//	Secrets ──► credential.Source ─┬► credential.Server ──► credential.Keeper, of the nodes
//	ExternalServices, Dataplanes, ─┼────┘ (whom it is sent to)      that begin the TLS
//	gateways                       └► build.Builder ──► Envoys beside workloads
type externalTLS struct {
	source *credential.Source
	server *credential.Server
	needs  *needs
}

func newExternalTLS(cfg ControlPlaneConfig, client resource.Client, tables *catalog.Catalog) *externalTLS {
	c := &externalTLS{
		source: credential.NewSource(credential.SourceConfig{
			Client: client, System: access.SystemNamespace, Logger: orDiscard(cfg.Logger).With("component", "external TLS"),
		}),
		needs: &needs{tables: tables, site: string(cfg.site()), changes: changes{changed: make(chan struct{})}},
	}
	c.server = credential.NewServer(credential.ServerConfig{Caller: access.CallerNode, Needs: c.needs.of, Source: c.source})
	return c
}

func (c *externalTLS) components() []component {
	return []component{
		{Name: "secrets of external services", Run: c.source.Run},
		{Name: "nodes of external services", Run: c.needs.follow},
	}
}

// supply hands over what is in Secrets for all services that this site reaches, at first and after each change, until ctx
// ends: set is SetCredentials of the builder of proxies' resources. What cannot be used is left out: nodes refuse these connections, and the status of the ExternalService says why.
func (c *externalTLS) supply(ctx context.Context, set func(map[catalog.Key]*build.Credentials)) error {
	for {
		secrets, changed := c.source.Changed(), c.needs.wait()
		all := map[catalog.Key]*build.Credentials{}
		for key, e := range c.needs.tables.Snapshot().ExternalServices.All() {
			if !c.needs.concern(e) {
				continue
			}
			if m, err := c.source.Of(ctx, e); err == nil {
				all[key] = &build.Credentials{Generation: uint64(e.Generation), Authorities: m.Roots, Certificate: m.Certificate, Key: m.Key}
			}
		}
		set(all)
		select {
		case <-secrets:
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// keep is an agent's end.
func (a *agent) keepCredentials() *credential.Keeper {
	return credential.NewKeeper(credential.KeeperConfig{
		Dir: filepath.Join(a.dir(), "identities"), Client: identityv1.NewIdentityClient(a.conn), Saved: a.unsaved.note,
		Logger: a.log.With("component", "external TLS"),
	})
}

// credentialsOf a service, for external.Config.
func (a *agent) credentialsOf(service proxy.ServiceName, generation uint64) (*external.Credentials, error) {
	roots, pair, err := a.credentials.Get(service, generation)
	if err != nil {
		return nil, err
	}
	return &external.Credentials{Roots: roots, Certificate: pair}, nil
}

// wantCredentials asks for what an update of the view needs out of Secrets, before the first
// connection does.
func (a *agent) wantCredentials(u node.Update) {
	if a.credentials == nil {
		return
	}
	needed := func(e *sitetable.External) bool { return e != nil && e.TLS != nil && e.TLS.Secrets }
	for _, r := range u.Remotes {
		egress := a.gateway != nil && a.cfg.Gateway.Egress
		if r != nil && needed(r.External) && (r.EgressOnly == egress) && (a.gateway == nil || egress) {
			a.credentials.Want()
		}
	}
	for _, o := range u.Offers {
		if o != nil && needed(o.External) && a.gateway != nil && !a.cfg.Gateway.Egress {
			a.credentials.Want()
		}
	}
}

// needs are the services whose TLS a node begins with what is in Secrets.
type needs struct {
	tables *catalog.Catalog
	site   string

	changes
}

// follow notes changes until ctx ends.
func (n *needs) follow(ctx context.Context) error {
	sub := n.tables.Subscribe(catalog.ExternalServices, catalog.Dataplanes, catalog.Pods, catalog.Namespaces, catalog.Meshes, catalog.ZoneIngresses, catalog.ZoneEgresses)
	defer sub.Close()
	for {
		d, err := sub.Next(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if n.concerns(&d) {
			n.note()
		}
	}
}

// concerns reports whether a delta may change what nodes need: every node asks then. Most
// changes are statuses, or come where nothing is in Secrets.
func (n *needs) concerns(d *catalog.Delta) bool {
	if moves(d.ExternalServices, sameSpec[*meshv1alpha1.ExternalService]) {
		return true
	}
	needed := false
	for _, e := range d.After.ExternalServices.All() {
		needed = needed || e.Spec.TLS != nil && sitetable.NeedsSecrets(e.Spec.TLS)
	}
	return needed && (moves(d.Dataplanes, func(a, b *meshv1alpha1.Dataplane) bool {
		return a.Spec.NodeName == b.Spec.NodeName && a.Spec.Mesh == b.Spec.Mesh
	}) || moves(d.Pods, func(a, b *corev1.Pod) bool {
		return a.Spec.NodeName == b.Spec.NodeName && (a.Status.PodIP == "") == (b.Status.PodIP == "") && kind.NamedMesh(a) == kind.NamedMesh(b)
	}) || moves(d.Namespaces, func(a, b *corev1.Namespace) bool { return kind.MeshOf(a) == kind.MeshOf(b) }) ||
		moves(d.Meshes, sameSpec[*meshv1alpha1.Mesh]) || moves(d.ZoneIngresses, sameLabels[*meshv1alpha1.ZoneIngress]) ||
		moves(d.ZoneEgresses, sameLabels[*meshv1alpha1.ZoneEgress]))
}

// moves reports whether one of the changes makes or removes an object, or does more to it than
// same allows.
func moves[T interface {
	comparable
	resource.Object
}](changes []catalog.Change[T], same func(a, b T) bool) bool {
	var none T
	return slices.ContainsFunc(changes, func(c catalog.Change[T]) bool {
		return c.Old == none || c.New == none || !same(c.Old, c.New)
	})
}

// sameSpec: the generation counts changes of the spec and the deletion.
func sameSpec[T resource.Object](a, b T) bool {
	return a.GetUID() == b.GetUID() && a.GetGeneration() == b.GetGeneration() && sameLabels(a, b)
}

func sameLabels[T resource.Object](a, b T) bool { return maps.Equal(a.GetLabels(), b.GetLabels()) }

// of implements credential.ServerConfig.Needs.
func (n *needs) of(nodeName string) ([]*meshv1alpha1.ExternalService, <-chan struct{}, error) {
	changed := n.wait()
	if !n.tables.Listed(catalog.ExternalServices, catalog.ZoneIngresses, catalog.ZoneEgresses) {
		return nil, nil, errNotSynced
	}
	tables := n.tables.Snapshot()
	role := n.roleOf(tables, nodeName)
	var out []*meshv1alpha1.ExternalService
	for key, e := range tables.ExternalServices.All() {
		if !n.concern(e) {
			continue
		}
		namespace, _ := tables.Namespaces.Get(resource.Key{Name: key.Namespace})
		if role.begins(tables, e, controller.MeshOf(e, namespace)) {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(a, b *meshv1alpha1.ExternalService) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return out, changed, nil
}

// concern reports whether the TLS of a service is begun with what is in Secrets, at this site.
func (n *needs) concern(e *meshv1alpha1.ExternalService) bool {
	return e.Spec.TLS != nil && sitetable.NeedsSecrets(e.Spec.TLS) && sitetable.ReachedFrom(e, n.site) && e.DeletionTimestamp.IsZero()
}

// nodeRole is what a node is: a gateway, or one with workloads of meshes.
type nodeRole struct {
	ingress, egress bool
	meshes          map[string]bool
}

func (n *needs) roleOf(tables *catalog.Snapshot, nodeName string) nodeRole {
	r := nodeRole{meshes: map[string]bool{}}
	key := resource.Key{Name: nodeName}
	if g, ok := tables.ZoneIngresses.Get(key); ok {
		r.ingress = ownGateway(g.Labels, n.site)
	}
	if g, ok := tables.ZoneEgresses.Get(key); ok {
		r.egress = ownGateway(g.Labels, n.site)
	}
	for key, dp := range tables.DataplanesOn(nodeName) {
		r.meshes[meshOf(tables, key, dp)] = true
	}
	for _, dp := range podDataplanes(tables, nodeName) { // those of a cluster
		r.meshes[dp.Spec.Mesh] = true
	}
	return r
}

// begins reports whether such a node begins the TLS of a service of a mesh, which this site
// reaches: the egresses alone where the mesh routes by them, else nodes with workloads of the
// mesh; and ingresses, for sites that do not reach the service.
func (r nodeRole) begins(tables *catalog.Snapshot, e *meshv1alpha1.ExternalService, meshName string) bool {
	if r.ingress && len(e.Spec.Zones) > 0 {
		return true
	}
	m, _ := tables.Meshes.Get(resource.Key{Name: meshName})
	if m != nil && m.Spec.Routing != nil && m.Spec.Routing.ZoneEgress != nil && *m.Spec.Routing.ZoneEgress {
		return r.egress
	}
	return r.meshes[meshName]
}
