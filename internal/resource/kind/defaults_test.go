package kind_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	"sigs.k8s.io/randfill"
	"sigs.k8s.io/yaml"

	mesh "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// wantDefaults compares with an object that is spelled out.
func wantDefaults(t *testing.T, name, in, want string) {
	t.Helper()
	d := descriptors()[name]
	spelled := d.New()
	if err := yaml.UnmarshalStrict([]byte(want), spelled); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(spelled, decode(t, d, in)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestDefaults(t *testing.T) {
	tests := []struct{ kind, name, in, want string }{
		{"Namespace", "label and phase", `{metadata: {name: a}}`, `
metadata: {name: a, labels: {kubernetes.io/metadata.name: a}}
status: {phase: Active}`},
		{"Namespace", "not yet named", `{metadata: {generateName: a-}}`, `{metadata: {generateName: a-}, status: {phase: Active}}`},
		{"Endpoints", "protocol", `{subsets: [{ports: [{port: 1}]}]}`, `{subsets: [{ports: [{port: 1, protocol: TCP}]}]}`},
		{"EndpointSlice", "ports", `{ports: [{port: 1}]}`, `{ports: [{port: 1, name: "", protocol: TCP}]}`},
		{"Secret", "string data", `{data: {a: eA==}, stringData: {a: z, b: "y"}}`, `{type: Opaque, data: {a: eg==, b: eQ==}}`},
		{"ConfigMap", "data", `{}`, `{data: {}}`},
		{"Node", "allocatable", `{status: {capacity: {cpu: "4"}}}`, `{status: {capacity: {cpu: "4"}, allocatable: {cpu: "4"}}}`},
		{"Node", "pod range", `{spec: {podCIDR: 10.1.0.0/24}}`, `{spec: {podCIDR: 10.1.0.0/24, podCIDRs: [10.1.0.0/24]}}`},
		{"Dataplane", "all", `
metadata: {labels: {mesh.proxima.dev/mesh: blue}}
spec: {addresses: [192.0.2.1], ports: [{port: 80}], readiness: {httpGet: {port: 80}}}`, `
metadata: {labels: {mesh.proxima.dev/mesh: blue}}
spec:
  mesh: blue
  addresses: [192.0.2.1]
  ports: [{port: 80}]
  drainSeconds: 30
  readiness: {httpGet: {port: 80, path: /, scheme: HTTP}, periodSeconds: 10, timeoutSeconds: 1, successThreshold: 1, failureThreshold: 3}`},
		{"Dataplane", "zero is kept", `{spec: {addresses: [], drainSeconds: 0}}`, `{spec: {addresses: [], drainSeconds: 0}}`},
		{"Pod", "all", `
spec:
  serviceAccount: robot
  hostNetwork: true
  volumes: [{name: tmp}, {name: conf, configMap: {name: c}}]
  containers:
  - name: a
    image: registry:5000/a
    ports: [{containerPort: 80}]
    readinessProbe: {httpGet: {port: 80}}
    env: [{name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]
    resources: {limits: {cpu: "1"}}
  - {name: b, image: "b:1"}
  - {name: c, image: "c@sha256:0123"}
status: {podIP: 10.0.0.1}`, `
spec:
  serviceAccount: robot
  serviceAccountName: robot
  hostNetwork: true
  dnsPolicy: ClusterFirst
  restartPolicy: Always
  schedulerName: default-scheduler
  securityContext: {}
  terminationGracePeriodSeconds: 30
  enableServiceLinks: true
  volumes: [{name: tmp, emptyDir: {}}, {name: conf, configMap: {name: c, defaultMode: 420}}]
  containers:
  - name: a
    image: registry:5000/a
    imagePullPolicy: Always
    terminationMessagePath: /dev/termination-log
    terminationMessagePolicy: File
    ports: [{containerPort: 80, hostPort: 80, protocol: TCP}]
    readinessProbe: {httpGet: {port: 80, path: /, scheme: HTTP}, timeoutSeconds: 1, periodSeconds: 10, successThreshold: 1, failureThreshold: 3}
    env: [{name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP, apiVersion: v1}}}]
    resources: {limits: {cpu: "1"}, requests: {cpu: "1"}}
  - {name: b, image: "b:1", imagePullPolicy: IfNotPresent, terminationMessagePath: /dev/termination-log, terminationMessagePolicy: File}
  - {name: c, image: "c@sha256:0123", imagePullPolicy: IfNotPresent, terminationMessagePath: /dev/termination-log, terminationMessagePolicy: File}
status: {podIP: 10.0.0.1, podIPs: [{ip: 10.0.0.1}]}`},
	}
	for _, tt := range tests {
		t.Run(tt.kind+"/"+tt.name, func(t *testing.T) { wantDefaults(t, tt.kind, tt.in, tt.want) })
	}
}

func TestPrepareNamespace(t *testing.T) {
	d := kind.Namespace
	n := decode(t, d, `{metadata: {name: a}, status: {phase: Terminating}}`).(*corev1.Namespace)
	d.Prepare(n, nil)
	if n.Status.Phase != corev1.NamespaceActive {
		t.Errorf("phase %s after creation", n.Status.Phase)
	}
	if diff := cmp.Diff([]corev1.FinalizerName{"kubernetes"}, n.Spec.Finalizers); diff != "" {
		t.Error(diff)
	}
	update := clone(n)
	update.Spec.Finalizers = nil
	d.Prepare(update, n)
	if len(update.Spec.Finalizers) != 1 {
		t.Error("an update took the finalizer away")
	}
	final := clone(n)
	final.ResourceVersion = "1"
	final.Spec.Finalizers, final.Status.Phase = nil, corev1.NamespaceTerminating
	kind.PrepareNamespaceFinalize(final, n)
	if len(final.Spec.Finalizers) != 0 || final.Status.Phase != corev1.NamespaceActive {
		t.Errorf("finalize left %+v", final)
	}
	if errs := kind.ValidateNamespaceFinalize(final, n); len(errs) > 0 {
		t.Error(errs.ToAggregate())
	}
}

func TestGenerations(t *testing.T) {
	slice := kind.EndpointSlice
	s := create(t, slice, base["EndpointSlice"]).(*discoveryv1.EndpointSlice)
	for _, tt := range []struct {
		name   string
		change func(s *discoveryv1.EndpointSlice)
		want   int64
	}{
		{"annotation", func(s *discoveryv1.EndpointSlice) { s.Annotations = map[string]string{"a": "b"} }, 1},
		{"label", func(s *discoveryv1.EndpointSlice) { s.Labels = map[string]string{"a": "b"} }, 2},
		{"endpoint", func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Zone = new("a") }, 2},
		{"port", func(s *discoveryv1.EndpointSlice) { s.Ports = nil }, 2},
		{"the user's own number", func(s *discoveryv1.EndpointSlice) { s.Generation = 9 }, 1},
	} {
		obj := clone(s)
		tt.change(obj)
		slice.Prepare(obj, s)
		if obj.Generation != tt.want {
			t.Errorf("slice, %s: generation %d, want %d", tt.name, obj.Generation, tt.want)
		}
	}

	pods := kind.Pod
	pod := create(t, pods, base["Pod"]).(*corev1.Pod)
	newer := clone(pod)
	newer.Spec.Containers[0].Image = "web:2"
	pods.Prepare(newer, pod)
	if pod.Generation != 1 || newer.Generation != 2 {
		t.Errorf("pod: generations %d, %d", pod.Generation, newer.Generation)
	}

	dataplane := kind.Dataplane
	old := create(t, dataplane, base["Dataplane"]).(*mesh.Dataplane)
	obj := clone(old)
	obj.Labels["a"] = "b"
	dataplane.Prepare(obj, old)
	if obj.Generation != 1 {
		t.Errorf("dataplane, label: generation %d", obj.Generation)
	}
	obj.Spec.NodeName = "other"
	dataplane.Prepare(obj, old)
	if obj.Generation != 2 {
		t.Errorf("dataplane, spec: generation %d", obj.Generation)
	}
}

func TestStatusWriteKeepsTheRest(t *testing.T) {
	d := kind.Dataplane
	old := create(t, d, base["Dataplane"]).(*mesh.Dataplane)
	obj := clone(old)
	obj.Spec.NodeName, obj.Labels["app"], obj.Generation = "other", "other", 7
	obj.Status.Conditions = []metav1.Condition{{Type: mesh.DataplaneReady, Status: metav1.ConditionTrue}}
	d.PrepareStatus(obj, old)
	want := clone(old)
	want.Status = obj.Status
	if diff := cmp.Diff(want, obj); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestPodStatusWriteKeepsTheRest(t *testing.T) {
	d := kind.Pod
	old := create(t, d, base["Pod"]).(*corev1.Pod)
	old.OwnerReferences = []metav1.OwnerReference{{Name: "owner"}}
	obj := clone(old)
	obj.Spec, obj.OwnerReferences, obj.Generation = corev1.PodSpec{}, nil, 7
	obj.DeletionTimestamp = new(metav1.Now())
	obj.Status = corev1.PodStatus{Phase: corev1.PodRunning}
	d.PrepareStatus(obj, old)
	want := clone(old)
	want.Status = corev1.PodStatus{Phase: corev1.PodRunning, QOSClass: corev1.PodQOSBestEffort}
	if diff := cmp.Diff(want, obj); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestDropped covers fields that no client can write.
func TestDropped(t *testing.T) {
	slice := create(t, kind.EndpointSlice, overlay(t, base["EndpointSlice"],
		`{endpoints: [{addresses: [10.1.0.1], deprecatedTopology: {a: b}}]}`)).(*discoveryv1.EndpointSlice)
	if slice.Endpoints[0].DeprecatedTopology != nil {
		t.Error("deprecatedTopology was kept")
	}
	lease := create(t, kind.Lease, overlay(t, base["Lease"],
		`{spec: {strategy: OldestEmulationVersion, preferredHolder: other}}`)).(*coordinationv1.Lease)
	if lease.Spec.Strategy != nil || lease.Spec.PreferredHolder != nil {
		t.Error("fields of coordinated leader election were kept")
	}
}

func TestPodQOS(t *testing.T) {
	for resources, want := range map[string]corev1.PodQOSClass{
		`{}`:                                corev1.PodQOSBestEffort,
		`{limits: {cpu: "1"}}`:              corev1.PodQOSBurstable,
		`{limits: {cpu: "1", memory: 1Gi}}`: corev1.PodQOSGuaranteed,
		`{limits: {cpu: "1", memory: 1Gi}, requests: {memory: 1Mi}}`: corev1.PodQOSBurstable,
		`{requests: {example.com/gpu: "1"}}`:                         corev1.PodQOSBestEffort,
	} {
		p := create(t, kind.Pod, `{spec: {containers: [{name: a, image: a, resources: `+resources+`}]}}`).(*corev1.Pod)
		if p.Status.QOSClass != want {
			t.Errorf("%s: %s, want %s", resources, p.Status.QOSClass, want)
		}
	}
}

func TestLoopbackIsForDataplanes(t *testing.T) {
	for name, with := range map[string]string{
		"EndpointSlice": `{endpoints: [{addresses: [127.0.0.1], targetRef: {kind: Dataplane, name: a}}]}`,
		"Endpoints":     `{subsets: [{addresses: [{ip: 127.0.0.1, targetRef: {kind: Dataplane, name: a}}]}]}`,
		"Dataplane":     `{spec: {addresses: [127.0.0.1, "::1"]}}`,
	} {
		d := descriptors()[name]
		if errs := d.Validate(create(t, d, overlay(t, base[name], with)), nil); len(errs) > 0 {
			t.Errorf("%s: %v", name, errs.ToAggregate())
		}
	}
}

func TestDataplaneMesh(t *testing.T) {
	blue := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{mesh.LabelMesh: "blue"}}}
	for _, tt := range []struct {
		spec      string
		namespace *corev1.Namespace
		want      string
	}{
		{"", nil, "default"}, {"", &corev1.Namespace{}, "default"}, {"", blue, "blue"}, {"red", blue, "red"},
	} {
		if got := kind.DataplaneMesh(&mesh.Dataplane{Spec: mesh.DataplaneSpec{Mesh: tt.spec}}, tt.namespace); got != tt.want {
			t.Errorf("%+v: %s", tt, got)
		}
	}
}

// TestNamedMesh: ours and Kuma's labels and annotations name the mesh; where they disagree ours
// wins, with a warning.
func TestNamedMesh(t *testing.T) {
	const ours, kumas = mesh.LabelMesh, mesh.LabelKumaMesh
	type m = map[string]string
	for _, tt := range []struct {
		labels, annotations m
		want                string
		warns               bool
	}{
		{nil, nil, "", false},
		{m{ours: "a"}, nil, "a", false},
		{nil, m{ours: "a"}, "a", false},
		{m{kumas: "a"}, nil, "a", false},
		{nil, m{kumas: "a"}, "a", false},
		{m{ours: "a", kumas: "a"}, m{kumas: "a"}, "a", false},
		{m{ours: "a", kumas: "b"}, nil, "a", true},
		{m{kumas: "b"}, m{ours: "a"}, "a", true},
		{m{kumas: "a"}, m{kumas: "b"}, "a", true},
		{m{ours: "a"}, m{ours: "b"}, "a", true},
	} {
		meta := metav1.ObjectMeta{Namespace: "ns", Name: "x", Labels: tt.labels, Annotations: tt.annotations}
		want := tt.want
		if want == "" {
			want = mesh.DefaultMesh
		}
		ns, pod := &corev1.Namespace{ObjectMeta: meta}, &corev1.Pod{ObjectMeta: meta}
		dp := &mesh.Dataplane{ObjectMeta: meta}
		kind.Dataplane.Default(dp)
		if got := kind.NamedMesh(ns); got != tt.want || kind.MeshOf(ns) != want || kind.PodMesh(pod, nil) != want || dp.Spec.Mesh != tt.want {
			t.Errorf("%v, %v: %q, namespace %q, pod %q, dataplane %q", tt.labels, tt.annotations, got, kind.MeshOf(ns), kind.PodMesh(pod, nil), dp.Spec.Mesh)
		}
		for what, warnings := range map[string][]string{
			"namespace": kind.Namespace.Warnings(ns, nil), "dataplane": kind.Dataplane.Warnings(dp, nil),
		} {
			if (len(warnings) > 0) != tt.warns {
				t.Errorf("%s of %v, %v: warnings %q", what, tt.labels, tt.annotations, warnings)
			}
		}
		if w := kind.Namespace.Warnings(ns, ns.DeepCopy()); len(w) > 0 {
			t.Errorf("an update that changes nothing: %q", w)
		}
	}
	blue := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Annotations: m{kumas: "blue"}}}
	if got := kind.PodMesh(&corev1.Pod{}, blue); got != "blue" {
		t.Errorf("a pod of a namespace of mesh blue: %s", got)
	}
	written := &mesh.Dataplane{ObjectMeta: metav1.ObjectMeta{Labels: m{kumas: "b"}}, Spec: mesh.DataplaneSpec{Mesh: "a"}}
	if w := kind.Dataplane.Warnings(written, nil); len(w) != 1 || !strings.Contains(w[0], "spec.mesh") {
		t.Errorf("a label beside spec.mesh: %q", w)
	}
	// A write of the status does not move a namespace.
	moved := blue.DeepCopy()
	moved.Annotations, moved.Labels = nil, m{ours: "red"}
	kind.Namespace.PrepareStatus(moved, blue)
	if got := kind.MeshOf(moved); got != "blue" {
		t.Errorf("moved by its status to mesh %s", got)
	}
}

func TestEventConversionLosesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := randfill.NewWithSeed(rapid.Int64().Draw(t, "seed")).NilChance(0.3).NumElements(0, 3)
		var core corev1.Event
		f.Fill(&core)
		core.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Event"}
		if diff := cmp.Diff(&core, kind.EventFromV1(kind.EventToV1(&core))); diff != "" {
			t.Fatalf("v1: %s", diff)
		}
		var v1 eventsv1.Event
		f.Fill(&v1)
		v1.TypeMeta = metav1.TypeMeta{APIVersion: "events.k8s.io/v1", Kind: "Event"}
		if diff := cmp.Diff(&v1, kind.EventToV1(kind.EventFromV1(&v1))); diff != "" {
			t.Fatalf("events.k8s.io/v1: %s", diff)
		}
	})
}

func TestFields(t *testing.T) {
	want := map[string]map[string]string{
		"Namespace":       {"status.phase": "Active"},
		"Service":         {"spec.clusterIP": "", "spec.type": "ClusterIP"},
		"Node":            {"spec.unschedulable": "false"},
		"Secret":          {"type": "Opaque"},
		"Dataplane":       {"spec.mesh": "", "spec.nodeName": ""},
		"ExternalService": {"spec.mesh": ""},
		"GlobalSecret":    {"type": "Opaque"},
		"ZoneIngress":     {"spec.zone": "east"},
		"ZoneEgress":      {"spec.zone": ""},
		"Pod": {"spec.nodeName": "", "spec.restartPolicy": "Always", "spec.schedulerName": "default-scheduler",
			"spec.serviceAccountName": "", "spec.hostNetwork": "false", "status.phase": "Pending", "status.podIP": "",
			"status.podIPs": "", "status.nominatedNodeName": ""},
		"Event": {"involvedObject.kind": "Pod", "involvedObject.namespace": "shop", "involvedObject.name": "web-1",
			"involvedObject.uid": "", "involvedObject.apiVersion": "", "involvedObject.resourceVersion": "",
			"involvedObject.fieldPath": "", "reason": "Started", "reportingComponent": "", "source": "", "type": "Normal"},
		"EventsV1Event": {"regarding.kind": "Pod", "regarding.namespace": "shop", "regarding.name": "web-1",
			"regarding.uid": "", "regarding.apiVersion": "", "regarding.resourceVersion": "", "regarding.fieldPath": "",
			"reason": "Started", "reportingController": "proxima.dev/health", "type": "Normal"},
	}
	for name, d := range descriptors() {
		var got map[string]string
		if d.Fields != nil {
			got = d.Fields(create(t, d, base[name]))
		}
		if diff := cmp.Diff(want[name], got); diff != "" {
			t.Errorf("%s -want +got:\n%s", name, diff)
		}
	}
}
