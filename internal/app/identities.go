package app

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/identity/access"
	"github.com/proxima-mesh/proxima/internal/identity/authorities"
	"github.com/proxima-mesh/proxima/internal/identity/authority"
	"github.com/proxima-mesh/proxima/internal/identity/authority/files"
	"github.com/proxima-mesh/proxima/internal/identity/issue"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
	"github.com/proxima-mesh/proxima/internal/identity/rotation"
	"github.com/proxima-mesh/proxima/internal/identity/sealed"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/store"
)

// identities issue the certificates of workloads:
//
//	Mesh, GlobalSecret ──► authorities ◄── sealed records ◄── leader (roots, rotations)
//	                           │ signer, roots                  ▲ acknowledgements
//	agents ──── gRPC ────► issue.Server ──► ledger ──► issue.Board
type identities struct {
	log         *slog.Logger
	api         *api
	catalog     *catalog.Catalog
	authorities *authorities.Authorities
	records     *sealed.Records
	ledger      ledger
	board       *issue.Board
	server      *issue.Server
	external    *externalTLS
	unenforced  func(*meshv1alpha1.Mesh) authorities.Unenforced
	podMembers  *podMembers // nil: workloads are Dataplanes
	// record of a certificate, before it is given to its holder.
	record func(context.Context, issue.Issued) error
	// link to global, in a zone; nil: this control plane makes the roots itself.
	link *rootLink
	// acked has a value when the leader should look at rotations.
	acked chan struct{}
}

// ledger has the newest certificates that were issued, by whichever instance; see issue.Ledger.
type ledger interface {
	Record(context.Context, issue.Issued) error
	Follow(ctx context.Context, entry func(issue.Entry)) error
	All(ctx context.Context, entry func(issue.Entry)) (store.Revision, error)
}

// newIdentities wires the authorities of meshes and the server of certificates, which it
// adds to the instance's gRPC server.
func newIdentities(cfg ControlPlaneConfig, s *storage, a *api, i *instance, x *insights, log *slog.Logger) (*identities, error) {
	return newIdentitiesOf(cfg, s, a, i, identityTables{
		records: sealed.NewRecords(s.store, s.keys), ledger: issue.NewLedger(s.store, nil),
		workloads:  workloadTable{i.catalog, string(cfg.site())},
		unenforced: func(mesh *meshv1alpha1.Mesh) authorities.Unenforced { return unenforced(i.catalog.Snapshot(), mesh) },
		insights:   x,
	}, log)
}

// identityTables are where a control plane has keys, certificates and workloads.
type identityTables struct {
	records   *sealed.Records
	ledger    ledger
	workloads issue.Workloads
	// unenforced are for whom the isolation of a mesh does not hold.
	unenforced func(*meshv1alpha1.Mesh) authorities.Unenforced
	// members serves agents whose workloads are Pods; nil: they are objects of the API.
	members *podMembers
	// insights of workloads; nil: there are none.
	insights *insights
}

func newIdentitiesOf(
	cfg ControlPlaneConfig, s *storage, a *api, i *instance, tables identityTables, log *slog.Logger,
) (*identities, error) {
	log = log.With("component", "identities")
	site := string(cfg.site())
	d := &identities{
		log: log, api: a, catalog: i.catalog, acked: make(chan struct{}, 1), ledger: tables.ledger, unenforced: tables.unenforced,
		podMembers: tables.members, records: tables.records,
	}
	d.board = issue.NewBoard(d.ack)
	csrs, err := signerAPI(cfg.SignerKubeconfig)
	if err != nil {
		return nil, err
	}
	records := sealedRecords{tables.records}
	ours := authorities.Config{Intermediates: authorities.Local(records, site, time.Now)}
	if cfg.role() == RoleZone {
		d.link = newRootLink(log)
		ours = authorities.Config{Intermediates: d.link.intermediates, Global: d.link.state}
	}
	d.authorities = authorities.New(authorities.Config{
		Zone: site, Client: a.client, Records: records, CSRs: csrs, Logger: log,
		Intermediates: ours.Intermediates, Global: ours.Global,
		Files: func(cert, key, roots string) authorities.FileSource { return files.New(cert, key, roots) },
		Publish: func(p authorities.Published) error {
			return d.board.Publish(issue.Published{State: p.State, Domain: p.Domain, Life: p.Life})
		},
		Unpublish: d.board.Remove,
	})
	a.meshes.authorities = d.authorities
	if d.link != nil {
		d.link.changed = d.authorities.Kick
	}
	d.external = newExternalTLS(cfg, a.client, i.catalog)
	serving := issue.Config{
		Zone: site, Caller: access.CallerNode, Workloads: tables.workloads, Mesh: d.mesh,
		External: d.external.server.External, Record: d.ledger.Record, Board: d.board, Registerer: s.metrics, Logger: log,
	}
	if tables.insights != nil {
		serving.Record = tables.insights.recorded(d.ledger.Record)
	}
	d.record = serving.Record
	if d.podMembers != nil {
		serving.Members, serving.Redirection = d.podMembers.serve, d.podMembers.redirection
	}
	d.server = issue.NewServer(serving)
	if i.server != nil {
		d.server.Register(i.server)
	}
	return d, nil
}

// ack wakes the leader.
func (d *identities) ack() {
	select {
	case d.acked <- struct{}{}:
	default:
	}
}

// mesh implements issue.Config.Mesh.
func (d *identities) mesh(name string) (issue.Mesh, bool) {
	i, ok := d.authorities.Issuer(name)
	return issue.Mesh{Name: name, Domain: i.Domain, Issuer: i.ID, Signer: i.Signer, Life: i.Life}, ok
}

func (d *identities) components() []component {
	var follow []component
	if d.link != nil {
		follow = []component{{Name: "authorities of global", Run: d.link.run}}
	}
	if d.podMembers != nil {
		follow = append(follow, component{Name: "pods of agents", Run: d.podMembers.follow})
	} else {
		follow = append(follow, component{Name: "certificates of workloads that are gone", Run: d.forgetWorkloads})
	}
	return append(append(follow, d.external.components()...), []component{
		{Name: "authorities of meshes", Run: d.authorities.Run},
		{Name: "exports of meshes", Run: (&meshExports{tables: d.catalog, export: d.board.Export}).follow},
		{Name: "records of certificates", Run: func(ctx context.Context) error {
			return d.ledger.Follow(ctx, func(e issue.Entry) { d.board.Restore([]issue.Issued{e.Issued}) })
		}},
		{Name: "rotation of authorities", Scope: leader, Run: d.lead},
	}...)
}

// lead takes the steps of rotations, from when all holders of certificates are known.
func (d *identities) lead(ctx context.Context) error {
	for {
		_, err := d.ledger.All(ctx, func(e issue.Entry) { d.board.Restore([]issue.Issued{e.Issued}) })
		if err == nil {
			break
		}
		d.log.Warn("records of certificates not read; it is tried again", "error", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
	}
	if d.catalog.WaitSynced(ctx) != nil {
		return nil // ctx has ended
	}
	var acknowledge func(string, uint64, string)
	if d.link != nil {
		acknowledge = d.link.acknowledge
	}
	return authorities.NewLeader(authorities.LeaderConfig{
		Authorities: d.authorities, Client: d.api.client, Acked: d.acked, Members: d.members, Acknowledge: acknowledge,
		Unenforced: d.unenforced,
		Peers:      func(mesh string) []rotation.Peer { return d.board.Peers(mesh) },
		Logger:     d.log,
	}).Run(ctx)
}

// members of a mesh, for its status.
func (d *identities) members(name string) []string {
	tables := d.catalog.Snapshot()
	var out []string
	for key, dp := range tables.Dataplanes.All() {
		if meshOf(tables, key, dp) == name {
			out = append(out, key.String())
		}
	}
	for key, pod := range tables.Pods.All() {
		namespace, _ := tables.Namespaces.Get(resource.Key{Name: key.Namespace})
		if d.podMembers != nil && podDataplane(pod, namespace) != nil && kind.PodMesh(pod, namespace) == name {
			out = append(out, key.String())
		}
	}
	slices.Sort(out)
	return out
}

// signerAPI is the Kubernetes API of external signers; nil: there is none.
func signerAPI(kubeconfig string) (authority.CSRs, error) {
	if kubeconfig == "" {
		return nil, nil
	}
	cfg, err := ClusterREST(kubeconfig)
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	return client.CertificatesV1().CertificateSigningRequests(), nil
}

// sealedRecords are authorities.Records in the store.
type sealedRecords struct{ *sealed.Records }

// Record implements authorities.Records.
func (r sealedRecords) Record(name string) authorities.Record { return r.Records.Record(name) }

// Simple implements authorities.Records.
func (r sealedRecords) Simple(name string) authority.Keeper { return r.Records.Record(name).Simple() }

// workloadTable is the Dataplanes, as issue.Workloads.
type workloadTable struct {
	catalog *catalog.Catalog
	// site of this control plane.
	site string
}

var errNotSynced = errors.New("the control plane is still reading its store")

// Workload implements issue.Workloads.
func (t workloadTable) Workload(_ context.Context, namespace, name string) (w issue.Workload, ok bool, err error) {
	if !t.catalog.Listed() {
		return issue.Workload{}, false, errNotSynced
	}
	tables, key := t.catalog.Snapshot(), resource.Key{Namespace: namespace, Name: name}
	dp, ok := tables.Dataplanes.Get(key)
	if !ok {
		return issue.Workload{}, false, nil
	}
	return issue.Workload{
		Mesh: meshOf(tables, key, dp), Namespace: namespace, ServiceAccount: kind.DataplaneAccount(dp), Node: dp.Spec.NodeName,
	}, true, nil
}

// NodeInMesh implements issue.Workloads.
func (t workloadTable) NodeInMesh(_ context.Context, node, name string) (bool, error) {
	if !t.catalog.Listed() {
		return false, errNotSynced
	}
	tables := t.catalog.Snapshot()
	for key, dp := range tables.DataplanesOn(node) {
		if meshOf(tables, key, dp) == name {
			return true, nil
		}
	}
	return false, nil
}

// Gateway implements issue.Workloads: a gateway has the name of its node, and is of this
// site if it is no copy of another's.
func (t workloadTable) Gateway(_ context.Context, node string, role mesh.Kind) (bool, error) {
	if !t.catalog.Listed(catalog.ZoneIngresses, catalog.ZoneEgresses) {
		return false, errNotSynced
	}
	tables, key := t.catalog.Snapshot(), resource.Key{Name: node}
	if role == mesh.EgressID {
		g, ok := tables.ZoneEgresses.Get(key)
		return ok && ownGateway(g.Labels, t.site), nil
	}
	g, ok := tables.ZoneIngresses.Get(key)
	return ok && ownGateway(g.Labels, t.site), nil
}

func ownGateway(labels map[string]string, site string) bool {
	zone := labels[meshv1alpha1.LabelZone]
	return zone == "" || zone == site
}

// meshOf a Dataplane, by the tables.
func meshOf(tables *catalog.Snapshot, key resource.Key, dp *meshv1alpha1.Dataplane) string {
	namespace, _ := tables.Namespaces.Get(resource.Key{Name: key.Namespace})
	return kind.DataplaneMesh(dp, namespace)
}

// meshUpdates judges writes of Meshes; its authorities are set before the server runs.
type meshUpdates struct{ authorities *authorities.Authorities }

// allow refuses to enable a backend that cannot sign.
func (u *meshUpdates) allow(ctx context.Context, w access.Write) error {
	next, ok := w.Object.(*meshv1alpha1.Mesh)
	old, wasThere := w.Old.(*meshv1alpha1.Mesh)
	if !ok || !wasThere || w.Subresource != "" || next == nil || old == nil {
		return nil
	}
	if err := u.authorities.CheckUpdate(ctx, next, old); err != nil {
		return apierrors.NewConflict(kind.Mesh.GroupResource(), next.Name, err)
	}
	return nil
}
