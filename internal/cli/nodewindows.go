package cli

import (
	"net/netip"

	"github.com/spf13/pflag"

	"github.com/proxima-mesh/proxima/internal/node/fromkube"
	"github.com/proxima-mesh/proxima/internal/proxy/modes"
)

// windowsFlags are those of the mode kernelspace. They have the names and defaults of kube-proxy's.
type windowsFlags struct {
	network, sourceVIP, gateway   string
	dsr, forwardHealth, allowOpen bool
}

// defaultGateway is the name of the endpoint of the root namespace (kube-proxy's default).
const defaultGateway = "cbr0"

func (w *windowsFlags) add(f *pflag.FlagSet) {
	f.StringVar(&w.network, "network-name", "", "mode kernelspace: name of the HNS network of Pods (default: the variable KUBE_NETWORK)")
	f.StringVar(&w.sourceVIP, "source-vip", "", "mode kernelspace: source address of translated connections; a network of type Overlay needs it")
	f.BoolVar(&w.dsr, "enable-dsr", false, "mode kernelspace: direct server return for cluster IPs")
	f.StringVar(&w.gateway, "root-hnsendpoint-name", defaultGateway, "mode kernelspace: name of the HNS endpoint of the root namespace, to which --forward-healthcheck-vip leads")
	f.BoolVar(&w.forwardHealth, "forward-healthcheck-vip", false, "mode kernelspace: health checks at ingress addresses are led to this machine")
	f.BoolVar(&w.allowOpen, "windows-allow-open", false, "mode kernelspace: what HNS cannot restrict (source ranges, policies Local without an endpoint here) is open; otherwise it is not served")
}

func (w *windowsFlags) config() (modes.Windows, error) {
	out := modes.Windows{
		Network: w.network, EnableDSR: w.dsr, Gateway: w.gateway, ForwardHealthChecks: w.forwardHealth, AllowOpen: w.allowOpen,
	}
	if w.sourceVIP == "" {
		return out, nil
	}
	var err error
	if out.SourceVIP, err = netip.ParseAddr(w.sourceVIP); err != nil {
		return out, usagef("--source-vip %q: not an IP address", w.sourceVIP)
	}
	return out, nil
}

// adopt takes over settings of a KubeProxyConfiguration that no flag gave.
func (w *windowsFlags) adopt(changed func(string) bool, given fromkube.Windows, have modes.Windows) modes.Windows {
	if !changed("network-name") {
		have.Network = given.Network
	}
	if !changed("source-vip") {
		have.SourceVIP = given.SourceVIP
	}
	if !changed("enable-dsr") {
		have.EnableDSR = given.EnableDSR
	}
	if !changed("root-hnsendpoint-name") && given.Gateway != "" {
		have.Gateway = given.Gateway
	}
	if !changed("forward-healthcheck-vip") {
		have.ForwardHealthChecks = given.ForwardHealthChecks
	}
	return have
}
