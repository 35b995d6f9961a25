package policy

import (
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// Tables that an Index follows, for a subscription.
func Tables() []catalog.Kind {
	return []catalog.Kind{
		catalog.Namespaces, catalog.Meshes, catalog.Services, catalog.ServiceImports, catalog.ExternalServices, catalog.Dataplanes, catalog.Pods,
		catalog.TrafficPermissions, catalog.BackendPolicies, catalog.WorkloadPolicies, catalog.ProxyPatches,
		catalog.HTTPRoutes, catalog.GRPCRoutes, catalog.TCPRoutes, catalog.ReferenceGrants,
	}
}

// Apply what changed between two snapshots of the catalog. It costs as much as there are changes.
func (x *Index) Apply(d *catalog.Delta) Affected {
	var out Affected
	apply(x, &out, "Namespace", d.Namespaces)
	apply(x, &out, "Mesh", d.Meshes)
	apply(x, &out, "Service", d.Services)
	apply(x, &out, "ServiceImport", d.ServiceImports)
	apply(x, &out, "ExternalService", d.ExternalServices)
	apply(x, &out, "Dataplane", d.Dataplanes)
	x.applyPods(&out, d)
	apply(x, &out, "TrafficPermission", d.TrafficPermissions)
	apply(x, &out, "BackendPolicy", d.BackendPolicies)
	apply(x, &out, "WorkloadPolicy", d.WorkloadPolicies)
	apply(x, &out, "ProxyPatch", d.ProxyPatches)
	apply(x, &out, "HTTPRoute", d.HTTPRoutes)
	apply(x, &out, "GRPCRoute", d.GRPCRoutes)
	apply(x, &out, "TCPRoute", d.TCPRoutes)
	apply(x, &out, "ReferenceGrant", d.ReferenceGrants)
	return out
}

func apply[T catalog.Row](x *Index, out *Affected, kind string, changes []catalog.Change[T]) {
	var none T
	for _, c := range changes {
		if c.New == none {
			out.add(x.Delete(Ref{kind, c.Key}))
		} else {
			out.add(x.Set(resource.Object(c.New)))
		}
	}
}
