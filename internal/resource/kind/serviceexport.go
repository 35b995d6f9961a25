package kind

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// ServiceExport describes multicluster.x-k8s.io/v1beta1 ServiceExport.
var ServiceExport = &resource.Descriptor{
	GVK:        mcs.SchemeGroupVersion.WithKind("ServiceExport"),
	Resource:   "serviceexports",
	Singular:   "serviceexport",
	ShortNames: []string{"svcex"},
	Categories: []string{"proxima"},
	Namespaced: true,
	Direction:  resource.ZoneToZones,
	Status:     true,

	New:     func() resource.Object { return &mcs.ServiceExport{} },
	NewList: func() runtime.Object { return &mcs.ServiceExportList{} },

	Prepare:        exportParts.prepare,
	PrepareStatus:  exportParts.prepareStatus,
	Validate:       compare(validateServiceExport),
	ValidateStatus: compare(validateServiceExportStatus),

	Columns: []metav1.TableColumnDefinition{
		nameColumn(),
		column("Valid", "Whether the Service exists and can be exported."),
		column("Conflict", "Whether exports of several zones disagree."),
		column("Type", "ClusterSetIP or Headless."),
		column("Instances", "The ready instances that the zone offers."),
		ageColumn(),
		wide("Zone", "The zone that offers the service."),
		wide("Mesh", "The mesh that the service belongs to."),
		wide("To", "The zones that may use it; none: all."),
	},
	Cells: of(serviceExportCells),
}

// ServiceImport describes multicluster.x-k8s.io/v1beta1 ServiceImport.
var ServiceImport = &resource.Descriptor{
	GVK:        mcs.SchemeGroupVersion.WithKind("ServiceImport"),
	Resource:   "serviceimports",
	Singular:   "serviceimport",
	ShortNames: []string{"svcim"},
	Categories: []string{"proxima"},
	Namespaced: true,
	Status:     true,

	New:     func() resource.Object { return &mcs.ServiceImport{} },
	NewList: func() runtime.Object { return &mcs.ServiceImportList{} },

	Prepare:        importParts.prepare,
	PrepareStatus:  importParts.prepareStatus,
	Validate:       compare(validateServiceImport),
	ValidateStatus: compare(validateServiceImportStatus),

	Columns: []metav1.TableColumnDefinition{
		nameColumn(),
		column("Type", "ClusterSetIP or Headless."),
		column("IP", "The virtual IPs of the service."),
		column("Ports", "The ports of the service."),
		column("Zones", "The zones that export the service."),
		ageColumn(),
	},
	Cells: of(serviceImportCells),
}

var (
	exportParts = parts[*mcs.ServiceExport, mcs.ServiceExportSpec, mcs.ServiceExportStatus](
		func(e *mcs.ServiceExport) (*mcs.ServiceExportSpec, *mcs.ServiceExportStatus) {
			return &e.Spec, &e.Status
		})
	importParts = parts[*mcs.ServiceImport, mcs.ServiceImportSpec, mcs.ServiceImportStatus](
		func(i *mcs.ServiceImport) (*mcs.ServiceImportSpec, *mcs.ServiceImportStatus) {
			return &i.Spec, &i.Status
		})
)

// validateServiceExport: an export of a name that no Service can have is kept, and not
// Valid. Names of copies are longer than those of Services.
func validateServiceExport(e, old *mcs.ServiceExport) field.ErrorList {
	errs := checkMetaOf(e, old, true, validation.NameIsDNSSubdomain)
	path := field.NewPath("spec")
	errs = append(errs, metav1validation.ValidateLabels(e.Spec.ExportedLabels, path.Child("exportedLabels"))...)
	errs = append(errs, validation.ValidateAnnotations(e.Spec.ExportedAnnotations, path.Child("exportedAnnotations"))...)
	zones, ok := e.Annotations[mesh.AnnotationToZones]
	at := field.NewPath("metadata", "annotations").Key(mesh.AnnotationToZones)
	if ok && strings.TrimSpace(zones) == "" {
		errs = append(errs, field.Invalid(at, zones, "must name zones, separated by commas; remove the annotation to allow all zones"))
	}
	for _, z := range ExportZones(e) {
		errs = append(errs, checkLabel(at, z)...)
	}
	return errs
}

// ExportZones are the zones to which an annotation limits an export; nil: all may use it.
func ExportZones(e *mcs.ServiceExport) []string {
	zones, ok := e.Annotations[mesh.AnnotationToZones]
	if !ok || strings.TrimSpace(zones) == "" {
		return nil
	}
	var out []string
	for z := range strings.SplitSeq(zones, ",") {
		out = append(out, strings.TrimSpace(z))
	}
	return out
}

func validateServiceExportStatus(e, old *mcs.ServiceExport) field.ErrorList {
	errs := checkMetaOf(e, old, true, validation.NameIsDNSSubdomain)
	path := field.NewPath("status")
	errs = append(errs, metav1validation.ValidateConditions(e.Status.Conditions, path.Child("conditions"))...)
	a, at := e.Status.Available, path.Child("available")
	if a == nil {
		return errs
	}
	errs = append(errs, checkLabel(at.Child("mesh"), a.Mesh)...)
	if a.Zone != "" {
		errs = append(errs, checkLabel(at.Child("zone"), a.Zone)...)
	}
	errs = append(errs, checkImportType(at.Child("type"), a.Type)...)
	errs = append(errs, checkImportPorts(at.Child("ports"), a.Ports)...)
	if a.Instances < 0 {
		errs = append(errs, field.Invalid(at.Child("instances"), a.Instances, validation.IsNegativeErrorMsg))
	}
	for i, z := range a.ToZones {
		errs = append(errs, checkLabel(at.Child("toZones").Index(i), z)...)
	}
	return append(errs, checkAvailableEndpoints(at.Child("endpoints"), a.Endpoints)...)
}

// checkAvailableEndpoints: they become EndpointSlices of other zones, and have to be valid there.
func checkAvailableEndpoints(path *field.Path, all []mcs.AvailableEndpoints) field.ErrorList {
	var errs field.ErrorList
	total := 0
	for i, group := range all {
		at := path.Index(i)
		if group.AddressType != discoveryv1.AddressTypeIPv4 && group.AddressType != discoveryv1.AddressTypeIPv6 {
			errs = append(errs, field.NotSupported(at.Child("addressType"), group.AddressType,
				[]discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6}))
		}
		for n, p := range group.Ports { // two ports of a Service may lead to one of its workloads
			at := at.Child("ports").Index(n)
			if p.Name != "" {
				errs = append(errs, checkLabel(at.Child("name"), p.Name)...)
			}
			errs = append(errs, checkPort(at.Child("port"), p.Port)...)
			errs = append(errs, checkProtocol(at.Child("protocol"), p.Protocol)...)
		}
		total += len(group.Hosts)
		for n, host := range group.Hosts {
			at := at.Child("hosts").Index(n)
			errs = append(errs, checkEndpointAddress(at.Child("address"), host.Address, group.AddressType, nil, false)...)
			if host.Hostname != "" {
				errs = append(errs, checkLabel(at.Child("hostname"), host.Hostname)...)
			}
		}
	}
	if total > mcs.MaxAvailableHosts {
		errs = append(errs, field.TooMany(path, total, mcs.MaxAvailableHosts))
	}
	return errs
}

// validateServiceImport allows no ports: a headless service needs none.
func validateServiceImport(i, old *mcs.ServiceImport) field.ErrorList {
	errs := checkMetaOf(i, old, true, validation.NameIsDNSSubdomain)
	path := field.NewPath("spec")
	errs = append(errs, checkImportType(path.Child("type"), i.Spec.Type)...)
	errs = append(errs, checkImportPorts(path.Child("ports"), i.Spec.Ports)...)
	if len(i.Spec.IPFamilies) > maxFamilies {
		errs = append(errs, field.TooMany(path.Child("ipFamilies"), len(i.Spec.IPFamilies), maxFamilies))
	}
	for n, family := range i.Spec.IPFamilies {
		if family != corev1.IPv4Protocol && family != corev1.IPv6Protocol {
			errs = append(errs, field.NotSupported(path.Child("ipFamilies").Index(n), family,
				[]corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}))
		}
	}
	if len(i.Spec.IPs) > maxFamilies {
		errs = append(errs, field.TooMany(path.Child("ips"), len(i.Spec.IPs), maxFamilies))
	}
	for n, ip := range i.Spec.IPs {
		errs = append(errs, utilvalidation.IsValidIP(path.Child("ips").Index(n), ip)...)
	}
	return errs
}

// maxFamilies of IP: a virtual IP of each.
const maxFamilies = 2

func validateServiceImportStatus(i, old *mcs.ServiceImport) field.ErrorList {
	errs := checkMetaOf(i, old, true, validation.NameIsDNSSubdomain)
	path := field.NewPath("status")
	errs = append(errs, metav1validation.ValidateConditions(i.Status.Conditions, path.Child("conditions"))...)
	names := set[string]{}
	for n, c := range i.Status.Clusters {
		at := path.Child("clusters").Index(n).Child("cluster")
		errs = append(errs, checkLabel(at, c.Cluster)...)
		if !names.add(c.Cluster) {
			errs = append(errs, field.Duplicate(at, c.Cluster))
		}
	}
	return errs
}

func checkImportType(path *field.Path, t mcs.ServiceImportType) field.ErrorList {
	switch t {
	case mcs.ClusterSetIP, mcs.Headless:
		return nil
	case "":
		return field.ErrorList{field.Required(path, "")}
	}
	return field.ErrorList{field.NotSupported(path, t, []mcs.ServiceImportType{mcs.ClusterSetIP, mcs.Headless})}
}

func checkImportPorts(path *field.Path, ports []mcs.ServicePort) field.ErrorList {
	if len(ports) > maxExternalPorts {
		return field.ErrorList{field.TooMany(path, len(ports), maxExternalPorts)}
	}
	var errs field.ErrorList
	names, numbers := set[string]{}, set[string]{}
	for i, p := range ports {
		at := path.Index(i)
		if p.Name != "" {
			errs = append(errs, checkLabel(at.Child("name"), p.Name)...)
		}
		if !names.add(p.Name) {
			errs = append(errs, field.Duplicate(at.Child("name"), p.Name))
		}
		errs = append(errs, checkPort(at.Child("port"), p.Port)...)
		if p.Protocol != "" {
			errs = append(errs, checkProtocol(at.Child("protocol"), p.Protocol)...)
		}
		if number := importPort(p); !numbers.add(number) {
			errs = append(errs, field.Duplicate(at, number))
		}
	}
	return errs
}

func importPort(p mcs.ServicePort) string {
	return fmt.Sprintf("%d/%s", p.Port, orElse(string(p.Protocol), string(corev1.ProtocolTCP)))
}

func serviceExportCells(e *mcs.ServiceExport) []any {
	kind, instances, zone, in, to := none, none, none, none, none
	if a := e.Status.Available; a != nil {
		kind, instances, zone, in = string(a.Type), fmt.Sprint(a.Instances), orElse(a.Zone, none), a.Mesh
		to = orElse(strings.Join(a.ToZones, ","), none)
	}
	return []any{
		e.Name, conditionCell(e.Status.Conditions, mcs.ServiceExportValid), conditionCell(e.Status.Conditions, mcs.ServiceExportConflict),
		kind, instances, age(e), zone, in, to,
	}
}

func conditionCell(all []metav1.Condition, name string) string {
	if c := meta.FindStatusCondition(all, name); c != nil {
		return string(c.Status)
	}
	return unknown
}

func serviceImportCells(i *mcs.ServiceImport) []any {
	var ips, ports, zones listed
	for _, ip := range i.Spec.IPs {
		ips.add(ip)
	}
	for _, p := range i.Spec.Ports {
		ports.add(importPort(p))
	}
	for _, c := range i.Status.Clusters {
		zones.add(c.Cluster)
	}
	return []any{i.Name, string(i.Spec.Type), ips.string(none), ports.string(none), zones.string(none), age(i)}
}
