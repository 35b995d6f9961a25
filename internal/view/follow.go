// Package view builds the node views: for each topology zone, the Services, endpoints,
// names, suspect nodes and other sites that all agents of the zone need, encoded once and
// shared by their streams.
//
// Enter at [NewBuilder], then [Follow] the catalog; [Builder.Assign] gives each stream its
// view. The encoding is package view/wire, which agents share (package node/fromview).
// This package chooses no endpoints and plans no weights.
package view

import (
	"context"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/topology/trafficplan"
)

// Tables that views are built from.
func Tables() []catalog.Kind {
	return []catalog.Kind{
		catalog.Services, catalog.Slices, catalog.Nodes, catalog.Dataplanes, catalog.Plans,
		catalog.ServiceExports, catalog.ZoneIngresses, catalog.ZoneEgresses, catalog.Meshes, catalog.VirtualIPs,
		catalog.ExternalServices, catalog.Namespaces, catalog.Pods,
		catalog.ServiceImports, catalog.BackendPolicies, catalog.TCPRoutes, catalog.ReferenceGrants,
		catalog.TrafficPermissions,
	}
}

// Source delivers what changed. A *catalog.Subscription of Tables is one.
type Source interface {
	// Next blocks until something changed since the last call, and returns it;
	// the first call returns everything. Errors end the source.
	Next(ctx context.Context) (catalog.Delta, error)
}

// Follow feeds a builder from a source, whose Next has not been called yet,
// until ctx ends (it returns nil) or the source does (it returns its error). plans, which
// the builder's Weights read, is brought up to date before the builder. Nil: there are
// no plans.
func Follow(ctx context.Context, source Source, b *Builder, plans *trafficplan.Table) error {
	for first := true; ; first = false {
		d, err := source.Next(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		var replanned map[catalog.Key]struct{}
		if plans != nil {
			replanned = plans.Apply(&d)
		}
		if first {
			err = b.Replace(&d)
		} else {
			err = b.Apply(&d, replanned)
		}
		if err != nil {
			return err
		}
	}
}
