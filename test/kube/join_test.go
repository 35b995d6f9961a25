package kube_test

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxima-mesh/proxima/internal/kubernetes/manifests"
	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/test/kube/cluster"
)

// TestAgentJoins: with the arguments of the chart's DaemonSet an agent joins the control plane
// by the token of its pod, and behaves as kube-proxy does.
func TestAgentJoins(t *testing.T) {
	r := newNodes(t, "nftables")
	if !strings.Contains(r.proxima("node", "--help"), "--server-ca-file") ||
		!strings.Contains(r.proxima("control-plane", "--help"), "--own-namespace") {
		t.Skip("this build has no agent that joins by a token of the cluster")
	}
	dir := t.TempDir()
	plane := testkit.Start(t, []string{"PROXIMA_KUBECONFIG=" + r.kubeconfigOf("proxima")}, testkit.Binary(t),
		r.podArgs(dir, address+":7443")...)
	if line := plane.FirstLine(); !strings.HasPrefix(line, "ready api=https://") {
		t.Fatalf("the control plane says %q", line)
	}
	state := r.agentArgs("ours", address+":7443").run(r)
	following := func() bool {
		a, ok := r.agentStatus(state, dir)
		return ok && a.followsView() && a.Fallback.Switches == 0
	}
	r.until("the agent follows the control plane", following)
	r.compare(t)
	health := func() int { return r.health(t, "ours") }
	if got := health(); got != http.StatusOK {
		t.Errorf("/healthz: %d", got)
	}
	r.kubectl("", "taint", "node", "ours", "ToBeDeletedByClusterAutoscaler=1:NoSchedule")
	r.until("the agent knows that its node is about to be removed", func() bool { return health() == http.StatusServiceUnavailable })
	r.kubectl("", "taint", "node", "ours", "ToBeDeletedByClusterAutoscaler-")
	r.until("the node stays", func() bool { return health() == http.StatusOK })
	if !following() {
		t.Error("the agent has left its control plane")
	}
	if n := r.asked("proxima")[permission{"authentication.k8s.io", "tokenreviews", "create"}]; n == 0 {
		t.Error("no token was reviewed")
	}
}

// health is what an agent answers to load balancers.
func (r *rig) health(t *testing.T, node string) int {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DialContext: r.nodes[node].NS.DialContext, DisableKeepAlives: true}}
	answer, err := client.Get("http://127.0.0.1:10256/healthz")
	if err != nil {
		t.Error(err)
		return 0
	}
	defer answer.Body.Close()
	return answer.StatusCode
}

// agentStatus is what an agent says of itself.
type agentStatus struct {
	View     struct{ Connected, Synced bool }
	Fallback struct {
		Direct   bool
		Switches int
	}
}

func (a agentStatus) followsView() bool {
	return a.View.Connected && a.View.Synced && !a.Fallback.Direct
}

// agentStatus of an agent by its data directory, and that of its control plane; false: it
// does not answer.
func (r *rig) agentStatus(state, plane string) (a agentStatus, answers bool) {
	r.t.Helper()
	out, err := r.run("", testkit.Binary(r.t), "status", "-o", "json", "--data-dir", state, "--kubeconfig", filepath.Join(plane, "kubeconfig"))
	if err != nil && out == "" {
		return a, false // it starts
	}
	var status struct{ Agent agentStatus }
	if err := json.NewDecoder(strings.NewReader(out)).Decode(&status); err != nil {
		r.t.Fatalf("%v: %s", err, out)
	}
	return status.Agent, true
}

// agentArgs are how the chart's DaemonSet runs the agent of a node: with the token of a pod
// there.
type agentArgs struct {
	node, state string
	args        []string
}

// agentArgs for an agent that joins a control plane at HOST:PORT, once this has published its
// authority.
func (r *rig) agentArgs(node, server string) *agentArgs {
	r.t.Helper()
	dir := r.t.TempDir()
	a := &agentArgs{node: node, state: filepath.Join(dir, "state")}
	pod, err := r.client.CoreV1().Pods(manifests.Namespace).Create(r.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "agent-" + node},
		Spec: corev1.PodSpec{
			NodeName: node, ServiceAccountName: "proxima-agent", HostNetwork: true,
			Containers: []corev1.Container{{Name: "main", Image: "none", Command: []string{"/bin/sleep", "infinity"}}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	token := r.kubectl("", "--namespace", manifests.Namespace, "create", "token", "proxima-agent", "--audience=proxima",
		"--bound-object-kind=Pod", "--bound-object-name="+pod.Name, "--bound-object-uid="+string(pod.UID))
	ca := r.kubectl("", "--namespace", manifests.Namespace, "get", "configmap", "proxima-ca", "-o", `jsonpath={.data.ca\.crt}`)
	for name, text := range map[string]string{"token": token, "ca.crt": ca} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			r.t.Fatal(err)
		}
	}
	var d appsv1.DaemonSet
	r.object(&d, "daemonset", "proxima-agent")
	a.args = replaced(d.Spec.Template.Spec.Containers[0].Args, map[string]string{
		"--node-name": node, "--server": server, "--api-server": r.URL(), "--data-dir": a.state,
		"--token-file": filepath.Join(dir, "token"), "--server-ca-file": filepath.Join(dir, "ca.crt"),
	})
	a.args = append(a.args, "--kubeconfig="+r.kubeconfigOf("proxima-agent"), "--spiffe-socket=none")
	return a
}

// run the agent on its node. It returns its data directory.
func (a *agentArgs) run(r *rig) (state string) {
	r.t.Helper()
	a.start(r)
	return a.state
}

// start the agent on its node, also again after it has ended.
func (a *agentArgs) start(r *rig) *cluster.Program {
	r.t.Helper()
	return r.nodes[a.node].Run(r.t, "agent", testkit.Binary(r.t), a.args...)
}
