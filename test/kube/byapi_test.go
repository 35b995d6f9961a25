package kube_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/kubernetes/manifests"
	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/test/kube/cluster"
)

const agentJoinRole = "proxima-agent-join"

// agent joins and renews at the API server, where its role allows it, and in no other way.
func (r *extendedRig) agent(t *testing.T) {
	node := r.AddNode(t, "ours", "zone-a")
	binding, err := r.client.RbacV1().ClusterRoleBindings().Get(t.Context(), agentJoinRole, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r.kubectl("", "delete", "clusterrolebinding", agentJoinRole)
	state := filepath.Join(t.TempDir(), "state")
	var d appsv1.DaemonSet
	r.object(&d, "daemonset", "proxima-agent")
	args := append(replaced(d.Spec.Template.Spec.Containers[0].Args, map[string]string{
		"--node-name": "ours", "--server": r.ip.backends[0], "--api-server": r.URL(), "--data-dir": state,
	}), "--kubeconfig="+r.kubeconfigOfPod("ours"), "--spiffe-socket=none")
	start := func() *cluster.Program { return node.Run(r.t, "agent", testkit.Binary(t), args...) }
	program := start()
	last := ""
	r.t.Cleanup(func() {
		if r.t.Failed() {
			r.t.Logf("the status of the agent:\n%s", last)
		}
	})
	status := func() string {
		out, err := r.run("", testkit.Binary(t), "status", "--data-dir", state, "--kubeconfig", filepath.Join(r.dirs[0], "kubeconfig"))
		return fmt.Sprint(out, err)
	}
	r.until("the agent names the role that it lacks", func() bool {
		last = status()
		return strings.Contains(last, agentJoinRole) && strings.Contains(last, "forbidden")
	})
	if _, err := os.Stat(filepath.Join(state, "node", "credentials.json")); err == nil {
		t.Error("the agent has a certificate without the role")
	}
	binding.ResourceVersion, binding.UID = "", ""
	if _, err := r.client.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	joined := func() bool {
		out, err := r.run("", testkit.Binary(t), "status", "-o", "json", "--data-dir", state, "--kubeconfig", filepath.Join(r.dirs[0], "kubeconfig"))
		var s struct{ Agent agentStatus }
		return err == nil && json.Unmarshal([]byte(out), &s) == nil && s.Agent.followsView()
	}
	r.until("the agent follows the control plane", joined)
	r.elsewhere(t, state)
	program.Kill(t)
	ends := r.shortLived(t, state)
	program = start()
	r.until("the certificate is renewed", func() bool {
		c, err := identity.LoadCredentials(filepath.Join(state, "node"))
		return err == nil && c.NotAfter.Sub(ends) > time.Hour
	})
	r.until("the agent follows the control plane after the renewal", joined)
	program.Kill(t)
}

// kubeconfigOfPod is that of an agent, with the token that its pod has for the API server.
func (r *extendedRig) kubeconfigOfPod(node string) string {
	r.t.Helper()
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
	token := r.kubectl("", "--namespace", manifests.Namespace, "create", "token", "proxima-agent",
		"--bound-object-kind=Pod", "--bound-object-name="+pod.Name, "--bound-object-uid="+string(pod.UID))
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters["cluster"] = &clientcmdapi.Cluster{Server: r.URL(), CertificateAuthority: r.CAFile()}
	cfg.AuthInfos["agent"] = &clientcmdapi.AuthInfo{Token: strings.TrimSpace(token)}
	cfg.Contexts["cluster"] = &clientcmdapi.Context{Cluster: "cluster", AuthInfo: "agent"}
	cfg.CurrentContext = "cluster"
	path := filepath.Join(r.t.TempDir(), "agent.kubeconfig")
	if err := clientcmd.WriteToFile(*cfg, path); err != nil {
		r.t.Fatal(err)
	}
	return path
}

// elsewhere: the control plane itself gives the agent no certificate, by the one that it has.
func (r *extendedRig) elsewhere(t *testing.T, state string) {
	t.Helper()
	dir := t.TempDir()
	text, err := os.ReadFile(filepath.Join(state, "node", "credentials.json"))
	if err != nil {
		t.Fatal(err)
	}
	var c struct{ Server, Certificate, CA, Key string }
	if err := json.Unmarshal(text, &c); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"cert": c.Certificate, "key": c.Key, "ca": c.CA} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	body := filepath.Join(dir, "request.pem")
	writeRequest(t, body)
	out, err := r.run("", testkit.Kubectl(t), "--kubeconfig", "/dev/null", "--server", "https://"+c.Server, "--certificate-authority", filepath.Join(dir, "ca"),
		"--client-certificate", filepath.Join(dir, "cert"), "--client-key", filepath.Join(dir, "key"),
		"create", "--raw", identity.CertificatesPath, "-f", body)
	if err == nil || !strings.Contains(err.Error(), "--join-by-aggregated-api") {
		t.Errorf("the control plane itself renews: %s, %v", out, err)
	}
}

// shortLived gives the agent a certificate of the same authority that ends soon, and returns when.
func (r *extendedRig) shortLived(t *testing.T, state string) time.Time {
	t.Helper()
	authority, err := identity.Open(filepath.Join(r.dirs[0], "pki"))
	if err != nil {
		t.Fatal(err)
	}
	subject, err := identity.SubjectFor(identity.Node, "ours")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := authority.IssueClient(subject, 2*time.Minute) // two thirds are over: it is dated back
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(state, "node", "credentials.json")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]string
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	all["certificate"], all["key"] = string(pair.Cert), string(pair.Key)
	if text, err = json.Marshal(all); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := identity.LoadCredentials(filepath.Join(state, "node"))
	if err != nil {
		t.Fatal(err)
	}
	return c.NotAfter
}
