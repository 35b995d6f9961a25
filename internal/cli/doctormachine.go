package cli

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/proxy/modes"
)

// networksHere are the networks of this machine's interfaces, by interface.
func networksHere() map[netip.Prefix]string {
	out := map[netip.Prefix]string{}
	interfaces, _ := net.Interfaces() // none: nothing to compare with
	for _, i := range interfaces {
		addrs, _ := i.Addrs()
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && !p.IsSingleIP() && !p.Addr().IsLoopback() && !p.Addr().IsLinkLocalUnicast() {
				out[p.Masked()] = i.Name
			}
		}
	}
	return out
}

// rangeFindings look where addresses of the service ranges lead from here.
func rangeFindings(ranges []netip.Prefix, agent *admin.NodeStatus) []finding {
	var out []finding
	networks := networksHere()
	for _, r := range ranges {
		f := finding{Check: "service range " + r.String()}
		mode := ""
		if agent != nil {
			mode = agent.Agent.Mode
		}
		if network, name, overlaps := overlapping(r, networks); overlaps {
			f.Problem = fmt.Sprintf("it overlaps %s, the network of interface %s: machines there and Services hide each other", network, name)
			f.Fix = "use another range: add a ServiceCIDR, move Services there, delete this one"
		} else {
			f.leads(r, mode)
		}
		out = append(out, f)
	}
	return out
}

func overlapping(r netip.Prefix, networks map[netip.Prefix]string) (network netip.Prefix, name string, ok bool) {
	for p, n := range networks {
		if p.Overlaps(r) {
			return p, n, true
		}
	}
	return network, "", false
}

// leads asks the kernel for the way to an address of a range; nothing is sent.
func (f *finding) leads(r netip.Prefix, mode string) {
	vip := r.Masked().Addr().Next()
	conn, err := net.Dial("udp", netip.AddrPortFrom(vip, 9).String())
	if err != nil {
		var errno syscall.Errno
		reason := err.Error()
		if errors.As(err, &errno) {
			reason = errno.Error()
		}
		if mode == "" {
			f.Note = "not routed here, and no agent runs: " + reason
			return
		}
		f.Problem = "the kernel has no way to it: " + reason
		f.Fix = "userspace mode: run the agent with CAP_NET_ADMIN, or use a range in 127.0.0.0/8; kernel modes: add a route, a default one will do"
		return
	}
	defer conn.Close()
	from := conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
	_, inKernel := modes.RequirementOf(mode)
	switch local := from == vip || vip.IsLoopback(); {
	case mode != "" && !inKernel && !local:
		f.Problem = fmt.Sprintf("its addresses lead away from this machine (from %s), where the userspace mode cannot answer", from)
		f.Fix = "run the agent with CAP_NET_ADMIN, so that it can route the range to this machine, or use a range in 127.0.0.0/8"
	case local:
		f.Note = "leads to this machine"
	default:
		f.Note = "routed; kernel modes redirect before that"
	}
}

// otherProxies looks, by reading alone, for a kube-proxy and for what one left.
func otherProxies(ctx context.Context, root string) finding {
	f := finding{Check: "other service proxies"}
	if runtime.GOOS != "linux" {
		f.Note = "not looked at on this system"
		return f
	}
	var found []string
	if pid := processNamed(root, "kube-proxy"); pid != "" {
		found = append(found, "process kube-proxy, pid "+pid)
	}
	for _, look := range []struct {
		what, word string
		args       []string
		// tables is a file that names the tables there are, where looking without any
		// would load a module.
		tables string
	}{
		{"nftables table kube-proxy", "kube-proxy", []string{"nft", "list", "tables"}, ""},
		{"chains KUBE-SERVICES (iptables over nftables)", "KUBE-SERVICES", []string{"nft", "list", "chains"}, ""},
		{"chains KUBE-SERVICES (iptables)", "KUBE-SERVICES", []string{"iptables-legacy-save", "-t", "nat"}, "/proc/net/ip_tables_names"},
		{"interface kube-ipvs0", "kube-ipvs0", []string{"ip", "-o", "link", "show"}, ""},
	} {
		if look.tables != "" {
			if names, err := os.ReadFile(look.tables); err != nil || !bytes.Contains(names, []byte("nat")) {
				continue
			}
		}
		asking, cancel := context.WithTimeout(ctx, 5*time.Second)
		out, err := exec.CommandContext(asking, look.args[0], look.args[1:]...).Output()
		cancel()
		if err == nil && bytes.Contains(out, []byte(look.word)) {
			found = append(found, look.what)
		}
	}
	if len(found) == 0 {
		f.Note = "none found"
		if os.Geteuid() != 0 {
			f.Note = "none found; rules in the kernel are shown to root only"
		}
		return f
	}
	f.Problem = "two proxies on one machine undo each other's work: " + strings.Join(found, "; ")
	f.Fix = "stop kube-proxy, then remove what it left with \"kube-proxy --cleanup\""
	return f
}

func processNamed(root, name string) (pid string) {
	files, _ := filepath.Glob(filepath.Join("/", root, "proc/[0-9]*/comm"))
	for _, file := range files {
		if data, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(data)) == name {
			return filepath.Base(filepath.Dir(file))
		}
	}
	return ""
}

// kernelModes tells which ways of carrying traffic this kernel has. None is
// needed: userspace works anywhere.
func kernelModes(root string) finding {
	f := finding{Check: "kernel"}
	if runtime.GOOS != "linux" {
		f.Note = "mode userspace"
		return f
	}
	k := kernel{root: filepath.Join("/", root)}
	release := k.release()
	can, cannot := []string{}, []string{}
	for _, mode := range modes.Names()[1:] {
		needs, _ := modes.RequirementOf(mode)
		if why := k.lacks(release, needs.Major, needs.Minor, needs.Modules); why != "" {
			cannot = append(cannot, mode+" ("+why+")")
		} else {
			can = append(can, mode)
		}
	}
	f.Note = "Linux " + release + " can carry by " + strings.Join(can, ", ")
	if len(cannot) > 0 {
		f.Note += "; not by " + strings.Join(cannot, ", ")
	}
	return f
}

// kernel is what can be read of a kernel below a root.
type kernel struct{ root string }

func (k kernel) release() string {
	data, err := os.ReadFile(filepath.Join(k.root, "proc/sys/kernel/osrelease"))
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(data))
}

func (k kernel) lacks(release string, major, minor int, modules []string) string {
	var have [2]int
	if _, err := fmt.Sscanf(release, "%d.%d", &have[0], &have[1]); err == nil && slices.Compare(have[:], []int{major, minor}) < 0 {
		return fmt.Sprintf("needs %d.%d", major, minor)
	}
	for _, alternatives := range modules {
		if !slices.ContainsFunc(strings.Split(alternatives, "|"), func(m string) bool { return k.hasModule(release, m) }) {
			return "module " + strings.ReplaceAll(alternatives, "|", " or ") + " is not there"
		}
	}
	return ""
}

// hasModule: loaded, built in, or there to be loaded. Where there are no module
// lists, as in many containers, only what is loaded is known.
func (k kernel) hasModule(release, name string) bool {
	if _, err := os.Stat(filepath.Join(k.root, "sys/module", name)); err == nil {
		return true
	}
	for _, list := range []string{"modules.builtin", "modules.dep"} {
		data, err := os.ReadFile(filepath.Join(k.root, "lib/modules", release, list))
		if err == nil && bytes.Contains(data, []byte("/"+name+".ko")) {
			return true
		}
	}
	// What is built in and has no parameters has no folder there.
	return k.config()["CONFIG_"+configNames[name]]
}

// configNames of the modules above (Kconfig of net/netfilter).
var configNames = map[string]string{
	"nf_tables": "NF_TABLES", "ip_tables": "IP_NF_IPTABLES", "xt_statistic": "NETFILTER_XT_MATCH_STATISTIC",
	"ip_vs": "IP_VS", "ip_vs_rr": "IP_VS_RR",
}

// config is what the kernel was built with, where it tells (CONFIG_IKCONFIG_PROC):
// the options that are =y.
func (k kernel) config() map[string]bool {
	file, err := os.Open(filepath.Join(k.root, "proc/config.gz"))
	if err != nil {
		return nil
	}
	defer file.Close()
	unpacked, err := gzip.NewReader(file)
	if err != nil {
		return nil
	}
	out := map[string]bool{}
	for lines := bufio.NewScanner(unpacked); lines.Scan(); {
		if name, ok := strings.CutSuffix(lines.Text(), "=y"); ok {
			out[name] = true
		}
	}
	return out
}
