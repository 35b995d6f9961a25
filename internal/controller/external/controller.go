package external

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/loop"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/sites"
)

// Config of a Controller. Client, Catalog and Site are required.
type Config struct {
	// Client to write with.
	Client resource.Client
	// Catalog to read from.
	Catalog *catalog.Catalog
	// Site is the name of this zone.
	Site string
	// Secrets checks the certificates and keys of a service whose TLS refers to Secrets; its
	// error is for users. Changed is closed when it may say otherwise. Nil: nothing is wrong.
	Secrets interface {
		Check(ctx context.Context, e *meshv1alpha1.ExternalService) error
		Changed() <-chan struct{}
	}
	// Window is how long a name is left alone after a write; 0: loop.DefaultWindow,
	// negative: none.
	Window time.Duration
	// Clock; nil: the real one.
	Clock clock.WithTicker
	// Logger; nil: silence.
	Logger *slog.Logger
}

// Controller keeps the Services of ExternalServices, and the statuses of these.
type Controller struct {
	cfg  Config
	loop *loop.Loop
}

// New makes the controller; Run starts it.
func New(cfg Config) *Controller {
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Controller{cfg: cfg}
	c.loop = loop.New(loop.Config{What: "external service", Sync: c.sync, Window: cfg.Window, Clock: cfg.Clock, Logger: cfg.Logger})
	return c
}

// Run works until ctx ends, and returns nil then. It must be called once.
func (c *Controller) Run(ctx context.Context) error {
	if c.cfg.Secrets != nil {
		var following sync.WaitGroup
		defer following.Wait()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		following.Go(func() { c.followSecrets(ctx) })
	}
	return c.loop.Run(ctx, c.cfg.Catalog, c.dispatch, catalog.ExternalServices, catalog.Services, catalog.Namespaces,
		catalog.Meshes, catalog.ZoneIngresses, catalog.ZoneEgresses)
}

// followSecrets queues what refers to Secrets, when they have changed.
func (c *Controller) followSecrets(ctx context.Context) {
	for {
		changed := c.cfg.Secrets.Changed()
		for key, e := range c.cfg.Catalog.Snapshot().ExternalServices.All() {
			if e.Spec.TLS != nil && sites.NeedsSecrets(e.Spec.TLS) {
				c.loop.Add(key)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// dispatch queues the names that a delta concerns. Meshes, gateways and namespaces are few,
// and so are ExternalServices.
func (c *Controller) dispatch(d catalog.Delta) {
	for _, change := range d.ExternalServices {
		c.loop.Add(change.Key)
		c.addRivals(d.After, change.Old)
		c.addRivals(d.After, change.New)
	}
	for _, change := range d.Services {
		e, ok := d.After.ExternalServices.Get(change.Key)
		if ok || Owned(change.New) {
			c.loop.Add(change.Key)
		}
		if Owned(change.Old) != Owned(change.New) {
			c.addRivals(d.After, e)
		}
	}
	if len(d.Meshes)+len(d.ZoneIngresses)+len(d.ZoneEgresses)+len(d.Namespaces) == 0 {
		return
	}
	for key := range d.After.ExternalServices.All() {
		c.loop.Add(key)
	}
}

// addRivals queues those that name a host of an ExternalService, which may be nil.
func (c *Controller) addRivals(s *catalog.Snapshot, e *meshv1alpha1.ExternalService) {
	if e == nil || len(e.Spec.Hosts) == 0 {
		return
	}
	for key, other := range s.ExternalServices.All() {
		if sites.ShareHost(e, other) {
			c.loop.Add(key)
		}
	}
}

// rivals of an ExternalService of a mesh are those that have its hosts in its place.
func rivals(s *catalog.Snapshot, e *meshv1alpha1.ExternalService, mesh string) map[string]string {
	out := map[string]string{}
	for key, other := range s.ExternalServices.All() {
		if other.UID == e.UID || !sites.ShareHost(e, other) || !sites.GoesBefore(other, e) {
			continue
		}
		namespace, _ := s.Namespaces.Get(catalog.Key{Name: key.Namespace})
		service, _ := s.Services.Get(key)
		if MeshOf(other, namespace) != mesh || !Owned(service) {
			continue
		}
		for _, host := range e.Spec.Hosts {
			if slices.Contains(other.Spec.Hosts, host) {
				out[host] = key.String()
			}
		}
	}
	return out
}

func (c *Controller) input(s *catalog.Snapshot, key resource.Key) Input {
	in := Input{Site: c.cfg.Site, Ingresses: map[string]bool{}, Now: metav1.NewTime(c.cfg.Clock.Now().UTC().Truncate(time.Second))}
	in.External, _ = s.ExternalServices.Get(key)
	in.Service, _ = s.Services.Get(key)
	in.Namespace, _ = s.Namespaces.Get(catalog.Key{Name: key.Namespace})
	if in.External == nil {
		return in
	}
	in.Rivals = rivals(s, in.External, MeshOf(in.External, in.Namespace))
	in.Mesh, _ = s.Meshes.Get(catalog.Key{Name: MeshOf(in.External, in.Namespace)})
	for _, i := range s.ZoneIngresses.All() {
		if zone := i.Labels[meshv1alpha1.LabelZone]; zone != "" {
			in.Ingresses[zone] = true
		}
	}
	for _, e := range s.ZoneEgresses.All() {
		if e.Labels[meshv1alpha1.LabelZone] == "" {
			in.Egresses = append(in.Egresses, e.Name)
		}
	}
	return in
}

// sync brings what one name has to what it should be.
func (c *Controller) sync(ctx context.Context, key resource.Key) error {
	in := c.input(c.cfg.Catalog.Snapshot(), key)
	if t := in.External; t != nil && c.cfg.Secrets != nil && t.Spec.TLS != nil && sites.NeedsSecrets(t.Spec.TLS) {
		in.Secrets = c.cfg.Secrets.Check(ctx, t)
	}
	plan := Reconcile(in)
	if plan.Service == nil && Owned(in.Service) {
		c.loop.Writes(key)
		err := c.cfg.Client.Delete(ctx, kind.Service, key, resource.Preconditions{UID: in.Service.UID})
		if err := loop.Outcome("delete service of external service "+key.String(), err); err != nil {
			return err
		}
	}
	if plan.Service != nil && plan.Service != in.Service {
		write := c.cfg.Client.Update
		if in.Service == nil {
			write = c.cfg.Client.Create
		}
		c.loop.Writes(key)
		made, err := write(ctx, kind.Service, plan.Service)
		if err != nil {
			return loop.Outcome("write service of external service "+key.String(), err)
		}
		in.Service = made.(*corev1.Service)
		plan = Reconcile(in)
	}
	if in.External == nil || equality.Semantic.DeepEqual(plan.Status, in.External.Status) || plan.Status.ObservedGeneration == 0 {
		return nil
	}
	next := in.External.DeepCopy()
	next.Status = plan.Status
	_, err := c.cfg.Client.UpdateStatus(ctx, kind.ExternalService, next)
	return loop.Outcome("write status of external service "+key.String(), err)
}
