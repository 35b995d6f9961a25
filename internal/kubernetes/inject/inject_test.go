package inject

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
)

var update = flag.Bool("update", false, "write the golden files")

func config() *Config {
	return &Config{
		Image: "registry.example/proxima-sidecar:v1", Envoy: "registry.example/envoy:v1.40.0", PullPolicy: corev1.PullIfNotPresent,
		Server: "proxima.proxima-system.svc:15010", Authorities: []byte("-----BEGIN CERTIFICATE-----\n"), Site: "east",
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("20m")}},
	}
}

// labelled is a namespace with injection.
func labelled(value string) *corev1.Namespace {
	n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}
	if value != "" {
		n.Labels = map[string]string{meshv1alpha1.LabelSidecarInjection: value}
	}
	return n
}

func pod(edit func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "web-", Namespace: "shop"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "web", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}}}}},
	}
	if edit != nil {
		edit(p)
	}
	return p
}

// patched is a Pod as the API server has it after the patch.
func patched(t *testing.T, p *corev1.Pod, r Result) *corev1.Pod {
	t.Helper()
	before, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(r.Patch)
	if err != nil {
		t.Fatal(err)
	}
	patch, err := jsonpatch.DecodePatch(text)
	if err != nil {
		t.Fatal(err)
	}
	after, err := patch.Apply(before)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	out := &corev1.Pod{}
	if err := json.Unmarshal(after, out); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestPatch: what comes out of Pods of different shapes is in testdata, a file each; -update writes
// them.
func TestPatch(t *testing.T) {
	service, always := "shop.Cart", corev1.ContainerRestartPolicyAlways
	for name, edit := range map[string]func(*corev1.Pod){
		"plain": nil,
		"probes": func(p *corev1.Pod) {
			c := &p.Spec.Containers[0]
			c.LivenessProbe = &corev1.Probe{PeriodSeconds: 3, ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromString("http")}}}
			c.ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: 9000, Service: &service}}}
			c.StartupProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}}}
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{
				Name: "db", Image: "db", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 5432}},
				LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(5432)}}},
			})
		},
		"initContainers": func(p *corev1.Pod) {
			p.Annotations = map[string]string{
				"a/b":                               "c",
				meshv1alpha1.AnnotationInboundPorts: "9090", meshv1alpha1.AnnotationExcludeOutbound: "10.0.0.0/8,25", "traffic.kuma.io/exclude-inbound-ports": "22",
			}
			p.Spec.Volumes = []corev1.Volume{{Name: "own", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
			p.Spec.InitContainers = []corev1.Container{
				{Name: "migrate", Image: "migrate", Ports: []corev1.ContainerPort{{ContainerPort: 1}}},
				{Name: "logs", Image: "logs", RestartPolicy: &always, Ports: []corev1.ContainerPort{{ContainerPort: 24224}, {ContainerPort: 24224, Protocol: corev1.ProtocolUDP}},
					LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Scheme: corev1.URISchemeHTTPS, Port: intstr.FromInt32(24224)}}}},
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := pod(edit)
			r, err := config().Patch(p, labelled(enabled), "default")
			if err != nil {
				t.Fatal(err)
			}
			after := patched(t, p, r)
			got, err := yaml.Marshal(after)
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join("testdata", name+".yaml")
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("the Pod (-want +got):\n%s", diff)
			}
			if s, err := SidecarOf(after); err != nil || s == nil {
				t.Errorf("its annotation: %+v, %v", s, err)
			}
			restricted(t, after)
			again, err := config().Patch(after, labelled(enabled), "default")
			if err != nil || len(again.Patch) > 0 {
				t.Errorf("asked again: %+v, %v", again, err)
			}
		})
	}
}

// restricted: what is added is what the restricted standard of pod security allows.
func restricted(t *testing.T, p *corev1.Pod) {
	t.Helper()
	for _, c := range p.Spec.InitContainers[:2] {
		s := c.SecurityContext
		if !*s.RunAsNonRoot || *s.RunAsUser != User || *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || len(s.Capabilities.Add) > 0 ||
			len(s.Capabilities.Drop) != 1 || s.Capabilities.Drop[0] != "ALL" || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault || s.Privileged != nil {
			t.Errorf("%s: %+v", c.Name, s)
		}
	}
	for _, v := range p.Spec.Volumes {
		if v.HostPath != nil {
			t.Errorf("volume %s is of the node", v.Name)
		}
	}
}

// TestWho gets a sidecar: the Pod goes before its namespace, our key before Kuma's, a label before an
// annotation.
func TestWho(t *testing.T) {
	const own, kumas = meshv1alpha1.LabelSidecarInjection, meshv1alpha1.LabelKumaSidecarInjection
	for name, c := range map[string]struct {
		namespace, labels, annotations map[string]string
		want                           bool
		err                            string
	}{
		"nobody asks":                  {},
		"the namespace":                {namespace: map[string]string{own: "enabled"}, want: true},
		"the namespace, by Kuma's":     {namespace: map[string]string{kumas: "enabled"}, want: true},
		"the pod alone":                {labels: map[string]string{own: "enabled"}, want: true},
		"the pod opts out":             {namespace: map[string]string{own: "enabled"}, labels: map[string]string{own: "disabled"}},
		"by Kuma's":                    {namespace: map[string]string{own: "enabled"}, labels: map[string]string{kumas: "disabled"}},
		"by an annotation":             {namespace: map[string]string{own: "enabled"}, annotations: map[string]string{own: "false"}},
		"ours before Kuma's":           {labels: map[string]string{own: "enabled", kumas: "disabled"}, want: true},
		"a label before an annotation": {labels: map[string]string{own: "disabled"}, annotations: map[string]string{own: "enabled"}},
		"a namespace that opts out":    {namespace: map[string]string{own: "disabled"}},
		"neither":                      {labels: map[string]string{own: "maybe"}, err: `"maybe": want enabled or disabled`},
	} {
		p := pod(func(p *corev1.Pod) { p.Labels, p.Annotations = c.labels, c.annotations })
		n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: c.namespace}}
		got, err := Wanted(p, n)
		if got != c.want || (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %t, %v", name, got, err)
		}
		if missing := Missing(p, n); missing != c.want {
			t.Errorf("%s: missing %t", name, missing)
		}
		r, err := config().Patch(p, n, "default")
		if (len(r.Patch) > 0) != c.want || (err != nil) != (c.err != "") {
			t.Errorf("%s: %d operations, %v", name, len(r.Patch), err)
		}
	}
}

// TestCannot: Pods that cannot have a sidecar stay as they are, and the reason is told.
func TestCannot(t *testing.T) {
	for want, edit := range map[string]func(*corev1.Pod){
		"network of its node": func(p *corev1.Pod) { p.Spec.HostNetwork = true },
		"a container proxima-sidecar of its own": func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: Container})
		},
		`"x" is no port`: func(p *corev1.Pod) { p.Annotations = map[string]string{meshv1alpha1.AnnotationInboundPorts: "x"} },
		`"10.0.0.0/40": want a port`: func(p *corev1.Pod) {
			p.Annotations = map[string]string{meshv1alpha1.AnnotationExcludeInbound: "10.0.0.0/40"}
		},
		`container web has no port "two"`: func(p *corev1.Pod) { probe(p).Port = intstr.FromString("two") },
		"passes no headers on":            func(p *corev1.Pod) { probe(p).HTTPHeaders = []corev1.HTTPHeader{{Name: "Host", Value: "x"}} },
		"does not pass on":                func(p *corev1.Pod) { probe(p).Path = "/healthz?full=1" },
	} {
		r, err := config().Patch(pod(edit), labelled(enabled), "default")
		if err == nil || !strings.Contains(err.Error(), want) || len(r.Patch) > 0 {
			t.Errorf("%s: %v, %d operations", want, err, len(r.Patch))
		}
	}
	r, err := config().Patch(pod(func(p *corev1.Pod) { p.Spec.Containers[0].Ports = nil }), labelled(enabled), "default")
	if err != nil || len(r.Patch) == 0 || !strings.Contains(strings.Join(r.Warnings, ""), "no container declares a port") {
		t.Errorf("without ports: %+v, %v", r.Warnings, err)
	}
}

// TestInboundPorts: ports that no container declares come from the Pod, else from its namespace.
func TestInboundPorts(t *testing.T) {
	const key = meshv1alpha1.AnnotationInboundPorts
	for name, c := range map[string]struct {
		pod, namespace map[string]string
		want           []Port
		err            string
	}{
		"neither":       {},
		"the namespace": {namespace: map[string]string{key: "8080, 7070"}, want: []Port{{Port: 8080}, {Port: 7070}}},
		"the Pod first": {pod: map[string]string{key: "9090"}, namespace: map[string]string{key: "8080"}, want: []Port{{Port: 9090}}},
		"none of them":  {pod: map[string]string{key: ""}, namespace: map[string]string{key: "8080"}},
		"no port":       {namespace: map[string]string{key: "http"}, err: `"http" is no port`},
	} {
		t.Run(name, func(t *testing.T) {
			p := pod(func(p *corev1.Pod) { p.Annotations, p.Spec.Containers[0].Ports = c.pod, nil })
			n := labelled(enabled)
			n.Annotations = c.namespace
			r, err := config().Patch(p, n, "default")
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("%v, want %s", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got, err := SidecarOf(patched(t, p, r))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got.Ports); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func probe(p *corev1.Pod) *corev1.HTTPGetAction {
	a := &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(8080)}
	p.Spec.Containers[0].LivenessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: a}}
	return a
}

// FuzzSidecarOf: users can write the annotation.
func FuzzSidecarOf(f *testing.F) {
	f.Add(`{"mesh":"default","ports":[{"port":8080}],"excludeOutbound":"10.0.0.0/8"}`)
	f.Fuzz(func(t *testing.T, text string) {
		s, err := SidecarOf(&metav1.ObjectMeta{Annotations: map[string]string{meshv1alpha1.AnnotationSidecar: text}})
		if (s == nil) == (err == nil) {
			t.Errorf("%+v, %v", s, err)
		}
		for i := range s.ports() {
			if p := s.Ports[i].Port; p < 1 || p > 65535 {
				t.Errorf("port %d", p)
			}
		}
	})
}

func (s *Sidecar) ports() []Port {
	if s == nil {
		return nil
	}
	return s.Ports
}
