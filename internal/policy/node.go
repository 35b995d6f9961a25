package policy

import (
	"slices"

	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/resource"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
)

// Producer is what routes and policies in the namespace of a backend, and of its Mesh, say of
// connections to a port of it: they hold for all clients, also for those of which nobody knows the
// namespace, as a node's kernel does not. Of a Consumer it is what holds for clients of one namespace.
type Producer struct {
	// Route is the TCPRoute that Backends are of; zero: there is none.
	Route    Source
	Backends []RouteBackend
	// Policy are the settings of BackendPolicies; nil: there is none.
	Policy *Backend
}

// Producer of a port of a backend; false: nothing is said of it.
func (x *Index) Producer(ref Ref, port Port) (Producer, bool) {
	return x.Consumer(ref.Key.Namespace, ref, port)
}

// Consumers are the namespaces with routes or policies of their own for a backend of another one, sorted.
func (x *Index) Consumers(ref Ref) []string {
	var out []string
	for route := range x.routes.byParent[ref] {
		if _, refused := x.routes.refused[route]; !refused && route.Kind == "TCPRoute" && route.Key.Namespace != ref.Key.Namespace {
			out = append(out, route.Key.Namespace)
		}
	}
	for _, e := range x.policies["BackendPolicy"].byTarget[ref] {
		if e.source.Key.Namespace != ref.Key.Namespace {
			out = append(out, e.source.Key.Namespace)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Consumer is what holds for clients of a namespace: its own routes and policies, and the producer's where it
// has none.
func (x *Index) Consumer(client string, ref Ref, port Port) (Producer, bool) {
	var out Producer
	if routes := x.attached(client, ref, port, "TCPRoute"); len(routes) > 0 {
		out.Route, out.Backends = Source(routes[0]), x.TCPBackends(client, ref, port)
	}
	if x.HasBackend(client, ref, port) {
		b := x.Backend(client, ref, port)
		out.Policy = &b
	}
	return out, out.Policy != nil || out.Route != Source{}
}

// BackendRef is what policies and routes call a Service: one that has the address of an import, or of a
// service outside, goes by the name of that.
func BackendRef(s *catalog.Snapshot, key resource.Key) Ref {
	if _, ok := s.ExternalServices.Get(key); ok {
		return Ref{"ExternalService", key}
	}
	if service, ok := s.Services.Get(key); ok && service.Labels[mcs.LabelServiceName] != "" {
		return Ref{"ServiceImport", resource.Key{Namespace: key.Namespace, Name: service.Labels[mcs.LabelServiceName]}}
	}
	return Ref{"Service", key}
}

// HashesSource reports whether the addresses of clients decide about their endpoints: what TCP
// proxies do with a hash, as other hashes are of requests.
func (b *Backend) HashesSource() bool {
	if t := b.Balancer.Type; t != "" && t != mesh.BalanceRingHash && t != mesh.BalanceMaglev {
		return false
	}
	for _, h := range b.Balancer.Hash {
		if h.Type == mesh.HashSourceIP {
			return true
		}
	}
	return false
}

// NodeAbility is what a node in some mode does of policies, for clients without a proxy, beside
// localities and routes, which are up to the choice of endpoints.
type NodeAbility struct {
	// SourceHash: it sends a client to the endpoint of its address. Random: endpoints are chosen by
	// chance; RoundRobin: in turn.
	SourceHash, Random, RoundRobin bool
	// Connecting: it connects to endpoints by itself, and has timeouts and further attempts.
	Connecting bool
	// Addresses: clients keep their addresses, and it sees to permissions by address.
	Addresses bool
	// Namespaces: it knows the namespaces of clients that are workloads of the node with addresses of
	// their own, and follows the routes and policies of those.
	Namespaces bool
}

// NotOnNodes names the fields that a BackendPolicy sets and that a node does not enforce, by their
// paths in the spec, sorted.
func NotOnNodes(spec *mesh.BackendPolicySpec, by NodeAbility) []string {
	hash := (&Backend{Balancer: balancerOf(spec)}).HashesSource()
	var out []string
	for path := range merge(nil, []layer{{fields: fieldsOf(spec)}}).from {
		enforced := false
		switch path {
		case "locality.mode", "locality.failover":
			enforced = true
		case "balancer.hash":
			enforced = hash && by.SourceHash
		case "balancer.type":
			switch spec.Balancer.Type {
			case mesh.BalanceRandom:
				enforced = by.Random
			case mesh.BalanceRoundRobin:
				enforced = by.RoundRobin
			case mesh.BalanceRingHash, mesh.BalanceMaglev:
				enforced = hash && by.SourceHash
			}
		case "timeout.connect", "retry.tcpAttempts":
			enforced = by.Connecting
		}
		if !enforced {
			out = append(out, path)
		}
	}
	slices.Sort(out)
	return out
}

func balancerOf(spec *mesh.BackendPolicySpec) mesh.BackendBalancer {
	if spec.Balancer == nil {
		return mesh.BackendBalancer{}
	}
	return *spec.Balancer
}

// Produces reports whether a policy, or a route, is in the namespace of a backend, or of its Mesh, and so
// is for clients of which nobody knows the namespace.
func Produces(of Source, to Ref, targets []mesh.PolicyTargetReference) bool {
	for _, t := range targets {
		if t.Kind == "Mesh" {
			return true
		}
	}
	return of.Key.Namespace == to.Key.Namespace
}

// HasConsumers reports whether a TCPRoute or BackendPolicy of a snapshot is for a backend of another
// namespace.
func HasConsumers(s *catalog.Snapshot) bool {
	for key, r := range s.TCPRoutes.All() {
		for i := range r.Spec.ParentRefs {
			if n := r.Spec.ParentRefs[i].Namespace; n != nil && string(*n) != key.Namespace {
				return true
			}
		}
	}
	for key, p := range s.BackendPolicies.All() {
		for i := range p.Spec.TargetRefs {
			if n := p.Spec.TargetRefs[i].Namespace; n != "" && n != key.Namespace {
				return true
			}
		}
	}
	return false
}

// ConnectionTables are those of Tables that an index needs to answer Producer.
func ConnectionTables() []catalog.Kind {
	return []catalog.Kind{
		catalog.Namespaces, catalog.Meshes, catalog.Services, catalog.ServiceImports, catalog.ExternalServices,
		catalog.BackendPolicies, catalog.TCPRoutes, catalog.ReferenceGrants,
	}
}

// ApplyConnections is Apply for ConnectionTables alone.
func (x *Index) ApplyConnections(d *catalog.Delta) Affected {
	return x.Apply(&catalog.Delta{
		After: d.After, Namespaces: d.Namespaces, Meshes: d.Meshes, Services: d.Services, ServiceImports: d.ServiceImports,
		ExternalServices: d.ExternalServices, BackendPolicies: d.BackendPolicies, TCPRoutes: d.TCPRoutes, ReferenceGrants: d.ReferenceGrants,
	})
}

// LoadConnections sets everything of a snapshot that is in ConnectionTables.
func (x *Index) LoadConnections(s *catalog.Snapshot) {
	load(x, s.Namespaces)
	load(x, s.Meshes)
	load(x, s.Services)
	load(x, s.ServiceImports)
	load(x, s.ExternalServices)
	load(x, s.BackendPolicies)
	load(x, s.TCPRoutes)
	load(x, s.ReferenceGrants)
}

func load[T catalog.Row](x *Index, table catalog.Table[T]) {
	for _, row := range table.All() {
		x.Set(resource.Object(row))
	}
}
