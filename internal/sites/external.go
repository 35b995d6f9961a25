package sites

import (
	"crypto/tls"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/identity/mesh"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// External is where a service outside every mesh is. Immutable.
type External struct {
	Places []Place
	// TLS that is begun on behalf of workloads; nil: bytes pass as they are.
	TLS *ExternalTLS
}

// Place is one of those where an external service is.
type Place struct {
	// Host is an IP address or a DNS name.
	Host string
	// Port instead of the target of the service's port; 0: that one.
	Port uint16
	// Weight among the places; 0 is taken for 1.
	Weight uint32
	// Near places are tried before the others.
	Near bool
}

// ExternalTLS is how TLS to an external service is begun.
type ExternalTLS struct {
	// ServerName that is asked for; empty: the host of the place.
	ServerName string
	// SkipAuthority and SkipName are what is not verified of the server's certificate.
	SkipAuthority, SkipName bool
	// Names, one of which the certificate must have instead of the server name.
	Names []NameMatch
	// MinVersion and MaxVersion as in crypto/tls; 0: its defaults.
	MinVersion, MaxVersion uint16
	Renegotiation          bool
	// Roots in PEM; empty: those of the system.
	Roots []byte
	// Secrets: certificates or keys are in Secrets, which views do not have. They have to be
	// those for this Generation of the ExternalService.
	Secrets    bool
	Generation uint64
}

// NameMatch is a name that a certificate may have, or its beginning.
type NameMatch struct {
	Value  string
	Prefix bool
}

// ExternalOf is the ExternalService that a Service has the virtual address of; false: it
// has none of an ExternalService.
func ExternalOf(s *corev1.Service) (proxy.ServiceName, bool) {
	external := s.Labels[meshv1alpha1.LabelExternalService]
	return name{Namespace: s.Namespace, Name: external}, external != ""
}

// ReachedFrom reports whether a site connects to an ExternalService by itself.
func ReachedFrom(e *meshv1alpha1.ExternalService, site string) bool {
	return len(e.Spec.Zones) == 0 || slices.Contains(e.Spec.Zones, site)
}

// setExternal stores an ExternalService; nil: it is gone.
func (t *Table) setExternal(key name, object *meshv1alpha1.ExternalService, changed map[name]struct{}) {
	t.claim(key, t.externals[key], object, changed)
	if object == nil {
		delete(t.externals, key)
	} else {
		t.externals[key] = object
	}
	changed[key] = struct{}{}
}

// external is the ExternalService of a Service, and its mesh; nil: it is of none.
func (t *Table) external(of name) (e *meshv1alpha1.ExternalService, meshName string) {
	service := t.services[of]
	if service == nil {
		return nil, ""
	}
	key, ok := ExternalOf(service)
	e, meshName = t.externals[key], service.Labels[meshv1alpha1.LabelMesh]
	if !ok || key != of || e == nil || meshName == "" {
		return nil, ""
	}
	return e, meshName
}

// externalSNI is the server name of connections to a port of an ExternalService. No
// Service's name has a colon.
func externalSNI(meshName string, of name, port uint16) (string, error) {
	return mesh.SNI(mesh.Service{
		Mesh: meshName, Namespace: of.Namespace, Name: "external:" + of.Name, Port: strconv.Itoa(int(port)),
	})
}

// remoteExternal is the way to an ExternalService: from here, or by the ingresses of the
// zones that it is reached from.
func (t *Table) remoteExternal(of name, e *meshv1alpha1.ExternalService, meshName string) (*Remote, error) {
	r := &Remote{Service: of, Mesh: meshName, Hosts: t.hosts(of, e, meshName)}
	var numbers []uint16
	for _, p := range e.Spec.Ports {
		if p.Protocol == meshv1alpha1.ProtocolUDP {
			continue
		}
		sni, err := externalSNI(meshName, of, uint16(p.Port))
		if err != nil {
			return nil, err
		}
		r.Ports = append(r.Ports, RemotePort{Name: p.Name, Number: uint16(p.Port), SNI: sni, Target: targetOf(p)})
		numbers = append(numbers, uint16(p.Port))
	}
	if len(r.Ports) == 0 {
		return nil, nil
	}
	slices.Sort(numbers)
	if ReachedFrom(e, t.site) {
		r.External = t.placesOf(e)
	} else {
		for _, zone := range slices.Sorted(slices.Values(e.Spec.Zones)) {
			if ingresses := t.ingressesOf(zone); len(ingresses) > 0 {
				r.Sites = append(r.Sites, Site{Name: zone, Instances: 1, Ports: numbers, Ingresses: ingresses})
			}
		}
	}
	t.route(r)
	r.Spread = false
	if r.External == nil && len(r.Sites) == 0 {
		return nil, nil
	}
	return r, nil
}

// offerExternal is what this site's ingress does for sites that an ExternalService is not
// reached from.
func (t *Table) offerExternal(of name, e *meshv1alpha1.ExternalService, meshName string) (*Offer, error) {
	if len(e.Spec.Zones) == 0 || !slices.Contains(e.Spec.Zones, t.site) {
		return nil, nil
	}
	o := &Offer{Service: of, Mesh: meshName, External: t.placesOf(e)}
	for _, p := range e.Spec.Ports {
		if p.Protocol == meshv1alpha1.ProtocolUDP {
			continue
		}
		sni, err := externalSNI(meshName, of, uint16(p.Port))
		if err != nil {
			return nil, err
		}
		o.Ports = append(o.Ports, OfferedPort{Name: p.Name, SNI: sni, Target: targetOf(p)})
	}
	if len(o.Ports) == 0 {
		return nil, nil
	}
	return o, nil
}

func targetOf(p meshv1alpha1.ExternalServicePort) uint16 {
	if p.TargetPort != nil {
		return uint16(*p.TargetPort)
	}
	return uint16(p.Port)
}

func (t *Table) placesOf(e *meshv1alpha1.ExternalService) *External {
	x := &External{}
	for _, a := range e.Spec.Addresses {
		p := Place{Host: a.Address, Near: a.Zone == t.site}
		if a.Port != nil {
			p.Port = uint16(*a.Port)
		}
		if a.Weight != nil {
			p.Weight = uint32(*a.Weight)
		}
		x.Places = append(x.Places, p)
	}
	if len(e.Spec.Addresses) == 0 {
		for _, host := range e.Spec.Hosts {
			x.Places = append(x.Places, Place{Host: host})
		}
	}
	if e.Spec.TLS != nil {
		x.TLS = tlsOf(e)
	}
	return x
}

var tlsVersions = map[string]uint16{meshv1alpha1.TLS12: tls.VersionTLS12, meshv1alpha1.TLS13: tls.VersionTLS13}

func tlsOf(e *meshv1alpha1.ExternalService) *ExternalTLS {
	spec := e.Spec.TLS
	x := &ExternalTLS{
		ServerName: spec.ServerName, MinVersion: tlsVersions[spec.MinVersion], MaxVersion: tlsVersions[spec.MaxVersion],
		Renegotiation: spec.AllowRenegotiation, Secrets: NeedsSecrets(spec),
	}
	if x.Secrets {
		x.Generation = uint64(e.Generation)
	}
	if x.ServerName == "" && len(e.Spec.Hosts) > 0 {
		x.ServerName = e.Spec.Hosts[0]
	}
	x.SkipAuthority = spec.Verification == meshv1alpha1.VerifySkipCA || spec.Verification == meshv1alpha1.VerifySkipAll
	x.SkipName = spec.Verification == meshv1alpha1.VerifySkipSAN || spec.Verification == meshv1alpha1.VerifySkipAll
	for _, n := range spec.SubjectAltNames {
		x.Names = append(x.Names, NameMatch{Value: n.Value, Prefix: n.Type == meshv1alpha1.MatchPrefix})
	}
	if spec.CACertificates != nil {
		x.Roots = spec.CACertificates.Inline
	}
	return x
}

// NeedsSecrets reports whether certificates or keys of a service's TLS are in Secrets. Views,
// which many nodes share, do not have those: see package identity/credential.
func NeedsSecrets(spec *meshv1alpha1.ExternalServiceTLS) bool {
	return spec.ClientCertificate != nil || spec.ClientKey != nil ||
		spec.CACertificates != nil && len(spec.CACertificates.Inline) == 0
}
