package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/proxima-mesh/proxima/internal/kernel/netns"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// Lab is a lab that is up. Safe for concurrent use, except Close.
type Lab struct {
	spec Spec
	ns   *namespaces
	kept *kept
	// clients of the APIs, by the machine of the control plane.
	connecting sync.Mutex
	clients    map[string]connection
	started    []*process
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
	if err := spec.findEnvoy(); err != nil {
		return nil, err
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
			Name: spec.Name, Zones: spec.Zones, Nodes: spec.Nodes, Mode: spec.Mode, Global: spec.Global, Egress: spec.Egress, IPv4Only: spec.IPv4Only, IPv6Only: spec.IPv6Only, DNSCapture: spec.DNSCapture,
			Executable: spec.Executable, Sidecars: spec.Sidecars, EnvoyGateways: spec.EnvoyGateways, Envoy: spec.Envoy, LeaseSeconds: int(spec.Lease / time.Second), Processes: map[string]int{},
		}
		if spec.Temporary {
			s.Owner, s.OwnerSince = os.Getpid(), since(os.Getpid())
		}
	})
}

func (l *Lab) build(ctx context.Context) error {
	families := "IPv4 and IPv6"
	switch {
	case l.spec.IPv4Only:
		families = "IPv4 only"
	case l.spec.IPv6Only:
		families = "IPv6 only"
	}
	l.spec.Progress(fmt.Sprintf("network: %d zones of %d nodes, %s", l.spec.Zones, l.spec.Nodes, families))
	if err := l.ns.lay(l.spec); err != nil {
		return err
	}
	if err := l.startControlPlanes(ctx); err != nil {
		return err
	}
	if err := l.startAgents(ctx); err != nil {
		return err
	}
	var vips []string
	for _, p := range l.spec.planes() {
		var err error
		if vips, err = l.createService(ctx, p); err != nil {
			return err
		}
	}
	if err := l.startWorkloads(ctx); err != nil {
		return err
	}
	if l.spec.Global {
		return l.exportAll(ctx)
	}
	for _, z := range l.spec.zones() {
		if err := l.awaitAnswers(ctx, z, vips); err != nil {
			return err
		}
	}
	if err := l.kept.change(func(s *state) { s.VIPs = vips }); err != nil || !l.spec.Sidecars {
		return err
	}
	return l.awaitShops(ctx)
}

// exportAll makes the sample services of all zones one, and waits until each zone's client
// is served by it.
func (l *Lab) exportAll(ctx context.Context) error {
	for _, z := range l.spec.zones() {
		if err := l.export(ctx, l.spec.planeOf(z)); err != nil {
			return err
		}
		if err := l.registerClient(ctx, z); err != nil {
			return err
		}
	}
	for _, z := range l.spec.zones() {
		vips, err := l.awaitImport(ctx, l.spec.planeOf(z))
		if err != nil {
			return err
		}
		l.spec.Progress(fmt.Sprintf("%s: service %s.default.svc.clusterset.local at %s", z.name(), serviceName, strings.Join(vips, " and ")))
		if err := l.awaitAnswers(ctx, z, vips); err != nil {
			return err
		}
		if err := l.kept.change(func(s *state) {
			if s.SiteVIPs == nil {
				s.SiteVIPs = map[string][]string{}
			}
			s.SiteVIPs[z.name()] = vips
		}); err != nil {
			return err
		}
	}
	return nil
}

// startControlPlanes starts the only one, or global and those of the zones with their
// gateways.
func (l *Lab) startControlPlanes(ctx context.Context) error {
	central := l.spec.central()
	if !l.spec.Global {
		l.spec.Progress("control plane: " + central.api())
		if err := l.startPlane(ctx, central); err != nil || !l.spec.Sidecars {
			return err
		}
		return l.prepareMesh(ctx)
	}
	l.spec.Progress("global control plane: " + central.api())
	if err := l.startPlane(ctx, central); err != nil {
		return err
	}
	if err := l.prepareMesh(ctx); err != nil {
		return err
	}
	for _, z := range l.spec.zones() {
		p := l.spec.planeOf(z)
		l.spec.Progress("control plane of " + z.name() + ": " + p.api())
		if err := l.startPlane(ctx, p); err != nil {
			return err
		}
		for _, gateway := range l.spec.servers(z)[1:] {
			if err := l.startGateway(ctx, z, gateway); err != nil {
				return err
			}
		}
	}
	return nil
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
	p := l.spec.planeOf(n.zone)
	tokenFile, err := l.tokenFile(ctx, n.name(), p, "token", "create", "--kind", "node", "--name", n.name())
	if err != nil {
		return nil, err
	}
	args := []string{
		"node", "--server", p.api(), "--token-file", tokenFile,
		"--node-name", n.name(), "--zone", n.zone.name(), "--data-dir", l.DataDir(n.name()), "--mode", l.spec.Mode,
	}
	if dir, err := l.spec.cgroupOf(l.ns.open[n.name()]); err != nil {
		return nil, err
	} else if dir != "" {
		args = append(args, "--cgroup", dir)
	}
	if l.spec.DNSCapture {
		args = append(args, "--dns-capture")
	}
	args = append(args, l.spec.upstreamFlag(n.zone)...)
	agent, err := l.start(n.name()+"-agent", l.ns.open[n.name()], append(args, l.spec.leaseFlag()...)...)
	if err == nil {
		l.started = append(l.started, agent)
	}
	return agent, err
}

// upstreamFlag of agents and gateways: the router, where DNS is captured.
func (s Spec) upstreamFlag(z zone) []string {
	if !s.DNSCapture {
		return nil
	}
	return []string{"--dns-upstream", s.primary(z.addr(1)).String()}
}

// leaseFlag of nodes and workloads.
func (s Spec) leaseFlag() []string {
	if s.Lease == 0 {
		return nil
	}
	return []string{"--lease-duration", s.Lease.String()}
}

// createService with an address of every family, and return these with the port.
func (l *Lab) createService(ctx context.Context, p plane) (vips []string, err error) {
	client, err := l.clientOf(p)
	if err != nil {
		return nil, err
	}
	near := corev1.ServiceTrafficDistributionPreferSameZone
	families := corev1.IPFamilyPolicyPreferDualStack // a range of one family gives one
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: serviceName, Namespace: metav1.NamespaceDefault},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": serviceName}, TrafficDistribution: &near, IPFamilyPolicy: &families,
			Ports: []corev1.ServicePort{{Name: "http", Port: servicePort, TargetPort: intstr.FromString("http")}},
		},
	}
	if l.spec.Sidecars {
		svc.Spec.Ports[0].AppProtocol = new("http") // otherwise sidecars see connections, not requests
	}
	created, err := client.Create(ctx, kind.Service, svc)
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
	planes := l.spec.planes()
	want := l.spec.endpoints()
	for _, p := range planes {
		client, err := l.clientOf(p)
		if err != nil {
			return err
		}
		if err := AwaitEndpoints(ctx, client, serviceName, want/len(planes)*len(l.spec.addrs(controlAddr(1)))); err != nil {
			return fmt.Errorf("workloads: %w; see their logs in %s", err, dirOf(l.spec.Name))
		}
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
	labels := "app=" + serviceName
	serving := []string{"--port", "http:" + port, "--ready-http", "/"}
	command := []string{l.spec.Executable, "demo", "backend", "--name", n.workload(), "--zone", n.zone.name(), "--listen", strings.Join(listen, ",")}
	switch {
	case l.spec.shopping(n):
		var err error
		if labels, command, err = l.prepareShop(n.zone); err != nil {
			return err
		}
		serving = nil
	case l.spec.Sidecars:
		labels += ",version=" + l.spec.versionOf(n)
	}
	args := append([]string{
		"run", "--name", l.spec.workloadOf(n), "--labels", labels, "--address", strings.Join(addresses, ","), "--node-name", n.name(),
		"--kubeconfig", l.kubeconfig(l.spec.planeOf(n.zone)), "--data-dir", l.DataDir(n.name()),
	}, serving...)
	args = append(append(args, l.spec.leaseFlag()...), l.spec.sidecarFlags()...)
	p, err := l.start(n.name()+"-workload", l.ns.open[n.name()], append(append(args, "--"), command...)...)
	if err == nil {
		l.started = append(l.started, p)
	}
	return err
}
