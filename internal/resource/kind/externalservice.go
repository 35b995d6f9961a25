package kind

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// What an ExternalService may hold at most; an EndpointSlice holds as many
// addresses, and a certificate has seldom more names.
const (
	maxExternalHosts     = 100
	maxExternalPorts     = 100
	maxExternalAddresses = 1000
	maxSubjectAltNames   = 100
)

// ExternalService describes mesh.proxima.dev/v1alpha1 ExternalService.
var ExternalService = &resource.Descriptor{
	GVK:        mesh.SchemeGroupVersion.WithKind("ExternalService"),
	Resource:   "externalservices",
	Singular:   "externalservice",
	ShortNames: []string{"es"},
	Categories: []string{"proxima"},
	Namespaced: true,
	Direction:  resource.GlobalToZone,
	Status:     true,

	New:     func() resource.Object { return &mesh.ExternalService{} },
	NewList: func() runtime.Object { return &mesh.ExternalServiceList{} },

	Default:  on(defaultExternalService),
	Prepare:  externalServiceParts.prepare,
	Validate: compare(validateExternalService),
	Warnings: compare(warnExternalService),

	PrepareStatus:  externalServiceParts.prepareStatus,
	ValidateStatus: compare(validateExternalServiceStatus),

	Fields: of(func(e *mesh.ExternalService) fields.Set { return fields.Set{"spec.mesh": e.Spec.Mesh} }),
	Columns: []metav1.TableColumnDefinition{
		nameColumn(),
		column("Hosts", "The names by which workloads call the service."),
		column("Ports", "The ports by which workloads call the service."),
		column("Virtual-IPs", "By which workloads of this zone call the service; none: see the conditions."),
		column("TLS", "How the service's certificate is verified; none: TLS is not begun for the workloads."),
		ageColumn(),
		wide("Mesh", "The mesh that the service names; empty: that of its namespace."),
		wide("Addresses", "Where the service is; none: its hosts are resolved."),
		wide("Zones", "The zones that the service is reached from; none: all."),
	},
	Cells: of(externalServiceCells),
}

var externalServiceParts = parts[*mesh.ExternalService, mesh.ExternalServiceSpec, mesh.ExternalServiceStatus](
	func(e *mesh.ExternalService) (*mesh.ExternalServiceSpec, *mesh.ExternalServiceStatus) {
		return &e.Spec, &e.Status
	})

func validateExternalServiceStatus(e, old *mesh.ExternalService) field.ErrorList {
	errs := checkMeta(e, old, true, validation.NameIsDNS1035Label)
	errs = append(errs, metav1validation.ValidateConditions(e.Status.Conditions, field.NewPath("status", "conditions"))...)
	return append(errs, checkZoneStatuses(e.Status.Zones)...)
}

// defaultExternalService leaves lists alone, as defaultMesh does.
func defaultExternalService(e *mesh.ExternalService) {
	fill(&e.Spec.Mesh, NamedMesh(e))
	if t := e.Spec.TLS; t != nil {
		fill(&t.Verification, mesh.VerifySecured)
		fill(&t.MinVersion, mesh.TLS12)
	}
}

func validateExternalService(e, old *mesh.ExternalService) field.ErrorList {
	var errs field.ErrorList
	if old == nil {
		errs = checkMeta(e, nil, true, validation.NameIsDNS1035Label)
	} else {
		errs = checkMeta(e, old, true, validation.NameIsDNS1035Label)
	}
	spec, path := &e.Spec, field.NewPath("spec")
	if spec.Mesh != "" {
		errs = append(errs, checkLabel(path.Child("mesh"), spec.Mesh)...)
	}
	if len(spec.Hosts) == 0 && len(spec.Addresses) == 0 {
		errs = append(errs, field.Required(path.Child("hosts"), "must specify `hosts`, `addresses` or both"))
	}
	errs = append(errs, checkHosts(path.Child("hosts"), spec.Hosts)...)
	errs = append(errs, checkExternalPorts(path.Child("ports"), spec.Ports)...)
	errs = append(errs, checkExternalAddresses(path.Child("addresses"), spec)...)
	zones := set[string]{}
	for i, z := range spec.Zones {
		errs = append(errs, checkLabel(path.Child("zones").Index(i), z)...)
		if !zones.add(z) {
			errs = append(errs, field.Duplicate(path.Child("zones").Index(i), z))
		}
	}
	if spec.TLS != nil {
		errs = append(errs, checkExternalTLS(path.Child("tls"), spec)...)
	}
	return errs
}

func checkHosts(path *field.Path, hosts []string) field.ErrorList {
	if len(hosts) > maxExternalHosts {
		return field.ErrorList{field.TooMany(path, len(hosts), maxExternalHosts)}
	}
	var errs field.ErrorList
	names := set[string]{}
	for i, h := range hosts {
		errs = append(errs, checkSubdomain(path.Index(i), h)...)
		if !names.add(h) {
			errs = append(errs, field.Duplicate(path.Index(i), h))
		}
	}
	return errs
}

func checkExternalPorts(path *field.Path, ports []mesh.ExternalServicePort) field.ErrorList {
	switch {
	case len(ports) == 0:
		return field.ErrorList{field.Required(path, "must contain at least 1 port")}
	case len(ports) > maxExternalPorts:
		return field.ErrorList{field.TooMany(path, len(ports), maxExternalPorts)}
	}
	var errs field.ErrorList
	names, numbers := set[string]{}, set[string]{}
	for i, p := range ports {
		at := path.Index(i)
		switch {
		case p.Name == "" && len(ports) > 1:
			errs = append(errs, field.Required(at.Child("name"), ""))
		case p.Name != "":
			errs = append(errs, checkLabel(at.Child("name"), p.Name)...)
			if !names.add(p.Name) {
				errs = append(errs, field.Duplicate(at.Child("name"), p.Name))
			}
		}
		errs = append(errs, checkPort(at.Child("port"), p.Port)...)
		if p.TargetPort != nil {
			errs = append(errs, checkPort(at.Child("targetPort"), *p.TargetPort)...)
		}
		errs = append(errs, checkChoice(at.Child("protocol"), p.Protocol, mesh.ProtocolTCP, mesh.ProtocolUDP)...)
		if number := fmt.Sprintf("%d/%s", p.Port, orElse(p.Protocol, mesh.ProtocolTCP)); !numbers.add(number) {
			errs = append(errs, field.Duplicate(at, number))
		}
		if p.AppProtocol != nil {
			errs = append(errs, checkQualifiedName(at.Child("appProtocol"), *p.AppProtocol)...)
		}
	}
	return errs
}

// checkExternalAddresses refuses addresses of the machine itself: an agent would
// connect to its own.
func checkExternalAddresses(path *field.Path, spec *mesh.ExternalServiceSpec) field.ErrorList {
	if len(spec.Addresses) > maxExternalAddresses {
		return field.ErrorList{field.TooMany(path, len(spec.Addresses), maxExternalAddresses)}
	}
	var errs field.ErrorList
	for i, a := range spec.Addresses {
		at := path.Index(i)
		errs = append(errs, checkAddressOrName(at.Child("address"), a.Address)...)
		if a.Port != nil {
			if len(spec.Ports) > 1 {
				errs = append(errs, field.Forbidden(at.Child("port"), "may only be set where the service has one port"))
			}
			errs = append(errs, checkPort(at.Child("port"), *a.Port)...)
		}
		if a.Zone != "" {
			errs = append(errs, checkLabel(at.Child("zone"), a.Zone)...)
		}
		if a.Weight != nil {
			errs = append(errs, invalid(at.Child("weight"), *a.Weight, utilvalidation.IsInRange(int(*a.Weight), 1, 65535))...)
		}
	}
	return errs
}

func checkAddressOrName(path *field.Path, address string) field.ErrorList {
	if address == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	if !looksLikeIP(address) {
		return checkSubdomain(path, address)
	}
	if errs := utilvalidation.IsValidIP(path, address); len(errs) > 0 {
		return errs
	}
	if errs := checkNoSpecialIP(path, address, loopbackRefused); len(errs) > 0 {
		return errs
	}
	return checkUnicast(path, address)
}

// looksLikeIP reports what is meant as an address, right or wrong: no top-level
// domain is a number (RFC 3696, 2).
func looksLikeIP(s string) bool {
	last := 0
	for i, c := range s {
		switch {
		case c == ':':
			return true
		case c == '.':
			last = i + 1
		}
	}
	for _, c := range s[last:] {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}

func checkExternalTLS(path *field.Path, spec *mesh.ExternalServiceSpec) field.ErrorList {
	t := spec.TLS
	errs := checkChoice(path.Child("verification"), t.Verification,
		mesh.VerifySecured, mesh.VerifySkipAll, mesh.VerifySkipCA, mesh.VerifySkipSAN)
	checksName := t.Verification == mesh.VerifySecured || t.Verification == mesh.VerifySkipCA
	switch {
	case t.ServerName != "":
		errs = append(errs, checkSubdomain(path.Child("serverName"), t.ServerName)...)
	case len(spec.Hosts) == 0 && len(t.SubjectAltNames) == 0 && checksName:
		errs = append(errs, field.Required(path.Child("serverName"), "there are no hosts to take it from"))
	}
	errs = append(errs, checkAltNames(path.Child("subjectAltNames"), t.SubjectAltNames)...)
	errs = append(errs, checkChoice(path.Child("minVersion"), t.MinVersion, mesh.TLS12, mesh.TLS13)...)
	errs = append(errs, checkChoice(path.Child("maxVersion"), t.MaxVersion, mesh.TLS12, mesh.TLS13)...)
	if t.MinVersion == mesh.TLS13 && t.MaxVersion == mesh.TLS12 {
		errs = append(errs, field.Invalid(path.Child("maxVersion"), t.MaxVersion, "must not be less than `minVersion`"))
	}
	if t.AllowRenegotiation && t.MinVersion == mesh.TLS13 {
		errs = append(errs, field.Forbidden(path.Child("allowRenegotiation"), "there is no renegotiation in TLS 1.3"))
	}
	if t.CACertificates != nil {
		errs = append(errs, checkDataSource(path.Child("caCertificates"), t.CACertificates, inNamespace, inlineAllowed)...)
	}
	switch cert, key := path.Child("clientCertificate"), path.Child("clientKey"); {
	case t.ClientCertificate != nil && t.ClientKey == nil:
		errs = append(errs, field.Required(key, "must be set together with `clientCertificate`"))
	case t.ClientCertificate == nil && t.ClientKey != nil:
		errs = append(errs, field.Required(cert, "must be set together with `clientKey`"))
	case t.ClientCertificate != nil:
		errs = append(errs, checkDataSource(cert, t.ClientCertificate, inNamespace, inlineAllowed)...)
		errs = append(errs, checkDataSource(key, t.ClientKey, inNamespace, inlineRefused)...)
	}
	return errs
}

func checkAltNames(path *field.Path, names []mesh.SubjectAltNameMatch) field.ErrorList {
	if len(names) > maxSubjectAltNames {
		return field.ErrorList{field.TooMany(path, len(names), maxSubjectAltNames)}
	}
	var errs field.ErrorList
	for i, n := range names {
		errs = append(errs, checkChoice(path.Index(i).Child("type"), n.Type, mesh.MatchExact, mesh.MatchPrefix)...)
		if n.Value == "" {
			errs = append(errs, field.Required(path.Index(i).Child("value"), ""))
		}
	}
	return errs
}

func warnExternalService(e, _ *mesh.ExternalService) []string {
	t := e.Spec.TLS
	if t != nil && (t.Verification == mesh.VerifySkipAll || t.Verification == mesh.VerifySkipCA) {
		return []string{"spec.tls.verification: " + t.Verification + ": anybody on the way can answer in the name of the service"}
	}
	return nil
}

func externalServiceCells(e *mesh.ExternalService) []any {
	var hosts, ports, ips, addresses, zones listed
	for _, ip := range e.Status.VirtualIPs {
		ips.add(ip)
	}
	for _, h := range e.Spec.Hosts {
		hosts.add(h)
	}
	for _, p := range e.Spec.Ports {
		ports.add(fmt.Sprintf("%d/%s", p.Port, orElse(p.Protocol, mesh.ProtocolTCP)))
	}
	for _, a := range e.Spec.Addresses {
		addresses.add(a.Address)
	}
	for _, z := range e.Spec.Zones {
		zones.add(z)
	}
	tls := none
	if t := e.Spec.TLS; t != nil {
		tls = orElse(t.Verification, mesh.VerifySecured)
	}
	return []any{
		e.Name, hosts.string(none), ports.string(none), ips.string(none), tls, age(e),
		orElse(e.Spec.Mesh, none), addresses.string(none), zones.string(none),
	}
}
