package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/proxima-mesh/proxima/internal/testkit"
)

// object of the matrix: one manifest of each kind.
type object struct {
	file, manifest        string
	kind, name, namespace string
}

func objects(t *testing.T) []object {
	t.Helper()
	files, err := filepath.Glob("testdata/kinds/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no manifests: ", err)
	}
	var all []object
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var head struct {
			Kind     string
			Metadata struct{ Name, Namespace string }
		}
		if err := yaml.Unmarshal(data, &head); err != nil {
			t.Fatal(err)
		}
		all = append(all, object{file, string(data), strings.ToLower(head.Kind), head.Metadata.Name, head.Metadata.Namespace})
	}
	return all
}

// TestKubectl puts every kind through every verb of the real kubectl.
func TestKubectl(t *testing.T) {
	p := startPlane(t)
	heads := columns(t)
	for _, o := range objects(t) {
		t.Run(o.kind, func(t *testing.T) {
			m := matrix{plane: &plane{t: t, dir: p.dir, kubeconfig: p.kubeconfig}, object: o, heads: heads}
			m.serverSide()
			m.changes()
			m.reads()
			m.deletes()
			m.clientSide()
		})
	}
	t.Run("apply --prune with kubectl's own list of kinds", func(t *testing.T) {
		p := &plane{t: t, dir: p.dir, kubeconfig: p.kubeconfig}
		p.kubectl("create", "namespace", "pruned")
		apply := func(name string) {
			t.Helper()
			manifest := fmt.Sprintf("{apiVersion: v1, kind: ConfigMap, metadata: {name: %s, labels: {app: pruned}}}", name)
			out, err := p.try(manifest, testkit.Kubectl(t), "-n", "pruned", "apply", "--prune", "-l", "app=pruned", "-f", "-")
			if err != nil {
				t.Fatalf("apply %s: %v\n%s", name, err, out)
			}
		}
		apply("first")
		apply("second")
		if out := p.kubectl("-n", "pruned", "get", "configmaps", "-l", "app=pruned", "-o", "name"); strings.TrimSpace(out) != "configmap/second" {
			t.Errorf("left: %s", out)
		}
	})
	t.Run("what there is instead", func(t *testing.T) {
		p := &plane{t: t, dir: p.dir, kubeconfig: p.kubeconfig}
		if out := p.kubectl("auth", "can-i", "--list"); !strings.Contains(out, "*.*") {
			t.Errorf("auth can-i --list: %s", out)
		}
		p.kubectl("run", "entered", "--image=none")
		p.kubectl("get", "deploy,pvc,ing")
		for want, args := range map[string]string{
			"has no log here":                           "logs entered",
			"cannot be entered (exec)":                  "exec entered -- true",
			"cannot be entered (attach)":                "attach entered",
			"services \"kubernetes\" cannot be scaled":  "scale service/kubernetes --replicas=2",
			"Deployment.apps is not offered":            "create deployment web --image=none",
			"persistentvolumeclaims \"data\" not found": "get pvc data",
		} {
			if out, _ := p.try("", testkit.Kubectl(t), strings.Fields(args)...); !strings.Contains(out, want) {
				t.Errorf("kubectl %s: %s, want %q", args, out, want)
			}
		}
	})
	t.Run("delete of a namespace takes everything in it", func(t *testing.T) {
		p := &plane{t: t, dir: p.dir, kubeconfig: p.kubeconfig}
		p.kubectl("create", "namespace", "doomed")
		p.kubectl("-n", "doomed", "create", "configmap", "a")
		p.kubectl("-n", "doomed", "create", "service", "clusterip", "b", "--tcp=80")
		p.kubectl("delete", "namespace", "doomed", "--timeout=30s")
		if out, err := p.try("", testkit.Kubectl(t), "-n", "doomed", "get", "configmap", "a"); err == nil {
			t.Errorf("an object outlived its namespace:\n%s", out)
		}
		if out, err := p.try("", testkit.Kubectl(t), "-n", "doomed", "create", "configmap", "late"); err == nil {
			t.Errorf("an object was made in a namespace that is gone:\n%s", out)
		}
	})
	t.Run("a zone shift is written, changed and ended", func(t *testing.T) {
		p := &plane{t: t, dir: p.dir, kubeconfig: p.kubeconfig}
		const node = "apiVersion: v1\nkind: Node\nmetadata: {name: shifted, labels: {topology.kubernetes.io/zone: zone-a}}\n"
		shift := func(zone string, lasts time.Duration) string {
			return fmt.Sprintf("apiVersion: mesh.proxima.dev/v1alpha1\nkind: ZoneShift\nmetadata: {name: %s}\nspec: {zone: %[1]s, until: %q, reason: power work}\n",
				zone, time.Now().Add(lasts).UTC().Format(time.RFC3339))
		}
		if out, err := p.try(node, testkit.Kubectl(t), "apply", "-f", "-"); err != nil {
			t.Fatal(err, out)
		}
		for manifest, want := range map[string]string{
			shift("nowhere", time.Hour):      "there is no such zone; there are zone-a",
			shift("zone-a", -time.Hour):      "spec.until: Invalid value",
			shift("zone-a", 30*24*time.Hour): "at most 7d away",
			strings.Replace(shift("zone-a", time.Hour), "reason: power work", "", 1): "spec.reason",
		} {
			if out, err := p.try(manifest, testkit.Kubectl(t), "apply", "-f", "-"); err == nil || !strings.Contains(out, want) {
				t.Errorf("kubectl apply: %v, want %s\n%s\n%s", err, want, out, manifest)
			}
		}
		if out, err := p.try(shift("zone-a", time.Hour), testkit.Kubectl(t), "apply", "-f", "-"); err != nil {
			t.Fatal(err, out)
		}
		p.kubectl("wait", "zoneshift/zone-a", "--for=condition=Active", "--timeout=30s")
		if out := p.kubectl("get", "tp,zoneshifts,ipaddresspools"); !strings.Contains(out, "zone zone-a") || !strings.Contains(out, "InEffect") {
			t.Errorf("get:\n%s", out)
		}
		if out := p.kubectl("describe", "zoneshift", "zone-a"); !strings.Contains(out, "power work") || !strings.Contains(out, "InEffect") {
			t.Errorf("describe:\n%s", out)
		}
		p.kubectl("patch", "zoneshift", "zone-a", "--type=merge", "-p", `{"spec":{"until":"2020-01-02T03:04:05Z"}}`)
		p.kubectl("wait", "zoneshift/zone-a", "--for=condition=Active=False", "--timeout=30s")
		if out := p.kubectl("get", "zoneshift", "zone-a"); !strings.Contains(out, "Expired") {
			t.Errorf("get, after its end:\n%s", out)
		}
		if out, err := p.try("", testkit.Kubectl(t), "patch", "zoneshift", "zone-a", "--type=merge", "-p", `{"spec":{"zone":"zone-b"}}`); err == nil {
			t.Errorf("the zone was changed:\n%s", out)
		}
		p.kubectl("delete", "zoneshift", "zone-a")
		p.kubectl("delete", "node", "shifted")
	})
	t.Run("roles are refused by name", func(t *testing.T) {
		p := &plane{t: t, dir: p.dir, kubeconfig: p.kubeconfig}
		const rules = "rules: [{apiGroups: [''], resources: [pods], verbs: [get]}]\n"
		const subject = "subjects: [{kind: User, name: ann, apiGroup: rbac.authorization.k8s.io}]\n"
		const ref = "roleRef: {kind: ClusterRole, name: reader, apiGroup: rbac.authorization.k8s.io}\n"
		for kind, rest := range map[string]string{
			"Role": rules, "ClusterRole": rules, "RoleBinding": subject + ref, "ClusterRoleBinding": subject + ref,
		} {
			manifest := "apiVersion: rbac.authorization.k8s.io/v1\nkind: " + kind + "\nmetadata: {name: reader}\n" + rest
			for _, call := range []struct {
				stdin string
				args  []string
			}{
				{manifest, []string{"apply", "-f", "-"}},
				{manifest, []string{"apply", "--server-side", "-f", "-"}},
				{manifest, []string{"create", "-f", "-"}},
				{"", []string{"get", strings.ToLower(kind) + "s"}},
				{"", []string{"delete", strings.ToLower(kind), "reader"}},
			} {
				out, err := p.try(call.stdin, testkit.Kubectl(t), call.args...)
				want := kind + ".rbac.authorization.k8s.io is not offered by this version"
				if err == nil || !strings.Contains(out, want) || !strings.Contains(out, "proxima token create --kind") {
					t.Errorf("kubectl %s %s: %v\n%s", kind, strings.Join(call.args, " "), err, out)
				}
			}
		}
		if out := p.kubectl("api-resources"); strings.Contains(out, "rbac") {
			t.Errorf("api-resources lists what cannot be used:\n%s", out)
		}
		p.kubectl("get", "all", "--all-namespaces")
		if out := p.kubectl("auth", "can-i", "delete", "pods"); !strings.Contains(out, "yes") {
			t.Errorf("auth can-i: %s", out)
		}
	})
	t.Run("api-resources", func(t *testing.T) {
		p := &plane{t: t, dir: p.dir, kubeconfig: p.kubeconfig}
		out := p.kubectl("api-resources", "--no-headers")
		for _, want := range []string{
			"dataplanes", "endpointslices", "services", "leases", "ipaddresses", "meshes", "externalservices", "globalsecrets",
			"trafficplans", "tokenreviews", "subjectaccessreviews", "localsubjectaccessreviews", "selfsubjectaccessreviews",
			"selfsubjectreviews",
		} {
			if !strings.Contains(out, want) {
				t.Errorf("api-resources does not list %s:\n%s", want, out)
			}
		}
	})
}

type matrix struct {
	*plane
	object
	heads map[string]string
}

// columns reads what heads the tables: by kind and width, the words joined by
// single spaces.
func columns(t *testing.T) map[string]string {
	data, err := os.ReadFile("testdata/columns.txt")
	if err != nil {
		t.Fatal(err)
	}
	heads := map[string]string{}
	for line := range strings.Lines(string(data)) {
		if key, head, ok := strings.Cut(strings.TrimSpace(line), ": "); ok && !strings.HasPrefix(line, "#") {
			heads[key] = head
		}
	}
	return heads
}

// table prints the object and checks the head.
func (m matrix) table(width string, args ...string) {
	m.t.Helper()
	out := m.kubectl(m.ref(append([]string{"get"}, args...)...)...)
	m.expect(out, m.tableName())
	head, _, _ := strings.Cut(out, "\n")
	if got, want := strings.Join(strings.Fields(head), " "), m.heads[m.kind+" "+width]; got != want {
		m.t.Errorf("columns %q, want %q", got, want)
	}
}

func (m matrix) ref(args ...string) []string {
	args = append(args, m.kind, m.name)
	if m.namespace != "" {
		args = append(args, "-n", m.namespace)
	}
	return args
}

func (m matrix) expect(out string, words ...string) {
	m.t.Helper()
	for _, w := range words {
		if !strings.Contains(out, w) {
			m.t.Errorf("%q is missing in:\n%s", w, out)
		}
	}
}

// serverSide: created, applied again, taken over; managed fields are kept.
func (m matrix) serverSide() {
	m.t.Helper()
	m.kubectl("apply", "--server-side", "-f", m.file)
	m.expect(m.kubectl("apply", "--server-side", "-f", m.file), "serverside-applied")
	out := m.kubectl(m.ref("get", "-o", "yaml", "--show-managed-fields")...)
	m.expect(out, "managedFields:", "manager: kubectl", "operation: Apply")
	other := strings.Replace(m.manifest, "name: "+m.name, "name: "+m.name+", annotations: {by: other}", 1)
	if !strings.Contains(m.manifest, "metadata: {") {
		other = strings.Replace(m.manifest, "metadata:\n", "metadata:\n  annotations: {by: other}\n", 1)
	}
	if out, err := m.try(other, testkit.Kubectl(m.t), "apply", "--server-side", "--field-manager=other", "-f", "-"); err != nil {
		m.t.Errorf("a second manager: %v\n%s", err, out)
	}
	m.expect(m.kubectl(m.ref("get", "-o", "yaml", "--show-managed-fields")...), "manager: other", "manager: kubectl")
}

// changes: patch in three ways, label, annotate, edit, watch.
func (m matrix) changes() {
	m.t.Helper()
	m.watchWhile(func() {
		m.kubectl(m.ref("patch", "--type=merge", "-p", `{"metadata":{"annotations":{"merge":"1"}}}`)...)
	})
	m.kubectl(m.ref("patch", "--type=json", "-p", `[{"op":"add","path":"/metadata/annotations/json","value":"1"}]`)...)
	if !strings.Contains(m.manifest, "mesh.proxima.dev/") { // strategic merge is for built-in kinds, as with custom resources
		m.kubectl(m.ref("patch", "--type=strategic", "-p", `{"metadata":{"annotations":{"strategic":"1"}}}`)...)
	}
	m.kubectl(append(m.ref("label"), "stage=test")...)
	m.kubectl(append(m.ref("annotate"), "noted=yes")...)
	editor := filepath.Join(m.t.TempDir(), "editor")
	if err := os.WriteFile(editor, []byte("#!/bin/sh\nsed -i 's/noted: \"\\?yes\"\\?/noted: edited/' \"$1\"\n"), 0o755); err != nil {
		m.t.Fatal(err)
	}
	edit := exec.Command(testkit.Kubectl(m.t), m.ref("edit")...)
	edit.Env = append(testkit.CleanEnv(), "KUBECONFIG="+m.kubeconfig, "HOME="+m.dir, "KUBE_EDITOR="+editor)
	if out, err := edit.CombinedOutput(); err != nil {
		m.t.Errorf("edit: %v\n%s", err, out)
	}
	m.expect(m.kubectl(m.ref("get", "-o", "yaml")...), "merge: ", "json: ", "noted: edited", "stage: test")
}

// watchWhile follows the object with "get --watch" and expects the change.
func (m matrix) watchWhile(change func()) {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, testkit.Kubectl(m.t), m.ref("get", "--watch", "--output-watch-events")...)
	cmd.Env = append(testkit.CleanEnv(), "KUBECONFIG="+m.kubeconfig, "HOME="+m.dir)
	var out testkit.Output
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	defer func() { cancel(); _ = cmd.Wait() }()
	testkit.Eventually(m.t, "the watch shows what exists", func() bool { return strings.Contains(out.String(), "ADDED") })
	change()
	testkit.Eventually(m.t, "the watch shows the change", func() bool { return strings.Contains(out.String(), "MODIFIED") })
}

// reads: every way to look at it.
func (m matrix) reads() {
	m.t.Helper()
	m.table("plain")
	m.table("wide", "-o", "wide")
	m.expect(m.kubectl(m.ref("get", "-o", "name")...), "/"+m.name)
	m.expect(m.kubectl(m.ref("get", "-o", "jsonpath={.metadata.name}")...), m.name)
	m.expect(m.kubectl(m.ref("get", "-o", "custom-columns=N:.metadata.name,U:.metadata.uid", "--no-headers")...), m.name)
	m.kubectl(m.ref("wait", "--for=jsonpath={.metadata.name}="+m.name, "--timeout=10s")...)
	m.expect(m.kubectl("get", m.kind, "-A", "-l", "stage=test"), m.name)
	if m.kind == "event" {
		m.expect(m.kubectl("get", m.kind, "-A", "--field-selector", "reason=Tested"), "Tested")
	} else {
		m.expect(m.kubectl("get", m.kind, "-A", "--field-selector", "metadata.name="+m.name), m.name)
	}
	m.expect(m.kubectl(m.ref("describe")...), m.name)
	m.expect(m.kubectl("explain", m.kind), "KIND:", "FIELDS:")
	m.expect(m.kubectl("explain", m.kind+".metadata.name"), "name <string>")
	m.kubectl("diff", "--server-side", "-f", m.file) // no difference: exit code 0
	m.expect(m.proxima(m.refAs("get", "table")...), m.tableName())
	m.expect(m.proxima(m.refAs("get", "yaml")...), "name: "+m.name)
}

// tableName is what the first column shows.
func (m matrix) tableName() string {
	if m.kind == "event" {
		return "Tested"
	}
	return m.name
}

func (m matrix) refAs(verb, output string) []string {
	return append(m.ref(verb), "-o", output)
}

func (m matrix) deletes() {
	m.t.Helper()
	m.kubectl(append(m.ref("delete"), "--timeout=30s")...)
	if out, err := m.try("", testkit.Kubectl(m.t), m.ref("get")...); err == nil || !strings.Contains(out, "NotFound") {
		m.t.Errorf("after delete: %v\n%s", err, out)
	}
}

// clientSide: create, apply, diff and delete by file, as most people do.
func (m matrix) clientSide() {
	m.t.Helper()
	m.expect(m.kubectl("create", "-f", m.file, "--dry-run=server", "-o", "name"), m.name)
	m.kubectl("apply", "-f", m.file)
	m.expect(m.kubectl("apply", "-f", m.file), "unchanged")
	m.kubectl("diff", "-f", m.file)
	m.replaces()
	changed := strings.Replace(m.manifest, "name: "+m.name, "name: "+m.name+", annotations: {changed: really}", 1)
	if changed != m.manifest && strings.Contains(m.manifest, "metadata: {") {
		out, err := m.try(changed, testkit.Kubectl(m.t), "diff", "-f", "-")
		if err == nil || !strings.Contains(out, "+    changed: really") {
			m.t.Errorf("diff of a change: %v\n%s", err, out)
		}
		m.apply(changed)
		m.expect(m.kubectl(m.ref("get", "-o", "yaml")...), "changed: really")
	}
	m.kubectl("delete", "-f", m.file, "--timeout=30s")
}

// replaces the whole object by what was read of it; an old one is refused.
func (m matrix) replaces() {
	m.t.Helper()
	var old, out string
	var err error
	for range 5 { // a controller may write the status in between
		old = m.kubectl(m.ref("get", "-o", "json")...)
		next := strings.Replace(old, `"metadata": {`, `"metadata": {"generateName": "",`, 1)
		next = strings.Replace(next, `"annotations": {`, `"annotations": {"replaced": "yes",`, 1)
		if out, err = m.try(next, testkit.Kubectl(m.t), "replace", "-f", "-"); err == nil || !strings.Contains(out, "Conflict") {
			break
		}
	}
	if err != nil {
		m.t.Errorf("replace: %v\n%s", err, out)
	}
	m.expect(m.kubectl(m.ref("get", "-o", "yaml")...), "replaced: ")
	if out, err := m.try(old, testkit.Kubectl(m.t), "replace", "-f", "-"); err == nil || !strings.Contains(out, "Conflict") {
		m.t.Errorf("replace by an old one: %v\n%s", err, out)
	}
}

// TestKubectlReadsPlans: the planner's objects are read like any other, are written by
// no other client, and are deleted with their Service.
func TestKubectlReadsPlans(t *testing.T) {
	p := startPlane(t)
	p.apply(
		`{apiVersion: v1, kind: Service, metadata: {name: planned, annotations: {service.kubernetes.io/topology-mode: proxima.dev/Adaptive}}, spec: {ports: [{name: http, port: 80}]}}`,
	)
	p.apply(`{apiVersion: v1, kind: Service, metadata: {name: plain}, spec: {ports: [{name: http, port: 80}]}}`)
	p.apply(
		`{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: planned-1, labels: {kubernetes.io/service-name: planned}}, addressType: IPv4,
  endpoints: [{addresses: [10.0.0.1], zone: a}, {addresses: [10.0.0.2], zone: b}], ports: [{name: http, port: 8080, protocol: TCP}]}`,
	)
	p.kubectl("wait", "tp/planned", "--for=jsonpath={.spec.groups[0].outcome}=Planned", "--timeout=30s")
	out := p.kubectl("get", "tp")
	head, _, _ := strings.Cut(out, "\n")
	if got, want := strings.Join(strings.Fields(head), " "), columns(t)["trafficplan plain"]; got != want {
		t.Errorf("columns %q, want %q", got, want)
	}
	if strings.Contains(out, "plain") || !strings.Contains(out, "planned") {
		t.Errorf("plans are\n%s", out)
	}
	if out := p.kubectl("explain", "trafficplan.spec.groups.zones.to"); !strings.Contains(out, "share") {
		t.Errorf("explain says\n%s", out)
	}
	manifest := p.kubectl("get", "tp", "planned", "-o", "yaml")
	for _, write := range [][]string{
		{"delete", "tp", "planned"}, {"delete", "tp", "--all"}, {"label", "tp", "planned", "a=b"}, {"patch", "tp", "planned", "--type=merge", "-p", `{"spec":{"version":9}}`},
		{"replace", "-f", "-"}, {"apply", "--server-side", "--force-conflicts", "-f", "-"},
	} {
		stdin := ""
		if write[len(write)-1] == "-" {
			stdin = strings.Replace(manifest, "version: ", "version: 1", 1)
		}
		if out, err := p.try(stdin, testkit.Kubectl(t), write...); err == nil || !strings.Contains(out, "written by the planner alone") {
			t.Errorf("%v: %v\n%s", write, err, out)
		}
	}
	p.kubectl("delete", "service", "planned")
	p.kubectl("wait", "tp/planned", "--for=delete", "--timeout=30s")
}

// TestKubectlCascade deletes an owner in every mode of kubectl.
func TestKubectlCascade(t *testing.T) {
	p := startPlane(t)
	for _, tc := range []struct {
		cascade string
		stays   bool
	}{{"background", false}, {"foreground", false}, {"orphan", true}} {
		t.Run(tc.cascade, func(t *testing.T) {
			p := &plane{t: t, dir: p.dir, kubeconfig: p.kubeconfig}
			p.kubectl("create", "configmap", "owner-"+tc.cascade)
			uid := p.kubectl("get", "configmap", "owner-"+tc.cascade, "-o", "jsonpath={.metadata.uid}")
			p.apply(
				fmt.Sprintf(
					`{apiVersion: v1, kind: Secret, metadata: {name: owned-%[1]s, ownerReferences: [{apiVersion: v1, kind: ConfigMap, name: owner-%[1]s, uid: %[2]s, blockOwnerDeletion: true}]}}`,
					tc.cascade,
					uid,
				),
			)
			p.kubectl("delete", "configmap", "owner-"+tc.cascade, "--cascade="+tc.cascade, "--timeout=30s")
			if !tc.stays {
				p.kubectl("wait", "--for=delete", "secret/owned-"+tc.cascade, "--timeout=30s")
				return
			}
			if refs := p.kubectl("get", "secret", "owned-"+tc.cascade, "-o", "jsonpath={.metadata.ownerReferences}"); refs != "" {
				t.Errorf("the orphan still has owners: %s", refs)
			}
		})
	}
}

// TestKubectlReviews requests reviews with kubectl: of the own identity, of tokens and
// of access.
func TestKubectlReviews(t *testing.T) {
	p := startPlane(t)
	token := strings.TrimSpace(p.proxima("token", "create", "--kind", "read-only", "--name", "viewer"))
	create := func(manifest string) string {
		t.Helper()
		out, err := p.try(manifest, testkit.Kubectl(t), "create", "-f", "-", "-o", "yaml")
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return out
	}
	for manifest, wants := range map[string][]string{
		`{apiVersion: authentication.k8s.io/v1, kind: TokenReview, spec: {token: "` + token + `"}}`:                                                                                                                         {"authenticated: true", "viewer"},
		`{apiVersion: authentication.k8s.io/v1, kind: TokenReview, spec: {token: "` + token[1:] + `"}}`:                                                                                                                     {"error: "},
		`{apiVersion: authorization.k8s.io/v1, kind: SubjectAccessReview, spec: {groups: ["system:masters"], resourceAttributes: {verb: delete, resource: services}}}`:                                                      {"allowed: true"},
		`{apiVersion: authorization.k8s.io/v1, kind: SubjectAccessReview, spec: {user: nobody, resourceAttributes: {verb: get, resource: services}}}`:                                                                       {"allowed: false", "reason: "},
		`{apiVersion: authorization.k8s.io/v1, kind: LocalSubjectAccessReview, metadata: {namespace: default}, spec: {groups: ["system:masters"], resourceAttributes: {namespace: default, verb: get, resource: secrets}}}`: {"allowed: true"},
	} {
		out := create(manifest)
		for _, want := range wants {
			if !strings.Contains(out, want) {
				t.Errorf("%s\nlacks %q:\n%s", manifest, want, out)
			}
		}
	}
	if out, err := p.try("", testkit.Kubectl(t), "auth", "can-i", "delete", "services", "--token="+token, "--certificate-authority="+filepath.Join(p.dir, "pki", "ca", "ca.crt"),
		"--server=https://"+p.apiAddress(), "--kubeconfig=/dev/null"); err == nil ||
		!strings.Contains(out, "no") {
		t.Errorf("can-i: %v %s", err, out)
	}
}

// TestTokens: each identity may do what it should, and no more.
func TestTokens(t *testing.T) {
	p := startPlane(t)
	as := func(token string, args ...string) (string, error) {
		return p.try("", testkit.Kubectl(t), append([]string{
			"--kubeconfig=/dev/null", "--server=https://" + p.apiAddress(),
			"--certificate-authority=" + filepath.Join(p.dir, "pki", "ca", "ca.crt"), "--token=" + token}, args...)...)
	}
	token := func(kind, name string) string {
		return strings.TrimSpace(p.proxima("token", "create", "--kind", kind, "--name", name))
	}
	readOnly, admin, node := token("read-only", "viewer"), token("admin", "boss"), token("node", "n1")
	for _, tc := range []struct {
		who, token string
		args       []string
		want       string // in the output; empty: success
	}{
		{"admin", admin, []string{"create", "configmap", "a"}, ""},
		{"read-only", readOnly, []string{"get", "services", "-A"}, ""},
		{"read-only", readOnly, []string{"create", "configmap", "b"}, "Forbidden"},
		{"read-only", readOnly, []string{"get", "secrets"}, "Forbidden"},
		{"node", node, []string{"get", "services", "-A"}, ""},
		{"node", node, []string{"delete", "service", "kubernetes"}, "Forbidden"},
		{"a wrong token", admin[:len(admin)-4] + "beef", []string{"get", "services"}, "Unauthorized"},
		{"rubbish", "rubbish", []string{"get", "services"}, "Unauthorized"},
	} {
		t.Run(fmt.Sprintf("%s %s", tc.who, strings.Join(tc.args[:2], " ")), func(t *testing.T) {
			out, err := as(tc.token, tc.args...)
			switch {
			case tc.want == "" && err != nil:
				t.Errorf("refused: %v\n%s", err, out)
			case tc.want != "" && (err == nil || !strings.Contains(strings.ToLower(out), strings.ToLower(tc.want))):
				t.Errorf("got %v, want %q:\n%s", err, tc.want, out)
			}
		})
	}
	t.Run("nobody", func(t *testing.T) {
		cfg := rest.AnonymousClientConfig(p.config())
		client, err := rest.HTTPClientFor(cfg)
		if err != nil {
			t.Fatal(err)
		}
		for path, want := range map[string]int{
			"/version": 200, "/healthz": 200, "/readyz": 200, "/api/v1/services": 401, "/proxima/v1/status": 401, "/metrics": 401,
		} {
			resp, err := client.Get(cfg.Host + path)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != want && !(want == 401 && resp.StatusCode == 403) {
				t.Errorf("%s: %s, want %d", path, resp.Status, want)
			}
		}
	})
}
