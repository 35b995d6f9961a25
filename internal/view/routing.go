package view

import (
	"reflect"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/policy"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/kube"
)

// Routings are what policies and routes say of connections to Services, for the nodes of clients
// without a sidecar. Without a BackendPolicy and a TCPRoute it keeps nothing, and a delta costs
// nothing. The zero value is ready. It is for one goroutine at a time.
type Routings struct {
	// Site of the nodes, which rules of localities may name; set it before the first Apply.
	Site     locality.Site
	index    *policy.Index // nil: there are neither
	snapshot *catalog.Snapshot
	// imports are the Services with the addresses of ServiceImports. routed are those of which
	// anything was said when they were asked for.
	imports map[catalog.Key]catalog.Key
	routed  map[catalog.Key]struct{}
}

// Apply what changed. It returns the Services of which something else may be said than before;
// those that changed themselves need not be among them.
func (r *Routings) Apply(d *catalog.Delta) map[catalog.Key]struct{} {
	r.snapshot = d.After
	any := d.After.BackendPolicies.Len()+d.After.TCPRoutes.Len() > 0
	switch {
	case !any && r.index == nil:
		return nil
	case !any:
		was := r.routed
		*r = Routings{Site: r.Site, snapshot: d.After}
		return was
	case r.index == nil:
		r.index, r.imports, r.routed = policy.NewIndex(), map[catalog.Key]catalog.Key{}, map[catalog.Key]struct{}{}
		r.index.LoadConnections(d.After)
		for key, s := range d.After.Services.All() {
			r.noteImport(key, nil, s)
		}
		return r.concerned(policy.Affected{All: true})
	}
	for _, c := range d.Services {
		r.noteImport(c.Key, c.Old, c.New)
	}
	return r.concerned(r.index.ApplyConnections(d))
}

func (r *Routings) noteImport(key catalog.Key, old, now *corev1.Service) {
	of := func(s *corev1.Service) string {
		if s == nil {
			return ""
		}
		return s.Labels[mcs.LabelServiceName]
	}
	if name := of(old); name != "" {
		delete(r.imports, catalog.Key{Namespace: key.Namespace, Name: name})
	}
	if name := of(now); name != "" {
		r.imports[catalog.Key{Namespace: key.Namespace, Name: name}] = key
	}
}

// concerned are the Services that are affected, of which something is said, or was.
func (r *Routings) concerned(a policy.Affected) map[catalog.Key]struct{} {
	out := map[catalog.Key]struct{}{}
	note := func(key catalog.Key, s *corev1.Service) {
		if _, was := r.routed[key]; was || r.says(key, s) {
			out[key] = struct{}{}
		}
	}
	if a.All {
		for key, s := range r.snapshot.Services.All() {
			note(key, s)
		}
		return out
	}
	for _, namespace := range a.Namespaces {
		for key, s := range r.snapshot.Services.Namespace(namespace) {
			note(key, s)
		}
	}
	for _, ref := range a.Objects {
		if ref.Kind != "Service" && ref.Kind != "ServiceImport" && ref.Kind != "ExternalService" {
			continue
		}
		key := r.serviceOf(ref)
		if s, ok := r.snapshot.Services.Get(key); ok {
			note(key, s)
		}
	}
	return out
}

// serviceOf a backend is the Service with its address.
func (r *Routings) serviceOf(ref policy.Ref) catalog.Key {
	if key, ok := r.imports[ref.Key]; ok && ref.Kind == "ServiceImport" {
		return key
	}
	return ref.Key
}

func (r *Routings) says(key catalog.Key, s *corev1.Service) bool {
	ref := policy.BackendRef(r.snapshot, key)
	if len(r.index.Consumers(ref)) > 0 {
		return true
	}
	for i := range s.Spec.Ports {
		if _, ok := r.index.Producer(ref, portOf(&s.Spec.Ports[i])); ok {
			return true
		}
	}
	return false
}

func portOf(p *corev1.ServicePort) policy.Port { return policy.Port{Name: p.Name, Number: p.Port} }

// Of a Service, by the names of its ports; nil: nothing is said.
func (r *Routings) Of(key catalog.Key, s *corev1.Service) map[string]*proxy.Routing {
	if r.index == nil {
		return nil
	}
	delete(r.routed, key)
	if s == nil {
		return nil
	}
	ref := policy.BackendRef(r.snapshot, key)
	var out map[string]*proxy.Routing
	consumers := r.index.Consumers(ref)
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		var routing *proxy.Routing
		said, ok := r.index.Producer(ref, portOf(p))
		if ok {
			routing = r.routing(key, p.Protocol, &said)
		}
		if ok || len(consumers) > 0 {
			r.routed[key] = struct{}{}
		}
		if routing = r.withConsumers(routing, consumers, key, ref, p); routing != nil {
			if out == nil {
				out = map[string]*proxy.Routing{}
			}
			out[p.Name] = routing
		}
	}
	return out
}

// withConsumers adds what holds for clients of namespaces, where it differs from what holds for all.
func (r *Routings) withConsumers(all *proxy.Routing, namespaces []string, key catalog.Key, ref policy.Ref, p *corev1.ServicePort) *proxy.Routing {
	own := map[string]*proxy.Routing{}
	for _, namespace := range namespaces {
		said, _ := r.index.Consumer(namespace, ref, portOf(p))
		routing := r.routing(key, p.Protocol, &said)
		if reflect.DeepEqual(routing, all) {
			continue
		}
		if routing == nil {
			routing = &proxy.Routing{}
		}
		own[namespace] = routing
	}
	if len(own) == 0 {
		return all
	}
	if all == nil {
		all = &proxy.Routing{}
	}
	all.Consumers = own
	return all
}

// routing is what nodes do of what is said; nil: nothing.
func (r *Routings) routing(key catalog.Key, protocol corev1.Protocol, said *policy.Producer) *proxy.Routing {
	out := &proxy.Routing{}
	if (protocol == "" || protocol == corev1.ProtocolTCP) && said.Route.Kind != "" {
		if backends, ok := r.backends(key, said.Backends); ok {
			out.Route, out.Backends = said.Route.Key.String(), backends
		}
	}
	if p := said.Policy; p != nil {
		out.Policy = namedBy(p)
		out.Locality, out.SourceHash = kube.LocalityOf(&p.Locality), p.HashesSource()
		if out.Locality != nil && len(out.Locality.Failover) > 0 {
			out.Locality.Site = r.Site
		}
		if _, set := p.From["timeout.connect"]; set && p.Timeout.Connect != nil {
			out.ConnectTimeout = p.Timeout.Connect.Value().Truncate(time.Millisecond)
		}
		if _, set := p.From["retry.tcpAttempts"]; set && p.Retry.TCPAttempts != nil {
			out.TCPAttempts = uint32(max(*p.Retry.TCPAttempts, 0)) //nolint:gosec // validation bounds it
		}
	}
	if out.Route == "" && out.Locality == nil && !out.SourceHash && out.ConnectTimeout == 0 && out.TCPAttempts == 0 {
		return nil
	}
	return out
}

// backends of a route; false: one of them is reached by way of gateways, as those of other sites, which
// nodes do for the Service itself alone. What cannot be used has no name, and its connections are for
// the others.
func (r *Routings) backends(of catalog.Key, all []policy.RouteBackend) ([]proxy.RouteBackend, bool) {
	var out []proxy.RouteBackend
	for i := range all {
		b := &all[i]
		key := r.serviceOf(b.Ref)
		switch {
		case b.Weight <= 0:
			continue
		case b.Invalid == "" && b.Ref.Kind != "Service" && key != of:
			return nil, false
		case b.Invalid != "":
			out = append(out, proxy.RouteBackend{Weight: uint32(b.Weight)}) //nolint:gosec // validation bounds it
			continue
		}
		out = append(out, proxy.RouteBackend{
			Service: proxy.ServiceName{Namespace: key.Namespace, Name: key.Name}, Port: uint16(b.Port), Weight: uint32(b.Weight), //nolint:gosec // validation bounds both
		})
	}
	if len(out) == 0 { // nothing but weights of 0: no connection is served
		out = []proxy.RouteBackend{{Weight: 1}}
	}
	return out, true
}

// namedBy is the policy that set what nodes do; empty: none did.
func namedBy(p *policy.Backend) string {
	found, name := "", ""
	for path, source := range p.From {
		if concerns := path == "timeout.connect" || path == "retry.tcpAttempts" || strings.HasPrefix(path, "locality") ||
			strings.HasPrefix(path, "balancer"); concerns && (found == "" || path < found) {
			found, name = path, source.Key.String()
		}
	}
	return name
}
