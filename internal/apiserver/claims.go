package apiserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/controller/ipam"
	"github.com/proxima-mesh/proxima/internal/resource/reflector"
	"github.com/proxima-mesh/proxima/internal/store"
)

// watchRetry is the delay before a watch that failed is established again.
const watchRetry = time.Second

// followClaims keeps the guesses of ipam up to date: which ranges there are,
// which addresses and node ports have an owner. It returns when they are known
// for the first time; the followers end with ctx.
func (s *Server) followClaims(ctx context.Context, followers *sync.WaitGroup) error {
	addresses := s.services.addresses
	sources := []func(ctx context.Context, synced func()){
		func(ctx context.Context, synced func()) {
			s.reflect(ctx, networkingv1.SchemeGroupVersion.WithKind("IPAddress"), synced, func(e reflector.Event) error {
				keepAddresses(addresses, e)
				return nil
			})
		},
		s.followRanges,
		s.followPorts,
	}
	for _, source := range sources {
		synced := make(chan struct{})
		once := sync.OnceFunc(func() { close(synced) })
		followers.Go(func() { source(ctx, once) })
		select {
		case <-synced:
		case <-ctx.Done():
			return fmt.Errorf("read allocations: %w", ctx.Err())
		}
	}
	return nil
}

// keepAddresses applies an event of IPAddress objects.
func keepAddresses(addresses *ipam.Addresses, e reflector.Event) {
	var named []netip.Addr
	for _, obj := range e.Objects {
		if addr, err := netip.ParseAddr(obj.GetName()); err == nil {
			named = append(named, addr)
		}
	}
	switch e.Type {
	case reflector.Replace:
		addresses.Replace(slices.Values(named))
	case reflector.Set:
		for _, addr := range named {
			addresses.MarkTaken(addr)
		}
	case reflector.Delete:
		for _, addr := range named {
			addresses.MarkFree(addr)
		}
	}
}

// followRanges keeps the ranges to those of the ServiceCIDRs that may be used.
func (s *Server) followRanges(ctx context.Context, synced func()) {
	ranges := map[string]*networkingv1.ServiceCIDR{}
	apply := func() error {
		var prefixes []netip.Prefix
		// Sorted, but "kubernetes" first: the default range decides the default family.
		names := slices.SortedFunc(maps.Keys(ranges), func(a, b string) int {
			if (a == defaultServiceCIDR) != (b == defaultServiceCIDR) {
				if a == defaultServiceCIDR {
					return -1
				}
				return 1
			}
			return strings.Compare(a, b)
		})
		var unusable []string
		for _, name := range names {
			if reason := whyUnusable(ranges[name]); reason != "" {
				unusable = append(unusable, name+" "+reason)
			} else if !isMeshRange(ranges[name]) {
				for _, text := range ranges[name].Spec.CIDRs {
					if prefix, err := netip.ParsePrefix(text); err == nil {
						prefixes = append(prefixes, prefix.Masked())
					}
				}
			}
		}
		s.services.addresses.SetUnusable(unusable)
		return s.services.addresses.SetRanges(prefixes)
	}
	s.reflect(ctx, networkingv1.SchemeGroupVersion.WithKind("ServiceCIDR"), synced, func(e reflector.Event) error {
		switch e.Type {
		case reflector.Replace:
			clear(ranges)
			for _, obj := range e.Objects {
				ranges[obj.GetName()] = obj.(*networkingv1.ServiceCIDR)
			}
		case reflector.Set:
			ranges[e.Object().GetName()] = e.Object().(*networkingv1.ServiceCIDR)
		case reflector.Delete:
			delete(ranges, e.Object().GetName())
		default:
			return nil
		}
		return apply()
	})
}

// isMeshRange reports whether a range is that of names below "mesh": package virtualip
// allocates of it, and Services get no addresses of it.
func isMeshRange(cidr *networkingv1.ServiceCIDR) bool {
	_, ok := cidr.Labels[meshv1alpha1.LabelVirtualIPs]
	return ok
}

// whyUnusable is why no addresses of a range may be allocated; empty: they may.
func whyUnusable(cidr *networkingv1.ServiceCIDR) string {
	switch {
	case !cidr.DeletionTimestamp.IsZero():
		return "is being deleted"
	case meta.IsStatusConditionFalse(cidr.Status.Conditions, networkingv1.ServiceCIDRConditionReady):
		return "is not ready"
	}
	return ""
}

// reflect keeps a handler up to date with a kind until ctx ends. It calls synced each time
// all objects were handled, or none can be read: what is allocated is checked by the store. For a kind that is not served there are no events.
func (s *Server) reflect(ctx context.Context, gvk schema.GroupVersionKind, synced func(), handle reflector.Handler) {
	k := s.kinds[gvk]
	if k == nil {
		synced()
		<-ctx.Done()
		return
	}
	_ = reflector.Run(ctx, reflector.Config{
		Client:  s.Client("system:apiserver"),
		Kind:    k.kind,
		Backoff: backoff.Policy{First: watchRetry, Last: watchRetry},
		Logger:  s.cfg.Logger,
		Level:   slog.LevelWarn,
	}, func(e reflector.Event) error {
		if err := handle(e); err != nil {
			return err
		}
		if e.Type == reflector.Replace || s.options.Unreadable(k.kind.GroupResource()) != nil {
			synced()
		}
		return nil
	})
}

// followPorts keeps the node ports that are taken up to date until ctx ends.
func (s *Server) followPorts(ctx context.Context, synced func()) {
	backoff.Retry(ctx, backoff.Policy{First: watchRetry, Last: watchRetry}, func(ctx context.Context) error {
		return s.watchPorts(ctx, synced)
	}, func(err error, delay time.Duration) {
		s.cfg.Logger.Warn("claims of node ports are not watched", "error", err, "retry_in", delay.String())
	})
}

// watchPorts watches the claims of node ports, which are no API objects, until the watch ends.
func (s *Server) watchPorts(ctx context.Context, synced func()) error {
	page, err := s.cfg.Store.List(ctx, store.ListOptions{Prefix: nodePortPrefix, KeysOnly: true})
	if err != nil {
		return fmt.Errorf("list claims of node ports: %w", err)
	}
	s.services.ports.Replace(func(yield func(int32) bool) {
		for _, rec := range page.Records {
			if port, ok := claimedPort(rec.Key); ok && !yield(port) {
				return
			}
		}
	})
	w, err := s.cfg.Store.Watch(ctx, nodePortPrefix, page.Revision)
	if err != nil {
		return fmt.Errorf("watch claims of node ports: %w", err)
	}
	defer w.Close()
	synced()
	for batch := range w.Batches() {
		for _, event := range batch.Events {
			port, ok := claimedPort(event.Record.Key)
			switch {
			case !ok:
			case event.Kind == store.Delete:
				s.services.ports.MarkFree(port)
			default:
				s.services.ports.MarkTaken(port)
			}
		}
	}
	return errors.Join(errors.New("watch claims of node ports: it ended"), w.Err())
}

func claimedPort(key string) (int32, bool) {
	n, err := strconv.ParseInt(strings.TrimPrefix(key, nodePortPrefix), 10, 32)
	return int32(n), err == nil
}
