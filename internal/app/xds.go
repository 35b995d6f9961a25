package app

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/delta/stream"
	"github.com/proxima-mesh/proxima/internal/gateway/hosts"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/identity/access"
	"github.com/proxima-mesh/proxima/internal/identity/issue"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
	"github.com/proxima-mesh/proxima/internal/listener"
	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/topology/trafficplan"
	"github.com/proxima-mesh/proxima/internal/xds"
	"github.com/proxima-mesh/proxima/internal/xds/build"
	"github.com/proxima-mesh/proxima/internal/xds/load"
)

// proxies serves xDS: to the proxies of workloads, and to gRPC programs. Nil: it is off.
type proxies struct {
	log      *slog.Logger
	instance *instance
	board    *issue.Board
	external *externalTLS
	ca       *x509.CertPool
	sessions *access.Sessions
	builder  *build.Builder
	server   *xds.Server
	hosts    *hosts.Table // of gateways of other sites
	listener net.Listener
	grpc     *grpc.Server
	// dataplane of a key, and source of the tables that resources are made of.
	dataplane func(resource.Key) (*meshv1alpha1.Dataplane, bool)
	source    func(build.Source) build.Source

	authority   *identity.Authority
	certificate tls.Certificate
	clientAuth  tls.ClientAuthType

	// trust and config of connections, what they were made of, and what is closed when they are
	// not up to date.
	mu       sync.Mutex
	trust    *mesh.Trust
	config   *tls.Config
	configCA []byte
	changed  <-chan struct{}
}

// checkXDS refuses a port for proxies where there is nothing to serve them from.
func checkXDS(cfg *ControlPlaneConfig) error {
	why, hint := "", ""
	switch {
	case cfg.XDSPort == 0 || !cfg.XDSPortChosen:
		return nil
	case cfg.role() == RoleGlobal:
		why, hint = "global has no endpoints and no workloads: the control planes of zones serve proxies", "set it at the control planes of the zones"
	case cfg.Store == StoreKubernetes && cfg.role() != RoleZone && !cfg.standsWithSidecars():
		why, hint = "in a Kubernetes cluster the proxies are sidecars of Pods", "give --sidecar-image, too, or leave it out"
	default:
		return nil
	}
	return &problem.Error{Code: problem.Usage, Err: errors.New("--xds-port: " + why), Hint: hint}
}

// newProxies opens the port for proxies. A port that nobody chose and that is in use is left
// to whoever has it.
func newProxies(cfg ControlPlaneConfig, s *storage, a *api, i *instance, d *identities, o xds.Observer, log *slog.Logger) (*proxies, error) {
	log = log.With("component", "xDS")
	if cfg.XDSPort == 0 {
		return nil, nil
	}
	address, err := onPort(a.address.String(), cfg.XDSPort)
	if err != nil {
		return nil, err
	}
	p := &proxies{log: log, instance: i, board: d.board, external: d.external, ca: s.ca.Pool(), sessions: a.sessions, authority: s.ca, clientAuth: tls.VerifyClientCertIfGiven} // a workload gets its first one here, by a token
	p.dataplane = func(key resource.Key) (*meshv1alpha1.Dataplane, bool) {
		return i.catalog.Snapshot().Dataplanes.Get(key)
	}
	p.source = func(of build.Source) build.Source { return of }
	pods := ""
	if cfg.Store == StoreKubernetes {
		pods = cfg.Namespace
		p.dataplane = func(key resource.Key) (*meshv1alpha1.Dataplane, bool) { return sidecarOf(i.catalog.Snapshot(), key) }
		p.source = func(of build.Source) build.Source { return &podSource{of: of} }
	}
	limit := listener.DescriptorShare(maxViewConnections, proxyShare)
	if p.listener, err = listen("xDS", "--xds-port", address, limit, log); err != nil {
		if cfg.XDSPortChosen {
			return nil, err
		}
		log.Warn("proxies are not served: the port is not free; choose another with --xds-port", "address", address, "error", err)
		return nil, nil
	}
	p.hosts = hosts.New(nil, log)
	ranges := append(append([]netip.Prefix(nil), cfg.ServiceCIDRs...), cfg.MeshCIDRs...)
	p.builder = build.NewBuilder(build.Config{
		Site: cfg.site(), Plans: &trafficplan.Table{}, Trust: d.board.Trust, Hosts: p.hosts, SystemRoots: systemRoots, Logger: log,
		Ranges: func() []netip.Prefix { return ranges }, Workloads: cfg.WorkloadCIDRs, GatewayNamespace: pods,
	})
	i.proxies = p.builder
	serving := xds.Config{Builder: p.builder, Admit: p.admit, Observer: o, Registerer: s.metrics, Log: log}
	if i.reports != nil {
		serving.LoadReports = load.New(load.Config{
			Identify: p.identify, Taker: i.reports, Ports: load.FromCatalog(i.catalog), Logger: log, Registerer: s.metrics,
		})
	}
	p.server = xds.New(serving)
	pair, err := serverCertificate(cfg, s.ca, p.listener.Addr(), nil)
	if err != nil {
		return nil, err
	}
	if p.certificate, err = tls.X509KeyPair(pair.Cert, pair.Key); err != nil {
		return nil, err
	}
	p.grpc = grpc.NewServer(append(stream.ServerOptions(),
		grpc.Creds(a.sessions.Credentials(credentials.NewTLS(&tls.Config{
			MinVersion: tls.VersionTLS12, // of unmodified clients
			GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
				_, config := p.trusted()
				return config, nil
			},
		}))),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.ConnectionTimeout(10*time.Second),
		grpc.MaxConcurrentStreams(16), grpc.MaxHeaderListSize(16<<10),
		// One connection for each proxy: buffers count.
		grpc.WriteBufferSize(4<<10),
	)...)
	p.server.Register(p.grpc)
	return p, nil
}

// trusted is what the meshes trust, and what connections are made with. Connections keep it: all of
// them have the same until other certificates are admitted.
func (p *proxies) trusted() (*mesh.Trust, *tls.Config) {
	p.mu.Lock()
	defer p.mu.Unlock()
	own := p.authority.PEM()
	if p.config != nil && bytes.Equal(p.configCA, own) {
		select {
		case <-p.changed:
		default:
			return p.trust, p.config
		}
	}
	p.changed, p.configCA = p.board.Changed(), own
	trust, err := p.board.Trust()
	if err != nil {
		p.log.Error("certificates of meshes are not admitted", "error", err)
	}
	p.trust = trust
	p.config = &tls.Config{
		MinVersion: tls.VersionTLS12, CipherSuites: listener.CipherSuites(), Certificates: []tls.Certificate{p.certificate}, NextProtos: []string{"h2"},
		ClientAuth: p.clientAuth, ClientCAs: clientRoots(own, trust),
	}
	return p.trust, p.config
}

// clientRoots verify certificates of clients: of this control plane, or of a mesh.
func clientRoots(own []byte, trust *mesh.Trust) *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(own)
	if trust == nil {
		return pool
	}
	for _, name := range trust.Meshes() {
		bundle, _ := trust.Bundle(name)
		for _, root := range bundle.Roots {
			pool.AddCert(root)
		}
	}
	return pool
}

// admit lets a client have what is its Dataplane's: by the certificate of the workload, of its
// node, or of an administrator.
func (p *proxies) admit(ctx context.Context, client xds.ClientID) error {
	at, _ := peer.FromContext(ctx)
	if at == nil {
		return status.Error(codes.Unauthenticated, "no peer")
	}
	info, ok := at.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.PeerCertificates) == 0 {
		p.sessions.Refuse(ctx)
		return status.Error(codes.Unauthenticated, "a client certificate is needed")
	}
	if !p.instance.catalog.Synced() {
		return status.Error(codes.Unavailable, errNotSynced.Error())
	}
	chain := info.State.PeerCertificates
	if client.Gateway != build.NoRole {
		subject, own := p.subject(chain)
		if node, ok := identity.NodeName(subject.User, subject.Groups); !own || !ok || node != client.Dataplane.Name {
			return status.Errorf(codes.PermissionDenied, "%s may not be the proxy of the %s %s", cmp.Or(subject.User, "this certificate"),
				client.Gateway, client.Dataplane.Name)
		}
		return nil // whether there is such a gateway is for the builder to say
	}
	d, ok := p.dataplane(client.Dataplane)
	if subject, own := p.subject(chain); own {
		if !mayProxy(subject, client, d) {
			return status.Errorf(codes.PermissionDenied, "%s may not be the proxy of Dataplane %s", subject.User, client.Dataplane)
		}
	} else if err := p.isWorkload(chain, client, d); err != nil {
		return err
	}
	if !ok {
		return status.Errorf(codes.NotFound, "there is no Dataplane %s: register the workload first (proxima run)", client.Dataplane)
	}
	return nil
}

// identify who reports load, as whom it may follow.
func (p *proxies) identify(ctx context.Context, node *core.Node) (load.Proxy, error) {
	client, err := xds.ParseClientID(node.GetId())
	if err == nil && client.Gateway != build.NoRole { // their connections are counted at both ends
		err = errors.New("gateways report no load")
	}
	if err != nil {
		return load.Proxy{}, status.Error(codes.InvalidArgument, err.Error())
	}
	return load.Proxy{Namespace: client.Dataplane.Namespace, Name: client.Dataplane.Name}, p.admit(ctx, client)
}

// subject of a certificate of this control plane; false: it is another authority's. The roots
// of meshes are not this control plane's: what they sign is nobody here but a workload.
func (p *proxies) subject(chain []*x509.Certificate) (identity.Subject, bool) {
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{Roots: p.ca, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil {
		return identity.Subject{}, false
	}
	return identity.SubjectOf(chain[0]), true
}

// mayProxy reports whether a user may be the proxy of a Dataplane; nil: there is none.
func mayProxy(s identity.Subject, client xds.ClientID, d *meshv1alpha1.Dataplane) bool {
	if slices.Contains(s.Groups, identity.GroupAdmins) {
		return true
	}
	if node, ok := identity.NodeName(s.User, s.Groups); ok {
		return d != nil && d.Spec.NodeName == node
	}
	namespace, account, ok := identity.WorkloadName(s.User, s.Groups)
	return ok && namespace == client.Dataplane.Namespace && d != nil && account == accountOf(d)
}

// isWorkload refuses certificates of meshes but that of the Dataplane's own identity.
func (p *proxies) isWorkload(chain []*x509.Certificate, client xds.ClientID, d *meshv1alpha1.Dataplane) error {
	trust, _ := p.trusted()
	if trust == nil {
		return status.Error(codes.Unavailable, "what the meshes trust is not known: see the log of the control plane")
	}
	who, err := trust.Verify(chain, time.Now())
	if err != nil {
		return status.Error(codes.Unauthenticated, err.Error())
	}
	if d == nil || who.Mesh != client.Mesh || who.ID.Kind() != mesh.WorkloadID || who.ID.Namespace() != client.Dataplane.Namespace ||
		who.ID.ServiceAccount() != accountOf(d) {
		return status.Errorf(codes.PermissionDenied, "%s may not be the proxy of Dataplane %s of mesh %s", who.ID, client.Dataplane, client.Mesh)
	}
	return nil
}

func accountOf(d *meshv1alpha1.Dataplane) string {
	return kind.DataplaneAccount(d)
}

func (p *proxies) components() []component {
	if p == nil {
		return nil
	}
	return []component{
		{Name: "resources of proxies", Run: p.follow},
		{Name: "roots of proxies", Run: p.followRoots},
		{Name: "names of gateways for proxies", Run: p.followHosts},
		{Name: "secrets of external services for proxies", Run: p.followCredentials},
		{Name: "xDS", Run: p.serve},
		{Name: "acknowledgements of proxies", Run: func(ctx context.Context) error { return p.instance.acks.follow(ctx, p.server) }},
	}
}

// follow the tables once there is a proxy: most control planes have none.
func (p *proxies) follow(ctx context.Context) error {
	select {
	case <-p.server.Wanted():
	case <-ctx.Done():
		return nil
	}
	sub := p.instance.catalog.Subscribe(build.Tables()...)
	defer sub.Close()
	return build.Follow(ctx, p.source(sub), p.builder)
}

// followCredentials keeps what is in Secrets for services outside every mesh, once there is a proxy.
func (p *proxies) followCredentials(ctx context.Context) error {
	select {
	case <-p.server.Wanted():
		return p.external.supply(ctx, p.builder.SetCredentials)
	case <-ctx.Done():
		return nil
	}
}

// followRoots keeps what proxies trust up to date.
func (p *proxies) followRoots(ctx context.Context) error {
	for {
		changed := p.board.Changed()
		if err := p.builder.SetTrust(); err != nil {
			p.log.Error("proxies keep the roots that they have", "error", err)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// followHosts resolves the names of gateways of other sites, once there is a proxy.
func (p *proxies) followHosts(ctx context.Context) error {
	select {
	case <-p.server.Wanted():
	case <-ctx.Done():
		return nil
	}
	var resolving sync.WaitGroup
	defer resolving.Wait()
	resolving.Go(func() { p.hosts.Run(ctx) })
	for {
		select {
		case <-p.hosts.Changed():
			p.builder.SetHosts()
		case <-ctx.Done():
			return nil
		}
	}
}

// serve until ctx ends; streams are cut then.
func (p *proxies) serve(ctx context.Context) error {
	stop := context.AfterFunc(ctx, p.grpc.Stop)
	defer stop()
	if err := p.grpc.Serve(p.listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}

// status sums up the proxies that follow from here; nil: they are not served.
func (p *proxies) status() *admin.ProxiesStatus {
	if p == nil {
		return nil
	}
	out := &admin.ProxiesStatus{}
	for _, s := range p.server.Status() {
		out.Connected++
		unanswered := 0
		for i := range s.Types {
			unanswered += s.Types[i].Unanswered
		}
		if unanswered > 0 {
			out.Behind++
		}
		rejected := rejectionsOf(s)
		if len(rejected) > 0 {
			out.Rejecting++
		}
		out.Rejected = append(out.Rejected, rejected...)
		out.Trim()
	}
	return out
}

func (p *proxies) address() string {
	if p == nil {
		return ""
	}
	return reachable(p.listener.Addr())
}

func (p *proxies) close() {
	if p != nil && p.listener != nil {
		p.listener.Close()
	}
}
