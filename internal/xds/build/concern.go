package build

import (
	"fmt"
	"strings"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/policy"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// Applied is a policy or route as the resources have it.
type Applied struct {
	// Version changes with the specification of the object, and is the same on all instances.
	Version string
	// Sequence of the change that brought it: what a proxy has acknowledged by then has it.
	Sequence uint64
	// Supervised are the fields that the supervisor of a proxy enforces: an Envoy without one does not.
	Supervised []string
}

// supervisedFields of a policy.
func supervisedFields(obj resource.Object) []string {
	p, ok := obj.(*meshv1alpha1.WorkloadPolicy)
	if !ok {
		return nil
	}
	var out []string
	if p.Spec.Metrics != nil {
		out = append(out, "spec.metrics")
	}
	for i := range p.Spec.AccessLog {
		if p.Spec.AccessLog[i].TCP != nil {
			out = append(out, fmt.Sprintf("spec.accessLog[%d].tcp", i))
		}
	}
	return out
}

// Concern is which policies and routes a proxy applies.
type Concern struct {
	// Own: to its own ports, or to all of its configuration.
	Own []policy.Source
	// Backends: to what it sends to Services that it uses.
	Backends map[catalog.Key][]policy.Source
}

// PolicyVersion of an object: another one for each specification.
func PolicyVersion(obj resource.Object) string {
	return fmt.Sprintf("%s/%d", obj.GetUID(), obj.GetGeneration())
}

// Sequence counts changes of policies and routes that are in the resources. It does not block.
func (b *Builder) Sequence() uint64 { return b.sequence.Load() }

// Policies visits the policies and routes that are in the resources.
func (b *Builder) Policies(visit func(policy.Source, Applied)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for source, a := range b.applied {
		visit(source, a)
	}
}

// Concerned is what the proxy of a Dataplane applies, which uses these Services beside those of its
// eager set.
func (b *Builder) Concerned(key catalog.Key, uses []catalog.Key) Concern {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.proxies[key]
	if p == nil {
		return Concern{}
	}
	c := Concern{Backends: map[catalog.Key][]policy.Source{}}
	if p.class.Variant != GRPC {
		c.Own = b.policies.OfWorkload(policy.Ref{Kind: "Dataplane", Key: key})
	}
	add := func(service catalog.Key) {
		if _, done := c.Backends[service]; !done {
			c.Backends[service] = b.policies.OfBackend(p.class.Namespace, b.backendRef(service))
		}
	}
	for _, u := range p.clusters {
		add(u.portOf().Service)
	}
	for _, service := range uses {
		add(service)
	}
	return c
}

// Moved counts changes of which policies concern the proxy, but for those that Sequence counts. It
// does not block.
func (c *Connection) Moved() uint64 { return c.proxy.moved.Load() }

// notePolicies notes which versions of policies and routes the resources have from now on.
func (b *Builder) notePolicies(d *catalog.Delta) {
	next := b.sequence.Load() + 1
	n := noting{b.applied, next, false}
	note(&n, "TrafficPermission", d.TrafficPermissions)
	note(&n, "BackendPolicy", d.BackendPolicies)
	note(&n, "WorkloadPolicy", d.WorkloadPolicies)
	note(&n, "ProxyPatch", d.ProxyPatches)
	note(&n, "HTTPRoute", d.HTTPRoutes)
	note(&n, "GRPCRoute", d.GRPCRoutes)
	note(&n, "TCPRoute", d.TCPRoutes)
	if n.changed || len(d.Meshes)+len(d.Namespaces)+len(d.ReferenceGrants) > 0 {
		b.sequence.Store(next)
		return // everybody is looked at
	}
	for _, c := range d.Dataplanes {
		if p := b.proxies[c.Key]; p != nil && different(c.Old, c.New) {
			p.moved.Add(1)
		}
	}
	for p := range b.concerned(servicesIn(d)) {
		p.moved.Add(1)
	}
}

type noting struct {
	applied map[policy.Source]Applied
	next    uint64
	changed bool
}

func note[T catalog.Row](n *noting, kind string, changes []catalog.Change[T]) {
	var none T
	for _, c := range changes {
		source := policy.Source{Kind: kind, Key: c.Key}
		if c.New == none {
			delete(n.applied, source)
			n.changed = true
			continue
		}
		if v := PolicyVersion(resource.Object(c.New)); n.applied[source].Version != v {
			n.applied[source] = Applied{v, n.next, supervisedFields(resource.Object(c.New))}
			n.changed = true
		}
	}
}

// ServiceOf the name of a cluster, of its endpoints or of its routes; false: it is not one of a Service.
func ServiceOf(name string) (catalog.Key, bool) {
	if _, rest, prefixed := strings.Cut(name, "|"); prefixed {
		name = rest
	}
	port, err := ParseServicePort(name)
	return port.Service, err == nil
}
