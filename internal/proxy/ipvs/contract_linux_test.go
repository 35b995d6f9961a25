package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"testing"

	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/nftables"
	"github.com/proxima-mesh/proxima/internal/proxy/proxytest"
)

// needIPVS skips where the kernel has none; tools/interop-kernels runs these tests where it has.
func needIPVS(t *testing.T, scheduler string) {
	t.Helper()
	if missing := new(MissingError); errors.As(Check(scheduler), &missing) {
		t.Skip(missing)
	}
}

func TestKernelContract(t *testing.T) {
	needIPVS(t, Default)
	tamper := func(args ...string) func() error {
		return func() error { return exec.Command("nft", args...).Run() }
	}
	onServices := func(do func(*Conn, Service) error) func() error {
		return func() error {
			c, err := Open()
			if err != nil {
				return err
			}
			defer c.Close()
			all, err := c.Services()
			for _, s := range all {
				err = errors.Join(err, do(c, s))
			}
			return err
		}
	}
	proxytest.RunKernel(t, proxytest.KernelEnv{
		Results: "ipvs",
		New: func(t *testing.T, node proxytest.KernelNode) proxy.Mode {
			m, err := New(Options{Tables: nftables.Options{ServiceCIDRs: node.ServiceCIDRs, WorkloadCIDRs: node.WorkloadCIDRs}})
			if err != nil {
				t.Fatal(err)
			}
			return m
		},
		Corruptions: []proxytest.Corruption{
			{Name: "services deleted", Do: onServices(func(c *Conn, s Service) error { return c.DeleteService(s.Key) })},
			{Name: "destinations deleted", Do: onServices(func(c *Conn, s Service) error {
				all, err := c.Destinations(s.Key)
				for _, d := range all {
					err = errors.Join(err, c.DeleteDestination(s.Key, d.Addr))
				}
				return err
			})},
			{Name: "table deleted", Do: tamper("delete table ip proxima; delete table ip6 proxima")},
			{Name: "local routes deleted", Do: func() error {
				r, err := openRoutes(nil)
				if err != nil {
					return err
				}
				_, err = r.set(nil)
				return errors.Join(err, r.close())
			}},
			{Name: "connections leave conntrack out", Do: func() error {
				_, err := applySettings("/proc/sys", map[string]string{"net/ipv4/vs/conntrack": "0"})
				return err
			}},
		},
		Lacks: map[proxytest.Feature]string{
			proxytest.Bytes: "conntrack does not say of connections of IPVS that they are translated",
		},
		Cleanup: func() error {
			return errors.Join(Cleanup(), nftables.Cleanup(t.Context(), nftables.Options{}))
		},
	})
}

// TestKernelContractOfHost runs the contract of all modes, by clients of the node itself.
func TestKernelContractOfHost(t *testing.T) {
	needIPVS(t, Default)
	if !proxytest.OnNode(t) {
		return
	}
	endpoint := func(v6 bool, i int) netip.Addr {
		if v6 {
			return netip.MustParseAddr(fmt.Sprintf("2001:db8:2::%d", 10+i))
		}
		return netip.MustParseAddr(fmt.Sprintf("10.244.0.%d", 10+i))
	}
	proxytest.LayHost(t, "pipvs-router", endpoint)
	t.Cleanup(func() {
		if err := errors.Join(Cleanup(), nftables.Cleanup(context.Background(), nftables.Options{})); err != nil {
			t.Error(err)
		}
	})
	for _, v6 := range []bool{false, true} {
		node := netip.MustParseAddr("192.0.2.1")
		if v6 {
			node = netip.MustParseAddr("2001:db8:1::1")
		}
		t.Run(map[bool]string{false: "IPv4", true: "IPv6"}[v6], func(t *testing.T) {
			proxytest.Run(t, proxytest.Env{
				Results: "ipvs",
				New: func(t *testing.T) proxy.Mode {
					m, err := New(Options{}) // without ServiceCIDRs, nothing that is unknown is dropped
					if err != nil {
						t.Fatal(err)
					}
					return m
				},
				VIP: func(i int) netip.Addr {
					if v6 {
						return netip.MustParseAddr(fmt.Sprintf("fd00:96::%x", i+1))
					}
					return netip.MustParseAddr(fmt.Sprintf("10.96.%d.%d", i/250, i%250+1))
				},
				Endpoint: func(i int) netip.Addr { return endpoint(v6, i) },
				Node:     node,
				Random:   true, // affinity and hashes are the table's
				Lacks:    map[proxytest.Feature]string{proxytest.Retry: "the kernel sends a connection to one endpoint, and that is it"},
			})
		})
	}
}
