package app

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/registered"
	"github.com/proxima-mesh/proxima/internal/identity/access"
	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/registry/dubbo"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// clusterRegistries serve clients of registry protocols from the API of a cluster:
//
//	clients ◄──► registries ──► Dataplanes, RegistryConfigs (custom resources)
//	                 ▲                │
//	                 └──── tables ◄───┤ (of their own)
//	                                  └─► leader: Services without a selector, and their EndpointSlices
//
// The tables are apart from the control plane's, which have no Dataplanes: there the workloads are Pods, and what a
// client of a registry says of an address makes no identity. What it registers at the address of a Pod is that Pod, in
// the EndpointSlices. Services and EndpointSlices are so in memory twice, where registries are served.
type clusterRegistries struct {
	*registries
	tables *catalog.Catalog
	pods   *podAddresses
	leads  atomic.Bool
	plane  *clusterPlane
}

// positionsLease has the counter of positions, in the control plane's own namespace.
const positionsLease = "proxima-registry-positions"

// registryKinds are what is written for registries, and read in addition.
func registryKinds() []*resource.Descriptor {
	return []*resource.Descriptor{kind.Dataplane, kind.RegistryConfig}
}

// clusterNamespaces are those of a cluster itself, in which no client registers.
func clusterNamespaces(own string) []string {
	return []string{metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease, own}
}

// newRegistries opens the ports of the registry protocols that are on. The parts of a zone are made before.
func (p *clusterPlane) newRegistries() error {
	if !p.cfg.Registries.on() {
		return nil
	}
	log := p.log.With("component", "registries")
	kinds := append(clusterKinds(), kind.TrafficPlan, kind.Mesh)
	if p.zone != nil {
		kinds = append(kinds, zoneKinds()...)
	}
	name := instanceName(p.api.address)
	r := &clusterRegistries{plane: p, pods: newPodAddresses(p.instance.catalog), tables: catalog.New(catalog.Config{
		Client: p.client, Descriptors: append(kinds, registryKinds()...), Epoch: p.epoch, Logger: log,
	})}
	positions := registry.NewPositions(p.client, resource.Key{Namespace: p.cfg.Namespace, Name: positionsLease}, name)
	check := &registryAccounts{Reviewer: p.reviewer(), Next: registryUsers(p.storage.tokens)}
	core := &registry.Core{
		Registrar: registry.NewRegistrar(registry.RegistrarConfig{
			Client: p.client, Catalog: r.tables, Owner: name, Running: r.running, Leads: r.leads.Load, Reserved: clusterNamespaces(p.cfg.Namespace), Logger: log,
		}),
		Index:   registry.NewIndex(registry.IndexConfig{Catalog: r.tables, Site: p.cfg.site(), Positions: positions, Logger: log}),
		Configs: registry.NewConfigs(p.client, r.tables, log).WithoutSecrets(),
		Gate:    &registry.Gate{Anonymous: p.cfg.Registries.Anonymous, Check: check.user},
		Meters:  registry.NewMeters(p.storage.metrics), Client: p.client, NodeOf: r.pods.nodeOf, Namespaces: p.cfg.Registries.Namespaces, Logger: log,
	}
	var err error
	if r.registries, err = openRegistries(p.cfg, core, p.storage, p.api, log); err == nil {
		p.registries = r
	}
	return err
}

// running are the replicas of this control plane: Pods in its namespace. One that should have ended by now, on a node
// that is lost, runs no more.
func (r *clusterRegistries) running() map[string]bool {
	out := map[string]bool{r.core.Registrar.Owner(): true}
	for key, pod := range r.plane.instance.catalog.Snapshot().Pods.Namespace(r.plane.cfg.Namespace) {
		if pod.Status.Phase != corev1.PodFailed && pod.Status.Phase != corev1.PodSucceeded &&
			(pod.DeletionTimestamp == nil || time.Now().Before(pod.DeletionTimestamp.Time)) {
			out[key.Name] = true
		}
	}
	return out
}

func (r *clusterRegistries) components() []component {
	if r == nil {
		return nil
	}
	log := r.plane.log
	services := registered.Config{Client: r.plane.client, Catalog: r.tables, Slices: true, Logger: log.With("component", "registered services")}
	endpoints := registered.SlicesConfig{
		Client: r.plane.client, Catalog: r.tables, PodAt: r.pods.at, Logger: log.With("component", "endpoints of registered services"),
	}
	metadata := dubbo.Config{
		Client: r.plane.client, Catalog: r.tables, WithoutSecrets: true, Meters: r.core.Meters, Logger: log.With("component", "metadata of dubbo"),
	}
	return slices.Concat(
		[]component{
			{Name: "tables of registries", Run: r.tables.Run},
			{Name: "addresses of pods", Run: r.pods.run},
			{Name: "leader of registries", Scope: leader, Run: func(ctx context.Context) error {
				r.leads.Store(true)
				defer r.leads.Store(false)
				<-ctx.Done()
				return nil
			}},
			{Name: "registered services", Scope: leader, Run: func(ctx context.Context) error { return registered.New(services).Run(ctx) }},
			{Name: "endpoints of registered services", Scope: leader, Run: func(ctx context.Context) error { return registered.NewSlices(endpoints).Run(ctx) }},
			{Name: "metadata of dubbo", Scope: leader, Run: func(ctx context.Context) error { return dubbo.New(metadata).Run(ctx) }},
		},
		r.registries.components(),
	)
}

// synced reports whether clients can be answered.
func (r *clusterRegistries) synced() bool { return r == nil || r.core.Started() == nil }

// wait until they can be, or ctx ends, whose error it returns.
func (r *clusterRegistries) wait(ctx context.Context) error {
	if r == nil {
		return nil
	}
	for _, ready := range []<-chan struct{}{r.core.Index.Ready(), r.core.Configs.Ready()} {
		select {
		case <-ready:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (r *clusterRegistries) status() []registry.Status {
	if r == nil {
		return nil
	}
	return r.registries.status()
}

func (r *clusterRegistries) close() {
	if r != nil {
		r.registries.close()
	}
}

// podAddresses finds the Pod that has an address of its own. Make it with newPodAddresses.
type podAddresses struct {
	tables *catalog.Catalog

	mu sync.Mutex
	of map[netip.Addr]resource.Key
}

func newPodAddresses(tables *catalog.Catalog) *podAddresses {
	return &podAddresses{tables: tables, of: map[netip.Addr]resource.Key{}}
}

// run follows Pods until ctx ends, and returns nil then.
func (p *podAddresses) run(ctx context.Context) error {
	sub := p.tables.Subscribe(catalog.Pods)
	defer sub.Close()
	for {
		d, err := sub.Next(ctx)
		if err != nil {
			return nil //nolint:nilerr // ctx has ended, or the tables have
		}
		p.apply(&d)
	}
}

func (p *podAddresses) apply(d *catalog.Delta) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range d.Pods {
		for _, a := range podOwnAddresses(c.Old) {
			if p.of[a] == c.Key { // another Pod may have it by now
				delete(p.of, a)
			}
		}
	}
	for _, c := range d.Pods {
		for _, a := range podOwnAddresses(c.New) {
			p.of[a] = c.Key
		}
	}
}

// podOwnAddresses of a Pod; none where it is in the network of its node, or has ended.
func podOwnAddresses(pod *corev1.Pod) []netip.Addr {
	if pod == nil || pod.Spec.HostNetwork || pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
		return nil
	}
	var out []netip.Addr
	for _, text := range append([]string{pod.Status.PodIP}, ipsOf(pod)...) {
		if a, err := netip.ParseAddr(text); err == nil && !slices.Contains(out, a.Unmap()) {
			out = append(out, a.Unmap())
		}
	}
	return out
}

func ipsOf(pod *corev1.Pod) []string {
	var out []string
	for _, ip := range pod.Status.PodIPs {
		out = append(out, ip.IP)
	}
	return out
}

// at is the Pod with an address; nil: there is none.
func (p *podAddresses) at(a netip.Addr) *corev1.Pod {
	p.mu.Lock()
	key, ok := p.of[a]
	p.mu.Unlock()
	if !ok {
		return nil
	}
	pod, _ := p.tables.Snapshot().Pods.Get(key)
	return pod
}

// nodeOf the Pod with an address; empty: there is none.
func (p *podAddresses) nodeOf(a netip.Addr) string {
	if pod := p.at(a); pod != nil {
		return pod.Spec.NodeName
	}
	return ""
}

// RegistryAudience is the audience of the tokens of service accounts that clients of registries show as
// their password.
const RegistryAudience = "proxima-registry"

const (
	// reviewedFor is how long the user of a token is not asked for again.
	reviewedFor = time.Minute
	maxReviewed = 10_000
)

// registryAccounts finds the users of tokens of service accounts, which the API of the cluster reviews; other tokens
// are Next's. A service account registers in its own namespace alone.
type registryAccounts struct {
	Reviewer access.TokenReviewer
	Next     func(context.Context, string) (registry.User, error)

	mu    sync.Mutex
	known map[[sha256.Size]byte]reviewedUser
}

type reviewedUser struct {
	user registry.User
	at   time.Time
}

// user of a token. It blocks for a review, unless the token was reviewed a moment ago.
func (a *registryAccounts) user(ctx context.Context, token string) (registry.User, error) {
	if strings.Count(token, ".") != 2 { // those of the cluster are JSON Web Tokens, of three parts; others are ours
		return a.Next(ctx, token)
	}
	sum := sha256.Sum256([]byte(token))
	a.mu.Lock()
	known, ok := a.known[sum]
	a.mu.Unlock()
	if ok && time.Since(known.at) < reviewedFor {
		return known.user, nil
	}
	status, err := a.Reviewer.ReviewToken(ctx, token, []string{RegistryAudience})
	if err != nil {
		return registry.User{}, fmt.Errorf("%w: %w", access.ErrNotReviewed, err)
	}
	if !status.Authenticated {
		return registry.User{}, errors.New("the cluster refuses the token")
	}
	if !slices.Contains(status.Audiences, RegistryAudience) {
		return registry.User{}, fmt.Errorf("the token is not for the audience %q", RegistryAudience)
	}
	namespace, name, err := serviceaccount.SplitUsername(status.User.Username)
	if err != nil {
		return registry.User{}, fmt.Errorf("the token is of %s, which is no service account", status.User.Username)
	}
	user := registry.User{Name: status.User.Username, Namespaces: []string{namespace}, ServiceAccount: name}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.known == nil || len(a.known) >= maxReviewed {
		a.known = map[[sha256.Size]byte]reviewedUser{}
	}
	a.known[sum] = reviewedUser{user, time.Now()}
	return user, nil
}
