package kube_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/proxima-mesh/proxima/internal/kubernetes/manifests"
	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/test/kube/cluster"
	"github.com/proxima-mesh/proxima/tools/release/build"
	"github.com/proxima-mesh/proxima/tools/release/image"
)

// TestImage: a cluster without kube-proxy, in which everything of ours is started by the manifests
// alone, from the image: containers with a read-only root and a read-only /proc/sys, the users and
// capabilities of the chart's security contexts, and its volumes. Agents serve virtual IPs, by
// which the control plane reaches the API server, and agents their control plane.
func TestImage(t *testing.T) {
	b := newBench(t)
	client, err := kubernetes.NewForConfig(b.Admin(t))
	if err != nil {
		t.Fatal(err)
	}
	img, err := image.New(image.Config{Name: "test/proxima", Version: "v0.1.0-test", Time: time.Now()}, build.Host(), testkit.Binary(t))
	if err != nil {
		t.Fatal(err)
	}
	b.Load(t, "test/proxima:v1", img)
	install := func(more ...string) {
		b.kubectl(b.manifests("kube-proxy-replacement", append([]string{
			"--set", "image.repository=test/proxima", "--set", "image.tag=v1", "--set", "apiServer=" + b.URL(),
			"--set", "agent.workloadCIDRs=[" + cluster.PodCIDR + "]",
		}, more...)...), "apply", "--server-side", "-f", "-")
	}
	install()
	virtual := b.kubectl("", "--namespace", manifests.Namespace, "get", "service", "proxima", "-o", "jsonpath={.spec.clusterIP}")
	install("--set", "agent.server="+virtual+":6443")
	r := &rig{bench: b, client: client, nodes: map[string]*cluster.Node{}, pods: map[string]*corev1.Pod{}}
	for name, zone := range map[string]string{"n1": "zone-a", "n2": "zone-b"} {
		r.nodes[name] = b.AddNode(t, name, zone)
	}
	r.schedule(t)
	var planes, agents []corev1.Pod
	b.until("all pods of ours are ready", func() bool {
		planes, agents = r.ours("control-plane"), r.ours("agent")
		return len(planes) == 2 && len(agents) == 2 && allReady(append(planes, agents...))
	})
	for _, p := range planes {
		r.wantConfined(p, cluster.Privileges{User: image.User, NoNewPrivileges: true})
	}
	for _, p := range agents {
		r.wantConfined(p, cluster.Privileges{User: 0, Capabilities: netAdmin, Bounding: netAdmin, NoNewPrivileges: true})
	}

	r.pod("client-n1", "client", "n1")
	r.pod("web-n1", "web", "n1")
	r.pod("web-n2", "web", "n2")
	for name := range r.pods {
		b.until("pod "+name+" is ready", func() bool { return r.ready(name) })
	}
	b.kubectl(probedServices, "apply", "-f", "-")
	b.until("a virtual IP is served by both pods", func() bool {
		seen := map[string]bool{}
		err := r.nodes["n1"].PodNamespace(r.pods["client-n1"].UID).Do(func() error {
			for range connections {
				name, err := ask("10.96.1.1:80")
				if err != nil {
					return err
				}
				seen[name] = true
			}
			return nil
		})
		return err == nil && len(seen) == 2 && seen["web-n1"] && seen["web-n2"]
	})
	for _, p := range agents {
		b.until("agent "+p.Name+" follows its control plane", func() bool {
			status, err := r.nodes[p.Spec.NodeName].Exec(t.Context(), &p, "/usr/bin/proxima", "status", "-o", "json")
			var s struct{ Agent agentStatus }
			return err == nil && json.Unmarshal([]byte(status), &s) == nil && s.Agent.followsView()
		})
		node := r.nodes[p.Spec.NodeName]
		if out, err := node.Exec(t.Context(), &p, "/usr/bin/proxima", "doctor"); err != nil {
			t.Errorf("doctor in pod %s: %v\n%s", p.Name, err, out)
		}
		if on, err := node.NS.Sysctl("net.netfilter.nf_conntrack_acct"); on != "1" {
			t.Errorf("the kernel of %s does not count bytes: %q, %v", node.Name, on, err)
		}
	}
	for _, p := range planes {
		out, err := r.nodes[p.Spec.NodeName].Exec(t.Context(), &p, "/usr/bin/proxima", "status")
		if err != nil || !strings.Contains(out, "preset kube-proxy-replacement") {
			t.Errorf("status in pod %s: %v\n%s", p.Name, err, out)
		}
	}
}

// netAdmin is the set of capabilities of agents (capability.h: CAP_NET_ADMIN is 12).
const netAdmin = 1 << 12

// schedule binds pods to nodes, as there is no scheduler, until the test ends: those of a DaemonSet
// to the node that they are for, others to nodes by turns.
func (r *rig) schedule(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for turn := 0; ; {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			pods, err := r.client.CoreV1().Pods(manifests.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName="})
			if err != nil {
				continue
			}
			for _, p := range pods.Items {
				node := []string{"n1", "n2"}[turn%2]
				if a := p.Spec.Affinity; a != nil && a.NodeAffinity != nil {
					node = a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchFields[0].Values[0]
				} else {
					turn++
				}
				err := r.client.CoreV1().Pods(p.Namespace).Bind(ctx, &corev1.Binding{
					ObjectMeta: metav1.ObjectMeta{Name: p.Name}, Target: corev1.ObjectReference{Kind: "Node", Name: node},
				}, metav1.CreateOptions{})
				if err != nil && ctx.Err() == nil {
					t.Errorf("bind %s to %s: %v", p.Name, node, err)
				}
			}
		}
	}()
}

// ours are the pods of a component.
func (r *rig) ours(component string) []corev1.Pod {
	r.t.Helper()
	list, err := r.client.CoreV1().Pods(manifests.Namespace).List(r.t.Context(), metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/component=" + component,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return list.Items
}

func allReady(pods []corev1.Pod) bool {
	for _, p := range pods {
		ready := false
		for _, c := range p.Status.Conditions {
			ready = ready || c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		}
		if !ready {
			return false
		}
	}
	return true
}

// wantConfined compares what the kernel lets the process of a pod do.
func (r *rig) wantConfined(p corev1.Pod, want cluster.Privileges) {
	r.t.Helper()
	pid := r.nodes[p.Spec.NodeName].PodPID(p.UID)
	got, err := cluster.PrivilegesOf(pid)
	if err != nil {
		r.t.Fatalf("pod %s: %v", p.Name, err)
	}
	if got != want {
		r.t.Errorf("pod %s has %+v, want %+v", p.Name, got, want)
	}
	for _, path := range []string{"/new", "/etc/new", "/proc/sys/net/ipv4/ip_forward", "/sys/new"} {
		err := os.WriteFile(fmt.Sprintf("/proc/%d/root%s", pid, path), []byte("1"), 0o600)
		if !errors.Is(err, syscall.EROFS) && !(path == "/sys/new" && errors.Is(err, syscall.EACCES)) {
			r.t.Errorf("pod %s: %s is written: %v", p.Name, path, err)
		}
	}
}
