package fromkube

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

const head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

func TestReadKubeProxyConfiguration(t *testing.T) {
	prefix := netip.MustParsePrefix
	defaults := func(change func(*Settings)) *Settings {
		s := &Settings{Mode: "auto", Health: "0.0.0.0:10256", Metrics: "127.0.0.1:10249", AllNodePorts: true, Conntrack: Conntrack{
			MaxPerCore: 32768, Min: 131072, TCPEstablished: 24 * time.Hour, TCPCloseWait: time.Hour,
		}}
		change(s)
		return s
	}
	for _, c := range []struct {
		name, text string
		want       *Settings
		err        string
	}{
		{name: "nothing set", text: head, want: defaults(func(*Settings) {})},
		{name: "as kubeadm writes it", text: head + `
bindAddress: 0.0.0.0
bindAddressHardFail: false
clientConnection:
  acceptContentTypes: ""
  burst: 0
  contentType: ""
  kubeconfig: /var/lib/kube-proxy/kubeconfig.conf
  qps: 0
clusterCIDR: 10.244.0.0/16,fd00:10:244::/56
configSyncPeriod: 0s
conntrack: {maxPerCore: null, min: null, tcpBeLiberal: false, tcpCloseWaitTimeout: null, tcpEstablishedTimeout: null, udpStreamTimeout: 0s, udpTimeout: 0s}
detectLocal: {bridgeInterface: "", interfaceNamePrefix: ""}
detectLocalMode: ""
enableProfiling: false
healthzBindAddress: ""
hostnameOverride: "Node-1"
iptables: {localhostNodePorts: null, masqueradeAll: false, masqueradeBit: 14, minSyncPeriod: 1s, syncPeriod: 0s}
ipvs: {excludeCIDRs: null, minSyncPeriod: 0s, scheduler: "", strictARP: false, syncPeriod: 0s, tcpFinTimeout: 0s, tcpTimeout: 0s, udpTimeout: 0s}
logging: {flushFrequency: 0, options: {json: {infoBufferSize: "0"}, text: {infoBufferSize: "0"}}, verbosity: 0}
metricsBindAddress: 0.0.0.0:10249
mode: iptables
nftables: {masqueradeAll: false, masqueradeBit: null, minSyncPeriod: 0s, syncPeriod: 0s}
nodePortAddresses: null
oomScoreAdj: null
portRange: ""
showHiddenMetricsForVersion: ""
winkernel: {enableDSR: false, forwardHealthCheckVip: false, networkName: "", rootHnsEndpointName: "", sourceVip: ""}
`, want: defaults(func(s *Settings) {
			s.Mode, s.MasqueradeMark, s.NodeName = "iptables", 1<<14, "node-1"
			s.Kubeconfig, s.Metrics = "/var/lib/kube-proxy/kubeconfig.conf", "0.0.0.0:10249"
			s.WorkloadCIDRs = []netip.Prefix{prefix("10.244.0.0/16"), prefix("fd00:10:244::/56")}
			s.Ignored = []string{
				"iptables.localhostNodePorts: node ports are served on the node's addresses, not on loopback ones",
				"minSyncPeriod: the first change is applied at once, and bursts are joined by themselves",
			}
		})},
		{name: "node addresses", text: head + "nodePortAddresses: [10.0.0.0/8, localhost]\nbindAddress: '::'\nmetricsBindAddress: '127.0.0.1:0'\ndetectLocalMode: NodeCIDR", want: defaults(func(s *Settings) {
			s.NodePortAddresses = []netip.Prefix{prefix("10.0.0.0/8"), prefix("127.0.0.0/8"), prefix("::1/128")}
			s.Health, s.Metrics, s.NodeCIDR, s.AllNodePorts = "[::]:10256", "", true, false
		})},
		{name: "primary", text: head + "mode: nftables\nnftables: {masqueradeAll: true}\nnodePortAddresses: [primary]", want: defaults(func(s *Settings) {
			s.Mode, s.MasqueradeAll, s.Primary, s.AllNodePorts = "nftables", true, true, false
		})},
		{name: "nftables has another default", text: head + "mode: nftables", want: defaults(func(s *Settings) {
			s.Mode, s.Primary, s.AllNodePorts = "nftables", true, false
		})},
		{name: "connection tracking", text: head + "conntrack: {maxPerCore: 0, min: 1, tcpBeLiberal: true, tcpEstablishedTimeout: 1h, tcpCloseWaitTimeout: 0s, udpTimeout: 20s, udpStreamTimeout: 2m}",
			want: defaults(func(s *Settings) {
				s.Conntrack = Conntrack{Min: 1, TCPEstablished: time.Hour, UDP: 20 * time.Second, UDPStream: 2 * time.Minute, TCPBeLiberal: true}
			})},
		{name: "bad connection tracking", text: head + "conntrack: {maxPerCore: -1}", err: "conntrack: no value may be below 0"},
		{name: "no loopback", text: head + "mode: iptables\niptables: {localhostNodePorts: false}", want: defaults(func(s *Settings) { s.Mode = "iptables" })},
		{name: "no kind", text: "mode: iptables", err: "want kubeproxy.config.k8s.io/v1alpha1"},
		{name: "unknown field", text: head + "modus: iptables", err: `unknown field "modus"`},
		{
			name: "ipvs", text: head + `mode: ipvs
iptables: {masqueradeBit: 15, masqueradeAll: true}
ipvs: {scheduler: sh, strictARP: true, tcpTimeout: 15m, tcpFinTimeout: 2m, udpTimeout: 5m, excludeCIDRs: [10.0.0.0/8], syncPeriod: 30s, minSyncPeriod: 1s}`,
			want: defaults(func(s *Settings) {
				s.Mode, s.MasqueradeMark, s.MasqueradeAll = "ipvs", 1<<15, true
				s.IPVS = IPVS{Scheduler: "sh", StrictARP: true, TCPTimeout: 15 * time.Minute, TCPFinTimeout: 2 * time.Minute, UDPTimeout: 5 * time.Minute}
				s.Ignored = []string{
					"ipvs.excludeCIDRs: services of other programs are left alone, wherever they are",
					"ipvs.minSyncPeriod: the first change is applied at once, and bursts are joined by themselves",
					"ipvs.syncPeriod: the kernel is compared as often as one part in a hundred of a processor allows, at most twice a second",
				}
			}),
		},
		{name: "ipvs of another mode", text: head + "mode: nftables\nipvs: {strictARP: true}", want: defaults(func(s *Settings) {
			s.Mode, s.Primary, s.AllNodePorts = "nftables", true, false
			s.Ignored = []string{"ipvs.scheduler, strictARP, tcpTimeout, tcpFinTimeout, udpTimeout: the mode is not ipvs"}
		})},
		{name: "kernelspace", text: head + "mode: kernelspace\nfeatureGates: {WinDSR: true, WinOverlay: true}\nwindowsRunAsService: true\n" +
			"winkernel: {enableDSR: true, forwardHealthCheckVip: true, networkName: cbr0, rootHnsEndpointName: cbr0_ep, sourceVip: 10.244.1.2}", want: defaults(func(s *Settings) {
			s.Mode = "kernelspace"
			s.Windows = Windows{Network: "cbr0", SourceVIP: netip.MustParseAddr("10.244.1.2"), EnableDSR: true, Gateway: "cbr0_ep", ForwardHealthChecks: true}
			s.Ignored = []string{"featureGates: kube-proxy's own", "windowsRunAsService: \"proxima node\" notices by itself that the service manager runs it"}
		})},
		{name: "winkernel elsewhere", text: head + "mode: iptables\nwinkernel: {networkName: cbr0}\niptables: {localhostNodePorts: false}", want: defaults(func(s *Settings) {
			s.Mode, s.Windows.Network = "iptables", "cbr0"
			s.Ignored = []string{"winkernel: of mode kernelspace"}
		})},
		{name: "bad source VIP", text: head + "mode: kernelspace\nwinkernel: {sourceVip: here}", err: `winkernel.sourceVip: "here": not an IP address`},
		{name: "gate that is locked", text: head + "featureGates: {WinDSR: false}", err: "featureGates: WinDSR: it is locked to true"},
		{name: "bad mode", text: head + "mode: fast", err: `mode: "fast": want nftables, iptables`},
		{name: "bad bit", text: head + "mode: iptables\niptables: {masqueradeBit: 32}", err: "masqueradeBit 32: 0 to 31"},
		{name: "bridge", text: head + "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0, interfaceNamePrefix: x}", want: defaults(func(s *Settings) {
			s.WorkloadInterfaces = proxy.Interfaces{"cni0"}
		})},
		{name: "prefix", text: head + "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: cali}", want: defaults(func(s *Settings) {
			s.WorkloadInterfaces = proxy.Interfaces{"cali*"}
		})},
		{name: "no bridge", text: head + "detectLocalMode: BridgeInterface", err: "detectLocal.bridgeInterface is missing"},
		{name: "odd prefix", text: head + "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: 'a/b'}", err: "detectLocal.interfaceNamePrefix \"a/b\" is no name"},
		{name: "star", text: head + "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: 'a*'}", err: "is no name"},
		{name: "unknown mode", text: head + "detectLocalMode: Guess", err: "want ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix"},
		{name: "bad cidr", text: head + "clusterCIDR: 10.244.0.0", err: `clusterCIDR "10.244.0.0": not a CIDR`},
		{name: "bad address", text: head + "nodePortAddresses: [eth0]", err: `nodePortAddresses: "eth0": want a CIDR`},
		{name: "bad bind", text: head + "healthzBindAddress: localhost:1", err: `healthzBindAddress: "localhost:1": want IP:PORT`},
		{name: "bad port", text: head + "healthzBindAddress: 127.0.0.1:99999", err: "not a number up to 65535"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := ReadKubeProxyConfiguration([]byte(c.text))
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("error %v, want one with %q", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got, cmpopts.EquateComparable(netip.Prefix{}, netip.Addr{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestConntrackMax(t *testing.T) {
	for _, c := range []struct {
		conntrack        Conntrack
		processors, want int
	}{
		{Conntrack{MaxPerCore: 32768, Min: 131072}, 2, 131072},
		{Conntrack{MaxPerCore: 32768, Min: 131072}, 8, 262144},
		{Conntrack{Min: 131072}, 8, 0}, // kube-proxy: 0 for each leaves the limit, whatever the least one is
	} {
		if got := c.conntrack.Max(c.processors); got != c.want {
			t.Errorf("%+v with %d processors: %d, want %d", c.conntrack, c.processors, got, c.want)
		}
	}
}

func FuzzReadKubeProxyConfiguration(f *testing.F) {
	f.Add([]byte(head + "mode: iptables"))
	f.Add([]byte(head + "nodePortAddresses: [primary, 10.0.0.0/8]"))
	f.Add([]byte("{"))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := ReadKubeProxyConfiguration(data)
		if (s == nil) == (err == nil) {
			t.Errorf("settings %v and error %v", s, err)
		}
	})
}
