package app

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/apiserver"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/feed/history"
	"github.com/proxima-mesh/proxima/internal/feed/redact"
	"github.com/proxima-mesh/proxima/internal/feed/sink"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/identity/access"
	"github.com/proxima-mesh/proxima/internal/listener"
	"github.com/proxima-mesh/proxima/internal/machine"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/cached"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/metered"
	"github.com/proxima-mesh/proxima/internal/version"
)

// api is the Kubernetes-compatible API of an instance, and the clients through which its
// controllers read and write.
type api struct {
	server  *apiserver.Server
	address net.Addr
	// authorizer of the server.
	authorizer authorizer.UnconditionalAuthorizer
	// history of objects; nil: there is none.
	history *history.Reader
	// sinks of the change feed; nil: there is none.
	sinks *sink.Sinks
	// redactions of the change feed; nil: there is none.
	redactions *redact.Redactions
	// sessions end requests and streams whose credentials are revoked.
	sessions *access.Sessions
	// holders distinguish machines of one node name.
	holders *access.Holders
	// nodes that the policy of writes reads; its catalog is set before the server runs.
	nodes *nodeTable
	// meshes judges writes of Meshes; its authorities are set before the server runs.
	meshes *meshUpdates
	// zones judges deletions of Zones; its client is set before the server runs.
	zones *zoneDeletions
	// members judges Dataplanes; its catalog is set before the server runs.
	members *meshMembers
	tags    *tagMembers
	// cordons judges Dataplanes; its catalog is set before the server runs.
	cordons *cordons
	// shifts judge ZoneShifts; as cordons.
	shifts *shifts
	// secrets judges deletions of secrets; its client is set before the server runs.
	secrets *secretUses
	// dryRuns are judged by zones, too; its global is set before the server runs.
	dryRuns *dryRuns

	// direct is the API itself.
	direct *apiserver.Client
	// client of all kinds, measured. Reads are as new as the store.
	client resource.Client
	// cached is client, except for the kinds that it reads from memory. It is for
	// controllers that write on condition of what they read; see package cached.
	cached resource.Client
	memory *cached.Client
}

func newAPI(cfg ControlPlaneConfig, s *storage, log *slog.Logger) (*api, error) {
	limit := listener.DescriptorShare(maxAPIConnections, apiShare)
	l, err := listen("API", "--api-address", cfg.APIAddress, limit, log)
	if err != nil {
		return nil, err
	}
	a := &api{
		address: l.Addr(), sessions: access.NewSessions(s.revocations, log.With("component", "sessions")),
		holders: access.NewHolders(), nodes: &nodeTable{}, meshes: &meshUpdates{}, zones: &zoneDeletions{},
		members: &meshMembers{}, tags: &tagMembers{}, cordons: &cordons{}, shifts: &shifts{}, secrets: &secretUses{}, dryRuns: &dryRuns{},
	}
	a.cordons.nodes = a.nodes
	if a.server, err = a.newServer(cfg, s, l, log); err != nil {
		l.Close()
		return nil, err
	}
	of, err := a.fedObjects(s)
	if err == nil {
		err = a.openFeedReaders(cfg, s, of, log)
	}
	if err != nil {
		a.server.Close()
		return nil, err
	}
	a.nodes.client = a.server.Client("system:apiserver")
	a.zones.client, a.secrets.client = a.nodes.client, a.nodes.client
	if err := a.newClients(cfg, s, log); err != nil {
		a.server.Close()
		return nil, err
	}
	return a, nil
}

func (a *api) newServer(cfg ControlPlaneConfig, s *storage, l net.Listener, log *slog.Logger) (*apiserver.Server, error) {
	pair, err := serverCertificate(cfg, s.ca, l.Addr(), cfg.ServiceCIDRs)
	if err != nil {
		return nil, err
	}
	authorize := newByCredential()
	a.authorizer = authorize
	return apiserver.New(apiserver.Config{
		Store: s.store, Kinds: kind.All(), Listener: l,
		CertPEM: pair.Cert, KeyPEM: pair.Key, ClientCAPEM: s.ca.PEM(),
		NamedCertFile: cfg.TLSCertFile, NamedKeyFile: cfg.TLSKeyFile,
		Authenticator: access.NewAuthenticator(s.tokens, s.ca.Pool(), s.policy(), log.With("component", "authentication")),
		Authorizer:    authorize,
		Rules:         authorize,
		Unoffered:     authorize.Unoffered(),
		Guard:         a.sessions.Guard,
		Admitted:      a.cordons.guardDrain,
		Writes: writes{
			&access.WritePolicy{Cluster: a.nodes, MachineID: s.machineID, Local: new(machine.Interfaces).Has, Site: cfg.accessSite()},
			a.holders, a.meshes, a.zones, a.members, a.tags, a.cordons, a.shifts, a.secrets, a.dryRuns,
		},
		NodeDeletion: nodeDeletion,
		ServiceCIDRs: cfg.ServiceCIDRs, OneAddressPool: cfg.OneAddressPool, OneNodePortPool: cfg.OneNodePortPool,
		ExternalIPRanges: cfg.ExternalIPRanges,
		Namespaces:       cfg.systemNamespaces(), MeshElsewhere: cfg.role() == RoleZone,
		Several:     s.shared(),
		Tracer:      s.traces.tracer(),
		Limits:      cfg.Limits,
		Quota:       cfg.Quota,
		LongRunning: admin.LongPaths(),
		Transformer: s.keys.Transformers(sealedGroups()...),
		Metrics:     s.metrics,
		Audit:       auditTo(s.audit),
		AuditReads:  append(admin.LongPaths(), admin.ProxyPaths()...),
		Logger:      log.With("component", "api"),
		Version:     version.Get().Version,
	})
}

// newClients puts together what each kind is read and written through. This is the place
// to give a kind another client, or to wrap them all.
func (a *api) newClients(cfg ControlPlaneConfig, s *storage, log *slog.Logger) error {
	a.direct = a.server.Client("system:proxima:controllers")
	meter := metered.New(metered.Config{Registerer: s.metrics})
	a.client = resource.Wrap(a.direct, meter.Wrap)
	if cfg.Wrap != nil {
		a.client = resource.Wrap(a.client, cfg.Wrap)
	}
	// Few objects, and read for each heartbeat or deletion.
	kinds := []*resource.Descriptor{kind.Namespace, kind.Node, kind.Dataplane}
	if cfg.role() == RoleGlobal {
		kinds = []*resource.Descriptor{kind.Namespace} // the others are copies, and many
	}
	a.memory = cached.New(cached.Config{
		Client:     a.client,
		Kinds:      kinds,
		Logger:     log.With("component", "cached reads"),
		Registerer: s.metrics,
	})
	var overrides []resource.Override
	for _, k := range kinds {
		overrides = append(overrides, resource.Override{Kind: k, Client: a.memory})
	}
	var err error
	if a.cached, err = resource.NewRouter(a.client, overrides...); err != nil {
		return fmt.Errorf("clients of controllers: %w", err)
	}
	return nil
}

func (a *api) components() []component {
	return []component{
		{Name: "sessions", Run: a.sessions.Run},
		{Name: "API", Run: a.server.Run, Ready: a.server.Ready()},
		{Name: "cached reads", Run: a.memory.Run},
	}
}

// followers of the change feed: what sends its changes on, and what redacts it.
func (a *api) followers() []component {
	if a.sinks == nil {
		return nil
	}
	return []component{
		{Name: "sinks of the change feed", Scope: leader, Run: a.sinks.Run},
		{Name: "redactions of the change feed", Run: a.redactions.Run},
	}
}

// writes are admitted by what a credential may write, by which machine has the name of a
// node, and by whether the authority that a Mesh enables can sign.
type writes struct {
	*access.WritePolicy
	holders *access.Holders
	meshes  *meshUpdates
	zones   *zoneDeletions
	members *meshMembers
	tags    *tagMembers
	cordons *cordons
	shifts  *shifts
	secrets *secretUses
	dryRuns *dryRuns
}

// Prepare implements apiserver.WritePolicy.
func (w writes) Prepare(write access.Write) {
	w.WritePolicy.Prepare(write)
	w.secrets.prepare(write)
}

// Allow implements apiserver.WritePolicy.
func (w writes) Allow(ctx context.Context, write access.Write) error {
	if err := w.WritePolicy.Allow(ctx, write); err != nil {
		return err
	}
	if err := w.holders.AllowWrite(write.Kind, write.Object, write.Old); err != nil {
		return err
	}
	if err := w.zones.allow(ctx, write); err != nil {
		return err
	}
	if err := w.members.allow(write); err != nil {
		return err
	}
	if err := w.tags.allow(write); err != nil {
		return err
	}
	if err := w.cordons.allow(ctx, write); err != nil {
		return err
	}
	if err := w.shifts.allow(write); err != nil {
		return err
	}
	if err := w.meshes.allow(ctx, write); err != nil {
		return err
	}
	if err := w.secrets.allow(ctx, write); err != nil {
		return err
	}
	return w.dryRuns.allow(ctx, write)
}

// nodeTable is the Nodes, as an access.Cluster.
type nodeTable struct {
	client  resource.Client
	catalog *catalog.Catalog
}

// Node implements access.Cluster.
func (n *nodeTable) Node(ctx context.Context, name string) (*corev1.Node, error) {
	obj, err := n.client.Get(ctx, kind.Node, resource.Key{Name: name})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return obj.(*corev1.Node), nil
}

// Holder implements access.Cluster.
func (n *nodeTable) Holder(addr netip.Addr, other string) (string, error) {
	if !n.catalog.Listed() {
		return "", apierrors.NewServiceUnavailable("the control plane is still reading its store; try again in a moment")
	}
	for key, node := range n.catalog.Snapshot().Nodes.All() {
		if key.Name != other && access.HoldsAddress(node, addr) {
			return key.Name, nil
		}
	}
	return "", nil
}

// nodeDeletion is what remains of a Node: its credentials are refused.
func nodeDeletion(n *corev1.Node, who user.Info) (key string, value []byte, err error) {
	record := identity.DeletedNode{Deleted: time.Now().UTC()}
	if who != nil {
		record.By = who.GetName()
	}
	return identity.DeletedNodeRecord(n.Name, record)
}
