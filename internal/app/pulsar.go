package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/feed/pulsar"
	"github.com/proxima-mesh/proxima/internal/feed/pulsar/claim"
	"github.com/proxima-mesh/proxima/internal/identity/access"
	"github.com/proxima-mesh/proxima/internal/listener"
	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/version"
)

// PulsarConfig says whether readers of the change feed are served by the protocol of Pulsar.
type PulsarConfig struct {
	// Port on the API's host; 0: off.
	Port int
	TLS  registry.TLSMode
	// checkEvery is how often credentials of connected clients are checked; 0: pulsar.DefaultCheckEvery.
	checkEvery time.Duration
}

// pulsarReaders serve the change feed. Nil: they are not served.
type pulsarReaders struct {
	server   *pulsar.Server
	listener net.Listener
}

// checkPulsar refuses a port where there is no feed to be read.
func checkPulsar(cfg *ControlPlaneConfig) error {
	why, hint := "", "leave --pulsar-port out"
	switch {
	case cfg.Pulsar.Port == 0:
		return nil
	case cfg.role() == RoleGlobal:
		why = "a global control plane does not serve readers"
	case cfg.Store == StoreKubernetes || cfg.Store == "memory":
		why = fmt.Sprintf("there is no change feed with --store %s", cfg.Store)
	case cfg.Feed.Off:
		why, hint = "there is no change feed with --feed off", "leave --feed off out"
	default:
		return nil
	}
	return &problem.Error{Code: problem.Usage, Err: errors.New("--pulsar-port: " + why), Hint: hint}
}

// newPulsar opens the port for readers, if it is on.
func newPulsar(cfg ControlPlaneConfig, s *storage, a *api, i *instance, others *instances, log *slog.Logger) (*pulsarReaders, error) {
	if cfg.Pulsar.Port == 0 || s.feed == nil {
		return nil, nil
	}
	log = log.With("component", "pulsar")
	objects, err := a.server.Stored()
	if err != nil {
		return nil, err
	}
	pair, err := serverCertificate(cfg, s.ca, a.address, nil)
	if err != nil {
		return nil, err
	}
	certificate, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		return nil, err
	}
	address, err := onPort(a.address.String(), cfg.Pulsar.Port)
	if err != nil {
		return nil, err
	}
	l, err := listen("pulsar", "--pulsar-port", address, listener.DescriptorShare(maxViewConnections, proxyShare), log)
	if err != nil {
		return nil, err
	}
	claims, alone := others.topicClaims(cfg, s, l.Addr(), log)
	server, err := pulsar.New(pulsar.Config{
		Feed: s.feed, Cursors: s.cursors, Store: s.store, Objects: objects, Kinds: fedKinds(objects.Prefix), Mesh: meshesOf(i.catalog),
		Access: pulsarAccess{
			access.NewAuthenticator(s.tokens, s.ca.Pool(), s.policy(), log.With("component", "authentication")), newByCredential(),
		},
		Claims: claims, Alone: alone, CheckEvery: cfg.Pulsar.checkEvery, Metrics: s.metrics, Logger: log, Version: version.Get().Version,
	})
	if err != nil {
		_ = l.Close()
		return nil, err
	}
	return &pulsarReaders{server, registry.Listener(l, cfg.Pulsar.TLS, &tls.Config{
		MinVersion: tls.VersionTLS12, CipherSuites: listener.CipherSuites(), Certificates: []tls.Certificate{certificate},
		ClientAuth: tls.RequestClientCert, // the authenticator verifies it
	})}, nil
}

// topicClaims say which instance serves a topic, and whether this is the only one; nil: there is never another.
func (x *instances) topicClaims(cfg ControlPlaneConfig, s *storage, listening net.Addr, log *slog.Logger) (claims *claim.Claims, alone func() bool) {
	if x.members == nil {
		return nil, nil
	}
	self := claim.Owner{Name: instanceName(x.api.address), Address: net.JoinHostPort(advertisedHost(cfg.AdvertiseAddress, listening), portOf(listening))}
	return claim.New(claim.Config{Store: s.store, Self: self, Logger: log}), func() bool { return len(x.members.List()) < 2 }
}

// fedKinds are those whose changes are in the feed.
func fedKinds(prefix func(*resource.Descriptor, resource.Key) string) []*resource.Descriptor {
	var out []*resource.Descriptor
	for _, k := range kind.All() {
		if p := prefix(k, resource.Key{}); p != "" && !skipFromFeed(p) {
			out = append(out, k)
		}
	}
	return out
}

func meshesOf(tables *catalog.Catalog) func(string) (string, bool) {
	return func(namespace string) (string, bool) {
		n, ok := tables.Snapshot().Namespaces.Get(resource.Key{Name: namespace})
		if !ok {
			return "", false
		}
		return kind.MeshOf(n), true
	}
}

func (p *pulsarReaders) components() []component {
	if p == nil {
		return nil
	}
	return []component{{Name: "pulsar", Run: func(ctx context.Context) error { return p.server.Serve(ctx, p.listener) }}}
}

func (p *pulsarReaders) close() {
	if p != nil {
		_ = p.listener.Close()
	}
}

// status of the readers; nil: they are not served.
func (p *pulsarReaders) status() *admin.PulsarStatus {
	if p == nil {
		return nil
	}
	now := p.server.Status()
	return &admin.PulsarStatus{
		Address: p.listener.Addr().String(), Connections: now.Connections, Consumers: now.Consumers, Subscriptions: now.Subscriptions, MaxConsumers: now.MaxConsumers,
		Topics: now.Topics,
	}
}

// pulsarAccess gives clients of Pulsar the rights that they have at the API, by the same credentials.
type pulsarAccess struct {
	authenticator *access.Authenticator
	authorizer    authorization
}

// Authenticate implements pulsar.Access.
func (p pulsarAccess) Authenticate(ctx context.Context, c pulsar.Credentials) (pulsar.Rights, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "/", http.NoBody)
	if err != nil {
		return nil, err
	}
	req.TLS, req.RemoteAddr = c.TLS, c.From.String()
	if c.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.Token)
	}
	who, ok, err := p.authenticator.AuthenticateRequest(req)
	switch {
	case err != nil:
		return nil, err
	case !ok || who.User.GetName() == user.Anonymous:
		return nil, errors.New("credentials are required: a token of the control plane by the method \"token\", or a client certificate of it")
	}
	return pulsarRights{who.User, p.authorizer}, nil
}

type pulsarRights struct {
	user       user.Info
	authorizer authorization
}

// User implements pulsar.Rights.
func (r pulsarRights) User() string { return r.user.GetName() }

// MayRead implements pulsar.Rights.
func (r pulsarRights) MayRead(ctx context.Context, k *resource.Descriptor, namespace string) error {
	for _, verb := range []string{"get", "list", "watch"} {
		decision, reason, err := r.authorizer.Authorize(ctx, authorizer.AttributesRecord{
			User: r.user, Verb: verb, APIGroup: k.GVK.Group, APIVersion: k.GVK.Version, Resource: k.Resource, Namespace: namespace, ResourceRequest: true,
		})
		if err != nil {
			return err
		}
		if decision != authorizer.DecisionAllow {
			return fmt.Errorf("%s may not %s %s: %s", r.user.GetName(), verb, k.GroupResource(), reason)
		}
	}
	return nil
}
