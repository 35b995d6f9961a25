package kube_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/test/kube/cluster"
)

// probedServices are what nodes are compared by. Pods of app web are on all nodes, those of
// app third on the third one; "client-NODE" are those that ask.
const probedServices = `
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIP: 10.96.1.1, selector: {app: web}, ports: [{name: tcp, port: 80, targetPort: 8080}, {name: udp, protocol: UDP, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: affinity}
spec: {clusterIP: 10.96.1.2, selector: {app: web}, sessionAffinity: ClientIP, ports: [{name: tcp, port: 80, targetPort: 8080}, {name: udp, protocol: UDP, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: none}
spec: {clusterIP: 10.96.1.3, selector: {app: none}, ports: [{name: tcp, port: 80, targetPort: 8080}, {name: udp, protocol: UDP, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: internal-local}
spec: {clusterIP: 10.96.1.4, selector: {app: web}, internalTrafficPolicy: Local, ports: [{name: tcp, port: 80, targetPort: 8080}, {name: udp, protocol: UDP, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: internal-local-elsewhere}
spec: {clusterIP: 10.96.1.5, selector: {app: third}, internalTrafficPolicy: Local, ports: [{name: tcp, port: 80, targetPort: 8080}, {name: udp, protocol: UDP, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: node-port}
spec: {type: NodePort, clusterIP: 10.96.1.6, selector: {app: web}, ports: [{name: tcp, port: 80, targetPort: 8080, nodePort: 30080}, {name: udp, protocol: UDP, port: 80, targetPort: 8080, nodePort: 30080}]}
---
apiVersion: v1
kind: Service
metadata: {name: node-port-local}
spec: {type: NodePort, clusterIP: 10.96.1.7, selector: {app: web}, externalTrafficPolicy: Local, ports: [{name: tcp, port: 80, targetPort: 8080, nodePort: 30081}, {name: udp, protocol: UDP, port: 80, targetPort: 8080, nodePort: 30081}]}
---
apiVersion: v1
kind: Service
metadata: {name: node-port-local-elsewhere}
spec: {type: NodePort, clusterIP: 10.96.1.8, selector: {app: third}, externalTrafficPolicy: Local, ports: [{name: tcp, port: 80, targetPort: 8080, nodePort: 30082}, {name: udp, protocol: UDP, port: 80, targetPort: 8080, nodePort: 30082}]}
---
apiVersion: v1
kind: Service
metadata: {name: external}
spec: {clusterIP: 10.96.1.9, selector: {app: web}, externalIPs: [203.0.113.9], ports: [{name: tcp, port: 80, targetPort: 8080}, {name: udp, protocol: UDP, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: balanced}
spec: {type: LoadBalancer, clusterIP: 10.96.1.10, selector: {app: web}, loadBalancerSourceRanges: [10.244.0.0/16], ports: [{name: tcp, port: 80, targetPort: 8080}, {name: udp, protocol: UDP, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: self-ours}
spec: {clusterIP: 10.96.2.1, selector: {app: client-ours}, ports: [{name: tcp, port: 80, targetPort: 8080}, {name: udp, protocol: UDP, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: self-theirs}
spec: {clusterIP: 10.96.2.2, selector: {app: client-theirs}, ports: [{name: tcp, port: 80, targetPort: 8080}, {name: udp, protocol: UDP, port: 80, targetPort: 8080}]}
`

// rig is a cluster of three nodes: ours has our agent, the others the real kube-proxy.
type rig struct {
	*bench
	client kubernetes.Interface
	nodes  map[string]*cluster.Node
	pods   map[string]*corev1.Pod
	prober
	// kubeProxy of node theirs.
	kubeProxy *cluster.Program
}

func newRig(t *testing.T, mode string) *rig {
	t.Helper()
	r := newNodes(t, mode)
	r.agent("ours")
	return r
}

// newNodes is a rig before it has our agent.
func newNodes(t *testing.T, mode string) *rig {
	t.Helper()
	return newNodesBy(t, mode, "", false)
}

// newNodesBy detects what is local by a part of KubeProxyConfiguration; empty: by addresses. six:
// the Services are of IPv6, in a cluster of two families.
func newNodesBy(t *testing.T, mode, detect string, six bool) *rig {
	t.Helper()
	b := newBenchOf(t, cluster.Config{Host: address, DualStack: six})
	client, err := kubernetes.NewForConfig(b.Admin(t))
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{
		bench: b, client: client, nodes: map[string]*cluster.Node{}, pods: map[string]*corev1.Pod{},
		prober: prober{mode: mode, detect: detect, six: six, places: map[string]place{}},
	}
	b.kubectl(b.manifests("kube-proxy-replacement", "--set", "controlPlane.topologyMode=Disabled",
		"--set", "agent.workloadCIDRs=["+cluster.PodCIDR+"]"), "apply", "--server-side", "-f", "-")
	b.until("the account of pods is there", func() bool {
		_, err := client.CoreV1().ServiceAccounts("default").Get(t.Context(), "default", metav1.GetOptions{})
		return err == nil
	})
	for name, zone := range map[string]string{"ours": "zone-a", "theirs": "zone-a", "third": "zone-b"} {
		r.nodes[name] = b.AddNode(t, name, zone)
		r.pod("web-"+name, "web", name)
	}
	r.pod("only-third", "third", "third")
	r.pod("client-ours", "client-ours", "ours")
	r.pod("client-theirs", "client-theirs", "theirs")
	for name := range r.pods {
		b.until("pod "+name+" is ready", func() bool { return r.ready(name) })
	}
	for name, node := range r.nodes {
		p := place{node: node.NS.NS, addr: node.Addr}
		if six {
			p.addr = node.Addr6
		}
		if client := r.pods["client-"+name]; client != nil {
			p.pod, p.podAddr = node.PodNamespace(client.UID), client.Status.PodIP
			if six {
				p.podAddr = client.Status.PodIPs[1].IP
			}
		}
		r.places[name] = p
	}
	b.kubectl(r.prober.services(), "apply", "-f", "-")
	b.kubectl("", "patch", "service", "balanced", "--subresource=status", "--type=merge",
		"-p", `{"status":{"loadBalancer":{"ingress":[{"ip":"`+r.address("203.0.113.10")+`"}]}}}`)
	if detect == "" {
		r.kubeProxy = r.nodes["theirs"].KubeProxy(t, mode, false)
		r.nodes["third"].KubeProxy(t, mode, false)
		return r
	}
	for _, name := range []string{"theirs", "third"} {
		r.nodes[name].Run(t, "kube-proxy", cluster.Binary(t, "kube-proxy"), "--config="+r.configuration(name, b.Kubeconfig(t, "kube-proxy")),
			"--hostname-override="+name)
	}
	return r
}

// agent runs ours on a node, in kube-proxy's place.
func (r *rig) agent(node string) *cluster.Program {
	r.t.Helper()
	return r.nodes[node].Run(r.t, "agent", testkit.Binary(r.t), "node", "--kubeconfig", r.kubeconfigOf("proxima-agent"), "--node-name", node,
		"--mode", r.mode, "--workload-cidr", r.PodCIDRs(), "--data-dir", r.t.TempDir(), "--spiffe-socket", "none")
}

// configuration is the file of a node's kube-proxy, or of our agent in its place.
func (r *rig) configuration(node, kubeconfig string) string {
	r.t.Helper()
	path := filepath.Join(r.t.TempDir(), "kube-proxy-"+node+".yaml")
	text := "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: " + r.mode + "\n" +
		"clientConnection: {kubeconfig: " + kubeconfig + "}\nconntrack: {maxPerCore: 0}\niptables: {localhostNodePorts: false}\n" + r.detect
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
	return path
}

// TestLocalByInterface: the same where what is local is known by the interface that it arrives by.
func TestLocalByInterface(t *testing.T) {
	for _, c := range []struct{ name, mode, detect string }{
		// The node's ends of the links of pods are pod1, pod2 and so on.
		{"prefix nftables", "nftables", "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: po}\n"},
		{"prefix iptables", "iptables", "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: po}\n"},
		{"another prefix nftables", "nftables", "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: cali}\n"},
		{"bridge nftables", "nftables", "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: CLIENT}\n"},
		{"bridge iptables", "iptables", "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: CLIENT}\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newNodesBy(t, c.mode, strings.ReplaceAll(c.detect, "CLIENT", "pod2"), false)
			r.nodes["ours"].Run(t, "agent", testkit.Binary(t), "node", "--kube-proxy-config", r.configuration("ours", r.kubeconfigOf("proxima-agent")),
				"--node-name", "ours", "--data-dir", t.TempDir(), "--spiffe-socket", "none", "--dns-port", "0")
			r.compare(t)
		})
	}
}

// pod is created, bound to a node.
func (r *rig) pod(name, app, node string) {
	r.t.Helper()
	self, err := os.Executable()
	if err != nil {
		r.t.Fatal(err)
	}
	made, err := r.client.CoreV1().Pods("default").Create(r.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": app}},
		Spec: corev1.PodSpec{NodeName: node, TerminationGracePeriodSeconds: new(int64(1)), Containers: []corev1.Container{{
			Name: "main", Image: "none", Command: []string{self}, Env: []corev1.EnvVar{{Name: podVariable, Value: name}},
			Ports: []corev1.ContainerPort{{ContainerPort: 8080}},
		}}},
	}, metav1.CreateOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	r.pods[name] = made
}

func (r *rig) ready(name string) bool {
	p, err := r.client.CoreV1().Pods("default").Get(r.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		return false
	}
	r.pods[name] = p
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// TestBesideKubeProxy: on the same objects, a node with our agent behaves as one with the real
// kube-proxy: who answers, what address they see, what is refused and what is dropped.
func TestBesideKubeProxy(t *testing.T) {
	for _, mode := range []string{"nftables", "iptables"} {
		t.Run(mode, func(t *testing.T) { newRig(t, mode).compare(t) })
	}
}

// TestBesideKubeProxyIPv6: the same over IPv6, in a cluster of two families.
func TestBesideKubeProxyIPv6(t *testing.T) {
	for _, mode := range []string{"nftables", "iptables"} {
		t.Run(mode, func(t *testing.T) {
			r := newNodesBy(t, mode, "", true)
			r.agent("ours")
			r.compare(t)
		})
	}
}

// compare the node with our agent with that of kube-proxy.
func (r *rig) compare(t *testing.T) {
	t.Helper()
	n := r.prober.compare(t, r.until)
	t.Logf("%d probes compared with kube-proxy %s", n, cluster.Version(t))
}
