package userspace_test

import (
	"slices"
	"testing"

	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/proxytest"
	"github.com/proxima-mesh/proxima/internal/proxy/userspace"
)

// TestKernelSuite runs what kernel modes must pass, less what DESIGN.md of package
// proxy says user space cannot do.
func TestKernelSuite(t *testing.T) {
	proxytest.RunKernel(t, proxytest.KernelEnv{
		Results: "userspace",
		New: func(t *testing.T, node proxytest.KernelNode) proxy.Mode {
			return newMode(t, userspace.Options{
				LocalRanges:       slices.Concat(node.ServiceCIDRs, node.ExternalCIDRs),
				NodePortAddresses: node.Addresses,
			})
		},
		Lacks: map[proxytest.Feature]string{
			proxytest.KeepSource:          "endpoints see a connection of the agent",
			proxytest.WorkloadShortcut:    "the agent does not know which clients are workloads of its node",
			proxytest.SelectiveDrop:       "who a client is shows after the connection is accepted; it is reset",
			proxytest.SelectiveRefusal:    "a datagram can't be refused by a socket that serves other clients",
			proxytest.Outside:             "the agent sees only what is sent to services",
			proxytest.UnallocatedDrop:     "the kernel refuses where no socket is",
			proxytest.RandomPick:          "the first choice is a hash of the client's address",
			proxytest.SurvivesRestart:     "the agent carries traffic itself",
			proxytest.Sctp:                "not carried in user space",
			proxytest.OriginalDestination: "the agent carries traffic itself, to its tunnel as well",
			proxytest.Repair:              "there is no state in the kernel to spoil",
		},
	})
}
