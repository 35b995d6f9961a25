package kube_test

import (
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	kernelnetns "github.com/proxima-mesh/proxima/internal/kernel/netns"
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
	// mode of kube-proxy and of our agent.
	mode string
	// detect is how kube-proxy and our agent are told what is local: a part of
	// KubeProxyConfiguration; empty: by addresses, in arguments.
	detect string
	// six: addresses of probes are those of IPv6.
	six bool
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
	r := &rig{bench: b, client: client, mode: mode, detect: detect, six: six, nodes: map[string]*cluster.Node{}, pods: map[string]*corev1.Pod{}}
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
	b.kubectl(r.services(), "apply", "-f", "-")
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

// vantage is where connections are made from, to reach what a node serves.
type vantage struct {
	node string // the node that is tried
	from string // pod, host, outside
	// protocol that is spoken: tcp, or udp.
	protocol string
}

func (r *rig) namespace(v vantage) (ns *kernelnetns.NS, own string) {
	switch v.from {
	case "pod":
		p := r.pods["client-"+v.node]
		return r.nodes[v.node].PodNamespace(p.UID), r.podIP(p)
	case "host":
		return r.nodes[v.node].NS.NS, r.nodeIP(v.node)
	}
	return r.nodes["third"].NS.NS, r.nodeIP("third")
}

func (r *rig) podIP(p *corev1.Pod) string {
	if r.six {
		return p.Status.PodIPs[1].IP
	}
	return p.Status.PodIP
}

func (r *rig) nodeIP(node string) string {
	if r.six {
		return r.nodes[node].Addr6
	}
	return r.nodes[node].Addr
}

var (
	clusterIPs  = regexp.MustCompile(`\b10\.96\.(\d+)\.(\d+)`)
	externalIPs = regexp.MustCompile(`\b203\.0\.113\.(\d+)`)
)

// address of a probe or a Service, which those of IPv6 follow from.
func (r *rig) address(text string) string {
	if !r.six {
		return text
	}
	text = clusterIPs.ReplaceAllString(text, "fd00:10:96::$1:$2")
	return externalIPs.ReplaceAllString(text, "2001:db8:203::$1")
}

// endpoint is HOST:PORT of a probe.
func (r *rig) endpoint(text string) string {
	host, port, _ := strings.Cut(text, ":")
	for _, n := range r.nodes {
		if n.Addr == host && r.six {
			host = n.Addr6
		}
	}
	return net.JoinHostPort(r.address(host), port)
}

// services are those that are probed.
func (r *rig) services() string {
	if !r.six {
		return probedServices
	}
	text := strings.NewReplacer("clusterIP: ", "ipFamilyPolicy: SingleStack, ipFamilies: [IPv6], clusterIP: ", cluster.PodCIDR, cluster.PodCIDR6).Replace(probedServices)
	return r.address(text)
}

// Connections of a probe: three endpoints, one of which is missed by chance once in 10⁷.
const connections = 40

// dropAfter is how long nobody answers where packets are dropped.
const dropAfter = 500 * time.Millisecond

// The same of IPv6. kube-proxy refuses by ICMPv6, which comes back over a veth link while connect still holds the
// socket: Linux takes it for an error that may pass (tcp_v6_err, sk_err_soft), and the connection is refused when
// the SYN is sent again, a second later. So few refusals have to do.
const (
	dropAfter6 = 2500 * time.Millisecond
	refusals6  = 3
)

// outcome of a probe: who answers and what address they see, or how it fails. Names are those
// of the node's view, so that two nodes can be compared.
func (r *rig) outcome(v vantage, address string) string {
	ns, own := r.namespace(v)
	address = r.endpoint(address)
	seen := map[string]bool{}
	refused := 0
	for range connections {
		result := r.connect(ns, v, own, address)
		seen[result] = true
		if result == "refused" {
			refused++
		}
		if result == "dropped" || r.six && refused == refusals6 {
			break
		}
	}
	return strings.Join(slices.Sorted(maps.Keys(seen)), ", ")
}

func (r *rig) connect(ns *kernelnetns.NS, v vantage, own, address string) string {
	patience := dropAfter
	if r.six {
		patience = dropAfter6
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := ns.DialContext(ctx, cmp.Or(v.protocol, "tcp"), address)
	var timeout net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case errors.As(err, &timeout) && timeout.Timeout():
		return "dropped"
	case err != nil:
		return err.Error()
	}
	defer c.Close()
	text, failed := answer(c, v.protocol == "udp")
	if failed != "" {
		return failed
	}
	name, from, _ := strings.Cut(text, " ")
	return r.role(v.node, name) + " sees " + r.who(v.node, from, own)
}

// answer of a pod, or how there is none.
func answer(c net.Conn, packets bool) (text, failed string) {
	if !packets {
		_ = c.SetDeadline(time.Now().Add(commandTimeout))
		all, err := io.ReadAll(c)
		if err != nil {
			return "", err.Error()
		}
		return string(all), ""
	}
	_ = c.SetDeadline(time.Now().Add(dropAfter))
	buffer := make([]byte, 1500)
	_, err := c.Write([]byte("who"))
	n := 0
	if err == nil {
		n, err = c.Read(buffer)
	}
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "", "refused"
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "", "dropped"
	case errors.Is(err, syscall.EPERM): // refused or dropped as it leaves this machine
		return "", "not permitted"
	case err != nil:
		return "", err.Error()
	}
	return string(buffer[:n]), ""
}

// role of a pod, seen from a node.
func (r *rig) role(node, pod string) string {
	other := map[string]string{"ours": "theirs", "theirs": "ours"}[node]
	pod = strings.ReplaceAll(pod, other, "PEER")
	return strings.ReplaceAll(strings.ReplaceAll(pod, node, "own"), "PEER", "peer")
}

// who has an address, seen from a node.
func (r *rig) who(node, address, own string) string {
	prefix := ""
	if p := r.pods["client-"+node]; p != nil {
		prefix = p.Status.PodIP[:strings.LastIndex(p.Status.PodIP, ".")+1]
		if r.six { // fd00:10:244:NODE:POD::2
			prefix = strings.Join(strings.Split(p.Status.PodIPs[1].IP, ":")[:4], ":") + ":"
		}
	}
	switch {
	case address == own:
		return "the client"
	case address == r.nodeIP(node), strings.HasPrefix(address, prefix):
		return "the node"
	}
	return address
}

// probes are addresses by a name; NODE is the address of the node that is tried.
var probes = map[string]struct {
	address string
	from    []string
}{
	"cluster IP":                             {"10.96.1.1:80", []string{"pod", "host"}},
	"no endpoints":                           {"10.96.1.3:80", []string{"pod", "host"}},
	"a port that the Service does not have":  {"10.96.1.1:81", []string{"pod"}},
	"internal policy Local":                  {"10.96.1.4:80", []string{"pod", "host"}},
	"internal policy Local, none here":       {"10.96.1.5:80", []string{"pod", "host"}},
	"node port":                              {"NODE:30080", []string{"pod", "host", "outside"}},
	"node port, external policy Local":       {"NODE:30081", []string{"pod", "host", "outside"}},
	"node port, external policy Local, none": {"NODE:30082", []string{"pod", "host", "outside"}},
	"external IP":                            {"203.0.113.9:80", []string{"pod", "host"}},
	"load balancer, within its ranges":       {"203.0.113.10:80", []string{"pod"}},
	"load balancer, outside its ranges":      {"203.0.113.10:80", []string{"host"}},
}

// better are the probes, by mode, whose outcome is not kube-proxy's: its iptables mode has no rule
// for ports that a Service does not have, so that such packets leave the node by the default
// route. Ours refuses them at once, as kube-proxy's nftables mode does.
var better = map[string]map[string]string{
	"iptables": {"a port that the Service does not have": "refused"},
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
	for _, node := range []string{"ours", "theirs"} {
		seen := ""
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("%s at last: %s", node, seen)
			}
		})
		r.until(node+" serves all Services", func() bool {
			seen = ""
			for _, want := range [][2]string{{"10.96.1.1:80", "web-third"}, {"10.96.2.2:80", "sees"}, {"203.0.113.10:80", "sees"}, {"10.96.1.3:80", "refused"}} {
				got := r.outcome(vantage{node: node, from: "pod"}, want[0])
				if seen += want[0] + ": " + got + "; "; !strings.Contains(got, want[1]) {
					return false
				}
			}
			return true
		})
	}
	compared := 0
	for _, name := range slices.Sorted(maps.Keys(probes)) {
		probe := probes[name]
		for _, from := range probe.from {
			for _, protocol := range []string{"tcp", "udp"} {
				compared++
				t.Run(name+" from "+from+" "+protocol, func(t *testing.T) {
					got := map[string]string{}
					for _, node := range []string{"ours", "theirs"} {
						got[node] = r.outcome(vantage{node, from, protocol}, strings.ReplaceAll(probe.address, "NODE", r.nodes[node].Addr))
					}
					if want, differs := better[r.mode][name]; differs {
						if got["ours"] != want {
							t.Errorf("ours: %s, want %s", got["ours"], want)
						}
					} else if got["ours"] != got["theirs"] {
						t.Errorf("ours: %s\nkube-proxy: %s", got["ours"], got["theirs"])
					}
					t.Log(got["theirs"])
				})
			}
		}
	}
	t.Run("a pod reaches itself", func(t *testing.T) {
		ours, theirs := r.outcome(vantage{node: "ours", from: "pod"}, "10.96.2.1:80"), r.outcome(vantage{node: "theirs", from: "pod"}, "10.96.2.2:80")
		if diff := gocmp.Diff(theirs, ours); diff != "" {
			t.Errorf("(-kube-proxy +ours):\n%s", diff)
		}
		t.Log(theirs)
	})
	t.Run("affinity", func(t *testing.T) {
		seen := map[string]string{}
		for _, node := range []string{"ours", "theirs"} {
			got := r.outcome(vantage{node: node, from: "pod"}, "10.96.1.2:80")
			if _, seen[node], _ = strings.Cut(got, " sees "); strings.Contains(got, ",") || seen[node] == "" {
				t.Errorf("%s: %s", node, got)
			}
		}
		if seen["ours"] != seen["theirs"] && r.detect == "" {
			t.Errorf("it sees %q, and with kube-proxy %q", seen["ours"], seen["theirs"])
		}
	})
	t.Logf("%d probes compared with kube-proxy %s", compared+1, cluster.Version(t))
}
