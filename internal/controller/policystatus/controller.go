package policystatus

import (
	"context"
	"errors"
	"log/slog"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/policy"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// interval between two sweeps: changes that come in between are decided on together.
const interval = time.Second

// Config of a Controller. Client and Catalog are required.
type Config struct {
	// Client writes the status.
	Client  resource.Client
	Catalog *catalog.Catalog
	Proxies Proxies     // nil: NoProxies
	Clock   clock.Clock // nil: the real one
	Logger  *slog.Logger
}

// Controller writes the status of policies and routes. Make it with New.
type Controller struct {
	Config
	index *policy.Index
}

// New makes a controller; Run starts it.
func New(cfg Config) *Controller {
	if cfg.Proxies == nil {
		cfg.Proxies = NoProxies{}
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Controller{Config: cfg, index: policy.NewIndex()}
}

// Run works until ctx ends, and returns nil then. It must be called once. Until there is a policy or a
// route it keeps nothing of what those could be for.
func (c *Controller) Run(ctx context.Context) error {
	if !c.awaitFirst(ctx) {
		return nil
	}
	sub := c.Catalog.Subscribe(policy.Tables()...)
	defer sub.Close()
	failed := false
	var at *catalog.Snapshot
	for {
		wait, cancel := ctx, context.CancelFunc(func() {})
		if failed {
			wait, cancel = context.WithTimeout(ctx, interval)
		}
		delta, err := sub.Next(wait)
		cancel()
		if ctx.Err() != nil || errors.Is(err, catalog.ErrClosed) {
			return nil
		}
		if err == nil {
			c.index.Apply(&delta)
			at = delta.After
		}
		if at != nil {
			failed = !c.sweep(ctx, at)
		}
		select {
		case <-c.Clock.After(interval):
		case <-ctx.Done():
			return nil
		}
	}
}

// awaitFirst policy or route; false: ctx ended before.
func (c *Controller) awaitFirst(ctx context.Context) bool {
	sub := c.Catalog.Subscribe(catalog.TrafficPermissions, catalog.BackendPolicies, catalog.WorkloadPolicies, catalog.ProxyPatches,
		catalog.HTTPRoutes, catalog.GRPCRoutes, catalog.TCPRoutes)
	defer sub.Close()
	for {
		d, err := sub.Next(ctx)
		if err != nil {
			return false
		}
		s := d.After
		if s.TrafficPermissions.Len()+s.BackendPolicies.Len()+s.WorkloadPolicies.Len()+s.ProxyPatches.Len()+
			s.HTTPRoutes.Len()+s.GRPCRoutes.Len()+s.TCPRoutes.Len() > 0 {
			return true
		}
	}
}

// sweep decides on every policy and route, and reports whether all that was to be written was.
func (c *Controller) sweep(ctx context.Context, s *catalog.Snapshot) bool {
	ok := true
	for _, obj := range c.index.RouteObjects() {
		parents, changed := Route(c.index, obj, c.Proxies, c.Clock.Now())
		if !changed {
			continue
		}
		next := obj.DeepCopyObject().(resource.Object)
		*ParentsOf(next) = parents
		ok = c.write(ctx, routeKind(obj), next) && ok
	}
	sweepTable(c, ctx, &ok, kind.TrafficPermission, s.TrafficPermissions)
	sweepTable(c, ctx, &ok, kind.BackendPolicy, s.BackendPolicies)
	sweepTable(c, ctx, &ok, kind.WorkloadPolicy, s.WorkloadPolicies)
	sweepTable(c, ctx, &ok, kind.ProxyPatch, s.ProxyPatches)
	return ok
}

func sweepTable[T catalog.Row](c *Controller, ctx context.Context, ok *bool, d *resource.Descriptor, table catalog.Table[T]) {
	for key, row := range table.All() {
		obj := resource.Object(row)
		if obj.GetDeletionTimestamp() != nil {
			continue
		}
		status, changed := Policy(c.index, policy.Source{Kind: d.GVK.Kind, Key: key}, obj, c.Proxies, c.Clock.Now())
		if !changed {
			continue
		}
		next := obj.DeepCopyObject().(resource.Object)
		*StatusOf(next) = status
		*ok = c.write(ctx, d, next) && *ok
	}
}

func routeKind(obj resource.Object) *resource.Descriptor {
	switch kindOf(obj) {
	case "HTTPRoute":
		return kind.HTTPRoute
	case "GRPCRoute":
		return kind.GRPCRoute
	}
	return kind.TCPRoute
}

// write a status. Another write of the object comes with the next delta.
func (c *Controller) write(ctx context.Context, d *resource.Descriptor, obj resource.Object) bool {
	_, err := c.Client.UpdateStatus(ctx, d, obj)
	switch {
	case err == nil, apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return true
	case ctx.Err() == nil:
		c.Logger.Warn("the status of a policy was not written; it is tried again", "kind", d.GVK.Kind, "policy",
			resource.KeyOf(obj).String(), "error", err)
	}
	return false
}
