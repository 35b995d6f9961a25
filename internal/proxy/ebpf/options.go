package ebpf

import (
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// Name of the mode, as in --mode.
const Name = "ebpf"

// DefaultBPFFS is where a bpffs is mounted, or looked for.
const DefaultBPFFS = "/sys/fs/bpf"

// Options of the layer. The zero value of each field is its default.
type Options struct {
	// Logger gets what no caller sees, such as repairs. Default: discard.
	Logger *slog.Logger
	// Registerer gets the layer's metrics until Close. Default: none.
	Registerer prometheus.Registerer
	// Cgroup is the directory of the cgroup (version 2) whose sockets are translated, and those of all cgroups
	// below it. Default: the root of the hierarchy, in the network namespace of the host alone: programs at a
	// cgroup see sockets of all network namespaces.
	Cgroup string
	// BPFFS is the directory of the bpffs for pins. One is mounted there if there is none. Default
	// [DefaultBPFFS]. Without one, connections pass while no agent runs.
	BPFFS string
	// MasqueradeAll: nothing is translated, as connections to virtual addresses are to be masqueraded.
	MasqueradeAll bool
	// HostOnly: sockets of other network namespaces than the host's pass. For hosts where programs of others
	// redirect the connections of Pods by their original destination, as sidecars do.
	HostOnly bool
	// PeerIsVIP: getpeername(2) of a socket that got an endpoint returns the virtual address that it asked for, until 65,536
	// more sockets have been made; then the endpoint.
	PeerIsVIP bool
	// NodePortAddresses returns the addresses of this machine on which node ports are translated. It is called
	// each second, and must not block. Default: none.
	NodePortAddresses func() []netip.Addr
	// noPins: links go with the process.
	noPins bool
}

// Status of the layer.
type Status struct {
	// Cgroup whose sockets are translated; empty: none was found.
	Cgroup string `json:"cgroup,omitempty"`
	// Below is the mode that serves what passes.
	Below string `json:"below"`
	// Passing says why no connection is translated; empty: they are.
	Passing string `json:"passing,omitempty"`
	// Unpinned says why connections pass while no agent runs; empty: they are translated.
	Unpinned string `json:"unpinned,omitempty"`
	// Translated virtual addresses, each with its port, and those that pass.
	Translated int `json:"translated"`
	Passes     int `json:"passes"`
}

// String says what the layer does, in a line.
func (s *Status) String() string {
	if s.Passing != "" {
		return fmt.Sprintf("only passes, and %s serves: %s", s.Below, s.Passing)
	}
	text := fmt.Sprintf("%d addresses at cgroup %s, %d pass to %s", s.Translated, s.Cgroup, s.Passes, s.Below)
	if s.Unpinned != "" {
		text += "; all pass while no agent runs: " + s.Unpinned
	}
	return text
}

// Way of a TCP connection to an address.
type Way struct {
	// Why it passes; Translated: it gets an endpoint at connect.
	Why Why
	// Port that has the address; the zero value: none.
	Port proxy.PortName
	// Local: the list is that of this node's endpoints.
	Local bool
	// Endpoints, by the weights of the list.
	Endpoints []proxy.Target
	// Sticky clients are remembered for so long; 0: they are not.
	Sticky time.Duration
}
