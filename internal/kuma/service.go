package kuma

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
)

func sortedKeys(m map[string]any) []string { return slices.Sorted(maps.Keys(m)) }

// meshService is a Service: its ports, and the labels of its workloads.
func (o *object) meshService() {
	s := &corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: o.meta(o.namespace)}
	selector := o.spec.child("selector")
	s.Spec.Selector = selector.labels("dataplaneTags")
	maps.Copy(s.Spec.Selector, selector.child("dataplaneLabels").labels("matchLabels"))
	if selector.has("dataplaneRef") {
		selector.skip("dataplaneRef")
		o.fail(selector.at("dataplaneRef"), "a Service selects workloads by labels")
	}
	if len(s.Spec.Selector) == 0 && !selector.has("dataplaneRef") {
		o.fail("spec.selector", "without labels nothing is selected")
	}
	o.checkTags("spec.selector", s.Spec.Selector)
	for _, n := range o.spec.list("ports") {
		p := corev1.ServicePort{Name: n.text("name"), Protocol: corev1.ProtocolTCP}
		if number := n.number("port"); number != nil {
			p.Port = *number
			if p.Name == "" {
				p.Name = "port-" + strconv.Itoa(int(p.Port))
			}
		} else {
			o.fail(n.at("port"), "a port of a Service has a number")
		}
		p.TargetPort = intstr.FromInt32(p.Port)
		if target := n.text("targetPort"); target != "" {
			p.TargetPort = intstr.Parse(target)
		}
		if app := n.text("appProtocol"); app != "" && app != "tcp" {
			p.AppProtocol = &app
		}
		s.Spec.Ports = append(s.Spec.Ports, p)
	}
	// What the control plane of Kuma fills in: here identities follow from the workloads.
	o.spec.skip("identities")
	o.spec.raw("state")
	o.out = append(o.out, s)
}

// Labels by which the selector of a MeshMultiZoneService names a Service.
const (
	labelDisplayName = "kuma.io/display-name"
	labelNamespace   = "k8s.kuma.io/namespace"
)

// meshMultiZoneService is a ServiceExport, of which the import follows in all zones.
func (o *object) meshMultiZoneService() {
	labels := o.spec.child("selector").child("meshService").labels("matchLabels")
	name, namespace := labels[labelDisplayName], labels[labelNamespace]
	delete(labels, labelDisplayName)
	delete(labels, labelNamespace)
	if name == "" || len(labels) > 0 {
		o.fail("spec.selector.meshService.matchLabels", fmt.Sprintf("an export is of one Service, which the labels %s and %s name: not %s",
			labelDisplayName, labelNamespace, strings.Join(slices.Sorted(maps.Keys(labels)), ", ")))
		o.spec.skip("ports")
		return
	}
	if namespace == "" {
		namespace = o.namespace
	}
	if o.name != name {
		o.refuse(o.root.at("metadata.name"), "the ServiceImport has the name of its Service, "+name)
	}
	o.spec.skip("ports") // they are those of the Service
	e := &mcs.ServiceExport{
		TypeMeta: metav1.TypeMeta{APIVersion: mcs.SchemeGroupVersion.String(), Kind: "ServiceExport"}, ObjectMeta: o.meta(namespace),
	}
	e.Name = name
	o.out = append(o.out, e)
}

// hostnameGenerator: names are given by DNS, by one rule for all Services.
func (o *object) hostnameGenerator() {
	template := strings.ReplaceAll(o.spec.text("template"), " ", "")
	selector := o.spec.child("selector")
	ours := map[string][]string{
		"meshService":          {"{{.DisplayName}}.{{.Namespace}}.svc.cluster.local", "{{.Name}}.{{.Namespace}}.svc.cluster.local"},
		"meshMultiZoneService": {"{{.DisplayName}}.{{.Namespace}}.svc.clusterset.local"},
		"meshExternalService":  {"{{.DisplayName}}.{{.Namespace}}.svc.cluster.local"},
	}
	for _, kind := range slices.Sorted(maps.Keys(ours)) {
		if !selector.has(kind) {
			continue
		}
		selector.skip(kind) // the rule is for all of them
		if !slices.Contains(ours[kind], template) {
			o.fail("spec.template", fmt.Sprintf("DNS gives every %s one name, %s: \"proxima docs how-to/names\"", kind, ours[kind][0]))
		}
	}
	o.spec.refuse("extension", "names are given by DNS alone")
	o.done = true
}

// Templates of identities that are those of Proxima.
const spiffePath = "/ns/{{.Namespace}}/sa/{{.ServiceAccount}}"

// meshIdentity is the trust domain and the authority of a Mesh.
func (o *object) meshIdentity() {
	m := &mesh.Mesh{TypeMeta: typeMeta("Mesh"), ObjectMeta: metav1.ObjectMeta{Name: o.mesh}}
	if labels := o.spec.child("selector").child("dataplane").labels("matchLabels"); len(labels) > 0 {
		o.fail("spec.selector", "all workloads of a mesh have identities of its one trust domain")
	}
	id := o.spec.child("spiffeID")
	domain := strings.ReplaceAll(id.text("trustDomain"), " ", "")
	domain = strings.ReplaceAll(domain, "{{.Mesh}}", o.mesh)
	if strings.Contains(domain, "{{") {
		o.fail(id.at("trustDomain"), "the trust domain is of the mesh, not of a zone: write it in full")
	}
	if path := strings.ReplaceAll(id.text("path"), " ", ""); path != "" && path != spiffePath {
		o.fail(id.at("path"), "identities are of namespace and service account: "+spiffePath)
	}
	provider := o.spec.child("provider")
	if kind := provider.text("type"); kind != "Bundled" {
		o.fail(provider.at("type"), kind+" does not sign certificates here: the backends of a Mesh do, \"proxima docs concepts/identities\"")
		provider.skip("spire")
		return
	}
	bundled := provider.child("bundled")
	backend := mesh.MeshCertificateBackend{Name: "builtin", Type: mesh.BackendBuiltin}
	if d := bundled.child("certificateParameters").duration("expiry"); d != nil {
		if v := d.Value(); v > 0 {
			backend.WorkloadCertificate = &mesh.MeshWorkloadCertificate{ValiditySeconds: new(int32(v.Seconds()))}
		}
	}
	bundled.raw("meshTrustCreation")       // roots reach all zones
	bundled.raw("insecureAllowSelfSigned") // as that of a builtin authority is
	bundled.child("autogenerate").raw("enabled")
	if bundled.has("ca") {
		bundled.skip("ca")
		o.fail(bundled.at("ca"), "write a backend of type Provided: \"proxima docs concepts/identities\"")
	}
	m.Spec.MTLS = &mesh.MeshMTLS{TrustDomain: domain, EnabledBackend: backend.Name, Backends: []mesh.MeshCertificateBackend{backend}}
	o.out = append(o.out, m)
}

// meshTrust: what workloads trust follows from the meshes and their exports.
func (o *object) meshTrust() {
	if o.spec.has("origin") { // by a MeshIdentity
		for _, key := range []string{"origin", "trustDomain", "caBundles"} {
			o.spec.skip(key)
		}
		o.done = true
		return
	}
	o.spec.skip("caBundles")
	o.spec.raw("trustDomain")
	o.fail("spec.caBundles", "a mesh trusts its own authority, and those of meshes that export to it: \"proxima docs concepts/identities\"")
}
