//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	apiAddress = "127.0.0.1:6443"
	nodeName   = "edge-1"
)

// cluster is a machine with a control plane, services, and one agent that
// programs the machine's kernel: ours, or kube-proxy.
type cluster struct {
	*machine
	binary    string
	kubeProxy string // empty: ours is the agent
	services  int
	dir       string
	plane     *process
	agent     *process // nil: it does not run
	client    kubernetes.Interface
	moves     int
}

func newCluster(ctx context.Context, binary, kubeProxy string, services int) (_ *cluster, err error) {
	c := &cluster{binary: binary, kubeProxy: kubeProxy, services: services}
	defer func() {
		if err != nil {
			c.end()
		}
	}()
	if c.dir, err = os.MkdirTemp("", "proxima-bench-"); err != nil {
		return nil, err
	}
	if c.machine, err = newMachine(ctx, "pmus-node"); err != nil {
		return nil, err
	}
	data := filepath.Join(c.dir, "plane")
	c.plane, err = c.start(binary, "control-plane", "--role", "standalone", "--data-dir", data,
		"--store", "sqlite:"+filepath.Join(data, "store.db"), "--api-address", apiAddress, "--service-cidr", ranges[0].String())
	if err != nil {
		return nil, err
	}
	if _, err := c.plane.ready(ctx); err != nil {
		return nil, err
	}
	if err := c.connect(); err != nil {
		return nil, err
	}
	if err := c.prepareAgent(ctx); err != nil {
		return nil, err
	}
	err = c.each(ctx, func(i int) error {
		if _, err := c.client.CoreV1().Services("default").Create(ctx, service(i), metav1.CreateOptions{}); err != nil {
			return err
		}
		_, err := c.client.DiscoveryV1().EndpointSlices("default").Create(ctx, slice(i, endpointsOf(i, 0, 3)), metav1.CreateOptions{})
		return err
	})
	return c, err
}

func (c *cluster) kubeconfig() string { return filepath.Join(c.dir, "plane", "kubeconfig") }

// connect a client to the API, from this namespace.
func (c *cluster) connect() error {
	cfg, err := clientcmd.BuildConfigFromFlags("", c.kubeconfig())
	if err != nil {
		return err
	}
	cfg.QPS, cfg.Dial, cfg.ContentType = -1, c.DialContext, "application/vnd.kubernetes.protobuf"
	c.client, err = kubernetes.NewForConfig(cfg)
	return err
}

// kubeProxyConfig leaves at its defaults what decides how fast kube-proxy is.
const kubeProxyConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {kubeconfig: %s}
hostnameOverride: %s
clusterCIDR: %s
conntrack: {maxPerCore: 0, min: 0}
`

// prepareAgent writes what it is to be started with.
func (c *cluster) prepareAgent(ctx context.Context) error {
	if c.kubeProxy == "" {
		token, err := c.Output(ctx, c.binary, "token", "create", "--kind", "node", "--name", nodeName, "--kubeconfig", c.kubeconfig())
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(c.dir, "token"), token, 0o600)
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: workloads.Addr().Next().String()}}},
	}
	if _, err := c.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		return err
	}
	if _, err := c.client.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{}); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(c.dir, "kube-proxy.conf"), fmt.Appendf(nil, kubeProxyConfig, c.kubeconfig(), nodeName, workloads), 0o600)
}

// run the agent, without waiting for anything.
func (c *cluster) run() (err error) {
	if c.kubeProxy != "" {
		c.agent, err = c.start(c.kubeProxy, "--config", filepath.Join(c.dir, "kube-proxy.conf"))
		return err
	}
	c.agent, err = c.start(c.binary, "node", "--server", apiAddress, "--token-file", filepath.Join(c.dir, "token"),
		"--node-name", nodeName, "--mode", "nftables", "--data-dir", filepath.Join(c.dir, "agent"))
	return err
}

// forget what the agent, which must not run, left in the kernel and of the state.
func (c *cluster) forget(ctx context.Context) error {
	if c.kubeProxy != "" {
		_, err := c.nft(ctx, "flush ruleset\n")
		return err
	}
	if err := os.Remove(filepath.Join(c.dir, "agent", "node", "view")); err != nil {
		return err
	}
	_, err := c.Output(ctx, c.binary, "node", "--cleanup")
	return err
}

func (c *cluster) end() {
	for _, p := range []*process{c.agent, c.plane} {
		if p != nil {
			p.kill()
		}
	}
	if c.machine != nil {
		c.close()
	}
	_ = os.RemoveAll(c.dir)
}

// each calls f for all services, several at a time.
func (c *cluster) each(ctx context.Context, f func(i int) error) error {
	const workers = 8
	next := make(chan int)
	errs := make([]error, workers)
	var running sync.WaitGroup
	for w := range workers {
		running.Go(func() {
			for i := range next {
				if errs[w] == nil && ctx.Err() == nil {
					errs[w] = f(i)
				}
			}
		})
	}
	for i := range c.services {
		next <- i
	}
	close(next)
	running.Wait()
	return errors.Join(append(errs, ctx.Err())...)
}

func service(i int) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("s", i), Namespace: "default"},
		Spec:       corev1.ServiceSpec{ClusterIP: vip(i).String(), Ports: []corev1.ServicePort{{Name: "p", Port: servicePort}}},
	}
}

func slice(i int, to []netip.AddrPort) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprint("s", i, "-1"), Namespace: "default", Labels: map[string]string{discoveryv1.LabelServiceName: fmt.Sprint("s", i)},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("p"), Port: new(int32(endpointPort)), Protocol: new(corev1.ProtocolTCP)}},
	}
	for _, e := range to {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{e.Addr().String()}})
	}
	return s
}

// put replaces a slice.
func (c *cluster) put(ctx context.Context, s *discoveryv1.EndpointSlice) error {
	_, err := c.client.DiscoveryV1().EndpointSlices("default").Update(ctx, s, metav1.UpdateOptions{})
	return err
}

// move makes another endpoint the only one of service 0.
func (c *cluster) move(ctx context.Context) error {
	c.moves++
	return c.put(ctx, slice(0, []netip.AddrPort{c.moved()}))
}

// moved is where service 0 is; no service has such an endpoint from the start.
func (c *cluster) moved() netip.AddrPort { return endpoint(0, 100+c.moves%8) }

// reaction is the time from the request that moves service 0 to the first answer
// of where it moved to. By then all earlier changes are in place, too.
func (c *cluster) reaction(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	if err := c.move(ctx); err != nil {
		return 0, err
	}
	if err := c.awaitMoved(ctx); err != nil {
		return 0, err
	}
	return time.Since(began), nil
}

// awaitMoved sends requests until service 0 is where it was moved last.
func (c *cluster) awaitMoved(ctx context.Context) error {
	return c.await(ctx, vip(0), func(who netip.Addr) bool { return who == c.moved().Addr() })
}

// await sends requests to a service until the right endpoint answers.
func (c *cluster) await(ctx context.Context, vip netip.Addr, right func(netip.Addr) bool) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		one, done := context.WithTimeout(ctx, 100*time.Millisecond) // what is not translated may be dropped
		who, _, err := c.asked(one, at(vip))
		done()
		if err == nil && right(who) {
			return nil
		}
		select {
		case <-c.agent.ended:
			return fmt.Errorf("%s ended:\n%.2000s", strings.Join(c.agent.cmd.Args, " "), c.agent.stderr.String())
		case <-ctx.Done():
			return fmt.Errorf("service at %s: %w; last answer %s, %w", vip, ctx.Err(), who, err)
		default:
		}
	}
}

// load is traffic to services, until end.
type load struct {
	stop    context.CancelFunc
	running sync.WaitGroup

	mu           sync.Mutex
	made, failed int
	first        error // of those that failed
}

// startLoad makes new connections to services that do not change.
func (c *cluster) startLoad(ctx context.Context) *load {
	const clients = 4
	l := &load{}
	ctx, l.stop = context.WithCancel(ctx)
	for w := range clients {
		l.running.Go(func() {
			for i := w; pause(ctx, 2*time.Millisecond) == nil; i += 7919 {
				one, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
				_, resent, err := c.asked(one, at(vip(1+i%(c.services-1))))
				cancel()
				if err == nil && resent {
					err = errors.New("a packet was lost")
				}
				l.note(err)
			}
		})
	}
	return l
}

func (l *load) note(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.made++
	if err != nil {
		l.failed++
		if l.first == nil {
			l.first = err
		}
	}
}

func (l *load) end() (made, failed int, first error) {
	l.stop()
	l.running.Wait()
	return l.made, l.failed, l.first
}
