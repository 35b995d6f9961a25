package gateway

import (
	"context"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/loop"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// Config of a Controller. All but Logger are required.
type Config struct {
	Client  resource.Client
	Catalog *catalog.Catalog
	// Site is the zone, and Namespace that of the gateways' Pods and Services.
	Site, Namespace string
	// IngressPort and EgressPort that gateways listen on.
	IngressPort, EgressPort int32
	Logger                  *slog.Logger // nil: silence
}

// Controller keeps the objects. Make it with New.
type Controller struct {
	Config
	loop *loop.Loop
}

// New makes the controller; Run starts it.
func New(c Config) *Controller {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	g := &Controller{Config: c}
	g.loop = loop.New(loop.Config{What: "gateway", Sync: g.sync, Logger: c.Logger})
	return g
}

// Run works until ctx ends, and returns nil then. Call it once.
func (c *Controller) Run(ctx context.Context) error {
	return c.loop.Run(ctx, c.Catalog, c.dispatch,
		catalog.Pods, catalog.Services, catalog.Nodes, catalog.ZoneIngresses, catalog.ZoneEgresses)
}

// dispatch queues the names that a delta concerns: those of Pods, which their objects have, too.
func (c *Controller) dispatch(d catalog.Delta) {
	all := false
	for _, change := range d.Pods {
		for _, p := range []*corev1.Pod{change.Old, change.New} {
			if p != nil && c.isGateway(p) {
				c.loop.Add(resource.Key{Name: p.Name})
			}
		}
	}
	for _, change := range d.ZoneIngresses {
		c.loop.Add(resource.Key{Name: change.Key.Name})
	}
	for _, change := range d.ZoneEgresses {
		c.loop.Add(resource.Key{Name: change.Key.Name})
	}
	for _, change := range d.Services {
		all = all || change.New != nil && c.isGateway(change.New) || change.Old != nil && c.isGateway(change.Old)
	}
	for _, change := range d.Nodes { // an address of a node may be how others come
		all = all || change.Old == nil || change.New == nil || nodeAddress(change.Old) != nodeAddress(change.New)
	}
	if !all {
		return
	}
	for key, pod := range d.After.Pods.All() {
		if c.isGateway(pod) {
			c.loop.Add(resource.Key{Name: key.Name})
		}
	}
}

func (c *Controller) isGateway(o metav1.Object) bool {
	return o.GetNamespace() == c.Namespace && (IsGateway(o, Ingress) || IsGateway(o, Egress))
}

// sync brings the objects of one name to what they should be.
func (c *Controller) sync(ctx context.Context, key resource.Key) error {
	s := c.Catalog.Snapshot()
	ingress, _ := s.ZoneIngresses.Get(key)
	egress, _ := s.ZoneEgresses.Get(key)
	var haveIngress, haveEgress resource.Object
	if ingress != nil {
		haveIngress = ingress
	}
	if egress != nil {
		haveEgress = egress
	}
	if err := c.write(ctx, kind.ZoneIngress, key, haveIngress, c.wanted(s, key, Ingress, c.IngressPort)); err != nil {
		return err
	}
	return c.write(ctx, kind.ZoneEgress, key, haveEgress, c.wanted(s, key, Egress, c.EgressPort))
}

func (c *Controller) wanted(s *catalog.Snapshot, key resource.Key, component string, port int32) *meshv1alpha1.ZoneGatewaySpec {
	in := Input{Site: c.Site, Port: port}
	pod, ok := s.Pods.Get(resource.Key{Namespace: c.Namespace, Name: key.Name})
	if !ok || !IsGateway(pod, component) {
		return nil
	}
	in.Pod = pod
	in.Node, _ = s.Nodes.Get(resource.Key{Name: pod.Spec.NodeName})
	for key, service := range s.Services.All() {
		if key.Namespace == c.Namespace && IsGateway(service, component) {
			in.Service = service
		}
	}
	return Reconcile(in)
}

// write the object of a gateway, or remove it. What others made is left alone.
func (c *Controller) write(
	ctx context.Context, d *resource.Descriptor, key resource.Key, have resource.Object, want *meshv1alpha1.ZoneGatewaySpec,
) error {
	what := d.Singular + " " + key.Name
	switch {
	case have != nil && have.GetLabels()[LabelManagedBy] != managedBy:
		return nil
	case have == nil && want == nil:
		c.loop.Forget(key)
		return nil
	case want == nil:
		c.Logger.Info("a gateway is gone", "kind", d.GVK.Kind, "name", key.Name)
		return loop.Outcome("delete "+what, c.Client.Delete(ctx, d, key, resource.Preconditions{UID: have.GetUID()}))
	case have == nil:
		c.Logger.Info("a gateway is there", "kind", d.GVK.Kind, "name", key.Name, "address", want.Address, "advertised", want.AdvertisedAddress)
		meta := metav1.ObjectMeta{Name: key.Name, Labels: map[string]string{LabelManagedBy: managedBy}}
		_, err := c.Client.Create(ctx, d, object(d, meta, *want))
		return loop.Outcome("create "+what, err)
	case *specOf(have) == *want:
		return nil
	}
	next := have.DeepCopyObject().(resource.Object)
	*specOf(next) = *want
	_, err := c.Client.Update(ctx, d, next)
	return loop.Outcome("update "+what, err)
}

func object(d *resource.Descriptor, meta metav1.ObjectMeta, spec meshv1alpha1.ZoneGatewaySpec) resource.Object {
	if d == kind.ZoneEgress {
		return &meshv1alpha1.ZoneEgress{ObjectMeta: meta, Spec: spec}
	}
	return &meshv1alpha1.ZoneIngress{ObjectMeta: meta, Spec: spec}
}

func specOf(o resource.Object) *meshv1alpha1.ZoneGatewaySpec {
	switch o := o.(type) {
	case *meshv1alpha1.ZoneEgress:
		return &o.Spec
	case *meshv1alpha1.ZoneIngress:
		return &o.Spec
	}
	return &meshv1alpha1.ZoneGatewaySpec{}
}
