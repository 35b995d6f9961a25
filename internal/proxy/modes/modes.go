// Package modes is the table of proxy modes: how each is made, how what it left
// behind is removed, and how it answers questions about a connection.
//
// It is the one place that names the modes. To add one, add a row to table, and a
// file in this package. Enter at New. It owns nothing: the mode that New returns
// belongs to the caller.
package modes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxima-mesh/proxima/internal/diag"
	"github.com/proxima-mesh/proxima/internal/policy"
	"github.com/proxima-mesh/proxima/internal/proxy"
	"github.com/proxima-mesh/proxima/internal/proxy/permit"
)

// Auto is the mode name that selects the first mode of the table that works.
const Auto = "auto"

// Config is what every mode gets; each takes what concerns it.
type Config struct {
	Logger     *slog.Logger
	Registerer prometheus.Registerer
	// ServiceCIDRs are the ranges of cluster addresses.
	ServiceCIDRs []netip.Prefix
	// WorkloadCIDRs are the addresses of workloads.
	WorkloadCIDRs []netip.Prefix
	// WorkloadInterfaces are those by which workloads of this machine send.
	WorkloadInterfaces proxy.Interfaces
	MasqueradeAll      bool
	// NodePortAddresses are ranges; node ports answer on this machine's addresses
	// in them. Nil: the default of the mode, which is PrimaryAddresses for nftables, if there are any, and
	// all addresses for the others, as with kube-proxy's modes.
	NodePortAddresses []netip.Prefix
	// PrimaryAddresses of this machine, at most one per family; it must be safe to call at any time.
	// Nil: all addresses take their place.
	PrimaryAddresses func() []netip.Addr
	// MasqueradeMark is the bit of the packet mark that kernel modes use; 0: their
	// default.
	MasqueradeMark uint32
	// Cgroup is the directory of the cgroup whose sockets the ebpf mode translates; empty: the root of the
	// hierarchy, where this process is in the network namespace of the host.
	Cgroup string
	// Windows are settings of the mode kernelspace.
	Windows Windows
	// PeerIsVIP and HostOnly of the ebpf mode, see ebpf.Options.
	PeerIsVIP, HostOnly bool
	// IPVS is for the ipvs mode.
	IPVS IPVS
	// Owner describes the agent to another one that finds a kernel mode in the same network namespace.
	Owner string
	// lockTimeout in place of the default.
	lockTimeout time.Duration
}

// Mode is a running mode.
type Mode interface {
	proxy.Mode
	// Trace completes t with what the mode does with the connection c. state is the
	// service port that the connection is for, nil if there is none; states are all
	// service ports in place.
	Trace(t *diag.Trace, c diag.Connection, state *proxy.PortState, states []*proxy.PortState)
	// Dump returns what the mode has in the kernel; the zero value for a mode that
	// has nothing there. It may read all kernel tables of the mode.
	Dump(ctx context.Context) (Kernel, error)
}

// Kernel is the state of a mode in the kernel, one object a line.
type Kernel struct {
	// Objects that the kernel has (nftables), or that the mode wants there (iptables).
	Objects []string
	// Compared reports whether the mode compares the kernel with what it wants.
	Compared bool
	// Missing objects should be in the kernel and are not. Foreign ones are in the
	// mode's tables and should not be.
	Missing, Foreign []string
}

// entry is a row of the table.
type entry struct {
	name string
	// system (GOOS) that it works on; empty: any.
	system string
	// why auto chooses it; empty: it does not, yet.
	why string
	// another name of the mode, as it may call itself; nobody asks for it.
	another bool
	// needs is what the mode asks of the kernel; nil: it has no state there.
	needs *Requirement
	// new checks that the mode works here and makes it.
	new func(ctx context.Context, cfg Config) (Mode, error)
	// does of policies, for clients without a proxy.
	does policy.NodeAbility
	// cleanup removes what an earlier process of this mode left, where that is not
	// needed by next, the mode that carries traffic now; "": none. What is absent
	// is no error, and neither is a system on which the mode can't work. Nil: the
	// mode leaves nothing.
	cleanup func(ctx context.Context, next string) error
}

// table in the order in which auto tries.
var table = []entry{
	{
		name: nftablesName, system: goosLinux, why: "it is the fastest, and works here",
		// Maps of concatenations with ranges, and dynamic sets in maps.
		needs: &Requirement{Major: 5, Minor: 13, Modules: []string{"nf_tables"}},
		new:   newNftables, cleanup: cleanNftables,
		does: policy.NodeAbility{SourceHash: true, Random: true, Addresses: true},
	},
	{
		name: iptablesName, system: goosLinux, why: "no faster mode works here",
		needs: &Requirement{Modules: []string{"ip_tables|nf_tables", "xt_statistic"}},
		new:   newIptables, cleanup: cleanIptables,
		does: policy.NodeAbility{Random: true, Addresses: true},
	},
	{
		name: ebpfName, system: goosLinux, needs: &Requirement{Major: 5, Minor: 10, Modules: []string{"nf_tables|ip_tables"}},
		new: newEbpf, cleanup: cleanEbpf,
		does: policy.NodeAbility{SourceHash: true, Random: true, Addresses: true}, // nftables serves what the layer does not
	},
	{
		name: ebpfAboveOther, system: goosLinux, another: true, needs: &Requirement{Major: 5, Minor: 10, Modules: []string{"ip_tables|nf_tables", "xt_statistic"}},
		does: policy.NodeAbility{Random: true, Addresses: true},
	},
	{
		// The table in front needs what nftables does.
		name: ipvsName, system: goosLinux, needs: &Requirement{Major: 5, Minor: 13, Modules: []string{"ip_vs", "nf_tables"}},
		new: newIpvs, cleanup: cleanIpvs,
		does: policy.NodeAbility{SourceHash: true, Random: true, Addresses: true}, // a source hash is served by the table
	},
	{
		name: kernelspaceName, system: goosWindows, why: "this is Windows, and HNS carries the traffic",
		new: newKernelspace, cleanup: cleanKernelspace,
		does: policy.NodeAbility{Random: true},
	},
	{
		name: userspaceName, why: "it works anywhere; the kernel's modes do not work here",
		new: newUserspace, cleanup: cleanUserspace,
		does: policy.NodeAbility{SourceHash: true, RoundRobin: true, Connecting: true, Namespaces: true},
	},
}

// Systems (GOOS) that modes are of, and how they are called.
const goosLinux, goosWindows = "linux", "windows"

var systemNames = map[string]string{goosLinux: "Linux", goosWindows: "Windows"}

// here reports whether the mode is of this system, or of any.
func (e entry) here() bool { return e.system == "" || e.system == runtime.GOOS }

// InKernel reports whether a mode keeps its state in the kernel, of Linux or of Windows.
func InKernel(name string) bool {
	return slices.ContainsFunc(table, func(e entry) bool { return e.name == name && (e.needs != nil || e.system != "") })
}

// AbilityOf a mode is what it does of policies for clients without a proxy. ok is false for a mode that
// is not in the table.
func AbilityOf(name string) (does policy.NodeAbility, ok bool) {
	for _, e := range table {
		if e.name == name {
			return e.does, true
		}
	}
	return policy.NodeAbility{}, false
}

// Requirement is what a mode needs of the Linux kernel: a version, and modules (or
// the same built in; "a|b" is either).
type Requirement struct {
	Major, Minor int
	Modules      []string
}

// RequirementOf a mode. ok is false for a mode that keeps no state in the kernel,
// and for Auto.
func RequirementOf(name string) (r Requirement, ok bool) {
	for _, e := range table {
		if e.name == name && e.needs != nil {
			return *e.needs, true
		}
	}
	return Requirement{}, false
}

// Names lists what New takes, Auto first.
func Names() []string {
	names := []string{Auto}
	for _, e := range table {
		if !e.another {
			names = append(names, e.name)
		}
	}
	return names
}

// New makes the mode of a name. Auto is the first of the table that works here;
// the log says why. Errors name the flag --mode. Only one agent has a kernel mode in a
// network namespace: New waits up to 10 s for another one to end, and then fails with a [HeldError], for
// Auto as well, since the userspace mode would take the traffic away from the other's rules.
func New(ctx context.Context, name string, cfg Config) (Mode, error) {
	if name == Auto {
		return newBest(ctx, cfg)
	}
	for _, e := range table {
		if e.name == name && !e.another && e.here() {
			return e.new(ctx, cfg)
		}
	}
	for _, e := range table {
		if e.name == name && !e.another {
			return nil, fmt.Errorf("--mode %s: it is of %s, and this system is %s; use %s",
				name, systemNames[e.system], cmp.Or(systemNames[runtime.GOOS], runtime.GOOS), either(Here()))
		}
	}
	return nil, fmt.Errorf("--mode %q: use %s", name, either(Here()))
}

// Here lists the modes of this system, Auto first.
func Here() []string {
	names := []string{Auto}
	for _, e := range table {
		if e.here() && !e.another {
			names = append(names, e.name)
		}
	}
	return names
}

func either(names []string) string {
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

func newBest(ctx context.Context, cfg Config) (Mode, error) {
	var failed []any // log attributes
	var errs []error
	for _, e := range table {
		if e.why == "" || !e.here() {
			continue
		}
		m, err := e.new(ctx, cfg)
		if err == nil {
			cfg.Logger.Info("mode chosen", append([]any{"mode", e.name, "why", e.why}, failed...)...)
			return m, nil
		}
		if held := new(HeldError); errors.As(err, &held) {
			return nil, err
		}
		failed = append(failed, e.name, err)
		errs = append(errs, fmt.Errorf("%s: %w", e.name, err))
	}
	return nil, errors.Join(errs...)
}

// Cleanup removes what earlier processes of all modes left in this machine's
// kernel and next does not need, nor the mode that is below it; next "" is none. Established connections of the
// mode before go on where the kernel can carry them.
func Cleanup(ctx context.Context, next string) error {
	var errs []error
	for _, e := range table {
		switch {
		case e.cleanup == nil:
		case Layered(next) && e.name == ebpfName:
			errs = append(errs, e.cleanup(ctx, ebpfName))
		case next == ipvsName && e.name == nftablesName: // its table is in front of IPVS
			errs = append(errs, e.cleanup(ctx, nftablesName))
		default:
			errs = append(errs, e.cleanup(ctx, belowOf(next)))
		}
	}
	if does, _ := AbilityOf(next); !does.Addresses {
		errs = append(errs, permit.Cleanup(ctx))
	}
	return errors.Join(errs...)
}
