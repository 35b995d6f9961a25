package ipam

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/proxima-mesh/proxima/internal/resource"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// notice is what a watch has to tell. synced is false when it broke.
type notice struct {
	kind    *resource.Descriptor
	synced  bool
	all     map[resource.Key]bool // set at the end of a fresh list
	changed []resource.Object
	deleted resource.Object
}

// note takes over a notice and makes the addresses concerned due.
func (r *Repair) note(n notice) {
	r.synced[n.kind] = n.synced
	if n.all != nil {
		r.dropGone(n)
	}
	for _, obj := range n.changed {
		switch o := obj.(type) {
		case *corev1.Service:
			r.setService(resource.KeyOf(o), o)
		case *networkingv1.IPAddress:
			r.setObject(o.Name, o)
		case *networkingv1.ServiceCIDR:
			r.setRange(o.Name, o)
		}
	}
	if n.deleted != nil {
		r.drop(n.deleted)
	}
}

func (r *Repair) drop(obj resource.Object) {
	switch o := obj.(type) {
	case *corev1.Service:
		r.setService(resource.KeyOf(o), nil)
	case *networkingv1.IPAddress:
		r.setObject(o.Name, nil)
	case *networkingv1.ServiceCIDR:
		r.setRange(o.Name, nil)
	}
}

// dropGone forgets what a fresh list does not hold any more.
func (r *Repair) dropGone(n notice) {
	switch n.kind {
	case r.services:
		for key := range r.byService {
			if !n.all[key] {
				r.setService(key, nil)
			}
		}
	case r.objects:
		for addr := range r.owned {
			if !n.all[resource.Key{Name: addr.String()}] {
				r.setObject(addr.String(), nil)
			}
		}
	case r.cidrs:
		for name := range r.ranges {
			if !n.all[resource.Key{Name: name}] {
				r.setRange(name, nil)
			}
		}
	}
}

func (r *Repair) setService(key resource.Key, svc *corev1.Service) {
	if old := r.byService[key]; old != nil {
		for _, addr := range addressesOf(old) {
			delete(r.claims[addr], key)
			if len(r.claims[addr]) == 0 {
				delete(r.claims, addr)
			}
			r.due[addr] = time.Time{}
		}
		delete(r.byService, key)
	}
	if svc == nil {
		return
	}
	r.byService[key] = svc
	for _, addr := range addressesOf(svc) {
		if r.claims[addr] == nil {
			r.claims[addr] = map[resource.Key]struct{}{}
		}
		r.claims[addr][key] = struct{}{}
		r.due[addr] = time.Time{}
	}
}

func (r *Repair) setObject(name string, ip *networkingv1.IPAddress) {
	addr, err := netip.ParseAddr(name)
	if err != nil {
		return // validation does not let such names in
	}
	if ip == nil {
		delete(r.owned, addr)
	} else {
		r.owned[addr] = ip
	}
	r.noteBlocking(addr)
	r.due[addr] = time.Time{}
}

// watch follows one kind until ctx ends, from a fresh list each time it breaks.
func (r *Repair) watch(ctx context.Context, d *resource.Descriptor, notices chan<- notice) {
	send := func(n notice) {
		n.kind = d
		select {
		case notices <- n:
		case <-ctx.Done():
		}
	}
	for ctx.Err() == nil {
		err := r.watchOnce(ctx, d, send)
		if ctx.Err() != nil {
			return
		}
		send(notice{})
		r.log.Warn("watch broke; taking it up again", "of", d.Resource, "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(watchPause):
		}
	}
}

func (r *Repair) watchOnce(ctx context.Context, d *resource.Descriptor, send func(notice)) error {
	w, err := r.client.Watch(ctx, d, resource.WatchOptions{})
	if err != nil {
		return err
	}
	defer w.Stop()
	initial := notice{synced: true, all: map[resource.Key]bool{}}
	complete := false
	for {
		var event watch.Event
		var open bool
		select {
		case <-ctx.Done():
			return ctx.Err()
		case event, open = <-w.ResultChan():
		}
		if !open {
			return fmt.Errorf("watch of %s ended", d.Resource)
		}
		obj, ok := event.Object.(resource.Object)
		switch {
		case event.Type == watch.Error:
			return apierrors.FromObject(event.Object)
		case !ok:
			return fmt.Errorf("watch of %s delivered a %T", d.Resource, event.Object)
		case event.Type == watch.Bookmark:
			if !complete && obj.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" {
				complete = true
				send(initial)
				initial = notice{}
			}
		case !complete:
			initial.all[resource.KeyOf(obj)] = true
			initial.changed = append(initial.changed, obj)
		case event.Type == watch.Deleted:
			send(notice{synced: true, deleted: obj})
		default:
			send(notice{synced: true, changed: []resource.Object{obj}})
		}
	}
}
