package mirror

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/backoff"
	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/resource/reflector"
)

// Catalogue reads the instances that registry clients have registered in a control plane. It is a Reader.
type Catalogue struct {
	// Client of the control plane's API.
	Client resource.Client
	// Namespaces to read.
	Namespaces []string
	Logger     *slog.Logger // nil: discard
}

// catalogueRetry spaces attempts to read.
var catalogueRetry = backoff.Policy{First: 100 * time.Millisecond, Last: 5 * time.Second, Jitter: 0.2}

// Run implements Reader. Its errors are those of a client who may not read.
func (c *Catalogue) Run(ctx context.Context, to Sink) error {
	log := c.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var running, first sync.WaitGroup
	first.Add(len(c.Namespaces))
	for _, namespace := range c.Namespaces {
		r := &catalogueNamespace{
			to: to, have: map[resource.Key]*registry.Instance{}, services: map[registry.Service]map[resource.Key]*registry.Instance{},
			synced: sync.OnceFunc(first.Done), log: log,
		}
		running.Go(func() {
			_ = reflector.Run(ctx, reflector.Config{
				Client: c.Client, Kind: kind.Dataplane, Select: resource.ListOptions{Namespace: namespace}, Backoff: catalogueRetry, Logger: log, Level: slog.LevelWarn,
			}, func(e reflector.Event) error {
				if e.Type == reflector.Disconnected && (apierrors.IsForbidden(e.Err) || apierrors.IsUnauthorized(e.Err)) {
					cancel(e.Err)
				}
				r.handle(e)
				return nil
			})
			r.synced()
		})
	}
	running.Go(func() {
		if first.Wait(); ctx.Err() == nil {
			to.Synced()
		}
	})
	running.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// catalogueNamespace is one namespace, read by one goroutine.
type catalogueNamespace struct {
	to       Sink
	have     map[resource.Key]*registry.Instance
	services map[registry.Service]map[resource.Key]*registry.Instance
	synced   func()
	log      *slog.Logger
}

func (c *catalogueNamespace) handle(e reflector.Event) {
	touched := map[registry.Service]struct{}{}
	switch e.Type {
	case reflector.Replace:
		keys := e.Keys()
		for key := range c.have {
			if !keys[key] {
				c.set(key, nil, touched)
			}
		}
		fallthrough
	case reflector.Set:
		for _, o := range e.Objects {
			c.set(resource.KeyOf(o), o.(*meshv1alpha1.Dataplane), touched)
		}
	case reflector.Delete:
		c.set(resource.KeyOf(e.Object()), nil, touched)
	default:
		return
	}
	for s := range touched {
		c.to.Set(s, slices.Collect(maps.Values(c.services[s])))
	}
	if e.Type == reflector.Replace {
		c.synced()
	}
}

// set what an object is now; nil: it is gone. One that is being deleted is.
func (c *catalogueNamespace) set(key resource.Key, d *meshv1alpha1.Dataplane, touched map[registry.Service]struct{}) {
	if before := c.have[key]; before != nil {
		touched[before.Service] = struct{}{}
		delete(c.have, key)
		if delete(c.services[before.Service], key); len(c.services[before.Service]) == 0 {
			delete(c.services, before.Service)
		}
	}
	if !registry.Registered(d) || d.DeletionTimestamp != nil {
		return
	}
	in, err := registry.Parse(d)
	if err != nil {
		c.log.Warn("a dataplane is no instance of a registry, though its annotation says so", "error", err)
		return
	}
	c.have[key] = in
	if c.services[in.Service] == nil {
		c.services[in.Service] = map[resource.Key]*registry.Instance{}
	}
	c.services[in.Service][key] = in
	touched[in.Service] = struct{}{}
}
