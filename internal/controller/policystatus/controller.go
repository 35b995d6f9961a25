package policystatus

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	gateway "sigs.k8s.io/gateway-api/apis/v1"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/policy"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

const (
	// interval between two sweeps: changes that come in between are decided on together.
	interval = time.Second
	// pause between two writes of one object that say only what proxies have acknowledged, and after the
	// start: by then the proxies have told an instance that leads since just now.
	pause = 10 * time.Second
)

// Changes tell when Proxies would answer otherwise.
type Changes interface {
	// Changed has a token after a change.
	Changed() <-chan struct{}
	// Take the policies and routes that have changed since the last call. It does not block.
	Take() []policy.Source
}

// Config of a Controller. Client and Catalog are required.
type Config struct {
	// Client writes the status.
	Client  resource.Client
	Catalog *catalog.Catalog
	// Zone is the one of workloads, which selectors may name.
	Zone    string
	Proxies Proxies // nil: NoProxies
	// Changes of what Proxies answer, beside those of the catalog; nil: there are none.
	Changes Changes
	Clock   clock.Clock // nil: the real one
	Logger  *slog.Logger
}

// Controller writes the status of policies and routes. Make it with New.
type Controller struct {
	Config
	index   *policy.Index
	started time.Time
	// told is when it was written last what proxies have acknowledged of an object, held those of
	// which it is to be written again once their pause is over.
	told map[policy.Source]time.Time
	held map[policy.Source]struct{}
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
	c := &Controller{Config: cfg, index: policy.NewIndex(), told: map[policy.Source]time.Time{}, held: map[policy.Source]struct{}{}}
	c.index.Zone = cfg.Zone
	return c
}

// Run works until ctx ends, and returns nil then. It must be called once. Until there is a policy or a
// route it keeps nothing of what those could be for.
func (c *Controller) Run(ctx context.Context) error {
	c.started = c.Clock.Now()
	if !c.awaitFirst(ctx) {
		return nil
	}
	sub := c.Catalog.Subscribe(append(policy.Tables(), catalog.Nodes)...)
	defer sub.Close()
	failed := false
	var at *catalog.Snapshot
	for {
		delta, err := c.next(ctx, sub, failed)
		if ctx.Err() != nil || errors.Is(err, catalog.ErrClosed) {
			return nil
		}
		switch {
		case err == nil:
			c.index.Apply(&delta)
			first := at == nil
			at = delta.After
			if first || failed || concerns(&delta) {
				failed = !c.sweep(ctx, at)
			}
		case at == nil:
		case failed:
			failed = !c.sweep(ctx, at)
		default:
			failed = !c.again(ctx, at)
		}
		select {
		case <-c.Clock.After(interval):
		case <-ctx.Done():
		}
	}
}

// concerns reports whether a change may be one for the status of policies. Of nodes that is the mode of
// their agents.
func concerns(d *catalog.Delta) bool {
	for _, c := range d.Nodes {
		var was, is string
		if c.Old != nil {
			was = c.Old.Labels[mesh.LabelProxyMode]
		}
		if c.New != nil {
			is = c.New.Labels[mesh.LabelProxyMode]
		}
		if was != is {
			return true
		}
	}
	return len(d.Namespaces)+len(d.Meshes)+len(d.Services)+len(d.ServiceImports)+len(d.ExternalServices)+len(d.Dataplanes)+len(d.Pods)+
		len(d.TrafficPermissions)+len(d.BackendPolicies)+len(d.WorkloadPolicies)+len(d.ProxyPatches)+
		len(d.HTTPRoutes)+len(d.GRPCRoutes)+len(d.TCPRoutes)+len(d.ReferenceGrants) > 0
}

// next change of the tables. An error that is neither ErrClosed nor that of ctx: something else is to be
// done again, as a write failed, proxies have answered, or a pause is over.
func (c *Controller) next(ctx context.Context, sub *catalog.Subscription, failed bool) (catalog.Delta, error) {
	wait, cancel := context.WithCancel(ctx)
	defer cancel()
	if failed {
		cancel()
		return sub.Next(wait)
	}
	var due <-chan time.Time
	if len(c.held) > 0 {
		due = c.Clock.After(interval)
	}
	var changed <-chan struct{}
	if c.Changes != nil {
		changed = c.Changes.Changed()
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-due:
		case <-changed:
		case <-wait.Done():
		}
		cancel()
	}()
	defer func() { cancel(); <-done }()
	return sub.Next(wait)
}

// again decides on what proxies say something else of than before.
func (c *Controller) again(ctx context.Context, s *catalog.Snapshot) bool {
	all := c.held
	c.held = map[policy.Source]struct{}{}
	if c.Changes != nil {
		for _, source := range c.Changes.Take() {
			all[source] = struct{}{}
		}
	}
	ok := true
	for source := range all {
		ok = c.one(ctx, s, source) && ok
	}
	return ok
}

// one policy or route.
func (c *Controller) one(ctx context.Context, s *catalog.Snapshot, source policy.Source) bool {
	switch source.Kind {
	case "TrafficPermission":
		return oneOf(c, ctx, kind.TrafficPermission, s.TrafficPermissions, source)
	case "BackendPolicy":
		return oneOf(c, ctx, kind.BackendPolicy, s.BackendPolicies, source)
	case "WorkloadPolicy":
		return oneOf(c, ctx, kind.WorkloadPolicy, s.WorkloadPolicies, source)
	case "ProxyPatch":
		return oneOf(c, ctx, kind.ProxyPatch, s.ProxyPatches, source)
	case "HTTPRoute":
		return oneRoute(c, ctx, s.HTTPRoutes, source)
	case "GRPCRoute":
		return oneRoute(c, ctx, s.GRPCRoutes, source)
	case "TCPRoute":
		return oneRoute(c, ctx, s.TCPRoutes, source)
	}
	return true
}

func oneOf[T catalog.Row](c *Controller, ctx context.Context, d *resource.Descriptor, table catalog.Table[T], source policy.Source) bool {
	row, ok := table.Get(source.Key)
	return !ok || c.policy(ctx, d, resource.Object(row))
}

func oneRoute[T catalog.Row](c *Controller, ctx context.Context, table catalog.Table[T], source policy.Source) bool {
	row, ok := table.Get(source.Key)
	return !ok || c.route(ctx, resource.Object(row))
}

// mayTell reports whether it may be written what proxies have acknowledged of an object, of which nothing
// else is to be said.
func (c *Controller) mayTell(source policy.Source) bool {
	now, last := c.Clock.Now(), c.told[source]
	if now.Sub(last) < pause || now.Sub(c.started) < pause {
		c.held[source] = struct{}{}
		return false
	}
	c.told[source] = now
	return true
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
	if c.Changes != nil {
		c.Changes.Take()
	}
	clear(c.held)
	for source := range c.told {
		if c.Clock.Since(c.told[source]) > pause {
			delete(c.told, source)
		}
	}
	ok := true
	for _, obj := range c.index.RouteObjects() {
		ok = c.route(ctx, obj) && ok
	}
	sweepTable(c, ctx, &ok, kind.TrafficPermission, s.TrafficPermissions)
	sweepTable(c, ctx, &ok, kind.BackendPolicy, s.BackendPolicies)
	sweepTable(c, ctx, &ok, kind.WorkloadPolicy, s.WorkloadPolicies)
	sweepTable(c, ctx, &ok, kind.ProxyPatch, s.ProxyPatches)
	return ok
}

func sweepTable[T catalog.Row](c *Controller, ctx context.Context, ok *bool, d *resource.Descriptor, table catalog.Table[T]) {
	for _, row := range table.All() {
		*ok = c.policy(ctx, d, resource.Object(row)) && *ok
	}
}

// policy decides on one, and reports whether what was to be written was.
func (c *Controller) policy(ctx context.Context, d *resource.Descriptor, obj resource.Object) bool {
	if obj.GetDeletionTimestamp() != nil {
		return true
	}
	source := policy.Source{Kind: d.GVK.Kind, Key: resource.KeyOf(obj)}
	status, changed := Policy(c.index, source, obj, c.Proxies, c.Clock.Now())
	if !changed {
		return true
	}
	was := StatusOf(obj).DeepCopy()
	same := status.DeepCopy()
	untold(&was.Conditions)
	untold(&same.Conditions)
	if equality.Semantic.DeepEqual(was, same) && !c.mayTell(source) {
		return true
	}
	next := obj.DeepCopyObject().(resource.Object)
	*StatusOf(next) = status
	return c.write(ctx, d, next)
}

// route decides on one, as policy does.
func (c *Controller) route(ctx context.Context, obj resource.Object) bool {
	parents, changed := Route(c.index, obj, c.Proxies, c.Clock.Now())
	if !changed {
		return true
	}
	d := routeKind(obj)
	if equality.Semantic.DeepEqual(untoldParents(*ParentsOf(obj)), untoldParents(parents)) &&
		!c.mayTell(policy.Source{Kind: d.GVK.Kind, Key: resource.KeyOf(obj)}) {
		return true
	}
	next := obj.DeepCopyObject().(resource.Object)
	*ParentsOf(next) = parents
	return c.write(ctx, d, next)
}

// untold removes what proxies have acknowledged.
func untold(conditions *[]metav1.Condition) {
	meta.RemoveStatusCondition(conditions, mesh.PolicyProgrammed)
}

func untoldParents(in []gateway.RouteParentStatus) []gateway.RouteParentStatus {
	var out []gateway.RouteParentStatus
	for i := range in {
		p := in[i].DeepCopy()
		untold(&p.Conditions)
		out = append(out, *p)
	}
	return out
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
