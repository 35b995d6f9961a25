package manifests_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/proxima-mesh/proxima/internal/kubernetes/manifests"
	"github.com/proxima-mesh/proxima/internal/problem"
)

// needed are the values without which a preset cannot be rendered.
var needed = map[string][]string{
	"planner-only":           nil,
	"kube-proxy-replacement": {"apiServer=https://192.0.2.1:6443"},
	"zone":                   {"apiServer=https://192.0.2.1:6443", "zone.name=east", "zone.global=192.0.2.2:6444"},
	"global":                 nil,
}

func render(t *testing.T, preset string, set ...string) []manifests.Object {
	t.Helper()
	all, err := manifests.Render(manifests.Options{Preset: preset, Set: append(slices.Clone(needed[preset]), set...)})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// summary has kinds and names, and how many definitions there are.
func summary(all []manifests.Object) []string {
	var out []string
	for _, o := range all {
		if o.Kind == "CustomResourceDefinition" {
			if !slices.Contains(out, "CustomResourceDefinitions") {
				out = append(out, "CustomResourceDefinitions")
			}
			continue
		}
		out = append(out, o.Kind+" "+o.Name)
	}
	return out
}

func TestPresets(t *testing.T) {
	agents := func(roles ...string) []string {
		out := []string{"CustomResourceDefinitions", "ServiceAccount proxima", "ServiceAccount proxima-agent"}
		for _, kind := range []string{"ClusterRole ", "ClusterRoleBinding "} {
			for _, r := range roles {
				out = append(out, kind+r)
			}
		}
		return append(out, "Role proxima-state", "Role proxima-extension", "RoleBinding proxima-state", "RoleBinding proxima-extension",
			"Service proxima", "Service proxima-extension", "PodDisruptionBudget proxima", "Deployment proxima", "DaemonSet proxima-agent",
			"ValidatingWebhookConfiguration proxima")
	}
	for preset, want := range map[string][]string{
		"planner-only": {
			"ServiceAccount proxima", "ClusterRole proxima-planner", "ClusterRoleBinding proxima-planner", "Service proxima", "Deployment proxima",
		},
		"kube-proxy-replacement": agents("proxima-planner", "proxima-control-plane", "proxima-extension", "proxima-agent"),
		"zone": {
			"CustomResourceDefinitions", "ServiceAccount proxima", "ServiceAccount proxima-agent", "ServiceAccount proxima-gateway",
			"ClusterRole proxima-planner", "ClusterRole proxima-control-plane", "ClusterRole proxima-zone", "ClusterRole proxima-extension", "ClusterRole proxima-agent",
			"ClusterRoleBinding proxima-planner", "ClusterRoleBinding proxima-control-plane", "ClusterRoleBinding proxima-zone", "ClusterRoleBinding proxima-extension", "ClusterRoleBinding proxima-agent",
			"Role proxima-records", "Role proxima-state", "Role proxima-extension",
			"RoleBinding proxima-records", "RoleBinding proxima-state", "RoleBinding proxima-extension",
			"Service proxima", "Service proxima-extension", "Service proxima-ingress", "Service proxima-dns", "PodDisruptionBudget proxima",
			"Deployment proxima", "Deployment proxima-ingress", "DaemonSet proxima-agent", "ValidatingWebhookConfiguration proxima",
		},
		"global": {
			"CustomResourceDefinitions", "ServiceAccount proxima",
			"ClusterRole proxima-global", "ClusterRole proxima-extension", "ClusterRoleBinding proxima-global", "ClusterRoleBinding proxima-extension",
			"Role proxima-copies", "Role proxima-global-records", "Role proxima-state", "Role proxima-extension",
			"RoleBinding proxima-copies", "RoleBinding proxima-global-records", "RoleBinding proxima-state", "RoleBinding proxima-extension",
			"Service proxima", "Service proxima-extension", "PodDisruptionBudget proxima", "Deployment proxima",
			"ValidatingWebhookConfiguration proxima",
		},
	} {
		t.Run(preset, func(t *testing.T) {
			if diff := cmp.Diff(want, summary(render(t, preset))); diff != "" {
				t.Errorf("objects (-want +got):\n%s", diff)
			}
		})
	}
}

// TestExtension: what the API server calls is called for our kinds alone, is not in the way of
// kube-system, and lets everything through but our own kinds while nobody answers.
func TestExtension(t *testing.T) {
	all := render(t, "kube-proxy-replacement", "aggregatedAPI.enabled=true")
	hooks := object[admissionregistrationv1.ValidatingWebhookConfiguration](t, all, "ValidatingWebhookConfiguration", "proxima").Webhooks
	if len(hooks) != 2 {
		t.Fatalf("%d webhooks", len(hooks))
	}
	for _, h := range hooks {
		for _, rule := range h.Rules {
			own := strings.HasSuffix(rule.APIGroups[0], "mesh.proxima.dev")
			if fails := *h.FailurePolicy == admissionregistrationv1.Fail; fails != own {
				t.Errorf("%s of %s: failure policy %s", rule.Resources, rule.APIGroups, *h.FailurePolicy)
			}
			if slices.Contains(rule.Operations, admissionregistrationv1.Delete) || slices.Contains(rule.Resources, "*") {
				t.Errorf("rule %+v", rule)
			}
		}
		if s := h.NamespaceSelector.MatchExpressions; len(s) != 1 || !slices.Equal(s[0].Values, []string{"kube-system"}) {
			t.Errorf("namespaces %+v", s)
		}
	}
	hooks = object[admissionregistrationv1.ValidatingWebhookConfiguration](t, render(t, "zone"), "ValidatingWebhookConfiguration", "proxima").Webhooks
	if len(hooks) != 4 || *hooks[2].FailurePolicy != admissionregistrationv1.Ignore || *hooks[3].FailurePolicy != admissionregistrationv1.Ignore {
		t.Fatalf("webhooks of a zone: %+v", hooks)
	}
	if r := hooks[3].Rules; len(r) != 1 || !slices.Equal(r[0].APIGroups, []string{"gateway.networking.k8s.io"}) || len(hooks[3].MatchConditions) != 3 {
		t.Errorf("of the kinds of others copies alone are checked: %+v", hooks[3])
	}
	for _, rule := range hooks[2].Rules {
		if !slices.Equal(rule.Operations, []admissionregistrationv1.OperationType{admissionregistrationv1.Delete}) || slices.Contains(rule.Resources, "*") {
			t.Errorf("rule %+v", rule)
		}
	}
	if got := object[unstructured.Unstructured](t, all, "APIService", "v1.control.mesh.proxima.dev").Object["spec"]; got == nil {
		t.Error("the APIService is empty")
	}
	if off := summary(render(t, "kube-proxy-replacement", "webhook.enabled=false")); slices.ContainsFunc(off, func(s string) bool {
		return strings.Contains(s, "extension") || strings.HasPrefix(s, "ValidatingWebhook")
	}) {
		t.Errorf("off: %q", off)
	}
	_, err := manifests.Render(manifests.Options{
		Preset: "kube-proxy-replacement", Set: append(slices.Clone(needed["kube-proxy-replacement"]), "webhook.enabled=false", "aggregatedAPI.enabled=true"),
	})
	if err == nil || !strings.Contains(err.Error(), "webhook.enabled=true") {
		t.Errorf("an aggregated API alone: %v", err)
	}
}

// object finds one and decodes it, with no field that its type does not have.
func object[T any](t *testing.T, all []manifests.Object, kind, name string) T {
	t.Helper()
	var out T
	for _, o := range all {
		if o.Kind == kind && o.Name == name {
			if err := yaml.UnmarshalStrict([]byte(o.Text), &out); err != nil {
				t.Fatalf("%s %s: %v\n%s", kind, name, err, o.Text)
			}
			return out
		}
	}
	t.Fatalf("no %s %s", kind, name)
	return out
}

// TestGatewayEngine: a gateway with an Envoy runs in the image of Envoy, which gets both programs from theirs; its Pod is what the
// restricted standard of pod security allows. Without what serves it there is none.
func TestGatewayEngine(t *testing.T) {
	own := object[appsv1.Deployment](t, render(t, "zone"), "Deployment", "proxima-ingress").Spec.Template.Spec
	if c := own.Containers[0]; len(own.InitContainers) > 0 || len(c.Command) > 0 || !strings.Contains(c.Image, "/proxima:") || slices.Contains(c.Args, "--engine=envoy") {
		t.Errorf("the engine proxima: %+v", own)
	}
	all := render(t, "zone", "sidecar.enabled=true", "ingress.engine=envoy", "egress.engine=envoy", "egress.replicas=1")
	for _, role := range []string{"ingress", "egress"} {
		pod := object[appsv1.Deployment](t, all, "Deployment", "proxima-"+role).Spec.Template.Spec
		c := pod.Containers[0]
		if !strings.Contains(c.Image, "/envoy:") || !slices.Equal(c.Command, []string{"/usr/lib/proxima/proxima"}) || !slices.Equal(c.Args[:2], []string{role, "--engine=envoy"}) {
			t.Errorf("%s: image %s, command %q %q", role, c.Image, c.Command, c.Args)
		}
		if len(pod.InitContainers) != 2 {
			t.Fatalf("%s: %d init containers", role, len(pod.InitContainers))
		}
		for i, want := range []struct{ image, args string }{
			{"/proxima:", "install program /usr/lib/proxima/proxima"}, {"/proxima-sidecar:", "--install=/usr/lib/proxima/proxima-sidecar"},
		} {
			of := pod.InitContainers[i]
			if !strings.Contains(of.Image, want.image) || strings.Join(of.Args, " ") != want.args || len(of.VolumeMounts) != 1 || of.VolumeMounts[0].MountPath != "/usr/lib/proxima" {
				t.Errorf("%s: %+v", role, of)
			}
			if s := of.SecurityContext; *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
				t.Errorf("%s: %+v", role, s)
			}
		}
		if !slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool {
			return m.Name == "programs" && m.MountPath == "/usr/lib/proxima" && m.ReadOnly
		}) {
			t.Errorf("%s: mounts %+v", role, c.VolumeMounts)
		}
	}
	_, err := manifests.Render(manifests.Options{Preset: "zone", Set: append(slices.Clone(needed["zone"]), "egress.engine=envoy")})
	if err == nil || !strings.Contains(err.Error(), "sidecar.enabled=true") {
		t.Errorf("without what serves sidecars: %v", err)
	}
}

// TestPlannerOnlyReads: what a cluster's owner tries first can change nothing.
func TestPlannerOnlyReads(t *testing.T) {
	all := render(t, "planner-only", "createNamespace=true")
	role := object[rbacv1.ClusterRole](t, all, "ClusterRole", "proxima-planner")
	for _, rule := range role.Rules {
		for _, verb := range rule.Verbs {
			if !slices.Contains([]string{"get", "list", "watch"}, verb) {
				t.Errorf("%s of %v is allowed", verb, rule.Resources)
			}
		}
		if slices.Contains(rule.Resources, "secrets") || slices.Contains(rule.Resources, "*") {
			t.Errorf("%v can be read", rule.Resources)
		}
	}
	if n := *object[appsv1.Deployment](t, all, "Deployment", "proxima").Spec.Replicas; n != 1 {
		t.Errorf("%d replicas", n)
	}
	labels := object[corev1.Namespace](t, all, "Namespace", manifests.Namespace).Labels
	if got := labels["pod-security.kubernetes.io/enforce"]; got != "restricted" {
		t.Errorf("pods are enforced as %q", got)
	}
}

// TestRestricted: the control plane's pods are what the restricted standard of pod security allows.
func TestRestricted(t *testing.T) {
	for _, preset := range manifests.Presets() {
		pod := object[appsv1.Deployment](t, render(t, preset), "Deployment", "proxima").Spec.Template.Spec
		c := pod.Containers[0].SecurityContext
		switch {
		case !*pod.SecurityContext.RunAsNonRoot, pod.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault,
			*c.AllowPrivilegeEscalation, !*c.ReadOnlyRootFilesystem, !slices.Equal(c.Capabilities.Drop, []corev1.Capability{"ALL"}),
			len(c.Capabilities.Add) > 0, pod.HostNetwork:
			t.Errorf("%s: %+v, %+v", preset, pod.SecurityContext, c)
		}
		if *pod.EnableServiceLinks {
			t.Errorf("%s: variables of Services would be taken for settings", preset)
		}
	}
}

func TestAgent(t *testing.T) {
	all := render(t, "kube-proxy-replacement", "agent.workloadCIDRs=[10.244.0.0/16, fd00:10::/56]")
	d := object[appsv1.DaemonSet](t, all, "DaemonSet", "proxima-agent")
	pod := d.Spec.Template.Spec
	c := pod.Containers[0]
	if !pod.HostNetwork || pod.PriorityClassName != "system-node-critical" || *pod.EnableServiceLinks ||
		!slices.Equal(pod.Tolerations, []corev1.Toleration{{Operator: corev1.TolerationOpExists}}) {
		t.Errorf("pod: %+v", pod)
	}
	s := c.SecurityContext
	if s.Privileged != nil || *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem ||
		!slices.Equal(s.Capabilities.Add, []corev1.Capability{"NET_ADMIN"}) {
		t.Errorf("container: %+v", s)
	}
	for _, want := range []string{
		"--server=proxima.proxima-system.svc:6443", "--api-server=https://192.0.2.1:6443", "--node-name=$(NODE_NAME)",
		"--token-file=/var/run/secrets/proxima/token", "--workload-cidr=10.244.0.0/16,fd00:10::/56",
	} {
		if !slices.Contains(c.Args, want) {
			t.Errorf("no argument %s: %q", want, c.Args)
		}
	}
	i := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == "token" })
	if token := pod.Volumes[i].Projected.Sources[0].ServiceAccountToken; token.Audience != "proxima" {
		t.Errorf("token: %+v", token)
	}
}

func TestValues(t *testing.T) {
	all := render(t, "planner-only", "image.repository=registry.example/proxima", "image.tag=v9", "controlPlane.replicas=3",
		`controlPlane.nodeSelector={kubernetes.io/arch: arm64}`, `controlPlane.service.annotations.example\.com/a=b`)
	d := object[appsv1.Deployment](t, all, "Deployment", "proxima")
	if got := d.Spec.Template.Spec.Containers[0].Image; got != "registry.example/proxima:v9" {
		t.Errorf("image %s", got)
	}
	if *d.Spec.Replicas != 3 {
		t.Errorf("%d replicas", *d.Spec.Replicas)
	}
	if diff := cmp.Diff(map[string]string{"kubernetes.io/arch": "arm64"}, d.Spec.Template.Spec.NodeSelector); diff != "" {
		t.Errorf("node selector (-want +got):\n%s", diff)
	}
	if got := object[corev1.Service](t, all, "Service", "proxima").Annotations["example.com/a"]; got != "b" {
		t.Errorf("annotation %q", got)
	}
	digest := "sha256:" + strings.Repeat("a", 64)
	d = object[appsv1.Deployment](t, render(t, "planner-only", "image.digest="+digest), "Deployment", "proxima")
	if got := d.Spec.Template.Spec.Containers[0].Image; !strings.HasSuffix(got, "@"+digest) {
		t.Errorf("image %s", got)
	}
}

func TestMistakes(t *testing.T) {
	for _, tt := range []struct {
		name, preset string
		set          []string
		want         string
	}{
		{"preset", "everything", nil, "preset"},
		{"unknown value", "planner-only", []string{"replicas=2"}, "replicas"},
		{"unknown value below", "planner-only", []string{"agent.colour=red"}, "agent.colour"},
		{"type", "planner-only", []string{"controlPlane.replicas=many"}, "controlPlane.replicas"},
		{"choice", "planner-only", []string{"agent.mode=magic"}, "agent.mode"},
		{"form", "planner-only", []string{"image.digest=abc"}, "image.digest"},
		{"no value", "planner-only", []string{"image.tag"}, "--set image.tag: PATH=VALUE is needed"},
		{"no API server", "kube-proxy-replacement", nil, "apiServer: preset kube-proxy-replacement needs the address"},
		{"no zone", "zone", []string{"apiServer=https://a:1"}, "zone.name: preset zone needs"},
		{"no global", "zone", []string{"apiServer=https://a:1", "zone.name=east"}, "zone.global: preset zone needs"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := manifests.Render(manifests.Options{Preset: tt.preset, Set: tt.set})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("error %v, want one with %q", err, tt.want)
			}
			if p, _ := problem.Of(err); p.Code != problem.Usage {
				t.Errorf("code %q", p.Code)
			}
		})
	}
}

// TestRemoval: what any preset installs is named, and definitions only where asked for.
func TestRemoval(t *testing.T) {
	for _, definitions := range []bool{false, true} {
		removed, err := manifests.Removal(definitions)
		if err != nil {
			t.Fatal(err)
		}
		names := map[string]bool{}
		for _, o := range removed {
			names[o.Kind+" "+o.Name] = true
		}
		for _, preset := range manifests.Presets() {
			for _, o := range render(t, preset, "createNamespace=true", "controlPlane.replicas=2") {
				if want := definitions || o.Kind != "CustomResourceDefinition"; names[o.Kind+" "+o.Name] != want {
					t.Errorf("%s: %s %s is removed: %t", preset, o.Kind, o.Name, !want)
				}
			}
		}
		if last := removed[len(removed)-1].Kind; last != "Namespace" {
			t.Errorf("the last to go is a %s", last)
		}
	}
}

// TestNodes: what nodes enforce is on their labels, which the control plane patches by their status where
// meshes have policies. Nothing else of a Node is changed, and agents change none.
func TestNodes(t *testing.T) {
	for _, tt := range []struct {
		preset string
		set    []string
		labels bool
	}{
		{"planner-only", nil, false},
		{"kube-proxy-replacement", nil, false},
		{"kube-proxy-replacement", []string{"sidecar.enabled=true"}, true},
		{"zone", nil, true},
		{"global", nil, false},
	} {
		labels := false
		for _, o := range render(t, tt.preset, tt.set...) {
			if o.Kind != "ClusterRole" {
				continue
			}
			var role rbacv1.ClusterRole
			if err := yaml.UnmarshalStrict([]byte(o.Text), &role); err != nil {
				t.Fatal(err)
			}
			for _, rule := range role.Rules {
				patches := slices.Equal(rule.Resources, []string{"nodes/status"}) && slices.Equal(rule.Verbs, []string{"patch"}) && role.Name != "proxima-agent"
				labels = labels || patches
				about := slices.ContainsFunc(rule.Resources, func(r string) bool { return r == "*" || strings.HasPrefix(r, "nodes") })
				if about && !patches && slices.ContainsFunc(rule.Verbs, func(v string) bool { return v != "list" && v != "watch" }) {
					t.Errorf("%s %q: %s may %s %s", tt.preset, tt.set, role.Name, rule.Verbs, rule.Resources)
				}
			}
		}
		if labels != tt.labels {
			t.Errorf("%s %q: labels of nodes are written: %t", tt.preset, tt.set, labels)
		}
	}
}

// TestReasons: every permission says why.
func TestReasons(t *testing.T) {
	roles, err := manifests.Roles()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range roles {
		for _, p := range r.Presets {
			if !slices.Contains(manifests.Presets(), p) {
				t.Errorf("%s: no preset %s", r.Role, p)
			}
		}
		for _, rule := range r.Rules {
			if rule.Reason == "" || len(rule.APIGroups)*len(rule.Resources)*len(rule.Verbs) == 0 {
				t.Errorf("%s: %+v", r.Role, rule)
			}
		}
	}
}

// TestSidecars: with them the API server asks about Pods alone, of namespaces or Pods that ask for it, and
// lets them through while nobody answers; agents get one capability more; without them nothing of it is there.
func TestSidecars(t *testing.T) {
	for _, preset := range []string{"zone", "kube-proxy-replacement"} {
		t.Run(preset, func(t *testing.T) { wantSidecars(t, preset) })
	}
	for _, wrong := range [][2]string{{"planner-only", "webhook.enabled=true"}, {"global", "webhook.enabled=true"}, {"zone", "webhook.enabled=false"}} {
		_, err := manifests.Render(manifests.Options{Preset: wrong[0], Set: append(slices.Clone(needed[wrong[0]]), "sidecar.enabled=true", wrong[1])})
		if err == nil || !strings.Contains(err.Error(), "sidecar.enabled: ") {
			t.Errorf("%v: %v", wrong, err)
		}
	}
}

func wantSidecars(t *testing.T, preset string) {
	all := render(t, preset, "sidecar.enabled=true")
	hooks := object[admissionregistrationv1.MutatingWebhookConfiguration](t, all, "MutatingWebhookConfiguration", "proxima").Webhooks
	if len(hooks) != 4 {
		t.Fatalf("%d webhooks", len(hooks))
	}
	for _, h := range hooks {
		rule, namespaces := h.Rules[0], h.NamespaceSelector.MatchExpressions
		asked := h.ObjectSelector != nil && len(h.ObjectSelector.MatchExpressions) == 1 || len(namespaces) == 2
		if *h.FailurePolicy != admissionregistrationv1.Ignore || len(h.Rules) != 1 || !slices.Equal(rule.Resources, []string{"pods"}) ||
			!slices.Equal(rule.Operations, []admissionregistrationv1.OperationType{admissionregistrationv1.Create}) || !asked ||
			!slices.Equal(namespaces[0].Values, []string{"kube-system", manifests.Namespace}) {
			t.Errorf("%s: %+v", h.Name, h)
		}
	}
	agent := object[appsv1.DaemonSet](t, all, "DaemonSet", "proxima-agent").Spec.Template.Spec.Containers[0]
	if !slices.Equal(agent.SecurityContext.Capabilities.Add, []corev1.Capability{"NET_ADMIN", "SYS_ADMIN"}) || !slices.Contains(agent.Args, "--pod-namespaces=/run/netns") {
		t.Errorf("agent: %+v, %q", agent.SecurityContext, agent.Args)
	}
	plane := object[appsv1.Deployment](t, all, "Deployment", "proxima").Spec.Template.Spec.Containers[0]
	if !slices.ContainsFunc(plane.Args, func(a string) bool { return strings.HasPrefix(a, `--sidecar-resources={"limits":{"memory":"512Mi"}`) }) {
		t.Errorf("control plane: %q", plane.Args)
	}
	if !slices.Contains(plane.Args, "--xds-port=15010") {
		t.Errorf("control plane: %q", plane.Args)
	}
	without := summary(render(t, preset))
	if slices.ContainsFunc(without, func(s string) bool {
		return strings.HasPrefix(s, "Mutating") || strings.Contains(s, "sidecar") || strings.Contains(s, "proxima-meshes")
	}) {
		t.Errorf("off: %q", without)
	}
}

// TestRegistries: where clients of registries are served, the control plane listens for them, its Service leads there,
// and it may write what they register; else it may not. Presets without agents refuse it.
func TestRegistries(t *testing.T) {
	const preset = "kube-proxy-replacement"
	all := render(t, preset, "registries.enabled=true", "registries.eureka=false", "registries.anonymous=[10.244.0.0/16,fd00::/8]", "registries.namespaces=[public=shop]")
	args := object[appsv1.Deployment](t, all, "Deployment", "proxima").Spec.Template.Spec.Containers[0].Args
	for _, want := range []string{"--nacos-port=8848", "--registry-anonymous=10.244.0.0/16,fd00::/8", "--registry-namespaces=public=shop"} {
		if !slices.Contains(args, want) {
			t.Errorf("no argument %s in %q", want, args)
		}
	}
	if slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "--eureka-port") }) {
		t.Errorf("Eureka is on: %q", args)
	}
	var ports []int32
	for _, p := range object[corev1.Service](t, all, "Service", "proxima").Spec.Ports {
		ports = append(ports, p.Port)
	}
	if diff := cmp.Diff([]int32{6443, 6444, 8848, 9848}, ports); diff != "" {
		t.Errorf("ports of the Service (-want +got):\n%s", diff)
	}
	with, without := summary(all), summary(render(t, preset))
	named := func(s string) bool { return strings.Contains(s, "proxima-registries") }
	if !slices.ContainsFunc(with, named) || slices.ContainsFunc(without, named) {
		t.Errorf("roles with: %q\nand without: %q", with, without)
	}
	for _, wrong := range [][]string{{"planner-only", "registries.eureka=true"}, {"global", "registries.eureka=true"}, {preset, "registries.nacos=false", "registries.eureka=false"}} {
		_, err := manifests.Render(manifests.Options{Preset: wrong[0], Set: append(slices.Concat(needed[wrong[0]], wrong[1:]), "registries.enabled=true")})
		if err == nil || !strings.Contains(err.Error(), "registries.enabled: ") {
			t.Errorf("%v: %v", wrong, err)
		}
	}
}

// TestNetworkPolicy: it lets the ports of the control plane be reached, and no others; without the value
// there is none.
func TestNetworkPolicy(t *testing.T) {
	for _, tt := range []struct {
		preset string
		set    []string
		want   [][]string // ports of each rule
	}{
		{"planner-only", nil, [][]string{{"https"}}},
		{"global", nil, [][]string{{"https", "grpc"}}},
		{"kube-proxy-replacement", []string{"sidecar.enabled=true"}, [][]string{{"https", "grpc"}, {"xds"}}},
		{"kube-proxy-replacement", []string{"registries.enabled=true"}, [][]string{{"https", "grpc"}, {"nacos", "nacos-grpc", "eureka"}}},
	} {
		all := render(t, tt.preset, append(tt.set, "networkPolicy.enabled=true", "networkPolicy.from=[{ipBlock: {cidr: 192.0.2.0/24}}]")...)
		spec := object[networkingv1.NetworkPolicy](t, all, "NetworkPolicy", "proxima").Spec
		d := object[appsv1.Deployment](t, all, "Deployment", "proxima")
		known := map[string]bool{}
		for _, p := range d.Spec.Template.Spec.Containers[0].Ports {
			known[p.Name] = true
		}
		var got [][]string
		for _, rule := range spec.Ingress {
			var ports []string
			for _, p := range rule.Ports {
				ports = append(ports, p.Port.StrVal)
				if !known[p.Port.StrVal] || *p.Protocol != corev1.ProtocolTCP {
					t.Errorf("%s: the Deployment has no port %s", tt.preset, p.Port)
				}
			}
			got = append(got, ports)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: ports (-want +got):\n%s", tt.preset, diff)
		}
		if diff := cmp.Diff(d.Spec.Selector.MatchLabels, spec.PodSelector.MatchLabels); diff != "" {
			t.Errorf("%s: pods (-of the Deployment +of the policy):\n%s", tt.preset, diff)
		}
		if from := spec.Ingress[0].From; len(from) != 1 || from[0].IPBlock.CIDR != "192.0.2.0/24" {
			t.Errorf("%s: from %+v", tt.preset, from)
		}
		if !slices.Equal(spec.PolicyTypes, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}) {
			t.Errorf("%s: %v", tt.preset, spec.PolicyTypes)
		}
		if off := summary(render(t, tt.preset)); slices.Contains(off, "NetworkPolicy proxima") {
			t.Errorf("%s: %q", tt.preset, off)
		}
	}
}

// TestFeedVolumes: with volumes for the change feed the control plane is a StatefulSet, each of whose replicas has a claim and a folder of its own
// where segments are offloaded; without, its arguments alone say that there is a feed.
func TestFeedVolumes(t *testing.T) {
	plain := render(t, "kube-proxy-replacement", "apiServer=https://a", "feed.enabled=true")
	args := object[appsv1.Deployment](t, plain, "Deployment", "proxima").Spec.Template.Spec.Containers[0].Args
	if !slices.Contains(args, "--feed=on") || !slices.Contains(args, "--feed-retention=1Gi") {
		t.Errorf("arguments: %q", args)
	}
	all := render(t, "kube-proxy-replacement", "apiServer=https://a", "feed.enabled=true", "feed.persistence.enabled=true", "feed.persistence.storageClass=fast", "feed.offload=s3://b/p")
	s := object[appsv1.StatefulSet](t, all, "StatefulSet", "proxima")
	claims, pod := s.Spec.VolumeClaimTemplates, s.Spec.Template.Spec
	if len(claims) != 1 || claims[0].Spec.Resources.Requests.Storage().String() != "4Gi" || *claims[0].Spec.StorageClassName != "fast" {
		t.Errorf("claims: %+v", claims)
	}
	c := pod.Containers[0]
	mounted := slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool {
		return m.Name == claims[0].Name && m.MountPath == "/var/lib/proxima/feed"
	})
	named := slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "POD_NAME" })
	if !mounted || !named || !slices.Contains(c.Args, "--feed-offload=s3://b/p/$(POD_NAME)") {
		t.Errorf("mounts %+v, environment %+v, arguments %q", c.VolumeMounts, c.Env, c.Args)
	}
	for _, o := range all {
		if o.Kind == "Deployment" && o.Name == "proxima" {
			t.Error("there is a Deployment, too")
		}
	}
	for _, set := range []string{"feed.offload=s3://b/p", "feed.persistence.enabled=true"} {
		if _, err := manifests.Render(manifests.Options{Preset: "planner-only", Set: []string{set}}); err == nil {
			t.Errorf("%s alone is taken", set)
		}
	}
}
