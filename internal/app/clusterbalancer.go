package app

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/loadbalancer"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// clusterPorts are those that Kubernetes itself needs on nodes
// (https://kubernetes.io/docs/reference/networking/ports-and-protocols/).
func clusterPorts() map[int32]string {
	return map[int32]string{
		2379: "etcd", 2380: "etcd", 10250: "the kubelet", 10257: "kube-controller-manager", 10259: "kube-scheduler",
	}
}

// runClusterLoadBalancers gives addresses to the Services of our classes. Those without a class
// are another provider's. The range of virtual IPs is read by a client of the cluster itself: in a zone the
// controllers' own has that of the names of meshes.
func (c *controllers) runClusterLoadBalancers(ctx context.Context, cluster resource.Client) error {
	log := c.log.With("component", "load balancers")
	virtual := clusterVirtualIPs{catalog: c.instance.catalog}
	for err := virtual.read(ctx, cluster); err != nil; err = virtual.read(ctx, cluster) {
		log.Warn("the range of virtual IPs is not known, and no addresses are assigned; it is tried again", "error", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(rangeRetry):
		}
	}
	return loadbalancer.New(loadbalancer.Config{
		Client: c.client, Catalog: c.instance.catalog, InServiceRange: virtual.contains, Reserved: clusterPorts(), Logger: log,
	}).Run(ctx)
}

// rangeRetry is the pause after the range of virtual IPs could not be read.
const rangeRetry = 5 * time.Second

// defaultServiceCIDR is the name of the object with the API server's range (KEP-1880).
const defaultServiceCIDR = "kubernetes"

// clusterVirtualIPs of a cluster, as far as they can be known: the API server's range, from
// Kubernetes 1.33 on, and the addresses that Services have.
type clusterVirtualIPs struct {
	catalog *catalog.Catalog
	ranges  []netip.Prefix

	mu       sync.Mutex
	revision uint64
	taken    map[netip.Addr]struct{}
}

// read the range. It blocks for a request.
func (v *clusterVirtualIPs) read(ctx context.Context, client resource.Client) error {
	object, err := client.Get(ctx, kind.ServiceCIDR, resource.Key{Name: defaultServiceCIDR})
	switch {
	case apierrors.IsNotFound(err):
		return nil // an earlier Kubernetes
	case err != nil:
		return fmt.Errorf("read servicecidr %s: %w", defaultServiceCIDR, err)
	}
	v.ranges = nil
	for _, text := range object.(*networkingv1.ServiceCIDR).Spec.CIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			v.ranges = append(v.ranges, p)
		}
	}
	return nil
}

// contains reports whether an address is, or can become, a virtual IP of the cluster.
func (v *clusterVirtualIPs) contains(a netip.Addr) bool {
	for _, p := range v.ranges {
		if p.Contains(a) {
			return true
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	services := v.catalog.Snapshot().Services
	if v.taken == nil || services.Revision() != v.revision {
		v.revision, v.taken = services.Revision(), map[netip.Addr]struct{}{}
		for _, s := range services.All() {
			for _, text := range s.Spec.ClusterIPs {
				if ip, err := netip.ParseAddr(text); err == nil {
					v.taken[ip] = struct{}{}
				}
			}
		}
	}
	_, ok := v.taken[a]
	return ok
}
