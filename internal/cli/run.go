package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/node/local"
	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/workload"
)

type runFlags struct {
	name, namespace string
	labels          string
	ports           []string
	addresses       []string
	node            string
	readyHTTP       string
	weight          int32
	hostname        string
	subdomain       string
	envServices     bool
	ownCgroup       bool
	drain           time.Duration
	lease           time.Duration
	credential      runCredential
	sidecar         runSidecar
}

func newRun(s *settings) *cobra.Command {
	var r runFlags
	cmd := &cobra.Command{
		Use:     "run --name NAME [flags] -- COMMAND [ARG…]",
		GroupID: "roles",
		Short:   "Run a command as a workload: registered while it is ready, gone when it ends",
		Long: `Run starts a command and registers it as a Dataplane, which Services select by
its labels. It gets connections while its readiness probe succeeds (without
--ready-http: while its first TCP port accepts connections), none once it gets
a signal to stop, and is deregistered when it ends. Signals and the exit code are
passed through. An unreachable control plane does not stop the command.

With a kubeconfig the workload is registered with its credentials. Without one it
is registered by this machine's agent with the node's own credential, on that
node; the namespaces and labels are those that the node's token allows.

Where this machine's agent serves the SPIFFE Workload API, the command and what it
starts get the workload's certificate there: SPIFFE_ENDPOINT_SOCKET names the socket.

The command finds the Services of its namespace, and that of the API, in its
environment by the names that Kubernetes gives them: WEB_SERVICE_HOST,
WEB_SERVICE_PORT, WEB_PORT_80_TCP_ADDR and so on, as they are when it starts.
Variables that are set already are left as they are.

As root, on a machine with cgroup version 2, the command and what it starts are in a
cgroup below that of this process. The machine's agent tells its connections from
those of other programs by it, also where they use the same address.

With --sidecar an Envoy stands before the command, which the control plane configures.
It serves before the command starts, restarts after crashes, also while no control
plane answers, drains before the command ends, and ends after it. The workload is
ready while command and proxy are.

With --grpc the command is a program whose gRPC library has xDS: GRPC_XDS_BOOTSTRAP names
what it starts from, and the workload's certificate is renewed in files. It is run as with
--sidecar, but for the Envoy.

With --server and --token-file it registers with a token of kind workload, or
node, in place of the kubeconfig's user: the least that it needs on a machine
that has no kubeconfig.`,
		Example: "  proxima run --name web-1 --labels app=web --port http:8080 --ready-http /healthz -- ./server\n" +
			"  proxima run --server cp.example:6443 --token-file web.token --name web-2 --labels app=web --port http:8080 -- ./server",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dp, err := r.dataplane(cmd.Flags().Changed("weight"))
			if err != nil {
				return err
			}
			if err := r.sidecar.settle(cmd.Flags()); err != nil {
				return err
			}
			return s.run(cmd.Context(), r, dp, args)
		},
	}
	f := cmd.Flags()
	f.SetInterspersed(false)
	f.StringVar(&r.name, "name", "", "name of the workload (needed)")
	addNamespaceFlag(f, &r.namespace)
	f.StringVar(&r.labels, "labels", "", "labels that Services select by, as in app=web,tier=front")
	f.StringSliceVar(&r.ports, "port", nil, "port the command listens on: [NAME:]NUMBER[/tcp|udp|sctp]; may be repeated")
	f.StringSliceVar(&r.addresses, "address", nil, "address to be reached at; may be repeated, for the other family (default: 127.0.0.1 if the control plane is on this machine, else this machine's address towards it)")
	f.StringVar(&r.node, "node-name", "", "Node the command runs on, whose zone is its own (default: the host name in lower case; without a kubeconfig: the agent's node)")
	f.StringVar(&r.readyHTTP, "ready-http", "", "path that answers 200 to 399 by HTTP on the first port while the command is ready")
	f.BoolVar(&r.envServices, "env-services", true, "pass the Services of its namespace to the command in environment variables, as Kubernetes does")
	f.BoolVar(&r.ownCgroup, "own-cgroup", true, "start the command in a cgroup of its own, by which the agent tells its connections from those of other programs at its address; only for root, on Linux with cgroup version 2")
	f.Int32Var(&r.weight, "weight", v1alpha1.DefaultWeight, "share of new connections relative to other workloads of its Services, 0 (none) to 1000")
	f.StringVar(&r.hostname, "hostname", "", "hostname of the workload below the Service of --subdomain, as that of a Pod")
	f.StringVar(&r.subdomain, "subdomain", "", "headless Service of its namespace below which --hostname resolves")
	r.credential.add(f)
	r.sidecar.add(f)
	f.DurationVar(&r.drain, "drain", 30*time.Second, "time that open connections have to end after the command gets a signal to stop")
	addLeaseFlag(f, &r.lease)
	return cmd
}

func (s *settings) run(ctx context.Context, r runFlags, dp *v1alpha1.Dataplane, command []string) error {
	if err := checkLease(r.lease); err != nil {
		return err
	}
	way, err := s.wayToRegister(ctx, r, dp)
	if err != nil {
		return err
	}
	cfg := way.cfg
	if len(dp.Spec.Addresses) == 0 {
		addr, err := addressTowards(ctx, way.api)
		if err != nil {
			return err
		}
		dp.Spec.Addresses = []string{addr.String()}
	}
	client, err := kubeclient.New(cfg, kind.All())
	if err != nil {
		return err
	}
	logger, err := s.logger()
	if err != nil {
		return err
	}
	if !way.agent && !nodeExists(ctx, client, dp.Spec.NodeName) {
		dp.Spec.NodeName = "" // an unknown Node has no zone to give
	}

	var env []string
	if r.envServices {
		services, err := servicesFor(ctx, client, dp.Namespace)
		if err != nil {
			logger.Warn("the command has no environment variables of Services", "error", explainAPI(cfg, err))
		}
		env = workload.Without(workload.ServiceEnv(services), os.Environ())
	}

	watch, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	group := ownCgroup(r.ownCgroup, dp, logger)
	defer func() {
		if err := group.Close(); err != nil {
			logger.Warn("the cgroup of the command is left behind", "cgroup", group.Path(), "error", err)
		}
	}()
	agent := s.attest(watch, dp, group, logger)
	env = append(env, agent.env...)
	var start func(*exec.Cmd)
	var announced func(context.Context)
	if group != nil {
		start = group.Start
	}
	if agent.toldApart {
		dp.Annotations = map[string]string{v1alpha1.AnnotationCgroup: group.Path()}
		announced = func(ctx context.Context) { awaitPlaced(ctx, agent.client, group, logger) }
	}

	proxy, err := s.sidecar(ctx, r, dp, client, way, agent.socket, group)
	if err != nil {
		return err
	}
	if r.sidecar.grpc {
		env = append(env, "GRPC_XDS_BOOTSTRAP="+filepath.Join(s.sidecarDir(dp), programBootstrap))
	}

	// The command gets its signals from here, so that they can be announced
	// first; this process must outlive it.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(signals)
	code, err := workload.Run(context.WithoutCancel(ctx), workload.Config{
		Client: client, Dataplane: dp, Holder: holderName(), Lease: r.lease, Command: command, Env: env,
		Start: start, Announced: announced, Proxy: proxy,
		Stdin: s.io.In, Stdout: s.io.Out, Stderr: s.io.Err, Signals: signals, Terminal: isTerminal(s.io.In),
		Logger: logger.With("dataplane", resource.KeyOf(dp).String()), Clock: clock.RealClock{},
	})
	if err != nil {
		return explainAPI(cfg, err)
	}
	if code != 0 {
		return &exitError{code: code}
	}
	return nil
}

// registerWay is how a workload is registered.
type registerWay struct {
	cfg *rest.Config
	// api (URL) of the control plane itself.
	api string
	// agent: through this machine's agent, for its node.
	agent bool
}

// errNoWorkloads: an agent in kube-proxy's place has no control plane of ours.
var errNoWorkloads = errors.New("this machine's agent follows a Kubernetes API, and cannot register workloads")

// wayToRegister is the API as the token's or the kubeconfig's user or, if there is
// neither, this machine's agent. It fills in the namespace and the node that follow from it.
func (s *settings) wayToRegister(ctx context.Context, r runFlags, dp *v1alpha1.Dataplane) (registerWay, error) {
	cfg, namespace, err := r.credential.restConfig(ctx, s, dp.Namespace)
	if err == nil {
		dp.Namespace = cmp.Or(dp.Namespace, namespace)
		return registerWay{cfg: cfg, api: cfg.Host}, nil
	}
	if !isNoKubeconfig(err) {
		return registerWay{}, err
	}
	cfg, status, agentErr := s.agentConfig(ctx)
	if local.IsNoAgent(agentErr) {
		return registerWay{}, &problem.Error{
			Code: problem.KubeconfigMissing,
			Err:  fmt.Errorf("%w, and no agent runs on this machine with data directory %s", err, s.dataDir),
			Hint: "start a control plane with \"proxima up\", join one with \"proxima node\", or name a kubeconfig with --kubeconfig",
		}
	}
	if agentErr != nil {
		return registerWay{}, agentErr
	}
	node := status.Agent.Node.Name
	if r.node != "" && r.node != node {
		return registerWay{}, usagef("--node-name %s: without a kubeconfig the workload is registered by this machine's agent, for node %s only", r.node, node)
	}
	dp.Spec.NodeName = node
	dp.Namespace = cmp.Or(dp.Namespace, metav1.NamespaceDefault)
	return registerWay{cfg: cfg, api: status.API, agent: true}, nil
}

// dataplane is the object that the flags describe. weighted: a weight was given.
func (r runFlags) dataplane(weighted bool) (*v1alpha1.Dataplane, error) {
	if r.name == "" {
		return nil, usagef("--name is needed: what should the workload be called?")
	}
	set, err := labels.ConvertSelectorToLabelsMap(r.labels)
	if err != nil {
		return nil, usagef("--labels %q: %w", r.labels, err)
	}
	if r.drain < 0 {
		return nil, usagef("--drain %s: must not be negative", r.drain)
	}
	if r.weight < 0 || r.weight > v1alpha1.MaxWeight {
		return nil, usagef("--weight %d: must be between 0 and %d; %d is the weight of a workload that names none", r.weight, v1alpha1.MaxWeight, v1alpha1.DefaultWeight)
	}
	switch {
	case r.hostname == "" && r.subdomain != "":
		return nil, usagef("--subdomain %s needs a --hostname, which resolves below it", r.subdomain)
	case r.hostname != "" && r.subdomain == "":
		return nil, usagef("--hostname %s needs a --subdomain: the headless Service below which it resolves", r.hostname)
	}
	drain := int32(r.drain.Round(time.Second) / time.Second)
	dp := &v1alpha1.Dataplane{
		TypeMeta:   metav1.TypeMeta{APIVersion: "mesh.proxima.dev/v1alpha1", Kind: "Dataplane"},
		ObjectMeta: metav1.ObjectMeta{Name: r.name, Namespace: r.namespace, Labels: set},
		Spec:       v1alpha1.DataplaneSpec{NodeName: nodeName(r.node), DrainSeconds: &drain, Hostname: r.hostname, Subdomain: r.subdomain},
	}
	if weighted {
		dp.Spec.Weight = &r.weight
	}
	if dp.Spec.Addresses, err = parseAddresses(r.addresses); err != nil {
		return nil, err
	}
	for _, p := range r.ports {
		port, err := parsePort(p)
		if err != nil {
			return nil, err
		}
		dp.Spec.Ports = append(dp.Spec.Ports, port)
	}
	if r.readyHTTP != "" {
		if len(dp.Spec.Ports) == 0 {
			return nil, usagef("--ready-http needs a --port to probe")
		}
		dp.Spec.Readiness = &v1alpha1.Probe{
			HTTPGet:       &v1alpha1.HTTPGetAction{Path: r.readyHTTP, Port: intstr.FromInt32(dp.Spec.Ports[0].Port)},
			PeriodSeconds: 1,
		}
	}
	return dp, nil
}

// parseAddresses reads at most one address of each family.
func parseAddresses(texts []string) ([]string, error) {
	var out []string
	var families [2]bool
	for _, text := range texts {
		addr, err := netip.ParseAddr(text)
		if err != nil || addr.Zone() != "" {
			return nil, usagef("--address %q: not an IP address", text)
		}
		family := &families[0]
		if addr.Unmap().Is6() {
			family = &families[1]
		}
		if *family {
			return nil, usagef("--address %s: one of IPv4 and one of IPv6 at most", strings.Join(texts, ", "))
		}
		*family = true
		out = append(out, addr.Unmap().String())
	}
	return out, nil
}

// parsePort reads [NAME:]NUMBER[/PROTOCOL].
func parsePort(text string) (v1alpha1.DataplanePort, error) {
	port := v1alpha1.DataplanePort{Protocol: "TCP"}
	rest := text
	if name, after, ok := strings.Cut(rest, ":"); ok {
		port.Name, rest = name, after
	}
	if number, protocol, ok := strings.Cut(rest, "/"); ok {
		rest, port.Protocol = number, strings.ToUpper(protocol)
	}
	n, err := strconv.ParseUint(rest, 10, 16)
	if err != nil || n == 0 {
		return port, usagef("--port %q: use [NAME:]NUMBER[/tcp|udp|sctp], with a number from 1 to 65535", text)
	}
	if port.Protocol != "TCP" && port.Protocol != "UDP" && port.Protocol != "SCTP" {
		return port, usagef("--port %q: the protocol is tcp, udp or sctp", text)
	}
	port.Port = int32(n)
	return port, nil
}

// addressTowards is the address by which this machine reaches the control plane,
// so that the others can reach it too; 127.0.0.1 if they are one machine.
func addressTowards(ctx context.Context, server string) (netip.Addr, error) {
	loopback := netip.MustParseAddr("127.0.0.1")
	u, err := url.Parse(server)
	if err != nil || u.Host == "" {
		return netip.Addr{}, fmt.Errorf("kubeconfig: the server %q is not a URL", server)
	}
	host, port := u.Hostname(), u.Port()
	if port == "" {
		port = "443"
	}
	// UDP: the kernel chooses the way, and nothing is sent.
	conn, err := (&net.Dialer{Timeout: 3 * time.Second}).DialContext(ctx, "udp", net.JoinHostPort(host, port))
	if err != nil {
		return netip.Addr{}, &problem.Error{
			Code: problem.AddressUnknown,
			Err:  fmt.Errorf("no way to %s: %w", server, err),
			Hint: "say with --address where the workload is reached",
		}
	}
	defer conn.Close()
	local := conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
	remote := conn.RemoteAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
	if local.IsLoopback() || local == remote {
		return loopback, nil
	}
	return local, nil
}

// servicesFor are the Services in the environment variables of a command: those of
// its namespace, and the API's.
func servicesFor(ctx context.Context, client resource.Client, namespace string) ([]*corev1.Service, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	list, _, err := client.List(ctx, kind.Service, resource.ListOptions{Namespace: namespace})
	if err != nil {
		return nil, err
	}
	var services []*corev1.Service
	for _, obj := range list {
		services = append(services, obj.(*corev1.Service))
	}
	if namespace == corev1.NamespaceDefault {
		return services, nil
	}
	obj, err := client.Get(ctx, kind.Service, resource.Key{Namespace: corev1.NamespaceDefault, Name: "kubernetes"})
	switch {
	case err == nil:
		services = append(services, obj.(*corev1.Service))
	case !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err):
		return services, err
	}
	return services, nil
}

// nodeExists is true if the API has the Node, or can't be reached.
func nodeExists(ctx context.Context, client resource.Client, name string) bool {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	_, err := client.Get(ctx, kind.Node, resource.Key{Name: name})
	return !apierrors.IsNotFound(err)
}

func isTerminal(in any) bool {
	f, ok := in.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}

// nodeName is the given one, else the lower-case host name.
func nodeName(given string) string {
	if given != "" {
		return given
	}
	host, err := os.Hostname()
	if err != nil {
		return "localhost"
	}
	return strings.ToLower(host)
}

func holderName() string {
	return fmt.Sprintf("%s/%d", nodeName(""), os.Getpid())
}
