package view

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// Source delivers what changed. A *catalog.Subscription of Services,
// EndpointSlices and Nodes is one.
type Source interface {
	// Next blocks until something changed since the last call, and returns it;
	// the first call returns everything. Errors end the source.
	Next(ctx context.Context) (catalog.Delta, error)
}

// Follow feeds a builder from a source, whose first Next must be still to come,
// until ctx ends (nil) or the source does (its error).
func Follow(ctx context.Context, source Source, b *Builder) error {
	for first := true; ; first = false {
		d, err := source.Next(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if err := b.Apply(fromCatalog(d, first)); err != nil {
			return err
		}
	}
}

func fromCatalog(d catalog.Delta, first bool) Delta {
	out := Delta{
		Reset: first, Epoch: d.After.Position.Epoch, Sequence: d.After.Position.Sequence,
		Services: make(map[proxy.ServiceName]*corev1.Service, len(d.Services)),
		Slices:   make(map[proxy.SliceName]*discoveryv1.EndpointSlice, len(d.Slices)),
		Nodes:    make(map[string]*corev1.Node, len(d.Nodes)),
	}
	for _, c := range d.Services {
		out.Services[proxy.ServiceName(c.Key)] = c.New
	}
	for _, c := range d.Slices {
		out.Slices[proxy.SliceName(c.Key)] = c.New
	}
	for _, c := range d.Nodes {
		out.Nodes[c.Key.Name] = c.New
	}
	return out
}
