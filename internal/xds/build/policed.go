package build

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listener "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/policy"
	"github.com/proxima-mesh/proxima/internal/xds/translate"
)

// What policies and routes change of resources. Without any, resources have the defaults of this
// package.

// said is what policies of workloads say of resources that proxies of a class share.
type said struct {
	Patches   []policy.Patch                `json:",omitempty"`
	AccessLog []meshv1alpha1.AccessLog      `json:",omitempty"`
	Tracing   *meshv1alpha1.WorkloadTracing `json:",omitempty"`
}

// saidOf a workload, and its digest; empty: nothing is said.
func (b *Builder) saidOf(key catalog.Key) (said, string) {
	var s said
	ref := policy.Ref{Kind: "Dataplane", Key: key}
	if b.policies.HasPolicies("ProxyPatch") {
		s.Patches = b.policies.Patches(ref)
	}
	if w, ok := b.workload(key); ok {
		s.AccessLog, s.Tracing = w.AccessLog, w.Tracing
	}
	if len(s.Patches) == 0 && len(s.AccessLog) == 0 && s.Tracing == nil {
		return s, ""
	}
	text, err := json.Marshal(s)
	if err != nil {
		b.config.Logger.Error("policies of a workload are left out", "dataplane", key, "error", err)
		return said{}, ""
	}
	sum := sha256.Sum256(text)
	return s, hex.EncodeToString(sum[:16])
}

// workload is what WorkloadPolicies say of a Dataplane; false: there are none.
func (b *Builder) workload(key catalog.Key) (policy.Workload, bool) {
	if !b.policies.HasPolicies("WorkloadPolicy") {
		return policy.Workload{}, false
	}
	return b.policies.Workload(policy.Ref{Kind: "Dataplane", Key: key})
}

// backendRef is what policies and routes call a Service.
func (b *Builder) backendRef(key catalog.Key) policy.Ref { return policy.BackendRef(b.snapshot, key) }

// serviceOf a backend is the Service with its address.
func (b *Builder) serviceOf(ref policy.Ref) catalog.Key {
	if ref.Kind == "ServiceImport" {
		if key, ok := b.imports[ref.Key]; ok {
			return key
		}
	}
	return ref.Key
}

// police adds to an upstream what policies and routes say of it to clients of a class.
func (b *Builder) police(c *class, u *upstream, name, appProtocol string) {
	ref, port := b.backendRef(u.port.Service), policy.Port{Name: name, Number: int32(u.port.Port)}
	u.routes = b.policies.Routes(c.Namespace, ref, port)
	for i := range u.routes {
		b.resolve(u.routes[i].Backends, c)
		b.resolve(u.routes[i].Mirrors, c)
	}
	if c.Variant != GRPC { // whose connections are its own
		u.tcp = b.policies.TCPBackends(c.Namespace, ref, port)
		b.resolve(u.tcp, c)
	}
	if appProtocol == "" && len(u.routes) > 0 { // a route makes a port HTTP that says nothing
		u.protocol = HTTP1
		if !slices.ContainsFunc(u.routes, func(r policy.Route) bool { return r.GRPC == nil }) {
			u.protocol = HTTP2
		}
	}
	u.undeclared = appProtocol == "" && (u.protocol == HTTP1 || u.protocol == TCP && b.policies.Routed(ref))
	u.policed = b.policies.HasBackend(c.Namespace, ref, port)
	if u.policed || len(u.routes) > 0 || len(u.tcp) > 0 {
		settings := b.policies.Backend(c.Namespace, ref, port)
		u.settings = &settings
	}
	if c.Variant != GRPC {
		u.said, u.supervised = &c.said, c.Variant == Sidecar
	}
}

// resolve backends into the Services with their addresses. What the mesh may not use does not
// exist.
func (b *Builder) resolve(all []policy.RouteBackend, c *class) {
	for i := range all {
		to := &all[i]
		key := b.serviceOf(to.Ref)
		if to.Invalid == "" && !b.allowed(key, c.Mesh) {
			to.Invalid = fmt.Sprintf("BackendNotFound: there is no %s %s", to.Ref.Kind, to.Ref.Key)
		}
		to.Ref = policy.Ref{Kind: "Service", Key: key}
		if b.external(key) {
			to.Ref.Kind = "ExternalService"
		}
	}
}

// backendsOf an upstream are the service ports that its routes lead to. The Services are added to
// named, those that cannot be used, too.
func backendsOf(u *upstream, named map[catalog.Key]struct{}) []ServicePort {
	var out []ServicePort
	add := func(all []policy.RouteBackend) {
		for i := range all {
			named[all[i].Ref.Key] = struct{}{}
			if all[i].Invalid == "" {
				out = append(out, ServicePort{all[i].Ref.Key, uint16(all[i].Port)})
			}
		}
	}
	add(u.tcp)
	for i := range u.routes {
		add(u.routes[i].Backends)
		add(u.routes[i].Mirrors)
	}
	return out
}

// eager are the service ports that policies and routes make proxies of a namespace know from the
// beginning. The Services that they are of are added to named, those that do not exist, too.
func (b *Builder) eager(namespace, meshName string, named map[catalog.Key]struct{}) []ServicePort {
	var out []ServicePort
	for _, ref := range b.policies.Eager(namespace) {
		key := b.serviceOf(ref)
		named[ref.Key], named[key] = struct{}{}, struct{}{}
		if b.allowed(key, meshName) {
			out = append(out, b.portsOf(key)...)
		}
	}
	return out
}

// policedCluster applies a policy to the cluster of an upstream.
func policedCluster(c *cluster.Cluster, u *upstream) {
	if !u.policed {
		return
	}
	if err := translate.Cluster(c, u.settings, u.http()); err != nil {
		panic(errInvalid{err})
	}
	if u.affinity && u.settings.Balancer.Type == "" {
		c.LbPolicy = cluster.Cluster_RING_HASH
	}
}

// policedRoutes are the routes of an upstream.
func policedRoutes(u *upstream) *route.RouteConfiguration {
	name, to := u.port.RouteName(), u.cluster
	plain := routesTo(name, to, true, u.affinity)
	if u.settings == nil {
		return plain
	}
	if u.grpc {
		return translate.GRPCRoutes(name, to, u.routes, u.settings)
	}
	out := translate.RouteConfiguration(name, to, u.routes, u.settings)
	for _, host := range out.VirtualHosts {
		for _, r := range host.Routes {
			if a := r.GetRoute(); a != nil && u.affinity && len(a.HashPolicy) == 0 {
				a.HashPolicy = plain.VirtualHosts[0].Routes[0].GetRoute().HashPolicy
			}
		}
	}
	return out
}

// outFilters take connections to an upstream.
func outFilters(u *upstream) []*listener.Filter {
	var out []*listener.Filter
	if u.settings != nil {
		for _, l := range translate.ConnectionLimits(&policy.WorkloadPort{RateLimit: u.settings.RateLimit}) {
			out = append(out, networkFilter("envoy.filters.network.local_ratelimit", l))
		}
	}
	if u.protocol == TCP {
		p := tcpProxy(u.cluster, statOut, u.affinity)
		if u.settings != nil {
			translate.TCPProxy(p, u.settings, u.tcp)
		}
		if u.said != nil {
			p.AccessLog = translate.AccessLogs(u.said.AccessLog, u.supervised)
		}
		return append(out, networkFilter("envoy.filters.network.tcp_proxy", p))
	}
	m := connectionManager(u.port.RouteName(), statOut)
	if u.settings != nil {
		m.HttpFilters = append(translate.ClientFilters(u.routes, u.settings), m.HttpFilters...)
	}
	if u.said != nil {
		m.AccessLog, m.Tracing = translate.AccessLogs(u.said.AccessLog, u.supervised), translate.Tracing(u.said.Tracing)
	}
	return append(out, networkFilter("envoy.filters.network.http_connection_manager", m))
}

// inPolicies are what policies say of a port of a workload.
type inPolicies struct {
	port       policy.WorkloadPort
	permission policy.Permission
	tracing    *meshv1alpha1.WorkloadTracing
	// callers of the limits and of the faults.
	limited, faulted translate.Callers
	// set: a WorkloadPolicy says something. supervised: the proxy has a supervisor.
	set, supervised bool
}

// inPoliciesOf a port of a Dataplane.
func (b *Builder) inPoliciesOf(key catalog.Key, port int32) inPolicies {
	ref := policy.Ref{Kind: "Dataplane", Key: key}
	var out inPolicies
	out.permission, _ = b.policies.Permission(ref, port)
	w, ok := b.workload(key)
	if !ok {
		return out
	}
	out.port, out.tracing = w.Ports[port], w.Tracing
	out.set = len(out.port.From) > 0
	of := func(field string) translate.Callers {
		source := out.port.From[field]
		return func(from []meshv1alpha1.PolicySource) []policy.Caller { return b.policies.Callers(ref, source, from) }
	}
	out.limited, out.faulted = of("rateLimit"), of("faults")
	return out
}

// connections are the network filters in front of a port, for what is HTTP and what is not.
func (p *inPolicies) connections(http bool) []*listener.Filter {
	var out []*listener.Filter
	if !http {
		for _, r := range translate.NetworkAccess(&p.permission) {
			out = append(out, networkFilter("envoy.filters.network.rbac", r))
		}
	}
	for _, l := range translate.ConnectionLimits(&p.port) {
		out = append(out, networkFilter("envoy.filters.network.local_ratelimit", l))
	}
	return out
}

// tcp takes connections to a port as they are.
func (p *inPolicies) tcp(to string) []*listener.Filter {
	proxy := tcpProxy(to, statIn, false)
	if p.set {
		workload := policy.Backend{Timeout: p.port.Timeout, Retry: meshv1alpha1.BackendRetry{TCPAttempts: new(int32(connectAttempts))}}
		translate.TCPProxy(proxy, &workload, nil)
		proxy.AccessLog = translate.AccessLogs(p.port.AccessLog, p.supervised)
	}
	return append(p.connections(false), networkFilter("envoy.filters.network.tcp_proxy", proxy))
}

// http takes requests to a port. named: callers have certificates; without one, nobody is what
// limits and faults describe by a name, and Envoy cannot compare what is not there.
func (p *inPolicies) http(routes string, named bool) []*listener.Filter {
	limited, faulted := p.limited, p.faulted
	if !named {
		limited, faulted = withoutNames(limited), withoutNames(faulted)
	}
	m := connectionManager(routes, statIn)
	before := translate.InboundFilters(&policy.WorkloadPort{RateLimit: p.port.RateLimit}, &p.permission, limited)
	before = append(before, translate.InboundFilters(&policy.WorkloadPort{Faults: p.port.Faults}, &policy.Permission{}, faulted)...)
	m.HttpFilters = append(before, m.HttpFilters...)
	translate.NormalizePaths(m, &p.permission)
	if p.set {
		translate.InboundConnections(m, &p.port)
		m.AccessLog, m.Tracing = translate.AccessLogs(p.port.AccessLog, p.supervised), translate.Tracing(p.tracing)
	}
	return append(p.connections(true), networkFilter("envoy.filters.network.http_connection_manager", m))
}

// withoutNames are the callers that are described by addresses alone.
func withoutNames(of translate.Callers) translate.Callers {
	return func(from []meshv1alpha1.PolicySource) []policy.Caller {
		return slices.DeleteFunc(of(from), func(c policy.Caller) bool { return len(c.Names) > 0 })
	}
}

// closed reports whether ports that a workload does not declare refuse all connections.
func (b *Builder) closed(meshName string) bool {
	if _, m, ok := b.meshTLS(meshName); ok && modeOf(m) == Strict {
		return true
	}
	m, ok := b.snapshot.Meshes.Get(catalog.Key{Name: meshName})
	return ok && m.Spec.DefaultAccess == meshv1alpha1.AccessDeny
}

// restOf is where connections of a workload go that the mesh does not know.
func (b *Builder) restOf(p *Proxy) string {
	w, ok := b.workload(p.Key)
	switch {
	case ok && (w.Passthrough.Mode == meshv1alpha1.PassthroughNone || w.Passthrough.Mode == meshv1alpha1.PassthroughMatched):
		return Blackhole // but for what matches
	case ok && w.Passthrough.Mode == meshv1alpha1.PassthroughAll:
		return Passthrough
	}
	return b.passthrough(p.Mesh)
}

// matchedBy are the destinations beside the mesh's own that a workload reaches; nil: all, or none.
func (b *Builder) matchedBy(p *Proxy) []destination {
	if w, ok := b.workload(p.Key); ok && w.Passthrough.Mode == meshv1alpha1.PassthroughMatched {
		return destinationsOf(w.Passthrough.Match)
	}
	return nil
}

// patched is a resource of a class as its ProxyPatches make it; nil: they remove it. Additions of
// whole resources are of proxies' own layers.
func patched[M message](b *Builder, c *class, m M, in translate.Resources, out func(translate.Resources) []M) *made {
	if len(c.said.Patches) == 0 {
		return unlisted(m)
	}
	patches := slices.DeleteFunc(slices.Clone(c.said.Patches), addsResource)
	result, by, refused := translate.ApplyPatches(in, patches)
	b.logRefused(refused, fmt.Sprintf("class %s/%s", c.Mesh, c.Namespace))
	all := out(result)
	switch {
	case len(all) == 0:
		return nil
	case len(by) == 0:
		return unlisted(m)
	}
	plain := unlisted(m)
	body, err := encoded(all[0])
	if err != nil {
		b.config.Logger.Error("a ProxyPatch is left out: its result is not valid", "error", err)
		return plain
	}
	plain.options.Fallback, plain.body = plain.body, body
	return plain
}

func addsResource(p policy.Patch) bool {
	return p.Op == meshv1alpha1.PatchAdd && (p.Type == meshv1alpha1.PatchCluster || p.Type == meshv1alpha1.PatchListener)
}

// logRefused names changes that are left out, of resources that they are for.
func (b *Builder) logRefused(refused []translate.Refused, where string) {
	for _, r := range refused {
		if r.Resource == "" {
			continue
		}
		b.config.Logger.Warn("a change of a ProxyPatch is left out", "for", where, "error", r)
	}
}

func (b *Builder) patchedCluster(c *class, m *cluster.Cluster) *made {
	return patched(b, c, m, translate.Resources{Clusters: []*cluster.Cluster{m}}, func(r translate.Resources) []*cluster.Cluster { return r.Clusters })
}

func (b *Builder) patchedListener(c *class, m *listener.Listener) *made {
	return patched(b, c, m, translate.Resources{Listeners: []*listener.Listener{m}}, func(r translate.Resources) []*listener.Listener { return r.Listeners })
}

func (b *Builder) patchedRoutes(c *class, m *route.RouteConfiguration) *made {
	return patched(b, c, m, translate.Resources{Routes: []*route.RouteConfiguration{m}}, func(r translate.Resources) []*route.RouteConfiguration { return r.Routes })
}

// patchOwn changes the resources of a proxy's own layer by its ProxyPatches. A cluster or listener
// that a patch adds must not take the name of another of ours.
func (b *Builder) patchOwn(p *Proxy, in translate.Resources) translate.Resources {
	patches := p.class.said.Patches
	if len(patches) == 0 {
		return in
	}
	out, _, refused := translate.ApplyPatches(in, patches)
	b.logRefused(refused, "Dataplane "+p.Key.String())
	out.Clusters = slices.DeleteFunc(out.Clusters, func(c *cluster.Cluster) bool { return b.takesName(p, c.Name, in.Clusters) })
	return out
}

// takesName reports whether an added cluster has the name of a cluster of the class.
func (b *Builder) takesName(p *Proxy, name string, own []*cluster.Cluster) bool {
	if slices.ContainsFunc(own, func(c *cluster.Cluster) bool { return c.Name == name }) {
		return false
	}
	_, err := parseCluster(name)
	if err != nil && !strings.HasPrefix(name, vipPrefix) && !strings.HasPrefix(name, memberPrefix) && name != Passthrough && name != InPassthrough && name != Blackhole {
		return false
	}
	b.config.Logger.Warn("a ProxyPatch may not add a cluster of this name: change it by Merge", "dataplane", p.Key, "cluster", name)
	return true
}

// affect notes whose resources policies may have changed.
func (b *Builder) affect(a policy.Affected, d *catalog.Delta) affected {
	out := affected{all: a.All, services: map[catalog.Key]struct{}{}, proxies: map[catalog.Key]struct{}{}}
	namespaces := map[string]struct{}{}
	for _, n := range a.Namespaces {
		namespaces[n] = struct{}{}
	}
	for _, ref := range a.Objects {
		switch ref.Kind {
		case "Dataplane":
			out.proxies[ref.Key] = struct{}{}
		case "Service", "ServiceImport", "ExternalService":
			out.services[b.serviceOf(ref)] = struct{}{}
		}
	}
	for _, c := range d.Dataplanes { // renewals of leases change nothing
		if !different(c.Old, c.New) {
			delete(out.proxies, c.Key)
		}
	}
	if len(namespaces) > 0 {
		for key := range b.byService {
			if has(namespaces, key.Namespace) {
				out.services[key] = struct{}{}
			}
		}
		for address := range b.byAddress {
			if s := b.vips[address].service; has(namespaces, s.Namespace) {
				out.services[s] = struct{}{}
			}
		}
	}
	if a.All || len(namespaces) > 0 {
		out.wide = true
		for key, p := range b.proxies {
			if a.All || has(namespaces, key.Namespace) || anyKey(p.outbound, func(s catalog.Key) bool { return has(namespaces, s.Namespace) }) {
				out.proxies[key] = struct{}{}
			}
		}
	}
	for service := range out.services {
		for _, p := range b.dependents(service) {
			if has(p.outbound, service) {
				out.proxies[p.Key] = struct{}{}
			}
		}
	}
	return out
}

// affected is whose resources are to be made again.
type affected struct {
	all      bool
	services map[catalog.Key]struct{}
	proxies  map[catalog.Key]struct{}
	// wide: eager sets of any proxy may be others.
	wide bool
}

func anyKey[K comparable](set map[K]struct{}, is func(K) bool) bool {
	for key := range set {
		if is(key) {
			return true
		}
	}
	return false
}
