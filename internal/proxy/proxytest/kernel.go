package proxytest

import (
	"net/netip"
	"testing"

	"github.com/proxima-mesh/proxima/internal/locality"
	"github.com/proxima-mesh/proxima/internal/proxy"
)

// Features that cases of RunKernel need, in addition to those of Run.
const (
	// KeepSource: endpoints see the client's address where nothing demands a
	// masquerade.
	KeepSource Feature = "source address kept"
	// NodeShortcut: processes of the node use the cluster's list under
	// externalTrafficPolicy Local.
	NodeShortcut Feature = "processes of the node use the cluster list under policy Local"
	// WorkloadShortcut: workloads of the node use the cluster's list under
	// externalTrafficPolicy Local.
	WorkloadShortcut Feature = "workloads use the cluster list under policy Local"
	// SelectiveDrop: some clients of an address are left unanswered, others are
	// served.
	SelectiveDrop Feature = "drop for some clients"
	// UnallocatedDrop: addresses of the range that no Service has are silent.
	UnallocatedDrop Feature = "drop for unallocated addresses"
	// RandomPick: a new client's endpoint is chosen at random, not by its address.
	RandomPick Feature = "random first choice under affinity"
	// SurvivesRestart: established connections, and new ones, work while no agent runs.
	SurvivesRestart Feature = "traffic without an agent"
	// Sctp: the protocol SCTP is carried.
	Sctp Feature = "SCTP"
	// SelectiveRefusal: datagrams of some clients of an address are refused, those of others
	// carried.
	SelectiveRefusal Feature = "refusal of some clients of an address"
	// SourceHash: a client's address decides about its endpoint, where a policy says so.
	SourceHash Feature = "hash of the client's address"
	// Outside: connections of a closed mesh to what it does not know are refused.
	Outside Feature = "refusal of what a closed mesh does not know"
	// HairpinSource: a workload that reaches itself by its Service is seen with an address of the node.
	HairpinSource Feature = "hairpin's source is the node"
	// Bytes: what connections carry is counted per service port.
	Bytes Feature = "bytes of connections"
	// OriginalDestination: the kernel tells an endpoint of the node which address a connection was for.
	OriginalDestination Feature = "address that was asked for"
	// Repair: corruption of the kernel's state is noticed (KernelEnv.Corruptions).
	Repair Feature = "repair of drift"
)

// KernelEnv is a mode that RunKernel tests.
type KernelEnv struct {
	// New makes the mode under test for the node that this process is on. The suite
	// closes it. It is called again after Close, as a restarted agent does.
	New func(t *testing.T, node KernelNode) proxy.Mode
	// Corruptions change the kernel's state behind the mode's back; it must be whole
	// within 1 s. They run in the node's namespace. Needed unless Repair lacks.
	Corruptions []Corruption
	// Cleanup removes everything that the mode left on this node, while none runs.
	// Nil: a mode that is closed leaves nothing.
	Cleanup func() error
	// Foreign, if the mode tells programs of the node from others by more than their network namespace, makes
	// the calling thread one that is not of the node, until leave is called. The caller has locked the thread.
	Foreign func() (leave func(), err error)
	// Lacks reports which features are missing, and why.
	Lacks map[Feature]string
	// Results is as in Env.
	Results string
}

// Corruption is one way to change the kernel's state.
type Corruption struct {
	Name string
	Do   func() error
}

// KernelNode is the node on which the mode runs: this process's network
// namespace.
type KernelNode struct {
	Name string
	Zone locality.Zone
	// ServiceCIDRs hold the ClusterIPs, WorkloadCIDRs the pods of all nodes, and
	// ExternalCIDRs the external and load balancer addresses, which are routed to
	// this node; each with one range per family.
	ServiceCIDRs, WorkloadCIDRs, ExternalCIDRs []netip.Prefix
	// Addresses of the node itself, on which node ports are asked for.
	Addresses []netip.Addr
}
