package cli

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"time"

	"github.com/spf13/cobra"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/rest"

	"github.com/proxima-mesh/proxima/api/mesh/v1alpha1"
	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/app"
	"github.com/proxima-mesh/proxima/internal/diag/doctor"
	"github.com/proxima-mesh/proxima/internal/kubeclient"
	"github.com/proxima-mesh/proxima/internal/resource"
	"github.com/proxima-mesh/proxima/internal/resource/kind"
	"github.com/proxima-mesh/proxima/internal/xds"
)

// doctorFlags select the checks and the action.
type doctorFlags struct {
	output    string
	fix, undo bool
	// cluster: all of the control plane and its nodes, instead of this machine.
	cluster bool
	// dnsAddress replaces the agent's own.
	dnsAddress string
}

func newDoctor(s *settings) *cobra.Command {
	var d doctorFlags
	cmd := &cobra.Command{
		Use:     "doctor",
		GroupID: "operate",
		Short:   "Check this machine for problems, and show their remedies",
		Long: `Doctor checks this machine, its agent and the control plane that its kubeconfig
names, and changes nothing. It exits with 1 if it found a problem.

With --fix it points this machine's resolver at the agent, so that programs can
resolve the names of Services; the agent reverts that when it ends, --undo does
so at once. Nothing else is changed.

With --cluster it asks the control plane what is wrong in all of it, and with its
nodes, agents, proxies and objects, grouped by code; "proxima docs reference/problems" has
the codes. It exits with 1 if there is an error, and with 0 if there are warnings
alone.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return s.doctor(cmd.Context(), d) },
	}
	f := cmd.Flags()
	addOutputFlag(f, &d.output)
	f.BoolVar(&d.fix, "fix", false, "point this machine's resolver at the agent (needs root)")
	f.BoolVar(&d.undo, "undo", false, "take back what --fix did (needs root)")
	f.BoolVar(&d.cluster, "cluster", false, "ask the control plane for the problems of all it knows, and leave this machine out")
	f.StringVar(&d.dnsAddress, "dns-address", "", "ADDRESS:PORT of the DNS server for --fix (default: that of this machine's agent)")
	return cmd
}

func (s *settings) doctor(ctx context.Context, d doctorFlags) error {
	if err := checkFormat(d.output); err != nil {
		return err
	}
	if d.cluster {
		if d.fix || d.undo || d.dnsAddress != "" {
			return usagef("--cluster goes without --fix, --undo and --dns-address, which are for this machine")
		}
		return s.doctorCluster(ctx, d.output)
	}
	if d.fix && d.undo {
		return usagef("--fix and --undo: choose one")
	}
	if d.undo {
		undone, err := doctor.UndoResolver(ctx, "")
		if err != nil {
			return err
		}
		text := "this machine's resolver was not set by proxima; nothing to undo"
		if undone {
			text = "this machine's resolver is as it was before"
		}
		fmt.Fprintln(s.io.Err, text)
	}
	findings := doctor.Examine(ctx, s.examination(d))
	if d.output == "json" || d.output == "yaml" {
		if err := printValue(s.io.Out, findings, d.output); err != nil {
			return err
		}
	} else {
		printFindings(s.io.Out, findings)
	}
	for _, f := range findings {
		if f.Problem != "" {
			return &exitError{code: 1}
		}
	}
	return nil
}

// examination is what the doctor examines by these settings.
func (s *settings) examination(d doctorFlags) doctor.Config {
	cfg := doctor.Config{
		DataDir: s.dataDir,
		Agent:   thisAgent{s},
		Ports: []doctor.Port{
			{Number: 6443, Flag: "--api-address"},
			{Number: defaultGRPCPort, Flag: "--grpc-port"},
			{Number: defaultXDSPort, Flag: "--xds-port"},
			{Number: defaultHealthPort, Flag: "--health-port", Agent: true},
			{Number: defaultMetricsPort, Flag: "--metrics-port", Agent: true},
			{Number: app.DefaultDNSPort(os.Geteuid() == 0), Flag: "--dns-port", Agent: true},
		},
		ProbePort:  defaultProbePort,
		Fix:        d.fix,
		Fixed:      func(text string) { fmt.Fprintln(s.io.Err, text) },
		DNSAddress: d.dnsAddress,
	}
	rest, _, err := s.restConfig()
	if err != nil {
		cfg.ConfigErr, cfg.Unconfigured = err, isNoKubeconfig(err)
		return cfg
	}
	rest.Timeout = doctorTimeout
	cfg.ControlPlane = controlPlane{rest}
	return cfg
}

// doctorTimeout of each request to the control plane.
const doctorTimeout = 5 * time.Second

func printFindings(out io.Writer, findings []doctor.Finding) {
	for _, f := range findings {
		switch {
		case f.Problem != "":
			fmt.Fprintf(out, "problem  %s: %s\n         fix: %s\n         code: %s\n", f.Check, f.Problem, f.Fix, f.Code)
		case f.Note != "":
			fmt.Fprintf(out, "ok       %s: %s\n", f.Check, f.Note)
		default:
			fmt.Fprintf(out, "ok       %s\n", f.Check)
		}
	}
}

// controlPlane implements doctor.ControlPlane over the API.
type controlPlane struct{ cfg *rest.Config }

// Host implements doctor.ControlPlane.
func (c controlPlane) Host() string { return c.cfg.Host }

// Version implements doctor.ControlPlane.
func (c controlPlane) Version(ctx context.Context) (version.Info, time.Time, error) {
	var info version.Info
	date, err := getJSON(ctx, c.cfg, "/version", &info)
	return info, date, explainAPI(c.cfg, err)
}

// Status implements doctor.ControlPlane.
func (c controlPlane) Status(ctx context.Context) (*admin.Status, error) {
	var status admin.Status
	if err := callJSON(ctx, c.cfg, http.MethodGet, admin.StatusPath, nil, &status); err != nil {
		return nil, explainAPI(c.cfg, err)
	}
	return &status, nil
}

// Proxies implements doctor.ControlPlane.
func (c controlPlane) Proxies(ctx context.Context) ([]doctor.Proxy, error) {
	client, err := kubeclient.New(c.cfg, []*resource.Descriptor{kind.DataplaneInsight, kind.ZoneIngressInsight, kind.ZoneEgressInsight})
	if err != nil {
		return nil, err
	}
	list, _, err := client.List(ctx, kind.DataplaneInsight, resource.ListOptions{})
	if err != nil {
		return nil, explainAPI(c.cfg, err)
	}
	for _, d := range []*resource.Descriptor{kind.ZoneIngressInsight, kind.ZoneEgressInsight} {
		if gateways, _, err := client.List(ctx, d, resource.ListOptions{}); err == nil { // a cluster may not serve them
			list = append(list, gateways...)
		}
	}
	var out []doctor.Proxy
	for _, obj := range list {
		out = append(out, proxyOf(obj))
	}
	return out, nil
}

// proxyOf an insight.
func proxyOf(insight resource.Object) doctor.Proxy {
	p := doctor.Proxy{Copied: insight.GetLabels()[v1alpha1.LabelOrigin] == v1alpha1.OriginZone}
	switch i := insight.(type) {
	case *v1alpha1.DataplaneInsight:
		p.Name, p.Status = i.Namespace+"/"+i.Name, &i.Status
	case *v1alpha1.ZoneIngressInsight:
		p.Name, p.Status = xds.GatewayNamespace+"/"+i.Name, &i.Status
	case *v1alpha1.ZoneEgressInsight:
		p.Name, p.Status = xds.GatewayNamespace+"/"+i.Name, &i.Status
	}
	return p
}

// ServiceRanges implements doctor.ControlPlane.
func (c controlPlane) ServiceRanges(ctx context.Context) ([]netip.Prefix, error) {
	client, err := kubeclient.New(c.cfg, []*resource.Descriptor{kind.ServiceCIDR})
	if err != nil {
		return nil, err
	}
	list, _, err := client.List(ctx, kind.ServiceCIDR, resource.ListOptions{})
	if err != nil {
		return nil, explainAPI(c.cfg, err)
	}
	var out []netip.Prefix
	for _, obj := range list {
		for _, text := range obj.(*networkingv1.ServiceCIDR).Spec.CIDRs {
			if p, err := netip.ParsePrefix(text); err == nil {
				out = append(out, p)
			}
		}
	}
	return out, nil
}
