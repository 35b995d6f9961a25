package doctor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/proxima-mesh/proxima/internal/admin"
	"github.com/proxima-mesh/proxima/internal/problem"
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

// serviceRanges checks the routes to addresses of the service ranges.
func serviceRanges(ranges []netip.Prefix, agent *admin.NodeStatus) []Finding {
	var out []Finding
	networks := networksHere()
	for _, r := range ranges {
		f := Finding{ID: checkServiceRange, Check: "service range " + r.String()}
		mode := ""
		if agent != nil {
			mode = agent.Agent.Mode
		}
		if network, name, overlaps := overlapping(r, networks); overlaps {
			f.fail(problem.RangeOverlaps,
				fmt.Sprintf("it overlaps %s, the network of interface %s: machines there and Services hide each other", network, name),
				"use another range: add a ServiceCIDR, move Services there, delete this one")
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

// leads looks up the kernel's route to an address of a range; nothing is sent.
func (f *Finding) leads(r netip.Prefix, mode string) {
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
		f.fail(problem.RangeUnroutable, "the kernel has no way to it: "+reason,
			"userspace mode: run the agent with CAP_NET_ADMIN, or use a range in 127.0.0.0/8; kernel modes: add a route, a default one will do")
		return
	}
	defer conn.Close()
	from := conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
	inKernel := modes.InKernel(mode)
	switch local := from == vip || vip.IsLoopback(); {
	case mode != "" && !inKernel && !local:
		f.fail(problem.RangeUnroutable,
			fmt.Sprintf("its addresses lead away from this machine (from %s), where the userspace mode cannot answer", from),
			"run the agent with CAP_NET_ADMIN, so that it can route the range to this machine, or use a range in 127.0.0.0/8")
	case local:
		f.Note = "leads to this machine"
	default:
		f.Note = "routed; kernel modes redirect before that"
	}
}

// otherProxies checks, read-only, for a kube-proxy and for rules that one left.
func otherProxies(ctx context.Context, root string) Finding {
	f := Finding{ID: checkOtherProxies, Check: "other service proxies"}
	if runtime.GOOS != "linux" {
		f.Note = "not checked on this system"
		return f
	}
	var found []string
	if pid := processNamed(root, "kube-proxy"); pid != "" {
		found = append(found, "process kube-proxy, pid "+pid)
	}
	for _, probe := range []struct {
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
		if probe.tables != "" {
			if names, err := os.ReadFile(probe.tables); err != nil || !bytes.Contains(names, []byte("nat")) {
				continue
			}
		}
		asking, cancel := context.WithTimeout(ctx, 5*time.Second)
		out, err := exec.CommandContext(asking, probe.args[0], probe.args[1:]...).Output()
		cancel()
		if err == nil && bytes.Contains(out, []byte(probe.word)) {
			found = append(found, probe.what)
		}
	}
	if len(found) == 0 {
		f.Note = "none found"
		if os.Geteuid() != 0 {
			f.Note = "none found; rules in the kernel are shown to root only"
		}
		return f
	}
	f.fail(problem.OtherProxy, "two proxies on one machine undo each other's work: "+strings.Join(found, "; "),
		"stop kube-proxy, then remove what it left with \"kube-proxy --cleanup\"")
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
