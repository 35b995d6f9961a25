package loadbalancer

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
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
	// Reserved are ports that nodes need themselves, besides those of Proxima, and for what.
	Reserved map[int32]string
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
		if s := o.(*corev1.Service); len(poolAddresses(s)) > 0 {
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
		for _, a := range poolAddresses(s) {
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
func (c *Controller) dispatch(d catalog.Delta) { concerned(&d, c.services.Add) }

// concerned calls queue for the Services whose addresses follow from what a delta changes, maybe
// several times.
func concerned(d *catalog.Delta, queue func(resource.Key)) {
	ports := map[portKey]bool{}
	for _, change := range d.Services {
		if classOf(change.Old) != classNone || classOf(change.New) != classNone || change.New != nil && hasCondition(change.New) {
			queue(change.Key)
		}
		if onNodes(change.Old) != onNodes(change.New) || onNodes(change.Old) && !samePorts(change.Old, change.New) {
			notePorts(ports, change.Old)
			notePorts(ports, change.New)
		}
	}
	for _, change := range d.Slices {
		for _, slice := range []*discoveryv1.EndpointSlice{change.Old, change.New} {
			if slice == nil {
				continue
			}
			key := resource.Key{Namespace: change.Key.Namespace, Name: slice.Labels[discoveryv1.LabelServiceName]}
			if s, ok := d.After.Services.Get(key); ok && onNodes(s) && s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
				queue(key)
			}
		}
	}
	nodes := slices.ContainsFunc(d.Nodes, func(change catalog.Change[*corev1.Node]) bool { return !sameForServices(change.Old, change.New) })
	pools := slices.ContainsFunc(d.AddressPools, func(change catalog.Change[*meshv1alpha1.IPAddressPool]) bool {
		return change.Old == nil || change.New == nil || !equality.Semantic.DeepEqual(change.Old.Spec, change.New.Spec)
	})
	if len(ports) == 0 && !nodes && !pools {
		return
	}
	for key, s := range d.After.Services.All() {
		switch class := classOf(s); {
		case class == classNode && (nodes || hasOneOf(s, ports)), class == classPool && pools:
			queue(key)
		}
	}
}

// dispatchPools queues the pools in which other addresses are in use than before.
func (c *Controller) dispatchPools(d catalog.Delta) {
	for _, change := range d.AddressPools {
		c.pools.Add(change.Key)
	}
	var moved []netip.Addr
	for _, change := range d.Services {
		was, is := poolAddresses(change.Old), poolAddresses(change.New)
		if !slices.Equal(was, is) {
			moved = append(append(moved, was...), is...)
		}
	}
	if moved == nil {
		return
	}
	for key, pool := range d.After.AddressPools.All() {
		ranges := rangesOf(pool)
		if slices.ContainsFunc(moved, func(a netip.Addr) bool { return inOneOf(ranges, a) }) {
			c.pools.Add(key)
		}
	}
}

// syncService brings the addresses and the condition of a Service to what they should be.
func (c *Controller) syncService(ctx context.Context, key resource.Key) error {
	s := c.Catalog.Snapshot()
	service, ok := s.Services.Get(key)
	if !ok {
		c.release(key, nil)
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
		want = c.nodeIngress(s, service)
		setIngress(next, want.addresses)
	case classPool:
		want = c.poolIngress(s, service)
		setIngress(next, want.addresses)
	case classUnnamed:
		if c.Classless && len(service.Status.LoadBalancer.Ingress) == 0 {
			want = ingress{reason: ReasonNoClass, message: noClass}
		}
	}
	fresh := setCondition(next, want, metav1.NewTime(c.Clock.Now()))
	if !equality.Semantic.DeepEqual(service.Status, next.Status) {
		if err := c.write(ctx, key, next); err != nil {
			return err
		}
		if fresh && want.reason != ReasonAssigned {
			c.report(ctx, service, want)
		}
	}
	if classOf(service) != classPool {
		want.addresses = nil // none of them is of a pool
	}
	c.release(key, want.addresses)
	return nil
}

func (c *Controller) write(ctx context.Context, key resource.Key, next *corev1.Service) error {
	c.services.Writes(key)
	made, err := c.Client.UpdateStatus(ctx, kind.Service, next)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return loop.ErrStale
	case err != nil:
		return fmt.Errorf("write addresses of service %s: %w", key, err)
	}
	c.services.Expectations(key).Await(made)
	return nil
}

// release the addresses of pools that a Service has, but for those to keep, and queue the
// Services that wait for one. It comes after the write: a Service whose status is newer than
// the table, as after a change of leaders, keeps what it has.
func (c *Controller) release(key resource.Key, keep []netip.Addr) {
	if !c.owners.free(key, keep) {
		return
	}
	for other, s := range c.Catalog.Snapshot().Services.All() {
		if classOf(s) == classPool && meta.IsStatusConditionFalse(s.Status.Conditions, ConditionAddresses) {
			c.services.Add(other)
		}
	}
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
		for _, a := range poolAddresses(service) {
			if inOneOf(ranges, a) {
				n++
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

// poolAddresses that a Service has; s may be nil.
func poolAddresses(s *corev1.Service) []netip.Addr {
	if classOf(s) != classPool {
		return nil
	}
	return statusAddresses(s)
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

// samePorts: neither version of a Service takes a port of nodes that the other does not, or
// takes it before others that the other does not.
func samePorts(a, b *corev1.Service) bool {
	return a.CreationTimestamp.Equal(&b.CreationTimestamp) && equality.Semantic.DeepEqual(a.Spec.Ports, b.Spec.Ports)
}

// sameForServices: of a Node, its addresses matter, and whether traffic may be sent to it.
func sameForServices(a, b *corev1.Node) bool {
	return a != nil && b != nil && balances(a) == balances(b) && slices.Equal(a.Status.Addresses, b.Status.Addresses)
}
