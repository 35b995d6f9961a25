package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"

	"github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/atomicfile"
	"github.com/proxima-mesh/proxima/internal/identity"
	"github.com/proxima-mesh/proxima/internal/kernel/cgroup"
	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/sidecar/bootstrap"
	"github.com/proxima-mesh/proxima/internal/workload"
)

const (
	// sidecarProgram is installed beside this one.
	sidecarProgram = "proxima-sidecar"
	// programBootstrap is what it writes for gRPC programs (sidecar.ProgramBootstrap).
	programBootstrap = "grpc.json"
	// xdsPort of a control plane.
	xdsPort = "15010"
)

// runSidecar are the flags of run for a sidecar.
type runSidecar struct {
	wanted, grpc, dns               bool
	envoy, redirect                 string
	servers                         []string
	caFile                          string
	excludeOutbound, excludeInbound []string
	probes, applications            []string
	metricsAddress, healthAddress   string
}

func (r *runSidecar) add(f *pflag.FlagSet) {
	f.BoolVar(&r.wanted, "sidecar", false, "run an Envoy before the command, with the workload's certificate and the configuration of the control plane")
	f.StringVar(&r.envoy, "envoy", "envoy", "Envoy of the sidecar, 1.37 or newer: a path, or a name in $PATH")
	f.StringVar(&r.redirect, "redirect", "auto", "which connections are led to the sidecar: cgroup (those of the command), netns (all of this network namespace), none, or auto (cgroup where the command has one of its own, else none)")
	f.BoolVar(&r.grpc, "grpc", false, "the command is a program whose gRPC has xDS: it gets the workload's certificate and a bootstrap (GRPC_XDS_BOOTSTRAP), and no Envoy")
	f.BoolVar(&r.dns, "dns", false, "answer the DNS questions of the command in the sidecar: names of the mesh and the cluster, without an agent, and others by the resolvers of this machine; needs --redirect cgroup or netns")
	addXDSFlags(f, &r.servers, &r.caFile)
	f.StringSliceVar(&r.excludeOutbound, "exclude-outbound", nil, "address, prefix or port that the command connects to directly; may be repeated")
	f.StringSliceVar(&r.probes, "probes", nil, "probe that may be asked at the health address of the sidecar, past its mTLS, as in http:8080/healthz, grpc:9000 or tcp:5432; may be repeated")
	f.StringSliceVar(&r.applications, "applications", nil, "metrics of the command that the sidecar serves with its own, as in web=http://127.0.0.1:9100/metrics; may be repeated")
	f.StringVar(&r.metricsAddress, "metrics-address", ":15020", "address for the metrics of the sidecar and of --applications; empty: none")
	f.StringVar(&r.healthAddress, "health-address", ":15021", "address of the sidecar for /ready and --probes; empty: none")
	f.StringSliceVar(&r.excludeInbound, "exclude-inbound", nil, "port, or address or prefix of clients, whose connections do not pass the sidecar; may be repeated")
}

// settle what follows from which flags were given: a program needs no ports of a supervisor by default.
func (r *runSidecar) settle(f *pflag.FlagSet) error {
	if !r.grpc {
		return nil
	}
	for flag, set := range map[string]bool{
		"--sidecar": r.wanted, "--dns": r.dns, "--redirect " + r.redirect: r.redirect != "auto" && r.redirect != "none",
		"--exclude-outbound": len(r.excludeOutbound) > 0, "--exclude-inbound": len(r.excludeInbound) > 0,
	} {
		if set {
			return usagef("--grpc runs no Envoy that connections are led to: leave out %s", flag)
		}
	}
	r.redirect = "none"
	for flag, address := range map[string]*string{"metrics-address": &r.metricsAddress, "health-address": &r.healthAddress} {
		if !f.Changed(flag) {
			*address = ""
		}
	}
	return nil
}

// sidecarDir of a workload.
func (s *settings) sidecarDir(dp *v1alpha1.Dataplane) string {
	return filepath.Join(s.dataDir, "sidecar", dp.Namespace+"."+dp.Name)
}

// addXDSFlags for the server of a proxy's configuration.
func addXDSFlags(f *pflag.FlagSet, servers *[]string, caFile *string) {
	f.StringSliceVar(servers, "xds-server", nil, "address (HOST:PORT) of the control plane's xDS; may be repeated (default of run: the API's host, port 15010)")
	f.StringVar(caFile, "xds-server-ca-file", "", "file with the authorities of the certificate of xDS, PEM (default of run: those of the kubeconfig, or of this machine's agent)")
}

// sidecar that is wanted before the command; nil: none.
func (s *settings) sidecar(
	ctx context.Context, r runFlags, dp *v1alpha1.Dataplane, client resource.Client, way registerWay, socket string, group *cgroup.Group,
) (workload.Proxy, error) {
	f := r.sidecar
	if !f.wanted && !f.grpc {
		return nil, nil //nolint:nilnil // documented
	}
	if socket == "" && r.credential.tokenFile == "" {
		return nil, &problem.Error{
			Code: problem.SidecarUnavailable, Op: "start", Object: "the sidecar",
			Err:  noWorkloadAPI(dp.Spec.NodeName),
			Hint: "run an agent as root (proxima node, or proxima up), and name its node with --node-name; or name a token of kind workload with --server and --token-file",
		}
	}
	program, err := findSidecar()
	if err != nil {
		return nil, err
	}
	logger, err := s.logger()
	if err != nil {
		return nil, err
	}
	dir := s.sidecarDir(dp)
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, err
	}
	authorities, err := s.xdsAuthorities(ctx, r, way, dir)
	if err != nil {
		return nil, err
	}
	certificate := []string{"--spiffe-socket", socket}
	if socket == "" {
		if dp.Spec.ServiceAccount, err = accountOfToken(ctx, way, dp, dir); err != nil {
			return nil, err
		}
		certificate = []string{"--token-file", r.credential.tokenFile}
	}
	servers, err := f.xdsServers(way.api)
	if err != nil {
		return nil, err
	}
	args := []string{
		"--node-id", bootstrap.NodeID(meshOf(ctx, client, dp), dp.Namespace, dp.Name),
		"--cluster", dp.Namespace + "/" + cmp.Or(dp.Spec.ServiceAccount, v1alpha1.DefaultServiceAccount),
		"--dir", dir, "--server", strings.Join(servers, ","), "--server-ca-file", authorities,
		"--probe-address", dp.Spec.Addresses[0],
	}
	if f.grpc {
		args = append(args, "--grpc")
	} else {
		args = append(args, "--envoy", f.envoy)
	}
	args = append(append(args, certificate...), "--metrics-address", f.metricsAddress, "--health-address", f.healthAddress,
		"--probes", strings.Join(f.probes, ","), "--applications", strings.Join(f.applications, ","))
	redirect, err := f.redirectArgs(dp, group)
	if err != nil {
		return nil, err
	}
	output, ok := s.io.Err.(*os.File)
	if !ok {
		output = os.Stderr
	}
	return &workload.Sidecar{
		Path: program, Args: append(args, redirect...), Control: filepath.Join(dir, "control.sock"), Output: output,
		Logger: logger.With("dataplane", resource.KeyOf(dp).String()),
	}, nil
}

// redirectArgs of the supervisor.
func (f runSidecar) redirectArgs(dp *v1alpha1.Dataplane, group *cgroup.Group) ([]string, error) {
	how := f.redirect
	if how == "auto" {
		how = "none"
		if group != nil {
			how = "cgroup"
		}
	}
	args := []string{"--redirect", how}
	switch how {
	case "none":
		if f.dns {
			return nil, &problem.Error{
				Code: problem.SidecarUnavailable, Op: "start", Object: "the sidecar",
				Err:  errors.New("--dns: no connections of the command are led to the sidecar"),
				Hint: "run it as root with --redirect cgroup or netns, or leave out --dns",
			}
		}
		return args, nil
	case "netns":
	case "cgroup":
		if group == nil {
			return nil, &problem.Error{
				Code: problem.SidecarUnavailable, Op: "start", Object: "the sidecar",
				Err:  errors.New("--redirect cgroup: the command has no cgroup of its own"),
				Hint: "run it as root on Linux with cgroup version 2 and without --own-cgroup=false, or use --redirect netns or none",
			}
		}
		args = append(args, "--redirect-cgroup", group.Path(), "--workload-addresses", strings.Join(dp.Spec.Addresses, ","))
	default:
		return nil, usagef("--redirect %q: use auto, netns, cgroup or none", f.redirect)
	}
	if f.dns {
		args = append(args, "--dns")
	}
	var ports []string
	for _, p := range dp.Spec.Ports {
		if p.Protocol == "" || p.Protocol == "TCP" {
			ports = append(ports, strconv.Itoa(int(p.Port)))
		}
	}
	return append(args, "--inbound-ports", strings.Join(ports, ","), "--exclude-outbound", strings.Join(f.excludeOutbound, ","),
		"--exclude-inbound", strings.Join(f.excludeInbound, ",")), nil
}

// xdsServers are the given ones, else the host of the API.
func (f runSidecar) xdsServers(api string) ([]string, error) {
	if len(f.servers) > 0 {
		return f.servers, nil
	}
	u, err := url.Parse(api)
	if err != nil || u.Hostname() == "" {
		return nil, usagef("--sidecar needs --xds-server: the API %q has no host", api)
	}
	return []string{net.JoinHostPort(u.Hostname(), xdsPort)}, nil
}

// xdsAuthorities is a file with the authorities of the control plane's certificate.
func (s *settings) xdsAuthorities(ctx context.Context, r runFlags, way registerWay, dir string) (string, error) {
	f := r.sidecar
	if f.caFile != "" {
		return f.caFile, nil
	}
	if way.cfg.CAFile != "" {
		return way.cfg.CAFile, nil
	}
	data := way.cfg.CAData
	if r.credential.tokenFile != "" {
		return authorityOfToken(ctx, r.credential, dir)
	}
	if len(data) == 0 {
		c, err := identity.LoadCredentials(filepath.Join(s.dataDir, "node"))
		if err != nil {
			return "", &problem.Error{
				Code: problem.SidecarUnavailable, Op: "start", Object: "the sidecar",
				Err:  fmt.Errorf("the authorities of the control plane's certificate are not known: %w", err),
				Hint: "name a file that has them with --xds-server-ca-file",
			}
		}
		data = c.AuthoritiesPEM()
	}
	path := filepath.Join(dir, "server-ca.pem")
	return path, atomicfile.Write(path, data, 0o644)
}

// meshOf a workload: its own, else that of its namespace, as the control plane decides it.
func meshOf(ctx context.Context, client resource.Client, dp *v1alpha1.Dataplane) string {
	if dp.Spec.Mesh != "" {
		return dp.Spec.Mesh
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	obj, err := client.Get(ctx, kind.Namespace, resource.Key{Name: dp.Namespace})
	if namespace, ok := obj.(*corev1.Namespace); ok && err == nil {
		return kind.MeshOf(namespace)
	}
	return v1alpha1.DefaultMesh
}

// noWorkloadAPI: there is nobody of whom the sidecar gets a certificate.
func noWorkloadAPI(node string) error {
	if node == "" {
		return errors.New("the sidecar gets the workload's certificate from the agent of its node, and no node is named")
	}
	return fmt.Errorf("no agent of node %s serves the SPIFFE Workload API on this machine, from which the sidecar gets the workload's certificate", node)
}

// findSidecar beside this program, else in $PATH.
func findSidecar() (string, error) {
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), sidecarProgram)
		if info, err := os.Stat(beside); err == nil && info.Mode().IsRegular() {
			return beside, nil
		}
	}
	path, err := exec.LookPath(sidecarProgram)
	if err != nil {
		return "", &problem.Error{
			Code: problem.SidecarUnavailable, Op: "start", Object: "the sidecar",
			Err:  fmt.Errorf("the program %s is neither beside this one nor in $PATH", sidecarProgram),
			Hint: "install it from the same release; in a source tree: make build",
		}
	}
	return path, nil
}

func newSidecar(s *settings) *cobra.Command {
	return &cobra.Command{
		Use:     "sidecar [flags]",
		GroupID: "roles",
		Short:   "Supervise the Envoy of one workload",
		Long: `Sidecar becomes the program proxima-sidecar, which supervises the Envoy of one
workload: "proxima sidecar --help" shows its flags. "proxima run --sidecar" starts it
together with a command.`,
		Example:            "  proxima sidecar --node-id default/shop/web-1 --cluster shop/web --dir /run/web-1 --server cp.example:15010 --server-ca-file ca.pem",
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			program, err := findSidecar()
			if err != nil {
				return err
			}
			err = syscall.Exec(program, append([]string{program}, args...), os.Environ())
			return fmt.Errorf("start %s: %w", program, err)
		},
	}
}

func newProxyBootstrap(s *settings) *cobra.Command {
	var c bootstrap.Config
	var grpc bool
	cmd := &cobra.Command{
		Use:   "bootstrap NAMESPACE/NAME",
		Short: "Print what an Envoy, or a gRPC program, starts with",
		Long: `Bootstrap prints the configuration with which an Envoy finds the control plane and
says that it is the proxy of a Dataplane. With --grpc it is that of a program whose gRPC
library has xDS, for GRPC_XDS_BOOTSTRAP. Nothing is asked and nothing in it is secret:
certificate, key and authorities are named by their files.`,
		Example: "  proxima proxy bootstrap shop/web-1 --xds-server cp.example:15010 --certificate-file web.pem --key-file web.key --xds-server-ca-file ca.pem >envoy.json\n" +
			"  proxima proxy bootstrap shop/web-1 --grpc --socket /run/web-1/xds.sock >grpc.json",
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			namespace, name, ok := strings.Cut(args[0], "/")
			if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
				return usagef("%q: want NAMESPACE/NAME of a Dataplane", args[0])
			}
			c.Node.ID = bootstrap.NodeID(c.Node.ID, namespace, name)
			c.Node.Cluster = namespace + "/" + c.Node.Cluster
			write := bootstrap.Envoy
			if grpc {
				write = bootstrap.GRPC
			}
			text, err := write(c)
			if err != nil {
				return &problem.Error{Code: problem.Usage, Err: err, Hint: "name a supervisor with --socket, or a control plane with --xds-server and the files"}
			}
			_, err = s.io.Out.Write(text)
			return err
		},
	}
	f := cmd.Flags()
	f.BoolVar(&grpc, "grpc", false, "for a gRPC program in place of Envoy")
	f.StringVar(&c.Node.ID, "workload-mesh", v1alpha1.DefaultMesh, "mesh of the workload")
	f.StringVar(&c.Node.Cluster, "service-account", v1alpha1.DefaultServiceAccount, "service account of the workload")
	f.StringVar(&c.Node.Region, "region", "", "region of the workload's node")
	f.StringVar(&c.Node.Zone, "topology-zone", "", "topology zone of the workload's node")
	f.StringVar(&c.Node.Site, "site", "", "site of the control plane")
	addXDSFlags(f, &c.Servers, &c.Files.Authorities)
	f.StringVar(&c.Socket, "socket", "", "socket of a supervisor, in place of --xds-server")
	f.StringVar(&c.Files.Certificate, "certificate-file", "", "certificate of the workload (PEM), which is read again when it changes")
	f.StringVar(&c.Files.Key, "key-file", "", "its private key (PEM)")
	f.StringVar(&c.AdminSocket, "admin-socket", "/run/envoy-admin.sock", "path of Envoy's admin interface")
	f.StringVar(&c.Files.Roots, "mesh-ca-file", "", "roots of the mesh's trust domain (PEM), for the connections of a gRPC program; default: --xds-server-ca-file")
	f.StringVar(&c.ServerTemplate, "server-listener", "in|%s", "name of a gRPC server's listener, with %s for its address")
	return cmd
}
