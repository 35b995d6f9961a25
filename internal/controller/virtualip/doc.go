// Package virtualip decides which names there are below the domain "mesh", and gives each
// virtual IPs of its own, as VirtualIP objects.
//
// A port of a Service has the name SVC_NS_svc_PORT.mesh in the mesh of its namespace. Where
// the Service is exported, by this zone or others, the name belongs to the Service that has
// the virtual IP of the import, so it leads to the workloads of all zones. The service of a
// tag (package servicetag) has the tag as its name, TAG.mesh, for all its ports.
//
// Enter at New; Claims is the pure function from objects to names. The leader alone runs the
// controller, so it alone allocates. It writes no Services: agents make a frontend of each
// VirtualIP and the endpoints of its Service.
package virtualip

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/catalog"
	"github.com/proxima-mesh/proxima/internal/dns/meshname"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/servicetag"
)

// Claim is a name that a service should have.
type Claim struct {
	Mesh, Hostname string
	// Service whose endpoints answer, and its port; 0: all ports.
	Service resource.Key
	Port    int32
	// V4 and V6: the Service has a virtual IP of that family.
	V4, V6 bool
}

// before reports whether a claim goes before another one of the same name: that of the port of
// a Service before that of a tag.
func (c *Claim) before(o *Claim) bool {
	if (c.Port == 0) != (o.Port == 0) {
		return o.Port == 0
	}
	return c.Service.String() < o.Service.String()
}

// Claims of a service name: those of its ports, where it is a Service of this site or an
// import. service, derived (the Service with the virtual IP of the import) and namespace may
// be nil: there is none. Sorted by hostname.
func Claims(key resource.Key, service, derived *corev1.Service, namespace *corev1.Namespace) []Claim {
	if namespace == nil {
		return nil
	}
	mesh := kind.MeshOf(namespace)
	var out []Claim
	add := func(s *corev1.Service) {
		v4, v6 := families(s)
		if !v4 && !v6 {
			return // headless, an external name, or not allocated yet
		}
		if host, ok := servicetag.NameOf(s); ok {
			if len(out) == 0 {
				out = append(out, Claim{Mesh: mesh, Hostname: host, Service: resource.KeyOf(s), V4: v4, V6: v6})
			}
			return
		}
		for _, p := range s.Spec.Ports {
			c := Claim{
				Mesh: mesh, Hostname: meshname.OfService(key.Namespace, key.Name, uint16(p.Port)),
				Service: resource.KeyOf(s), Port: p.Port, V4: v4, V6: v6,
			}
			if !slices.ContainsFunc(out, func(o Claim) bool { return o.Hostname == c.Hostname }) {
				out = append(out, c)
			}
		}
	}
	// The derived Service has the workloads of this site, too.
	for _, s := range []*corev1.Service{derived, service} {
		if s != nil && s.DeletionTimestamp.IsZero() && s.Labels[labelProxyName] == "" {
			add(s)
		}
	}
	slices.SortFunc(out, func(a, b Claim) int { return cmp.Compare(a.Hostname, b.Hostname) })
	return out
}

// labelProxyName gives a Service to another proxy: agents do not carry it.
const labelProxyName = "service.kubernetes.io/service-proxy-name"

func families(s *corev1.Service) (v4, v6 bool) {
	for _, text := range s.Spec.ClusterIPs {
		if a, err := netip.ParseAddr(text); err == nil {
			v4, v6 = v4 || a.Is4(), v6 || a.Is6()
		}
	}
	return v4, v6
}

// serviceName is the name that a Service's claims are of: that of the import for a derived
// Service, else its own.
func serviceName(s *corev1.Service) resource.Key {
	if name := s.Labels[mcs.LabelServiceName]; name != "" {
		return resource.Key{Namespace: s.Namespace, Name: name}
	}
	return resource.KeyOf(s)
}

// claimsOf a service name, from the tables.
func claimsOf(s *catalog.Snapshot, key resource.Key) []Claim {
	namespace, _ := s.Namespaces.Get(catalog.Key{Name: key.Namespace})
	service, _ := s.Services.Get(key)
	if service != nil && serviceName(service) != key {
		service = nil // a derived Service has the names of its import alone
	}
	derived, _ := s.Services.Get(resource.Key{Namespace: key.Namespace, Name: mcs.DerivedServiceName(key.Namespace, key.Name)})
	if derived != nil && serviceName(derived) != key {
		derived = nil
	}
	return Claims(key, service, derived, namespace)
}

// nameKey is the key of a name in the controller's queue.
func nameKey(mesh, hostname string) resource.Key {
	return resource.Key{Namespace: mesh, Name: hostname}
}

func keyOf(v *meshv1alpha1.VirtualIP) resource.Key { return nameKey(v.Spec.Mesh, v.Spec.Hostname) }
