package kind

import (
	"net"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/proxima-mesh/proxima/internal/resource"
)

// Endpoints describes v1 Endpoints. Unlike Kubernetes it takes loopback
// addresses for endpoints that stand for a Dataplane.
var Endpoints = &resource.Descriptor{
	GVK:            corev1.SchemeGroupVersion.WithKind("Endpoints"),
	Resource:       "endpoints",
	Singular:       "endpoints",
	ShortNames:     []string{"ep"},
	Namespaced:     true,
	CreateOnUpdate: true,

	New:     func() resource.Object { return &corev1.Endpoints{} },
	NewList: func() runtime.Object { return &corev1.EndpointsList{} },

	Compact:  compactEndpoints,
	Default:  on(defaultEndpoints),
	Validate: compare(validateEndpoints),
	Warnings: compare(endpointsWarnings),

	Columns: []metav1.TableColumnDefinition{
		nameColumn(),
		column("Endpoints", corev1.Endpoints{}.SwaggerDoc()["subsets"]),
		ageColumn(),
	},
	Cells: of(func(e *corev1.Endpoints) []any { return []any{e.Name, endpointsCell(e), age(e)} }),
}

// compactEndpoints: there are few nodes, namespaces and names of ports.
func compactEndpoints(obj resource.Object, share func(*string)) {
	e := obj.(*corev1.Endpoints)
	for i := range e.Subsets {
		s := &e.Subsets[i]
		for _, addresses := range [...][]corev1.EndpointAddress{s.Addresses, s.NotReadyAddresses} {
			for j := range addresses {
				each(share, addresses[j].NodeName)
				compactTarget(addresses[j].TargetRef, share)
			}
		}
		for j := range s.Ports {
			p := &s.Ports[j]
			share(&p.Name)
			share((*string)(&p.Protocol))
			each(share, p.AppProtocol)
		}
	}
}

// compactTarget shares what an endpoint stands for, but for what is its own.
func compactTarget(ref *corev1.ObjectReference, share func(*string)) {
	if ref != nil {
		each(share, &ref.Kind, &ref.Namespace, &ref.APIVersion)
	}
}

func defaultEndpoints(e *corev1.Endpoints) {
	for i := range e.Subsets {
		for j := range e.Subsets[i].Ports {
			if p := &e.Subsets[i].Ports[j]; p.Protocol == "" {
				p.Protocol = corev1.ProtocolTCP
			}
		}
	}
}

func validateEndpoints(e, old *corev1.Endpoints) field.ErrorList {
	var errs field.ErrorList
	var kept []string
	if old == nil {
		errs = checkMeta(e, nil, true, validation.NameIsDNSSubdomain)
	} else {
		errs = checkMeta(e, old, true, validation.NameIsDNSSubdomain)
		for _, s := range old.Subsets {
			for _, a := range s.Addresses {
				kept = append(kept, a.IP)
			}
			for _, a := range s.NotReadyAddresses {
				kept = append(kept, a.IP)
			}
		}
	}
	for i, s := range e.Subsets {
		path := field.NewPath("subsets").Index(i)
		if len(s.Addresses)+len(s.NotReadyAddresses) == 0 {
			errs = append(errs, field.Required(path, "must specify `addresses` or `notReadyAddresses`"))
		}
		for j, a := range s.Addresses {
			errs = append(errs, checkSubsetAddress(path.Child("addresses").Index(j), &a, kept)...)
		}
		for j, a := range s.NotReadyAddresses {
			errs = append(errs, checkSubsetAddress(path.Child("notReadyAddresses").Index(j), &a, kept)...)
		}
		for j, p := range s.Ports {
			errs = append(errs, checkSubsetPort(path.Child("ports").Index(j), &p, len(s.Ports) > 1)...)
		}
	}
	return errs
}

func checkSubsetAddress(path *field.Path, a *corev1.EndpointAddress, kept []string) field.ErrorList {
	errs := checkIP(path.Child("ip"), a.IP, kept)
	if len(errs) == 0 {
		errs = checkNoSpecialIP(path.Child("ip"), a.IP, loopbackOf(a.TargetRef))
	}
	if a.Hostname != "" {
		errs = append(errs, checkLabel(path.Child("hostname"), a.Hostname)...)
	}
	if a.NodeName != nil {
		errs = append(errs, checkSubdomain(path.Child("nodeName"), *a.NodeName)...)
	}
	return errs
}

func checkSubsetPort(path *field.Path, p *corev1.EndpointPort, named bool) field.ErrorList {
	var errs field.ErrorList
	if p.Name != "" {
		errs = append(errs, checkLabel(path.Child("name"), p.Name)...)
	} else if named {
		errs = append(errs, field.Required(path.Child("name"), ""))
	}
	errs = append(errs, checkPort(path.Child("port"), p.Port)...)
	errs = append(errs, checkProtocol(path.Child("protocol"), p.Protocol)...)
	if p.AppProtocol != nil {
		errs = append(errs, checkQualifiedName(path.Child("appProtocol"), *p.AppProtocol)...)
	}
	return errs
}

func endpointsWarnings(e, _ *corev1.Endpoints) []string {
	var w []string
	for i, s := range e.Subsets {
		path := field.NewPath("subsets").Index(i)
		for j, a := range s.Addresses {
			w = append(w, ipWarning(path.Child("addresses").Index(j).Child("ip"), a.IP)...)
		}
		for j, a := range s.NotReadyAddresses {
			w = append(w, ipWarning(path.Child("notReadyAddresses").Index(j).Child("ip"), a.IP)...)
		}
	}
	return w
}

func endpointsCell(e *corev1.Endpoints) string {
	if len(e.Subsets) == 0 {
		return none
	}
	var all listed
	for _, s := range e.Subsets {
		if len(s.Ports) == 0 { // a headless Service needs no ports
			for _, a := range s.Addresses {
				all.add(a.IP)
			}
		}
		for _, p := range s.Ports {
			for _, a := range s.Addresses {
				all.add(net.JoinHostPort(a.IP, strconv.Itoa(int(p.Port))))
			}
		}
	}
	return all.string("")
}
