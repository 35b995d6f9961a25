package kind

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/dns/meshname"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/servicetag"
)

// Dataplane describes mesh.proxima.dev/v1alpha1 Dataplane.
var Dataplane = &resource.Descriptor{
	GVK:        mesh.SchemeGroupVersion.WithKind("Dataplane"),
	Resource:   "dataplanes",
	Singular:   "dataplane",
	ShortNames: []string{"dps"},
	Categories: []string{"all", "proxima"},
	Namespaced: true,
	Direction:  resource.ZoneToGlobal,
	Status:     true,

	New:     func() resource.Object { return &mesh.Dataplane{} },
	NewList: func() runtime.Object { return &mesh.DataplaneList{} },

	Compact:        compactDataplane,
	Default:        on(defaultDataplane),
	Prepare:        dataplaneParts.prepare,
	PrepareStatus:  dataplaneParts.prepareStatus,
	Validate:       compare(validateDataplane),
	ValidateStatus: compare(validateDataplaneStatus),
	Warnings:       compare(warnDataplane),

	Fields: of(func(d *mesh.Dataplane) fields.Set {
		return fields.Set{"spec.mesh": d.Spec.Mesh, "spec.nodeName": d.Spec.NodeName}
	}),
	Columns: dataplaneColumns(),
	Cells:   of(dataplaneCells),
}

// compactDataplane: there are few meshes, nodes, accounts and names of ports.
func compactDataplane(obj resource.Object, share func(*string)) {
	d := obj.(*mesh.Dataplane)
	share(&d.APIVersion)
	share(&d.Kind)
	share(&d.Spec.Mesh)
	share(&d.Spec.NodeName)
	share(&d.Spec.ServiceAccount)
	d.Spec.Addresses, d.Spec.Ports = fitted(d.Spec.Addresses), fitted(d.Spec.Ports)
	for i := range d.Spec.Ports {
		p := &d.Spec.Ports[i]
		share(&p.Name)
		share(&p.Protocol)
		each(share, p.AppProtocol)
	}
	d.Status.Conditions = fitted(d.Status.Conditions)
	for i := range d.Status.Conditions {
		c := &d.Status.Conditions[i]
		share(&c.Type)
		share((*string)(&c.Status))
		share(&c.Reason)
		share(&c.Message)
	}
	if l := d.Status.Lease; l != nil {
		share(&l.Holder)
	}
}

// warnDataplane: a service tag that cannot be a name forms no service.
func warnDataplane(d, old *mesh.Dataplane) []string {
	var before []string
	if old != nil {
		before = servicetag.TagsOfDataplane(old)
	}
	out := warnDataplaneMesh(d, old)
	for _, tag := range servicetag.TagsOfDataplane(d) {
		if _, err := meshname.OfTag(tag); err != nil && !slices.Contains(before, tag) {
			out = append(out, fmt.Sprintf("it is in no service by its tag: %v", err))
		}
	}
	return out
}

// warnDataplaneMesh warns of meshes that the labels and annotations name in vain.
func warnDataplaneMesh(d, old *mesh.Dataplane) []string {
	named := NamedMesh(d)
	switch {
	case old == nil:
	case namedMeshes(old) == namedMeshes(d) && old.Spec.Mesh == d.Spec.Mesh:
		return nil
	case named == "" || named == d.Spec.Mesh:
		return warnNamedMesh(d, old)
	}
	if named != "" && named != d.Spec.Mesh {
		return []string{fmt.Sprintf("mesh %q of its labels or annotations does not count, as spec.mesh is %q", named, d.Spec.Mesh)}
	}
	return warnNamedMesh(d, nil)
}

// DataplaneMesh is the mesh that a Dataplane belongs to: the one it names, else
// that of its namespace (nil: unknown), else the default.
func DataplaneMesh(d *mesh.Dataplane, namespace *corev1.Namespace) string {
	if d.Spec.Mesh != "" {
		return d.Spec.Mesh
	}
	if namespace != nil {
		return MeshOf(namespace)
	}
	return mesh.DefaultMesh
}

// DataplaneHasProxy reports whether a Dataplane has, or had, a proxy that follows a control plane: one
// that has lost its stream serves on. A gRPC program that follows has none for its own ports.
func DataplaneHasProxy(d *mesh.Dataplane) bool {
	if d == nil {
		return false
	}
	c := meta.FindStatusCondition(d.Status.Conditions, mesh.DataplaneProxyConnected)
	return c != nil && c.Reason != mesh.ReasonProgram
}

// DataplaneAccount is the service account of a Dataplane in its namespace: the one it
// names, else the one that registered it, else the default.
func DataplaneAccount(d *mesh.Dataplane) string {
	return orElse(d.Spec.ServiceAccount, orElse(d.Annotations[mesh.AnnotationServiceAccount], mesh.DefaultServiceAccount))
}

// defaultDataplane takes the mesh from the Dataplane's own labels and annotations. Without one
// it stays empty, which means the mesh of the namespace: see DataplaneMesh. A
// port's protocol stays empty too, and means TCP: clients that apply a manifest
// of a kind they do not know compare lists as a whole, and would take what was
// filled in there for a change, each time.
func defaultDataplane(d *mesh.Dataplane) {
	spec := &d.Spec
	fill(&spec.Mesh, NamedMesh(d))
	if spec.DrainSeconds == nil {
		spec.DrainSeconds = new(mesh.DefaultDrainSeconds)
	}
	p := spec.Readiness
	if p == nil {
		return
	}
	fillCount(&p.PeriodSeconds, mesh.DefaultProbePeriodSeconds)
	fillCount(&p.TimeoutSeconds, mesh.DefaultProbeTimeoutSeconds)
	fillCount(&p.SuccessThreshold, mesh.DefaultProbeSuccessThreshold)
	fillCount(&p.FailureThreshold, mesh.DefaultProbeFailureThreshold)
	if p.HTTPGet != nil {
		fill(&p.HTTPGet.Path, "/")
		fill(&p.HTTPGet.Scheme, mesh.SchemeHTTP)
	}
}

var dataplaneParts = parts[*mesh.Dataplane, mesh.DataplaneSpec, mesh.DataplaneStatus](
	func(d *mesh.Dataplane) (*mesh.DataplaneSpec, *mesh.DataplaneStatus) { return &d.Spec, &d.Status })

func dataplaneColumns() []metav1.TableColumnDefinition {
	return []metav1.TableColumnDefinition{
		nameColumn(),
		column("Node", "The node that the workload runs on."),
		column("Ready", "Whether the workload takes new connections."),
		column("Addresses", "The addresses at which the workload is reached."),
		column("Ports", "The ports that the workload listens on."),
		column("Weight", "The workload's share of new connections, relative to other endpoints of its Services."),
		ageColumn(),
		wide("Mesh", "The mesh that the workload names; empty: that of its namespace."),
		wide("Zone", "The zone that the workload names; empty: that of its node."),
		wide("Lease", "Who keeps the workload alive, and for how long still."),
	}
}

func dataplaneCells(d *mesh.Dataplane) []any {
	var addresses, ports listed
	for _, a := range d.Spec.Addresses {
		addresses.add(a)
	}
	for _, p := range d.Spec.Ports {
		ports.add(fmt.Sprintf("%d/%s", p.Port, orElse(p.Protocol, mesh.ProtocolTCP)))
	}
	return []any{
		d.Name, orElse(d.Spec.NodeName, none), dataplaneReady(d), addresses.string(none), ports.string(none), dataplaneWeight(d), age(d),
		orElse(d.Spec.Mesh, none), orElse(d.Labels[corev1.LabelTopologyZone], none), leaseCell(d.Status.Lease),
	}
}

func dataplaneWeight(d *mesh.Dataplane) string {
	if d.Spec.Weight == nil {
		return fmt.Sprint(mesh.DefaultWeight)
	}
	return fmt.Sprint(*d.Spec.Weight)
}

// dataplaneReady says "Disabled" of a workload in maintenance: it serves, and is used last.
func dataplaneReady(d *mesh.Dataplane) string {
	switch {
	case d.DeletionTimestamp != nil:
		return "Terminating"
	case d.Spec.Enabled != nil && !*d.Spec.Enabled:
		return "Disabled"
	}
	if c := meta.FindStatusCondition(d.Status.Conditions, mesh.DataplaneReady); c != nil {
		return string(c.Status)
	}
	return string(metav1.ConditionUnknown)
}

func leaseCell(l *mesh.DataplaneLease) string {
	if l == nil {
		return none
	}
	left := time.Until(l.RenewTime.Add(time.Duration(l.DurationSeconds) * time.Second))
	if left < 0 {
		return strings.TrimSpace(fmt.Sprintf("%s expired %s ago", l.Holder, duration.HumanDuration(-left)))
	}
	return strings.TrimSpace(fmt.Sprintf("%s %s left", l.Holder, duration.HumanDuration(left)))
}
