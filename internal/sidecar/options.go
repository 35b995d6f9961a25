package sidecar

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/proxima-mesh/proxima/internal/kernel/cgroup"
	"github.com/proxima-mesh/proxima/internal/sidecar/bootstrap"
	"github.com/proxima-mesh/proxima/internal/sidecar/redirect"
	"github.com/proxima-mesh/proxima/internal/sidecar/supervise"
)

// Options of a supervisor.
type Options struct {
	Node bootstrap.Node
	// Servers of xDS (HOST:PORT), and the file (PEM) of the authorities of their certificates.
	Servers     []string
	Authorities string
	// SpiffeSocket is the Workload API of the machine's agent, a path.
	SpiffeSocket string
	// TokenFile has a token by which the control plane issues the certificate; it goes before
	// SpiffeSocket.
	TokenFile string
	// Credentials is the file of the agent's own certificate, where the proxy is that of a gateway; it goes
	// before SpiffeSocket. Gateway: what the proxy is then; nil: a workload's.
	Credentials string
	Gateway     *bootstrap.Gateway
	// Dir keeps what Envoy starts from without a control plane, and the certificate.
	Dir string
	// Envoy is the binary, a path or a name in $PATH.
	Envoy       string
	Concurrency int
	LogLevel    string
	// User that Envoy runs as; nil: this process's.
	User *syscall.Credential
	// MetricsAddress and HealthAddress to listen on; "": not.
	MetricsAddress, HealthAddress string
	// ProbeAddress is the workload's, for Probes.
	ProbeAddress string
	Probes       []supervise.Probe
	Apps         []supervise.App
	// Redirect leads the workload's connections to the proxy, by Rules. RedirectByAgent: the agent of
	// the node does, and the proxy is not ready before.
	Redirect, RedirectByAgent bool
	Rules                     redirect.Rules
	// DNS: questions of the workload are answered by what the control plane says of names, and by the
	// resolvers of ResolvConf. They come by the Rules.
	DNS bool
	// ResolvConf are files that name resolvers, the first ones first.
	ResolvConf []string
	// Drain is how long inbound connections have to end before Envoy does.
	Drain time.Duration
	// GRPC: the workload is a program whose gRPC has xDS, and there is no Envoy.
	GRPC bool
	// CertificateFiles keeps certificate and key for gRPC, too.
	CertificateFiles bool
	Verbose          bool

	version bool
	// install the program at a path, or drainRunning the supervisor of a folder, in place of all else.
	install, drainRunning string
}

const usage = `proxima-sidecar supervises the proxy (Envoy) of one workload: it gets the workload's
certificate from this machine's agent, or from the control plane by a token; the
configuration from a control plane; and starts Envoy also while no control plane answers.

stdout carries one line when Envoy serves: ready node=ID metrics=ADDRESS health=ADDRESS.
SIGTERM drains and ends Envoy. SIGUSR2 ends the supervisor alone: the next one adopts
the running Envoy. Each flag is also a variable: --dir is PROXIMA_SIDECAR_DIR.

`

// maxSocket is the longest path of a Unix socket (sun_path, unix(7)).
const maxSocket = 107

// resolvConfBackup is the machine's own resolv.conf while that of an agent is in its place (resolvconf.Backup):
// what it names is asked where the agent does not answer.
const resolvConfBackup = "/etc/resolv.conf.proxima-backup"

// longest name below Options.Dir.
const longestSocket = "/envoy/admin.sock"

// parse a command line. flag.ErrHelp: it asked for help, which was written.
func parse(args []string, stderr io.Writer) (Options, error) {
	var o Options
	var probes, apps, servers, resolvers string
	var uid int
	var by redirection
	var gateway bootstrap.Gateway
	f := flag.NewFlagSet("proxima-sidecar", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.Usage = func() {
		_, _ = io.WriteString(stderr, usage) // there is nobody to tell
		f.PrintDefaults()
	}
	f.StringVar(&o.Node.ID, "node-id", "", "MESH/NAMESPACE/DATAPLANE of the workload (needed)")
	f.StringVar(&o.Node.Cluster, "cluster", "", "NAMESPACE/SERVICEACCOUNT of the workload")
	f.StringVar(&o.Node.Region, "region", "", "region of the workload's node")
	f.StringVar(&o.Node.Zone, "zone", "", "topology zone of the workload's node")
	f.StringVar(&o.Node.Site, "site", "", "site of the control plane")
	f.StringVar(&servers, "server", "", "addresses of the control plane's xDS, HOST:PORT, joined by commas (needed)")
	f.StringVar(&o.Authorities, "server-ca-file", "", "file of the authorities of the control plane's certificate, PEM (needed)")
	f.StringVar(&o.SpiffeSocket, "spiffe-socket", os.Getenv("SPIFFE_ENDPOINT_SOCKET"),
		"socket of the SPIFFE Workload API of this machine's agent (default: $SPIFFE_ENDPOINT_SOCKET)")
	f.StringVar(&o.TokenFile, "token-file", "",
		"file with a token by which the control plane issues the certificate, at the addresses of --server, in place of the agent; in Kubernetes a projected token of the Pod's service account")
	f.StringVar(&o.Credentials, "node-credentials", "",
		"file of the certificate of a gateway between zones, which its agent keeps; the proxy is that of the gateway, with --gateway-address and --gateway-socket")
	f.StringVar(&gateway.Address, "gateway-address", "", "address (HOST:PORT) at which the proxy of a gateway listens; without a host: on all addresses")
	f.StringVar(&gateway.Socket, "gateway-socket", "", "socket of the gateway's agent, which gets what the proxy cannot read: tunnels of nodes")
	f.StringVar(&gateway.Outside, "gateway-outside-socket", "", "socket at which the proxy of an egress connects to services outside every mesh, for the gateway's agent; empty: none")
	f.StringVar(&o.Dir, "dir", "", "folder for configuration, certificate and sockets (needed)")
	f.StringVar(&o.Envoy, "envoy", "envoy", "Envoy, 1.37 or newer")
	f.IntVar(&uid, "envoy-uid", -1, "user ID that Envoy runs as; -1: that of the supervisor")
	f.IntVar(&o.Concurrency, "concurrency", 2, "worker threads of Envoy")
	f.StringVar(&o.LogLevel, "envoy-log-level", "warning", "log level of Envoy")
	f.StringVar(&o.MetricsAddress, "metrics-address", ":15020", "address for the metrics of proxy and applications; empty: none")
	f.StringVar(&o.HealthAddress, "health-address", ":15021", "address for /ready and probes; empty: none")
	f.StringVar(&o.ProbeAddress, "probe-address", "127.0.0.1", "address of the workload for its probes")
	f.StringVar(&probes, "probes", "", "probes that may be asked at the health address, as in http:8080/healthz,grpc:9000,tcp:5432")
	f.StringVar(&apps, "applications", "", "metrics of applications, as in web=http://127.0.0.1:9100/metrics, joined by commas")
	f.StringVar(&by.how, "redirect", "none", "which connections are led to the proxy: netns (all of the network namespace), cgroup, or none; needs CAP_NET_ADMIN. agent: the agent of the node leads those of the Pod, and the proxy is not ready before")
	f.StringVar(&by.cgroup, "redirect-cgroup", "", "cgroup of the workload, a path as in /proc/PID/cgroup")
	f.StringVar(&by.addresses, "workload-addresses", "", "addresses of the workload, where the machine has others")
	f.StringVar(&by.inbound, "inbound-ports", "", "ports that the workload has declared, as in 8080,9090")
	f.StringVar(&by.excludeOutbound, "exclude-outbound", "", "addresses, prefixes and ports that are connected to directly, as in 10.0.0.0/8,25")
	f.StringVar(&by.excludeInbound, "exclude-inbound", "", "ports, and addresses of clients, whose connections do not pass the proxy")
	f.BoolVar(&o.DNS, "dns", false, "answer the DNS questions of the workload, with --redirect cgroup or netns: names of the mesh and the cluster without an agent, others by the resolvers of this machine")
	f.StringVar(&resolvers, "resolv-conf", "/etc/resolv.conf,"+resolvConfBackup, "files with the resolvers for other names (--dns), which are asked in order")
	f.DurationVar(&o.Drain, "drain", supervise.DrainTime*time.Second, "time that inbound connections have to end before Envoy does")
	f.BoolVar(&o.CertificateFiles, "certificate-files", false, "keep certificate, key and roots as files, for gRPC without a proxy")
	f.BoolVar(&o.GRPC, "grpc", false, "supervise no Envoy: the workload is a program whose gRPC has xDS. It follows the control plane through the supervisor, by the bootstrap "+ProgramBootstrap+" in --dir (GRPC_XDS_BOOTSTRAP), with --certificate-files")
	f.BoolVar(&o.Verbose, "verbose", false, "log more")
	f.BoolVar(&o.version, "version", false, "print the version")
	f.StringVar(&o.install, "install", "", "copy this program to a path and end, so that it runs in the container of another image")
	f.StringVar(&o.drainRunning, "drain-running", "", "have the supervisor with this --dir send clients elsewhere, and end")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if err := fromEnvironment(f); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("%q: no arguments are expected", f.Arg(0))
	}
	if o.version || o.install != "" || o.drainRunning != "" {
		return o, nil
	}
	if o.Credentials != "" {
		o.Gateway = &gateway
	}
	o.Servers = list(servers)
	o.ResolvConf = list(resolvers)
	if err := by.apply(&o); err != nil {
		return o, err
	}
	if by.how == "netns" && uid < 0 {
		uid = redirect.ProxyUser
	}
	if uid >= 0 {
		o.User = &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid), NoSetGroups: false}
	}
	o.SpiffeSocket = strings.TrimPrefix(o.SpiffeSocket, "unix://")
	for _, text := range list(probes) {
		p, err := supervise.ParseProbe(text)
		if err != nil {
			return o, err
		}
		o.Probes = append(o.Probes, p)
	}
	for _, text := range list(apps) {
		name, url, ok := strings.Cut(text, "=")
		if !ok || name == "" || !strings.HasPrefix(url, "http") {
			return o, fmt.Errorf("--applications %q: want NAME=URL", text)
		}
		o.Apps = append(o.Apps, supervise.App{Name: name, URL: url})
	}
	return o, o.check()
}

// redirection is what the flags of that name say.
type redirection struct {
	how, cgroup, addresses, inbound, excludeOutbound, excludeInbound string
}

func (r redirection) apply(o *Options) error {
	o.Rules.Owner = o.Node.ID
	switch r.how {
	case "none":
		return nil
	case "agent":
		o.RedirectByAgent = true
		return nil
	case "netns":
	case "cgroup":
		h, err := cgroup.Find()
		if err != nil {
			return fmt.Errorf("--redirect cgroup: %w", err)
		}
		id, err := h.Lookup(r.cgroup)
		if err != nil {
			return fmt.Errorf("--redirect-cgroup %q: %w", r.cgroup, err)
		}
		o.Rules.Cgroup, o.Rules.CgroupLevel = id.Number, id.Level
	default:
		return fmt.Errorf("--redirect %q: want netns, cgroup, agent or none", r.how)
	}
	o.Redirect = true
	var err error
	for _, text := range list(r.addresses) {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return fmt.Errorf("--workload-addresses: %w", err)
		}
		o.Rules.Addresses = append(o.Rules.Addresses, addr.Unmap())
	}
	if o.Rules.Inbound, err = redirect.ParsePorts(r.inbound); err != nil {
		return fmt.Errorf("--inbound-ports %w", err)
	}
	if o.Rules.ExcludeOutbound, err = redirect.ParseExclusion(r.excludeOutbound); err != nil {
		return fmt.Errorf("--exclude-outbound %w", err)
	}
	if o.Rules.ExcludeInbound, err = redirect.ParseExclusion(r.excludeInbound); err != nil {
		return fmt.Errorf("--exclude-inbound %w", err)
	}
	return nil
}

func list(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
}

// fromEnvironment sets the flags that were not given.
func fromEnvironment(f *flag.FlagSet) error {
	given := map[string]bool{}
	f.Visit(func(fl *flag.Flag) { given[fl.Name] = true })
	var errs []error
	f.VisitAll(func(fl *flag.Flag) {
		name := "PROXIMA_SIDECAR_" + strings.ToUpper(strings.ReplaceAll(fl.Name, "-", "_"))
		if value, ok := os.LookupEnv(name); ok && !given[fl.Name] {
			if err := fl.Value.Set(value); err != nil {
				errs = append(errs, fmt.Errorf("%s=%q: %w", name, value, err))
			}
		}
	})
	return errors.Join(errs...)
}

func (o *Options) check() error {
	if o.DNS && !o.Redirect {
		return errors.New("--dns needs --redirect cgroup or netns: by that the questions of the workload come here")
	}
	o.Rules.DNS = o.DNS
	if o.GRPC {
		if o.Redirect || o.RedirectByAgent || o.Gateway != nil {
			return errors.New("--grpc: no connections are led to a program, which is no gateway either; leave out --redirect and --node-credentials")
		}
		o.CertificateFiles = true
	}
	for _, needed := range []struct{ flag, value string }{
		{"node-id", o.Node.ID}, {"dir", o.Dir}, {"server-ca-file", o.Authorities},
	} {
		if needed.value == "" {
			return fmt.Errorf("--%s is needed", needed.flag)
		}
	}
	if o.RedirectByAgent && o.HealthAddress == "" {
		return errors.New("--redirect agent needs --health-address: by it the supervisor knows that connections are led to the proxy")
	}
	if o.TokenFile != "" {
		if parts := strings.Split(o.Node.ID, "/"); len(parts) != 3 {
			return fmt.Errorf("--node-id %q: want MESH/NAMESPACE/DATAPLANE", o.Node.ID)
		}
	} else if o.Gateway != nil {
		if o.Gateway.Socket == "" || o.Gateway.Address == "" {
			return errors.New("--node-credentials needs --gateway-address and --gateway-socket")
		}
	} else if o.SpiffeSocket == "" {
		return errors.New("--spiffe-socket is needed: the workload's certificate comes from this machine's agent; or --token-file, for one from the control plane")
	}
	if len(o.Servers) == 0 {
		return errors.New("--server is needed")
	}
	for _, s := range o.Servers {
		host, port, err := net.SplitHostPort(s)
		if _, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil || host == "" {
			return fmt.Errorf("--server %q: want HOST:PORT", s)
		}
	}
	var err error
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return err
	}
	if n := len(o.Dir + longestSocket); n > maxSocket {
		return fmt.Errorf("--dir %s: paths of sockets in it have %d characters, and %d are possible; use a shorter one", o.Dir, n, maxSocket)
	}
	return nil
}
