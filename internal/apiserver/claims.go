package apiserver

import (
	"context"
	"errors"
	"fmt"
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

	"github.com/proxima-mesh/proxima/internal/controller/ipam"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/follow"
	"github.com/proxima-mesh/proxima/internal/store"
)

// followPause is the wait before a broken watch is taken up again.
const followPause = time.Second

// followClaims keeps the guesses of ipam up to date: which ranges there are,
// which addresses and node ports have an owner. It returns when they are known
// for the first time; the followers end with ctx.
func (s *Server) followClaims(ctx context.Context, followers *sync.WaitGroup) error {
	addresses := s.services.addresses
	sources := []func(ctx context.Context, synced func()) error{
		func(ctx context.Context, synced func()) error {
			return s.followKind(ctx, networkingv1.SchemeGroupVersion.WithKind("IPAddress"), synced,
				func(c follow.Change) error {
					keepAddresses(addresses, c)
					return nil
				})
		},
		s.followRanges,
		s.followPorts,
	}
	for _, source := range sources {
		synced := make(chan struct{})
		once := sync.OnceFunc(func() { close(synced) })
		followers.Go(func() {
			s.keepFollowing(ctx, "allocations", func(ctx context.Context) error { return source(ctx, once) })
		})
		select {
		case <-synced:
		case <-ctx.Done():
			return fmt.Errorf("read allocations: %w", ctx.Err())
		}
	}
	return nil
}

// keepAddresses takes over a change of IPAddress objects.
func keepAddresses(addresses *ipam.Addresses, c follow.Change) {
	var owned []netip.Addr
	for _, obj := range c.Set {
		if addr, err := netip.ParseAddr(obj.GetName()); err == nil {
			owned = append(owned, addr)
		}
	}
	switch {
	case c.Fresh:
		addresses.Replace(slices.Values(owned))
	case c.Removed != nil:
		if addr, err := netip.ParseAddr(c.Removed.GetName()); err == nil {
			addresses.MarkFree(addr)
		}
	default:
		for _, addr := range owned {
			addresses.MarkTaken(addr)
		}
	}
}

// keepFollowing takes up a watch again when it breaks, until ctx ends.
func (s *Server) keepFollowing(ctx context.Context, what string, attempt func(context.Context) error) {
	follow.Retry(ctx, follow.Pause{First: followPause, Last: followPause}, attempt, func(err error, _ time.Duration) {
		s.cfg.Logger.Warn("watch broke, taking it up again", "of", what, "error", err)
	})
}

// followRanges keeps the ranges to those of the ServiceCIDRs that may be used.
func (s *Server) followRanges(ctx context.Context, synced func()) error {
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
		for _, name := range names {
			if isUsable(ranges[name]) {
				for _, text := range ranges[name].Spec.CIDRs {
					if prefix, err := netip.ParsePrefix(text); err == nil {
						prefixes = append(prefixes, prefix.Masked())
					}
				}
			}
		}
		return s.services.addresses.SetRanges(prefixes)
	}
	return s.followKind(ctx, networkingv1.SchemeGroupVersion.WithKind("ServiceCIDR"), synced,
		func(c follow.Change) error {
			if c.Fresh {
				clear(ranges)
			}
			for _, obj := range c.Set {
				ranges[obj.GetName()] = obj.(*networkingv1.ServiceCIDR)
			}
			if c.Removed != nil {
				delete(ranges, c.Removed.GetName())
			}
			return apply()
		})
}

// isUsable: a range is used until it is being deleted or somebody said that it
// is not ready.
func isUsable(cidr *networkingv1.ServiceCIDR) bool {
	return cidr.DeletionTimestamp.IsZero() &&
		!meta.IsStatusConditionFalse(cidr.Status.Conditions, networkingv1.ServiceCIDRConditionReady)
}

// followKind watches a kind until the watch breaks. It calls synced once tell has
// been told all objects. Of a kind that is not served it tells nothing.
func (s *Server) followKind(ctx context.Context, gvk schema.GroupVersionKind, synced func(), tell func(follow.Change) error) error {
	k := s.kinds[gvk]
	if k == nil {
		synced()
		<-ctx.Done()
		return nil
	}
	return follow.Once(ctx, s.Client("system:apiserver"), k.kind, resource.ListOptions{}, func(c follow.Change) error {
		if err := tell(c); err != nil {
			return err
		}
		if c.Fresh {
			synced()
		}
		return nil
	})
}

// followPorts watches the claims of node ports, which are no API objects.
func (s *Server) followPorts(ctx context.Context, synced func()) error {
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
