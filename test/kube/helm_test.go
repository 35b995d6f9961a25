package kube_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"github.com/proxima-mesh/proxima/internal/kubernetes/manifests"
	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/test/kube/cluster"
)

// earlier is the commit that is upgraded from: the last one without a webhook.
const earlier = "6967132"

// helmRig is a cluster, and the command helm.
type helmRig struct {
	*bench
	// before is the tree of the earlier commit, with its program built.
	before, program string
}

// newHelm makes the tree of the earlier commit, and its program.
func newHelm(t *testing.T) *helmRig {
	t.Helper()
	need(t)
	root := testkit.Root(t)
	git := func(args ...string) (string, error) {
		out, err := exec.Command("git", append([]string{"-C", root}, args...)...).CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	commit, err := git("rev-parse", "--verify", "--quiet", earlier+"^{commit}")
	if err != nil {
		t.Skipf("the history of this tree does not have commit %s", earlier)
	}
	r := &helmRig{before: filepath.Join(t.TempDir(), "tree"), program: filepath.Join(root, "bin", "kube", commit, "proxima")}
	if out, err := git("worktree", "add", "--detach", r.before, commit); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() { _, _ = git("worktree", "remove", "--force", r.before) })
	if _, err := os.Stat(r.program); err != nil {
		cmd := exec.Command("go", "build", "-trimpath", "-o", r.program, "./cmd/proxima")
		cmd.Dir, cmd.Env = r.before, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", commit, err, out)
		}
	}
	r.bench = newBench(t)
	return r
}

// helm runs the real one, which must succeed.
func (r *helmRig) helm(args ...string) string {
	r.t.Helper()
	out, err := r.run("", cluster.Helm(r.t), append(args, "--namespace", manifests.Namespace)...)
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

// start a replica of a program, with the arguments of the Deployment there is now.
func (r *helmRig) start(program string, port string) *testkit.Process {
	r.t.Helper()
	p := testkit.Start(r.t, []string{"PROXIMA_KUBECONFIG=" + r.kubeconfigOf("proxima")}, program,
		append(r.podArgs(r.t.TempDir(), address+":"+port), "--grpc-port=0")...)
	if line := p.FirstLine(); !strings.HasPrefix(line, "ready api=https://") {
		r.t.Fatalf("the control plane says %q", line)
	}
	return p
}

// planned is a Service that the planner has an opinion of.
const planned = `
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Node
metadata: {name: one, labels: {topology.kubernetes.io/zone: zone-a}}
---
apiVersion: v1
kind: Node
metadata: {name: two, labels: {topology.kubernetes.io/zone: zone-b}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 80}]
endpoints: [{addresses: [192.0.2.80], nodeName: one, zone: zone-a, conditions: {ready: true}}]
---
apiVersion: mesh.proxima.dev/v1alpha1
kind: ZoneCosts
metadata: {name: default}
spec: {region: 4}
`

// works waits until the control plane that leads has told what it makes of a parameter.
func (r *helmRig) works(value string) {
	r.t.Helper()
	r.kubectl("", "--namespace", "shop", "annotate", "--overwrite", "service", "web", "topology.proxima.dev/overload="+value)
	r.until("the condition is about "+value, func() bool {
		return strings.Contains(r.kubectl("", "--namespace", "shop", "get", "service", "web", "-o", "jsonpath={.status.conditions}"), value)
	})
}

func (r *helmRig) has(kind, name string) bool {
	r.t.Helper()
	return r.kubectl("", "--namespace", manifests.Namespace, "get", kind, name, "--ignore-not-found", "-o", "name") != ""
}

// TestHelm: the real helm installs the chart of an earlier commit, upgrades to this one, goes back
// and uninstalls, with the control planes of both running; objects and the authority stay.
func TestHelm(t *testing.T) {
	r := newHelm(t)
	client, err := dynamic.NewForConfig(r.Admin(t))
	if err != nil {
		t.Fatal(err)
	}
	before := r.settled(client)
	values := []string{
		"--set", "preset=kube-proxy-replacement", "--set", "apiServer=https://192.0.2.1:6443",
		"--set", "controlPlane.topologyMode=proxima.dev/Adaptive", // the default of the chart before
	}
	chart := filepath.Join(testkit.Root(t), "deploy", "helm", "proxima")

	r.helm(slices.Concat([]string{"install", "proxima", filepath.Join(r.before, "deploy", "helm", "proxima"), "--create-namespace"}, values,
		[]string{"--set", "image.tag=before"})...)
	r.wantImage("before")
	r.kubectl("", "wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
	old := r.start(r.program, "7443")
	r.kubectl(planned, "apply", "--server-side", "-f", "-")
	for _, node := range []string{"one", "two"} {
		r.kubectl("", "patch", "node", node, "--subresource=status", "--type=merge",
			"-p", `{"status": {"allocatable": {"cpu": "4"}, "conditions": [{"type": "Ready", "status": "True"}]}}`)
	}
	r.works("first")
	authority := r.authority()

	// The new chart, with what it adds: the API server calls the control plane.
	r.helm(slices.Concat([]string{"upgrade", "proxima", chart}, values, []string{"--set", "image.tag=now"})...)
	r.wantImage("now")
	if !r.has("validatingwebhookconfiguration", "proxima") || !r.has("service", "proxima-extension") {
		t.Error("the upgrade has not brought the webhook")
	}
	old.Stop()
	current := r.start(testkit.Binary(t), "7445")
	ip := r.virtualIP(address + ":7445")
	r.until("the API server is given the authority", func() bool { return r.bundle() != "" })
	r.works("second")
	if got := r.authority(); got != authority {
		t.Error("the upgrade has changed the authority of the agents")
	}

	// Another upgrade leaves what the control plane has added.
	bundle := r.bundle()
	r.helm(slices.Concat([]string{"upgrade", "proxima", chart}, values, []string{"--set", "image.tag=later", "--set", "controlPlane.logLevel=debug"})...)
	r.wantImage("later")
	if got := r.bundle(); got != bundle {
		t.Errorf("the second upgrade has changed the authority that the API server trusts:\n%s, was\n%s", got, bundle)
	}
	r.works("third")

	// Back to the first one.
	r.helm("rollback", "proxima", "1")
	r.wantImage("before")
	if r.has("validatingwebhookconfiguration", "proxima") || r.has("service", "proxima-extension") {
		t.Error("the rollback has left the webhook")
	}
	current.Stop()
	ip.set()
	old = r.start(r.program, "7447")
	r.works("fourth")
	if got := r.authority(); got != authority {
		t.Error("the rollback has changed the authority of the agents")
	}
	old.Stop()

	r.kubectl(planned[:strings.LastIndex(planned, "---")], "delete", "--wait", "-f", "-")
	r.helm("uninstall", "proxima")
	r.wantLeft(client, before)
	r.kubectl(r.proxima("uninstall", "kubernetes", "--crds"), "delete", "--ignore-not-found", "--wait", "--timeout=90s", "-f", "-")
	r.wantNothing(client, before)
}

// authority by which agents trust the control plane.
func (r *helmRig) authority() string {
	return r.kubectl("", "--namespace", manifests.Namespace, "get", "configmap", "proxima-ca", "-o", `jsonpath={.data.ca\.crt}`)
}

// bundle that the API server has for the webhook.
func (r *helmRig) bundle() string {
	return r.kubectl("", "get", "validatingwebhookconfiguration", "proxima", "-o", "jsonpath={.webhooks[0].clientConfig.caBundle}")
}

// wantLeft waits until all is gone but what stays for the next installation: the definitions, with
// the objects of their kinds, the namespace, and what control planes have made there.
func (r *helmRig) wantLeft(client dynamic.Interface, before []string) {
	r.t.Helper()
	stays := func(name string) bool {
		kind, object, _ := strings.Cut(name, " ")
		switch {
		case strings.HasPrefix(kind, "customresourcedefinitions."), strings.HasSuffix(kind, "mesh.proxima.dev"),
			strings.HasPrefix(kind, "apiservices."): // of the groups of the definitions
			return true
		case kind == "namespaces.", kind == "serviceaccounts." && strings.HasSuffix(object, "/default"):
			return true
		}
		return kind == "configmaps." || kind == "secrets." && strings.HasPrefix(object, manifests.Namespace+"/proxima-")
	}
	var left []string
	defer func() {
		if r.t.Failed() {
			r.t.Logf("left: %q", left)
		}
	}()
	r.until("helm has removed its objects", func() bool {
		left = slices.DeleteFunc(added(before, r.snapshot(client)), stays)
		return len(left) == 0
	})
	if _, err := client.Resource(descriptor("ZoneCosts").GVK.GroupVersion().WithResource("zonecosts")).Get(r.t.Context(), "default", metav1.GetOptions{}); err != nil {
		r.t.Errorf("the policy of the user: %v", err)
	}
}
