package loadbalancer

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/event"
	"github.com/proxima-mesh/proxima/internal/controller/loop"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// ConditionAddresses of a Service of type LoadBalancer says whether it has addresses from
// outside, and if not, why.
const ConditionAddresses = "proxima.dev/LoadBalancer"

// Reasons of the condition, and of the event when a Service gets no address.
const (
	ReasonAssigned  = "Assigned"
	ReasonNoClass   = "NoClass"
	ReasonNoNode    = "NoNode"
	ReasonPortInUse = "PortInUse"
	ReasonNoPool    = "NoPool"
	ReasonNoAddress = "NoAddress"
)

// noClass tells what nobody else can: the class of a Service cannot be set later.
const noClass = "spec.loadBalancerClass is empty, and nobody assigns addresses to such Services here: create the Service again with " +
	meshv1alpha1.LoadBalancerClassNode + " (addresses of nodes) or " + meshv1alpha1.LoadBalancerClassPool +
	" (addresses of an IPAddressPool), or run a provider that fills status.loadBalancer"

// component that events come from, as those of Kubernetes' service controller do.
const component = "service-controller"

// Config of a Controller. Client, Catalog and InServiceRange are required.
type Config struct {
	Client  resource.Client
	Catalog *catalog.Catalog
	// InServiceRange reports whether an address is one of virtual IPs. It must not block.
	InServiceRange func(netip.Addr) bool
	// Classless: Services without a class are told that nobody provides for them. False
	// where another provider may, as in Kubernetes.
	Classless bool
	// Window as in loop.Config.
	Window time.Duration
	Clock  clock.WithTicker // nil: the real one
	Logger *slog.Logger     // nil: discard
}

// Controller keeps addresses from outside. Make it with New.
type Controller struct {
	Config
	services, pools *loop.Loop
	owners          *owners
}

// New makes the controller; Run starts it.
func New(c Config) *Controller {
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	l := &Controller{Config: c, owners: newOwners()}
	l.services = loop.New(loop.Config{What: "service", Sync: l.syncService, Window: c.Window, Clock: c.Clock, Logger: c.Logger})
	l.pools = loop.New(loop.Config{What: "address pool", Sync: l.syncPool, Window: c.Window, Clock: c.Clock, Logger: c.Logger})
	return l
}

// startRetry is the pause after Services could not be read at the start.
const startRetry = time.Second

// Run works until ctx ends, and returns nil then. It must be called once.
func (c *Controller) Run(ctx context.Context) error {
	for err := c.start(ctx); err != nil; err = c.start(ctx) {
		if ctx.Err() == nil {
			c.Logger.Warn("addresses of services not read; it is tried again", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-c.Clock.After(startRetry):
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.pools.Run(ctx, c.Catalog, c.dispatchPools, catalog.AddressPools, catalog.Services) // it returns nil
	}()
	err := c.services.Run(ctx, c.Catalog, c.dispatch, catalog.Services, catalog.Nodes, catalog.Slices, catalog.AddressPools)
	<-done
	return err
}

// start learns which addresses are taken. It reads the store rather than the tables, which
// may not show yet what the leader before wrote last. The older Service keeps an address
// that two have.
func (c *Controller) start(ctx context.Context) error {
	list, _, err := c.Client.List(ctx, kind.Service, resource.ListOptions{})
	if err != nil {
		return fmt.Errorf("list services: %w", err)
	}
	services := make([]*corev1.Service, 0, len(list))
	for _, o := range list {
		if s := o.(*corev1.Service); classOf(s) == classPool {
			services = append(services, s)
		}
	}
	slices.SortFunc(services, func(a, b *corev1.Service) int {
		if before(a, b) {
			return -1
		}
		return 1
	})
	for _, s := range services {
		for _, a := range statusAddresses(s) {
			c.owners.take(a, resource.KeyOf(s))
		}
	}
	return nil
}

// class of a Service as far as this package cares.
type class uint8

const (
	classNone    class = iota // no load balancer, or one of another provider
	classUnnamed              // a load balancer without a class
	classNode
	classPool
)

func classOf(s *corev1.Service) class {
	switch {
	case s == nil || s.Spec.Type != corev1.ServiceTypeLoadBalancer:
		return classNone
	case s.Spec.LoadBalancerClass == nil:
		return classUnnamed
	case *s.Spec.LoadBalancerClass == meshv1alpha1.LoadBalancerClassNode:
		return classNode
	case *s.Spec.LoadBalancerClass == meshv1alpha1.LoadBalancerClassPool:
		return classPool
	}
	return classNone
}

// ingress is what a Service is to have: addresses, and the condition with its reason.
type ingress struct {
	addresses       []netip.Addr
	reason, message string
}

// dispatch queues the Services whose addresses a delta concerns.
func (c *Controller) dispatch(d catalog.Delta) {
	again := map[class]bool{}
	for _, change := range d.Services {
		was, is := classOf(change.Old), classOf(change.New)
		if was != classNone || is != classNone || change.New != nil && hasCondition(change.New) {
			c.services.Add(change.Key)
		}
		// What one Service gives up, another may wait for.
		if change.New == nil || was != is || change.Old != nil && !samePorts(change.Old, change.New) {
			again[was] = true
		}
	}
	again[classPool] = again[classPool] || len(d.AddressPools) > 0
	for _, change := range d.Nodes {
		again[classNode] = again[classNode] || !sameForServices(change.Old, change.New)
	}
	for _, change := range d.Slices {
		for _, slice := range []map[string]string{labelsOf(change.Old), labelsOf(change.New)} {
			key := resource.Key{Namespace: change.Key.Namespace, Name: slice["kubernetes.io/service-name"]}
			if s, ok := d.After.Services.Get(key); ok && onNodes(s) && s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
				c.services.Add(key)
			}
		}
	}
	delete(again, classNone)
	if !again[classNode] && !again[classPool] {
		return
	}
	for key, s := range d.After.Services.All() {
		if again[classOf(s)] {
			c.services.Add(key)
		}
	}
}

func (c *Controller) dispatchPools(d catalog.Delta) {
	for _, change := range d.AddressPools {
		c.pools.Add(change.Key)
	}
	changed := slices.ContainsFunc(d.Services, func(change catalog.Change[*corev1.Service]) bool {
		return classOf(change.Old) == classPool || classOf(change.New) == classPool
	})
	if changed {
		for key := range d.After.AddressPools.All() {
			c.pools.Add(key)
		}
	}
}

// syncService brings the addresses and the condition of a Service to what they should be.
func (c *Controller) syncService(ctx context.Context, key resource.Key) error {
	s := c.Catalog.Snapshot()
	service, ok := s.Services.Get(key)
	if !ok {
		c.owners.free(key, nil)
		c.services.Forget(key)
		return nil
	}
	if !loop.Observed(c.services.Expectations(key), s.Services.Revision(), service) {
		return loop.ErrStale
	}
	next := service.DeepCopy()
	var want ingress
	switch classOf(service) {
	case classNode:
		want = nodeIngress(s, service)
		setIngress(next, want.addresses)
	case classPool:
		want = c.poolIngress(s, service)
		setIngress(next, want.addresses)
	case classUnnamed:
		if c.Classless && len(service.Status.LoadBalancer.Ingress) == 0 {
			want = ingress{reason: ReasonNoClass, message: noClass}
		}
		fallthrough
	default:
		c.owners.free(key, nil)
	}
	fresh := setCondition(next, want, metav1.NewTime(c.Clock.Now()))
	if equality.Semantic.DeepEqual(service.Status, next.Status) {
		return nil
	}
	c.services.Writes(key)
	made, err := c.Client.UpdateStatus(ctx, kind.Service, next)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return loop.ErrStale
	case err != nil:
		return fmt.Errorf("write addresses of service %s: %w", key, err)
	}
	c.services.Expectations(key).Wrote(made)
	if fresh && want.reason != ReasonAssigned {
		c.report(ctx, service, want)
	}
	return nil
}

// report, once, that a Service gets no address.
func (c *Controller) report(ctx context.Context, service *corev1.Service, why ingress) {
	e := event.Warning(event.About(kind.Service.GVK, service), component, c.Clock.Now(), why.reason, why.message)
	if _, err := c.Client.Create(ctx, kind.Event, e); err != nil && ctx.Err() == nil {
		c.Logger.Warn("event not written", "service", resource.KeyOf(service), "reason", why.reason, "error", err)
	}
}

// syncPool counts the addresses of a pool that are in use.
func (c *Controller) syncPool(ctx context.Context, key resource.Key) error {
	s := c.Catalog.Snapshot()
	pool, ok := s.AddressPools.Get(key)
	if !ok {
		c.pools.Forget(key)
		return nil
	}
	ranges, n := rangesOf(pool), int64(0)
	for _, service := range s.Services.All() {
		if classOf(service) != classPool {
			continue
		}
		for _, a := range statusAddresses(service) {
			for _, r := range ranges {
				if r.Contains(a) {
					n++
				}
			}
		}
	}
	if pool.Status.Assigned == n {
		return nil
	}
	next := pool.DeepCopy()
	next.Status.Assigned = n
	c.pools.Writes(key)
	_, err := c.Client.UpdateStatus(ctx, kind.IPAddressPool, next)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return loop.ErrStale
	case err != nil:
		return fmt.Errorf("write status of address pool %s: %w", key.Name, err)
	}
	return nil
}

// setIngress writes addresses into the status of a Service. Agents serve them, so clients
// within reach of an agent do not leave their machine for them (KEP-1860).
func setIngress(s *corev1.Service, addresses []netip.Addr) {
	s.Status.LoadBalancer.Ingress = nil
	for _, a := range addresses {
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress,
			corev1.LoadBalancerIngress{IP: a.String(), IPMode: new(corev1.LoadBalancerIPModeVIP)})
	}
}

// statusAddresses that a Service has.
func statusAddresses(s *corev1.Service) []netip.Addr {
	var out []netip.Addr
	for _, in := range s.Status.LoadBalancer.Ingress {
		if a, err := netip.ParseAddr(in.IP); err == nil {
			out = append(out, a.Unmap())
		}
	}
	return out
}

// setCondition; a reason of "" takes it away. fresh: it says something else than before.
func setCondition(s *corev1.Service, want ingress, now metav1.Time) (fresh bool) {
	if want.reason == "" {
		meta.RemoveStatusCondition(&s.Status.Conditions, ConditionAddresses)
		return false
	}
	was := meta.FindStatusCondition(s.Status.Conditions, ConditionAddresses)
	fresh = was == nil || was.Reason != want.reason || was.Message != want.message
	cond := metav1.Condition{
		Type: ConditionAddresses, Status: metav1.ConditionTrue, Reason: want.reason, Message: want.message,
		ObservedGeneration: s.Generation, LastTransitionTime: now,
	}
	if want.reason != ReasonAssigned {
		cond.Status = metav1.ConditionFalse
	}
	meta.SetStatusCondition(&s.Status.Conditions, cond)
	return fresh
}

func hasCondition(s *corev1.Service) bool {
	return meta.FindStatusCondition(s.Status.Conditions, ConditionAddresses) != nil
}

func labelsOf[T interface {
	comparable
	GetLabels() map[string]string
}](o T) map[string]string {
	var none T
	if o == none {
		return nil
	}
	return o.GetLabels()
}

// samePorts: neither Service takes a port of nodes that the other does not.
func samePorts(a, b *corev1.Service) bool {
	return equality.Semantic.DeepEqual(a.Spec.Ports, b.Spec.Ports)
}

// sameForServices: of a Node, its addresses matter, and whether traffic may be sent to it.
func sameForServices(a, b *corev1.Node) bool {
	return a != nil && b != nil && balances(a) == balances(b) && slices.Equal(a.Status.Addresses, b.Status.Addresses)
}
