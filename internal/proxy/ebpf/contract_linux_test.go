package ebpf

import (
	"context"
	"net/netip"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/iptables"
	"github.com/proxima-mesh/proxima/internal/proxy/nftables"
	"github.com/proxima-mesh/proxima/internal/proxy/proxytest"
	"github.com/proxima-mesh/proxima/internal/testkit/netns"
)

// below are the modes that the layer is tested above.
var below = map[string]struct {
	make    func(node proxytest.KernelNode) (proxy.Mode, error)
	cleanup func() error
	lacks   map[proxytest.Feature]string
}{
	"nftables": {
		make: func(node proxytest.KernelNode) (proxy.Mode, error) {
			return nftables.New(nftables.Options{ServiceCIDRs: node.ServiceCIDRs, WorkloadCIDRs: node.WorkloadCIDRs})
		},
		cleanup: func() error { return nftables.Cleanup(context.Background(), nftables.Options{}) },
	},
	"iptables": {
		make: func(node proxytest.KernelNode) (proxy.Mode, error) {
			return iptables.New(iptables.Options{ServiceCIDRs: node.ServiceCIDRs, WorkloadCIDRs: node.WorkloadCIDRs})
		},
		cleanup: func() error { return iptables.Cleanup(context.Background(), iptables.Options{}) },
		lacks: map[proxytest.Feature]string{
			proxytest.SourceHash: "iptables has no hash of an address that is the same for all its packets",
		},
	},
}

func TestKernelContractAboveNftables(t *testing.T) { kernelContract(t, "nftables") }

// TestKernelContractAboveIptables takes a minute, and what differs from the other is the mode below.
func TestKernelContractAboveIptables(t *testing.T) {
	if os.Getenv("PROXIMA_SOAK") == "" {
		t.Skip("set PROXIMA_SOAK=1")
	}
	kernelContract(t, "iptables")
}

func kernelContract(t *testing.T, name string) {
	b := below[name]
	var p *place
	if os.Getenv("PROXIMA_TEST_ON_NODE") == t.Name() { // as RunKernel starts it
		p = newPlace(t)
	}
	var last *Mode
	env := proxytest.KernelEnv{
		New: func(t *testing.T, node proxytest.KernelNode) proxy.Mode {
			under, err := b.make(node)
			if err != nil {
				t.Fatal(err)
			}
			opts := p.options()
			opts.NodePortAddresses = func() []netip.Addr { return node.Addresses }
			m, err := New(opts, under)
			if err != nil {
				t.Fatal(err)
			}
			last = m
			return m
		},
		Cleanup: func() error {
			if err := Cleanup(p.options()); err != nil {
				return err
			}
			return b.cleanup()
		},
		Corruptions: []proxytest.Corruption{
			{Name: "links detached", Do: func() error {
				last.mu.Lock()
				defer last.mu.Unlock()
				for _, l := range last.links.of {
					if l == nil {
						continue // of getpeername
					}
					if err := detachLink(l); err != nil {
						return err
					}
				}
				return nil
			}},
			{Name: "pins removed", Do: func() error {
				return os.RemoveAll(last.links.dir)
			}},
			{Name: "addresses deleted", Do: func() error {
				last.mu.Lock()
				defer last.mu.Unlock()
				for at := range last.gen.vips {
					if err := last.gen.vipMap(at.Addr()).Delete(vipKey(at)); err != nil {
						return err
					}
				}
				return nil
			}},
		},
		Foreign: func() (func(), error) { return p.leave() },
		Lacks: map[proxytest.Feature]string{
			proxytest.HairpinSource: "a workload that connects to itself keeps its address: no packet is translated",
			proxytest.Bytes:         "the kernel's table of connections has those of the layer without their virtual address",
		},
	}
	if name == "nftables" {
		env.Results = "ebpf"
	}
	for f, why := range b.lacks {
		env.Lacks[f] = why
	}
	proxytest.RunKernel(t, env)
	if last == nil {
		return // the suite ran in another process
	}
	if s := last.Status(); s.Passing != "" && s.Passing != errNotYet.Error() {
		t.Errorf("the layer translated nothing: %+v", s)
	}
}

// TestContract runs the contract of all modes, in a process on a node of its own.
func TestContract(t *testing.T) {
	const inside = "PROXIMA_TEST_EBPF_CONTRACT"
	if os.Getenv(inside) == "" {
		again(t, inside)
		return
	}
	p := newPlace(t)
	proxytest.LayHost(t, "pebpf-router", podAt)
	for _, v6 := range []bool{false, true} {
		node := netip.MustParseAddr("192.0.2.1")
		if v6 {
			node = netip.MustParseAddr("2001:db8:1::1")
		}
		t.Run(map[bool]string{false: "IPv4", true: "IPv6"}[v6], func(t *testing.T) {
			proxytest.Run(t, proxytest.Env{
				Results: "ebpf",
				New: func(t *testing.T) proxy.Mode {
					under, err := nftables.New(nftables.Options{})
					if err != nil {
						t.Fatal(err)
					}
					opts := p.options()
					opts.NodePortAddresses = func() []netip.Addr { return []netip.Addr{node} }
					m, err := New(opts, under)
					if err != nil {
						t.Fatal(err)
					}
					return m
				},
				VIP: func(i int) netip.Addr {
					if v6 {
						return netip.AddrFrom16([16]byte{0: 0xfd, 2: 0, 3: 0x96, 14: byte(i >> 8), 15: byte(i + 1)})
					}
					return netip.AddrFrom4([4]byte{10, 96, byte(i >> 7), byte(i&127 + 1)})
				},
				Endpoint: func(i int) netip.Addr { return podAt(v6, i) },
				Node:     node,
				Random:   true,
				Lacks:    map[proxytest.Feature]string{proxytest.Retry: "the kernel sends a connection to one endpoint, and that is it"},
			})
		})
	}
}

// again runs the calling test once more in a process with a network namespace of its own.
func again(t *testing.T, inside string) {
	t.Helper()
	if why := netns.Available(); why != "" {
		t.Skip(why)
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v", "-test.count=1")
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("in the namespace: %v", err)
	}
	t.Logf("%s", out)
}

func podAt(v6 bool, i int) netip.Addr {
	if v6 {
		return netip.AddrFrom16([16]byte{0: 0x20, 1: 1, 2: 0x0d, 3: 0xb8, 5: 2, 15: byte(10 + i)})
	}
	return netip.AddrFrom4([4]byte{10, 244, 0, byte(10 + i)})
}
