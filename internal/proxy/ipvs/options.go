package ipvs

import (
	"strings"
	"time"

	"github.com/proxima-mesh/proxima/internal/problem"
	"github.com/proxima-mesh/proxima/internal/proxy/nftables"
)

// Options of the mode.
type Options struct {
	// Tables are the options of the table in front. Its Balancer is set by New.
	Tables nftables.Options
	// Scheduler of all lists; Default: rr where weights are equal, else wrr.
	Scheduler string
	// StrictARP: the machine answers ARP for addresses of the interface alone that is asked, and so not for virtual ones
	// (net.ipv4.conf.all.arp_ignore 1, arp_announce 2).
	StrictARP bool
	// SysctlDir is the folder of the kernel parameters that are written, for containers whose /proc/sys is read-only;
	// empty: /proc/sys.
	SysctlDir string
	// TCPTimeout, TCPFinTimeout and UDPTimeout are how long IPVS remembers connections that are idle, that are closing,
	// and UDP flows; in whole seconds. 0: as the kernel has it.
	TCPTimeout, TCPFinTimeout, UDPTimeout time.Duration

	kernel Kernel // tests
	routes routes // tests
}

// MissingError is what of the kernel the mode lacks.
type MissingError struct {
	// Modules that are missing, or one of their features.
	Modules []string
	Err     error
}

func (e *MissingError) Error() string {
	return "IPVS does not work here: the kernel lacks " + strings.Join(e.Modules, ", ") + ": " + e.Err.Error()
}

func (e *MissingError) Unwrap() error { return e.Err }

// Code implements problem.Coded.
func (e *MissingError) Code() problem.Code { return problem.ModeUnavailable }

// Hint names a remedy.
func (e *MissingError) Hint() string {
	return "load them (modprobe " + strings.Join(e.Modules, " ") + "), or use another --mode"
}

// NotAccounted is why bytes and open connections are not counted.
const NotAccounted = "in mode ipvs the kernel's table of connections does not say which were translated"

// Status of the mode, for people.
type Status struct {
	// Scheduler that was asked for; empty: rr or wrr, by the weights.
	Scheduler string `json:"scheduler,omitempty"`
	// Services and their Destinations that IPVS should have. Draining services have some that end when they are idle.
	Services     int `json:"services"`
	Destinations int `json:"destinations"`
	Draining     int `json:"draining,omitempty"`
	// Repaired is how much another program had changed so far.
	Repaired int `json:"repaired,omitempty"`
	// Failures of comparing so far, which is tried again.
	Failures int `json:"failures,omitempty"`
	// WithoutPlan says why a plan's weights have no effect; empty: they have.
	WithoutPlan string `json:"withoutPlan,omitempty"`
	// Instead is the mode that runs because the kernel lacks something, and Why names that; empty: IPVS runs.
	Instead string `json:"instead,omitempty"`
	Why     string `json:"why,omitempty"`
	// Missing modules of the kernel, where Instead is set.
	Missing []string `json:"missing,omitempty"`
}
