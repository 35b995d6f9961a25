package app

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/utils/clock"

	corev1 "k8s.io/api/core/v1"

	identityv1 "github.com/proxima-mesh/proxima/api/identity/v1"
	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
	"github.com/proxima-mesh/proxima/internal/identity/spiffe"
	"github.com/proxima-mesh/proxima/internal/identity/workload"
	"github.com/proxima-mesh/proxima/internal/kernel/sockdiag"
	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/node/cgroups"
	"github.com/proxima-mesh/proxima/internal/node/local"
	"github.com/proxima-mesh/proxima/internal/node/podproxy"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/reflector"
)

// nodeIdentity is the certificates of a node and its workloads:
//
//	control plane ──► workload.Manager ◄── Dataplanes of this node
//	 (gRPC)              │  DATADIR/node/identities
//	                     ▼
//	               spiffe.Server ◄── workloads, attested by `proxima run`
type nodeIdentity struct {
	log *slog.Logger
	// manager has the certificates, what is trusted, and channels of their changes. It is
	// what a listener or client of mutual TLS on this node uses.
	manager *workload.Manager
	table   *spiffe.Table
	// cgroups of workloads, and the one of a socket by its two ends; nil: none.
	cgroups    *cgroups.Table
	socketsOwn func(local, remote netip.AddrPort) (uint64, error)
	// redirection of Pods to their sidecars; nil: off.
	redirection *podproxy.Keeper
	// socket of the SPIFFE Workload API; nil: it is off.
	socket net.Listener

	mu         sync.Mutex
	dataplanes map[resource.Key]*meshv1alpha1.Dataplane
	namespaces map[string]*corev1.Namespace
	listed     map[*resource.Descriptor]bool
}

// openIdentity loads certificates that an earlier run kept, and opens the socket of the
// Workload API.
func (a *agent) openIdentity() (err error) {
	n := &nodeIdentity{
		log: a.log.With("component", "identities"), table: &spiffe.Table{}, dataplanes: map[resource.Key]*meshv1alpha1.Dataplane{},
		namespaces: map[string]*corev1.Namespace{}, listed: map[*resource.Descriptor]bool{}, socketsOwn: sockdiag.CgroupOf,
	}
	var gateway mesh.Kind
	if a.gateway != nil {
		gateway = a.cfg.Gateway.identity()
	}
	n.manager = workload.New(workload.Config{
		Gateway: gateway,
		Dir:     filepath.Join(a.dir(), "identities"), Client: identityv1.NewIdentityClient(a.conn), Node: a.cfg.Name, Spread: a.cfg.certificateSpread,
		Registerer: a.registry, Logger: n.log, Now: a.cfg.now,
	})
	a.identity = n
	if dir := a.cfg.PodNamespaces; dir != "" && a.cfg.inCluster() {
		n.redirection = podproxy.New(podproxy.Config{
			Dir: dir, Registerer: a.registry, Logger: a.log.With("component", "redirection of pods"), Redirected: a.redirectedPods(),
		})
	}
	path := a.cfg.SpiffeSocket
	if path == "" {
		return nil
	}
	if path == SpiffeSocketAuto {
		path = local.SpiffeSocket(a.cfg.DataDir)
	}
	if n.socket, err = listenSpiffe(path); err != nil && a.cfg.SpiffeSocket != SpiffeSocketAuto {
		return err
	} else if err != nil {
		n.log.Error("no socket of the SPIFFE Workload API: workloads cannot get their certificates from this agent", "error", err)
		return nil
	}
	n.log.Info("the SPIFFE Workload API is served", "socket", path)
	return nil
}

// SpiffeSocketAuto chooses the path of the Workload API's socket.
const SpiffeSocketAuto = "auto"

func listenSpiffe(path string) (net.Listener, error) {
	if err := local.MakeSocketDir(path); err != nil {
		return nil, err
	}
	return spiffe.Listen(path)
}

// socketPath of the Workload API; empty: it is off.
func (n *nodeIdentity) socketPath() string {
	if n == nil || n.socket == nil {
		return ""
	}
	return n.socket.Addr().String()
}

func (n *nodeIdentity) close() {
	if n != nil && n.socket != nil {
		n.socket.Close()
	}
}

// identityComponents keep the certificates, and serve them.
func (a *agent) identityComponents() ([]component, error) {
	if a.identity == nil {
		return nil, nil
	}
	n := a.identity
	out := []component{
		{Name: "certificates of workloads", Run: n.manager.Run},
		{Name: "certificates for external services", Run: a.credentials.Run},
	}
	members, err := a.memberComponents()
	if err != nil {
		return nil, err
	}
	out = append(out, members...)
	if n.redirection != nil {
		out = append(out, component{Name: "redirection of pods", Run: n.redirection.Run})
	}
	if n.socket != nil {
		server := spiffe.NewServer(spiffe.Config{Identities: workloadIdentities{n.manager}, Attestor: n.table, Logger: n.log})
		out = append(out, component{Name: "SPIFFE Workload API", Run: func(ctx context.Context) error { return server.Serve(ctx, n.socket) }})
	}
	return out, nil
}

// memberComponents keep the workloads of the node. A gateway in a cluster has none: it is a pod.
func (a *agent) memberComponents() ([]component, error) {
	n := a.identity
	switch {
	case a.cfg.inCluster():
		return []component{{Name: "pods of this node", Run: func(ctx context.Context) error {
			return n.followPods(ctx, identityv1.NewIdentityClient(a.conn))
		}}}, nil
	case a.cfg.objectsElsewhere():
		n.manager.SetMembers(nil) // known to be none: its own certificates are all
		return nil, nil
	}
	watching, err := kubeclient.New(a.watchConfig(), []*resource.Descriptor{kind.Dataplane, kind.Namespace})
	if err != nil {
		return nil, err
	}
	return []component{
		{Name: "workloads of this node", Run: func(ctx context.Context) error {
			return n.follow(ctx, watching, kind.Dataplane, resource.ListOptions{Fields: fields.OneTermEqualSelector("spec.nodeName", a.cfg.Name)})
		}},
		{Name: "meshes of namespaces", Run: func(ctx context.Context) error {
			return n.follow(ctx, watching, kind.Namespace, resource.ListOptions{})
		}},
	}, nil
}

// follow keeps the objects that members are made of.
func (n *nodeIdentity) follow(ctx context.Context, client resource.Client, k *resource.Descriptor, which resource.ListOptions) error {
	return reflector.Run(ctx, reflector.Config{
		Client: client, Kind: k, Select: which, AlwaysRelist: k == kind.Dataplane,
		Backoff: backoff.Policy{First: 200 * time.Millisecond, Last: 10 * time.Second},
		Clock:   clock.RealClock{}, Logger: n.log, Level: slog.LevelDebug,
	}, func(e reflector.Event) error {
		n.apply(k, e)
		return nil
	})
}

func (n *nodeIdentity) apply(k *resource.Descriptor, e reflector.Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch e.Type {
	case reflector.Replace:
		n.listed[k] = true
		if k == kind.Dataplane {
			clear(n.dataplanes)
		} else {
			clear(n.namespaces)
		}
		fallthrough
	case reflector.Set:
		for _, obj := range e.Objects {
			switch o := obj.(type) {
			case *meshv1alpha1.Dataplane:
				n.dataplanes[resource.KeyOf(o)] = o
			case *corev1.Namespace:
				n.namespaces[o.Name] = o
			}
		}
	case reflector.Delete:
		delete(n.dataplanes, resource.KeyOf(e.Object()))
		if k == kind.Namespace {
			delete(n.namespaces, e.Object().GetName())
		}
	default:
		return
	}
	if !n.listed[kind.Dataplane] || !n.listed[kind.Namespace] {
		return
	}
	members := make([]workload.Member, 0, len(n.dataplanes))
	for key, dp := range n.dataplanes {
		members = append(members, workload.Member{
			Namespace: key.Namespace, Name: key.Name, ServiceAccount: kind.DataplaneAccount(dp),
			Mesh: kind.DataplaneMesh(dp, n.namespaces[key.Namespace]),
		})
	}
	n.manager.SetMembers(members)
}

// workloadIdentities are a Manager's certificates, as spiffe.Identities.
type workloadIdentities struct{ manager *workload.Manager }

// Current implements spiffe.Identities. A workload that was attested before its Dataplane
// is known here waits for it.
func (w workloadIdentities) Current(of spiffe.Workload) (*mesh.SVID, <-chan struct{}, error) {
	member, issuing, known := w.manager.HasMember(of.Namespace, of.Name)
	svid, changed, err := w.manager.Current(workload.Subject{Namespace: of.Namespace, Name: of.Name})
	switch {
	case err == nil || changed != nil && issuing:
		return svid, changed, err
	case member && !issuing:
		return nil, nil, err // the mesh has no mTLS
	}
	return nil, known, err
}

// Trust implements spiffe.Identities.
func (w workloadIdentities) Trust() (*mesh.Trust, <-chan struct{}) { return w.manager.Trust() }

// attest makes the process at the other end of the agent's socket, and all that it starts,
// a workload's, for as long as the request is open, and its cgroup for as long as processes
// are in it. The socket is for the agent's user
// alone, who could read the keys as well.
func (a *agent) attest(w http.ResponseWriter, r *http.Request) {
	n := a.identity
	of := spiffe.Workload{Namespace: r.URL.Query().Get("namespace"), Name: r.URL.Query().Get("name")}
	conn, _ := r.Context().Value(connKey{}).(net.Conn)
	if of.Namespace == "" || of.Name == "" || conn == nil {
		http.Error(w, "want the parameters namespace and name", http.StatusBadRequest)
		return
	}
	done, err := n.table.AddPeer(conn, of)
	if err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	defer done()
	if path := r.URL.Query().Get("cgroup"); path != "" && a.cgroups != nil {
		release, err := a.cgroups.Hold(path, resource.Key{Namespace: of.Namespace, Name: of.Name})
		if err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
			return
		}
		defer release()
		if a.isolation.TellsCgroups() {
			w.Header().Set(local.ToldApartHeader, "cgroup")
		}
	}
	if err := http.NewResponseController(w).SetWriteDeadline(time.Time{}); err != nil {
		n.log.Debug("attestation without a limit of time is not possible", "error", err)
	}
	w.WriteHeader(http.StatusOK)
	if err := http.NewResponseController(w).Flush(); err != nil {
		return // the program has ended
	}
	<-r.Context().Done()
}

// connKey is the key of the connection in the context of a local program's request.
type connKey struct{}
