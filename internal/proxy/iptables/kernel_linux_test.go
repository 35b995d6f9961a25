package iptables_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/iptables"
	"github.com/proxima-mesh/proxima/internal/proxy/proxytest"
	"github.com/proxima-mesh/proxima/internal/testkit/netns"
)

var variants = []iptables.Variant{iptables.Legacy, iptables.NFT}

func prefixes(ps ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range ps {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

func newMode(t *testing.T, opts iptables.Options) *iptables.Mode {
	t.Helper()
	m, err := iptables.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// command runs in this process's namespace.
func command(args ...string) error {
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w: %s", args, err, out)
	}
	return nil
}

// damage runs for both families.
func tamper(name string, v iptables.Variant, args ...string) proxytest.Corruption {
	return proxytest.Corruption{Name: name, Do: func() error {
		for _, base := range []string{"iptables-", "ip6tables-"} {
			if err := command(append([]string{base + string(v), "-w", "10"}, args...)...); err != nil {
				return err
			}
		}
		return nil
	}}
}

func kernelEnv(v iptables.Variant) proxytest.KernelEnv {
	return proxytest.KernelEnv{
		Results: "iptables",
		New: func(t *testing.T, node proxytest.KernelNode) proxy.Mode {
			return newMode(t, iptables.Options{Variant: v, ServiceCIDRs: node.ServiceCIDRs, WorkloadCIDRs: node.WorkloadCIDRs})
		},
		Cleanup: func() error { return iptables.Cleanup(context.Background(), iptables.Options{}) },
		Corruptions: []proxytest.Corruption{
			tamper("table nat flushed", v, "-t", "nat", "-F"),
			tamper("table filter flushed", v, "-t", "filter", "-F"),
			tamper("the way in removed", v, "-t", "nat", "-D", "PREROUTING", "-j", "PROXIMA-SERVICES"),
			tamper("a chain flushed", v, "-t", "nat", "-F", "PROXIMA-SERVICES"),
		},
		Lacks: map[proxytest.Feature]string{proxytest.SourceHash: "iptables chooses at random"},
	}
}

func TestKernelLegacy(t *testing.T) { t.Parallel(); proxytest.RunKernel(t, kernelEnv(iptables.Legacy)) }
func TestKernelNFT(t *testing.T)    { t.Parallel(); proxytest.RunKernel(t, kernelEnv(iptables.NFT)) }

// onNode runs the calling test once more, in a process that has a network
// namespace of its own, and reports whether this is that process: the suite dials
// from whatever thread is free.
func onNode(t *testing.T) bool {
	t.Helper()
	const inside = "PROXIMA_IPTABLES_TEST_INSIDE"
	if os.Getenv(inside) == t.Name() {
		return true
	}
	if why := netns.Available(); why != "" {
		t.Skip(why)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.count=1")
	cmd.Env = append(os.Environ(), inside+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("in a namespace: %v", err)
	}
	t.Logf("in a namespace:\n%s", out) // what was skipped there is among it
	return false
}

func contract(t *testing.T, v iptables.Variant) {
	if !onNode(t) {
		return
	}
	const node = "10.9.0.1"
	for _, args := range [][]string{
		{"ip", "link", "set", "lo", "up"},
		{"ip", "addr", "add", node + "/32", "dev", "lo"},
		{"ip", "route", "add", "local", "10.7.0.0/24", "dev", "lo"},
		// Unknown virtual addresses are refused, as the suite wants it, by the host.
		{"ip", "route", "add", "local", "10.96.0.0/16", "dev", "lo"},
		{"sysctl", "-qw", "net.ipv4.icmp_ratelimit=0"},
	} {
		if err := command(args...); err != nil {
			t.Fatal(err)
		}
	}
	proxytest.Run(t, proxytest.Env{
		Results: "iptables",
		New: func(t *testing.T) proxy.Mode {
			return newMode(t, iptables.Options{Variant: v})
		},
		VIP:      func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}) },
		Endpoint: func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 7, 0, byte(1 + i)}) },
		Node:     netip.MustParseAddr(node),
		Random:   true,
		Lacks:    map[proxytest.Feature]string{proxytest.Retry: "the kernel sends a connection to one endpoint, and that is it"},
	})
}

func TestContractLegacy(t *testing.T) { t.Parallel(); contract(t, iptables.Legacy) }
func TestContractNFT(t *testing.T)    { t.Parallel(); contract(t, iptables.NFT) }
