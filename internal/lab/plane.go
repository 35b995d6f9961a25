package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	meshv1alpha1 "github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	mcs "github.com/proxima-mesh/proxima/api/multicluster/v1beta1"
	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
)

// plane is a control plane: the only one, global, or that of a zone.
type plane struct {
	// place is the name of its machine, also of its folder.
	place string
	addr  netip.Addr
	// zone that it serves, if it is one of several.
	zone *zone
}

// central is the only control plane, or global.
func (s Spec) central() plane { return plane{place: control, addr: s.primary(controlAddr(2))} }

// planeOf a zone: the one that its nodes join.
func (s Spec) planeOf(z zone) plane {
	if !s.Global {
		return s.central()
	}
	return plane{place: z.plane(), addr: s.primary(z.addr(2)), zone: &z}
}

// planes that nodes join.
func (s Spec) planes() []plane {
	if !s.Global {
		return []plane{s.central()}
	}
	var out []plane
	for _, z := range s.zones() {
		out = append(out, s.planeOf(z))
	}
	return out
}

// process is what the control plane is called among the processes of the lab.
func (p plane) process() string {
	if p.zone == nil {
		return "control-plane"
	}
	return p.place
}

func (p plane) api() string { return netip.AddrPortFrom(p.addr, 6443).String() }

// site is the name of its Zone object; empty: it has none.
func (p plane) site() string {
	if p.zone == nil {
		return ""
	}
	return p.zone.name()
}

func (z zone) plane() string   { return control + "-" + z.letter() }
func (z zone) gateway() string { return "gateway-" + z.letter() }
func (z zone) egress() string  { return "egress-" + z.letter() }

// machines of a zone besides its nodes, and their addresses.
func (s Spec) machines(z zone) map[string]netip.Addr {
	all := map[string]netip.Addr{z.plane(): z.addr(2), z.gateway(): z.addr(3), z.egress(): z.addr(4)}
	out := map[string]netip.Addr{}
	for _, machine := range s.servers(z) {
		out[machine] = all[machine]
	}
	return out
}

// servers of a zone are its machines besides nodes; what is first starts first.
func (s Spec) servers(z zone) []string {
	switch {
	case !s.Global:
		return nil
	case s.Egress:
		return []string{z.plane(), z.gateway(), z.egress()}
	}
	return []string{z.plane(), z.gateway()}
}

// startPlane starts a control plane, and returns when it serves.
func (l *Lab) startPlane(ctx context.Context, p plane) error {
	args := []string{"control-plane", "--data-dir", l.DataDir(p.place), "--api-address", p.api(), "--service-cidr", l.spec.serviceRanges()}
	switch {
	case !l.spec.Global:
		args = append(args, "--role", "standalone")
	case p.zone == nil:
		args = append(args, "--role", "global")
	default:
		token, err := l.tokenFile(ctx, p.place, l.spec.central(), "zone", "create", p.site(), "-o", "token")
		if err != nil {
			return err
		}
		args = append(args, "--role", "zone", "--zone", p.site(), "--global", l.spec.central().api(), "--token-file", token)
	}
	process, err := l.start(p.process(), l.ns.open[p.place], args...)
	if err != nil {
		return err
	}
	l.started = append(l.started, process)
	return process.ready(ctx)
}

// startGateway starts the ingress or the egress of a zone.
func (l *Lab) startGateway(ctx context.Context, z zone, machine string) error {
	p := l.spec.planeOf(z)
	token, err := l.tokenFile(ctx, machine, p, "token", "create", "--kind", "node", "--name", machine)
	if err != nil {
		return err
	}
	role := "ingress"
	if machine == z.egress() {
		role = "egress"
	}
	args := append([]string{
		role, "--server", p.api(), "--token-file", token, "--node-name", machine, "--zone", z.name(), "--data-dir", l.DataDir(machine),
	}, l.spec.upstreamFlag(z)...)
	if l.spec.EnvoyGateways {
		args = append(args, "--engine", "envoy", "--envoy", l.spec.Envoy)
	}
	process, err := l.start(machine, l.ns.open[machine], args...)
	if err != nil {
		return err
	}
	l.started = append(l.started, process)
	return process.ready(ctx)
}

// tokenFile is the file with the token of a machine, which a command of the control plane's
// machine prints the first time.
func (l *Lab) tokenFile(ctx context.Context, place string, from plane, command ...string) (string, error) {
	path := filepath.Join(l.DataDir(place), "token")
	_, err := os.Stat(path)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return path, err
	}
	if err := os.MkdirAll(l.DataDir(place), 0o700); err != nil {
		return "", err
	}
	command = append(command, "--kubeconfig", l.kubeconfig(from))
	token, err := l.ns.open[from.place].Output(ctx, l.spec.Executable, command...)
	if err != nil {
		return "", err
	}
	return path, os.WriteFile(path, token, 0o600)
}

// kubeconfig of a control plane's administrator.
func (l *Lab) kubeconfig(p plane) string { return filepath.Join(l.DataDir(p.place), "kubeconfig") }

// Kubeconfig is the path of the administrator's, for use in the lab's namespaces: that of
// the control plane, or of global.
func (l *Lab) Kubeconfig() string { return l.kubeconfig(l.spec.central()) }

// KubeconfigOf is the path of the administrator's of the control plane that the nodes of a
// zone join.
func (l *Lab) KubeconfigOf(zoneName string) (string, error) {
	t, err := l.spec.find(zoneName)
	if err != nil {
		return "", err
	}
	return l.kubeconfig(l.spec.planeOf(t.zone)), nil
}

// Client of the control plane that the nodes of a zone join, from its own machine. An empty
// name is the only control plane, or global.
func (l *Lab) Client(zoneName string) (resource.Client, error) {
	p, err := l.planeFor(zoneName)
	if err != nil {
		return nil, err
	}
	return l.clientOf(p)
}

// Config of an administrator of the same control plane as that of Client, with connections from the machine that it runs on.
func (l *Lab) Config(zoneName string) (*rest.Config, error) {
	p, err := l.planeFor(zoneName)
	if err != nil {
		return nil, err
	}
	return l.configOf(p)
}

func (l *Lab) planeFor(zoneName string) (plane, error) {
	if zoneName == "" {
		return l.spec.central(), nil
	}
	t, err := l.spec.find(zoneName)
	if err != nil {
		return plane{}, err
	}
	return l.spec.planeOf(t.zone), nil
}

func (l *Lab) configOf(p plane) (*rest.Config, error) {
	ns := l.ns.open[p.place]
	if ns == nil {
		return nil, fmt.Errorf("the namespace of %s is gone: take the lab down and up again", p.place)
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", l.kubeconfig(p))
	if err != nil {
		return nil, err
	}
	cfg.Dial = ns.DialContext
	return cfg, nil
}

// connection is a client of a control plane's API.
type connection struct {
	*kubeclient.Client
	transport *http.Transport
}

// clientOf a control plane, from the machine that it runs on.
func (l *Lab) clientOf(p plane) (*kubeclient.Client, error) {
	l.connecting.Lock()
	defer l.connecting.Unlock()
	if c, ok := l.clients[p.place]; ok {
		return c.Client, nil
	}
	cfg, err := l.configOf(p)
	if err != nil {
		return nil, err
	}
	tls, err := rest.TLSConfigFor(cfg)
	if err != nil {
		return nil, err
	}
	c := connection{transport: &http.Transport{TLSClientConfig: tls, ForceAttemptHTTP2: true, DialContext: cfg.Dial}}
	cfg = &rest.Config{Host: cfg.Host, BearerToken: cfg.BearerToken, BearerTokenFile: cfg.BearerTokenFile, Transport: c.transport, QPS: -1,
		WarningHandler: rest.NoWarnings{}}
	if c.Client, err = kubeclient.New(cfg, kind.All()); err != nil {
		return nil, err
	}
	if l.clients == nil {
		l.clients = map[string]connection{}
	}
	l.clients[p.place] = c
	return c.Client, nil
}

// export the sample service to the other zones.
func (l *Lab) export(ctx context.Context, p plane) error {
	client, err := l.clientOf(p)
	if err != nil {
		return err
	}
	_, err = client.Create(ctx, kind.ServiceExport, &mcs.ServiceExport{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: serviceName},
	})
	if err != nil {
		return fmt.Errorf("export service %s from %s: %w", serviceName, p.site(), err)
	}
	return nil
}

// prepareMesh lets the default mesh issue certificates, as zones are reached by mutual TLS
// alone, and sidecars show them; it routes it through the egresses where there are any.
func (l *Lab) prepareMesh(ctx context.Context) error {
	client, err := l.clientOf(l.spec.central())
	if err != nil {
		return err
	}
	object, err := client.Get(ctx, kind.Mesh, resource.Key{Name: meshv1alpha1.DefaultMesh})
	if err != nil {
		return fmt.Errorf("read the default mesh: %w", err)
	}
	mesh := object.(*meshv1alpha1.Mesh)
	mesh.Spec.MTLS = &meshv1alpha1.MeshMTLS{EnabledBackend: "lab", Backends: []meshv1alpha1.MeshCertificateBackend{{Name: "lab"}}}
	if l.spec.Sidecars {
		mesh.Spec.MTLS.Backends[0].Mode = meshv1alpha1.MTLSPermissive
	}
	if l.spec.Egress {
		if mesh.Spec.Routing == nil {
			mesh.Spec.Routing = &meshv1alpha1.MeshRouting{}
		}
		through := true
		mesh.Spec.Routing.ZoneEgress = &through
	}
	if _, err := client.Update(ctx, kind.Mesh, mesh); err != nil {
		return fmt.Errorf("prepare the default mesh: %w", err)
	}
	return nil
}

// registerClient makes the client of a zone a workload, whose certificate the agent in front
// of it shows to other zones.
func (l *Lab) registerClient(ctx context.Context, z zone) error {
	client, err := l.clientOf(l.spec.planeOf(z))
	if err != nil {
		return err
	}
	var addresses []string
	for _, a := range l.spec.addrs(z.clientAddr(2)) {
		addresses = append(addresses, a.Addr().String())
	}
	_, err = client.Create(ctx, kind.Dataplane, &meshv1alpha1.Dataplane{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: z.client()},
		Spec:       meshv1alpha1.DataplaneSpec{NodeName: firstOf(z).name(), Addresses: addresses},
	})
	if err != nil {
		return fmt.Errorf("register the client of %s: %w", z.name(), err)
	}
	return nil
}

// awaitImport waits until a zone imports the sample service from all zones, and returns its
// addresses with the port.
func (l *Lab) awaitImport(ctx context.Context, p plane) (vips []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	client, err := l.clientOf(p)
	if err != nil {
		return nil, err
	}
	w, err := client.Watch(ctx, kind.ServiceImport, resource.WatchOptions{ListOptions: resource.ListOptions{Namespace: metav1.NamespaceDefault}})
	if err != nil {
		return nil, err
	}
	defer w.Stop()
	zones := 0
	for event := range w.ResultChan() {
		i, ok := event.Object.(*mcs.ServiceImport)
		if !ok || i.Name != serviceName {
			continue
		}
		if zones = len(i.Status.Clusters); zones < l.spec.Zones || len(i.Spec.IPs) == 0 {
			continue
		}
		for _, ip := range i.Spec.IPs {
			vips = append(vips, net.JoinHostPort(ip, strconv.Itoa(servicePort)))
		}
		return vips, nil
	}
	return nil, fmt.Errorf("%s imports service %s from %d of %d zones; see the logs in %s",
		p.site(), serviceName, zones, l.spec.Zones, dirOf(l.spec.Name))
}
