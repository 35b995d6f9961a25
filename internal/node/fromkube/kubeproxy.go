package fromkube

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeproxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// IPVS are the settings of the section ipvs that are obeyed. Scheduler is not checked; timeouts of 0 leave what the kernel has.
type IPVS struct {
	Scheduler                             string
	StrictARP                             bool
	TCPTimeout, TCPFinTimeout, UDPTimeout time.Duration
}

// Settings are what an agent takes from a KubeProxyConfiguration.
type Settings struct {
	// Kubeconfig to reach the API with; empty: the service account of the pod.
	Kubeconfig string
	// NodeName; empty: the host's.
	NodeName string
	// Mode as --mode names it.
	Mode string
	// WorkloadCIDRs: traffic to virtual IPs from elsewhere is masqueraded. Empty:
	// none is, unless MasqueradeAll.
	WorkloadCIDRs []netip.Prefix
	// WorkloadInterfaces: what arrives by them counts as from WorkloadCIDRs.
	WorkloadInterfaces proxy.Interfaces
	// NodeCIDR: the workload ranges are those of the Node object.
	NodeCIDR bool
	// MasqueradeAll: all traffic to cluster IPs is.
	MasqueradeAll bool
	// MasqueradeMark is the firewall mark to use; 0: the default.
	MasqueradeMark uint32
	// IPVS is what the section ipvs says, in that mode.
	IPVS IPVS
	// NodePortAddresses limit node ports; empty: to none. Primary: to the addresses of the Node
	// object, the default of kube-proxy's mode nftables; AllNodePorts: they are not limited, its
	// default in the other modes.
	NodePortAddresses     []netip.Prefix
	Primary, AllNodePorts bool
	// Health and Metrics are HOST:PORT; empty: off.
	Health, Metrics string
	// Conntrack are settings of the kernel's table of connections.
	Conntrack Conntrack
	// Windows is the section winkernel.
	Windows Windows
	// Ignored are settings of the file that do nothing here, with the reason.
	Ignored []string
}

// Windows are settings of mode kernelspace.
type Windows struct {
	Network             string
	SourceVIP           netip.Addr
	EnableDSR           bool
	Gateway             string // name of the HNS endpoint of the root namespace; empty: the default
	ForwardHealthChecks bool
}

// Conntrack are settings of the kernel's table of connections; a zero value leaves what the
// machine has. Those that the file leaves out have kube-proxy's defaults.
type Conntrack struct {
	// MaxPerCore, times the number of processors, is the least limit of the table; Min is the
	// least that this comes to.
	MaxPerCore, Min                              int
	TCPEstablished, TCPCloseWait, UDP, UDPStream time.Duration
	TCPBeLiberal                                 bool
}

// Max is the limit of the table on a machine; 0: none is asked for.
func (c Conntrack) Max(processors int) int {
	if c.MaxPerCore == 0 {
		return 0
	}
	return max(c.MaxPerCore*processors, c.Min)
}

// Defaults of kube-proxy (k8s.io/kubernetes, pkg/proxy/apis/config/v1alpha1/defaults.go).
const (
	defaultMaxPerCore     = 32 << 10
	defaultMin            = 128 << 10
	defaultTCPEstablished = 24 * time.Hour
	defaultTCPCloseWait   = time.Hour

	defaultHealth  = "0.0.0.0:10256"
	defaultMetrics = "127.0.0.1:10249"
)

// ReadKubeProxyConfiguration reads kube-proxy's configuration file. Fields that
// are unknown, or name what is not to be had, are errors that say which; those
// that make no difference here are listed.
func ReadKubeProxyConfiguration(data []byte) (*Settings, error) {
	var c kubeproxyv1alpha1.KubeProxyConfiguration
	if err := yaml.UnmarshalStrict(bytes.TrimSpace(data), &c); err != nil {
		return nil, fmt.Errorf("kube-proxy configuration: %w", err)
	}
	if c.Kind != "KubeProxyConfiguration" || c.APIVersion != "kubeproxy.config.k8s.io/v1alpha1" {
		return nil, fmt.Errorf("kube-proxy configuration: apiVersion %q, kind %q: want kubeproxy.config.k8s.io/v1alpha1, KubeProxyConfiguration", c.APIVersion, c.Kind)
	}
	s := &Settings{Kubeconfig: c.ClientConnection.Kubeconfig, NodeName: strings.ToLower(c.HostnameOverride)}
	var errs []error
	note := func(field string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", field, err))
		}
	}
	note("mode", s.readMode(&c))
	note("detectLocalMode", s.readLocal(&c))
	note("nodePortAddresses", s.readNodePorts(c.NodePortAddresses))
	if len(c.NodePortAddresses) == 0 {
		s.Primary, s.AllNodePorts = s.Mode == "nftables", s.Mode != "nftables"
	}
	var err error
	s.Health, err = bind(c.HealthzBindAddress, defaultHealth, c.BindAddress)
	note("healthzBindAddress", err)
	s.Metrics, err = bind(c.MetricsBindAddress, defaultMetrics, c.BindAddress)
	note("metricsBindAddress", err)
	note("winkernel.sourceVip", s.readWindows(&c.Winkernel))
	note("featureGates", checkGates(c.FeatureGates))
	note("conntrack", s.readConntrack(&c.Conntrack))
	s.noteIgnored(&c)
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("kube-proxy configuration: %w", err)
	}
	return s, nil
}

func (s *Settings) readMode(c *kubeproxyv1alpha1.KubeProxyConfiguration) error {
	bit := (*int32)(nil)
	switch c.Mode {
	case "":
		s.Mode = "auto"
	case "iptables":
		s.Mode, bit, s.MasqueradeAll = "iptables", c.IPTables.MasqueradeBit, c.IPTables.MasqueradeAll
	case "nftables":
		s.Mode, bit, s.MasqueradeAll = "nftables", c.NFTables.MasqueradeBit, c.NFTables.MasqueradeAll
	case "ipvs": // kube-proxy's ipvs mode takes these of the section iptables
		s.Mode, bit, s.MasqueradeAll = "ipvs", c.IPTables.MasqueradeBit, c.IPTables.MasqueradeAll
		s.IPVS = IPVS{
			Scheduler: c.IPVS.Scheduler, StrictARP: c.IPVS.StrictARP, TCPTimeout: c.IPVS.TCPTimeout.Duration,
			TCPFinTimeout: c.IPVS.TCPFinTimeout.Duration, UDPTimeout: c.IPVS.UDPTimeout.Duration,
		}
	case "kernelspace":
		s.Mode = "kernelspace"
	default:
		return fmt.Errorf("%q: want nftables, iptables, ipvs, on Windows kernelspace, or nothing for the best that works", c.Mode)
	}
	if bit != nil {
		if *bit < 0 || *bit > 31 {
			return fmt.Errorf("masqueradeBit %d: 0 to 31", *bit)
		}
		s.MasqueradeMark = 1 << *bit
	}
	return nil
}

// readWindows section; an address in it that is none is an error.
func (s *Settings) readWindows(c *kubeproxyv1alpha1.KubeProxyWinkernelConfiguration) (err error) {
	s.Windows = Windows{
		Network: c.NetworkName, EnableDSR: c.EnableDSR, Gateway: c.RootHnsEndpointName, ForwardHealthChecks: c.ForwardHealthCheckVip,
	}
	if c.SourceVip == "" {
		return nil
	}
	if s.Windows.SourceVIP, err = netip.ParseAddr(c.SourceVip); err != nil {
		return fmt.Errorf("%q: not an IP address", c.SourceVip)
	}
	return nil
}

// checkGates refuses, as kube-proxy 1.37 does, to turn off what is locked on there and has an effect here.
func checkGates(gates map[string]bool) error {
	for _, gate := range []string{"WinDSR", "WinOverlay"} {
		if on, set := gates[gate]; set && !on {
			return fmt.Errorf("%s: it is locked to true since Kubernetes 1.34; winkernel.enableDSR turns direct server return on and off", gate)
		}
	}
	return nil
}

func (s *Settings) readLocal(c *kubeproxyv1alpha1.KubeProxyConfiguration) error {
	switch c.DetectLocalMode {
	case "", "ClusterCIDR":
		if c.ClusterCIDR == "" {
			return nil
		}
		for text := range strings.SplitSeq(c.ClusterCIDR, ",") {
			p, err := netip.ParsePrefix(strings.TrimSpace(text))
			if err != nil {
				return fmt.Errorf("clusterCIDR %q: not a CIDR such as 10.244.0.0/16", text)
			}
			s.WorkloadCIDRs = append(s.WorkloadCIDRs, p.Masked())
		}
		return nil
	case "NodeCIDR":
		s.NodeCIDR = true
		return nil
	case "BridgeInterface":
		return s.readInterface("bridgeInterface", c.DetectLocal.BridgeInterface, "")
	case "InterfaceNamePrefix":
		return s.readInterface("interfaceNamePrefix", c.DetectLocal.InterfaceNamePrefix, "*")
	}
	return fmt.Errorf("%q: want ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix", c.DetectLocalMode)
}

// readInterface of detectLocal. kube-proxy takes the empty one for none.
func (s *Settings) readInterface(field, name, suffix string) error {
	if name == "" {
		return fmt.Errorf("detectLocal.%s is missing", field)
	}
	s.WorkloadInterfaces = proxy.Interfaces{name + suffix}
	if strings.Contains(name, "*") || s.WorkloadInterfaces.Check() != nil {
		return fmt.Errorf("detectLocal.%s %q is no name of an interface", field, name)
	}
	return nil
}

func (s *Settings) readConntrack(c *kubeproxyv1alpha1.KubeProxyConntrackConfiguration) error {
	s.Conntrack = Conntrack{
		MaxPerCore: int(ptr.Deref(c.MaxPerCore, defaultMaxPerCore)), Min: int(ptr.Deref(c.Min, defaultMin)),
		TCPEstablished: ptr.Deref(c.TCPEstablishedTimeout, metav1.Duration{Duration: defaultTCPEstablished}).Duration,
		TCPCloseWait:   ptr.Deref(c.TCPCloseWaitTimeout, metav1.Duration{Duration: defaultTCPCloseWait}).Duration,
		UDP:            c.UDPTimeout.Duration, UDPStream: c.UDPStreamTimeout.Duration, TCPBeLiberal: c.TCPBeLiberal,
	}
	t := s.Conntrack
	if t.MaxPerCore < 0 || t.Min < 0 || min(t.TCPEstablished, t.TCPCloseWait, t.UDP, t.UDPStream) < 0 {
		return errors.New("no value may be below 0; 0 leaves what the machine has")
	}
	return nil
}

func (s *Settings) readNodePorts(list []string) error {
	for _, text := range list {
		switch text {
		case "all":
			s.NodePortAddresses = append(s.NodePortAddresses, netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0"))
		case "primary":
			s.Primary = true
		case "localhost":
			s.NodePortAddresses = append(s.NodePortAddresses, netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128"))
		default:
			p, err := netip.ParsePrefix(text)
			if err != nil {
				return fmt.Errorf("%q: want a CIDR, or one of all, primary, localhost", text)
			}
			s.NodePortAddresses = append(s.NodePortAddresses, p.Masked())
		}
	}
	if s.Primary && len(list) > 1 {
		return errors.New("\"primary\" can't be combined with others here")
	}
	return nil
}

// bind reads HOST:PORT or HOST. As in kube-proxy, the default's host follows the
// family of bindAddress, and port 0 is off.
func bind(text, def, bindAddress string) (string, error) {
	host, port, _ := net.SplitHostPort(def)
	if a, err := netip.ParseAddr(bindAddress); err == nil && a.Is6() {
		host = map[string]string{"0.0.0.0": "::", "127.0.0.1": "::1"}[host]
	}
	if text != "" {
		h, p, err := net.SplitHostPort(text)
		if err != nil {
			h, p = text, port
		}
		if _, err := netip.ParseAddr(h); err != nil {
			return "", fmt.Errorf("%q: want IP:PORT such as %s", text, def)
		}
		if _, err := strconv.ParseUint(p, 10, 16); err != nil {
			return "", fmt.Errorf("%q: port %q is not a number up to 65535", text, p)
		}
		host, port = h, p
	}
	if port == "0" {
		return "", nil
	}
	return net.JoinHostPort(host, port), nil
}

// noteIgnored lists what is set and makes no difference.
func (s *Settings) noteIgnored(c *kubeproxyv1alpha1.KubeProxyConfiguration) {
	note := func(set bool, text string) {
		if set {
			s.Ignored = append(s.Ignored, text)
		}
	}
	note(c.IPTables.SyncPeriod.Duration != 0 || c.NFTables.SyncPeriod.Duration != 0, "syncPeriod: drift is noticed by event, not by period")
	note(c.IPTables.MinSyncPeriod.Duration != 0 || c.NFTables.MinSyncPeriod.Duration != 0, "minSyncPeriod: the first change is applied at once, and bursts are joined by themselves")
	note(c.IPVS.SyncPeriod.Duration != 0, "ipvs.syncPeriod: the kernel is compared as often as one part in a hundred of a processor allows, at most twice a second")
	note(c.IPVS.MinSyncPeriod.Duration != 0, "ipvs.minSyncPeriod: the first change is applied at once, and bursts are joined by themselves")
	note(len(c.IPVS.ExcludeCIDRs) > 0, "ipvs.excludeCIDRs: services of other programs are left alone, wherever they are")
	if c.Mode != "ipvs" {
		note(c.IPVS.Scheduler != "" || c.IPVS.StrictARP || c.IPVS.TCPTimeout.Duration != 0 || c.IPVS.TCPFinTimeout.Duration != 0 || c.IPVS.UDPTimeout.Duration != 0,
			"ipvs.scheduler, strictARP, tcpTimeout, tcpFinTimeout, udpTimeout: the mode is not ipvs")
	}
	note(c.ConfigSyncPeriod.Duration != 0, "configSyncPeriod: the API is watched")
	note(c.Mode == "iptables" && ptr.Deref(c.IPTables.LocalhostNodePorts, true), "iptables.localhostNodePorts: node ports are served on the node's addresses, not on loopback ones")
	note(c.Mode != "kernelspace" && c.Mode != "" && c.Winkernel != (kubeproxyv1alpha1.KubeProxyWinkernelConfiguration{}), "winkernel: of mode kernelspace")
	note(c.WindowsRunAsService, "windowsRunAsService: \"proxima node\" notices by itself that the service manager runs it")
	note(c.OOMScoreAdj != nil, "oomScoreAdj: set it in the unit or the pod")
	note(c.EnableProfiling, "enableProfiling: there is no profiling port")
	note(len(c.FeatureGates) > 0, "featureGates: kube-proxy's own")
	note(c.BindAddressHardFail, "bindAddressHardFail: a port that can't be opened is always fatal")
	note(c.ShowHiddenMetricsForVersion != "", "showHiddenMetricsForVersion: kube-proxy's own")
	note(c.ClientConnection.QPS != 0 || c.ClientConnection.Burst != 0, "clientConnection.qps, burst: the agent only watches")
	slices.Sort(s.Ignored)
}
