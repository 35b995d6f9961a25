package secrets

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"

	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/reflector"
)

// Config of a Controller. Client and System are required.
type Config struct {
	Client resource.Client
	// System is the namespace of control planes, whose Secrets never travel.
	System string
	Clock  clock.Clock  // nil: the real one
	Logger *slog.Logger // nil: silence
}

// Controller notes on each secret what of it travels. It runs where an instance leads.
type Controller struct {
	cfg Config
	// The state of Run alone: which kinds are listed, the references of each object, and the
	// annotations of each secret.
	listed     map[*resource.Descriptor]bool
	references map[object][]Reference
	noted      map[resource.Key]notes
}

type object struct {
	kind *resource.Descriptor
	key  resource.Key
}

type notes struct {
	kind          *resource.Descriptor
	zones, values string
}

// New makes the controller; Run starts it.
func New(c Config) *Controller {
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Controller{
		cfg: c, listed: map[*resource.Descriptor]bool{}, references: map[object][]Reference{}, noted: map[resource.Key]notes{},
	}
}

// Referrers are the kinds whose objects refer to secrets, Kinds the secrets.
var (
	referrers = []*resource.Descriptor{kind.Mesh, kind.ExternalService}
	kinds     = []*resource.Descriptor{kind.GlobalSecret, kind.Secret}
)

var (
	watchPolicy = backoff.Policy{First: 200 * time.Millisecond, Last: 10 * time.Second, Jitter: 0.2}
	writePolicy = backoff.Policy{First: 100 * time.Millisecond, Last: 10 * time.Second, Jitter: 0.2}
)

// Run works until ctx ends, and returns nil then. Call it once.
func (c *Controller) Run(ctx context.Context) error {
	events, stop := reflector.Start(ctx, reflector.Config{
		Client: c.cfg.Client, Backoff: watchPolicy, Clock: c.cfg.Clock, Logger: c.cfg.Logger, Level: slog.LevelDebug,
	}, slices.Concat(referrers, kinds))
	defer stop()
	retry := backoff.Backoff{Policy: writePolicy}
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-events:
			if !c.follow(e) {
				continue
			}
		case <-again:
		}
		again = nil
		if len(c.listed) < len(referrers)+len(kinds) {
			continue
		}
		switch err := c.sync(ctx); {
		case err == nil:
			retry.Reset()
		case ctx.Err() == nil:
			c.cfg.Logger.Warn("what of secrets goes to zones is not noted; it is tried again", "error", err)
			again = c.cfg.Clock.After(retry.Next())
		}
	}
}

// follow takes an event. It reports whether something may have to be written.
func (c *Controller) follow(e reflector.Event) bool {
	switch e.Type {
	case reflector.Replace:
		c.listed[e.Kind] = true
		for o := range c.references {
			if o.kind == e.Kind {
				delete(c.references, o)
			}
		}
		for key, n := range c.noted {
			if n.kind == e.Kind {
				delete(c.noted, key)
			}
		}
		for _, obj := range e.Objects {
			c.set(e.Kind, obj)
		}
	case reflector.Set:
		c.set(e.Kind, e.Object())
	case reflector.Delete:
		key := resource.KeyOf(e.Object())
		delete(c.references, object{e.Kind, key})
		if c.noted[key].kind == e.Kind {
			delete(c.noted, key)
		}
	default:
		return false
	}
	return true
}

func (c *Controller) set(k *resource.Descriptor, obj resource.Object) {
	key := resource.KeyOf(obj)
	if k == kind.Secret || k == kind.GlobalSecret {
		have := obj.GetAnnotations()
		c.noted[key] = notes{kind: k, zones: have[AnnotationZones], values: have[AnnotationValues]}
		return
	}
	c.references[object{k, key}] = References(obj)
}

// sync writes what differs.
func (c *Controller) sync(ctx context.Context) error {
	var all []Reference
	for _, list := range c.references {
		all = append(all, list...)
	}
	uses := Uses(all)
	var errs []error
	for key, n := range c.noted {
		zones, values := uses[key].Annotations()
		if key.Namespace == c.cfg.System && key.Namespace != "" {
			zones, values = "", ""
		}
		if n.zones == zones && n.values == values {
			continue
		}
		if err := c.note(ctx, n.kind, key, zones, values); err != nil {
			errs = append(errs, fmt.Errorf("%s %s: %w", n.kind.Singular, key, err))
			continue
		}
		c.noted[key] = notes{kind: n.kind, zones: zones, values: values}
		c.cfg.Logger.Info("a secret is sent to other zones than before",
			"kind", n.kind.GVK.Kind, "secret", key.String(), "zones", zones, "values", values)
	}
	return errors.Join(errs...)
}

// note on a secret. One that is gone, or was changed meanwhile, brings an event.
func (c *Controller) note(ctx context.Context, k *resource.Descriptor, key resource.Key, zones, values string) error {
	obj, err := c.cfg.Client.Get(ctx, k, key)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	all := obj.GetAnnotations()
	if all == nil {
		all = map[string]string{}
	}
	for name, value := range map[string]string{AnnotationZones: zones, AnnotationValues: values} {
		if value == "" {
			delete(all, name)
		} else {
			all[name] = value
		}
	}
	obj.SetAnnotations(all)
	_, err = c.cfg.Client.Update(ctx, k, obj)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
