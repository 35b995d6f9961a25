package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	kernelnetns "github.com/proxima-mesh/proxima/internal/kernel/netns"
	"github.com/proxima-mesh/proxima/internal/testkit"
	"github.com/proxima-mesh/proxima/internal/testkit/netns"
)

// Node is a network namespace with a stand-in for kubelet, which registers a Node, and runs
// the pods that are bound to it: the command of the first container, in a namespace of the
// pod. It has the credentials of a kubelet, and what the Node authoriser allows.
//
// A pod is ready when its first TCP port takes connections. There are no images, volumes,
// probes and restarts; a pod with hostNetwork runs in the namespace of the node.
type Node struct {
	NS     *netns.NS
	Name   string
	Addr   string
	c      *Cluster
	t      testing.TB
	number int
	client kubernetes.Interface

	mu   sync.Mutex
	pods map[types.UID]*pod
	next int
	work sync.WaitGroup
}

// pod that runs.
type pod struct {
	ns   *kernelnetns.NS // nil: that of the node
	addr string
	cmd  *exec.Cmd
	done chan struct{}
	gone bool // its end has begun
}

// AddNode adds a node in a topology zone. It is gone, with its pods, when the test ends.
func (c *Cluster) AddNode(t testing.TB, name, zone string) *Node {
	t.Helper()
	c.nodes++
	if c.nodes > maxNodes {
		t.Fatalf("more than %d nodes", maxNodes)
	}
	n := &Node{Name: name, Addr: nodeAddr(c.nodes).String(), c: c, t: t, number: c.nodes, pods: map[types.UID]*pod{}}
	n.NS = c.nodeNetwork(t, name, n.number)
	c.User(t, name, "system:node:"+name, "system:nodes")
	client, err := kubernetes.NewForConfig(c.REST(t, name))
	if err != nil {
		t.Fatal(err)
	}
	n.client = client
	ctx, cancel := context.WithCancel(context.Background())
	if err := n.register(ctx, zone); err != nil {
		t.Fatal(err)
	}
	n.work.Go(func() { n.follow(ctx) })
	t.Cleanup(func() {
		cancel()
		n.work.Wait()
		n.stopAll()
	})
	return n
}

func (n *Node) register(ctx context.Context, zone string) error {
	cpu := corev1.ResourceList{corev1.ResourceCPU: apiresource.MustParse("4"), corev1.ResourcePods: apiresource.MustParse("110")}
	made, err := n.client.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: map[string]string{
			corev1.LabelHostname: n.Name, corev1.LabelTopologyZone: zone, corev1.LabelOSStable: "linux",
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	made.ResourceVersion = "" // controllers taint a new node meanwhile
	made.Status = corev1.NodeStatus{
		Capacity: cpu, Allocatable: cpu, Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: n.Addr}},
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "StandIn"}},
	}
	_, err = n.client.CoreV1().Nodes().UpdateStatus(ctx, made, metav1.UpdateOptions{})
	return err
}

// follow the pods that are bound to the node until ctx ends.
func (n *Node) follow(ctx context.Context) {
	lw := cache.NewListWatchFromClient(n.client.CoreV1().RESTClient(), "pods", metav1.NamespaceAll,
		fields.OneTermEqualSelector("spec.nodeName", n.Name))
	_, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: lw, ObjectType: &corev1.Pod{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { n.observe(ctx, obj.(*corev1.Pod)) },
			UpdateFunc: func(_, obj any) { n.observe(ctx, obj.(*corev1.Pod)) },
		},
	})
	controller.RunWithContext(ctx)
}

// observe starts a pod that is new, and ends one that is to go. It does not block.
func (n *Node) observe(ctx context.Context, p *corev1.Pod) {
	n.mu.Lock()
	defer n.mu.Unlock()
	running := n.pods[p.UID]
	switch {
	case p.DeletionTimestamp != nil && (running == nil || !running.gone):
		if running != nil {
			running.gone = true
		}
		n.work.Go(func() { n.end(ctx, p, running) })
	case p.DeletionTimestamp == nil && running == nil:
		running, err := n.start(p)
		if err != nil {
			n.t.Errorf("node %s: pod %s/%s: %v", n.Name, p.Namespace, p.Name, err)
			return
		}
		n.pods[p.UID] = running
		n.work.Go(func() { n.report(ctx, p, running) })
	}
}

// start runs the command of a pod's first container.
func (n *Node) start(p *corev1.Pod) (*pod, error) {
	of := p.Spec.Containers[0]
	command := append(append([]string(nil), of.Command...), of.Args...)
	if len(command) == 0 {
		return nil, errors.New("its container has no command, and there are no images")
	}
	run := &pod{addr: n.Addr, done: make(chan struct{})}
	where := n.NS.NS
	if !p.Spec.HostNetwork {
		if n.next++; n.next > maxPods {
			return nil, fmt.Errorf("more than %d pods", maxPods)
		}
		ns, addr, err := n.podNetwork(p.Name, n.next)
		if err != nil {
			return nil, err
		}
		run.ns, run.addr, where = ns, addr.String(), ns
	}
	for i, a := range command { // as kubelet does, for the fields that manifests of ours refer to
		command[i] = strings.NewReplacer("$(POD_IP)", run.addr, "$(NODE_NAME)", n.Name).Replace(a)
	}
	log, err := os.OpenFile(filepath.Join(n.c.dir, "pod-"+p.Namespace+"-"+p.Name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the child has its own
	run.cmd = exec.Command(command[0], command[1:]...)
	run.cmd.Stdout, run.cmd.Stderr, run.cmd.Env = log, log, testkit.CleanEnv()
	for _, e := range of.Env {
		run.cmd.Env = append(run.cmd.Env, e.Name+"="+e.Value)
	}
	run.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := where.Start(run.cmd); err != nil {
		return nil, err
	}
	go func() {
		_ = run.cmd.Wait()
		close(run.done)
	}()
	return run, nil
}

// report writes the pod's status: ready once its port takes connections, failed when its
// process has ended by itself.
func (n *Node) report(ctx context.Context, p *corev1.Pod, run *pod) {
	if !n.listens(ctx, p, run) {
		return
	}
	n.status(ctx, p, run, corev1.PodRunning, true)
	select {
	case <-run.done:
		n.mu.Lock()
		gone := run.gone
		n.mu.Unlock()
		if !gone {
			n.status(ctx, p, run, corev1.PodFailed, false)
		}
	case <-ctx.Done():
	}
}

// listens waits for the pod's port; a pod without one is ready at once.
func (n *Node) listens(ctx context.Context, p *corev1.Pod, run *pod) bool {
	ports := p.Spec.Containers[0].Ports
	if len(ports) == 0 {
		return true
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		c, err := n.NS.DialContext(ctx, "tcp", net.JoinHostPort(run.addr, fmt.Sprint(ports[0].ContainerPort)))
		if err == nil {
			_ = c.Close()
			return true
		}
		select {
		case <-tick.C:
		case <-run.done:
			n.status(ctx, p, run, corev1.PodFailed, false)
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// status writes what kubelet would.
func (n *Node) status(ctx context.Context, p *corev1.Pod, run *pod, phase corev1.PodPhase, ready bool) {
	is := corev1.ConditionFalse
	if ready {
		is = corev1.ConditionTrue
	}
	p = p.DeepCopy()
	now := metav1.Now()
	p.Status = corev1.PodStatus{
		Phase: phase, HostIP: n.Addr, HostIPs: []corev1.HostIP{{IP: n.Addr}},
		PodIP: run.addr, PodIPs: []corev1.PodIP{{IP: run.addr}}, StartTime: &now,
		Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, {Type: corev1.PodInitialized, Status: corev1.ConditionTrue},
			{Type: corev1.ContainersReady, Status: is}, {Type: corev1.PodReady, Status: is},
		},
	}
	p.ResourceVersion = "" // kubelet is the only writer of what it writes
	_, err := n.client.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, p, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
		n.t.Errorf("node %s: status of pod %s/%s: %v", n.Name, p.Namespace, p.Name, err)
	}
}

// end stops a pod within its grace period, and deletes the object.
func (n *Node) end(ctx context.Context, p *corev1.Pod, run *pod) {
	if run != nil {
		run.stop(time.Duration(*p.DeletionGracePeriodSeconds) * time.Second)
	}
	err := n.client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{
		GracePeriodSeconds: new(int64(0)), Preconditions: metav1.NewUIDPreconditions(string(p.UID)),
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && ctx.Err() == nil {
		n.t.Errorf("node %s: delete pod %s/%s: %v", n.Name, p.Namespace, p.Name, err)
	}
}

func (p *pod) stop(grace time.Duration) {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(grace):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
	if p.ns != nil {
		_ = p.ns.Close()
	}
}

// stopAll ends what runs when the node goes.
func (n *Node) stopAll() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range n.pods {
		if !p.gone {
			p.stop(0)
		}
	}
}

// Program is a program that runs on a node.
type Program struct{ part *part }

// Stop ends the program by SIGTERM, and waits until it is gone. It is idempotent.
func (p *Program) Stop(t testing.TB) {
	t.Helper()
	p.part.stop(t, syscall.SIGTERM)
}

// Kill ends the program as a crash does, and waits until it is gone.
func (p *Program) Kill(t testing.TB) {
	t.Helper()
	p.part.stop(t, syscall.SIGKILL)
}

// PID of the program.
func (p *Program) PID() int { return p.part.cmd.Process.Pid }

// KubeProxy runs the real kube-proxy on the node, until the test ends. With cleanup it removes
// its rules, and ends.
func (n *Node) KubeProxy(t testing.TB, mode string, cleanup bool) *Program {
	t.Helper()
	cmd := exec.Command(Binary(t, "kube-proxy"), "--kubeconfig="+n.c.Kubeconfig(t, "kube-proxy"),
		"--hostname-override="+n.Name, "--proxy-mode="+mode, "--cluster-cidr="+PodCIDR, "--conntrack-max-per-core=0",
		"--healthz-bind-address=127.0.0.1:10256", "--metrics-bind-address=127.0.0.1:10249",
		fmt.Sprintf("--cleanup=%t", cleanup))
	return &Program{startIn(t, n.NS, n.c.dir, "kube-proxy-"+n.Name, cmd)}
}

// Run runs a program on the node, until the test ends.
func (n *Node) Run(t testing.TB, name, path string, args ...string) *Program {
	t.Helper()
	return &Program{startIn(t, n.NS, n.c.dir, name+"-"+n.Name, exec.Command(path, args...))}
}

// Wait until the program has ended by itself.
func (p *Program) Wait(t testing.TB) {
	t.Helper()
	select {
	case <-p.part.done:
		if p.part.err != nil {
			t.Errorf("%s: %v\n%s", p.part.name, p.part.err, p.part.tail())
		}
	case <-time.After(startTimeout):
		t.Errorf("%s has not ended after %s", p.part.name, startTimeout)
	}
}

// KillPod kills the process of a pod, as a crash does. The pod has failed then: nothing starts
// it again.
func (n *Node) KillPod(t testing.TB, uid types.UID) {
	t.Helper()
	n.mu.Lock()
	p := n.pods[uid]
	n.mu.Unlock()
	if p == nil {
		t.Fatalf("node %s has no pod %s", n.Name, uid)
	}
	_ = p.cmd.Process.Kill()
	<-p.done
}

// PodNamespace is the network namespace of a pod that runs; nil: there is none. It is the
// node's and must not be closed.
func (n *Node) PodNamespace(uid types.UID) *kernelnetns.NS {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p := n.pods[uid]; p != nil {
		return p.ns
	}
	return nil
}
