package app

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/proxima-mesh/proxima/internal/diag"
	"github.com/proxima-mesh/proxima/internal/node"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/modes"
)

func (a *agent) serveTrace(w http.ResponseWriter, r *http.Request) {
	c, err := connectionOf(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	answerJSON(w, a.trace(c))
}

// connectionOf a request: to, protocol (default tcp) and from (default: this
// machine's own address on the way there).
func connectionOf(r *http.Request) (c diag.Connection, err error) {
	q := r.URL.Query()
	if c.To, err = netip.ParseAddrPort(q.Get("to")); err != nil || c.To.Port() == 0 {
		return c, fmt.Errorf("to=%q: want IP:PORT, or [IP]:PORT", q.Get("to"))
	}
	c.To = netip.AddrPortFrom(c.To.Addr().Unmap(), c.To.Port())
	c.Protocol = proxy.Protocol(strings.ToUpper(cmp.Or(q.Get("protocol"), "tcp")))
	if !slices.Contains([]proxy.Protocol{proxy.TCP, proxy.UDP, proxy.SCTP}, c.Protocol) {
		return c, fmt.Errorf("protocol=%q: want tcp, udp or sctp", q.Get("protocol"))
	}
	if q.Get("from") == "" {
		c.From = towards(c.To)
		return c, nil
	}
	if c.From, err = netip.ParseAddr(q.Get("from")); err != nil {
		return c, fmt.Errorf("from=%q: want an IP address", q.Get("from"))
	}
	if c.From = c.From.Unmap(); c.From.Is4() != c.To.Addr().Is4() {
		return c, fmt.Errorf("from=%s and to=%s are of different families", c.From, c.To)
	}
	return c, nil
}

// towards an address this machine sends from its own. The kernel is asked for the
// way; nothing is sent. Without a way it is the loopback address.
func towards(to netip.AddrPort) netip.Addr {
	conn, err := net.Dial("udp", to.String())
	if err != nil {
		if to.Addr().Is4() {
			return netip.AddrFrom4([4]byte{127, 0, 0, 1})
		}
		return netip.IPv6Loopback()
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap().WithZone("")
}

func (a *agent) trace(c diag.Connection) *diag.Trace {
	status := a.agent.Status()
	t := &diag.Trace{
		To: c.To.String(), Protocol: strings.ToLower(string(c.Protocol)), From: c.From.String(),
		Node: status.Node.Name, Zone: status.Node.Zone, Mode: status.Mode,
	}
	here := modes.LocalAddresses([]netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)})
	vantage := diag.Vantage{Addresses: here, NodePorts: here, Workloads: a.cfg.WorkloadCIDRs, MasqueradeAll: a.cfg.MasqueradeAll}
	if len(a.cfg.NodePortAddresses) > 0 {
		vantage.NodePorts = modes.LocalAddresses(a.cfg.NodePortAddresses)
	}
	states := a.agent.AllStates()
	state := t.Trace(c, states, vantage)
	a.mode.Trace(t, c, state, states)
	known := a.agent.Slices()
	t.Locate(known, vantage)
	t.FindUnused(state, c.To.Addr(), known, a.agent.Node())
	for _, p := range status.Pending {
		if p.Port == t.Service {
			t.Pending = cmp.Or(strings.TrimSpace(p.Error+" "+p.Hint), "the newest change is on its way")
		}
	}
	return t
}

// NodeDump is all that an agent carries and how, as JSON at local.DumpPath.
type NodeDump struct {
	Node  node.Facts `json:"node"`
	Mode  string     `json:"mode"`
	Ports []DumpPort `json:"ports"`
	// Kernel is what the mode has in the kernel (nftables), or wants to have there
	// (iptables).
	Kernel []string `json:"kernel,omitempty"`
	// Compared tells whether the mode compares the kernel with what it wants.
	Compared bool `json:"compared,omitempty"`
	// Missing should be in the kernel and is not, Foreign is in our tables and
	// should not be.
	Missing []string `json:"missing,omitempty"`
	Foreign []string `json:"foreign,omitempty"`
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
	// Cluster and Local lists, "ADDRESS weight N"; empty where no policy asks.
	Cluster []string `json:"cluster,omitempty"`
	Local   []string `json:"local,omitempty"`
}

func (a *agent) serveDump(w http.ResponseWriter, r *http.Request) {
	d := &NodeDump{Node: a.agent.Status().Node, Mode: a.mode.Name(), Ports: []DumpPort{}}
	for _, s := range a.agent.AllStates() {
		d.Ports = append(d.Ports, dumpPort(s))
	}
	kernel, err := a.mode.Dump(r.Context())
	if err != nil {
		http.Error(w, "read the kernel's tables: "+err.Error(), http.StatusServiceUnavailable)
		return
	}
	d.Kernel, d.Compared, d.Missing, d.Foreign = kernel.Objects, kernel.Compared, kernel.Missing, kernel.Foreign
	answerJSON(w, d)
}

func dumpPort(s *proxy.PortState) DumpPort {
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

func answerJSON(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value) // the client may be gone
}
