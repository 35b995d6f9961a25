//go:build linux

package nftables

import (
	"context"
	"net/netip"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/proxytest"
	"github.com/proxima-mesh/proxima/internal/testkit/netns"
)

func TestKernelContract(t *testing.T) {
	tamper := func(args ...string) func() error {
		return func() error { return exec.Command("nft", args...).Run() }
	}
	proxytest.RunKernel(t, proxytest.KernelEnv{
		Results: "nftables",
		New: func(t *testing.T, node proxytest.KernelNode) proxy.Mode {
			m, err := New(Options{
				ServiceCIDRs: node.ServiceCIDRs, WorkloadCIDRs: node.WorkloadCIDRs,
			})
			if err != nil {
				t.Fatal(err)
			}
			return m
		},
		Cleanup: func() error { return Cleanup(context.Background(), Options{}) },
		Corruptions: []proxytest.Corruption{
			{Name: "everything flushed", Do: tamper("flush", "ruleset")},
			{Name: "IPv4 table deleted", Do: tamper("delete", "table", "ip", "proxima")},
			{Name: "IPv6 table deleted", Do: tamper("delete", "table", "ip6", "proxima")},
			{Name: "rules of a chain flushed", Do: tamper("flush", "chain", "ip", "proxima", "dispatch")},
			{Name: "endpoints flushed", Do: tamper("flush map ip proxima ep; flush map ip6 proxima ep")},
		},
	})
}

// TestContract runs the contract of all modes. Its clients are processes of the
// node, so the test runs once more in a process with a namespace of its own.
func TestContract(t *testing.T) {
	const inside = "PROXIMA_TEST_NFTABLES_CONTRACT"
	if os.Getenv(inside) == "" {
		if why := netns.Available(); why != "" {
			t.Skip(why)
		}
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestContract$", "-test.v", "-test.count=1")
		cmd.Env = append(os.Environ(), inside+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("in the namespace: %v", err)
		}
		t.Logf("%s", out)
		return
	}
	proxytest.LayHost(t, "pnft-router", podIP)
	for _, v6 := range []bool{false, true} {
		node := netip.MustParseAddr("192.0.2.1")
		if v6 {
			node = netip.MustParseAddr("2001:db8:1::1")
		}
		t.Run(map[bool]string{false: "IPv4", true: "IPv6"}[v6], func(t *testing.T) {
			proxytest.Run(t, proxytest.Env{
				Results: "nftables",
				New: func(t *testing.T) proxy.Mode {
					m, err := New(Options{}) // without ServiceCIDRs, nothing that is unknown is dropped
					if err != nil {
						t.Fatal(err)
					}
					return m
				},
				VIP:      func(i int) netip.Addr { return vipAt(v6, i) },
				Endpoint: func(i int) netip.Addr { return podIP(v6, i) },
				Node:     node,
				Random:   true,
				Lacks:    map[proxytest.Feature]string{proxytest.Retry: "the kernel sends a connection to one endpoint, and that is it"},
			})
		})
	}
}
