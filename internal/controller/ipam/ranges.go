package ipam

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// RangeFinalizer holds a ServiceCIDR back from going while addresses of it
	// are in use; the name is Kubernetes'.
	RangeFinalizer = "networking.k8s.io/service-cidr-finalizer"
	// rangeGrace is for how long a range whose deletion was seen is kept, though
	// no address needs it: until then every allocator has heard that it is not to
	// be used, and what was under way has ended. Kubernetes waits 10 s; here the
	// addresses are read again afterwards, so less will do.
	rangeGrace = time.Second

	messageRangeReady   = "Kubernetes Service CIDR is ready"
	messageRangeBlocked = "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR"
)

// keptRange is a ServiceCIDR as the watch last delivered it.
type keptRange struct {
	cidr     *networkingv1.ServiceCIDR
	prefixes []netip.Prefix
	// For a range that is being deleted: since when that is known here, and the
	// addresses that lie in no other range that stays.
	leavingSince time.Time
	blocking     map[netip.Addr]struct{}
}

func (k *keptRange) leaving() bool { return !k.cidr.DeletionTimestamp.IsZero() }

func (k *keptRange) contains(addr netip.Addr) bool {
	return slices.ContainsFunc(k.prefixes, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// setRange takes over a range (nil: it is gone). Any claimed address may be in
// or out of range now, and any address may hold back another range or not.
func (r *Repair) setRange(name string, cidr *networkingv1.ServiceCIDR) {
	was := r.ranges[name]
	delete(r.ranges, name)
	if cidr != nil {
		is := &keptRange{cidr: cidr}
		for _, text := range cidr.Spec.CIDRs {
			if p, err := netip.ParsePrefix(text); err == nil {
				is.prefixes = append(is.prefixes, p)
			}
		}
		if is.leaving() {
			is.leavingSince = time.Now()
			if was != nil && was.leaving() && was.cidr.UID == cidr.UID {
				is.leavingSince = was.leavingSince
			}
		}
		r.ranges[name] = is
		r.rangeDue[name] = time.Time{}
		if was != nil && slices.Equal(was.prefixes, is.prefixes) && was.leaving() == is.leaving() {
			is.blocking = was.blocking
			return // its status, or a user's label
		}
	}
	for addr := range r.claims {
		r.due[addr] = time.Time{}
	}
	r.countBlocking()
}

// countBlocking works out again which addresses hold back which range. Its cost
// is that of all addresses, so it is for changes of the ranges alone.
func (r *Repair) countBlocking() {
	for name, k := range r.ranges {
		if !k.leaving() {
			continue
		}
		k.blocking = map[netip.Addr]struct{}{}
		for addr, ip := range r.owned {
			if r.blocks(k, addr, ip) {
				k.blocking[addr] = struct{}{}
			}
		}
		r.rangeDue[name] = time.Time{}
	}
}

// noteBlocking keeps the ranges that are being deleted up to date about one
// address.
func (r *Repair) noteBlocking(addr netip.Addr) {
	for name, k := range r.ranges {
		if !k.leaving() {
			continue
		}
		before := len(k.blocking)
		if r.blocks(k, addr, r.owned[addr]) {
			k.blocking[addr] = struct{}{}
		} else {
			delete(k.blocking, addr)
		}
		if (before == 0) != (len(k.blocking) == 0) {
			r.rangeDue[name] = time.Time{}
		}
	}
}

// blocks: the allocator's own addresses do, unless a range that stays contains
// them as well. (To Kubernetes a range that is being deleted itself counts too,
// so that of two that overlap each lets the other one go.)
func (r *Repair) blocks(k *keptRange, addr netip.Addr, ip *networkingv1.IPAddress) bool {
	if ip == nil || !isManaged(ip) || !k.contains(addr) {
		return false
	}
	for _, other := range r.ranges {
		if !other.leaving() && other.contains(addr) {
			return false
		}
	}
	return true
}

// processRange gives a range its finalizer and its condition, and lets one go that
// is being deleted and that nothing needs.
func (r *Repair) processRange(ctx context.Context, name string, now time.Time) error {
	k := r.ranges[name]
	if k == nil {
		return nil
	}
	if !k.leaving() {
		return r.keepRange(ctx, k.cidr)
	}
	if len(k.blocking) > 0 {
		return r.setReady(ctx, k.cidr, metav1.ConditionFalse, networkingv1.ServiceCIDRReasonTerminating, messageRangeBlocked)
	}
	if at := k.leavingSince.Add(rangeGrace); at.After(now) {
		r.rangeDue[name] = at
		return nil
	}
	return r.letGo(ctx, k)
}

func (r *Repair) keepRange(ctx context.Context, cidr *networkingv1.ServiceCIDR) error {
	if !slices.Contains(cidr.Finalizers, RangeFinalizer) {
		next := cidr.DeepCopy()
		next.Finalizers = append(next.Finalizers, RangeFinalizer)
		obj, err := r.client.Update(ctx, kind.ServiceCIDR, next)
		if err != nil {
			return superseded(err)
		}
		cidr = obj.(*networkingv1.ServiceCIDR)
	}
	if meta.IsStatusConditionTrue(cidr.Status.Conditions, networkingv1.ServiceCIDRConditionReady) {
		return nil
	}
	return r.setReady(ctx, cidr, metav1.ConditionTrue, "", messageRangeReady)
}

func (r *Repair) setReady(
	ctx context.Context,
	cidr *networkingv1.ServiceCIDR,
	status metav1.ConditionStatus,
	reason, message string,
) error {
	next := cidr.DeepCopy()
	changed := meta.SetStatusCondition(&next.Status.Conditions, metav1.Condition{
		Type: networkingv1.ServiceCIDRConditionReady, Status: status, Reason: reason, Message: message,
	})
	if !changed {
		return nil
	}
	_, err := r.client.UpdateStatus(ctx, kind.ServiceCIDR, next)
	if err == nil {
		r.log.Info("service range", "servicecidr", cidr.Name, "ready", status, "message", message)
	}
	return superseded(err)
}

// letGo takes the finalizer off, after a look at the newest addresses: an
// allocator may have given one out before it heard of the deletion.
func (r *Repair) letGo(ctx context.Context, k *keptRange) error {
	if !slices.Contains(k.cidr.Finalizers, RangeFinalizer) {
		return nil
	}
	list, _, err := r.client.List(ctx, r.objects, resource.ListOptions{})
	if err != nil {
		return err
	}
	for _, obj := range list {
		if addr, err := netip.ParseAddr(obj.GetName()); err == nil && r.blocks(k, addr, obj.(*networkingv1.IPAddress)) {
			return nil // the watch is behind and will deliver it
		}
	}
	next := k.cidr.DeepCopy()
	next.Finalizers = slices.DeleteFunc(next.Finalizers, func(f string) bool { return f == RangeFinalizer })
	if _, err := r.client.Update(ctx, kind.ServiceCIDR, next); err != nil {
		return superseded(err)
	}
	r.log.Info("service range released", "servicecidr", k.cidr.Name)
	return nil
}

// superseded: another writer was faster, and the watch will deliver it.
func superseded(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}
