package admin

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/controller/backend"
	"github.com/proxima-mesh/proxima/internal/diag"
	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/planner"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/choose"
	"github.com/proxima-mesh/proxima/internal/proxy/kube"
	"github.com/proxima-mesh/proxima/internal/registry"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/sites"
	"github.com/proxima-mesh/proxima/internal/summary"
	"github.com/proxima-mesh/proxima/internal/topology"
	"github.com/proxima-mesh/proxima/internal/topology/trafficplan"
	"github.com/proxima-mesh/proxima/internal/view"
)

const (
	// ExplainServicePath answers where connections to a Service go and why, as a
	// diag.Service. Query: namespace, name, and zone or node of the client.
	ExplainServicePath = "/proxima/v1/explain/service"
	// SimulatePath answers what a situation would change, as a topology.Simulation;
	// nothing is applied. Query, each any number of times: failZone, endpoints
	// (NAMESPACE/NAME:ZONE:+N), demand (NAMESPACE/NAME:ZONE:xK), top (a number), price
	// (CURRENCY:REGION:WORLD) and bytes (NAMESPACE/NAME:BYTES per connection).
	SimulatePath = "/proxima/v1/simulate"
)

// questionHandler answers questions about decisions, by the code that decided.
type questionHandler struct {
	Config
	scopes *scopes
	answer func(Config, summary.Scope, url.Values) (any, error)
}

// ServeHTTP implements http.Handler.
func (h questionHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !h.Tables.Synced() {
		refuse(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, errNotSynced)
		return
	}
	scope, err := h.scopes.of(r)
	var value any
	if err == nil {
		value, err = h.answer(h.Config, scope, r.URL.Query())
	}
	var unknown *topology.UnknownError
	var field *planner.FieldError
	var bad *badQuery
	var hidden *hiddenError
	switch {
	case errors.As(err, &hidden):
		refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden, err)
	case errors.As(err, &unknown):
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound, err)
	case errors.As(err, &bad), errors.As(err, &field):
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err)
	case err != nil:
		refuse(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, err)
	default:
		answer(w, value)
	}
}

// badQuery is a question that cannot be read.
type badQuery struct{ error }

// hiddenError says that who asks may not see a Service that the question names, whether it exists or not.
type hiddenError struct{ service resource.Key }

func (e *hiddenError) Error() string {
	return fmt.Sprintf("you may not list Services of namespace %q, so nothing is said of %s; a role that lists them there is needed (in a cluster, the ClusterRole view does)",
		e.service.Namespace, e.service)
}

// within a scope; nil: everywhere.
func within(s summary.Scope) func(namespace string) bool {
	if s.All {
		return nil
	}
	return s.Allows
}

func explainService(c Config, scope summary.Scope, q url.Values) (any, error) {
	key := resource.Key{Namespace: q.Get("namespace"), Name: q.Get("name")}
	if !scope.Allows(key.Namespace) {
		return nil, &hiddenError{key}
	}
	from := choose.Node{Name: q.Get("node"), Zone: locality.Zone(q.Get("zone")), Suspects: map[string]bool{}}
	for _, m := range c.Suspicion.Suspects() {
		from.Suspects[m.Node] = true
	}
	snapshot := c.Tables.Snapshot()
	service, ok := snapshot.Services.Get(key)
	if !ok {
		return nil, &topology.UnknownError{What: "service", Name: key.String()}
	}
	if from.Name != "" {
		node, ok := snapshot.Nodes.Get(resource.Key{Name: from.Name})
		if !ok {
			return nil, &topology.UnknownError{What: "node", Name: from.Name}
		}
		from.Zone = locality.ZoneOf(node.Labels)
	}
	from.Machine, from.Frontends = machineOf(snapshot, from), frontendsOf(snapshot)
	svc, ok := kube.ServiceOf(service)
	if !ok {
		return nil, &badQuery{fmt.Errorf(
			"service %s has no virtual IP that an agent serves: it is headless, an external name, or another proxy's", key)}
	}
	routings := view.Routings{Site: locality.Site(c.Site)}
	routings.Apply(&catalog.Delta{After: snapshot})
	svc.Routing = routings.Of(key, service)
	plan := trafficplan.Of(snapshot, key)
	slices, own, planned := slicesFrom(snapshot, key, svc, from.Zone)
	remote, err := sites.Look(snapshot, c.Site, svc.Name)
	if err != nil {
		return nil, err
	}
	if remote != nil {
		remote = remote.WithSplits(func(port string) *sites.Split { return plan.Split(from.Zone, port) })
	}
	now := time.Now()
	warmed, _ := choose.Warm(svc, slices, now)
	e := diag.ExplainService(svc, warmed, from, remote, func(of choose.Origin) []choose.Backend { return backendsOf(snapshot, of, from.Zone) })
	e.Weigh(svc, slices, own, now)
	e.Drains(func(name string) string {
		node, _ := snapshot.Nodes.Get(resource.Key{Name: name})
		if d := kind.DrainOf(node); d.Taint != nil {
			return d.String()
		}
		return ""
	})
	shifts := backend.ShiftsOf(snapshot)
	e.Shifts(func(zone, node string) string {
		if z := shifts.Of(zone, node); z != nil {
			return fmt.Sprintf("%s is taken out until %s (%s)", kind.ShiftTarget(&z.Spec), z.Spec.Until.UTC().Format(time.RFC3339), z.Spec.Reason)
		}
		return ""
	})
	registered := registrationsOf(snapshot, key)
	e.Registrations(func(address string) *diag.Registration { return registered[address] })
	if imported, ok := sites.ImportOf(service); ok {
		e.ImportOf = imported.Name + "." + imported.Namespace + "." + mcs.ServiceDomain
	}
	if of, ok := sites.ExternalOf(service); ok {
		if external, there := snapshot.ExternalServices.Get(resource.Key{Namespace: of.Namespace, Name: of.Name}); there {
			e.External(external, remote)
		}
	}
	explainMesh(&e, snapshot, service)
	explainGuards(&e, snapshot, key, c.ByAddress)
	explainLimits(&e, snapshot, service)
	if report, ok := c.Planner.Explain(key); ok {
		e.Plan(report, planned)
	}
	if c.History != nil && len(service.Spec.Selector) > 0 && !hasEndpoints(slices) {
		e.History = "proxima history endpointslices -n " + key.Namespace
	}
	return e, nil
}

func hasEndpoints(all []*proxy.Slice) bool {
	return slices.ContainsFunc(all, func(s *proxy.Slice) bool { return len(s.Endpoints) > 0 })
}

// registrationsOf the endpoints of a Service that clients of registries registered, by ADDRESS:PORT.
func registrationsOf(s *catalog.Snapshot, service resource.Key) map[string]*diag.Registration {
	out := map[string]*diag.Registration{}
	for _, slice := range s.SlicesOf(service) {
		for i := range slice.Endpoints {
			ref := slice.Endpoints[i].TargetRef
			if ref == nil || ref.Kind != "Dataplane" {
				continue
			}
			key := resource.Key{Namespace: service.Namespace, Name: ref.Name}
			d, ok := s.Dataplanes.Get(key)
			if !ok || !registry.Registered(d) {
				continue
			}
			r := &diag.Registration{
				Dataplane: key.String(), Protocol: d.Labels[registry.LabelProtocol], Owner: d.Annotations[registry.AnnotationOwner],
				By: d.Annotations[registry.AnnotationRegisteredBy], Since: d.CreationTimestamp.Time,
			}
			if in, err := registry.Parse(d); err == nil {
				r.CopiedFrom = in.MirroredFrom()
			}
			for _, p := range slice.Ports {
				for _, address := range slice.Endpoints[i].Addresses {
					if at, err := netip.ParseAddr(address); err == nil && p.Port != nil {
						out[netip.AddrPortFrom(at, uint16(*p.Port)).String()] = r
					}
				}
			}
		}
	}
	return out
}

// slicesFrom a zone's view of a Service; own are weights of endpoints of their own. planned: a plan counts.
func slicesFrom(snapshot *catalog.Snapshot, key resource.Key, svc *proxy.Service, zone locality.Zone) (slices []*proxy.Slice, own map[netip.AddrPort]uint32, planned bool) {
	plan := trafficplan.Of(snapshot, key)
	own = map[netip.AddrPort]uint32{}
	for _, object := range snapshot.SlicesOf(key) {
		weights := plan.Own(object)
		for i, w := range weights {
			for _, text := range object.Endpoints[i].Addresses {
				addr, err := netip.ParseAddr(text)
				for _, p := range object.Ports {
					if err == nil && p.Port != nil {
						own[netip.AddrPortFrom(addr.Unmap(), uint16(*p.Port))] = w
					}
				}
			}
		}
		slice, ok := kube.SliceOf(object)
		if shares := plan.Weights(zone, object); shares != nil {
			slice, ok = kube.PlannedSliceOf(zone, object, shares)
			planned, weights = true, nil // they are part of the shares
		}
		if ok {
			kube.SetWeights(slice, object, weights, readySince(snapshot, object, svc))
			kube.SetMachines(slice, object, view.MachinesOf(snapshot))
			slices = append(slices, slice)
		}
	}
	return slices, own, planned
}

// backendsOf the route of a port, in its order.
func backendsOf(snapshot *catalog.Snapshot, of choose.Origin, zone locality.Zone) []choose.Backend {
	var out []choose.Backend
	for _, b := range of.Routing.Backends {
		backend := choose.Backend{Weight: b.Weight}
		backend.Service = &proxy.Service{Name: b.Service}
		key := resource.Key{Namespace: b.Service.Namespace, Name: b.Service.Name}
		if object, ok := snapshot.Services.Get(key); ok {
			if svc, ok := kube.ServiceOf(object); ok {
				for _, p := range svc.Ports {
					if p.Port == b.Port && p.Protocol == of.Port.Protocol {
						all, _, _ := slicesFrom(snapshot, key, svc, zone)
						backend.Origin = choose.Origin{Service: svc, Port: p, Slices: all}
					}
				}
			}
		}
		out = append(out, backend)
	}
	return out
}

// explainMesh adds who may not use a Service, where there is more than one mesh.
func explainMesh(e *diag.Service, s *catalog.Snapshot, service *corev1.Service) {
	if s.Meshes.Len() < 2 {
		return
	}
	mesh := func(namespace string) (*corev1.Namespace, string) {
		n, ok := s.Namespaces.Get(resource.Key{Name: namespace})
		if !ok {
			return nil, meshv1alpha1.DefaultMesh
		}
		return n, kind.MeshOf(n)
	}
	_, own := mesh(service.Namespace)
	scope := kube.ScopeOf(service, own)
	e.Mesh, e.Exported = scope.Mesh, scope.Exported
	if e.Node == "" {
		return
	}
	for key, dp := range s.DataplanesOn(e.Node) {
		n, _ := mesh(key.Namespace)
		if of := kind.DataplaneMesh(dp, n); !scope.Allows(of) {
			e.Refused = append(e.Refused, fmt.Sprintf("%s (mesh %s)", key, of))
		}
	}
	for key, pod := range s.PodsOn(e.Node) {
		n, _ := mesh(key.Namespace)
		if of := kind.PodMesh(pod, n); !pod.Spec.HostNetwork && !scope.Allows(of) {
			e.Refused = append(e.Refused, fmt.Sprintf("%s (mesh %s)", key, of))
		}
	}
	slices.Sort(e.Refused)
}

// readySince is when endpoints became ready, if the Service warms them up.
func readySince(s *catalog.Snapshot, object *discoveryv1.EndpointSlice, svc *proxy.Service) []int64 {
	if svc.WarmUp == 0 {
		return nil
	}
	return trafficplan.ReadySince(s, object)
}

// machineOf a node, or of a zone whose nodes are all on one machine.
func machineOf(s *catalog.Snapshot, from choose.Node) string {
	machine := ""
	for _, n := range s.Nodes.All() {
		if from.Name != "" && n.Name != from.Name || from.Zone != "" && locality.ZoneOf(n.Labels) != from.Zone {
			continue
		}
		if id := n.Status.NodeInfo.MachineID; id == "" || machine != "" && machine != id {
			return choose.UnknownMachine
		}
		machine = n.Status.NodeInfo.MachineID
	}
	return cmp.Or(machine, choose.UnknownMachine)
}

// frontendsOf all Services that agents serve.
func frontendsOf(s *catalog.Snapshot) *choose.Frontends {
	out := choose.NewFrontends()
	for _, object := range s.Services.All() {
		if svc, ok := kube.ServiceOf(object); ok {
			out.Set(nil, svc)
		}
	}
	return out
}

func simulate(c Config, scope summary.Scope, q url.Values) (any, error) {
	change := topology.Change{FailZones: locality.Zones(q["failZone"]...), Within: within(scope)}
	for _, zone := range q["shiftZone"] {
		change.Shifts = append(change.Shifts, topology.Shift{Zone: locality.Zone(zone)})
	}
	for _, node := range q["shiftNode"] {
		change.Shifts = append(change.Shifts, topology.Shift{Node: node})
	}
	for _, text := range q["endpoints"] {
		endpoints, err := topology.ParseEndpoints(text, corev1.NamespaceDefault)
		if err != nil {
			return nil, &badQuery{fmt.Errorf("endpoints %w", err)}
		}
		change.Endpoints = append(change.Endpoints, endpoints)
	}
	for _, text := range q["demand"] {
		demand, err := topology.ParseDemand(text, corev1.NamespaceDefault)
		if err != nil {
			return nil, &badQuery{fmt.Errorf("demand %w", err)}
		}
		change.Demand = append(change.Demand, demand)
	}
	switch text := q.Get("summary"); text {
	case "", "false":
	case "true":
		change.Summary = true
	default:
		return nil, &badQuery{fmt.Errorf("summary %q: true or false", text)}
	}
	if err := askMoney(&change, q); err != nil {
		return nil, &badQuery{err}
	}
	if len(change.FailZones)+len(change.Shifts)+len(change.Endpoints)+len(change.Demand)+change.Top == 0 {
		return nil, &badQuery{errors.New("nothing to simulate: set failZone, shiftZone, shiftNode, endpoints, demand or top")}
	}
	for _, key := range change.Named() {
		if !scope.Allows(key.Namespace) {
			return nil, &hiddenError{key}
		}
	}
	answer, err := c.Planner.Simulate(change)
	if topology.IsNoPrice(err) {
		return nil, &badQuery{err}
	}
	return answer, err
}

// askMoney reads what a question says about money.
func askMoney(change *topology.Change, q url.Values) (err error) {
	if text := q.Get("top"); text != "" {
		if change.Top, err = strconv.Atoi(text); err != nil || change.Top < 1 || change.Top > maxTop {
			return fmt.Errorf("top %q: 1 to %d", text, maxTop)
		}
	}
	if text := q.Get("price"); text != "" {
		if change.Price, err = topology.ParsePrice(text); err != nil {
			return fmt.Errorf("price %w", err)
		}
	}
	for _, text := range q["bytes"] {
		b, err := topology.ParseBytes(text, corev1.NamespaceDefault)
		if err != nil {
			return fmt.Errorf("bytes %w", err)
		}
		change.Bytes = append(change.Bytes, b)
	}
	return nil
}

// maxTop Services of an answer.
const maxTop = 10_000
