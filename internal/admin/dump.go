package admin

import (
	"fmt"
	"net/netip"

	"github.com/proxima-mesh/proxima/internal/node"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// NodeDump is all that an agent carries and how, as JSON at local.DumpPath.
type NodeDump struct {
	Node  node.Facts `json:"node"`
	Mode  string     `json:"mode"`
	Ports []DumpPort `json:"ports"`
	// Kernel is the state of the mode in the kernel (nftables), or its desired state
	// (iptables).
	Kernel []string `json:"kernel,omitempty"`
	// Compared reports whether the mode compares the kernel with its desired state.
	Compared bool `json:"compared,omitempty"`
	// Missing should be in the kernel and is not, Foreign is in our tables and
	// should not be.
	Missing []string `json:"missing,omitempty"`
	Foreign []string `json:"foreign,omitempty"`
	// Blocking are chains of other programs, as modes.BlockingForward lists them, through
	// which connections of a kernel mode pass that this machine forwards; BlockingError says
	// why they are not known.
	Blocking      []string `json:"blocking,omitempty"`
	BlockingError string   `json:"blockingError,omitempty"`
}

// NodeClusters are the service ports of an agent and their endpoints, as JSON at
// ProxyClustersPath.
type NodeClusters struct {
	Node  node.Facts `json:"node"`
	Mode  string     `json:"mode"`
	Ports []DumpPort `json:"ports"`
}

// DumpPort is a service port that is in place.
type DumpPort struct {
	Name      string          `json:"name"`
	Protocol  string          `json:"protocol"`
	Port      uint16          `json:"port"`
	NodePort  uint16          `json:"nodePort,omitempty"`
	Addresses []string        `json:"addresses"`
	Families  []DumpEndpoints `json:"families"`
}

// DumpEndpoints are the lists of one family of addresses.
type DumpEndpoints struct {
	Family string `json:"family"`
	Rule   string `json:"rule"`
	// Cluster and Local lists, "ADDRESS weight N"; empty where no policy requires them.
	Cluster []string `json:"cluster,omitempty"`
	Local   []string `json:"local,omitempty"`
}

// DumpPortOf the state of a service port.
func DumpPortOf(s *proxy.PortState) DumpPort {
	p := DumpPort{
		Name: s.Name.String(), Protocol: string(s.Port.Protocol), Port: s.Port.Port, NodePort: s.Port.NodePort,
		Addresses: []string{}, Families: []DumpEndpoints{},
	}
	families := map[bool]bool{}
	for _, list := range [][]netip.Addr{s.Service.ClusterIPs, s.Service.ExternalIPs, s.Service.LoadBalancerIPs} {
		for _, addr := range list {
			p.Addresses = append(p.Addresses, addr.String())
			families[addr.Unmap().Is4()] = true
		}
	}
	for _, f := range []struct {
		is4    bool
		name   string
		choice *proxy.Choice
	}{{true, "IPv4", &s.IPv4}, {false, "IPv6", &s.IPv6}} {
		if families[f.is4] {
			p.Families = append(p.Families, DumpEndpoints{
				Family: f.name, Rule: f.choice.Why.String(), Cluster: targets(f.choice.Cluster), Local: targets(f.choice.Local),
			})
		}
	}
	return p
}

func targets(list []proxy.Target) []string {
	var out []string
	for _, t := range list {
		out = append(out, fmt.Sprintf("%s weight %d", t.Addr, t.Weight))
	}
	return out
}
