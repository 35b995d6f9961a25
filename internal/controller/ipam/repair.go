package ipam

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/controller/event"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/reflector"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// orphanGrace is how long an IPAddress may be without its Service, as in
	// Kubernetes' repair controller.
	orphanGrace = 60 * time.Second
	// repairRetry is the pause after a write that failed.
	repairRetry = 5 * time.Second
	watchRetry  = time.Second
)

// Reasons of the events on Services, as in Kubernetes.
const (
	ReasonNotAllocated     = "ClusterIPNotAllocated"
	ReasonAlreadyAllocated = "ClusterIPAlreadyAllocated"
	ReasonOutOfRange       = "ClusterIPOutOfRange"
)

// RepairConfig of a Repair.
type RepairConfig struct {
	Client resource.Client
	// Descriptors of the kinds it looks at.
	Services, IPAddresses, ServiceCIDRs *resource.Descriptor
	// Logger; nil: silence.
	Logger *slog.Logger
}

// Repair keeps IPAddress objects and Services in agreement where something other
// than the one write path came between them: an object deleted by hand, a backup
// restored in part. It looks at an address whenever an object that concerns it
// changes, and reads the newest state before it writes, since the watches of two
// kinds are not in step. Node ports have no API object and are not looked at.
//
// It also keeps the ranges themselves: a ServiceCIDR is marked as ready, and one
// that is deleted stays until no address needs it (ranges.go).
type Repair struct {
	client   resource.Client
	services *resource.Descriptor
	objects  *resource.Descriptor
	cidrs    *resource.Descriptor
	log      *slog.Logger

	byService map[resource.Key]*corev1.Service
	claims    map[netip.Addr]map[resource.Key]struct{}
	owned     map[netip.Addr]*networkingv1.IPAddress
	ranges    map[string]*keptRange
	synced    map[*resource.Descriptor]bool
	// due is when an address is to be looked at.
	due map[netip.Addr]time.Time
	// rangeDue is when a range is to be looked at.
	rangeDue map[string]time.Time
	// orphaned is since when an object has been without its Service.
	orphaned map[netip.Addr]time.Time
	// reported are the problems of which an event was sent, while they last.
	reported map[problem]struct{}
}

// problem is the cause of an event that was sent.
type problem struct {
	service resource.Key
	addr    netip.Addr
	reason  string
}

// NewRepair makes the controller; Run starts it.
func NewRepair(c RepairConfig) *Repair {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Repair{
		client: c.Client, services: c.Services, objects: c.IPAddresses, cidrs: c.ServiceCIDRs, log: c.Logger,
		byService: map[resource.Key]*corev1.Service{}, claims: map[netip.Addr]map[resource.Key]struct{}{},
		owned: map[netip.Addr]*networkingv1.IPAddress{}, ranges: map[string]*keptRange{},
		synced: map[*resource.Descriptor]bool{}, due: map[netip.Addr]time.Time{},
		rangeDue: map[string]time.Time{}, orphaned: map[netip.Addr]time.Time{}, reported: map[problem]struct{}{},
	}
}

// Run works until ctx ends, and returns nil then. It must be called once.
func (r *Repair) Run(ctx context.Context) error {
	events := make(chan reflector.Event)
	var watching sync.WaitGroup
	watching.Go(func() {
		reflector.RunAll(ctx, reflector.Config{
			Client:       r.client,
			AlwaysRelist: true, // an address is orphaned by what is not there
			Backoff:      backoff.Policy{First: watchRetry, Last: watchRetry},
			Logger:       r.log,
			Level:        slog.LevelWarn,
		}, []*resource.Descriptor{r.services, r.objects, r.cidrs}, events)
	})
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			watching.Wait()
			return nil
		case e := <-events:
			r.note(e)
		case <-timer.C:
		}
		if next, pending := r.processDue(ctx); pending {
			timer.Reset(time.Until(next))
		}
	}
}

// processDue processes every address and range that is due and returns when the next
// one is.
func (r *Repair) processDue(ctx context.Context) (next time.Time, pending bool) {
	if !r.synced[r.services] || !r.synced[r.objects] || !r.synced[r.cidrs] {
		return time.Time{}, false
	}
	now := time.Now()
	for addr, at := range r.due {
		if !at.After(now) {
			delete(r.due, addr)
			if err := r.processAddress(ctx, addr, now); err != nil && ctx.Err() == nil {
				r.log.Warn("address not repaired; will try again", "address", addr, "error", err)
				r.due[addr] = now.Add(repairRetry)
			}
		}
	}
	for name, at := range r.rangeDue {
		if !at.After(now) {
			delete(r.rangeDue, name)
			if err := r.processRange(ctx, name, now); err != nil && ctx.Err() == nil {
				r.log.Warn("service range not kept; will try again", "servicecidr", name, "error", err)
				r.rangeDue[name] = now.Add(repairRetry)
			}
		}
	}
	for _, times := range []iter.Seq[time.Time]{maps.Values(r.due), maps.Values(r.rangeDue)} {
		for at := range times {
			if !pending || at.Before(next) {
				next, pending = at, true
			}
		}
	}
	return next, pending
}

// processAddress compares who claims an address with who owns it.
func (r *Repair) processAddress(ctx context.Context, addr netip.Addr, now time.Time) error {
	claimants := r.claimants(addr)
	ip := r.owned[addr]
	if len(claimants) > 0 {
		delete(r.orphaned, addr)
	}
	owner := ownerOf(ip, claimants)
	r.clearReported(addr, owner, claimants)
	switch {
	case len(claimants) == 0 && ip == nil:
		delete(r.orphaned, addr)
		return nil
	case len(claimants) == 0:
		return r.processOrphan(ctx, addr, ip, now)
	case !r.inRange(addr):
		for _, svc := range claimants {
			r.report(ctx, svc, addr, ReasonOutOfRange, "is not within any configured Service CIDR; please recreate service")
		}
		return nil
	case ip == nil:
		return r.recreate(ctx, addr, claimants[0], "is not allocated; repairing")
	case owner == nil && isManaged(ip):
		return r.replace(ctx, addr, ip, claimants[0])
	}
	for _, svc := range claimants {
		if svc != owner {
			r.report(ctx, svc, addr, ReasonAlreadyAllocated, "was assigned to another Service as well; please recreate service")
		}
	}
	return nil
}

// claimants of an address, the oldest first: it keeps a disputed address.
func (r *Repair) claimants(addr netip.Addr) []*corev1.Service {
	var out []*corev1.Service
	for key := range r.claims[addr] {
		out = append(out, r.byService[key])
	}
	slices.SortFunc(out, func(a, b *corev1.Service) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out
}

func ownerOf(ip *networkingv1.IPAddress, claimants []*corev1.Service) *corev1.Service {
	for _, svc := range claimants {
		if ip != nil && ip.Spec.ParentRef != nil && *ip.Spec.ParentRef == *parentOf(svc) {
			return svc
		}
	}
	return nil
}

func isManaged(ip *networkingv1.IPAddress) bool {
	return ip.Labels[networkingv1.LabelManagedBy] == ManagedBy
}

func (r *Repair) inRange(addr netip.Addr) bool {
	for _, k := range r.ranges {
		if k.contains(addr) {
			return true
		}
	}
	return len(r.ranges) == 0 // without any ServiceCIDR object there is nothing to compare with
}

// processOrphan deletes an object whose Service is gone, after the grace, if it is
// the allocator's. Others, a Gateway's for example, are left alone.
func (r *Repair) processOrphan(ctx context.Context, addr netip.Addr, ip *networkingv1.IPAddress, now time.Time) error {
	if !isManaged(ip) {
		return nil
	}
	since, known := r.orphaned[addr]
	if !known {
		since = now
		r.orphaned[addr] = now
	}
	if at := since.Add(orphanGrace); at.After(now) {
		r.due[addr] = at
		return nil
	}
	if ref := ip.Spec.ParentRef; ref != nil && ref.Resource == r.services.Resource {
		obj, err := r.client.Get(ctx, r.services, resource.Key{Namespace: ref.Namespace, Name: ref.Name})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		if err == nil && slices.Contains(addressesOf(obj.(*corev1.Service)), addr) {
			return nil // the watch of Services is behind and will deliver it
		}
	}
	err := r.deleteExactly(ctx, ip)
	if err == nil {
		r.log.Info("orphaned address released", "address", addr)
	}
	return err
}

// recreate makes the missing object of an address, for a Service that still
// claims it.
func (r *Repair) recreate(ctx context.Context, addr netip.Addr, svc *corev1.Service, what string) error {
	_, err := r.client.Get(ctx, r.objects, resource.Key{Name: addr.String()})
	if err == nil {
		return nil // the watch is behind and will deliver it
	}
	if !apierrors.IsNotFound(err) {
		return err
	}
	obj, err := r.client.Get(ctx, r.services, resource.KeyOf(svc))
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	newest := obj.(*corev1.Service)
	if !slices.Contains(addressesOf(newest), addr) {
		return nil
	}
	r.report(ctx, newest, addr, ReasonNotAllocated, what)
	if _, err := r.client.Create(ctx, kind.IPAddress, IPAddressFor(addr, newest)); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	r.log.Info("missing address recreated", "address", addr, "service", resource.KeyOf(svc))
	return nil
}

// replace deletes an object that names a parent without a claim; its deletion
// brings the address back here. The parent cannot be changed in place.
func (r *Repair) replace(ctx context.Context, addr netip.Addr, ip *networkingv1.IPAddress, svc *corev1.Service) error {
	obj, err := r.client.Get(ctx, r.objects, resource.KeyOf(ip))
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if newest := obj.(*networkingv1.IPAddress); newest.ResourceVersion != ip.ResourceVersion {
		return nil // the watch is behind and will deliver it
	}
	// The named parent may claim it in a state that has not come by yet.
	if ref := ip.Spec.ParentRef; ref != nil && ref.Resource == r.services.Resource {
		parent, err := r.client.Get(ctx, r.services, resource.Key{Namespace: ref.Namespace, Name: ref.Name})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		if err == nil && slices.Contains(addressesOf(parent.(*corev1.Service)), addr) {
			return nil
		}
	}
	r.report(ctx, svc, addr, ReasonNotAllocated, "has a wrong reference; repairing")
	return r.deleteExactly(ctx, ip)
}

// deleteExactly deletes an object in the state that was judged.
func (r *Repair) deleteExactly(ctx context.Context, ip *networkingv1.IPAddress) error {
	err := r.client.Delete(ctx, r.objects, resource.KeyOf(ip), resource.Preconditions{UID: ip.UID, ResourceVersion: ip.ResourceVersion})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // the watch will deliver it
	}
	return err
}

// report sends an event about a Service, once for as long as the cause lasts. An
// event that cannot be sent is only logged: the repair matters more.
func (r *Repair) report(ctx context.Context, svc *corev1.Service, addr netip.Addr, reason, what string) {
	c := problem{resource.KeyOf(svc), addr, reason}
	if _, reported := r.reported[c]; reported {
		return
	}
	message := fmt.Sprintf("Cluster IP [%s]: %s %s", familyOf(addr), addr, what)
	about := event.About(corev1.SchemeGroupVersion.WithKind("Service"), svc)
	_, err := r.client.Create(ctx, kind.Event, event.Warning(about, "ipallocator-repair-controller", time.Now(), reason, message))
	if err != nil {
		r.log.Warn("event not sent", "service", c.service, "reason", reason, "message", message, "error", err)
		return
	}
	r.reported[c] = struct{}{}
}

// clearReported forgets the problems that are solved.
func (r *Repair) clearReported(addr netip.Addr, owner *corev1.Service, claimants []*corev1.Service) {
	inRange := r.inRange(addr)
	for c := range r.reported {
		if c.addr != addr {
			continue
		}
		claims := slices.ContainsFunc(claimants, func(s *corev1.Service) bool { return resource.KeyOf(s) == c.service })
		owns := owner != nil && resource.KeyOf(owner) == c.service
		if !claims || owns && c.reason != ReasonOutOfRange || inRange && c.reason == ReasonOutOfRange {
			delete(r.reported, c)
		}
	}
}
