// Package registered keeps the Services of names that registry clients register instances under:
// one with a virtual IP for each, so that what is registered has a DNS name, is planned, and is
// reached by clients that know no registry.
//
// Enter at New; NewSlices keeps their EndpointSlices where a cluster has other controllers. What the Service of a name
// should be is decided by reconcile, which is pure. It
// touches no Service that it did not make.
package registered

import (
	"context"
	"log/slog"
	"time"

	"k8s.io/utils/clock"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/loop"
	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// Config of a Controller. Client and Catalog are required.
type Config struct {
	Client  resource.Client
	Catalog *catalog.Catalog
	// Slices: the Services have no selector, and Slices keeps their EndpointSlices. For a cluster whose own controller
	// makes those of Pods that a selector matches, and would make empty ones.
	Slices bool
	// Window as in loop.Config.
	Window time.Duration
	Clock  clock.WithTicker // nil: the real one
	Logger *slog.Logger     // nil: discard
}

// Controller keeps the Services. Make it with New.
type Controller struct {
	Config
	loop *loop.Loop
}

// New makes the controller; Run starts it.
func New(c Config) *Controller {
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	r := &Controller{Config: c}
	r.loop = loop.New(loop.Config{What: "registered service", Sync: r.sync, Window: c.Window, Clock: c.Clock, Logger: c.Logger})
	return r
}

// Run works until ctx ends, and returns nil then. It must be called once.
func (c *Controller) Run(ctx context.Context) error {
	return c.loop.Run(ctx, c.Catalog, c.dispatch, catalog.Dataplanes, catalog.Services, catalog.Namespaces)
}

// dispatch queues the Services that a delta concerns, by their keys.
func (c *Controller) dispatch(d catalog.Delta) {
	for _, change := range d.Dataplanes {
		for _, dp := range []*meshv1alpha1.Dataplane{change.Old, change.New} {
			if registry.Registered(dp) && dp.Labels[registry.LabelService] != "" {
				c.loop.Add(resource.Key{Namespace: change.Key.Namespace, Name: dp.Labels[registry.LabelService]})
			}
		}
	}
	for _, change := range d.Services {
		if derived(change.Old) || derived(change.New) || change.New == nil {
			c.loop.Add(change.Key)
		}
	}
}

// sync brings one Service to what it should be.
func (c *Controller) sync(ctx context.Context, key resource.Key) error {
	s := c.Catalog.Snapshot()
	if n, ok := s.Namespaces.Get(resource.Key{Name: key.Namespace}); !ok || n.DeletionTimestamp != nil {
		return nil
	}
	in := input{key: key, now: c.Clock.Now(), slices: c.Slices}
	in.service, _ = s.Services.Get(key)
	for _, dp := range s.DataplanesMatching(key.Namespace, map[string]string{registry.LabelService: key.Name}) {
		if !registry.Registered(dp) {
			continue
		}
		instance, err := registry.Parse(dp)
		if err != nil {
			continue
		}
		in.instances = append(in.instances, instance)
		if in.settled(instance) {
			break
		}
	}
	if in.service != nil && !derived(in.service) {
		return nil // somebody's own, who decides what it selects
	}
	want, after := reconcile(in)
	if after > 0 {
		c.loop.AddAfter(key, after)
	}
	var err error
	switch {
	case want == nil && in.service == nil:
		c.loop.Forget(key)
	case want == nil:
		c.loop.Writes(key)
		err = c.Client.Delete(ctx, kind.Service, key, resource.Preconditions{UID: in.service.UID, ResourceVersion: in.service.ResourceVersion})
	case in.service == nil:
		c.loop.Writes(key)
		_, err = c.Client.Create(ctx, kind.Service, want)
	case want != in.service:
		c.loop.Writes(key)
		_, err = c.Client.Update(ctx, kind.Service, want)
	}
	return loop.Outcome("write service "+key.String(), err)
}
