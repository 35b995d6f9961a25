package sites

import (
	corev1 "k8s.io/api/core/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcsv1beta1 "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// addRivals adds the others that name a host of an ExternalService.
func addRivals(d *catalog.Delta, s *catalog.Snapshot, of catalog.Key, e *meshv1alpha1.ExternalService) {
	for key, other := range s.ExternalServices.All() {
		service, ok := s.Services.Get(key)
		if key == of || !ok || !ShareHost(e, other) {
			continue
		}
		d.ExternalServices = append(d.ExternalServices, catalog.Change[*meshv1alpha1.ExternalService]{Key: key, New: other})
		d.Services = append(d.Services, catalog.Change[*corev1.Service]{Key: key, New: service})
	}
}

// Look is the Remote of one Service, from a snapshot: for explanations. The cost is that of
// the exports of its name, and of all gateways and Meshes.
func Look(s *catalog.Snapshot, site string, of proxy.ServiceName) (*Remote, error) {
	key := catalog.Key{Namespace: of.Namespace, Name: of.Name}
	service, ok := s.Services.Get(key)
	if !ok {
		return nil, nil
	}
	d := catalog.Delta{Services: []catalog.Change[*corev1.Service]{{Key: key, New: service}}}
	if imported, ok := ImportOf(service); ok {
		for key, e := range s.ExportsOf(catalog.Key{Namespace: imported.Namespace, Name: imported.Name}) {
			d.ServiceExports = append(d.ServiceExports, catalog.Change[*mcsv1beta1.ServiceExport]{Key: key, New: e})
		}
	}
	if e, ok := s.ExternalServices.Get(key); ok {
		d.ExternalServices = append(d.ExternalServices, catalog.Change[*meshv1alpha1.ExternalService]{Key: key, New: e})
		addRivals(&d, s, key, e)
	}
	for key, i := range s.ZoneIngresses.All() {
		d.ZoneIngresses = append(d.ZoneIngresses, catalog.Change[*meshv1alpha1.ZoneIngress]{Key: key, New: i})
	}
	for key, e := range s.ZoneEgresses.All() {
		d.ZoneEgresses = append(d.ZoneEgresses, catalog.Change[*meshv1alpha1.ZoneEgress]{Key: key, New: e})
	}
	for key, m := range s.Meshes.All() {
		d.Meshes = append(d.Meshes, catalog.Change[*meshv1alpha1.Mesh]{Key: key, New: m})
	}
	t := NewTable(site)
	t.Apply(&d)
	return t.Remote(of)
}
