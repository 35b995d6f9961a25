package kuma

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
)

// SystemNamespace has the policies of whole meshes.
const SystemNamespace = "proxima-system"

// systemNamespaces of Kuma, whose policies are for all namespaces.
var systemNamespaces = []string{"kuma-system", "kong-mesh-system"}

// Options of Convert.
type Options struct {
	// Namespace of objects that name none; empty: default.
	Namespace string
}

// Result of Convert.
type Result struct {
	Objects []resource.Object
	// Problems name what was not translated.
	Problems []Problem
}

// Convert translates manifests: YAML or JSON, several separated by "---". It returns an error if
// they cannot be read; what cannot be translated is in the Result.
func Convert(manifests []byte, options Options) (*Result, error) {
	options.Namespace = cmp.Or(options.Namespace, metav1.NamespaceDefault)
	out := &Result{}
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(manifests)))
	for i := 0; ; i++ {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", i+1, err)
		}
		var values map[string]any
		if err := yaml.UnmarshalStrict(document, &values); err != nil {
			return nil, fmt.Errorf("document %d: %w", i+1, err)
		}
		if len(values) == 0 {
			continue
		}
		out.take(values, options)
	}
}

// take one object, or the items of a list.
func (r *Result) take(values map[string]any, options Options) {
	if items, ok := values["items"].([]any); ok && values["kind"] == "List" {
		for _, item := range items {
			if m, ok := item.(map[string]any); ok {
				r.take(m, options)
			}
		}
		return
	}
	o := newObject(values, options)
	o.translate()
	r.Objects = append(r.Objects, o.out...)
	r.Problems = append(r.Problems, o.problems...)
}

// object is one of Kuma's.
type object struct {
	kind, name, mesh string
	// namespace that ours goes to, if it is not for a whole mesh.
	namespace string
	// system: it is for all namespaces.
	system   bool
	root     *node
	spec     *node
	problems []Problem
	out      []resource.Object
	// done: it says what holds anyway.
	done bool
	// grants that routes to other namespaces need.
	grants  []resource.Object
	granted map[[3]string]bool
	// drop what was made, as a part of it would do something else than the whole.
	drop bool
}

// fail: without this field the rest would do something else, so nothing is made of the object.
func (o *object) fail(field, reason string) {
	o.refuse(field, reason+"; nothing is made of the object")
	o.drop = true
}

func (o *object) refuse(field, reason string) {
	o.problems = append(o.problems, Problem{Object: o.kind + " " + o.name, Field: field, Reason: reason})
}

// newObject reads what identifies an object in either form.
func newObject(values map[string]any, options Options) *object {
	o := &object{namespace: options.Namespace}
	o.root = o.node("", values)
	meta := o.root.child("metadata")
	o.kind = cmp.Or(o.root.text("kind"), o.root.text("type"))
	o.name = cmp.Or(meta.text("name"), o.root.text("name"), "unnamed")
	labels := meta.labels("labels")
	if own := o.root.labels("labels"); len(own) > 0 {
		labels = own
	}
	o.mesh = cmp.Or(o.root.text("mesh"), labels["kuma.io/mesh"], mesh.DefaultMesh)
	for _, key := range []string{"apiVersion", "status", "creationTime", "modificationTime"} {
		o.root.raw(key)
	}
	for _, key := range []string{"annotations", "creationTimestamp", "generation", "resourceVersion", "uid", "managedFields", "ownerReferences"} {
		meta.raw(key)
	}
	if namespace := meta.text("namespace"); slices.Contains(systemNamespaces, namespace) {
		o.system = true
	} else if namespace != "" {
		o.namespace = namespace
	}
	if o.root.has("spec") {
		o.spec = o.root.child("spec")
	} else {
		o.spec = o.root // the older resources have their fields beside the name
	}
	return o
}

// pages that say what to do about kinds without a translation.
var untranslated = map[string]string{
	"Mesh":                "Proxima's Mesh has fields of the same names, but other backends: write it by \"proxima docs concepts/meshes\"",
	"Dataplane":           "workloads register themselves: proxima run, or their pods",
	"ZoneIngress":         "gateways register themselves: proxima ingress",
	"ZoneEgress":          "gateways register themselves: proxima egress",
	"Zone":                "proxima zone create makes a zone and its token",
	"ExternalService":     "write Proxima's ExternalService: \"proxima docs how-to/external-services\"",
	"MeshExternalService": "write Proxima's ExternalService: \"proxima docs how-to/external-services\"",
	"MeshGateway":         "put a gateway of your choice before the mesh: \"proxima docs how-to/from-kuma\"",
	"MeshGatewayRoute":    "put a gateway of your choice before the mesh: \"proxima docs how-to/from-kuma\"",
	"MeshGatewayInstance": "put a gateway of your choice before the mesh: \"proxima docs how-to/from-kuma\"",
	"MeshGatewayConfig":   "put a gateway of your choice before the mesh: \"proxima docs how-to/from-kuma\"",
	"TrafficLog":          "it names a backend of the Mesh: write a WorkloadPolicy with spec.accessLog",
	"TrafficTrace":        "it names a backend of the Mesh: write a WorkloadPolicy with spec.tracing",
	"ProxyTemplate":       "its resources are whole ones of Envoy: write a ProxyPatch with op Add",
	"VirtualOutbound":     "names of service tags are given by DNS: \"proxima docs how-to/names\"",
}

// translations by kind.
func translations() map[string]func(*object) {
	return map[string]func(*object){
		"MeshTimeout": (*object).meshTimeout, "MeshRetry": (*object).meshRetry, "MeshCircuitBreaker": (*object).meshCircuitBreaker,
		"MeshHealthCheck": (*object).meshHealthCheck, "MeshLoadBalancingStrategy": (*object).meshLoadBalancing,
		"MeshRateLimit": (*object).meshRateLimit, "MeshFaultInjection": (*object).meshFaultInjection,
		"MeshTrafficPermission": (*object).meshTrafficPermission, "MeshAccessLog": (*object).meshAccessLog, "MeshTrace": (*object).meshTrace,
		"MeshMetric": (*object).meshMetric, "MeshPassthrough": (*object).meshPassthrough, "MeshTLS": (*object).meshTLS,
		"MeshProxyPatch": (*object).meshProxyPatch, "MeshHTTPRoute": (*object).meshHTTPRoute, "MeshTCPRoute": (*object).meshTCPRoute,
		"MeshService": (*object).meshService, "MeshMultiZoneService": (*object).meshMultiZoneService,
		"HostnameGenerator": (*object).hostnameGenerator, "MeshIdentity": (*object).meshIdentity, "MeshTrust": (*object).meshTrust,
		"TrafficRoute": (*object).trafficRoute,
		"Timeout":      (*object).timeout, "Retry": (*object).retry, "CircuitBreaker": (*object).circuitBreaker, "HealthCheck": (*object).healthCheck,
		"RateLimit": (*object).rateLimit, "FaultInjection": (*object).faultInjection, "TrafficPermission": (*object).trafficPermission,
	}
}

func (o *object) translate() {
	f := translations()[o.kind]
	if f == nil {
		o.refuse("", cmp.Or(untranslated[o.kind], "is no kind of Kuma's that can be translated"))
		return
	}
	if o.spec == nil {
		o.refuse("spec", "is empty")
		return
	}
	f(o)
	o.root.unread()
	switch {
	case o.drop:
		o.out = nil
	case len(o.out) == 0 && len(o.problems) == 0 && !o.done:
		o.refuse("", "says nothing")
	}
}

// unfit are the characters that names of objects cannot have.
var unfit = regexp.MustCompile(`[^a-z0-9.-]+`)

// meta of an object of ours. Several of one are numbered.
func (o *object) meta(namespace string) metav1.ObjectMeta {
	name := strings.Trim(unfit.ReplaceAllString(strings.ToLower(o.name), "-"), "-.")
	if n := len(o.out); n > 0 {
		name = fmt.Sprintf("%s-%d", name, n+1)
	}
	return metav1.ObjectMeta{Namespace: namespace, Name: name}
}

func typeMeta(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: mesh.SchemeGroupVersion.String(), Kind: kind}
}

func (o *object) addBackend(t target) *mesh.BackendPolicySpec {
	p := &mesh.BackendPolicy{TypeMeta: typeMeta("BackendPolicy"), ObjectMeta: o.meta(t.namespace)}
	p.Spec.PolicyTarget = t.PolicyTarget
	o.out = append(o.out, p)
	return &p.Spec
}

func (o *object) addWorkload(t target) *mesh.WorkloadPolicySpec {
	p := &mesh.WorkloadPolicy{TypeMeta: typeMeta("WorkloadPolicy"), ObjectMeta: o.meta(t.namespace)}
	p.Spec.PolicyTarget, p.Spec.Ports = t.PolicyTarget, t.ports
	o.out = append(o.out, p)
	return &p.Spec
}

// Print the objects as YAML.
func (r *Result) Print(w io.Writer) error {
	for i, obj := range r.Objects {
		text, err := yaml.Marshal(obj)
		if err != nil {
			return err
		}
		for _, empty := range []string{"status: {}\n", "status:\n  parents: null\n", "status:\n  loadBalancer: {}\n"} {
			text = bytes.TrimSuffix(text, []byte(empty))
		}
		if i > 0 {
			text = append([]byte("---\n"), text...)
		}
		if _, err := w.Write(text); err != nil {
			return err
		}
	}
	return nil
}
