package view

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/topology/trafficplan"
)

// Source delivers what changed. A *catalog.Subscription of Services,
// EndpointSlices, Nodes, Dataplanes and Plans is one.
type Source interface {
	// Next blocks until something changed since the last call, and returns it;
	// the first call returns everything. Errors end the source.
	Next(ctx context.Context) (catalog.Delta, error)
}

// Follow feeds a builder from a source, whose first Next must be still to come,
// until ctx ends (nil) or the source does (its error). plans, which the builder has its
// weights from, is brought up to date first, and slices whose weights differ go to the
// builder even if they are what they were. Nil: there are no plans.
func Follow(ctx context.Context, source Source, b *Builder, plans *trafficplan.Table) error {
	for first := true; ; first = false {
		d, err := source.Next(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		next := fromCatalog(d, first)
		if plans != nil {
			for service := range plans.Apply(&d) {
				for key, slice := range d.After.SlicesOf(service) {
					next.Slices[proxy.SliceName(key)] = slice
				}
			}
		}
		if err := b.Apply(next); err != nil {
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
	for _, c := range d.Dataplanes {
		if machine := machineOf(c.New); machine != machineOf(c.Old) {
			if out.Machines == nil {
				out.Machines = map[catalog.Key]string{}
			}
			out.Machines[c.Key] = machine
		}
	}
	return out
}
