package ipam

import (
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/reflector"
)

// note takes over a change and makes the addresses concerned due.
func (r *Repair) note(e reflector.Event) {
	r.synced[e.Kind] = e.Type != reflector.Disconnected
	switch e.Type {
	case reflector.Delete:
		r.drop(e.Object())
		return
	case reflector.Replace:
		r.dropGone(e)
	}
	for _, obj := range e.Objects {
		switch o := obj.(type) {
		case *corev1.Service:
			r.setService(resource.KeyOf(o), o)
		case *networkingv1.IPAddress:
			r.setObject(o.Name, o)
		case *networkingv1.ServiceCIDR:
			r.setRange(o.Name, o)
		}
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

// dropGone forgets what a new list does not hold any more.
func (r *Repair) dropGone(e reflector.Event) {
	there := e.Keys()
	switch e.Kind {
	case r.services:
		for key := range r.byService {
			if !there[key] {
				r.setService(key, nil)
			}
		}
	case r.objects:
		for addr := range r.owned {
			if !there[resource.Key{Name: addr.String()}] {
				r.setObject(addr.String(), nil)
			}
		}
	case r.cidrs:
		for name := range r.ranges {
			if !there[resource.Key{Name: name}] {
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
