package cluster

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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
	"github.com/proxima-mesh/proxima/internal/testkit/netns"
)

// Node is a network namespace with a stand-in for kubelet, which registers a Node, and runs
// the pods that are bound to it: the command of the first container, in a namespace of the
// pod. It has the credentials of a kubelet, and what the Node authoriser allows.
//
// A container whose image was loaded ([Cluster.Load]) runs in namespaces of its own, with what its
// security context leaves it and its volumes; any other is a process on the machine's files. A pod
// is ready by its probe of HTTP, or else when its first TCP port takes connections. There are no
// other probes, and a process that is no container is not started again; a pod with hostNetwork runs in the network of the node.
type Node struct {
	NS     *netns.NS
	Name   string
	Addr   string
	Addr6  string // of a cluster of two families
	c      *Cluster
	t      testing.TB
	number int
	client kubernetes.Interface

	mu    sync.Mutex
	pods  map[types.UID]*pod
	order []*corev1.Pod // as they came
	next  int
	off   bool // it does nothing: it hangs, or has no power
	work  sync.WaitGroup
}

// pod that runs.
type pod struct {
	ns    *kernelnetns.NS // nil: that of the node
	where *kernelnetns.NS // ns, or that of the node
	addr  string
	addr6 string // of a cluster of two families
	// cmd is the last process; nil until started is closed. mu guards it.
	mu      sync.Mutex
	cmd     *exec.Cmd
	started chan struct{}
	done    chan struct{}      // closed when there will be no process any more
	cancel  context.CancelFunc // of the starts of a container; nil: there is a process alone
	gone    bool               // its end has begun
}

// AddNode adds a node in a topology zone. It is gone, with its pods, when the test ends.
func (c *Cluster) AddNode(t testing.TB, name, zone string) *Node {
	t.Helper()
	c.nodes++
	if c.nodes > maxNodes {
		t.Fatalf("more than %d nodes", maxNodes)
	}
	n := &Node{Name: name, Addr: nodeAddr(c.nodes).String(), c: c, t: t, number: c.nodes, pods: map[types.UID]*pod{}}
	if c.dual {
		n.Addr6 = nodeAddr6(n.number).String()
	}
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
	if c.grace > 0 {
		n.work.Go(func() { n.renew(ctx, c.grace) })
	}
	c.all = append(c.all, n)
	t.Cleanup(func() {
		cancel()
		n.work.Wait()
		n.stopAll()
		if t.Failed() {
			n.tellLogs()
		}
	})
	return n
}

func (n *Node) register(ctx context.Context, zone string) error {
	cpu := corev1.ResourceList{corev1.ResourceCPU: apiresource.MustParse("4"), corev1.ResourcePods: apiresource.MustParse("110")}
	_, err := n.client.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: map[string]string{
			corev1.LabelHostname: n.Name, corev1.LabelTopologyZone: zone, corev1.LabelOSStable: "linux",
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	addresses := []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: n.Addr}}
	if n.Addr6 != "" {
		addresses = append(addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: n.Addr6})
	}
	return n.writeStatus(ctx, corev1.NodeStatus{Capacity: cpu, Allocatable: cpu, Addresses: addresses, Conditions: []corev1.NodeCondition{ready()}})
}

func ready() corev1.NodeCondition {
	return corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "StandIn", LastHeartbeatTime: metav1.Now()}
}

// writeStatus of the node alone: controllers taint a new node meanwhile, and a node may not change its taints, as it would
// by writing the whole object of before.
func (n *Node) writeStatus(ctx context.Context, status corev1.NodeStatus) error {
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return err
	}
	_, err = n.client.CoreV1().Nodes().Patch(ctx, n.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
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
		running, err := n.start(ctx, p)
		if err != nil {
			n.t.Errorf("node %s: pod %s/%s: %v", n.Name, p.Namespace, p.Name, err)
			return
		}
		n.pods[p.UID] = running
		n.order = append(n.order, p)
		n.work.Go(func() { n.report(ctx, p, running) })
	}
}

// start a pod: its process, or what comes before that of a container.
func (n *Node) start(ctx context.Context, p *corev1.Pod) (*pod, error) {
	run := &pod{addr: n.Addr, addr6: n.Addr6, where: n.NS.NS, done: make(chan struct{}), started: make(chan struct{})}
	if !p.Spec.HostNetwork {
		if n.next++; n.next > maxPods {
			return nil, fmt.Errorf("more than %d pods", maxPods)
		}
		ns, addr, err := n.podNetwork(p.Name, n.next)
		if err != nil {
			return nil, err
		}
		run.ns, run.addr, run.where = ns, addr.String(), ns
		if n.c.dual {
			_, own := podLink6(n.number, n.next)
			run.addr6 = own.String()
		}
	}
	if n.c.images[p.Spec.Containers[0].Image] != nil {
		ctx, cancel := context.WithCancel(ctx)
		run.cancel = cancel
		go n.keepContainer(ctx, p, run) // until stop
		return run, nil
	}
	if of := nativeSidecar(&p.Spec); of != nil && run.ns != nil {
		ctx, cancel := context.WithCancel(ctx)
		run.cancel = cancel
		go n.runWithSidecar(ctx, p, of, run) // until stop
		return run, nil
	}
	args, env, err := n.process(p, run.addr)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := n.launch(ctx, p, run, cmd); err != nil {
		return nil, err
	}
	go func() {
		_ = cmd.Wait()
		close(run.done)
	}()
	return run, nil
}

// restartAfter is the pause before a container that has ended is started again; kubelet's grows.
const restartAfter = 2 * time.Second

// keepContainer starts the container of a pod once its volumes are there, and again whenever it
// ends, until ctx ends.
func (n *Node) keepContainer(ctx context.Context, p *corev1.Pod, run *pod) {
	defer close(run.done)
	last := ""
	for ctx.Err() == nil {
		pause := restartAfter
		if err := n.runContainer(ctx, p, run); err != nil {
			if last != err.Error() {
				n.t.Logf("node %s: pod %s waits: %v", n.Name, p.Name, err)
			}
			last, pause = err.Error(), restartAfter/4
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// runContainer until it ends. An error says why it has not started.
func (n *Node) runContainer(ctx context.Context, p *corev1.Pod, run *pod) error {
	c, err := n.container(ctx, p, run.addr)
	if err != nil {
		return err
	}
	cmd, err := c.process()
	if err != nil {
		return err
	}
	if err := n.launch(ctx, p, run, cmd); err != nil {
		return err
	}
	ctx, ended := context.WithCancel(ctx)
	var refreshing sync.WaitGroup
	refreshing.Go(func() { n.refresh(ctx, p) })
	_ = cmd.Wait()
	ended()
	refreshing.Wait()
	return nil
}

// launch the process of a pod, with its output in a file, unless ctx has ended.
func (n *Node) launch(ctx context.Context, p *corev1.Pod, run *pod, cmd *exec.Cmd) error {
	run.mu.Lock() // so that stop sees the process
	defer run.mu.Unlock()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	log, err := os.OpenFile(n.PodLog(p), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() // the child has its own
	cmd.Stdout, cmd.Stderr = log, log
	if err := run.where.Start(cmd); err != nil {
		return err
	}
	run.cmd = cmd
	select {
	case <-run.started: // before
	default:
		close(run.started)
	}
	return nil
}

// PodLog is the file with the output of a pod.
func (n *Node) PodLog(p *corev1.Pod) string {
	return filepath.Join(n.c.dir, "pod-"+p.Namespace+"-"+p.Name+".log")
}

// report writes the pod's status: ready as its probe or its port says, failed when its process
// has ended by itself.
func (n *Node) report(ctx context.Context, p *corev1.Pod, run *pod) {
	select {
	case <-run.started:
	case <-ctx.Done():
		return
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	was, addressed := false, false
	for {
		is := n.answers(ctx, p, run)
		if !is && !addressed { // its address is known before it is ready
			n.status(ctx, p, run, corev1.PodPending, false)
		}
		addressed = true
		if is != was {
			n.status(ctx, p, run, corev1.PodRunning, is)
			was = is
		}
		if is && p.Spec.Containers[0].ReadinessProbe == nil {
			tick.Stop() // a port is not tried again
		}
		select {
		case <-tick.C:
		case <-run.done:
			n.mu.Lock()
			gone := run.gone
			n.mu.Unlock()
			if !gone {
				n.status(ctx, p, run, corev1.PodFailed, false)
			}
			return
		case <-ctx.Done():
			return
		}
		if p.Spec.Containers[0].ReadinessProbe != nil {
			tick.Reset(time.Second)
		}
	}
}

// answers reports whether a pod is ready. One without a port is ready at once.
func (n *Node) answers(ctx context.Context, p *corev1.Pod, run *pod) bool {
	of := &p.Spec.Containers[0]
	if of.ReadinessProbe != nil && of.ReadinessProbe.HTTPGet != nil {
		return n.probe(ctx, probeURL(p, run.addr))
	}
	if len(of.Ports) == 0 {
		return true
	}
	c, err := n.NS.DialContext(ctx, "tcp", net.JoinHostPort(run.addr, fmt.Sprint(of.Ports[0].ContainerPort)))
	if err != nil {
		return false
	}
	return c.Close() == nil
}

// probe by HTTP, from the node.
func (n *Node) probe(ctx context.Context, url string) bool {
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{
		DialContext: n.NS.DialContext, DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, // as kubelet does
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	answer, err := client.Do(req)
	if err != nil {
		return false
	}
	defer answer.Body.Close()
	return answer.StatusCode < http.StatusBadRequest
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
	if run.addr6 != "" {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: run.addr6})
		p.Status.HostIPs = append(p.Status.HostIPs, corev1.HostIP{IP: n.Addr6})
	}
	if n.isOff() {
		return
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

// process that runs, or was the last one; nil: there was none.
func (p *pod) process() *os.Process {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return nil
	}
	return p.cmd.Process
}

// stop a pod: by SIGTERM, and by SIGKILL after a grace period. Its container is not started again.
func (p *pod) stop(grace time.Duration) {
	if p.cancel != nil {
		p.cancel()
	}
	if cmd := p.process(); cmd != nil {
		_ = cmd.Signal(syscall.SIGTERM)
		select {
		case <-p.done:
		case <-time.After(grace):
			_ = cmd.Kill()
		}
	}
	<-p.done
	if p.ns != nil {
		_ = p.ns.Close()
	}
}

// stopAll ends what runs when the node goes.
func (n *Node) stopAll() {
	n.mu.Lock()
	all := slices.Collect(maps.Values(n.pods))
	n.mu.Unlock()
	for _, p := range all {
		if !p.gone {
			p.stop(0)
		}
	}
}

// tellLogs writes the ends of the logs of containers to that of the test.
func (n *Node) tellLogs() {
	for _, p := range n.order {
		if nativeSidecar(&p.Spec) != nil {
			n.t.Logf("--- node %s, sidecar of pod %s:\n%s", n.Name, p.Name, (&part{log: n.PodLog(p) + ".sidecar"}).tail())
		}
		if n.c.images[p.Spec.Containers[0].Image] != nil {
			n.t.Logf("--- node %s, pod %s:\n%s", n.Name, p.Name, (&part{log: n.PodLog(p)}).tail())
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
		"--hostname-override="+n.Name, "--proxy-mode="+mode, "--cluster-cidr="+n.c.PodCIDRs(), "--conntrack-max-per-core=0",
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
	_ = p.process().Kill()
	<-p.done
}

// PodPID is the process of a pod that runs; 0: there is none.
func (n *Node) PodPID(uid types.UID) int {
	n.mu.Lock()
	p := n.pods[uid]
	n.mu.Unlock()
	if p == nil {
		return 0
	}
	if process := p.process(); process != nil {
		return process.Pid
	}
	return 0
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
