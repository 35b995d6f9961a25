package apiserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	apiopenapi "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/features"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/storage/value"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	restclient "k8s.io/client-go/rest"

	"github.com/proxima-mesh/proxima/internal/apiserver/kvstorage"
	"github.com/proxima-mesh/proxima/internal/controller/ipam"
	"github.com/proxima-mesh/proxima/internal/listener"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/store"
	"github.com/proxima-mesh/proxima/internal/tracing"
)

// Config is what a Server is made of. All but the fields marked optional are
// required.
type Config struct {
	// Store holds everything. The caller closes it, after Run has returned.
	Store store.Store
	// Kinds to serve.
	Kinds []*resource.Descriptor
	// Listener to serve on. Run and Close close it; a New that fails does not.
	Listener net.Listener
	// CertPEM and KeyPEM are the serving certificate with its chain, and its key.
	CertPEM, KeyPEM []byte
	// NamedCertFile and NamedKeyFile are a certificate for clients that ask for one of its names, and its key; empty: there is none.
	// They are read again when they change.
	NamedCertFile, NamedKeyFile string
	// ClientCAPEM are the authorities that the TLS handshake names for client certificates.
	ClientCAPEM []byte
	// Authenticator identifies the user of a request. It must refuse invalid
	// credentials; anonymous access is decided here.
	Authenticator authenticator.Request
	// Authorizer decides what a user may do.
	Authorizer authorizer.UnconditionalAuthorizer
	// Rules lists what the Authorizer lets a user do. Optional: without it,
	// SelfSubjectRulesReview is not served.
	Rules  authorizer.RuleResolver
	Logger *slog.Logger
	// Version of Proxima, as in 0.1.0; it is shown behind Kubernetes' own.
	Version string

	// Unoffered are kinds that are refused by name. Optional.
	Unoffered []Unoffered

	// ExtraHandlers are served behind authentication and authorization; a path
	// that ends in "/" stands for all below it. Optional.
	ExtraHandlers map[string]http.Handler
	// LongRunning are the paths of ExtraHandlers that may take longer than a
	// request otherwise may. Optional.
	LongRunning []string
	// Transformer encrypts a resource in the store; nil result: it is stored as it
	// is. What is encrypted is read past the watch cache: a value that cannot be
	// decrypted then fails requests that want it, and nothing else. Optional.
	Transformer func(schema.GroupResource) value.Transformer
	// Metrics are served at /metrics, with the server's own. Optional.
	Metrics prometheus.Gatherer
	// ServiceCIDRs are the ranges of ClusterIPs at the first start, one or two;
	// later starts use the ServiceCIDR objects. Optional: without them, neither
	// default ranges nor the Service "kubernetes" are created.
	ServiceCIDRs []netip.Prefix
	// NodePorts is the range of node ports. Optional: 30000-32767.
	NodePorts ipam.PortRange
	// OneAddressPool and OneNodePortPool: the ranges have no static band, whose addresses or
	// ports are handed out last (KEP-3070 and KEP-3668).
	OneAddressPool, OneNodePortPool bool
	// ExternalIPRanges are those that spec.externalIPs of Services may be in, since who may write a
	// Service could else take the traffic of any address (CVE-2020-8554). Nil: all, as in
	// Kubernetes. Empty: none.
	ExternalIPRanges []netip.Prefix
	// Namespaces are made at the start where they are missing. Optional.
	Namespaces []string
	// MeshElsewhere: another control plane owns the Meshes, so that the default one is not
	// made here. Optional.
	MeshElsewhere bool
	// Advertise is where the Service "kubernetes" leads. Optional: the listener's
	// address; none if that is unspecified.
	Advertise netip.AddrPort
	// Several servers may be on the store: the endpoints of the Service "kubernetes" are
	// those that PublishEndpoints gets, and not this server alone. Optional.
	Several bool
	// Tracer is told of each change of an object. Optional: tracing is off.
	Tracer *tracing.Recorder
	// Limits of what clients may ask for. Optional: the defaults.
	Limits Limits
	// Quota of each namespace. Optional: no limits.
	Quota Quota
	// Guard goes around the handler of every request, before it is recognised.
	// Optional.
	Guard func(http.Handler) http.Handler
	// Admitted goes around the handlers of requests that are authenticated and authorised.
	// Optional.
	Admitted func(http.Handler) http.Handler
	// NodeDeletion returns a record that the transaction which deletes a Node writes to
	// the store: its key, outside the keys of objects, and its value. who may be nil.
	// Optional.
	NodeDeletion func(n *corev1.Node, who user.Info) (key string, value []byte, err error)
	// Writes prepares and judges writes over HTTP by what is written, after
	// authorization. Optional.
	Writes WritePolicy
	// Audit hears of every write over HTTP, of reads of the paths AuditReads, and of
	// whatever was refused, when it has ended. It must not block. Optional.
	Audit      func(AuditEvent)
	AuditReads []string
}

// ShutdownGrace is how long Run waits for open watches when it ends.
const ShutdownGrace = 2 * time.Second

// countPeriod is how often objects are counted for metrics, as in kube-apiserver.
const countPeriod = time.Minute

// Server is a Kubernetes-compatible API server.
type Server struct {
	cfg     Config
	generic *genericapiserver.GenericAPIServer
	kinds   map[schema.GroupVersionKind]*served
	// finalize is namespaces/finalize; nil without Namespaces.
	finalize *subresource
	// services is nil without Services and IPAddresses.
	services *services
	limiter  *limiter
	options  *kvstorage.RESTOptions
	ready    chan struct{}
	// connections that clients have open.
	connections *connections
}

// gates of upstream's libraries that are not as they are by default.
//
// ListFromCacheSnapshot (KEP-4988) keeps a snapshot of the watch cache's tree for each event
// of its history, 2 to 3 kB of inner nodes each. It is for lists of the past, as the further
// pages of a list are: the store answers those here, which keeps the past anyway.
const gates = string(features.ListFromCacheSnapshot) + "=false"

// New makes a server. It starts the watch caches, which read the store, so a
// server that is not run must be closed. Blocks for one read of the store.
func New(cfg Config) (*Server, error) {
	if cfg.Store == nil || cfg.Listener == nil || cfg.Authenticator == nil || cfg.Authorizer == nil || cfg.Logger == nil {
		return nil, errors.New("new API server: Store, Listener, Authenticator, Authorizer and Logger are required")
	}
	if err := utilfeature.DefaultMutableFeatureGate.Set(gates); err != nil {
		return nil, fmt.Errorf("new API server: set feature gates: %w", err)
	}
	schemes, err := newSchemes(cfg.Kinds)
	if err != nil {
		return nil, fmt.Errorf("new API server: %w", err)
	}
	s := &Server{
		cfg:   cfg,
		kinds: map[schema.GroupVersionKind]*served{},
		ready: make(chan struct{}),

		connections: newConnections(cfg.Listener),
	}
	generic, err := s.genericConfig(schemes)
	if err != nil {
		return nil, fmt.Errorf("new API server: %w", err)
	}
	s.generic, err = generic.Complete(nil).New("proxima", genericapiserver.NewEmptyDelegate())
	if err != nil {
		return nil, fmt.Errorf("new API server: %w", err)
	}
	if err := s.build(schemes); err != nil {
		s.generic.Destroy()
		return nil, fmt.Errorf("new API server: %w", err)
	}
	s.generic.Handler.NonGoRestfulMux.NotFoundHandler(missing{s.generic})
	s.installOpenAPI(generic)
	return s, nil
}

// genericConfig is upstream's configuration without an etcd.
func (s *Server) genericConfig(schemes *schemes) (*genericapiserver.Config, error) {
	cert, err := dynamiccertificates.NewStaticCertKeyContent("serving", s.cfg.CertPEM, s.cfg.KeyPEM)
	if err != nil {
		return nil, fmt.Errorf("serving certificate: %w", err)
	}
	clientCA, err := dynamiccertificates.NewStaticCAContent("client", s.cfg.ClientCAPEM)
	if err != nil {
		return nil, fmt.Errorf("client authorities: %w", err)
	}
	c := genericapiserver.NewConfig(schemes.codecs)
	c.SecureServing = &genericapiserver.SecureServingInfo{
		Listener: s.connections, Cert: cert, ClientCA: clientCA, HTTP2MaxStreamsPerConnection: streamsPerConnection,
		CipherSuites: listener.CipherSuites(),
	}
	if s.cfg.NamedCertFile != "" {
		named, err := dynamiccertificates.NewDynamicSNIContentFromFiles("named", s.cfg.NamedCertFile, s.cfg.NamedKeyFile)
		if err != nil {
			return nil, fmt.Errorf("certificate %s with key %s: %w", s.cfg.NamedCertFile, s.cfg.NamedKeyFile, err)
		}
		c.SecureServing.SNICerts = []dynamiccertificates.SNICertKeyContentProvider{named}
	}
	c.Authentication.Authenticator = door{s.cfg.Authenticator}
	c.Authorization.Authorizer = gate{s.cfg.Authorizer}
	// There are no calls over loopback; New only requires that it is set.
	c.LoopbackClientConfig = &restclient.Config{}
	c.EffectiveVersion = newVersion(s.cfg.Version)
	c.EnableProfiling = false
	s.limiter = newLimiter(s.cfg.Limits, schemes.codecs)
	s.limiter.configure(c)
	build := c.BuildHandlerChainFunc
	c.BuildHandlerChainFunc = func(h http.Handler, c *genericapiserver.Config) http.Handler {
		return build(wellFormed(h, schemes.codecs), c)
	}
	if build := c.BuildHandlerChainFunc; s.cfg.Guard != nil {
		c.BuildHandlerChainFunc = func(h http.Handler, c *genericapiserver.Config) http.Handler { return s.cfg.Guard(build(h, c)) }
	}
	if build := c.BuildHandlerChainFunc; s.cfg.Admitted != nil {
		c.BuildHandlerChainFunc = func(h http.Handler, c *genericapiserver.Config) http.Handler { return build(s.cfg.Admitted(h), c) }
	}
	if build := c.BuildHandlerChainFunc; build != nil {
		c.BuildHandlerChainFunc = func(h http.Handler, c *genericapiserver.Config) http.Handler {
			return build(explainMissing(h, s.cfg.Kinds), c)
		}
	}
	if isLong := c.LongRunningFunc; len(s.cfg.LongRunning) > 0 {
		c.LongRunningFunc = func(r *http.Request, info *request.RequestInfo) bool {
			return isLong(r, info) || !info.IsResourceRequest && slices.Contains(s.cfg.LongRunning, info.Path)
		}
	}
	storeCheck := healthz.NamedCheck("store", func(req *http.Request) error { return s.cfg.Store.Ready(req.Context()) })
	c.LivezChecks = []healthz.HealthChecker{healthz.PingHealthz}
	c.HealthzChecks = []healthz.HealthChecker{healthz.PingHealthz, storeCheck}
	c.ReadyzChecks = []healthz.HealthChecker{healthz.PingHealthz, storeCheck}
	c.ShutdownWatchTerminationGracePeriod = ShutdownGrace
	if s.cfg.Writes != nil {
		c.AdmissionControl = writeCheck{s.cfg.Writes}
		rememberOrigins(c)
	}
	if s.cfg.Audit != nil {
		to := auditor{sink: s.cfg.Audit, reads: s.cfg.AuditReads}
		c.AuditBackend, c.AuditPolicyRuleEvaluator = to, to
	}
	configureOpenAPI(c, apiopenapi.NewDefinitionNamer(schemes.external))
	return c, nil
}

// Run serves until ctx ends, then drains: requests are finished, watches get
// ShutdownGrace. It blocks, may be called once, and closes the server. An error
// means that serving did not begin.
func (s *Server) Run(ctx context.Context) error {
	// Hooks bring health checks along, which PrepareRun then publishes.
	err := s.generic.AddPostStartHook("proxima-ready", func(hook genericapiserver.PostStartHookContext) error {
		if err := s.waitReadable(hook); err != nil {
			return err
		}
		close(s.ready)
		return nil
	})
	if err != nil {
		s.Close()
		return fmt.Errorf("run API server: %w", err)
	}
	s.generic.ShutdownTimeout = shutdownTimeout
	prepared := s.generic.PrepareRun()
	defer s.connections.closeAll()
	follow, stop := context.WithCancel(ctx)
	var followers sync.WaitGroup
	defer followers.Wait()
	defer stop()
	if err := s.start(follow, &followers); err != nil {
		s.Close()
		return fmt.Errorf("run API server: %w", err)
	}
	if err := prepared.RunWithContext(ctx); err != nil {
		return fmt.Errorf("run API server: %w", err)
	}
	return nil
}

const (
	// readinessPoll is how often upstream's caches are asked whether they are filled: they have
	// no other signal. It is upstream's own.
	readinessPoll = 100 * time.Millisecond
	// readinessTimeout is upstream's --storage-initialization-timeout: a kind that cannot be read
	// for another reason, as an outage of the store, does not hold the others longer.
	readinessTimeout = time.Minute
)

// waitReadable blocks until the caches of all kinds are filled, but for those whose objects
// cannot be read: they are logged, and unavailable alone.
func (s *Server) waitReadable(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, readinessTimeout)
	defer cancel()
	_ = wait.PollUntilContextCancel(bounded, readinessPoll, true, func(context.Context) (bool, error) {
		for _, k := range s.kinds {
			if k.registry.ReadinessCheckFunc() != nil && s.options.Unreadable(k.kind.GroupResource()) == nil {
				return false, nil
			}
		}
		return true, nil
	})
	for name, err := range s.Unreadable() {
		s.cfg.Logger.Error("objects cannot be read: this kind is not available, and what depends on it waits", "resource", name, "error", err)
	}
	return ctx.Err()
}

// Unreadable returns the resources whose objects cannot be listed, as stored data is damaged,
// with the reason.
func (s *Server) Unreadable() map[string]error {
	out := map[string]error{}
	for _, k := range s.kinds {
		group := k.kind.GroupResource()
		if err := s.options.Unreadable(group); err != nil {
			out[group.String()] = err
		}
	}
	return out
}

// start does what must be done before the first request is served.
func (s *Server) start(ctx context.Context, followers *sync.WaitGroup) error {
	if s.services != nil {
		if err := s.followClaims(ctx, followers); err != nil {
			return err
		}
	}
	for _, kind := range s.cfg.Kinds {
		if isGraceful(kind) {
			followers.Go(func() { s.reap(ctx, kind) })
		}
	}
	return s.bootstrap(ctx)
}

// Close releases what New started, for a server that is not run. Idempotent.
func (s *Server) Close() {
	s.generic.Destroy()
	s.cfg.Listener.Close()
}

// Ready is closed once requests are served and the watch caches are filled.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Handler is the whole chain that requests over the network go through.
func (s *Server) Handler() http.Handler { return s.generic.Handler }
