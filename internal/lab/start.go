package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/proxima-mesh/proxima/internal/kernel/netns"
	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// Lab is a lab that is up. Safe for concurrent use, except Close.
type Lab struct {
	spec Spec
	ns   *namespaces
	kept *kept
	// client of the API, from the control plane's own machine; its connections.
	client    *kubeclient.Client
	transport *http.Transport
	started   []*process
}

// Start creates a lab and returns when every zone's client has been served. If that
// fails, or ctx ends before, nothing is left of it. The lab outlives this process
// unless Down ends it, or Spec.Temporary is set.
func Start(ctx context.Context, spec Spec) (_ *Lab, err error) {
	spec, err = spec.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := netns.Available(); err != nil {
		return nil, &unavailableError{err}
	}
	if err := sweep(ctx); err != nil {
		return nil, err
	}
	left, err := netns.List(namespacePrefix(spec.Name))
	if err != nil {
		return nil, err
	}
	if exists(dirOf(spec.Name), left) {
		return nil, &UpError{Name: spec.Name}
	}
	l, err := claim(spec)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			l.Close()
			_, downErr := Down(context.WithoutCancel(ctx), spec.Name)
			l.reaped()
			err = errors.Join(err, downErr)
		}
	}()
	return l, l.build(ctx)
}

// claim the name: of two that start the same lab, one makes the folder.
func claim(spec Spec) (*Lab, error) {
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, err
	}
	if err := os.Mkdir(dirOf(spec.Name), 0o700); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil, &UpError{Name: spec.Name}
		}
		return nil, err
	}
	l := &Lab{spec: spec, ns: &namespaces{lab: spec.Name, open: map[string]*netns.NS{}}, kept: &kept{path: statePath(spec.Name)}}
	return l, l.kept.change(func(s *state) {
		*s = state{
			Name: spec.Name, Zones: spec.Zones, Nodes: spec.Nodes, Mode: spec.Mode, IPv4Only: spec.IPv4Only, Executable: spec.Executable,
			LeaseSeconds: int(spec.Lease / time.Second), Processes: map[string]int{},
		}
		if spec.Temporary {
			s.Owner, s.OwnerSince = os.Getpid(), since(os.Getpid())
		}
	})
}

func (l *Lab) build(ctx context.Context) error {
	families := "IPv4 and IPv6"
	if l.spec.IPv4Only {
		families = "IPv4 only"
	}
	l.spec.Progress(fmt.Sprintf("network: %d zones of %d nodes, %s", l.spec.Zones, l.spec.Nodes, families))
	if err := l.ns.lay(l.spec); err != nil {
		return err
	}
	if err := l.startControlPlane(ctx); err != nil {
		return err
	}
	if err := l.startAgents(ctx); err != nil {
		return err
	}
	vips, err := l.createService(ctx)
	if err != nil {
		return err
	}
	if err := l.startWorkloads(ctx); err != nil {
		return err
	}
	for _, vip := range vips {
		if err := l.awaitAnswers(ctx, vip); err != nil {
			return err
		}
	}
	return l.kept.change(func(s *state) { s.VIPs = vips })
}

// Kubeconfig is the path of the administrator's, for use in the lab's namespaces.
func (l *Lab) Kubeconfig() string { return kubeconfigOf(l.spec.Name) }

func kubeconfigOf(name string) string { return filepath.Join(dirOf(name), control, "kubeconfig") }

func (l *Lab) startControlPlane(ctx context.Context) error {
	l.spec.Progress("control plane: " + apiAddress)
	p, err := l.start("control-plane", l.ns.open[control], "control-plane", "--role", "standalone",
		"--data-dir", filepath.Join(dirOf(l.spec.Name), control), "--api-address", apiAddress, "--service-cidr", l.spec.serviceRanges())
	if err != nil {
		return err
	}
	l.started = append(l.started, p)
	if err := p.ready(ctx); err != nil {
		return err
	}
	return l.connect()
}

// connect a client to the API, from the machine that it runs on.
func (l *Lab) connect() error {
	cfg, err := clientcmd.BuildConfigFromFlags("", l.Kubeconfig())
	if err != nil {
		return err
	}
	tls, err := rest.TLSConfigFor(cfg)
	if err != nil {
		return err
	}
	l.transport = &http.Transport{TLSClientConfig: tls, ForceAttemptHTTP2: true, DialContext: l.ns.open[control].DialContext}
	token := cfg.BearerToken
	cfg = &rest.Config{Host: cfg.Host, BearerToken: token, BearerTokenFile: cfg.BearerTokenFile, Transport: l.transport, QPS: -1}
	l.client, err = kubeclient.New(cfg, kind.All())
	return err
}

func (l *Lab) startAgents(ctx context.Context) error {
	var agents []*process
	for _, n := range l.spec.nodes() {
		p, err := l.startAgent(ctx, n)
		if err != nil {
			return err
		}
		agents = append(agents, p)
	}
	for i, p := range agents {
		if err := p.ready(ctx); err != nil {
			return err
		}
		l.spec.Progress("node: " + l.spec.nodes()[i].name())
	}
	return nil
}

// DataDir of a node's agent, by which commands such as `proxima trace` find it.
func (l *Lab) DataDir(node string) string { return filepath.Join(dirOf(l.spec.Name), node) }

// startAgent of a node; it gets a token of its own, also when it starts again.
func (l *Lab) startAgent(ctx context.Context, n node) (*process, error) {
	dir := l.DataDir(n.name())
	tokenFile := filepath.Join(dir, "token")
	if _, err := os.Stat(tokenFile); errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
		token, err := l.ns.open[control].Output(ctx, l.spec.Executable, "token", "create",
			"--kind", "node", "--name", n.name(), "--kubeconfig", l.Kubeconfig())
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(tokenFile, token, 0o600); err != nil {
			return nil, err
		}
	}
	args := []string{
		"node", "--server", apiAddress, "--token-file", tokenFile,
		"--node-name", n.name(), "--zone", n.zone.name(), "--data-dir", dir, "--mode", l.spec.Mode,
	}
	p, err := l.start(n.name()+"-agent", l.ns.open[n.name()], append(args, l.spec.leaseFlag()...)...)
	if err == nil {
		l.started = append(l.started, p)
	}
	return p, err
}

// leaseFlag of nodes and workloads.
func (s Spec) leaseFlag() []string {
	if s.Lease == 0 {
		return nil
	}
	return []string{"--lease-duration", s.Lease.String()}
}

// createService with an address of every family, and return these with the port.
func (l *Lab) createService(ctx context.Context) (vips []string, err error) {
	near := corev1.ServiceTrafficDistributionPreferSameZone
	families := corev1.IPFamilyPolicyPreferDualStack // a range of one family gives one
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: serviceName, Namespace: metav1.NamespaceDefault},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": serviceName}, TrafficDistribution: &near, IPFamilyPolicy: &families,
			Ports: []corev1.ServicePort{{Name: "http", Port: servicePort, TargetPort: intstr.FromString("http")}},
		},
	}
	created, err := l.client.Create(ctx, kind.Service, svc)
	if err != nil {
		return nil, fmt.Errorf("create service %s: %w", serviceName, err)
	}
	for _, ip := range created.(*corev1.Service).Spec.ClusterIPs {
		vips = append(vips, net.JoinHostPort(ip, strconv.Itoa(servicePort)))
	}
	l.spec.Progress("service: default/" + serviceName + " at " + strings.Join(vips, " and "))
	return vips, nil
}

func (l *Lab) startWorkloads(ctx context.Context) error {
	for _, n := range l.spec.nodes() {
		if err := l.startWorkload(n); err != nil {
			return err
		}
	}
	want := len(l.spec.nodes())
	if err := AwaitEndpoints(ctx, l.client, serviceName, want*len(l.spec.addrs(controlAddr(1)))); err != nil {
		return fmt.Errorf("workloads: %w; see their logs in %s", err, dirOf(l.spec.Name))
	}
	l.spec.Progress(fmt.Sprintf("workloads: %d ready", want))
	return nil
}

func (l *Lab) startWorkload(n node) error {
	port := strconv.Itoa(servicePort)
	var addresses, listen []string
	for _, a := range l.spec.addrs(n.addr()) {
		addresses, listen = append(addresses, a.Addr().String()), append(listen, net.JoinHostPort(a.Addr().String(), port))
	}
	args := append([]string{
		"run", "--name", n.workload(), "--labels", "app=" + serviceName,
		"--port", "http:" + port, "--address", strings.Join(addresses, ","), "--node-name", n.name(), "--ready-http", "/",
		"--kubeconfig", l.Kubeconfig(), "--data-dir", l.DataDir(n.name()),
	}, l.spec.leaseFlag()...)
	args = append(args, "--", l.spec.Executable, "demo", "backend", "--name", n.workload(), "--zone", n.zone.name(),
		"--listen", strings.Join(listen, ","))
	p, err := l.start(n.name()+"-workload", l.ns.open[n.name()], args...)
	if err == nil {
		l.started = append(l.started, p)
	}
	return err
}
