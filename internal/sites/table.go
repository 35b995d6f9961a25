package sites

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcsv1beta1 "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// name of a namespaced object.
type name = proxy.ServiceName

// Table keeps the objects that remotes and offers follow from. Objects are shared, never
// changed. Not safe for concurrent use.
type Table struct {
	site     string
	services map[name]*corev1.Service
	// derived are the Services with the virtual address of an import, by its name.
	derived map[name]map[name]struct{}
	// imported is the import of a derived Service, exported the name that an export is of.
	imported map[name]name
	exported map[name]name
	// exports of all sites, by the name that they are of, and then by their own.
	exports   map[name]map[name]*mcsv1beta1.ServiceExport
	ingresses map[string]*meshv1alpha1.ZoneIngress
	egresses  map[string]*meshv1alpha1.ZoneEgress
	meshes    map[string]*meshv1alpha1.Mesh
	externals map[name]*meshv1alpha1.ExternalService
	// claims are the ExternalServices that name a host.
	claims map[string]map[name]struct{}
}

// NewTable makes an empty table for a site.
func NewTable(site string) *Table {
	return &Table{
		site: site, services: map[name]*corev1.Service{}, derived: map[name]map[name]struct{}{}, imported: map[name]name{},
		exported: map[name]name{}, exports: map[name]map[name]*mcsv1beta1.ServiceExport{},
		ingresses: map[string]*meshv1alpha1.ZoneIngress{}, egresses: map[string]*meshv1alpha1.ZoneEgress{},
		meshes: map[string]*meshv1alpha1.Mesh{}, externals: map[name]*meshv1alpha1.ExternalService{},
		claims: map[string]map[name]struct{}{},
	}
}

// Apply stores what a delta of the catalog has of Services, ServiceExports,
// ExternalServices, gateways and Meshes, and returns the Services whose Remote or Offer may be another.
func (t *Table) Apply(d *catalog.Delta) []proxy.ServiceName {
	changed := map[name]struct{}{}
	for _, c := range d.Services {
		t.setService(name{Namespace: c.Key.Namespace, Name: c.Key.Name}, c.New, changed)
	}
	for _, c := range d.ServiceExports {
		t.setExport(name{Namespace: c.Key.Namespace, Name: c.Key.Name}, c.New, changed)
	}
	for _, c := range d.ExternalServices {
		t.setExternal(name{Namespace: c.Key.Namespace, Name: c.Key.Name}, c.New, changed)
	}
	for _, c := range d.ZoneIngresses {
		set(t.ingresses, c.Key.Name, c.New)
	}
	for _, c := range d.ZoneEgresses {
		set(t.egresses, c.Key.Name, c.New)
	}
	for _, c := range d.Meshes {
		set(t.meshes, c.Key.Name, c.New)
	}
	if len(d.ZoneIngresses)+len(d.ZoneEgresses)+len(d.Meshes) > 0 { // few, and of concern to all
		for of := range t.imported {
			changed[of] = struct{}{}
		}
		for of := range t.externals {
			changed[of] = struct{}{}
		}
	}
	return slices.SortedFunc(maps.Keys(changed), func(a, b name) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

// setService stores a Service; nil: it is gone.
func (t *Table) setService(of name, object *corev1.Service, changed map[name]struct{}) {
	if was, ok := t.imported[of]; ok {
		delete(t.imported, of)
		if delete(t.derived[was], of); len(t.derived[was]) == 0 {
			delete(t.derived, was)
		}
		changed[of] = struct{}{}
	}
	if _, ok := t.exports[of]; ok {
		changed[of] = struct{}{}
	}
	if e, ok := t.externals[of]; ok {
		changed[of] = struct{}{}
		t.claimants(e, changed) // whether it has an address, and in which mesh, is of concern to them
	}
	if object == nil {
		delete(t.services, of)
		return
	}
	t.services[of] = object
	if of, ok := ImportOf(object); ok {
		key := name{Namespace: object.Namespace, Name: object.Name}
		t.imported[key] = of
		if t.derived[of] == nil {
			t.derived[of] = map[name]struct{}{}
		}
		t.derived[of][key] = struct{}{}
		changed[key] = struct{}{}
	}
}

// ImportOf is the name of the import that a Service has the virtual address of; false:
// it is no derived Service.
func ImportOf(s *corev1.Service) (proxy.ServiceName, bool) {
	imported := s.Labels[mcsv1beta1.LabelServiceName]
	return name{Namespace: s.Namespace, Name: imported}, imported != ""
}

// setExport stores a ServiceExport, one of this site or the copy of another's; nil: it is
// gone.
func (t *Table) setExport(key name, object *mcsv1beta1.ServiceExport, changed map[name]struct{}) {
	if of, ok := t.exported[key]; ok {
		delete(t.exported, key)
		if delete(t.exports[of], key); len(t.exports[of]) == 0 {
			delete(t.exports, of)
		}
		t.concerns(of, changed)
	}
	if object == nil {
		return
	}
	exported := catalog.ExportedService(object)
	of := name{Namespace: exported.Namespace, Name: exported.Name}
	t.exported[key] = of
	if t.exports[of] == nil {
		t.exports[of] = map[name]*mcsv1beta1.ServiceExport{}
	}
	t.exports[of][key] = object
	t.concerns(of, changed)
}

// concerns notes the Services of an export's name.
func (t *Table) concerns(of name, changed map[name]struct{}) {
	changed[of] = struct{}{}
	for derived := range t.derived[of] {
		changed[derived] = struct{}{}
	}
}

func set[T any](all map[string]*T, key string, object *T) {
	if object == nil {
		delete(all, key)
		return
	}
	all[key] = object
}

// siteOf an object: that of the labels of copies, else this one.
func (t *Table) siteOf(o metav1.Object) string {
	return cmp.Or(o.GetLabels()[meshv1alpha1.LabelZone], t.site)
}

// Offer of a Service of this site; nil: it offers none.
func (t *Table) Offer(of proxy.ServiceName) (*Offer, error) {
	if e, meshName := t.external(of); e != nil {
		return t.offerExternal(of, e, meshName)
	}
	own := t.exports[of][of]
	service := t.services[of]
	if own == nil || service == nil || t.siteOf(own) != t.site {
		return nil, nil
	}
	a := own.Status.Available
	if a == nil || a.Type != mcsv1beta1.ClusterSetIP {
		return nil, nil
	}
	o := &Offer{Service: of, Mesh: a.Mesh, ToSites: slices.Sorted(slices.Values(a.ToZones))}
	header := service.Annotations[meshv1alpha1.AnnotationProxyProtocol] != ""
	if a.Proxied && !header {
		o.Proxied, o.ServiceAccounts = true, a.ServiceAccounts
	}
	for _, p := range service.Spec.Ports {
		if !isTCP(p.Protocol) || !offersPort(a, p.Port) {
			continue
		}
		sni, err := sniOf(a.Mesh, of.Namespace, of.Name, uint16(p.Port))
		if err != nil {
			return nil, err
		}
		o.Ports = append(o.Ports, OfferedPort{Name: p.Name, SNI: sni, ProxyProtocol: header})
	}
	if len(o.Ports) == 0 {
		return nil, nil
	}
	return o, nil
}

// Remote of a derived Service, or that of an ExternalService; nil: no other site offers it.
func (t *Table) Remote(of proxy.ServiceName) (*Remote, error) {
	if e, meshName := t.external(of); e != nil {
		return t.remoteExternal(of, e, meshName)
	}
	imported, ok := t.imported[of]
	service := t.services[of]
	if !ok || service == nil {
		return nil, nil
	}
	meshName, ok := t.meshOf(imported)
	if !ok {
		return nil, nil
	}
	r := &Remote{Service: of, Mesh: meshName, Sites: t.sitesOf(imported, meshName)}
	for _, p := range service.Spec.Ports {
		number := uint16(p.Port)
		if !isTCP(p.Protocol) || len(r.Offering(number)) == 0 {
			continue
		}
		sni, err := sniOf(meshName, imported.Namespace, imported.Name, number)
		if err != nil {
			return nil, err
		}
		r.Ports = append(r.Ports, RemotePort{Name: p.Name, Number: number, SNI: sni})
	}
	if len(r.Ports) == 0 {
		return nil, nil
	}
	t.route(r)
	return r, nil
}

// route adds how the mesh wants traffic to other sites to be routed.
func (t *Table) route(r *Remote) {
	m := t.meshes[r.Mesh]
	if m == nil || m.Spec.Routing == nil {
		return
	}
	routing := m.Spec.Routing
	r.Spread = routing.LocalityAware != nil && !*routing.LocalityAware
	if routing.ZoneEgress == nil || !*routing.ZoneEgress {
		return
	}
	r.EgressOnly = true
	for _, key := range slices.Sorted(maps.Keys(t.egresses)) {
		if e := t.egresses[key]; t.siteOf(e) == t.site {
			r.Egresses = addGateway(r.Egresses, nameOf(e), &meshv1alpha1.ZoneGatewaySpec{Address: e.Spec.Address, Port: e.Spec.Port})
		}
	}
}

// meshOf an import: that of the oldest export, which decides where sites disagree.
func (t *Table) meshOf(imported name) (string, bool) {
	var oldest *mcsv1beta1.ServiceExport
	older := func(a, b *mcsv1beta1.ServiceExport) bool {
		x, y := a.Status.Available, b.Status.Available
		if c := x.ExportTime.Compare(y.ExportTime.Time); c != 0 {
			return c < 0
		}
		return t.siteOf(a) < t.siteOf(b)
	}
	for _, e := range t.exports[imported] {
		if e.Status.Available != nil && (oldest == nil || older(e, oldest)) {
			oldest = e
		}
	}
	if oldest == nil {
		return "", false
	}
	return oldest.Status.Available.Mesh, true
}

// sitesOf are the other sites that offer an import to this one, and can be entered.
func (t *Table) sitesOf(imported name, meshName string) []Site {
	var out []Site
	for _, e := range t.exports[imported] {
		a, site := e.Status.Available, t.siteOf(e)
		switch {
		case site == t.site, a == nil, a.Mesh != meshName, a.Type != mcsv1beta1.ClusterSetIP, a.Instances <= 0:
			continue
		case len(a.ToZones) > 0 && !slices.Contains(a.ToZones, t.site):
			continue
		}
		s := Site{Name: site, Instances: uint32(a.Instances), Ingresses: t.ingressesOf(site)}
		if len(a.ToZones) == 0 { // its ingresses have to see from which site a client is
			s.Proxied, s.ServiceAccounts = a.Proxied, a.ServiceAccounts
		}
		for _, p := range a.Ports {
			if isTCP(p.Protocol) {
				s.Ports = append(s.Ports, uint16(p.Port))
			}
		}
		if a.Demand != nil {
			s.Demand = make(map[uint16]float64, len(a.Demand))
			for _, d := range a.Demand {
				s.Demand[uint16(d.Port)] += d.ConnectionsPerSecond
			}
		}
		slices.Sort(s.Ports)
		if len(s.Ports) > 0 && len(s.Ingresses) > 0 {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b Site) int { return cmp.Compare(a.Name, b.Name) })
	return slices.CompactFunc(out, func(a, b Site) bool { return a.Name == b.Name })
}

func (t *Table) ingressesOf(site string) []Gateway {
	var out []Gateway
	for _, key := range slices.Sorted(maps.Keys(t.ingresses)) {
		if i := t.ingresses[key]; t.siteOf(i) == site {
			out = addGateway(out, nameOf(i), &i.Spec)
		}
	}
	return out
}

// nameOf an object, or of the original of a copy.
func nameOf(o metav1.Object) string {
	return cmp.Or(o.GetLabels()[meshv1alpha1.LabelDisplayName], o.GetName())
}

// addGateway adds a gateway by the address that it advertises. Gateways behind one
// address, as that of a load balancer, count once.
func addGateway(all []Gateway, named string, spec *meshv1alpha1.ZoneGatewaySpec) []Gateway {
	g := Gateway{
		Name: named, Host: cmp.Or(spec.AdvertisedAddress, spec.Address), Port: uint16(cmp.Or(spec.AdvertisedPort, spec.Port)),
	}
	if g.Host == "" || g.Port == 0 || slices.ContainsFunc(all, func(o Gateway) bool { return o.Address() == g.Address() }) {
		return all
	}
	return append(all, g)
}

func offersPort(a *mcsv1beta1.AvailableService, number int32) bool {
	return slices.ContainsFunc(a.Ports, func(p mcsv1beta1.ServicePort) bool { return p.Port == number && isTCP(p.Protocol) })
}

func isTCP(p corev1.Protocol) bool { return p == "" || p == corev1.ProtocolTCP }
