package ipvs

import (
	"net/netip"

	"github.com/proxima-mesh/proxima/internal/proxy"
)

// Key names a virtual service that is found by a packet's mark, in one family (IPv4 or IPv6).
type Key struct {
	Family proxy.Family
	Mark   uint32
}

// Service is a virtual service of the kernel.
type Service struct {
	Key
	Scheduler string
}

// Destination of a virtual service. It is reached by NAT (masquerading, in the words of ipvsadm).
type Destination struct {
	Addr   netip.AddrPort
	Weight uint32
	// Active and Inactive connections, as the kernel reports them; ignored when written.
	Active, Inactive uint32
}

// Timeouts of connections in seconds; 0: as the kernel has it.
type Timeouts struct{ TCP, TCPFin, UDP uint32 }

// Kernel is IPVS in one network namespace: a *Conn, or a *Fake. Errors are those of the kernel (unix.Errno): EEXIST for
// what is there already, ESRCH for a service that is not, ENOENT for a destination or a scheduler that is not.
type Kernel interface {
	// Services with a mark. Others are left out.
	Services() ([]Service, error)
	Destinations(Key) ([]Destination, error)
	AddService(Service) error
	// SetService changes the scheduler.
	SetService(Service) error
	DeleteService(Key) error
	AddDestination(Key, Destination) error
	// SetDestination changes the weight.
	SetDestination(Key, Destination) error
	DeleteDestination(Key, netip.AddrPort) error
	SetTimeouts(Timeouts) error
	Close() error
}

// foreignWeight marks a destination that no weight of ours equals.
const foreignWeight = 1<<32 - 1
