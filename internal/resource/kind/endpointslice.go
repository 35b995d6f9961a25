package kind

import (
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/proxima-mesh/proxima/internal/resource"
)

// Limits of discovery/v1, as the comments on its types give them.
const (
	maxEndpoints     = 1000
	maxAddresses     = 100
	maxEndpointPorts = 100
	maxHints         = 8
)

// EndpointSlice describes discovery.k8s.io/v1 EndpointSlice. Unlike Kubernetes
// it takes loopback addresses for endpoints that stand for a Dataplane.
var EndpointSlice = &resource.Descriptor{
	GVK:        discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"),
	Resource:   "endpointslices",
	Singular:   "endpointslice",
	Namespaced: true,

	New:     func() resource.Object { return &discoveryv1.EndpointSlice{} },
	NewList: func() runtime.Object { return &discoveryv1.EndpointSliceList{} },

	Default:  on(defaultEndpointSlice),
	Prepare:  change(prepareEndpointSlice),
	Validate: compare(validateEndpointSlice),
	Warnings: compare(endpointSliceWarnings),
	Compact:  compactEndpointSlice,

	Columns: endpointSliceColumns(),
	Cells:   of(endpointSliceCells),
}

// compactEndpointSlice: there are few zones, nodes and names of ports.
func compactEndpointSlice(obj resource.Object, share func(*string)) {
	s := obj.(*discoveryv1.EndpointSlice)
	share((*string)(&s.AddressType))
	for i := range s.Ports {
		each(share, s.Ports[i].Name, (*string)(s.Ports[i].Protocol), s.Ports[i].AppProtocol)
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		each(share, e.NodeName, e.Zone)
		compactTarget(e.TargetRef, share)
		if e.Hints == nil {
			continue
		}
		for j := range e.Hints.ForZones {
			share(&e.Hints.ForZones[j].Name)
		}
		for j := range e.Hints.ForNodes {
			share(&e.Hints.ForNodes[j].Name)
		}
	}
}

// each shares the strings that are there.
func each(share func(*string), all ...*string) {
	for _, s := range all {
		if s != nil {
			share(s)
		}
	}
}

func defaultEndpointSlice(s *discoveryv1.EndpointSlice) {
	for i := range s.Ports {
		p := &s.Ports[i]
		if p.Name == nil {
			p.Name = new("")
		}
		if p.Protocol == nil {
			p.Protocol = new(corev1.ProtocolTCP)
		}
	}
}

// prepareEndpointSlice counts generations and drops the topology of the beta
// API, which v1 makes read-only.
func prepareEndpointSlice(s, old *discoveryv1.EndpointSlice) {
	for i := range s.Endpoints {
		s.Endpoints[i].DeprecatedTopology = nil
	}
	if old == nil {
		s.Generation = 1
		return
	}
	s.Generation = old.Generation
	if s.AddressType != old.AddressType ||
		!equality.Semantic.DeepEqual(s.Endpoints, old.Endpoints) ||
		!equality.Semantic.DeepEqual(s.Ports, old.Ports) ||
		!equality.Semantic.DeepEqual(s.Labels, old.Labels) {
		s.Generation++
	}
}

func validateEndpointSlice(s, old *discoveryv1.EndpointSlice) field.ErrorList {
	var errs field.ErrorList
	kept := set[string]{}
	path := field.NewPath("addressType")
	if old == nil {
		errs = checkMeta(s, nil, true, validation.NameIsDNSSubdomain)
	} else {
		errs = checkMeta(s, old, true, validation.NameIsDNSSubdomain)
		errs = append(errs, validation.ValidateImmutableField(s.AddressType, old.AddressType, path)...)
		for _, e := range old.Endpoints {
			for _, a := range e.Addresses {
				kept.add(a)
			}
		}
	}
	switch s.AddressType {
	case discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN:
	case "":
		errs = append(errs, field.Required(path, ""))
	default:
		errs = append(errs, field.NotSupported(path, s.AddressType, []discoveryv1.AddressType{
			discoveryv1.AddressTypeFQDN, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6}))
	}
	if path := field.NewPath("endpoints"); len(s.Endpoints) > maxEndpoints {
		errs = append(errs, field.TooMany(path, len(s.Endpoints), maxEndpoints))
	} else {
		for i := range s.Endpoints {
			errs = append(errs, checkEndpoint(path.Index(i), &s.Endpoints[i], s.AddressType, kept)...)
		}
	}
	return append(errs, checkEndpointPorts(s.Ports)...)
}

func checkEndpoint(path *field.Path, e *discoveryv1.Endpoint, kind discoveryv1.AddressType, kept set[string]) field.ErrorList {
	var errs field.ErrorList
	addresses := path.Child("addresses")
	if len(e.Addresses) == 0 {
		errs = append(errs, field.Required(addresses, ""))
	} else if len(e.Addresses) > maxAddresses {
		errs = append(errs, field.TooMany(addresses, len(e.Addresses), maxAddresses))
	}
	lo := loopbackOf(e.TargetRef)
	for i, a := range e.Addresses {
		errs = append(errs, checkEndpointAddress(addresses.Index(i), a, kind, kept, lo)...)
	}
	if e.NodeName != nil {
		errs = append(errs, checkSubdomain(path.Child("nodeName"), *e.NodeName)...)
	}
	if e.Hostname != nil {
		errs = append(errs, checkLabel(path.Child("hostname"), *e.Hostname)...)
	}
	if e.Hints != nil {
		errs = append(errs, checkHints(path.Child("hints"), e.Hints)...)
	}
	return errs
}

// loopbackOf allows addresses of the machine itself to a Dataplane: its own
// rules have decided already where such an address makes sense.
func loopbackOf(target *corev1.ObjectReference) loopback {
	return loopback(target != nil && target.Kind == "Dataplane")
}

func checkEndpointAddress(path *field.Path, address string, kind discoveryv1.AddressType, kept set[string], lo loopback) field.ErrorList {
	var v6 bool
	switch kind {
	case discoveryv1.AddressTypeIPv4:
	case discoveryv1.AddressTypeIPv6:
		v6 = true
	case discoveryv1.AddressTypeFQDN:
		return utilvalidation.IsFullyQualifiedDomainName(path, address)
	default:
		return nil // the type itself is refused
	}
	if _, ok := kept[address]; ok {
		return checkNoSpecialIP(path, address, lo)
	}
	if errs := checkIP(path, address, nil); len(errs) > 0 {
		return errs
	}
	if isIPv6(address) != v6 {
		return field.ErrorList{field.Invalid(path, address, fmt.Sprintf("must be an %s address", kind))}
	}
	return checkNoSpecialIP(path, address, lo)
}

func checkHints(path *field.Path, h *discoveryv1.EndpointHints) field.ErrorList {
	var errs field.ErrorList
	zones, nodes := path.Child("forZones"), path.Child("forNodes")
	if len(h.ForZones) > maxHints {
		errs = append(errs, field.TooMany(zones, len(h.ForZones), maxHints))
	} else {
		seen := set[string]{}
		for i, z := range h.ForZones {
			at := zones.Index(i).Child("name")
			if !seen.add(z.Name) {
				errs = append(errs, field.Duplicate(at, z.Name))
			} else {
				errs = append(errs, invalid(at, z.Name, utilvalidation.IsValidLabelValue(z.Name))...)
			}
		}
	}
	if len(h.ForNodes) > maxHints {
		return append(errs, field.TooMany(nodes, len(h.ForNodes), maxHints))
	}
	seen := set[string]{}
	for i, n := range h.ForNodes {
		at := nodes.Index(i).Child("name")
		if !seen.add(n.Name) {
			errs = append(errs, field.Duplicate(at, n.Name))
		} else {
			errs = append(errs, checkSubdomain(at, n.Name)...)
		}
	}
	return errs
}

func checkEndpointPorts(ports []discoveryv1.EndpointPort) field.ErrorList {
	path := field.NewPath("ports")
	if len(ports) > maxEndpointPorts {
		return field.ErrorList{field.TooMany(path, len(ports), maxEndpointPorts)}
	}
	var errs field.ErrorList
	names := set[string]{}
	for i, p := range ports {
		at := path.Index(i)
		name := ""
		if p.Name != nil {
			name = *p.Name
		}
		if name != "" {
			errs = append(errs, checkLabel(at.Child("name"), name)...)
		}
		if !names.add(name) {
			errs = append(errs, field.Duplicate(at.Child("name"), name))
		}
		if p.Protocol == nil {
			errs = append(errs, field.Required(at.Child("protocol"), ""))
		} else {
			errs = append(errs, checkProtocol(at.Child("protocol"), *p.Protocol)...)
		}
		if p.AppProtocol != nil {
			errs = append(errs, checkQualifiedName(at.Child("appProtocol"), *p.AppProtocol)...)
		}
	}
	return errs
}

func endpointSliceWarnings(s, _ *discoveryv1.EndpointSlice) []string {
	var w []string
	if s.AddressType == discoveryv1.AddressTypeFQDN {
		return []string{"addressType: FQDN endpoints are deprecated"}
	}
	for i, e := range s.Endpoints {
		w = append(w, ipWarnings(field.NewPath("endpoints").Index(i).Child("addresses"), e.Addresses)...)
	}
	return w
}

func endpointSliceColumns() []metav1.TableColumnDefinition {
	doc := discoveryv1.EndpointSlice{}.SwaggerDoc()
	return []metav1.TableColumnDefinition{
		nameColumn(),
		column("AddressType", doc["addressType"]),
		column("Ports", doc["ports"]),
		column("Endpoints", doc["endpoints"]),
		ageColumn(),
	}
}

func endpointSliceCells(s *discoveryv1.EndpointSlice) []any {
	var ports, addresses listed
	for _, p := range s.Ports {
		switch {
		case p.Port != nil:
			ports.add(strconv.Itoa(int(*p.Port)))
		case p.Name != nil:
			ports.add(*p.Name)
		default:
			ports.add("*")
		}
	}
	for _, e := range s.Endpoints {
		for _, a := range e.Addresses {
			addresses.add(a)
		}
	}
	return []any{s.Name, string(s.AddressType), ports.string(unset), addresses.string(unset), age(s)}
}
