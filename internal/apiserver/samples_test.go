package apiserver_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	gateway "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	plannerv1alpha1 "github.com/proxima-mesh/proxima/api/planner/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// manifests are what a user would apply, without metadata; one for each kind.
var manifests = map[string]string{
	"Namespace":       `{}`,
	"Service":         `{spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]}}`,
	"Endpoints":       `{subsets: [{addresses: [{ip: 10.1.2.3}], ports: [{name: http, port: 80, protocol: TCP}]}]}`,
	"Node":            `{spec: {podCIDR: 10.9.0.0/24, podCIDRs: [10.9.0.0/24]}}`,
	"Pod":             `{spec: {containers: [{name: c, image: example.com/web}]}}`,
	"ConfigMap":       `{data: {key: value}}`,
	"Secret":          `{data: {key: dmFsdWU=}}`,
	"Event":           `{involvedObject: {kind: Pod, namespace: default, name: p}, reason: Tested, message: m, type: Normal}`,
	"events.Event":    `{regarding: {kind: Pod, namespace: default, name: p}, reason: Tested, note: n, type: Normal, eventTime: "2026-01-02T03:04:05.000000Z", action: Test, reportingController: example.com/test, reportingInstance: t-0}`,
	"EndpointSlice":   `{addressType: IPv4, endpoints: [{addresses: [10.1.2.3], conditions: {ready: true}}], ports: [{name: http, port: 80, protocol: TCP}]}`,
	"Lease":           `{spec: {holderIdentity: me, leaseDurationSeconds: 40}}`,
	"IPAddress":       `{spec: {parentRef: {resource: services, namespace: default, name: other}}}`,
	"ServiceCIDR":     `{spec: {cidrs: [10.200.0.0/24]}}`,
	"Dataplane":       `{spec: {addresses: [10.1.2.3], ports: [{name: http, port: 8080}]}}`,
	"Mesh":            `{spec: {mtls: {enabledBackend: own, backends: [{name: own}]}}}`,
	"ExternalService": `{spec: {hosts: [pay.example.com], ports: [{port: 443}], tls: {}}}`,
	"ZoneCosts":       `{spec: {region: 1.5, world: 12, pairs: [{from: a, to: b, cost: 0.5}]}}`,
	"GlobalSecret":    `{data: {key: dmFsdWU=}}`,

	"Zone":               `{spec: {enabled: false}}`,
	"ZoneInsight":        `{status: {online: true, types: [{type: mesh.proxima.dev/Mesh, direction: ToZone, objects: 2}]}}`,
	"ZoneIngress":        `{spec: {address: 192.0.2.1, port: 10001}}`,
	"ZoneIngressInsight": `{status: {online: true}}`,
	"ZoneEgress":         `{spec: {address: 192.0.2.1, port: 10002}}`,
	"ZoneEgressInsight":  `{status: {online: true}}`,
	"DataplaneInsight":   `{status: {online: true}}`,
	"ServiceExport":      `{spec: {exportedLabels: {team: shop}}}`,
	"IPAddressPool":      `{spec: {addresses: [192.0.2.0/28], autoAssign: false}}`,
	"ZoneShift":          `{spec: {zone: a, until: "` + time.Now().Add(time.Hour).UTC().Format(time.RFC3339) + `", reason: power work}}`,
	"VirtualIP":          `{spec: {mesh: default, hostname: web_shop_svc_80, addresses: [240.0.0.7], namespace: shop, service: web, port: 80}}`,
	"ServiceImport":      `{spec: {type: ClusterSetIP, ports: [{name: http, port: 80, protocol: TCP}], ips: [10.96.0.7]}}`,

	"HTTPRoute":         `{spec: {parentRefs: [{group: "", kind: Service, name: web}], rules: [{backendRefs: [{name: web, port: 80}]}]}}`,
	"GRPCRoute":         `{spec: {parentRefs: [{group: "", kind: Service, name: web}], rules: [{backendRefs: [{name: web, port: 80}]}]}}`,
	"TCPRoute":          `{spec: {parentRefs: [{group: "", kind: Service, name: web}], rules: [{backendRefs: [{name: web, port: 80}]}]}}`,
	"RegistryConfig":    `{spec: {dataId: orders.yaml}}`,
	"ReferenceGrant":    `{spec: {from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: web}], to: [{group: "", kind: Service}]}}`,
	"TrafficPermission": `{spec: {allow: [{from: [{namespaces: [shop]}]}]}}`,
	"BackendPolicy":     `{spec: {targetRefs: [{kind: Service, name: web}], timeout: {connect: 2s}}}`,
	"WorkloadPolicy":    `{spec: {limits: {connections: 10}}}`,
	"ProxyPatch":        `{spec: {patches: [{type: Cluster, op: Remove}]}}`,

	"TrafficPlan":       `{spec: {service: web, version: 1, mode: proxima.dev/Adaptive, parameters: {overload: 0.2, margin: 0.03, hints: soft, fallback: none}}}`,
	"TopologyHeuristic": `{spec: {zones: "[endpoint.zone]"}}`,
}

// object makes an object of a kind from its manifest.
func object(t *testing.T, k *resource.Descriptor, name string) resource.Object {
	t.Helper()
	key := k.GVK.Kind
	if k.GVK.Group == "events.k8s.io" {
		key = "events." + key
	}
	text, ok := manifests[key]
	if !ok {
		t.Fatalf("no manifest for kind %s", k.GVK)
	}
	obj := k.New()
	if err := yaml.UnmarshalStrict([]byte(text), obj); err != nil {
		t.Fatalf("manifest of %s: %v", key, err)
	}
	obj.SetName(name)
	if k.Namespaced {
		obj.SetNamespace(metav1.NamespaceDefault)
	}
	obj.SetLabels(map[string]string{"test": name})
	obj.GetObjectKind().SetGroupVersionKind(k.GVK)
	return obj
}

// nameFor gives a valid name; IPAddresses are named by an address.
func nameFor(k *resource.Descriptor, name, ip string) string {
	if k.GVK.Kind == "IPAddress" {
		return ip
	}
	return name
}

// scheme has all kinds as clients see them.
func scheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	if err := clientscheme.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	for _, add := range []func(*runtime.Scheme) error{meshv1alpha1.AddToScheme, plannerv1alpha1.AddToScheme, mcs.AddToScheme, gateway.Install} {
		if err := add(s); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// rest makes a client for the group of a kind.
func (s *server) rest(t *testing.T, k *resource.Descriptor, contentType string) rest.Interface {
	t.Helper()
	cfg := s.config("admin")
	gv := k.GVK.GroupVersion()
	cfg.GroupVersion = &gv
	cfg.APIPath = "/apis"
	if gv.Group == "" {
		cfg.APIPath = "/api"
	}
	cfg.ContentType, cfg.AcceptContentTypes = contentType, contentType
	cfg.NegotiatedSerializer = serializer.NewCodecFactory(scheme(t)).WithoutConversion()
	client, err := rest.RESTClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func isProtobuf(k *resource.Descriptor) bool {
	_, ok := k.New().(interface{ Marshal() ([]byte, error) })
	return ok
}

// eventually polls: for what another goroutine of the server brings about.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func descriptor(t *testing.T, name string) *resource.Descriptor {
	t.Helper()
	for _, k := range kind.All() {
		if k.GVK.Kind == name && k.GVK.Group != "events.k8s.io" {
			return k
		}
	}
	t.Fatalf("no kind %s", name)
	return nil
}

// setEventNamespace moves what an event is about to the event's own namespace,
// as validation demands.
func setEventNamespace(obj resource.Object) {
	switch e := obj.(type) {
	case *corev1.Event:
		e.InvolvedObject.Namespace = e.Namespace
	case *eventsv1.Event:
		e.Regarding.Namespace = e.Namespace
	}
}
